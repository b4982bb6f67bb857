"""The cases of conformance.py whose models have steps, losses, metrics or layers of their own."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from conformance_models import (
    Case,
    classes,
    classified,
    classifier,
    compiled,
    dense,
    layers,
    losses,
    metrics,
    normal,
    of_subclass,
    one_hot,
    ops,
    optimizers,
    tagger,
    words,
)


class KeyedStep(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = layers.Dense(2), layers.Dense(2)

    def call(self, x: Any) -> Any:
        return {"size": self.one(x), "far": self.two(x)}

    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((x, y))


def keyed_step() -> Case:
    """A dict of outputs, its own `train_step`."""
    model = KeyedStep()
    model.compile("adam", {"far": "mse", "size": "mae"})
    case = Case(model, normal(6), {"far": normal(2), "size": normal(2)}, inputs={"x": "float32[6]"})
    return case.having(keyed=True)


class Halved(optimizers.SGD):
    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(g / 2, v) for g, v in grads_and_vars])


def own_optimizer() -> Case:
    """An optimizer with its own `apply_gradients`."""
    return classifier(Halved(0.5), metrics=[])


def own_loss_of_one() -> Case:
    """`compute_loss` set on the object."""
    case = classifier(metrics=[])
    case.model.compute_loss = lambda x=None, y=None, y_pred=None, sample_weight=None, training=True: ops.mean(
        ops.square(y_pred)
    )
    return case


class Contrast(keras.Model):
    """A model that compares two views of the inputs: a loss in compile, and no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(4)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x = ops.convert_to_tensor(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=self(x * 0.9), y_pred=self(x))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"distance": loss}


def no_labels() -> Case:
    """Its own `train_step` without labels."""
    model = Contrast()
    model.compile("sgd", "mse")
    return Case(model, normal(6), inputs={"x": "float32[6]"}, labels={}, loss_output="distance")


class Tally(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mean = metrics.Mean(name="activity")

    def call(self, x: Any) -> Any:
        self.mean.update_state(x)
        return x


def layer_metric() -> Case:
    """A layer with a metric."""
    model = keras.Sequential([keras.Input((6,)), Tally(), layers.Dense(3, "softmax")])
    return Case(compiled(model), normal(6), classes(3))


class Distiller(keras.Model):
    """A model that learns from the labels and from another model."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = dense(activation=None), dense(activation=None)
        self.teacher.trainable = False

    def call(self, x: Any, training: bool = False) -> Any:
        return self.student(x, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        taught = ops.softmax(self.teacher(x, training=False) / 2.0)
        apart = losses.kl_divergence(taught, ops.softmax(y_pred / 2.0))
        return 0.3 * super().compute_loss(x, y, y_pred, sample_weight) + 0.7 * ops.mean(apart)


def distillation() -> Case:
    """A student with its own `compute_loss`."""
    return of_subclass(compiled(Distiller(), loss=losses.SparseCategoricalCrossentropy(from_logits=True)))


def distiller() -> Case:
    """`keras.distillation.Distiller`, whose `compute_loss` comes from Keras."""
    two = [keras.Sequential([keras.Input((6,)), layers.Dense(n), layers.Dense(3)]) for n in (16, 4)]
    made = keras.distillation.LogitsDistillation(temperature=2.0)
    model = keras.distillation.Distiller(*two, distillation_losses=made)
    compiled(model, loss=losses.SparseCategoricalCrossentropy(from_logits=True))
    return of_subclass(model, labels={"y": "int64[]"})


class OwnTests(keras.Model):
    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return super().test_step((2 * x, y))

    def predict_step(self, data: Any) -> Any:
        return ops.argmax(super().predict_step(data), axis=-1)


def own_tests() -> Case:
    """Its own `test_step` and `predict_step`."""
    x = keras.Input((6,), name="x")
    return Case(compiled(OwnTests(x, layers.Dense(3, activation="softmax")(x))), normal(6), classes(3))


class OwnMetrics(keras.Model):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.highest = metrics.Mean(name="confidence")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.highest.update_state(ops.max(y_pred, axis=-1))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def own_metrics() -> Case:
    """Its own `compute_metrics`."""
    x = keras.Input((6,), name="x")
    return Case(compiled(OwnMetrics(x, layers.Dense(3, activation="softmax")(x))), normal(6), classes(3))


class Autoencoder(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = layers.Dense(4), layers.Dense(6)
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        mean, variance = ops.split(self.encoder(x), 2, axis=-1)
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        result = self.decoder(mean + ops.exp(0.5 * variance) * noise)
        divergence = -0.5 * ops.mean(1 + variance - ops.square(mean) - ops.exp(variance))
        self.add_loss(divergence + ops.mean(ops.square(x - result)))
        return result


def add_loss() -> Case:
    """A variational autoencoder, whose loss comes from `add_loss`."""
    model = Autoencoder()
    model.compile("adam")
    return Case(model, normal(6), inputs={"x": "float32[6]"})


class GAN(keras.Model):
    """A model of two networks, each with its own optimizer, and a custom train_step."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([keras.Input((2,)), layers.Dense(6)])
        self.discriminator = keras.Sequential([keras.Input((6,)), layers.Dense(1)])
        self.seeds = keras.random.SeedGenerator(7)
        self.d_metric, self.g_metric = metrics.Mean("d_loss"), metrics.Mean("g_loss")
        self.told = metrics.AUC(from_logits=True, name="told_apart")

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def _fakes(self, n: Any) -> Any:
        return self.generator(keras.random.normal((n, 2), seed=self.seeds))

    def train_step(self, data: Any) -> dict[str, Any]:
        n = ops.shape(data)[0]
        both = ops.concatenate([data, self._fakes(n)])
        real = ops.concatenate([ops.ones((n, 1)), ops.zeros((n, 1))])
        entropy = losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape() as tape:
            logits = self.discriminator(both)
            d_loss = entropy(real, logits)
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            g_loss = entropy(ops.ones((n, 1)), self.discriminator(self._fakes(n)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_metric.update_state(d_loss)
        self.g_metric.update_state(g_loss)
        self.told.update_state(real, logits)
        return {m.name: m.result() for m in (self.d_metric, self.g_metric, self.told)}


def gan() -> Case:
    """Two networks, two optimizers, its own `train_step`, AUC."""
    model = GAN()
    model.compile(optimizers.Adam(0.01), optimizers.RMSprop(0.01))
    return Case(model, normal(6), inputs={"x": "float32[6]"}, loss_output="g_loss")


class TokenF1(metrics.F1Score):
    """F1 over the tokens of sequences, without masked ones."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        mask = getattr(y_pred, "_keras_mask", None)
        if mask is not None:
            sample_weight = ops.reshape(ops.cast(mask, "float32"), (-1,))
        flat = [ops.reshape(y, (-1, 3)) for y in (y_true, y_pred)]
        return super().update_state(*flat, sample_weight=sample_weight)


def masked_f1() -> Case:
    """A tagger of masked sequences, F1 (micro and macro)."""
    found = ["accuracy", *(TokenF1(average=kind, name=kind) for kind in ("micro", "macro"))]
    model = compiled(tagger(), loss="categorical_crossentropy", metrics=found)
    return Case(model, words(), one_hot(7))


class Subclass(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = layers.Dense(8), layers.Dense(3, "softmax")
        self.normal, self.drop = layers.BatchNormalization(), layers.Dropout(0.3, seed=1)

    def call(self, x: Any, training: bool = False) -> Any:
        hidden = self.drop(self.normal(self.hidden(x), training=training), training=training)
        return self.head(ops.relu(hidden))


def subclass() -> Case:
    """A subclass of `Model` with dropout and batch normalization."""
    return of_subclass(compiled(Subclass()))


class Tracker(layers.Layer):
    """Subtracts a running mean, and has a loss of its own."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
        self.add_loss(0.1 * ops.mean(ops.square(self.scale)))
        return (x - self.mean) * self.scale


def own_layer() -> Case:
    """A layer that updates a weight in `call` and has `add_loss`, under a loss of `compile`."""
    x = keras.Input((6,), name="x")
    return classified(normal(6), x, Tracker()(x))


class OwnFit(keras.Model):
    def fit(self, *args: Any, **options: Any) -> Any:
        return super().fit(*args, **options)


def own_fit() -> Case:
    """A model that overrides `fit`."""
    x = keras.Input((6,), name="x")
    return Case(compiled(OwnFit(x, layers.Dense(3, "softmax")(x))), normal(6), classes(3))
