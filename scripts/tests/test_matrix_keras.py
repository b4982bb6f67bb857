"""The Keras child of the matrix: its protocol, its params, its workloads."""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import SCRIPTS

import matrix_keras

CHILD = SCRIPTS / "matrix_keras.py"
# The child needs two fixed descriptors, which may be in use in the test's process.
DUP = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"
PHASES = ["start", "library", "loaded", "first", "steady", "closed", "trimmed"]
MALLOC = {"malloc in use", "malloc free", "malloc arenas"}


def spec_of(workload: str, **more: Any) -> dict[str, Any]:
    """Return the Spec of a short run, as the parent writes it."""
    spec = {"workload": workload, "steps": 6, "every": 2, "epoch": 3, "batch": 4, "seed": 5}
    params = {
        key: more.pop(key) for key in list(more) if key not in (*spec, "samples", "scratch", "from")
    }
    return {**spec, **more, "knobs": {k.replace("del_", "del"): v for k, v in params.items()}}


@dataclasses.dataclass
class Talk:
    """The messages of a child."""

    messages: list[dict[str, Any]]
    code: int = 0
    log: str = ""

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The messages of a kind."""
        return [m for m in self.messages if m["kind"] == kind]

    @property
    def facts(self) -> dict[str, str]:
        """The facts by name."""
        return {m["name"]: m["value"] for m in self.of("fact")}


def start(spec: dict[str, Any]) -> tuple[subprocess.Popen[str], Iterator[dict[str, Any]], int]:
    """Start a child as the parent does; returns it, its messages, and the file for answers."""
    messages, to_parent = os.pipe()
    to_child, answers = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (to_parent, to_child)]
    process = subprocess.Popen(
        [sys.executable, "-c", DUP, *map(str, high), sys.executable, str(CHILD)],
        env={**os.environ, matrix_keras.ENVIRONMENT: json.dumps(spec)},
        pass_fds=high,
        stderr=subprocess.PIPE,
        text=True,
    )
    for fd in (to_parent, to_child, *high):
        os.close(fd)
    return process, map(json.loads, os.fdopen(messages)), answers


def converse(spec: dict[str, Any]) -> Talk:
    """Start a child and answer it to its end."""
    process, messages, answers = start(spec)
    talk = Talk([])
    for message in messages:
        talk.messages.append(message)
        if message["kind"] in ("phase", "step"):
            os.write(answers, b".")
    os.close(answers)
    _, talk.log = process.communicate()
    talk.code = process.returncode
    return talk


def converse_here(spec: dict[str, Any]) -> Talk:
    """Do a run in this process, where TensorFlow is already loaded."""
    messages, to_parent = os.pipe()
    to_child, answers = os.pipe()
    talk = Talk([])

    def parent() -> None:
        for line in os.fdopen(messages):
            talk.messages.append(json.loads(line))
            if talk.messages[-1]["kind"] in ("phase", "step"):
                os.write(answers, b".")

    thread = threading.Thread(target=parent)
    thread.start()
    try:
        child = matrix_keras.Child(matrix_keras.Spec.read(json.dumps(spec)), to_parent, to_child)
        matrix_keras.do(child)
        child.end()
    finally:
        os.close(to_parent)
        thread.join()
        os.close(to_child)
        os.close(answers)
    return talk


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Undo the settings of a run in this process."""
    yield
    keras.mixed_precision.set_global_policy("float32")
    tf.config.run_functions_eagerly(False)


def check(talk: Talk, spec: dict[str, Any]) -> None:
    """Check the order and content of a whole run's messages."""
    assert talk.messages[-1] == {"kind": "end"}, talk.messages[-1]
    assert [m["name"] for m in talk.of("phase")] == PHASES
    steps = talk.of("step")
    every = spec["every"]
    assert [m["step"] for m in steps] == list(range(every, spec["steps"] + 1, every))
    sampled = [m for m in talk.messages if m["kind"] in ("phase", "step")]
    assert all(set(m["values"]) == MALLOC for m in sampled)
    assert all(m["step_ns"] > 0 for m in steps)
    names = [m.get("name") or m["step"] for m in sampled]
    assert names == [*PHASES[:4], *(m["step"] for m in steps), *PHASES[4:]]
    assert talk.facts["tensorflow"] == tf.__version__
    assert talk.facts["keras"] == keras.__version__
    assert talk.facts["python"] == sys.version.split()[0]
    assert talk.facts["batch"] == str(spec["batch"])
    assert int(talk.facts["threads"]) > 0
    if "loss_first" in talk.facts:
        assert math.isfinite(float(talk.facts["loss_first"]))
        assert math.isfinite(float(talk.facts["loss_last"]))


@pytest.mark.parametrize(
    ("workload", "params", "loop"),
    [
        ("W0", {}, "fit"),
        ("S1", {"loop": "function", "del_": "1", "gc": "step", "trim": "epoch"}, "function"),
        ("W4", {"loop": "train_on_batch", "clear_session": "epoch"}, "train_on_batch"),
        ("W3", {"intra": "1", "inter": "1", "grappler": "0", "bf16": "1"}, "predict"),
    ],
)
def test_a_run(workload, params, loop, tmp_path):
    spec = spec_of(workload, **params)
    talk = converse({**spec, "scratch": str(tmp_path)})
    check(talk, spec)
    assert talk.code == 0, talk.log
    assert talk.facts["loop"] == loop
    assert ("loss_first" in talk.facts) == (workload != "W3")
    values = [m["values"]["malloc in use"] for m in talk.of("phase")]
    if values[0] is not None:
        # TensorFlow alone takes tens of megabytes.
        assert values[1] > values[0] + (10 << 20)


@pytest.mark.parametrize(
    ("workload", "params"),
    [
        ("W1", {"loop": "function"}),
        ("W2", {"steps": 2, "every": 1, "epoch": 1, "batch": 2, "input": "buffer"}),
        ("W3", {"loop": "function", "shapes": "bucket"}),
        ("W5", {"clear_session": "epoch"}),
        ("W6", {}),
        ("W8", {"goroutines": "2"}),
        ("W9", {"shapes": "pad", "loop": "function"}),
        ("W9", {"jit": "off"}),
        ("W10", {"loop": "eager", "del_": "1"}),
        ("W11", {"shuffle": "10", "prefetch": "auto"}),
        ("W12", {}),
        ("S0", {"rows": "50", "data": "disk"}),
        ("S0", {"rows": "50", "reset": "reload"}),
        ("S1d", {"data": "tfdata", "cache": "1"}),
        ("S2", {"data": "from_generator", "prefetch": "2", "mixed": "mixed_bfloat16"}),
        ("S2", {"eager": "1", "callback": "hoard"}),
        ("S2l", {"data": "generator", "loop": "eager", "reset": "restore"}),
        ("S2l", {"loop": "function", "mixed": "mixed_float16"}),
        ("S3", {"steps": 2, "every": 1, "epoch": 1, "augment": "1", "shapes": "varying"}),
        ("S3", {"steps": 2, "every": 1, "epoch": 1, "input": "buffer", "loop": "function"}),
        ("S4", {"history": "last", "epoch": 6}),
    ],
)
def test_workloads(workload, params, tmp_path):
    spec = spec_of(workload, **params)
    check(converse_here({**spec, "scratch": str(tmp_path)}), spec)


def test_every_workload_is_described_and_tested():
    for workload in matrix_keras.WORKLOADS:
        assert workload in matrix_keras.__doc__
    marks = [*test_a_run.pytestmark, *test_workloads.pytestmark]
    tested = {case[0] for mark in marks for case in mark.args[1]}
    assert tested == set(matrix_keras.WORKLOADS)


@pytest.mark.parametrize(
    ("workload", "params", "text"),
    [
        ("W0", {"colour": "red"}, "colour=red: it changes nothing in this workload"),
        ("W0", {"gc": "never"}, "gc=never: this workload has only epoch, step"),
        ("W0", {"del_": "1"}, "del=1: the loop fit is that of Keras"),
        ("W0", {"data": "disk"}, "data=disk"),
        ("W0", {"prefetch": "4"}, "prefetch=4: with data=numpy"),
        ("W0", {"loop": "eager", "jit": "1"}, "jit=1: eager execution compiles nothing"),
        ("W0", {"jit": "off"}, "jit=off: it is off already"),
        ("W0", {"loop": "function", "callback": "hoard"}, "only the loop fit has callbacks"),
        ("W3", {"loop": "train_on_batch"}, "loop=train_on_batch"),
        ("W8", {"goroutines": "0"}, "expected a number of at least 1"),
        ("S3", {"data": "numpy", "augment": "1"}, "augment=1"),
    ],
)
def test_a_parameter_without_use_costs_no_run(workload, params, text):
    talk = converse(spec_of(workload, **params))
    assert len(talk.messages) == 1, "it must end before anything is measured"
    assert talk.messages[0]["kind"] == "end"
    assert talk.messages[0]["failure"] == "not applicable"
    assert text in talk.messages[0]["text"]
    assert talk.code == 1


def test_what_keras_does_not_take():
    talk = converse({**spec_of("W0"), "config": "CAE="})
    assert talk.messages[-1]["failure"] == "not applicable"
    talk = converse(spec_of("W99"))
    assert talk.messages[-1]["failure"] == "failed"
    assert "there are W0, W1" in talk.messages[-1]["text"]
    assert talk.code == 1


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "W0", "[]", "{}"),
        *(json.dumps(spec_of("W0", **more)) for more in ({"every": 0}, {"samples": 10})),
    ],
)
def test_without_a_spec(text):
    environment = {k: v for k, v in os.environ.items() if k != matrix_keras.ENVIRONMENT}
    if text is not None:
        environment[matrix_keras.ENVIRONMENT] = text
    done = subprocess.run(
        [sys.executable, str(CHILD)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"matrix_keras.py: {matrix_keras.ENVIRONMENT}")
    assert len(done.stderr.splitlines()) == 1, "no traceback"
    assert done.stdout == ""


def test_a_child_whose_parent_is_gone_ends():
    process, messages, answers = start(spec_of("W0"))
    assert next(messages)["name"] == "start"
    os.close(answers)
    assert list(messages) == [], "it went on without an answer"
    _, log = process.communicate()
    assert process.returncode == 1
    assert "the parent has ended" in log


def test_another_process_goes_on_with_the_same_numbers(tmp_path):
    spec = {**spec_of("S2", loop="function"), "scratch": str(tmp_path)}
    whole = converse_here(spec)
    spec["knobs"]["reset"] = "process"
    first = converse(spec)
    assert first.messages[-1] == {"kind": "again", "step": 3}
    assert first.code == 0
    rest = converse({**spec, "from": 3})
    assert rest.messages[-1] == {"kind": "end"}
    assert [m["step"] for talk in (first, rest) for m in talk.of("step")] == [2, 4, 6]
    assert rest.facts["loss_last"] == whole.facts["loss_last"]


@pytest.mark.parametrize("reset", ["restore", "reload"])
def test_resetting_changes_no_number(reset, tmp_path):
    spec = {**spec_of("S1d", loop="function"), "scratch": str(tmp_path)}
    whole = converse_here(spec)
    spec["knobs"]["reset"] = reset
    # Dropout continues its random numbers.
    assert converse_here(spec).facts == whole.facts


def recorded_batches(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Do a run; returns the samples of the set for each step."""
    seen: list[list[int]] = []
    made = matrix_keras.Samples.make

    def make(self: Any, n: int, key: int, into: Any = None) -> tuple[Any, Any]:
        x, y = made(self, n, key, into)
        x.reshape(n, -1)[:, 0] = np.arange(n)  # the number of the sample
        return x, y

    def step(self: Any, x: Any, y: Any) -> float:
        seen.append([int(v) for v in np.reshape(x, (len(x), -1))[:, 0]])
        return 1.0

    monkeypatch.setattr(matrix_keras.Samples, "make", make)
    monkeypatch.setattr(matrix_keras.Learner, "step", step)
    converse_here(spec)
    return seen


@pytest.mark.parametrize(("workload", "samples"), [("W0", 24), ("S1", 18), ("S4", 24), ("W11", 24)])
def test_half_the_batch_has_the_whole_set(workload, samples, monkeypatch):
    params = {"shuffle": "0"} if workload == "W11" else {}
    spec = spec_of(workload, steps=6, epoch=3, batch=4, samples=24, loop="function", **params)
    flat = [number for batch in recorded_batches(spec, monkeypatch) for number in batch]
    assert flat == [i % samples for i in range(len(flat))]
    assert max(flat) == samples - 1


@pytest.mark.parametrize(
    ("workload", "epochs"),
    # S1 has 18 samples. Keras divides a pass of 5 steps into epochs of 3 and 2.
    [("W0", [3, 3, 3, 3]), ("W11", [3, 3, 3, 3]), ("S1", [3, 2, 3, 2, 2]), ("S4", [3, 3, 3, 3])],
)
def test_keras_has_as_many_epochs_with_half_the_batch(workload, epochs, monkeypatch, tmp_path):
    ended: list[int] = []
    run = matrix_keras.Training._callback

    def callback(self: Any, *arguments: Any) -> Any:
        between = run(self, *arguments)
        batches, epoch = between.on_train_batch_end, between.on_epoch_end
        count = [0]

        def on_train_batch_end(batch: int, logs: Any) -> None:
            count[0] += 1
            batches(batch, logs)

        def on_epoch_end(number: int, logs: Any) -> None:
            ended.append(count[0] - sum(ended))
            epoch(number, logs)

        between.on_train_batch_end, between.on_epoch_end = on_train_batch_end, on_epoch_end
        return between

    monkeypatch.setattr(matrix_keras.Training, "_callback", callback)
    spec = spec_of(workload, steps=12, epoch=3, batch=4, samples=24)
    check(converse_here({**spec, "scratch": str(tmp_path)}), spec)
    assert ended == epochs


def test_a_run_that_diverged_tells_its_loss(monkeypatch):
    losses = iter([1.5, math.nan, math.inf, math.nan, math.nan, math.nan])
    monkeypatch.setattr(matrix_keras.Learner, "step", lambda *_: next(losses))
    talk = converse_here(spec_of("W0", loop="function"))
    assert talk.messages[-1] == {"kind": "end"}
    assert (talk.facts["loss_first"], talk.facts["loss_last"]) == ("1.5", "nan")


def test_the_kept_tensor_is_of_the_size_that_is_told():
    def job(**params: str) -> Any:
        spec = matrix_keras.Spec.read(json.dumps(spec_of("W1", loop="eager", **params)))
        kept = matrix_keras.Kept(matrix_keras.Child(spec))
        kept.load()
        for _ in range(3):
            kept.after_step({})
        return kept.kept

    tensors = job()
    assert [t.shape.num_elements() * t.dtype.size for t in tensors] == [65536] * 3
    assert job(release="del") == []


def test_failures():
    parameter = matrix_keras.ParameterError(matrix_keras.COULD_NOT_APPLY, "trim", "epoch", "why")
    assert matrix_keras.failure_of(parameter) == "could not apply"
    assert matrix_keras.failure_of(MemoryError()) == "out of memory"
    assert matrix_keras.failure_of(tf.errors.ResourceExhaustedError(None, None, "")) == (
        "out of memory"
    )
    assert matrix_keras.failure_of(tf.errors.InvalidArgumentError(None, None, "")) == "failed"


def test_malloc_sees_what_is_allocated():
    malloc = matrix_keras.Malloc()
    if malloc.values()["malloc in use"] is None:
        pytest.skip("this C library has no mallinfo2, or another allocator is preloaded")
    before = malloc.values()
    block = np.ones(64 << 20, "uint8")
    after = malloc.values()
    for layer in ("malloc in use", "malloc arenas"):
        assert after[layer] - before[layer] > block.nbytes * 0.9
    assert malloc.trim()


@pytest.mark.parametrize("name", list(matrix_keras.ARCHITECTURES))
def test_samples_fit_the_model(name):
    architecture = matrix_keras.ARCHITECTURES[name]
    samples = matrix_keras.Samples(architecture, 3)
    x, y = samples.make(5, 1)
    for spec, array in zip(samples.signature(), (x, y), strict=True):
        assert spec.is_compatible_with(tf.constant(array))
    again, _ = samples.make(5, 1, np.empty((8, *architecture.shape), "float32"))
    assert np.array_equal(x, again), "the same key gives the same samples"
    assert not np.array_equal(x, samples.make(5, 2)[0])
    classes = y.astype("int64").reshape(-1)
    assert all(x[i].reshape(-1)[k] >= 1 for i, k in enumerate(classes)), "nothing to learn"
    options = matrix_keras.LoopOptions("eager", False, False, False, "")
    learner = matrix_keras.Learner(architecture, options)
    assert math.isfinite(learner.step(x, y))


def test_a_set_on_disk_is_that_in_memory(tmp_path):
    spec = matrix_keras.Spec.read(json.dumps({**spec_of("S0"), "scratch": str(tmp_path)}))
    samples = matrix_keras.Samples(matrix_keras.ARCHITECTURES["dense-100-64-1"], 1)
    memory = matrix_keras.large_set(spec, samples, 1500, "numpy")
    disk = matrix_keras.large_set(spec, samples, 1500, "disk")
    assert all(isinstance(array, np.memmap) for array in disk)
    assert all(np.array_equal(a, b) for a, b in zip(memory, disk, strict=True))


@pytest.mark.parametrize("shapes", ["varying", "pad", "bucket"])
def test_sizes(shapes):
    spec = matrix_keras.Spec.read(json.dumps(spec_of("W9", batch=50, shapes=shapes)))
    sizes = matrix_keras.Sizes(matrix_keras.Child(spec), once=True)
    drawn = list(itertools.islice(sizes.draw(), 100))
    expected = {
        "varying": set(range(1, 101)),
        "pad": {100},
        "bucket": {1, 2, 4, 8, 16, 32, 64, 100},
    }
    assert set(drawn) == expected[shapes]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/cache/dense-784-10-6f8124f5bc290479", "dense-784-10"),
        ("out/models/lstm", "lstm"),
        ("out/mine", "digits"),
        ("", "digits"),
    ],
)
def test_the_folder_tells_the_model(folder, name):
    spec = matrix_keras.Spec.read(json.dumps({**spec_of("W10"), "model": folder}))
    assert matrix_keras.architecture_of(spec, "digits") == name


def test_it_is_executable():
    assert os.access(CHILD, os.X_OK)
    assert pathlib.Path(CHILD).read_text().startswith("#!")
