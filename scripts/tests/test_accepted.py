"""Models of common forms that Keras trains: they export, with the checks, and train."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import conformance_steps
import steadyfit_export as export

A = layers.Conv2D


def sequential(*parts, loss="mse", optimizer="sgd", **options):
    model = keras.Sequential(list(parts))
    model.compile(optimizer, loss, **options)
    return model


def pooled(first):
    """Any size of images, but the model needs a smallest one."""
    return sequential(keras.Input((None, None, 3)), *first, layers.GlobalAveragePooling2D(), layers.Dense(1))


def unet():
    x = keras.Input((None, None, 1))
    one = A(2, 3, padding="same")(x)
    two = A(2, 3, padding="same")(layers.MaxPool2D()(one))
    three = layers.MaxPool2D()(two)
    up = layers.Concatenate()([layers.UpSampling2D()(three), two])
    model = keras.Model(x, A(1, 1, activation="sigmoid")(layers.Concatenate()([layers.UpSampling2D()(up), one])))
    model.compile("sgd", "binary_crossentropy")
    return model


def nested():
    a, b, c = (keras.Input((1,), name=name) for name in "abc")
    model = keras.Model({"u": [a, b], "v": c}, layers.Dense(1)(layers.Concatenate()([a, b, c])))
    model.compile("sgd", "mse")
    return model


def equal_paths():
    x = keras.Input((2,))
    parts = [keras.Sequential([keras.Input((2,)), layers.Dense(2, name="d")], name=name) for name in ("sub", "other")]
    model = keras.Model(x, layers.Dense(1)(layers.Add()([part(x) for part in parts])))
    parts[1].name = "sub"
    model.compile("sgd", "mse")
    return model


class Scaled(keras.Model):
    """Has a variable that Keras does not know."""

    def __init__(self):
        super().__init__()
        self.one, self.scale = layers.Dense(2), tf.Variable(2.0)

    def call(self, x):
        return self.one(x) * self.scale


class Jacobian(Scaled):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                p = self(x, training=True)
            loss = tf.reduce_mean((p - y) ** 2) + tf.reduce_mean(inner.batch_jacobian(p, x) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def own(kind):
    model = kind()
    model.compile("sgd", "mse")
    return model


def logarithm(y, p):
    return ops.mean(ops.square(ops.log(y) - p), axis=-1)


CASES = {
    "five poolings": (lambda: pooled([layers.MaxPool2D()] * 5), {}),
    "Conv2D 7": (lambda: pooled([A(4, 7)]), {}),
    "Conv1D 9": (lambda: sequential(keras.Input((None, 3)), layers.Conv1D(4, 9), layers.Dense(1)), {}),
    "Reshape": (lambda: sequential(keras.Input((None, 3)), layers.Reshape((-1, 24)), layers.Dense(1)), {}),
    "Reshape to 6": (lambda: sequential(keras.Input((None, 2)), layers.Reshape((-1, 6)), layers.Dense(1)), {}),
    "Reshape to 5": (lambda: sequential(keras.Input((None,)), layers.Reshape((-1, 5)), layers.Dense(1)), {}),
    "U-Net": (unet, {}),
    "Adafactor": (
        lambda: sequential(
            keras.Input((4,)), layers.Dense(8, "relu"), layers.Dense(8, "relu"), layers.Dense(1), optimizer="adafactor"
        ),
        {},
    ),
    "NaN": (
        lambda: sequential(keras.Input((4,)), layers.Dense(3), metrics=[keras.metrics.PearsonCorrelation()]),
        {},
    ),
    "positive labels": (
        lambda: sequential(keras.Input((4,)), layers.Dense(1), loss=logarithm),
        {"input_ranges": {"y": (0.5, 2)}},
    ),
    "two networks": (lambda: conformance_steps.gan().model, {"inputs": {"x": "float32[6]"}, "loss_output": "g_loss"}),
    "lists in a dictionary": (nested, {}),
    "equal paths": (equal_paths, {}),
    "tf.Variable": (lambda: own(Scaled), {"inputs": {"x": "float32[3]"}}),
    "batch_jacobian": (lambda: own(Jacobian), {"inputs": {"x": "float32[3]"}, "labels": {"y": "float32[2]"}}),
    "weights of steps": (
        lambda: sequential(
            keras.Input((7,), dtype="int32"),
            layers.Embedding(9, 4),
            layers.Dense(4, "softmax"),
            loss="sparse_categorical_crossentropy",
        ),
        {"sample_weight": "[?]"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_accepted(tmp_path, name):
    build, options = CASES[name]
    report = export.export(build(), tmp_path / "m", **options)
    assert any(line.startswith("train: loss") for line in report.checks)


def test_poisson_of_negative_predictions(tmp_path, load):
    """The loss is NaN for samples for which that of Keras is, and equal for others."""
    dense = layers.Dense(5, bias_initializer="ones")
    model = sequential(keras.Input((4,)), dense, loss="poisson", jit_compile=False)
    report = export.export(model, tmp_path / "m")
    assert report.notes == ["the loss takes other predictions only: the check compares no values"]
    loaded, random = load(tmp_path / "m"), np.random.default_rng(0)
    y = random.integers(0, 5, (8, 5)).astype("float32")
    for size in (0.01, 0.1, 100):
        x = random.uniform(-size, size, (8, 4)).astype("float32")
        ours, theirs = loaded.run("train", x=x, y=y)["loss"], model.train_on_batch(x, y)
        assert np.isnan(theirs) == (size == 100)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_refuses_predictions_that_are_nan(tmp_path):
    """A loss that takes some predictions only does not hide a model that never works."""
    broken = [layers.Dense(5), layers.Lambda(lambda p: ops.sqrt(p - 100))]
    model = sequential(keras.Input((4,)), *broken, loss="poisson")
    with pytest.raises(export.Refusal, match="a loss that is not a number"):
        export.export(model, tmp_path / "m")


def test_refusals_name_what_works(tmp_path):
    x = keras.Input((2,))
    model = keras.Model(x, {"u": [layers.Dense(1)(x), layers.Dense(1)(x)], "v": layers.Dense(1)(x)})
    model.compile("sgd", "mse")
    with pytest.raises(export.Refusal, match="one dictionary with a tensor for each output"):
        export.export(model, tmp_path / "m")
    model = sequential(keras.Input((4,)), layers.Dense(1), loss=logarithm)
    with pytest.raises(export.Refusal, match="--range NAME=LOW:HIGH, for labels too, or export with --no-check"):
        export.export(model, tmp_path / "m")
    model = sequential(keras.Input((None, 1)), layers.Reshape((-1, 11)), layers.Dense(1))
    with pytest.raises(export.Refusal, match=r"--input x=float32\[N,1\], where N is a size that the model") as refused:
        export.export(model, tmp_path / "m", micro_batches=False)
    assert refused.value.found.startswith("InvalidArgumentError: Input to reshape is a tensor with 12 values")


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "loss": "mse"}])
def test_trained_h5(tmp_path, options):
    from steadyfit_export.load import load_model

    model = sequential(keras.Input((4,)), layers.Dense(1), optimizer="adam", metrics=["mse"])
    model.fit(np.zeros((8, 4)), np.zeros((8, 1)), verbose=0)
    model.save(tmp_path / "t.h5")
    loaded, _ = load_model(str(tmp_path / "t.h5"), compiled=not options)
    report = export.export(loaded, tmp_path / "m", check=False, **options)
    assert any("no state of the optimizer" in note for note in report.notes) is not bool(options)


def test_metrics_that_keep_values(tmp_path, load):
    class Count(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.total = self.add_weight(name="total", initializer=keras.initializers.Constant(-3.0))

        def update_state(self, y, p, sample_weight=None):
            self.total.assign_add(ops.cast(ops.shape(y)[0], "float32"))

        def result(self):
            return self.total

        def reset_state(self):
            pass

    model = sequential(keras.Input((4,)), layers.Dense(1), metrics=[Count(name="count")])
    export.export(model, tmp_path / "m")
    x, y = np.zeros((6, 4), "float32"), np.zeros((6, 1), "float32")
    fitted = model.fit(x, y, batch_size=6, verbose=0).history
    assert load(tmp_path / "m").run("train", x=x, y=y)["count"] == fitted["count"][0] == 3


def test_labels_whose_rank_matters(tmp_path):
    """Keras's metrics of an output of rank 1 are means over batches for labels of rank 1 only."""

    def mean(y, p):
        return ops.mean(ops.abs(y - p), axis=-1)

    def fixed(model, name="m", **options):
        labels = export.export(model, tmp_path / name, check=False, force=True, **options).metadata["labels"]
        return labels["y"].get("fixed_rank", False)

    def tower(**options):
        x = keras.Input((3,))
        model = keras.Model(x, ops.sum(layers.Dense(4)(x), axis=-1))
        model.compile("sgd", "mae", **options)
        return model

    parts = keras.Input((4,)), layers.Dense(1)
    assert not fixed(sequential(*parts, metrics=["mae", keras.metrics.MeanSquaredError()]))
    assert not fixed(tower())
    assert fixed(tower(metrics=["mae"]))
    assert fixed(tower(), sample_weight=True)
    assert fixed(sequential(*parts, metrics=[mean]))
    assert not fixed(sequential(*parts, loss=mean))
    assert fixed(sequential(*parts, loss=mean), sample_weight=True)
    y = np.arange(6, dtype="float32")
    model = sequential(*parts, loss=mean, run_eagerly=True)
    x = np.ones((6, 4), "float32")
    of_ranks = [model.evaluate(x, labels, verbose=0) for labels in (y, y[:, None])]
    assert np.isclose(*of_ranks)
    assert fixed(own(Jacobian), inputs={"x": "float32[3]"}, labels={"y": "float32[2]"})
