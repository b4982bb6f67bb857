"""The variants of the benchmark in Keras: they train the same, and report it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import bench_keras
import bench_models

BATCH, STEPS, EPOCHS = 8, 4, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The batches of an epoch, as the parent writes them."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(3)
    np.save(folder / "x.npy", random.random((BATCH * STEPS, 784), "float32"))
    np.save(folder / "y.npy", random.integers(0, 10, BATCH * STEPS))
    return folder


def variant(name, data, capsys, steps=STEPS):
    """What a variant prints."""
    sizes = ["-batch", str(BATCH), "-steps", str(steps), "-epochs", str(EPOCHS)]
    code = bench_keras.main([name, "-model", "dense-784-10", "-data", str(data), *sizes])
    assert code == 0
    return json.loads(capsys.readouterr().out)


def exported(data, tmp_path):
    """The mean loss of the first epoch, by the train signature that the other variants run."""
    bench_models.export_model("dense-784-10", tmp_path / "m", check=False)
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    x, y = (np.load(data / name) for name in ("x.npy", "y.npy"))
    losses = [
        float(
            loaded.signatures["train"](
                x=tf.constant(x[i : i + BATCH]), y=tf.constant(y[i : i + BATCH])
            )["loss"]
        )
        for i in range(0, len(x), BATCH)
    ]
    return np.mean(losses)


def test_arms_do_the_work_of_the_exported_step(data, tmp_path, capsys):
    loss = exported(data, tmp_path)
    for name in bench_keras.VARIANTS:
        got = variant(name, data, capsys)
        assert got["warmup_loss"] == pytest.approx(loss, rel=1e-4), name
        assert len(got["step_ns"]) == len(got["anon_bytes"]) == EPOCHS
        assert min(got["step_ns"]) > 0
        assert got["peak_bytes"] >= got["anon_bytes"][-1] > 0


def test_another_number_of_samples_is_refused(data, capsys):
    with pytest.raises(SystemExit, match="32 and 32 samples, expected 5 batches of 8"):
        variant("keras-fit", data, capsys, steps=5)


def test_models_that_keras_does_not_compile_are_refused(data, monkeypatch):
    make_model = bench_models.make_model

    def without_jit(name):
        model, adam, options = make_model(name)
        model.layers[0].supports_jit = False
        return model, adam, options

    monkeypatch.setattr(bench_models, "make_model", without_jit)
    with (
        pytest.raises(SystemExit, match="does not compile"),
        pytest.warns(UserWarning, match="jit"),
    ):
        bench_keras.train("dense-784-10", data, BATCH, STEPS, EPOCHS, jit_compile=True)
