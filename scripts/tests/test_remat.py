"""Layers that a step computes again for the gradient: the same losses and weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from conftest import close

import steadyfit_export as export

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
layers = keras.layers


@keras.saving.register_keras_serializable()
class Residual(layers.Layer):
    """A block without an argument training: dropout inside takes it from the context."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.up, self.down = layers.Dense(12, activation="relu"), layers.Dense(6)
        self.dropout = layers.Dropout(0.5, seed=3)

    def build(self, shape) -> None:
        self.up.build(shape)
        self.down.build((*shape[:-1], 12))

    def call(self, x):
        return x + self.down(self.dropout(self.up(x)))


@keras.saving.register_keras_serializable()
class Inference(layers.Layer):
    """A layer that calls another one in inference mode. A functional model would not."""

    def __init__(self, inner: layers.Layer, **options) -> None:
        super().__init__(**options)
        self.inner = inner

    def call(self, x):
        return self.inner(x, training=False)


def block(kind: str, name: str) -> layers.Layer:
    x = keras.Input((4, 6))
    if kind == "own layer":
        return Residual(name=name)
    if kind == "attention":
        y = layers.MultiHeadAttention(2, 3, dropout=0.2, seed=5)(x, x)
        y = layers.LayerNormalization()(layers.Add()([x, y]))
    elif kind == "mask":
        y = layers.Dense(6)(layers.Masking()(x))
    elif kind in ("normalization", "inference"):
        y = layers.BatchNormalization()(layers.Dense(6, activation="relu")(x))
    else:
        y = layers.Dense(6, activation="gelu")(layers.Dropout(0.3, seed=7)(x))
    return keras.Model(x, y, name=name)


class Attending(layers.Layer):
    """A block that passes the mask of its input to a layer inside, without an argument for it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(2, 3)
        self.supports_masking = True

    def call(self, x):
        return x + self.attention(x, x)


def network(kind: str) -> keras.Model:
    x = y = keras.Input((4, 6))
    if kind in ("outer mask", "masked attention"):
        y = layers.Masking()(layers.ZeroPadding1D(2)(y))
    for i in range(2):
        if kind == "outer mask":
            y = Attending(name=f"block_{i}")(y)
            continue
        if kind == "masked attention":
            attended = layers.MultiHeadAttention(2, 3, name=f"block_{i}")(y, y)
            y = layers.Add()([y, attended])
            continue
        inner = block(kind, f"block_{i}")
        y = Inference(inner, name=f"outer_{i}")(y) if kind == "inference" else inner(y)
    return keras.Model(x, layers.Dense(3, name="head")(layers.GlobalAveragePooling1D()(y)))


def trained(path, load, **options) -> tuple[list[float], dict[str, np.ndarray], int]:
    """Losses and variables of five steps, and the matrix products of all functions."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(2)
    kind = options.pop("kind")
    export.export(
        network(kind), path, optimizer=keras.optimizers.SGD(0.1), loss=LOSS, force=True, **options
    )
    loaded = load(path)
    random = np.random.default_rng(5)
    losses = []
    for _ in range(5):
        x, y = random.normal(size=(8, 4, 6)).astype("float32"), random.integers(0, 3, 8)
        x[:4, 2:] = 0
        losses.append(loaded.run("train", x=x, y=y)["loss"])
    library = loaded.graph.as_graph_def().library.function
    products = sum("MatMul" in n.op or n.op == "Einsum" for f in library for n in f.node_def)
    return losses, loaded.variables(), products


@pytest.mark.parametrize(
    "kind",
    ["dense", "attention", "normalization", "mask", "outer mask", "masked attention", "own layer"],
)
def test_the_same_training(tmp_path, load, kind):
    """Dropout draws the same masks, and moving averages change once per step."""
    without, weights, products = trained(tmp_path / "m", load, kind=kind)
    with_, same, more = trained(tmp_path / "m", load, kind=kind, remat="block_*")
    np.testing.assert_allclose(with_, without, rtol=1e-6)
    assert close(weights, same, 1e-6) == []
    assert more > products


def test_micro_batches_and_16_bits(tmp_path, load):
    """The gradients of a mixed policy, in a step that is split too."""
    with export.dtype_policy("mixed_bfloat16"):
        without, weights, _ = trained(tmp_path / "m", load, kind="attention")
        with_, same, _ = trained(tmp_path / "m", load, kind="attention", remat="block_*")
    np.testing.assert_allclose(with_, without, rtol=1e-2)
    assert close(weights, same, 1e-2) == []


def test_a_layer_in_inference_mode(tmp_path, load):
    """BatchNormalization of a block in inference mode keeps its averages."""
    _, weights, _ = trained(tmp_path / "m", load, kind="inference", remat="block_*")
    averages = {n: v for n, v in weights.items() if "moving_mean" in n}
    assert len(averages) == 2
    assert all((v == 0).all() for v in averages.values())


class Tied(layers.Layer):
    """A layer that uses the weight of another one."""

    def __init__(self, other: layers.Layer, **options) -> None:
        super().__init__(**options)
        self._other = lambda: other

    def call(self, x):
        return keras.ops.matmul(x, self._other().kernel)


class Remembers(layers.Layer):
    """A layer that stores its input, so that another layer can add it to its own."""

    def __init__(self, source: layers.Layer | None = None, **options) -> None:
        super().__init__(**options)
        self._source = lambda: source
        self.dense = layers.Dense(6)

    def call(self, x):
        self._input = [x]
        source = self._source()
        return self.dense(x) + (source._input[0] if source else 0)


def recurrent() -> keras.Model:
    x = keras.Input((4, 6), batch_size=8)
    return keras.Model(x, layers.Dense(3)(layers.LSTM(5, stateful=True, name="part")(x)))


def following(make) -> keras.Model:
    """A model whose layer "part" is made from the layer before it."""
    x = keras.Input((6,))
    before = Remembers()
    return keras.Model(x, layers.Dense(3)(make(before)(before(x))))


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda _: layers.Dense(6, activity_regularizer="l2", name="part"), "regularizer"),
        (lambda _: layers.SpectralNormalization(layers.Dense(6), name="part"), "an assignment to"),
        (lambda before: Tied(before.dense, name="part"), "kernel:0' of another layer"),
        (lambda before: Remembers(before, name="part"), "which is no input of its call"),
    ],
)
def test_what_cannot_be_computed_again(tmp_path, make, found):
    with pytest.raises(export.Refusal, match=rf"(?s)computed again.*'part' \(.*{found}"):
        export.export(following(make), tmp_path / "m", optimizer="sgd", loss=LOSS, remat="part")


def test_states_outside_the_weights(tmp_path):
    """Keras does not list the states of a stateful RNN among its variables."""
    with pytest.raises(
        export.Refusal, match=r"(?s)'part' \(LSTM\).*a variable that is not a weight"
    ):
        export.export(recurrent(), tmp_path / "m", optimizer="sgd", loss=LOSS, remat="part")


def test_names_of_layers(tmp_path):
    with pytest.raises(export.UsageError, match=r"remat 'blok_1' matches no layer; there are .*block_1"):
        export.export(network("dense"), tmp_path / "m", optimizer="sgd", loss=LOSS, remat="blok_1")
