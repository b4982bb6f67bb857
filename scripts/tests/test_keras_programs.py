"""The Keras programs of the laboratory, for a few steps in this process, where TensorFlow is loaded."""

from __future__ import annotations

import json
import math
import runpy
import sys
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import SCRIPTS

PROGRAMS = SCRIPTS.parent / "internal/lab/programs/keras"
TRAINING = """fit --loop function --del 1 --validate 1
fit --model lstm --history last --callback hoard --samples 128
fit --model dense-784-10 --eager 1 --history keep --data generator
kept --gc epoch --trim epoch --clear_session epoch
images --batch 2 --augment 1 --shapes varying
images --batch 2 --data from_generator --prefetch 2
rebuild --batch 2 --reuse 1
rebuild --batch 2 --loop function --del 1
compiled --batch 4 --shapes bucket
shuffle --shuffle 3 --prefetch auto --mixed mixed_bfloat16
large --rows 90 --data disk --scratch .""".splitlines()
OTHERS = ["sizes --shapes pad", "outputs", "bursts --goroutines 2", "strings"]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a program for 4 steps; returns the lines that it prints."""

    def run_program(line):
        name, *options = line.split()
        monkeypatch.setattr(sys, "argv", [name, "--steps", "4", "--epoch", "2", *options])
        runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    monkeypatch.syspath_prepend(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    yield run_program
    keras.config.set_dtype_policy("float32")
    tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("line", [*TRAINING, *OTHERS])
def test_result(run, line):
    *printed, result = run(line)
    result = json.loads(result)
    assert printed == ([f"step {n}" for n in range(1, 5)] if line.startswith(("bursts", "strings")) else [])
    assert (result["tensorflow"], result["keras"]) == (tf.__version__, keras.__version__)
    losses = [float(value) for key, value in result.items() if key.startswith("loss")]
    assert len(losses) == (2 if line in TRAINING else 0)
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize(("graph", "traces"), [("grow", 4), ("sealed", 1)])
def test_a_sealed_function_is_traced_once(run, monkeypatch, graph, traces):
    full, made = np.full, []
    monkeypatch.setattr(np, "full", lambda *args: made.append(args) or full(*args))
    run(f"retrace --graph {graph}")
    assert len(made) == traces


@pytest.mark.parametrize(("history", "kept"), [("keep", 3), ("last", 1)])
def test_history(run, monkeypatch, history, kept):
    predict, values, alive = keras.Model.predict, [], []

    def recorded(*args, **more):
        alive.append(sum(value() is not None for value in values))
        result = predict(*args, **more)
        values.append(weakref.ref(result))
        return result

    monkeypatch.setattr(keras.Model, "predict", recorded)
    run(f"predictions --history {history}")
    assert alive[-1] == kept
