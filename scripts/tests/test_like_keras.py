"""Models whose training depends on details of Keras's fit, against fit itself."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import steadyfit_export as export

ops = keras.ops


def fitted(model, x, y, steps: int = 4, **options) -> list[float]:
    """The losses of Keras's fit, one per step, on the same batch."""
    history = model.fit(x, y, len(x), steps, verbose=0, shuffle=False, **options).history
    return history["loss"]


def trained(loaded, steps: int = 4, **feeds) -> list[float]:
    """The losses of as many train steps."""
    return [float(loaded.run("train", **feeds)["loss"]) for _ in range(steps)]


def data(random, n: int = 8, width: int = 6, out: tuple[int, ...] = (3,)):
    x = random.normal(size=(n, width)).astype("float32")
    return x, random.normal(size=(n, *out)).astype("float32")


class WithoutTraining(keras.Model):
    """A model whose call does not take the argument training."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.parts = [
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
        self.options = options

    def call(self, x):
        for layer in self.parts:
            x = layer(x, **self.options) if layer is not self.parts[-1] else layer(x)
        return x


@pytest.mark.parametrize("options", [{}, {"training": False}])
def test_a_call_without_training_trains_as_in_keras(tmp_path, load, random, options):
    x, y = data(random)
    model = WithoutTraining(**options)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    export.export(model, tmp_path / "m", inputs={"x": "float32[6]"}, check=False)
    assert trained(load(tmp_path / "m"), x=x, y=y) == pytest.approx(fitted(model, x, y), rel=1e-5)


# --- the metadata micro_batches_exact ----------------------------------------------------


class Centred(keras.layers.Layer):
    def call(self, x):
        return x - ops.mean(x, axis=0)


class Summed(keras.layers.Layer):
    def call(self, x):
        self.add_loss(1e-2 * ops.sum(ops.square(x)))
        return x


class Averaged(keras.layers.Layer):
    """Adds a loss that is a mean over the samples, which any split keeps."""

    def call(self, x):
        self.add_loss(1e-2 * ops.mean(ops.square(x)))
        return x


class Balanced(keras.layers.Layer):
    """The balancing loss of a mixture of experts: products of means over the batch."""

    def __init__(self):
        super().__init__()
        self.gate = keras.layers.Dense(4)

    def call(self, x):
        gates = ops.softmax(self.gate(x))
        chosen = ops.one_hot(ops.argmax(gates, axis=-1), 4)
        self.add_loss(1e-2 * 4 * ops.sum(ops.mean(gates, axis=0) * ops.mean(chosen, axis=0)))
        return gates


def sparse(x):
    """A penalty on the mean activity of units over the batch."""
    return 1e-3 * ops.sum(ops.square(ops.mean(ops.sigmoid(x), axis=0) - 0.05))


class Paired(keras.layers.Layer):
    """Fails on an odd number of samples."""

    def call(self, x):
        pairs = ops.reshape(x, (-1, 2, x.shape[-1]))
        return ops.reshape(pairs - 0.1 * pairs[:, ::-1], (-1, x.shape[-1]))


@pytest.mark.parametrize(
    ("layer", "loss", "exact"),
    [
        (Centred, "mse", "loss"),
        (Summed, "mse", "loss"),
        (Averaged, "mse", None),
        (Balanced, "mse", "loss"),
        (lambda: keras.layers.Dense(6, activity_regularizer=sparse), "mse", "loss"),
        (lambda: keras.layers.Dense(6, activity_regularizer="l2"), "mse", None),
        (lambda: keras.layers.Dense(6, activity_regularizer="l2"), "sum", "loss"),
        (Paired, "mse", "fail in parts"),
    ],
)
def test_a_batch_is_compared_with_its_parts(tmp_path, load, random, layer, loss, exact):
    first = keras.layers.Dense(6)
    model = keras.Sequential([keras.Input((6,)), first, layer(), keras.layers.Dense(3)])
    loss = keras.losses.MeanSquaredError(reduction="sum") if loss == "sum" else loss
    before = [v.numpy() for v in model.variables]
    report = export.export(
        model, tmp_path / "m", optimizer=keras.optimizers.SGD(0.1), loss=loss, check=False
    )
    assert report.metadata["micro_batches_exact"] is (exact is None)
    notes = [n for n in report.notes if "micro_batches_exact is false" in n]
    assert len(notes) == (exact is not None) and (not notes or exact in notes[0])
    known = report.metadata["loss_reduction"] == "sum_over_batch_size"
    assert known is (exact is None)
    assert all(np.array_equal(v, b) for v, b in zip(model.variables, before, strict=True))

    whole, parts = load(tmp_path / "m"), load(tmp_path / "m")
    assert not any(v.any() for n, v in whole.variables().items() if "accumula" in n)
    x, y = data(random)
    if exact == "fail in parts":
        return
    whole.run("train", x=x, y=y)
    for part in (slice(0, 3), slice(3, 8)):
        parts.run("gradients", x=x[part], y=y[part])
    parts.run("apply")
    a, b = whole.variables(), parts.variables()
    assert all(np.allclose(a[n], b[n], 1e-5, 1e-6) for n in a) is (exact is None)


@pytest.mark.parametrize(
    ("layer", "exact"),
    [
        (Summed, False),
        (lambda: keras.layers.Dense(6, activity_regularizer="l2"), True),
    ],
)
def test_inputs_that_cannot_be_drawn_leave_rules(tmp_path, layer, exact):
    code = keras.Input((6,), dtype="int64")
    known = keras.layers.IntegerLookup(vocabulary=[5, 6], num_oov_indices=0)(code)
    x = layer()(ops.cast(known, "float32"))
    model = keras.Model(code, keras.layers.Dense(3)(x))
    report = export.export(model, tmp_path / "m", optimizer="sgd", loss="mse", check=False)
    assert report.metadata["micro_batches_exact"] is exact


# --- weights of losses -------------------------------------------------------------------


def heads() -> keras.Model:
    x = keras.Input((6,))
    outputs = [keras.layers.Dense(3, name="head-1")(x), keras.layers.Dense(1, name="size")(x)]
    return keras.Model(x, outputs)


@pytest.mark.parametrize(
    ("weights", "again"), [({"head-1": 0.25, "size": 4.0}, False), ([0.25, 4.0], True)]
)
def test_weights_of_losses_are_those_of_compile(tmp_path, load, random, weights, again):
    model = heads()
    losses = {"head-1": "mse", "size": "mae"}
    model.compile("sgd", losses, loss_weights=weights)
    export.export(model, tmp_path / "m", loss=losses if again else None, check=False)
    x, y = data(random)
    feeds = {"x": x, "y_head_1": y, "y_size": y[:, :1]}
    expected = fitted(model, x, {"head-1": y, "size": y[:, :1]})
    assert trained(load(tmp_path / "m"), **feeds) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"loss_weights": {"head-1": 1.0, "sizes": 2.0}}, "sizes.*the outputs are head-1, size"),
        ({"loss_weights": [1.0]}, "1 loss_weights for the outputs head-1, size"),
        ({"loss": {"head": "mse", "size": "mse"}}, "loss for .'head'.*head-1, size"),
    ],
)
def test_names_of_no_output_are_refused(tmp_path, options, match):
    with pytest.raises(export.UsageError, match=match):
        export.export(heads(), tmp_path / "m", optimizer="sgd", **{"loss": "mse", **options})


def test_the_only_output_has_the_name_of_its_layer(tmp_path, load, random):
    x = keras.Input((6,))
    model = keras.Model(x, keras.layers.Dense(3, name="out-put")(x))
    model.compile("sgd", {"out-put": "mse"}, loss_weights={"out-put": 0.5})
    export.export(model, tmp_path / "m", check=False)
    x, y = data(random)
    assert trained(load(tmp_path / "m"), x=x, y=y) == pytest.approx(fitted(model, x, y), rel=1e-5)


def test_outputs_need_names_of_their_own(tmp_path):
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    layer = keras.layers.Dense(3)
    model = keras.Model([a, b], [layer(a), layer(b)])
    model.compile("sgd", "mse")
    with pytest.raises(export.UsageError, match="have the same name"):
        export.export(model, tmp_path / "m", check=False)


# --- the ranks of labels and predictions -------------------------------------------------


def squares(y, p):
    """Is a mean over the samples if the last axis is that of the steps."""
    return ops.sum(ops.square(y - p), axis=-1)


def steps(layer=keras.layers.Dense) -> keras.Model:
    x = keras.Input((6,))
    return keras.Model(x, layer(1)(ops.reshape(x, (-1, 3, 2))))


@pytest.mark.parametrize("label", [(3,), (3, 1)])
def test_a_function_gets_the_ranks_of_keras(tmp_path, load, random, label):
    model = steps()
    model.compile("sgd", squares)
    with pytest.raises(export.Refusal, match="last dimension of 1") as refused:
        export.export(model, tmp_path / "m")
    spec = str(export.Spec("float32", label))
    assert f"--label y={spec}" in refused.value.do
    export.export(model, tmp_path / "m", labels={"y": spec}, check=False)
    x, y = data(random, out=label)
    assert trained(load(tmp_path / "m"), x=x, y=y) == pytest.approx(fitted(model, x, y), rel=1e-5)


@pytest.mark.parametrize("label", [(), (1,)])
def test_a_function_gets_the_ranks_of_keras_for_scalars(tmp_path, load, random, label):
    x = keras.Input((6,))
    model = keras.Model(x, keras.layers.Dense(1)(x)[:, 0])
    model.compile("sgd", lambda y, p: ops.abs(y - p))
    spec = str(export.Spec("float32", label))
    export.export(model, tmp_path / "m", labels={"y": spec}, check=False)
    x, y = data(random, out=label)
    assert trained(load(tmp_path / "m"), x=x, y=y) == pytest.approx(fitted(model, x, y), rel=1e-5)
