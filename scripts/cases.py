#!/usr/bin/env python3
"""Train each case of a folder in Keras and in steadyfit, and compare the losses.

``cases.py FOLDER`` needs bin/steadyfit. The folder has ``data.py``, which writes data files into the current
folder, and ``nets.py``, whose functions return compiled models of Keras. The table CASES has for each
training the model, the data, the flags of both commands and the arrays of the data as Keras takes
them, or a part of the error that is expected. The exit code is 1 if a case differs.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
SCRIPTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(SCRIPTS))

import keras
import numpy as np

import steadyfit_export as export

EPOCHS, BATCH = 3, 16


@dataclasses.dataclass
class Case:
    """A training. labels is the column or array with the labels; error is set if fit refuses the data."""

    net: str
    data: str
    flags: str = ""
    export: dict[str, Any] = dataclasses.field(default_factory=dict)
    labels: str = "y"
    error: str = ""


CASES = [
    Case("clf", "t.npz"),
    Case("clf", "n.csv", labels="label"),
    Case("clf", "h.csv", "--header yes", labels="label"),
    Case("clf", "w.tar", "--ignore-fields error_message"),
    Case("clf", "extra.npz", "--ignore-fields class_names"),
    Case("clf", "scalar.npz", "--ignore-fields n_classes"),
    Case("onehot", "oh.npz"),
    Case("onehot", "t.npz"),
    Case("onehot", "n.csv", labels="label"),
    Case("reg", "num.csv", "--label price", labels="price"),
    Case("reg", "usd.csv", "--label price", error="price"),
    Case("vocab", "c.csv", labels="label"),
    Case("ids", "id.csv"),
    Case("steps", "steps.npz", export={"sample_weight": "[?]"}),
    *(Case(net, f"{net}.csv") for net in ("kw", "digit", "case", "blank", "nested")),
    Case("outloss", "outloss.csv", "--label y_loss,y_other"),
]

# The columns of the models of names, for which data.py writes no data.
COLUMNS = {
    "kw": ["age", "class", "y"],
    "digit": ["1stFlrSF", "b", "y"],
    "case": ["Age", "age", "y"],
    "blank": ["sepal length (cm)", "b", "y"],
    "nested": ["p", "meta/q", "y"],
    "outloss": ["a", "b", "y_loss", "y_other"],
}


def rows(file: str) -> dict[str, np.ndarray]:
    """The columns of a CSV file; texts stay texts."""
    with open(file, encoding="utf-8", newline="") as opened:
        table = list(csv.DictReader(opened))

    def column(name: str) -> np.ndarray:
        values = [row[name] for row in table]
        try:
            exact = all(value.lstrip("-").isdigit() for value in values)
            return np.array([int(v) if exact else float(v) for v in values])
        except ValueError:
            return np.array(values, dtype=object)

    return {name: column(name) for name in table[0]}


def arrays(case: Case, model: Any) -> tuple[Any, Any, Any]:
    """The inputs, labels and weights of a case, as Keras takes them."""
    file = "t.npz" if case.data == "w.tar" else case.data
    found = rows(file) if file.endswith(".csv") else {n: v for n, v in np.load(file, allow_pickle=True).items()}
    if case.data == "w.tar":
        found = {name: values[:12] for name, values in found.items()}
    if case.net in COLUMNS:
        values = {name: v[:, None].astype("float32") for name, v in found.items()}
        x = {name: v for name, v in values.items() if not name.startswith("y")}
        if case.net == "nested":
            x = {"p": x["p"], "meta": {"q": x["meta/q"]}}
        y = {n: values[f"y_{n}"] for n in ("loss", "other")} if case.net == "outloss" else values["y"]
        return x, y, None
    y = found.pop(case.labels)
    if y.dtype == object:
        y = np.unique(y, return_inverse=True)[1]
    if case.net == "onehot" and y.ndim == 1:
        y = np.eye(3)[y]
    weights = found.pop("sample_weight", None)
    x = found["x"] if file.endswith(".npz") else np.stack(list(found.values()), axis=1)
    (tensor,) = model.inputs
    x = x.reshape(-1, *tensor.shape[1:])
    return keras.ops.convert_to_tensor(x.astype(tensor.dtype) if x.dtype != object else x.tolist()), y, weights


def train(case: Case, folder: pathlib.Path, nets: Any) -> tuple[list[float], list[float] | str]:
    """The losses of a case in Keras and in steadyfit, or the error of steadyfit."""
    keras.utils.set_random_seed(0)
    model = getattr(nets, case.net)()
    with tempfile.TemporaryDirectory(dir=folder) as made:
        export.export(model, f"{made}/model", **case.export)
        command = [str(SCRIPTS.parent / "bin" / "steadyfit"), "fit", "--model", f"{made}/model", "--data", case.data]
        command += ["--epochs", str(EPOCHS), "--batch", str(BATCH), "--shuffle=false", "--auto", "off"]
        done = subprocess.run(
            [*command, "--history", f"{made}/history.jsonl", *case.flags.split()],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            return [], done.stderr.strip().splitlines()[-1]
        if case.error:
            return [], "no error"
        history = pathlib.Path(made, "history.jsonl").read_text(encoding="utf-8")
        ours = [json.loads(line)["loss"] for line in history.splitlines()]
    x, y, weights = arrays(case, model)
    fitted = model.fit(x, y, sample_weight=weights, epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0)
    return fitted.history["loss"], ours


def main() -> int:
    """Train all cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="folder with data.py and nets.py")
    parser.add_argument("--only", metavar="NET", help="cases of one model")
    arguments = parser.parse_args()
    source = arguments.folder.resolve()
    sys.path.insert(0, str(source))
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run([sys.executable, str(source / "data.py")], check=True)
        random = np.random.default_rng(1)
        for net, names in COLUMNS.items():
            table = random.normal(size=(60, len(names))).round(3)
            np.savetxt(f"{net}.csv", table, fmt="%.3f", delimiter=",", header=",".join(names), comments="")
        nets = importlib.import_module("nets")
        for case in CASES:
            if arguments.only not in (None, case.net):
                continue
            try:
                theirs, ours = train(case, pathlib.Path(folder), nets)
            except (export.Refusal, export.UsageError) as error:
                theirs, ours = [], "export: " + " ".join(str(error).split())
            if isinstance(ours, str):
                good = bool(case.error) and case.error in ours
                result = ours
            else:
                good = not case.error and np.allclose(theirs, ours, rtol=1e-5)
                result = f"Keras {theirs[-1]:.6f}, steadyfit {ours[-1]:.6f}"
            bad += not good
            print(f"{'ok' if good else 'DIFFERS':8} {case.net} {case.data}: {result}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
