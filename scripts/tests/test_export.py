"""The steps of an exported model against Keras's own, and against each other."""

from __future__ import annotations

import hashlib
import itertools
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import close, same

import steadyfit_export as export
from steadyfit_export.command import main
from steadyfit_export.step import KerasProgram


def dense(activation: str | None = None, **options) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", **options),
            keras.layers.Dense(3, activation=activation),
        ]
    )


def batch(random, n: int = 12) -> dict[str, np.ndarray]:
    return {"x": random.normal(size=(n, 6)).astype("float32"), "y": random.integers(0, 3, n)}


def logits_loss(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def regression(random, n: int = 12) -> dict[str, np.ndarray]:
    return {
        "x": random.normal(size=(n, 6)).astype("float32"),
        "y": random.normal(size=(n, 3)).astype("float32"),
    }


def test_train_is_what_keras_trains(tmp_path, load, random):
    """On the same batches, the losses equal those of Keras's own step, with penalties."""
    model = dense(kernel_regularizer=keras.regularizers.L2(0.01))
    export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss(), metrics=["accuracy"])
    model.compile(keras.optimizers.Adam(), logits_loss(), metrics=["accuracy"], jit_compile=False)
    loaded = load(tmp_path / "m")
    for _ in range(5):
        b = batch(random)
        model.reset_metrics()
        theirs = model.train_on_batch(b["x"], b["y"], return_dict=True)
        loaded.run("reset_metrics")
        ours = loaded.run("train", **b)
        assert ours["loss"] == pytest.approx(float(theirs["loss"]), rel=1e-5)
        assert ours["accuracy"] == pytest.approx(float(theirs["accuracy"]), rel=1e-6)
    b = batch(random, 20)
    model.reset_metrics()
    theirs = model.test_on_batch(b["x"], b["y"], return_dict=True)
    assert loaded.run("evaluate", **b)["loss"] == pytest.approx(float(theirs["loss"]), rel=1e-5)
    np.testing.assert_allclose(
        loaded.run("predict", x=b["x"])["output"], model.predict(b["x"], verbose=0), atol=1e-5
    )


@pytest.mark.parametrize(
    ("reduction", "weighted"),
    [
        ("sum_over_batch_size", False),
        ("sum_over_batch_size", True),
        ("mean_with_sample_weight", True),
        ("sum", True),
    ],
)
def test_micro_batches_make_the_same_step(tmp_path, load, random, reduction, weighted):
    report = export.export(
        dense(kernel_regularizer=keras.regularizers.L2(0.01)),
        tmp_path / "m",
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=logits_loss(reduction=reduction),
        sample_weight=weighted,
        check=False,
    )
    # Each evaluation adds the penalty.
    noted = "sum_in_training" if reduction == "sum" else reduction
    assert report.metadata["loss_reduction"] == noted
    whole, parts = load(tmp_path / "m"), load(tmp_path / "m")
    for split in ([0, 12], [0, 5, 7, 12], [0, 1, 12]):
        b = batch(random)
        if weighted:
            b["sample_weight"] = random.uniform(0.1, 3, 12).astype("float32")
        whole.run("train", **b)
        for start, end in itertools.pairwise(split):
            parts.run("gradients", **{k: v[start:end] for k, v in b.items()})
        result = parts.run("apply")
        assert not close(whole.variables(), parts.variables())
    assert result["global_step"] == 3


def towers() -> keras.Model:
    """A dot product of two towers: one value per sample, without a last dimension."""
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    product = keras.layers.Dense(3)(a) * keras.layers.Dense(3)(b)
    return keras.Model([a, b], keras.ops.sum(product, axis=-1))


def mean_square(y, p):
    return keras.ops.mean(keras.ops.square(y - p))


def in_parts(load, path, feeds, splits):
    """Yields the weights after the step on a whole batch, and on each split of it."""
    whole = load(path)
    whole.run("train", **feeds)
    yield whole.variables()
    for split in splits:
        loaded = load(path)
        for start, end in itertools.pairwise(split):
            loaded.run("gradients", **{k: v[start:end] for k, v in feeds.items()})
        loaded.run("apply")
        yield loaded.variables()


@pytest.mark.parametrize(
    ("loss", "label", "weighted", "why"),
    [
        ("mse", "[]", False, ""),
        ("mse", "[1]", False, ""),
        ("mse", "[1]", True, ""),
        ("mse", "[]", True, "the loss is its mean times the mean of the weights; --label y=float32[1] weights"),
        ("mae", "[1]", True, ""),
        ("binary_crossentropy", "[]", False, ""),
        ("binary_crossentropy", "[1]", True, ""),
        (mean_square, "[]", False, ""),
        (mean_square, "[1]", False, ""),
        (mean_square, "[1]", True, "the loss of 8 random samples is another one than in parts of 3 and 5"),
    ],
)
def test_outputs_of_rank_one_in_parts(tmp_path, load, random, loss, label, weighted, why):
    """Splits make the step of Keras's fit on the whole batch, or the export says why not."""
    model = towers()
    if loss == "binary_crossentropy":
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
    labels = {"y": f"float32{label}"}
    options = {"loss": loss, "labels": labels, "sample_weight": weighted, "check": False}
    report = export.export(model, tmp_path / "m", optimizer=keras.optimizers.SGD(0.1), **options)
    assert report.metadata["micro_batches_exact"] is (why == "")
    assert report.metadata.get("micro_batches_inexact", "").startswith(why)
    x = {name: random.normal(size=(7, 4)).astype("float32") for name in ("a", "b")}
    y = random.integers(0, 2, [7, 1][: 1 + (label == "[1]")]).astype("float32")
    weights = {"sample_weight": random.uniform(0.1, 3, 7).astype("float32")} if weighted else {}
    splits = [] if why else [range(8), [0, 3, 6, 7], [0, 1, 7]]
    steps = list(in_parts(load, tmp_path / "m", {**x, "y": y, **weights}, splits))
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    model.fit(x, y, batch_size=7, shuffle=False, verbose=0, **weights)
    for found in steps:
        for want in model.trainable_variables:
            np.testing.assert_allclose(found[want.path], want.numpy(), rtol=1e-5, atol=1e-5)


def test_metrics_in_parts(tmp_path, load, random):
    """Keras's metrics of outputs of rank 1 take the mean of each batch, and so differ in parts."""
    x = {name: random.normal(size=(7, 4)).astype("float32") for name in ("a", "b")}
    y = random.normal(size=7).astype("float32")
    for label, exact in (("[]", False), ("[1]", True)):
        model = towers()
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"], jit_compile=False)
        report = export.export(model, tmp_path / f"m{exact:d}", labels={"y": f"float32{label}"})
        assert report.metadata["micro_batches_exact"] is exact
        assert (report.metadata["loss_reduction"] == "unknown") is not exact
        assert ("with --label y=float32[1] it is" in report.metadata.get("micro_batches_inexact", "")) is not exact
        feeds = {**x, "y": y if label == "[]" else y[:, None]}
        want = model.fit(x, feeds["y"], batch_size=7, verbose=0).history["mae"][0]
        loaded = load(tmp_path / f"m{exact:d}")
        for part in (slice(0, 3), slice(3, 7)):
            found = loaded.run("gradients", **{k: v[part] for k, v in feeds.items()})["mae"]
        assert bool(abs(found - want) < 1e-5) is exact


def test_metrics_of_evaluations_in_parts(tmp_path, random):
    """Metrics that differ in parts are found where another reason makes the update inexact, too."""

    class Mean(keras.Model):
        def test_step(self, data):
            x, y = data
            return {"loss": mean_square(y, self(x, training=False))}

    x = keras.Input((4,))
    model = Mean(x, keras.layers.Dense(1)(keras.layers.Dropout(0.5)(x)))
    model.compile("sgd", "mse")
    assert export.export(model, tmp_path / "own", check=False).metadata["loss_reduction"] == "unknown"
    model = keras.Model(x, keras.ops.sum(keras.layers.Dropout(0.5)(x) * keras.layers.Dense(4)(x), axis=-1))
    for metrics, reduction in (([], "sum_over_batch_size"), (["mae"], "unknown")):
        model.compile("sgd", "mse", metrics=metrics)
        report = export.export(model, tmp_path / "m", check=False, force=True)
        assert report.metadata["micro_batches_inexact"].startswith("each part draws")
        assert report.metadata["loss_reduction"] == reduction


@pytest.mark.parametrize("scale", [256.0, 2.0**24])
def test_float16_in_parts(tmp_path, load, random, scale):
    """Parts make the step on the whole batch up to rounding, or skip it as well, unless only they overflow."""

    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=scale)

    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = towers()
        report = export.export(model, tmp_path / "m", optimizer=optimizer(), loss=mean_square, check=False)
        assert report.metadata["micro_batches_inexact"] == "the scale of the loss adapts to the gradients of smaller parts"
        x = {name: random.normal(size=(7, 4)).astype("float32") for name in ("a", "b")}
        y = random.normal(size=7).astype("float32")
        steps = list(in_parts(load, tmp_path / "m", {**x, "y": y}, [range(8), [0, 3, 6, 7], [0, 1, 7]]))
        before = [v.numpy() for v in model.trainable_variables]
        model.compile(optimizer(), mean_square, jit_compile=False)
        model.fit(x, y, batch_size=7, shuffle=False, verbose=0)
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    for found in steps:
        for old, want in zip(before, model.trainable_variables, strict=True):
            assert np.array_equal(old, want.numpy()) is (scale > 256)
            np.testing.assert_allclose(found[want.path], want.numpy(), rtol=5e-3, atol=5e-3)


def test_apply_alone_fails_and_changes_nothing(tmp_path, load):
    export.export(dense(), tmp_path / "m", optimizer="adam", loss=logits_loss(), check=False)
    loaded = load(tmp_path / "m")
    before = loaded.variables()
    with pytest.raises(tf.errors.InvalidArgumentError, match="run the gradients signature first"):
        loaded.run("apply")
    assert not same(before, loaded.variables())


def test_accumulators_are_in_checkpoints(tmp_path, load, random):
    """A run stopped between two micro-batches continues with its accumulated gradients."""
    export.export(dense(), tmp_path / "m", optimizer="adam", loss=logits_loss(), check=False)
    a, b = batch(random, 4), batch(random, 4)
    one, two = load(tmp_path / "m"), load(tmp_path / "m")
    one.run("gradients", **a)
    one.save(tmp_path / "half")
    two.restore(tmp_path / "half")
    for loaded in (one, two):
        loaded.run("gradients", **b)
        loaded.run("apply")
    assert not same(one.variables(), two.variables())


def test_train_n_equals_n_trains(tmp_path, load, random):
    export.export(
        dense(), tmp_path / "m", optimizer="adam", loss=logits_loss(), metrics=["accuracy"]
    )
    one, many = load(tmp_path / "m"), load(tmp_path / "m")
    batches = [batch(random, 4) for _ in range(5)]
    singly = [one.run("train", **b) for b in batches]
    stacked = many.run("train_n", **{k: np.stack([b[k] for b in batches]) for k in ("x", "y")})
    assert not close(one.variables(), many.variables(), 1e-6)
    assert stacked["loss"] == pytest.approx(np.mean([r["loss"] for r in singly]), rel=1e-5)
    # The accuracy is that of all samples so far.
    assert stacked["accuracy"] == pytest.approx(singly[-1]["accuracy"], rel=1e-6)


def test_resume_is_bit_exact_with_dropout_and_slots(tmp_path, load, random):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )
    report = export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss())
    assert report.metadata["micro_batches_exact"] is False
    batches = [batch(random, 8) for _ in range(6)]
    straight, stopped, resumed = (load(tmp_path / "m") for _ in range(3))
    losses = [straight.run("train", **b)["loss"] for b in batches]
    for b in batches[:3]:
        stopped.run("train", **b)
    stopped.save(tmp_path / "ckpt")
    resumed.restore(tmp_path / "ckpt")
    assert [resumed.run("train", **b)["loss"] for b in batches[3:]] == losses[3:]
    assert not same(straight.variables(), resumed.variables())
    # The draw differs from step to step, since the seed's state changes.
    assert len({float(straight.run("train", **batches[0])["loss"]) for _ in range(3)}) == 3


def test_set_learning_rate(tmp_path, load, random):
    export.export(dense(), tmp_path / "m", optimizer="sgd", learning_rate=0.1, loss=logits_loss())
    b = batch(random)
    steps = {}
    for rate in (None, 0.0, 0.2):
        loaded = load(tmp_path / "m")
        if rate is not None:
            got = loaded.run("set_learning_rate", learning_rate=rate)["learning_rate"]
            assert got == pytest.approx(rate)
        name = next(n for n in loaded.reads if n.endswith("kernel") and "accum" not in n)
        before = loaded.variables()[name]
        loaded.run("train", **b)
        steps[rate] = loaded.variables()[name] - before
    assert not steps[0.0].any() and steps[None].any()
    np.testing.assert_allclose(steps[0.2], 2 * steps[None], rtol=1e-3, atol=1e-7)


def test_schedule_has_no_set_learning_rate(tmp_path, load, random):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    report = export.export(
        dense(), tmp_path / "m", optimizer=keras.optimizers.SGD(schedule), loss=logits_loss()
    )
    assert "set_learning_rate" not in report.signatures
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        export.export(
            dense(),
            tmp_path / "n",
            optimizer=keras.optimizers.SGD(schedule),
            learning_rate=0.5,
            loss=logits_loss(),
        )


@pytest.mark.parametrize(
    ("layer", "drawing"),
    [
        (lambda: keras.layers.LSTM(3), ""),
        (lambda: keras.layers.LSTM(3, dropout=0.2), "(LSTMCell lstm_cell"),
        (lambda: keras.layers.GRU(3, recurrent_dropout=0.2), "(GRUCell gru_cell"),
        (lambda: keras.layers.Dropout(0.0), ""),
        (lambda: keras.layers.GaussianNoise(0.1, name="noise"), "(GaussianNoise noise)"),
    ],
)
def test_only_what_draws_is_inexact_in_parts(tmp_path, layer, drawing):
    model = keras.Sequential(
        [keras.Input((4, 6)), layer(), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    report = export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss())
    reason = report.metadata.get("micro_batches_inexact", "")
    assert report.metadata["micro_batches_exact"] is (reason == "") is (drawing == "")
    assert drawing in reason
    assert not reason or any(reason in note for note in report.notes)


@pytest.mark.parametrize(
    ("loss", "labels", "exact"),
    [
        (keras.losses.MeanSquaredError(), None, True),
        (keras.losses.MeanSquaredError(reduction="sum"), None, True),
        (lambda y, p: keras.ops.mean(keras.ops.square(y - p)), None, True),
        (keras.losses.Dice(), None, False),
        (keras.losses.Tversky(), None, False),
        (keras.losses.Circle(), {"y": "int64[]"}, False),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=0), None, False),
    ],
)
def test_losses_in_parts(tmp_path, load, random, loss, labels, exact):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "sigmoid")])
    report = export.export(
        model,
        tmp_path / "m",
        optimizer=keras.optimizers.SGD(1.0),
        loss=loss,
        labels=labels,
        check=False,
    )
    assert report.metadata["micro_batches_exact"] is exact
    assert (report.metadata["loss_reduction"] != "unknown") is exact

    whole, parts = load(tmp_path / "m"), load(tmp_path / "m")
    x = random.normal(size=(8, 6)).astype("float32")
    y = random.integers(0, 3, 8)
    if report.metadata["labels"]["y"]["dtype"] == "float32":
        y = np.eye(3, dtype="float32")[y]
    whole.run("train", x=x, y=y)
    for part in (slice(0, 2), slice(2, 8)):
        parts.run("gradients", x=x[part], y=y[part])
    parts.run("apply")
    assert (not close(whole.variables(), parts.variables(), 1e-5)) is exact


def margin(y, p):
    """Compares all samples with each other, where they are far apart."""
    apart = keras.ops.sum(keras.ops.square(p[:, None] - p[None]), axis=-1)
    return keras.ops.mean(keras.ops.relu(apart - 2.0), axis=1)


@pytest.mark.parametrize(
    ("loss", "classes"),
    [
        ("sparse_categorical_crossentropy", 3),
        (keras.losses.SparseCategoricalCrossentropy(), 3),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=9), None),
        ("mse", None),
    ],
)
def test_labels_have_a_number_of_classes(tmp_path, loss, classes):
    report = export.export(
        dense("softmax"), tmp_path / "m", optimizer="sgd", loss=loss, check=False
    )
    assert report.metadata["labels"]["y"].get("classes") == classes


def test_a_loss_with_a_margin_is_inexact_in_parts(tmp_path):
    report = export.export(dense(), tmp_path / "m", optimizer="sgd", loss=margin, check=False)
    assert report.metadata["micro_batches_exact"] is False


class Counting(keras.layers.Layer):
    """Assigns to a weight inside one of its functions."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    @tf.function
    def counted(self, x):
        self.count.value.assign_add(1.0)
        return x * self.count

    def call(self, x):
        return self.counted(x)


def _spectral():
    return keras.layers.SpectralNormalization(keras.layers.Dense(3))


@pytest.mark.parametrize("layer", [_spectral, Counting])
def test_a_layer_that_changes_its_weights_is_inexact_in_parts(tmp_path, layer):
    model = keras.Sequential([keras.Input((6,)), layer(), keras.layers.Dense(3)])
    report = export.export(model, tmp_path / "m", optimizer="sgd", loss="mse", check=False)
    assert report.metadata["micro_batches_exact"] is False


@pytest.mark.parametrize("ema", [False, True])
def test_several_optimizers(tmp_path, ema):
    first = keras.optimizers.SGD(0.1, use_ema=ema)
    others = keras.optimizers.OptimizerMap(first, {".*bias": keras.optimizers.Adam(0.1)})
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.MultiOptimizer(others)
    report = export.export(model, tmp_path / "m", optimizer=optimizer, loss="mse")
    # set_learning_rate could set either of the rates.
    assert "set_learning_rate" not in report.signatures
    assert ("finalize" in report.signatures) is ema


class Hashed(keras.layers.Embedding):
    """An Embedding of any integers."""

    def call(self, inputs):
        return super().call(inputs % self.input_dim)


def test_inputs_of_embeddings_have_rows(tmp_path):
    x = keras.Input((4,), dtype="int32", name="words")
    both = keras.Input((), dtype="int64", name="both")
    ids = keras.Input((), dtype="int64", name="ids")
    other = keras.Input((3,), name="other")
    rows = [
        keras.layers.Embedding(7, 2)(x)[:, 0],
        keras.layers.Embedding(5, 2)(both),
        keras.layers.Embedding(9, 2)(both),
        Hashed(3, 2)(ids),
        keras.layers.Embedding(11, 2)(other)[:, 0],  # of floats, which it truncates
    ]
    output = keras.layers.Dense(3)(keras.layers.Concatenate()(rows))
    model = keras.Model([x, both, ids, other], output)
    report = export.export(model, tmp_path / "m", optimizer="sgd", loss=logits_loss(), check=False)
    found = {n: i.get("rows") for n, i in report.metadata["inputs"].items()}
    assert found == {"words": 7, "both": 5, "ids": None, "other": None}


@pytest.mark.parametrize(
    ("optimizer", "options", "exact"),
    [
        ("adam", {}, False),
        ("sgd", {}, True),
        (keras.optimizers.SGD(0.1, momentum=0.9), {}, True),
        (keras.optimizers.SGD(0.1, clipnorm=0.01), {}, False),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), {}, True),
        (keras.optimizers.Adam(0.1, gradient_accumulation_steps=2), {}, True),
        ("adam", {"loss_scale_input": True}, True),
        ("adam", {"embeddings_regularizer": "l2"}, True),
    ],
)
def test_rows_of_embeddings_in_parts(tmp_path, load, random, optimizer, options, exact):
    regularizer = options.pop("embeddings_regularizer", None)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int64"),
            keras.layers.Embedding(5, 3, embeddings_regularizer=regularizer),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    report = export.export(
        model, tmp_path / "m", optimizer=optimizer, loss=logits_loss(), check=False, **options
    )
    assert report.metadata["micro_batches_exact"] is exact

    whole, parts = load(tmp_path / "m"), load(tmp_path / "m")
    scale = {"loss_scale": 1.0} if "loss_scale_input" in options else {}
    for _ in range(2):  # with an Adam that accumulates updates in the second case
        x = np.zeros((8, 4), np.int64)  # the same row in each part
        y = random.integers(0, 3, 8)
        whole.run("train", x=x, y=y, **scale)
        for part in (slice(0, 4), slice(4, 8)):
            parts.run("gradients", x=x[part], y=y[part], **scale)
        parts.run("apply")
    assert (not close(whole.variables(), parts.variables(), 1e-5)) is exact


def test_batch_normalisation(tmp_path, load, random):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(3),
        ]
    )
    report = export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss())
    assert report.metadata["micro_batches_exact"] is False
    loaded = load(tmp_path / "m")
    b = batch(random)
    (name,) = [n for n in loaded.reads if n.endswith("moving_mean")]
    loaded.run("evaluate", **b)
    loaded.run("predict", x=b["x"])
    assert not loaded.variables()[name].any(), "inference moved the averages"
    loaded.run("train", **b)
    np.testing.assert_allclose(
        loaded.variables()[name], 0.5 * b["x"].mean(axis=0), rtol=1e-4, atol=1e-6
    )
    # Inference uses the averages: one sample's output does not depend on its neighbours.
    together = loaded.run("predict", x=b["x"])["output"]
    alone = loaded.run("predict", x=b["x"][:1])["output"]
    np.testing.assert_allclose(together[:1], alone, atol=1e-5)


def test_several_inputs_and_outputs(tmp_path, load, random):
    left = keras.Input((4,), name="left")
    right = keras.Input((3,), name="right", dtype="int32")
    both = keras.layers.Concatenate()(
        [left, keras.layers.Flatten()(keras.layers.Embedding(5, 2)(right))]
    )
    outputs = {
        "kind": keras.layers.Dense(3, name="kind")(both),
        "size": keras.layers.Dense(1, name="size")(both),
    }
    model = keras.Model([left, right], outputs)
    losses = {"kind": logits_loss(), "size": "mse"}
    report = export.export(
        model,
        tmp_path / "m",
        optimizer="adam",
        loss=losses,
        loss_weights={"size": 0.25},
        metrics={"kind": ["accuracy"]},
    )
    assert report.signatures["train"]["inputs"] == {
        "left": "float32[?,4]",
        "right": "int32[?,3]",
        "y_kind": "int64[?]",
        "y_size": "float32[?,1]",
    }
    assert set(report.signatures["train"]["outputs"]) == {
        "loss",
        "kind_loss",
        "size_loss",
        "kind_accuracy",
    }
    loaded = load(tmp_path / "m")
    x = {
        "left": random.normal(size=(7, 4)).astype("float32"),
        "right": random.integers(0, 5, (7, 3)).astype("int32"),
    }
    y = {"y_kind": random.integers(0, 3, 7), "y_size": np.ones((7, 1), "float32")}
    result = loaded.run("train", **x, **y)
    assert result["loss"] == pytest.approx(result["kind_loss"] + 0.25 * result["size_loss"])
    assert set(loaded.run("predict", **x)) == {"kind", "size"}


def test_masked_sequences(tmp_path, load, random):
    """Padding is left out of the loss as Keras does it, in micro-batches as well."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(7, 4, mask_zero=True),
            keras.layers.LSTM(6, return_sequences=True),
            keras.layers.Dense(3),
        ]
    )
    loss = logits_loss()
    report = export.export(model, tmp_path / "m", optimizer=keras.optimizers.SGD(0.5), loss=loss)
    assert report.metadata["loss_reduction"] == "unknown"
    whole, parts = load(tmp_path / "m"), load(tmp_path / "m")
    x = random.integers(1, 7, (6, 5)).astype("int32")
    x[:4, 2:] = 0
    b = {"x": x, "y": random.integers(0, 3, (6, 5))}
    result = whole.run("train", **b)
    model.compile(keras.optimizers.SGD(0.5), loss, jit_compile=False)
    expected = model.train_on_batch(b["x"], b["y"], return_dict=True)["loss"]
    assert result["loss"] == pytest.approx(float(expected), rel=1e-5)
    for rows in (slice(0, 4), slice(4, 6)):
        parts.run("gradients", x=b["x"][rows], y=b["y"][rows])
    assert parts.run("apply")["loss"] == pytest.approx(result["loss"], rel=1e-5)
    assert not close(whole.variables(), parts.variables())


def test_labels_without_last_axis_do_not_broadcast(tmp_path, load, random):
    """Labels [B] with predictions [B,1] are a common mistake: they give [B,B] differences."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    export.export(
        model, tmp_path / "m", optimizer="sgd", loss="mse", metrics=["mae"],
        labels={"y": "float32[]"},
    )  # fmt: skip
    x, y = random.normal(size=(5, 6)).astype("float32"), np.arange(5, dtype="float32")
    loaded = load(tmp_path / "m")
    predicted = loaded.run("predict", x=x)["output"][:, 0]
    result = loaded.run("evaluate", x=x, y=y)
    assert result["loss"] == pytest.approx(np.mean((predicted - y) ** 2), rel=1e-5)
    assert result["mae"] == pytest.approx(np.mean(np.abs(predicted - y)), rel=1e-5)


def test_compiled_twins_make_the_same_steps(tmp_path, load, random):
    report = export.export(
        dense(),
        tmp_path / "m",
        optimizer="adam",
        loss=logits_loss(),
        metrics=["accuracy"],
        xla_batch=4,
        xla_steps=3,
        check=False,
    )
    assert report.metadata["compiled"] == {
        "train_xla": {"batch": 4},
        "train_n_xla": {"steps": 3, "batch": 4},
    }
    plain, compiled, fused = (load(tmp_path / "m") for _ in range(3))
    batches = [batch(random, 4) for _ in range(3)]
    for b in batches:
        ours, theirs = plain.run("train", **b), compiled.run("train_xla", **b)
        assert theirs["loss"] == pytest.approx(float(ours["loss"]), rel=1e-4)
    fused.run("train_n_xla", **{k: np.stack([b[k] for b in batches]) for k in ("x", "y")})
    assert not close(plain.variables(), compiled.variables(), 1e-4)
    assert not close(plain.variables(), fused.variables(), 1e-4)
    graph = plain.graph.as_graph_def().library.function
    assert any(f.attr["_XlaMustCompile"].b for f in graph), "nothing asks for XLA"
    with pytest.raises(ValueError, match="shape"):
        compiled.run("train_xla", **batch(random, 5))


def test_bytes_as_images(tmp_path, load, random):
    model = keras.Sequential(
        [keras.Input((4, 4)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
         keras.layers.Dense(3)]
    )  # fmt: skip
    report = export.export(
        model,
        tmp_path / "m",
        optimizer="adam",
        loss=logits_loss(),
        input_dtypes={"x": "uint8"},
        input_ranges={"x": (0, 255)},
        class_names=["a", "b", "c"],
    )
    assert report.signatures["train"]["inputs"]["x"] == "uint8[?,4,4]"
    written = json.loads((tmp_path / "m" / export.METADATA).read_text())
    assert written["inputs"]["x"] == {"dtype": "uint8", "shape": [-1, 4, 4], "range": [0, 255]}
    assert written["class_names"] == ["a", "b", "c"]
    x = random.integers(0, 256, (5, 4, 4)).astype("uint8")
    result = load(tmp_path / "m").run("predict", x=x)
    np.testing.assert_allclose(result["logits"], model(x.astype("float32")), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result["probabilities"].sum(axis=1), 1, rtol=1e-5)
    assert (result["class"] == result["logits"].argmax(axis=1)).all()


def test_bfloat16(tmp_path, load, random):
    with export.dtype_policy("mixed_bfloat16"):
        model = dense()
    report = export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss())
    assert report.metadata["precision"] == "mixed_bfloat16"
    loaded = load(tmp_path / "m")
    b = batch(random, 64)
    losses = [loaded.run("train", **b)["loss"] for _ in range(40)]
    assert losses[-1] < 0.95 * losses[0]
    assert loaded.run("predict", x=b["x"])["output"].dtype == np.float32


def test_float16_scales_the_loss_and_skips_overflow(tmp_path, load, random):
    def make(scale: float, out: str):
        with export.dtype_policy("mixed_float16"):
            model = dense()
        sgd = keras.optimizers.SGD(0.1)
        optimizer = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=scale)
        report = export.export(model, tmp_path / out, optimizer=optimizer, loss=logits_loss())
        assert report.metadata["precision"] == "mixed_float16"
        return load(tmp_path / out)

    b = batch(random)
    loaded = make(1e30, "high")
    (scale,) = [n for n in loaded.reads if n.endswith("dynamic_scale")]
    (kernel, *_) = [n for n in loaded.reads if n.endswith("kernel") and "accum" not in n]
    before = loaded.variables()
    assert not loaded.run("train", **b)["grads_finite"]
    after = loaded.variables()
    assert after[scale] == before[scale] / 2
    np.testing.assert_array_equal(after[kernel], before[kernel])
    loaded.run("gradients", **b)
    assert not loaded.run("apply")["grads_finite"]
    after = loaded.variables()
    assert after[scale] == before[scale] / 4
    np.testing.assert_array_equal(after[kernel], before[kernel])

    whole, parts = make(256.0, "low"), load(tmp_path / "low")
    (kernel, *_) = [n for n in whole.reads if n.endswith("kernel") and "accum" not in n]
    before = whole.variables()[kernel]
    assert whole.run("train", **b)["grads_finite"]
    assert (whole.variables()[kernel] != before).any()
    for rows in (slice(0, 5), slice(5, 12)):
        parts.run("gradients", **{k: v[rows] for k, v in b.items()})
    assert parts.run("apply")["grads_finite"]
    np.testing.assert_allclose(parts.variables()[kernel], whole.variables()[kernel], atol=2e-3)


def test_float16_gets_loss_scaling_by_itself(tmp_path):
    with export.dtype_policy("mixed_float16"):
        model = dense()
    report = export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss())
    assert "grads_finite" in report.signatures["train"]["outputs"]


def test_float16_without_scale_as_in_keras(tmp_path, load, random):
    """The step of a model that Keras compiles without loss scaling is that of Keras, also in parts."""
    with export.dtype_policy("mixed_float16"):
        model = dense()
    model.compile("sgd", logits_loss(), auto_scale_loss=False, jit_compile=False)
    report = export.export(model, tmp_path / "m")
    assert report.metadata["precision"] == "mixed_float16" and report.metadata["micro_batches_exact"]
    assert set(report.signatures["train"]["outputs"]) == {"loss"}
    assert report.notes == ["the model is compiled without loss scaling: small gradients are zero in float16"]
    whole, parts = load(tmp_path / "m"), load(tmp_path / "m")
    for _ in range(3):
        b = batch(random)
        assert whole.run("train", **b)["loss"] == pytest.approx(float(model.train_on_batch(b["x"], b["y"])), rel=1e-3)
        for part in (slice(0, 5), slice(5, 12)):
            parts.run("gradients", **{k: v[part] for k, v in b.items()})
        parts.run("apply")
        for loaded, atol in ((whole, 1e-4), (parts, 1e-3)):
            kernels = {v.shape: v for n, v in loaded.variables().items() if n.endswith("kernel") and "accum" not in n}
            for layer in model.layers:
                np.testing.assert_allclose(kernels[layer.kernel.shape], layer.kernel, atol=atol)


def test_a_file_without_scale_says_what_to_do(tmp_path):
    with export.dtype_policy("mixed_float16"):
        model = dense()
    model.compile("sgd", "mse", auto_scale_loss=False)
    model.save(tmp_path / "m.keras")
    with pytest.raises(export.Refusal, match="auto_scale_loss=False.*--model FILE.py:FUNCTION"):
        export.export(keras.models.load_model(tmp_path / "m.keras"), tmp_path / "m")


def test_scale_and_skipped_steps_are_metrics(tmp_path, load, random):
    """The scale doubles after several good steps. A bad step halves it and is counted."""
    with export.dtype_policy("mixed_float16"):
        model = dense()
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=2.0**10, dynamic_growth_steps=2
    )
    report = export.export(model, tmp_path / "m", optimizer=optimizer, loss=logits_loss())
    outputs = report.signatures["train"]["outputs"]
    assert outputs["loss_scale"] == "float32[]" and outputs["skipped_steps"] == "int64[]"
    assert report.signatures["train"]["inputs"]["y"] == "int64[?]"
    assert outputs["loss"] == "float32[]"
    loaded = load(tmp_path / "m")
    good, bad = batch(random), batch(random)
    bad["x"][0, 0] = np.inf
    seen = [loaded.run("train", **b) for b in (good, good, bad, good, bad, good)]
    assert [r["loss_scale"] for r in seen] == [1024, 2048, 1024, 1024, 512, 512]
    assert [r["skipped_steps"] for r in seen] == [0, 0, 1, 1, 2, 2]
    assert [r["grads_finite"] for r in seen] == [True, True, False, True, False, True]
    # Of several steps in one call, the final values count.
    stacked = {k: np.stack([good[k], bad[k], good[k]]) for k in good}
    several = loaded.run("train_n", **stacked)
    assert (several["loss_scale"], several["skipped_steps"]) == (512, 3)
    assert not several["grads_finite"]
    # A bad part spoils the whole batch, which is one step.
    loaded.run("gradients", **good)
    assert loaded.run("gradients", **bad)["skipped_steps"] == 3
    result = loaded.run("apply")
    assert (result["loss_scale"], result["skipped_steps"]) == (256, 4)
    assert not result["grads_finite"]


def test_loss_scale_as_an_input(tmp_path, load, random):
    def make(out: str, **options):
        keras.backend.clear_session()  # so that both have variables of the same names
        keras.utils.set_random_seed(5)
        with export.dtype_policy("mixed_float16"):
            model = dense()
        sgd = keras.optimizers.SGD(0.1, momentum=0.9)
        report = export.export(model, tmp_path / out, optimizer=sgd, loss=logits_loss(), **options)
        return load(tmp_path / out), report

    loaded, report = make("input", loss_scale_input=True)
    for name in ("train", "train_n", "gradients"):
        assert report.signatures[name]["inputs"]["loss_scale"] == "float32[]"
    for name in ("evaluate", "predict", "apply"):
        assert "loss_scale" not in report.signatures[name]["inputs"]
    assert not [n for n in loaded.reads if "scale" in n]

    # The scale does not change a step, except for rounding. A step with a scale that is too high
    # changes no weight.
    b = batch(random)
    before = loaded.variables()
    result = loaded.run("train", loss_scale=np.float32(1e30), **b)
    assert not result["grads_finite"] and np.isfinite(result["loss"])
    loaded.run("gradients", loss_scale=np.float32(1e30), **b)
    assert not loaded.run("apply")["grads_finite"]
    after = loaded.variables()
    for name in before:
        np.testing.assert_array_equal(after[name], before[name])
    steps = {}
    for scale in (1.0, 2.0**12):
        other = load(tmp_path / "input")
        assert other.run("train", loss_scale=np.float32(scale), **b)["grads_finite"]
        steps[scale] = other.variables()
    parts = load(tmp_path / "input")
    for rows in (slice(0, 5), slice(5, 12)):
        parts.run("gradients", loss_scale=np.float32(64), **{k: v[rows] for k, v in b.items()})
    assert parts.run("apply")["grads_finite"]
    for name, value in steps[1.0].items():
        np.testing.assert_allclose(steps[2.0**12][name], value, atol=2e-3)
        if "accumul" not in name:
            np.testing.assert_allclose(parts.variables()[name], value, atol=2e-3)

    # Scaling inside the graph makes the same first step.
    inside, _ = make("inside")
    inside.run("train", **b)
    kernel = next(n for n in inside.reads if n.endswith("kernel") and "accum" not in n)
    np.testing.assert_allclose(inside.variables()[kernel], steps[2.0**12][kernel], atol=2e-3)

    with pytest.raises(export.UsageError, match="inner_optimizer"):
        export.export(
            dense(),
            tmp_path / "both",
            optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            loss=logits_loss(),
            loss_scale_input=True,
        )


def test_weights_of_16_bits_are_refused(tmp_path):
    for name in ("float16", "bfloat16"):
        keras.config.set_dtype_policy(name)
        try:
            model = dense()
        finally:
            keras.config.set_dtype_policy("float32")
        with pytest.raises(export.Refusal, match=name):
            export.export(model, tmp_path / "m", optimizer="sgd", loss=logits_loss())


def test_subclassed_model_with_given_inputs(tmp_path, load, random):
    @keras.saving.register_keras_serializable()
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = keras.layers.Dense(4), keras.layers.Dense(1)

        def call(self, inputs):
            return self.b(self.a(inputs["p"]) + self.a(inputs["q"]))

    report = export.export(
        Two(),
        tmp_path / "m",
        optimizer="adam",
        loss="mse",
        inputs={"p": "float32[3]", "q": "float32[3]"},
    )
    assert set(report.signatures["train"]["inputs"]) == {"p", "q", "y"}
    assert "gradients + apply equal train" in report.checks


def test_fine_tuning_keeps_frozen_layers_and_the_compiled_optimizer(tmp_path, load, random):
    """A .keras file resumes with its optimizer and slots."""
    model = dense()
    model.layers[0].trainable = False
    model.compile(
        keras.optimizers.Adam(0.05), logits_loss(), metrics=["accuracy"], jit_compile=False
    )
    b = batch(random)
    for _ in range(3):
        model.train_on_batch(b["x"], b["y"])
    model.save(tmp_path / "m.keras")
    assert main(["--model", str(tmp_path / "m.keras"), "--out", str(tmp_path / "m")]) == 0
    loaded = load(tmp_path / "m")
    before = loaded.variables()
    expected = model.train_on_batch(b["x"], b["y"], return_dict=True)["loss"]
    assert loaded.run("train", **b)["loss"] == pytest.approx(float(expected), rel=1e-5)
    after = loaded.variables()
    frozen = [n for n in before if "dense/" in n and "momentum" not in n]
    assert frozen and not same({n: before[n] for n in frozen}, {n: after[n] for n in frozen})
    (kernel,) = [n for n in after if n.endswith("dense_1/kernel") and "accum" not in n]
    np.testing.assert_allclose(after[kernel], model.layers[1].kernel, rtol=1e-4, atol=1e-6)


# --- refusals ---------------------------------------------------------------------------


def _unbuilt():
    return keras.Sequential([keras.layers.Dense(3)])


def _frozen():
    model = dense()
    model.trainable = False
    return model


def _python():
    @keras.saving.register_keras_serializable()
    class Doubled(keras.layers.Layer):
        def call(self, x):
            y = tf.py_function(lambda v: 2 * v, [x], tf.float32)
            return tf.ensure_shape(y, x.shape)

        def compute_output_shape(self, shape):
            return shape

    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), Doubled()])


def _table():
    class Counts(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

        def call(self, x):
            self.table.insert(x, tf.cast(x, tf.float32))
            return tf.ensure_shape(self.table.lookup(x), x.shape)

        def compute_output_shape(self, shape):
            return shape

    return keras.Sequential([keras.Input((1,), dtype="int64"), Counts(), keras.layers.Dense(3)])


def _lazy():
    class Lazy(keras.layers.Layer):
        def call(self, x):
            with tf.init_scope():
                self.scale = tf.Variable(2.0)
            return x * self.scale

        def compute_output_shape(self, shape):
            return shape

    return keras.Sequential([keras.Input((6,)), Lazy(), keras.layers.Dense(3)])


def _unused():
    x = keras.Input((6,))
    used = keras.layers.Dense(3)(x)
    blocked = keras.layers.Dense(3, name="blocked")(x)
    still = keras.layers.Lambda(tf.stop_gradient, output_shape=(3,))(blocked)
    return keras.Model(x, keras.layers.Add()([used, still]))


def test_reserved_names_of_inputs(tmp_path):
    inputs = [keras.Input((6,), name="seed"), keras.Input((6,), name="other")]
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs[0] + inputs[1]))
    options = {"optimizer": "adam", "loss": logits_loss(), "check": False}
    report = export.export(model, tmp_path / "m", **options)
    assert report.signatures["train"]["inputs"]["seed_2"] == "float32[?,6]"
    assert report.metadata["names"] == {"seed_2": "seed"} and "seed" in report.metadata["inputs"]
    for name, more in (("y", {}), ("sample_weight", {"sample_weight": True}), ("loss_scale", {"loss_scale_input": True})):
        inputs = [keras.Input((6,), name=n) for n in (name, "other")]
        model = keras.Model(inputs, keras.layers.Dense(3)(inputs[0] + inputs[1]))
        with pytest.raises(export.UsageError, match=f"an input is called '{name}', like another of the step"):
            export.export(model, tmp_path / "n", **options, **more)


@pytest.mark.parametrize(
    ("name", "known"), [("größe", "größe"), ("seed", "seed"), ("x", "x"), ("y", "x"), ("input_layer_1", "x"), (None, "x")]
)
def test_name_of_the_only_input(tmp_path, name, known):
    x = keras.Input((6,), name=name)
    model = keras.Model(x, keras.layers.Dense(3)(x))
    options = {"optimizer": "adam", "loss": "mse", "check": False, "force": True}
    for given in {known, "x"}:
        report = export.export(model, tmp_path / "m", **options, input_ranges={given: (0, 1)})
        assert report.signatures["predict"]["inputs"] == {"x": "float32[?,6]"}
        assert report.metadata["inputs"][known]["range"] == [0, 1]
        assert report.metadata.get("names", {}) == ({} if known == "x" else {"x": known})
    with pytest.raises(export.UsageError, match=f"a range for 'z'; there are {known}, y"):
        export.export(model, tmp_path / "m", **options, input_ranges={"z": (0, 1)})


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (_unbuilt, "no keras.Input"),
        (_frozen, "nothing to train"),
        (_python, "leaves TensorFlow"),
        (_table, "leaves TensorFlow"),
        (_lazy, "does not run inside a graph"),
        (_unused, "no gradient"),
    ],
)
def test_refuses_models(tmp_path, make, what):
    with pytest.raises(export.Refusal, match=what) as refused:
        export.export(make(), tmp_path / "m", optimizer="adam", loss=logits_loss())
    assert refused.value.found.strip() and len(refused.value.do) > 10
    assert list(tmp_path.iterdir()) == [], "a refusal left files behind"


def test_text_and_lookup_tables(tmp_path, load):
    words = keras.Input((), dtype="string", name="words")
    color = keras.Input((1,), dtype="string", name="color")
    code = keras.Input((1,), dtype="int64", name="code")
    file = tmp_path / "colors.txt"
    file.write_text("red\ngreen\n")
    text = keras.layers.TextVectorization(vocabulary=["cat", "dog"], output_mode="count")
    parts = [
        text(words),
        keras.layers.StringLookup(vocabulary=str(file), output_mode="one_hot")(color),
        keras.layers.IntegerLookup(vocabulary=[5, 6], output_mode="one_hot")(code),
        keras.layers.Hashing(4, output_mode="one_hot")(color),
    ]
    x = keras.layers.Concatenate()([keras.ops.cast(p, "float32") for p in parts])
    model = keras.Model([words, color, code], keras.layers.Dense(3)(x))
    export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss())
    file.unlink()
    feeds = {
        "words": np.array(["a cat", "Dog dog", ""], dtype=object),
        "color": np.array([["red"], ["blue"], ["green"]], dtype=object),
        "code": np.array([[5], [7], [6]]),
    }
    loaded = load(tmp_path / "m")
    got = loaded.run("predict", **feeds)["output"]
    want = model({n: tf.constant(v) for n, v in feeds.items()})
    np.testing.assert_array_equal(got, want)
    losses = [loaded.run("train", **feeds, y=[0, 1, 2])["loss"] for _ in range(20)]
    assert losses[-1] < losses[0]


# A model may convert texts to numbers, with another text for an empty cell.
def test_text_of_numbers(tmp_path, load):
    def model(convert):
        age = keras.Input((1,), dtype="string", name="age")
        number = keras.layers.Lambda(convert, output_shape=(1,))(age)
        return keras.Model(age, keras.layers.Dense(1)(number))

    def loss(y, p):  # compares samples
        return tf.reduce_mean(tf.square(y - p) + tf.reduce_mean(p) ** 2, -1)

    whole = model(lambda t: tf.strings.to_number(tf.where(t == "", "30", t)))
    report = export.export(whole, tmp_path / "m", optimizer="sgd", loss=loss)
    assert report.metadata["micro_batches_exact"] is False
    loaded = load(tmp_path / "m")
    got = loaded.run("predict", x=np.array([[""], ["30"], ["4"]], dtype=object))["output"]
    assert got[0] == got[1] != got[2]


def test_unused_weights_are_named_and_can_be_allowed(tmp_path, load, random):
    model = _unused()
    with pytest.raises(export.Refusal) as refused:
        export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss())
    assert refused.value.found == "blocked/kernel, blocked/bias"
    export.export(model, tmp_path / "m", optimizer="adam", loss=logits_loss(), allow_unused=True)
    loaded = load(tmp_path / "m")
    before = loaded.variables()
    loaded.run("train", **batch(random))
    blocked = [n for n in before if n.endswith("blocked/kernel")]
    np.testing.assert_array_equal(before[blocked[0]], loaded.variables()[blocked[0]])


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (keras.losses.MeanSquaredError(reduction=None), "not a scalar"),
        (lambda y, p: tf.reduce_mean((y - p) ** 2, axis=0), "not a scalar"),
        (lambda y, p: (y - p[:, :2]) ** 2, "does not accept"),
        (lambda y, p: tf.reduce_sum((y[:, None] - p[None]) ** 2, axis=-1)[:, :, None], "broadcast"),
        (lambda y, p: tf.math.log(-1 - tf.reduce_sum((y - p) ** 2, -1)), "not a number"),
    ],
)
def test_refuses_losses(tmp_path, loss, what):
    with pytest.raises(export.Refusal, match=what):
        export.export(dense(), tmp_path / "m", optimizer="adam", loss=loss)


class Own(keras.Model):
    """A model whose train_step returns what a test says."""

    def __init__(self, logs, **options) -> None:
        super().__init__()
        self.dense, self.logs, self.options = keras.layers.Dense(3), logs, options

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(self.dense(data) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return self.logs(loss)


@pytest.mark.parametrize(
    ("logs", "options", "match"),
    [
        (lambda loss: loss, {}, "returns no dict"),
        (lambda loss: {"error": loss}, {}, "--loss-output NAME"),
        (lambda loss: {"loss": tf.stack([loss, loss])}, {}, "'loss' is not a scalar"),
        (lambda loss: {"loss": loss.numpy()}, {}, "cannot be traced"),
        (lambda loss: {"error": loss}, {"loss_output": "none"}, "returns error"),
        (lambda loss: {"loss": loss}, {"loss": "mse"}, "compile it with"),
        (lambda loss: {"loss": loss}, {"loss_scale_input": True}, "do not apply"),
        (lambda loss: {"loss": loss}, {"class_names": ["a", "b", "c"]}, "compiled with a loss"),
    ],
)
def test_refuses_own_steps_that_cannot_be_exported(tmp_path, logs, options, match):
    model = Own(logs)
    model.compile("adam")
    with pytest.raises((export.Refusal, export.UsageError), match=match):
        export.export(model, tmp_path / "m", inputs={"x": "float32[6]"}, **options)
    assert not (tmp_path / "m").exists()


def test_refuses_steps_that_differ_from_trace_to_trace(tmp_path):
    class Counting(Own):
        count = 0

        def train_step(self, data):
            self.count += 1
            return {"loss": super().train_step(data)["loss"] + self.count}

    class Either(Own):
        def train_step(self, data):
            return super().train_step(data[0] if isinstance(data, tuple) else data)

    for kind, labels, match in ((Counting, {}, "each time"), (Either, None, "--label none")):
        model = kind(lambda loss: {"loss": loss})
        model.compile("adam", "mse")
        with pytest.raises(export.Refusal, match=match):
            export.export(model, tmp_path / "m", inputs={"x": "float32[6]"}, labels=labels)


def test_refuses_steps_that_it_would_train_differently(tmp_path):
    class Driving(Own):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    for kind, optimizer, error, match in (
        (Driving, "adam", export.Refusal, "its own fit"),
        (Own, scaling, export.UsageError, "mixed_bfloat16"),
    ):
        model = kind(lambda loss: {"loss": loss})
        model.compile(optimizer)
        with pytest.raises(error, match=match):
            export.export(model, tmp_path / "m", inputs={"x": "float32[6]"})


def test_names_of_metrics(tmp_path):
    def exported(*names):
        metrics = [keras.metrics.MeanAbsoluteError(name=name) for name in names]
        return export.export(dense(), tmp_path / "m", optimizer="adam", loss="mse", metrics=metrics, check=False, force=True)

    names = ["a/b", "a_b", "my mae (%)", "größe", "_x:y", "seed", "-m", ">m", "\\m"]
    report = exported(*names)
    assert report.metadata["metrics"] == names
    keys = ["a_b", "a_b_2", "my_mae____", "gr__e", "x_x_y", "seed_2", "x_m", "x_m_2", "x_m_3"]
    assert list(report.metadata["names"]) == keys
    assert list(report.metadata["names"].values()) == names
    with pytest.raises(export.UsageError, match="a metric is called 'loss', like another output"):
        exported("loss")


def test_names_of_own_values(tmp_path, load):
    model = Own(lambda loss: {"loss": loss, "größe (cm)": 2.0, "global_step": 3.0})
    model.measured = keras.metrics.Mean(name="größe (cm)")
    model.compile("sgd")
    report = export.export(model, tmp_path / "m", inputs={"x": "float32[6]"})
    assert report.metadata["names"] == {"gr__e__cm_": "größe (cm)", "global_step_2": "global_step"}
    result = load(tmp_path / "m").run("train", x=np.ones((2, 6), "float32"))
    assert (result["gr__e__cm_"], result["global_step_2"]) == (2, 3)


def test_export_leaves_the_model_as_it_was(tmp_path, random):
    x = keras.Input((6,))
    model = keras.Model(x, keras.layers.Dense(3)(keras.layers.Dropout(0.5)(x)))
    error = keras.metrics.MeanSquaredError(name="-my error")
    model.compile("adam", "mse", metrics=[error])
    data = regression(random)
    model.fit(data["x"], data["y"], verbose=0)
    variables = [*model.variables, *model.optimizer.variables, *error.variables]
    before, names = [v.numpy() for v in variables], [v.value.name for v in variables]
    export.export(model, tmp_path / "m")
    assert [v.value.name for v in variables] == names
    with pytest.raises(export.UsageError, match="like another output"):
        metrics = [error, keras.metrics.MeanSquaredError(name="loss")]
        export.export(model, tmp_path / "refused", metrics=metrics)
    assert all(np.array_equal(b, v.numpy()) for b, v in zip(before, variables, strict=True))
    assert float(error.result()) > 0


def test_a_missing_loss_lists_the_values_by_their_names(tmp_path):
    model = Own(lambda loss: {"g loss (%)": loss})
    model.compile("sgd")
    with pytest.raises(export.UsageError, match=r"returns no loss but g loss \(%\): name"):
        export.export(model, tmp_path / "m", inputs={"x": "float32[6]"})


def test_own_step_without_evaluation_says_so(tmp_path, load, random):
    model = Own(lambda loss: {"error": loss})
    model.compile("adam")
    report = export.export(model, tmp_path / "m", inputs={"x": "float32[6]"}, loss_output="error")
    assert "no evaluate signature: evaluate: ValueError: No loss to compute" in report.notes[-1]
    assert set(report.signatures) == {
        "train",
        "train_n",
        "predict",
        "serving_default",
        "reset_metrics",
        "set_learning_rate",
    }
    assert report.metadata["own_step"] == ["train_step"]
    first = load(tmp_path / "m").run("train", x=random.normal(size=(4, 6)).astype("float32"))
    assert first["loss"] == first["error"] > 0


def test_predict_is_the_serving_default(tmp_path, load, random):
    report = export.export(dense(), tmp_path / "m", optimizer="adam", loss=logits_loss())
    assert report.signatures["serving_default"] == report.signatures["predict"]
    loaded, x = load(tmp_path / "m"), random.normal(size=(4, 6)).astype("float32")
    assert not same(loaded.run("predict", x=x), loaded.run("serving_default", x=x))


def test_refuses_foreign_optimizers(tmp_path):
    optimizer = keras.optimizers.Adam()
    optimizer.build(dense().trainable_variables)
    with pytest.raises(export.Refusal, match="belongs to another model"):
        export.export(dense(), tmp_path / "m", optimizer=optimizer, loss=logits_loss())
    with export.dtype_policy("mixed_float16"):
        half = dense()
    optimizer = keras.optimizers.Adam()
    optimizer.build(half.trainable_variables)
    with pytest.raises(export.Refusal, match="without loss scaling"):
        export.export(half, tmp_path / "m", optimizer=optimizer, loss=logits_loss())


def test_weights_that_keras_does_not_know(tmp_path):
    class Product(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(tf.ones((4, 1)))

        def call(self, x):
            return x @ self.w

    with pytest.raises(export.Refusal, match=r"self\.add_weight, because Keras does not train a tf\.Variable"):
        export.export(Product(), tmp_path / "m", optimizer="sgd", loss="mse", inputs={"x": "float32[4]"})


def test_refuses_unequal_parts(tmp_path, monkeypatch):
    right = KerasProgram.apply

    def twice(self, feeds):
        for accumulator in self.accumulators:
            accumulator.assign(2 * accumulator)
        return right(self, feeds)

    monkeypatch.setattr(KerasProgram, "apply", twice)
    with pytest.raises(export.Refusal, match="another step than train"):
        export.export(dense(), tmp_path / "m", optimizer="sgd", loss=logits_loss())


def test_refuses_vector_metrics(tmp_path):
    with pytest.raises(export.Refusal, match="'f1_score' is not a scalar"):
        export.export(
            dense("softmax"), tmp_path / "m", optimizer="adam",
            loss="categorical_crossentropy", metrics=[keras.metrics.F1Score()],
        )  # fmt: skip


def test_metrics_of_dicts_are_refused(tmp_path):
    class Parts(keras.metrics.Mean):
        def update_state(self, y, p, sample_weight=None):
            super().update_state(p)

        def result(self):
            return {"low": super().result(), "high": 2 * super().result()}

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Parts(name="parts")])
    with pytest.raises(export.Refusal, match="'parts' is not a scalar") as refused:
        export.export(model, tmp_path / "model")
    assert "the result {'low'" in str(refused.value)


# --- writing ----------------------------------------------------------------------------


def test_overwrites_only_an_export_and_only_by_force(tmp_path):
    options = {"optimizer": "sgd", "loss": logits_loss(), "check": False, "micro_batches": False}
    out = tmp_path / "m"
    report = export.export(dense(), out, **options)
    assert "gradients" not in report.signatures
    first = (out / "saved_model.pb").read_bytes()
    with pytest.raises(export.Refusal, match="the output exists"):
        export.export(dense(), out, **options)
    with pytest.raises(export.Refusal, match="nothing to train"):
        export.export(_frozen(), out, force=True, **options)
    assert (out / "saved_model.pb").read_bytes() == first, "a failed export broke the old one"
    export.export(dense(kernel_regularizer="l2"), out, force=True, **options)
    assert (out / "saved_model.pb").read_bytes() != first
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters.txt").write_text("dear")
    with pytest.raises(export.Refusal, match="something else"):
        export.export(dense(), home, force=True, **options)
    assert (home / "letters.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "m"]


def test_a_failed_rename_keeps_the_earlier_export(tmp_path, monkeypatch):
    options = {"optimizer": "sgd", "loss": "mse", "check": False, "micro_batches": False}
    out, rename = tmp_path / "m", pathlib.Path.rename
    export.export(dense(), out, **options)
    first = (out / "saved_model.pb").read_bytes()

    def fails(self, target):
        if (self / "saved_model.pb").read_bytes() != first:
            raise OSError("no space left")
        return rename(self, target)

    monkeypatch.setattr(pathlib.Path, "rename", fails)
    with pytest.raises(OSError, match="no space left"):
        export.export(dense(kernel_regularizer="l2"), out, force=True, **options)
    assert (out / "saved_model.pb").read_bytes() == first
    assert list(tmp_path.iterdir()) == [out]


def test_files_are_small_and_say_what_they_are(tmp_path):
    report = export.export(
        dense(), tmp_path / "m", optimizer="adam", loss=logits_loss(), metrics=["accuracy"]
    )
    files = {str(p.relative_to(tmp_path / "m")) for p in pathlib.Path(tmp_path / "m").rglob("*")}
    assert files == {
        "saved_model.pb",
        "variables",
        "variables/variables.index",
        "variables/variables.data-00000-of-00001",
        "assets.extra",
        "assets.extra/steadyfit.json",
    }
    assert report.bytes < 400_000
    metadata = json.loads((tmp_path / "m" / export.METADATA).read_text())
    assert metadata["format"] == export.FORMAT
    assert metadata["tensorflow"] == tf.__version__
    assert metadata["labels"] == {"y": {"dtype": "int64", "shape": [-1], "classes": 3}}
    graph = (tmp_path / "m" / "saved_model.pb").read_bytes()
    assert metadata["saved_model_sha256"] == hashlib.sha256(graph).hexdigest()
    assert metadata["metrics"] == ["accuracy"]
    assert metadata["micro_batches_exact"] is True
    assert metadata["loss_reduction"] == "sum_over_batch_size"
    assert metadata["outputs"] == {"output": {"dtype": "float32", "shape": [-1, 3]}}
    names = [n for n, _ in tf.train.list_variables(str(tmp_path / "m/variables/variables"))]
    assert "model/dense.Skernel/.ATTRIBUTES/VARIABLE_VALUE" in str(names).replace(
        "sequential.S", ""
    )
