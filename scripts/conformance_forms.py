"""Models of common forms for conformance.py: names, shapes, architectures and steps as people write them.

Each function makes one case. Its name is that of the case, and its docstring describes it in the table.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from conformance_models import Case, classes, compiled, dense, layers, losses, metrics, normal, ops, optimizers, uniform

# Every function of this module except the private ones is a case.


def _columns(*names: str, out: tuple[str, ...] = ("out",)) -> Case:
    """A regression of single numbers with these names."""
    inputs = [keras.Input((1,), name=name) for name in names]
    hidden = layers.Dense(8, "tanh")(layers.Concatenate()(inputs))
    outputs = [layers.Dense(1, name=name)(hidden) for name in out]
    model = keras.Model(inputs, outputs[0] if len(out) == 1 else outputs)
    labels = normal(1) if len(out) == 1 else {name: normal(1) for name in out}
    return Case(compiled(model, loss="mse", metrics=[]), {name: normal(1) for name in names}, labels)


def _regression(inputs: Any, output: Any, x: Any, y: Any, loss: Any = "mse", **options: Any) -> Case:
    """A compiled functional model."""
    return Case(compiled(keras.Model(inputs, output), loss=loss, metrics=[]), x, y, **options)


def _images(*parts: Any, size: tuple = (None, None, 1), loss: Any = "mse", y: Any = None) -> Case:
    """A model of images of 16 x 16 whose input may have an open size."""
    model = keras.Sequential([keras.Input(size), *parts])
    return Case(compiled(model, loss=loss, metrics=[]), normal(16, 16, 1), normal(1) if y is None else y)


class _Own(keras.Model):
    """Two layers and a step of its own, which fit drives with one loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(8, "tanh"), layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.last(self.first(x))

    def minimize(self, loss_of: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = loss_of()
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"distance": loss}


def _own(model: keras.Model, loss: str | None = None) -> Case:
    """A model with its own step, on numbers. Without loss, the step returns its loss as distance: Keras
    replaces values whose names are all names of metrics, such as loss, by those metrics."""
    model.compile(optimizers.Adam(0.01), loss)
    options = {} if loss else {"loss_output": "distance"}
    case = Case(model, normal(6), normal(2), inputs={"x": "float32[6]"}, labels={"y": "float32[2]"}, **options)
    return case.having(validates=False)


def names_of_python() -> Case:
    """Inputs called `class`, `from` and `self`."""
    return _columns("class", "from", "self")


def names_of_tables() -> Case:
    """Inputs called `sepal length (cm)`, `a.b`, `1stFlrSF` and `größe`."""
    return _columns("sepal length (cm)", "a.b", "1stFlrSF", "größe")


def names_by_case() -> Case:
    """Inputs called `Age` and `age`."""
    return _columns("Age", "age")


def output_called_loss() -> Case:
    """Outputs called `loss` and `other`."""
    return _columns("a", "b", out=("loss", "other"))


def lists_in_a_dictionary() -> Case:
    """A dictionary of inputs that has a list."""
    a, b, c = (keras.Input((1,), name=name) for name in "abc")
    output = layers.Dense(1)(layers.Concatenate()([a, b, c]))
    model = compiled(keras.Model({"u": [a, b], "v": c}, output), loss="mse", metrics=[])
    return Case(model, {"u": [normal(1), normal(1)], "v": normal(1)}, normal(1))


def equal_paths() -> Case:
    """Two models of one name in a model."""
    x = keras.Input((6,), name="x")
    parts = [keras.Sequential([keras.Input((6,)), layers.Dense(3, name="d")], name=n) for n in ("sub", "other")]
    model = keras.Model(x, layers.Dense(1)(layers.Add()([part(x) for part in parts])))
    parts[1].name = "sub"
    return Case(compiled(model, loss="mse", metrics=[]), normal(6), normal(1))


def open_images() -> Case:
    """Images of any size: five poolings, and a mean over the image."""
    pools = [layer for _ in range(3) for layer in (layers.Conv2D(4, 3, padding="same"), layers.MaxPool2D())]
    return _images(*pools, layers.GlobalAveragePooling2D(), layers.Dense(1))


def open_convolution() -> Case:
    """Images of any size: `Conv2D(4, 7)` without padding."""
    return _images(layers.Conv2D(4, 7), layers.GlobalMaxPooling2D(), layers.Dense(1))


def open_sequence() -> Case:
    """Sequences of any length: `Conv1D(4, 9)`, a dense layer for each step."""
    model = keras.Sequential([keras.Input((None, 3)), layers.Conv1D(4, 9, padding="same"), layers.Dense(1)])
    return Case(compiled(model, loss="mse", metrics=[]), normal(24, 3), normal(24, 1))


def open_reshape() -> Case:
    """`Reshape((-1, 24))` of sequences of any length."""
    model = keras.Sequential([keras.Input((None, 3)), layers.Reshape((-1, 24)), layers.LSTM(4), layers.Dense(1)])
    return Case(compiled(model, loss="mse", metrics=[]), normal(24, 3), normal(1))


def unet() -> Case:
    """A U-Net of images of any size, a class for each pixel."""
    x = keras.Input((None, None, 1), name="x")
    one = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    two = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPool2D()(one))
    up = layers.Conv2DTranspose(4, 2, strides=2)(two)
    output = layers.Conv2D(1, 1, activation="sigmoid")(layers.Concatenate()([up, one]))
    model = compiled(keras.Model(x, output), loss="binary_crossentropy", metrics=[metrics.BinaryIoU([1])])
    return Case(model, normal(16, 16, 1), classes(2, 16, 16, 1).astype("float32"))


def autoencoder() -> Case:
    """A convolutional autoencoder."""
    down = [layers.Conv2D(4, 3, strides=2, padding="same"), layers.Flatten(), layers.Dense(4)]
    up = [layers.Dense(64), layers.Reshape((4, 4, 4)), layers.Conv2DTranspose(1, 4, strides=4)]
    return _images(*down, *up, size=(16, 16, 1), y=normal(16, 16, 1))


def squeeze_excite() -> Case:
    """Channels weighted by a mean over the image."""
    x = keras.Input((16, 16, 1), name="x")
    hidden = layers.Conv2D(8, 3, activation="relu")(x)
    gate = layers.Dense(8, "sigmoid")(layers.Dense(2, "relu")(layers.GlobalAveragePooling2D(keepdims=True)(hidden)))
    output = layers.Dense(1)(layers.Flatten()(layers.Multiply()([hidden, gate])))
    return _regression(x, output, normal(16, 16, 1), normal(1))


def two_towers() -> Case:
    """Recommendation: a dot product of two embeddings."""
    user, item = (keras.Input((), dtype="int64", name=name) for name in ("user", "item"))
    towers = [layers.Embedding(20, 4)(user), layers.Embedding(30, 4)(item)]
    return _regression([user, item], layers.Dot(1)(towers), {"user": classes(20), "item": classes(30)}, uniform(1))


def wide_and_deep() -> Case:
    """A linear part beside a deep part."""
    x, kind = keras.Input((6,), name="x"), keras.Input((1,), dtype="int64", name="kind")
    wide = layers.Dense(1)(layers.CategoryEncoding(5, output_mode="one_hot")(kind))
    deep = layers.Dense(1)(layers.Dense(8, "relu")(layers.Dense(16, "relu")(x)))
    return _regression([x, kind], layers.Add()([wide, deep]), {"x": normal(6), "kind": classes(5, 1)}, normal(1))


def cross_features() -> Case:
    """A cross network: each layer multiplies by the input."""
    x = hidden = keras.Input((6,), name="x")
    for _ in range(2):
        hidden = layers.Add()([layers.Multiply()([x, layers.Dense(6)(hidden)]), hidden])
    return _regression(x, layers.Dense(1)(hidden), normal(6), normal(1))


def forecast() -> Case:
    """Four steps ahead of a series, from an LSTM and a last value."""
    x = keras.Input((12, 2), name="x")
    output = layers.Dense(4)(layers.LSTM(8)(x)) + x[:, -1, :1]
    return _regression(x, output, normal(12, 2), normal(4), "mae")


def seq2seq() -> Case:
    """A decoder that starts with the state of an encoder."""
    source, target = (keras.Input((7,), dtype="int64", name=name) for name in ("source", "target"))
    _, *state = layers.LSTM(8, return_state=True)(layers.Embedding(20, 4)(source))
    hidden = layers.LSTM(8, return_sequences=True)(layers.Embedding(20, 4)(target), initial_state=state)
    model = compiled(keras.Model([source, target], layers.Dense(20, "softmax")(hidden)))
    return Case(model, {"source": classes(20, 7), "target": classes(20, 7)}, classes(20, 7))


def graph_layer() -> Case:
    """A convolution on a graph: an adjacency matrix for each sample."""
    nodes, edges = keras.Input((5, 4), name="nodes"), keras.Input((5, 5), name="edges")
    hidden = ops.relu(ops.matmul(edges, layers.Dense(8)(nodes)))
    output = layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden))
    return _regression([nodes, edges], output, {"nodes": normal(5, 4), "edges": uniform(5, 5)}, normal(1))


def quantiles() -> Case:
    """A function as loss: quantiles 0.1, 0.5 and 0.9."""

    def pinball(y: Any, p: Any) -> Any:
        off = y - p
        return ops.mean(ops.maximum(off * [0.1, 0.5, 0.9], off * [-0.9, -0.5, -0.1]), axis=-1)

    return Case(compiled(dense(3, None), loss=pinball, metrics=[]), normal(6), normal(1), labels={"y": "float32[1]"})


def gaussian() -> Case:
    """A function as loss: the likelihood under a predicted mean and deviation."""

    def likelihood(y: Any, p: Any) -> Any:
        mean, scale = p[:, :1], ops.softplus(p[:, 1:]) + 1e-3
        return ops.mean(ops.square((y - mean) / scale) / 2 + ops.log(scale), axis=-1)

    return Case(compiled(dense(2, None), loss=likelihood, metrics=[]), normal(6), normal(1), labels={"y": "float32[1]"})


def positive_labels() -> Case:
    """A loss of the logarithm of labels."""

    def logarithm(y: Any, p: Any) -> Any:
        return ops.mean(ops.square(ops.log(y) - p), axis=-1)

    model = compiled(dense(1, None), loss=logarithm, metrics=[])
    return Case(model, normal(6), uniform(1) + 0.1, input_ranges={"y": (0.5, 2)})


def many_labels() -> Case:
    """Several classes of a sample, with their F1."""
    model = compiled(dense(4, "sigmoid"), loss="binary_crossentropy", metrics=[metrics.F1Score("macro", 0.5)])
    return Case(model, normal(6), classes(2, 4).astype("float32"))


def object_loss() -> Case:
    """A subclass of `Loss` with a weight of its own."""

    class Weighted(losses.Loss):
        def call(self, y: Any, p: Any) -> Any:
            return ops.mean(ops.square(y - p) * (1 + ops.abs(y)), axis=-1)

    return Case(compiled(dense(1, None), loss=Weighted(), metrics=["mae"]), normal(6), normal(1))


def own_variable() -> Case:
    """A `tf.Variable` of the model, which Keras does not know."""

    class Scaled(_Own):
        def __init__(self) -> None:
            super().__init__()
            self.scale = tf.Variable(2.0)

        def call(self, x: Any) -> Any:
            return super().call(x) * self.scale

    return _own(Scaled(), "mse")


def jacobian() -> Case:
    """Its own `train_step` with `batch_jacobian`."""

    class Smooth(_Own):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data

            def loss() -> Any:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    p = self(x, training=True)
                return tf.reduce_mean((p - y) ** 2) + 0.1 * tf.reduce_mean(inner.batch_jacobian(p, x) ** 2)

            return self.minimize(loss)

    return _own(Smooth())


def adversarial() -> Case:
    """Its own `train_step` on inputs moved along the gradient."""

    class Moved(_Own):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            moved = x + 0.1 * tf.sign(tape.gradient(loss, x))
            return self.minimize(lambda: tf.reduce_mean((self(moved, training=True) - y) ** 2))

    return _own(Moved())


def contrastive() -> Case:
    """Its own `train_step` that compares the samples of a batch."""

    class Similar(_Own):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data

            def loss() -> Any:
                p, q = tf.nn.l2_normalize(self(x, training=True), 1), tf.nn.l2_normalize(y, 1)
                near = tf.matmul(p, q, transpose_b=True) * 5
                same = tf.range(tf.shape(near)[0])
                return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(same, near))

            return self.minimize(loss)

    return _own(Similar())


def clipped_step() -> Case:
    """Its own `train_step` with `clip_by_global_norm` and two metrics."""

    class Clipped(_Own):
        def __init__(self) -> None:
            super().__init__()
            self.norm = metrics.Mean("norm")

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_weights), 0.5)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.norm.update_state(norm)
            next(m for m in self.metrics if m.name == "loss").update_state(loss)
            return {m.name: m.result() for m in self.metrics}

    return _own(Clipped(), "mse")


def relu_adafactor() -> Case:
    """`Adafactor` with two hidden layers of ReLU."""
    hidden = [layers.Dense(8, "relu"), layers.Dense(8, "relu"), layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *hidden])
    return Case(compiled(model, "adafactor", "mse", []), normal(6), normal(1))


def correlation() -> Case:
    """`PearsonCorrelation`, which is NaN for equal predictions."""
    model = compiled(dense(2, None), loss="mse", metrics=[metrics.PearsonCorrelation()])
    return Case(model, normal(6), normal(2))
