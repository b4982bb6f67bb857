"""The models, data and example exporters that ship with the project."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pathlib
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import SCRIPTS

import bench_models
import builtin
import steadyfit_export as export

ROOT = SCRIPTS.parent
MODELS, DATA = ROOT / "savedmodels" / "builtin", ROOT / "data" / "builtin"
EXAMPLES = ROOT / "examples" / "export"


@pytest.mark.parametrize("name", list(builtin.MODELS))
def test_builtin_models_learn(name, load, tmp_path):
    archive = MODELS / f"{name}.zip"
    assert builtin.train(archive, DATA, epochs=25) >= 0.97
    zipfile.ZipFile(archive).extractall(tmp_path)
    loaded = load(tmp_path)
    test = np.load(DATA / "digits-test.npz")
    result = loaded.run("predict", x=test["x"].astype("float32"))
    assert set(result) == {"logits", "probabilities", "class"}
    assert result["class"].dtype == np.int64


def content(path: pathlib.Path) -> dict[str, bytes]:
    """The files of a built-in model by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def written_models(tmp_path_factory) -> pathlib.Path:
    """The models that the script writes."""
    out = tmp_path_factory.mktemp("models")
    command = [sys.executable, str(SCRIPTS / "builtin.py")]
    subprocess.run(
        [*command, "--models", str(out), "--data", str(out)], check=True, capture_output=True
    )
    return out


@pytest.mark.parametrize("name", [f"{n}.zip" for n in builtin.PACKED])
def test_builtin_models_are_what_the_script_writes(name, written_models):
    shipped = content(MODELS / name)
    metadata = json.loads(shipped[export.METADATA])
    ours = {"tensorflow": tf.__version__, "keras": keras.__version__}
    theirs = {key: metadata[key] for key in ours}
    if ours != theirs:
        pytest.skip(f"written by {theirs}, this is {ours}: install scripts/requirements.txt")
    written = content(written_models / name)
    # Another zlib compresses the same content differently, so the archives may differ.
    assert list(written) == list(shipped)
    differ = [file for file in shipped if written[file] != shipped[file]]
    assert not differ, "run make models"


@pytest.mark.parametrize("name", builtin.PACKED)
def test_archives_have_no_times_and_are_small(name):
    path = MODELS / f"{name}.zip"
    assert path.stat().st_size < builtin.ARCHIVE_LIMIT
    with zipfile.ZipFile(path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist() == sorted(archive.namelist())


def test_digits_data():
    parts = {name: np.load(DATA / f"digits-{name}.npz") for name in ("train", "test")}
    assert [len(p["y"]) for p in parts.values()] == [1438, 359]
    for part in parts.values():
        assert part["x"].shape == (len(part["y"]), 64) and part["x"].dtype == np.uint8
        assert part["x"].max() == 16 and part["y"].dtype == np.int64
        share = np.bincount(part["y"], minlength=10) / len(part["y"])
        assert (abs(share - 0.1) < 0.01).all(), "not stratified"
    images = [row.tobytes() for part in parts.values() for row in part["x"]]
    assert len(images) == 1797
    assert len(set(images[:1438]) & set(images[1438:])) == 0, "a test image was trained on"
    with zipfile.ZipFile(DATA / "digits-train.npz") as archive:
        assert archive.namelist() == ["x.npy", "y.npy"]
        assert archive.read("x.npy")[:8] == b"\x93NUMPY\x01\x00", "not npy version 1"
    readme = (DATA / "README.txt").read_text()
    assert "Alpaydin" in readme and "CC BY 4.0" in readme


@pytest.mark.parametrize("name", ["dense-100-64-1", "dense-784-10", "fashion-cnn", "lstm"])
def test_bench_models(name, tmp_path):
    report = bench_models.export_model(name, tmp_path / name)
    assert {"train", "train_n", "gradients", "apply"} <= set(report.signatures)
    assert ("train_n_xla" in report.signatures) == name.startswith("dense")


@pytest.mark.parametrize("name", ["digits-cnn", "attention"])
def test_bench_models_with_twins(name, tmp_path):
    report = bench_models.export_model(name, tmp_path / name, check=False, twins=True)
    assert report.metadata["compiled"]["train_n_xla"] == {"steps": 50, "batch": 32}


def test_bench_models_with_the_loss_scaled_from_outside(tmp_path):
    options = ["--only", "attention", "--no-verify", "--loss-scale-input"]
    with pytest.raises(SystemExit):
        bench_models.main([str(tmp_path), *options])
    assert bench_models.main([str(tmp_path), *options, "--policy", "mixed_float16"]) == 0
    program = (tmp_path / "attention-scaled" / "saved_model.pb").read_bytes()
    assert b"train_loss_scale" in program, "no input of the signature train"


@pytest.mark.parametrize(
    ("name", "step", "evaluate", "epochs", "feeds", "metric", "low", "high"),
    [
        ("two_inputs", "learn", "eval", 20, {"learning_rate": 0.1}, "loss", 0, 0.35),
        ("lstm", "train", "evaluate", 10, {}, "loss", 0, 0.1),
        ("attention", "train_step", "evaluate", 20, {}, "accuracy", 0.9, 1),
    ],
)
def test_examples_learn_as_they_say(
    name, step, evaluate, epochs, feeds, metric, low, high, tmp_path, load
):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(tmp_path))
    data = dict(np.load(tmp_path / "train.npz"))
    loaded = load(tmp_path / "model")
    assert not low <= loaded.run(evaluate, **data)[metric] <= high, "nothing to learn"
    order = np.random.default_rng(0)
    n = len(next(iter(data.values())))
    for _ in range(epochs):
        rows = order.permutation(n)
        for start in range(0, n, 32):
            part = {k: v[rows[start : start + 32]] for k, v in data.items()}
            loaded.run(step, **part, **feeds)
    assert low <= loaded.run(evaluate, **data)[metric] <= high


def test_transfer_from_files_of_fashion(tmp_path, load):
    """examples/transfer reads the gzipped IDX files, and writes the digits as 28x28 pixels."""
    path = EXAMPLES.parent / "transfer" / "pretrain.py"
    spec = importlib.util.spec_from_file_location("pretrain", path)
    pretrain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pretrain)
    random = np.random.default_rng(0)
    for name, shape in (("images-idx3", (64, 28, 28)), ("labels-idx1", (64,))):
        sizes = np.array(shape, ">i4").tobytes()
        values = random.integers(0, 10, shape, dtype="uint8").tobytes()
        file = tmp_path / f"train-{name}-ubyte.gz"
        file.write_bytes(gzip.compress(bytes([0, 0, 8, len(shape)]) + sizes + values))
    pretrain.main([str(tmp_path / "out"), "--fashion", str(tmp_path), "--epochs", "1"])
    data = dict(np.load(tmp_path / "out" / "train.npz"))
    assert data["x"].shape == (1438, 28, 28) and set(data["y"]) == set(range(10))
    loaded = load(tmp_path / "out" / "model")
    before = loaded.variables()
    loaded.run("train", x=data["x"][:32], y=data["y"][:32])
    changed = {n for n, v in loaded.variables().items() if (v != before[n]).any()}
    assert {"hidden/kernel", "head/kernel"} < changed
    assert not any("conv2d" in n for n in changed)
