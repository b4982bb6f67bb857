#!/usr/bin/env python3
"""Install the wheel into new environments with TensorFlow, and use it there as a new user would: `make test-dist`.

    scripts/try_wheel.py WHEEL [--python python3.12] [--tensorflow 2.21.0] ...

Each combination of a Python and a TensorFlow is tried in a folder of its own, which is removed. One for which there
is no TensorFlow is reported.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = {
    "train.py": """
import keras
import numpy as np

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((8000, 8), "float32"), np.zeros((8000, 1), "float32"), batch_size=8, epochs=3, verbose=0)
""",
    "model.py": """
import keras
import numpy as np

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.save("model.keras")
random = np.random.default_rng(1)
np.savez("train.npz", x=random.random((320, 64), "float32"), y=random.integers(10, size=320))
""",
}
# Each command, and a text that it prints.
COMMANDS = [
    ("steadyfit --version", "steadyfit version "),
    ("steadyfit watch -- python train.py", "3000 training steps, 3 epochs"),
    ("python model.py", ""),
    ("steadyfit-export --model model.keras --out model", "checked: "),
    ("steadyfit fit --model model --data train.npz --epochs 2 --out trained", "trained 2 epochs"),
    ("steadyfit-import trained --into model.keras", "variables of the model"),
]


def use(programs: pathlib.Path, folder: pathlib.Path) -> dict[str, float]:
    """Run COMMANDS of an environment in a folder; returns the seconds that each took."""
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("STEADYFIT_") and k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment = kept | {"PATH": f"{programs}:/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    seconds = {}
    for command, expected in COMMANDS:
        began = time.monotonic()
        done = subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        seconds[command] = time.monotonic() - began
        if done.returncode or expected not in done.stdout:
            raise AssertionError(f"{command}: exit code {done.returncode}, expected {expected!r}:\n{done.stdout}")
    return seconds


def size(folder: pathlib.Path) -> float:
    """The MB of the files in a folder."""
    return sum(f.lstat().st_size for f in folder.rglob("*")) / 1e6


def install(wheel: pathlib.Path, python: str, tensorflow: str) -> str:
    """A row of the table: times, sizes and the end of one combination."""
    with tempfile.TemporaryDirectory(prefix="steadyfit-") as name:
        folder = pathlib.Path(name)
        subprocess.run([python, "-m", "venv", folder / "env"], check=True)
        pip = [folder / "env/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        began = time.monotonic()
        if subprocess.run([*pip, f"tensorflow-cpu=={tensorflow}"], check=False, capture_output=True).returncode:
            return "| | | | no wheel of TensorFlow |"
        first, whole = time.monotonic() - began, size(folder / "env")
        began = time.monotonic()
        subprocess.run([*pip, "--no-index", wheel], check=True)
        own, more = time.monotonic() - began, size(folder / "env") - whole
        (folder / "empty").mkdir()
        seconds = use(folder / "env/bin", folder / "empty")
        return f"| {first:.0f} s, {whole:.0f} MB | {own:.1f} s, {more:.0f} MB | " + " | ".join(
            f"{seconds[c]:.1f} s" for c, _ in COMMANDS if c.startswith(("steadyfit watch", "steadyfit-export", "steadyfit fit"))
        ) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the wheel in new environments.")
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--python", action="append", help="an interpreter; repeat (python3)")
    parser.add_argument("--tensorflow", action="append", help="a version; repeat (2.21.0)")
    arguments = parser.parse_args()
    failed = 0
    print("| Python | TensorFlow | TensorFlow: time, disk | steadyfit: time, disk | watch | export | fit |\n|---|---|---|---|---|---|---|")
    for python in arguments.python or ["python3"]:
        if shutil.which(python) is None:
            print(f"| {python} | | | not on this machine |")
            continue
        for tensorflow in arguments.tensorflow or ["2.21.0"]:
            try:
                row = install(arguments.wheel.resolve(), python, tensorflow)
            except AssertionError as error:
                row, failed = f"| | | failed: {error} |", failed + 1
            print(f"| {python} | {tensorflow} {row}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
