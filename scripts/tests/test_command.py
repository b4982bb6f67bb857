"""steadyfit-export as a command: arguments, exit codes, messages."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import SCRIPTS

import steadyfit_export as export
from steadyfit_export.command import main

NET = """
import keras
import tensorflow as tf

def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

def all_of_it():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model(), "sgd", loss, ["accuracy"]

def options():
    return {"model": model(), "optimizer": "sgd", "loss": "mse", "xla_batch": 2}

def frozen():
    net = model()
    net.trainable = False
    return net
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}"


def test_help_answers_without_tensorflow():
    code = (
        "import sys\nfrom steadyfit_export.command import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True, check=True
    )
    assert "--model" in done.stdout and "Exit codes" in done.stdout


def test_exit_codes_of_the_process(tmp_path):
    """The exit codes of the real process."""

    def run(arguments):
        command = [sys.executable, str(SCRIPTS / "export.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    missing = run(["--model", "x.keras"])
    assert missing.returncode == 2 and "--out" in missing.stderr
    unknown = run(["--colour", "red"])
    assert unknown.returncode == 2


def test_deterministic_operations(net, tmp_path):
    """With TF_DETERMINISTIC_OPS, TensorFlow refuses SparseSoftmaxCrossEntropyWithLogits on a GPU."""

    def replaced(out, *more):
        command = [sys.executable, str(SCRIPTS / "export.py"), "--model", f"{net}:all_of_it"]
        subprocess.run([*command, "--out", str(out), *more], check=True, capture_output=True)
        graph = (out / "saved_model.pb").read_bytes()
        return b"SparseSoftmaxCrossEntropyWithLogits/LogSoftmax" in graph

    assert not replaced(tmp_path / "plain")
    assert replaced(tmp_path / "deterministic", "--deterministic")


def test_exports_what_a_function_returns(net, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["--model", f"{net}:all_of_it", "--out", out]) == 0
    printed = capsys.readouterr().out
    assert "train: x float32[?,4], y int64[?] -> loss float32[], accuracy float32[]" in printed
    assert "checked: a step repeats after save and restore" in printed
    # The second time it is refused with a message, but not with --force.
    assert main(["--model", f"{net}:all_of_it", "--out", out]) == 1
    assert "--force" in capsys.readouterr().err


def test_the_command_line_wins_over_the_function(net, tmp_path, capsys):
    out = str(tmp_path / "out")
    arguments = ["--optimizer", "adam", "--metrics", "mae,mse", "--learning-rate", "0.5"]
    assert main(["--model", f"{net}:options", "--out", out, *arguments]) == 0
    printed = capsys.readouterr().out
    assert "train_xla: x float32[2,4]" in printed
    assert "mae float32[], mse float32[]" in printed


def test_policy_and_loss_scale(net, tmp_path, capsys):
    step = ["--optimizer", "sgd", "--loss", "mse", "--policy", "mixed_float16"]
    out = str(tmp_path / "inside")
    assert main(["--model", f"{net}:model", "--out", out, *step]) == 0
    assert "loss_scale float32[], skipped_steps int64[]" in capsys.readouterr().out
    out = str(tmp_path / "outside")
    assert main(["--model", f"{net}:model", "--out", out, *step, "--loss-scale-input"]) == 0
    printed = capsys.readouterr().out
    assert "train: loss_scale float32[], x float32[?,4]" in printed
    assert "grads_finite bool[]" in printed and "skipped_steps" not in printed
    metadata = json.loads((tmp_path / "outside" / export.METADATA).read_text())
    assert metadata["precision"] == "mixed_float16"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "gone.keras", "--policy", "mixed_float16"], 2, "a function makes"),
        (["--model", "{net}:model"], 2, "no optimizer"),
        (["--model", "{net}:model", "--optimizer", "adam"], 2, "no loss"),
        (["--model", "{net}:model", "--optimizer", "warp", "--loss", "mse"], 2, "'warp'"),
        (["--model", "{net}:model", "--optimizer", "adam", "--loss", "warp"], 2, "'warp'"),
        (["--model", "net"], 2, "FILE.keras or module:function"),
        (["--model", "gone.keras"], 2, "no such file"),
        (["--model", "{net}:nothing"], 2, "no function 'nothing'"),
        (["--model", "no_such_module:f"], 2, "no_such_module"),
        (["--model", "{net}:options", "--loss-output", "mae"], 2, "its own train_step"),
        (["--model", "{net}:options", "--input-dtype", "z=uint8"], 2, "'z'"),
        (["--model", "{net}:options", "--range", "0-255"], 2, "LOW:HIGH"),
        (["--model", "{net}:options", "--label", "y=float32[2"], 2, "DTYPE[DIMS]"),
        (["--model", "{net}:all_of_it", "--xla-steps", "3"], 2, "xla_batch"),
        (
            ["--model", "{net}:frozen", "--optimizer", "adam", "--loss", "mse"],
            1,
            "nothing to train",
        ),
    ],
)
def test_mistakes_are_explained(net, tmp_path, capsys, arguments, code, message):
    arguments = [a.replace("{net}", net) for a in arguments]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == code
    said = capsys.readouterr().err
    assert message in said and said.startswith("steadyfit-export: ")
    assert not (tmp_path / "out").exists()
