#!/usr/bin/env python3
"""Train models with Keras fit, and compare steadyfit's trainings of the same models.

``conformance.py make DIR`` writes for each case a folder with the exported model, the data,
and ``keras.json``: the history of ``fit`` on the same weights, data and order, with a smaller
last batch, or the reason why the model is refused. ``arguments.json`` has the options of ``steadyfit fit``.
``conformance.py compare DIR`` reads the model ``out`` and the history that steadyfit made in each
folder, and prints the results as JSON: the number of metrics, their largest relative
difference, the largest difference of a weight relative to the change by the training,
and the differences that are not expected.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import keras
import numpy as np
import tensorflow as tf

import export

EPOCHS, BATCH = 3, 16
# The number of samples: the last batch has 8, or 4 in validation.
TRAIN, VALIDATION = 72, 36

ops, layers = keras.ops, keras.layers


class Case:
    """A compiled model with its data by field, and how it is exported."""

    def __init__(
        self, model: Any, x: Any, y: Any = None, weight: Any = None, **options: Any
    ) -> None:
        self.model, self.x, self.y, self.weight, self.options = model, x, y, weight, options
        self.class_weight: dict[int, float] = {}
        self.keyed = False  # the outputs are a dict
        self.validates = True
        self.patience: int | None = None
        self.table = False  # the data is a CSV file
        self.whole = False  # no batch is smaller

    def part(self, of: Any, part: slice) -> Any:
        """Some samples of an array, or of each of several, as fit takes them."""
        return keras.tree.map_structure(
            lambda a: a[part].astype(object) if a.dtype.kind == "U" else a[part], of
        )

    def arguments(self) -> list[str]:
        """The options of ``steadyfit fit`` that the case needs."""
        found = []
        if self.class_weight:
            weights = ",".join(f"{c}={w}" for c, w in self.class_weight.items())
            found += ["--class-weight", weights]
        if self.patience is not None:
            found += ["--early-stop", f"val_loss:{self.patience}", "--restore-best"]
        return found

    def fields(self, part: slice) -> dict[str, Any]:
        """The arrays of a dataset under the names of the exported inputs."""
        fields = dict(self.x) if isinstance(self.x, dict) else {"x": self.x}
        if isinstance(self.y, dict):
            fields |= {f"y_{name}": value for name, value in self.y.items()}
        elif self.y is not None:
            fields["y"] = self.y
        if self.weight is not None:
            fields["sample_weight"] = self.weight
        return self.part(fields, part)


random = np.random.default_rng()


def seeded(build: Callable[[], Case]) -> Case:
    """Return the case that build makes, with the same random numbers each time."""
    global random
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(5)
    return build()


def normal(*shape: int) -> np.ndarray:
    return random.normal(size=(TRAIN + VALIDATION, *shape)).astype("float32")


def classes(n: int, *shape: int) -> np.ndarray:
    return random.integers(0, n, (TRAIN + VALIDATION, *shape)).astype("int64")


def words(rows: int = 20, length: int = 7) -> np.ndarray:
    """Sequences that end early, padded with zeros."""
    found = classes(rows, length)
    found[np.arange(length) >= random.integers(2, length + 1, len(found))[:, None]] = 0
    return found


def dense(units: int = 3, activation: str | None = "softmax") -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(units, activation)]
    )


def accuracy() -> Case:
    """A classifier with `accuracy`."""
    model = dense()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


def stateful() -> Case:
    """AUC (ROC and PR), precision, recall, RMSE, F1."""
    m = keras.metrics
    model = dense(1, "sigmoid")
    f1 = m.F1Score(average="micro", threshold=0.5)
    curves = [m.AUC(), m.AUC(curve="PR", name="pr")]
    metrics = [*curves, m.Precision(), m.Recall(), m.RootMeanSquaredError(), f1]
    model.compile("adam", "binary_crossentropy", metrics=metrics)
    return Case(model, normal(6), classes(2, 1).astype("float32"))


def crossentropy_by_name() -> Case:
    """`loss="crossentropy"`, top-k accuracy."""
    model = dense()
    metrics = ["sparse_categorical_crossentropy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    model.compile("adam", "crossentropy", metrics=metrics)
    return Case(model, normal(6), classes(3))


def mean_iou() -> Case:
    """`MeanIoU`."""
    model = dense()
    metric = keras.metrics.MeanIoU(3, sparse_y_pred=False)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[metric])
    return Case(model, normal(6), classes(3))


def weighted() -> Case:
    """Sample weights, `metrics` and `weighted_metrics`."""
    model = dense()
    model.compile(
        "adam",
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["accuracy", keras.metrics.MeanMetricWrapper(
            keras.losses.sparse_categorical_crossentropy, name="entropy")],
    )  # fmt: skip
    weight = random.uniform(0, 2, TRAIN + VALIDATION).astype("float32")
    return Case(model, normal(6), classes(3), weight, sample_weight=True)


def class_weights() -> Case:
    """`class_weight`, `weighted_metrics`."""
    model = dense()
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    case = Case(model, normal(6), classes(3), sample_weight=True)
    case.class_weight = {0: 0.5, 2: 3.0}
    return case


def masked() -> Case:
    """An LSTM tagger of masked sequences, `accuracy`."""
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int64"),
            layers.Embedding(20, 8, mask_zero=True),
            layers.LSTM(8, return_sequences=True),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, words(), classes(3, 7))


def several_outputs() -> Case:
    """Two outputs, flat lists of losses and metrics."""
    x = keras.Input((6,), name="x")
    hidden = layers.Dense(8, activation="relu")(x)
    outputs = [
        layers.Dense(3, "softmax", name="kind")(hidden),
        layers.Dense(1, name="size")(hidden),
    ]
    model = keras.Model(x, outputs)
    model.compile("adam", ["sparse_categorical_crossentropy", "mse"], metrics=["accuracy", "mae"])
    return Case(model, normal(6), {"kind": classes(3), "size": normal(1)})


def keyed_outputs() -> Case:
    """A dict of outputs, with lists of losses and metrics in the order of its sorted keys."""
    x = keras.Input((6,), name="x")
    hidden = layers.Dense(8, activation="relu")(x)
    model = keras.Model(x, {"size": layers.Dense(2)(hidden), "far": layers.Dense(2)(hidden)})
    model.compile("adam", ["mse", "mae"], metrics=["mae", "mse"])
    case = Case(model, normal(6), {"far": normal(2), "size": normal(2)})
    case.keyed = True
    return case


class KeyedStep(keras.Model):
    """A subclass with its own step, and a dict of outputs in another order."""

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
    case.keyed = True
    return case


class Halved(keras.optimizers.SGD):
    """An optimizer that changes gradients in the method that Keras calls."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(g / 2, v) for g, v in grads_and_vars])


def own_optimizer() -> Case:
    """An optimizer with its own `apply_gradients`."""
    model = dense()
    model.compile(Halved(0.5), "sparse_categorical_crossentropy")
    return Case(model, normal(6), classes(3))


def own_loss_of_one() -> Case:
    """`compute_loss` set on the object."""
    model = dense()

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred))

    model.compute_loss = compute_loss
    model.compile("adam", "sparse_categorical_crossentropy")
    return Case(model, normal(6), classes(3))


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
    options = {"labels": {}, "loss_output": "distance"}
    return Case(model, normal(6), inputs={"x": "float32[6]"}, **options)


class Tally(layers.Layer):
    """A layer with a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = keras.metrics.Mean(name="activity")

    def call(self, x: Any) -> Any:
        self.mean.update_state(x)
        return x


def layer_metric() -> Case:
    """A layer with a metric."""
    model = keras.Sequential([keras.Input((6,)), Tally(), layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


def ema(**options: Any) -> Case:
    """`use_ema`."""
    model = dense()
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, **options)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


def ema_unused() -> Case:
    """`use_ema`, with weights that do not affect the loss."""
    x = keras.Input((6,), name="x")
    outputs = [layers.Dense(3, name="idle")(x), layers.Dense(3, "softmax", name="kind")(x)]
    model = keras.Model(x, outputs)
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)
    model.compile(optimizer, [None, "sparse_categorical_crossentropy"])
    case = Case(model, normal(6), classes(3), allow_unused=True)
    case.validates = False
    return case


def ema_best() -> Case:
    """`use_ema`, `EarlyStopping(restore_best_weights=True)`."""
    case = ema()
    case.patience = 1
    return case


def ema_overwritten() -> Case:
    """`use_ema`, `ema_overwrite_frequency=4`."""
    return ema(ema_overwrite_frequency=4)


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
        apart = keras.losses.kl_divergence(taught, ops.softmax(y_pred / 2.0))
        return 0.3 * super().compute_loss(x, y, y_pred, sample_weight) + 0.7 * ops.mean(apart)


def distillation() -> Case:
    """A student with its own `compute_loss`."""
    model = Distiller()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return Case(model, normal(6), classes(3), inputs={"x": "float32[6]"})


def distiller() -> Case:
    """`keras.distillation.Distiller`, whose `compute_loss` comes from Keras."""
    teacher, student = (
        keras.Sequential([keras.Input((6,)), layers.Dense(width), layers.Dense(3)])
        for width in (16, 4)
    )
    made = keras.distillation.LogitsDistillation(temperature=2.0)
    model = keras.distillation.Distiller(teacher, student, distillation_losses=made)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return Case(model, normal(6), classes(3), inputs={"x": "float32[6]"}, labels={"y": "int64[]"})


class OwnTests(keras.Model):
    """A model that evaluates and predicts differently than it trains."""

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return super().test_step((2 * x, y))

    def predict_step(self, data: Any) -> Any:
        return ops.argmax(super().predict_step(data), axis=-1)


def own_tests() -> Case:
    """Its own `test_step` and `predict_step`."""
    x = keras.Input((6,), name="x")
    model = OwnTests(x, layers.Dense(3, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


class OwnMetrics(keras.Model):
    """A model that adds a metric to those of compile."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.highest = keras.metrics.Mean(name="confidence")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.highest.update_state(ops.max(y_pred, axis=-1))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def own_metrics() -> Case:
    """Its own `compute_metrics`."""
    x = keras.Input((6,), name="x")
    model = OwnMetrics(x, layers.Dense(3, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


class Autoencoder(keras.Model):
    """A variational autoencoder: all of its loss comes from add_loss."""

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
        self.d_metric, self.g_metric = keras.metrics.Mean("d_loss"), keras.metrics.Mean("g_loss")
        self.told = keras.metrics.AUC(from_logits=True, name="told_apart")

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def _fakes(self, n: Any) -> Any:
        return self.generator(keras.random.normal((n, 2), seed=self.seeds))

    def train_step(self, data: Any) -> dict[str, Any]:
        n = ops.shape(data)[0]
        both = ops.concatenate([data, self._fakes(n)])
        real = ops.concatenate([ops.ones((n, 1)), ops.zeros((n, 1))])
        entropy = keras.losses.BinaryCrossentropy(from_logits=True)
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
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01))
    return Case(model, normal(6), inputs={"x": "float32[6]"}, loss_output="g_loss")


def weighted_elements() -> Case:
    """A weight for each step of a sequence."""
    model = keras.Sequential(
        [keras.Input((7, 6)), layers.GRU(8, return_sequences=True), layers.Dense(3, "softmax")]
    )
    model.compile(
        "adam",
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
    )
    weight = random.uniform(0, 2, (TRAIN + VALIDATION, 7)).astype("float32")
    return Case(model, normal(7, 6), classes(3, 7), weight, sample_weight="[7]")


def sentences() -> np.ndarray:
    words = np.array(["a", "the", "cat", "dog,", "Dog", "ran", "sat", "far", '"out"', "é"])
    picked = random.integers(0, 10, (TRAIN + VALIDATION, 8))
    lengths = random.integers(1, 9, TRAIN + VALIDATION)
    return np.array([" ".join(words[p[:n]]) for p, n in zip(picked, lengths, strict=True)])


def text_classifier() -> Case:
    """A classifier of texts, from a table."""
    x = sentences()
    vectorize = layers.TextVectorization(max_tokens=8, output_sequence_length=5)
    vectorize.adapt(x)
    inputs = keras.Input((1,), dtype="string", name="x")
    hidden = layers.Embedding(8, 6, mask_zero=True)(vectorize(inputs))
    hidden = layers.GlobalAveragePooling1D()(hidden)
    model = keras.Model(inputs, layers.Dense(3, "softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    case = Case(model, x, classes(3))
    case.table = True
    return case


def columns() -> Case:
    """Columns of a table of several kinds, one of them text of few values."""
    city = np.array(["Bern", "Rom", "Oslo"])[classes(3)]
    code, age = classes(5), normal()
    inputs = {
        "city": keras.Input((1,), dtype="string", name="city"),
        "code": keras.Input((1,), dtype="int64", name="code"),
        "age": keras.Input((1,), name="age"),
    }
    normalize = layers.Normalization(axis=None)
    normalize.adapt(age)
    x = layers.Concatenate()(
        [
            layers.StringLookup(vocabulary=["Bern", "Rom"], output_mode="one_hot")(inputs["city"]),
            layers.Hashing(3, output_mode="one_hot")(inputs["city"]),
            layers.IntegerLookup(vocabulary=[1, 2, 3], output_mode="one_hot")(inputs["code"]),
            normalize(inputs["age"]),
        ]
    )
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.Dense(8, "relu")(x)))
    model.compile("adam", "binary_crossentropy", metrics=["auc"])
    y = classes(2, 1).astype("float32")
    case = Case(model, {"city": city, "code": code, "age": age}, y)
    case.table = True
    return case


def stateful_rnn() -> Case:
    """An LSTM that continues with the state of the previous batch."""
    inputs = keras.Input(batch_shape=(BATCH, 7, 6))
    lstm = layers.LSTM(8, stateful=True)
    model = keras.Sequential([inputs, lstm, layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    case = Case(model, normal(7, 6), classes(3))
    case.whole = True
    return case


# Keras objects are created again for each use, from a function and its arguments.
P = functools.partial
optimizers, schedules = keras.optimizers, keras.optimizers.schedules
losses, metrics = keras.losses, keras.metrics


def made(of: Any) -> Any:
    """The result of a partial, whose arguments are evaluated first."""
    if isinstance(of, P):
        return of.func(*made(of.args), **made(of.keywords))
    if isinstance(of, (list, tuple, dict)):
        return keras.tree.map_structure(lambda one: made(one) if isinstance(one, P) else one, of)
    return of


def text(of: Any) -> str:
    """The source text of the call that a partial makes."""
    if isinstance(of, P):
        options = [f"{name}={text(value)}" for name, value in of.keywords.items()]
        return f"{of.func.__name__}({', '.join([*map(text, of.args), *options])})"
    if isinstance(of, list):
        return f"[{', '.join(map(text, of))}]"
    if isinstance(of, dict):
        return f"{{{', '.join(f'{text(key)}: {text(value)}' for key, value in of.items())}}}"
    return repr(of)


def optimized(optimizer: Any) -> Case:
    model = dense()
    model.compile(made(optimizer), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


class Warmup(schedules.LearningRateSchedule):
    """A custom schedule."""

    def __call__(self, step: Any) -> Any:
        return 0.01 * ops.minimum(1.0, (ops.cast(step, "float32") + 1) / 6)


OPTIMIZERS: dict[str, P] = {
    "sgd": P(optimizers.SGD, 0.1),
    "sgd_momentum": P(optimizers.SGD, 0.1, momentum=0.9),
    "sgd_nesterov": P(optimizers.SGD, 0.1, momentum=0.9, nesterov=True),
    "sgd_weight_decay": P(optimizers.SGD, 0.1, weight_decay=0.01),
    "sgd_clipnorm": P(optimizers.SGD, 0.1, clipnorm=0.05),
    "sgd_clipvalue": P(optimizers.SGD, 0.1, clipvalue=0.01),
    "sgd_global_clipnorm": P(optimizers.SGD, 0.1, global_clipnorm=0.1),
    "sgd_accumulation": P(optimizers.SGD, 0.1, gradient_accumulation_steps=2),
    "sgd_loss_scale_factor": P(optimizers.SGD, 0.1, loss_scale_factor=8.0),
    "rmsprop": P(optimizers.RMSprop, 0.01),
    "rmsprop_centered": P(optimizers.RMSprop, 0.01, rho=0.8, momentum=0.9, centered=True),
    "rmsprop_accumulation_ema": P(
        optimizers.RMSprop, 0.01, gradient_accumulation_steps=3, use_ema=True, ema_momentum=0.8
    ),
    "adam": P(optimizers.Adam, 0.01),
    "adam_amsgrad": P(optimizers.Adam, 0.01, beta_1=0.8, amsgrad=True),
    "adam_accumulation": P(optimizers.Adam, 0.01, gradient_accumulation_steps=4),
    "adam_clipped": P(optimizers.Adam, 0.01, global_clipnorm=0.1, weight_decay=0.01),
    "adam_ema": P(optimizers.Adam, 0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3),
    "adamw": P(optimizers.AdamW, 0.01, weight_decay=0.1),
    "adamw_amsgrad": P(optimizers.AdamW, 0.01, weight_decay=0.1, amsgrad=True, clipnorm=0.05),
    "adadelta": P(optimizers.Adadelta, 1.0),
    "adagrad": P(optimizers.Adagrad, 0.1),
    "adamax": P(optimizers.Adamax, 0.01),
    "adafactor": P(optimizers.Adafactor, 0.1),
    "adafactor_absolute": P(optimizers.Adafactor, 0.01, relative_step=False, clip_threshold=0.5),
    "nadam": P(optimizers.Nadam, 0.01),
    "ftrl": P(
        optimizers.Ftrl, 0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.01
    ),
    "ftrl_shrinkage": P(optimizers.Ftrl, 0.1, l2_shrinkage_regularization_strength=0.01, beta=0.1),
    "lion": P(optimizers.Lion, 0.001),
    "lamb": P(optimizers.Lamb, 0.01),
    "muon": P(optimizers.Muon, 0.01),
    "schedule_free_adamw": P(optimizers.ScheduleFreeAdamW, 0.01, warmup_steps=3),
    "loss_scale_optimizer": P(
        optimizers.LossScaleOptimizer, P(optimizers.SGD, 0.1), dynamic_growth_steps=4
    ),
    "multi_optimizer": P(
        optimizers.MultiOptimizer,
        P(optimizers.OptimizerMap, P(optimizers.SGD, 0.1), {".*bias": P(optimizers.Adam, 0.01)}),
    ),
    "multi_optimizer_ema": P(
        optimizers.MultiOptimizer,
        P(
            optimizers.OptimizerMap,
            P(optimizers.SGD, 0.1, use_ema=True, ema_momentum=0.8),
            {".*bias": P(optimizers.Adam, 0.01)},
        ),
    ),
    "exponential_decay": P(optimizers.SGD, P(schedules.ExponentialDecay, 0.1, 4, 0.5)),
    "exponential_staircase": P(
        optimizers.Adam, P(schedules.ExponentialDecay, 0.01, 4, 0.5, staircase=True)
    ),
    "piecewise_constant_decay": P(
        optimizers.SGD, P(schedules.PiecewiseConstantDecay, [3, 8], [0.1, 0.05, 0.01])
    ),
    "polynomial_decay": P(optimizers.SGD, P(schedules.PolynomialDecay, 0.1, 6, 0.01, power=2.0)),
    "polynomial_cycle": P(optimizers.SGD, P(schedules.PolynomialDecay, 0.1, 6, 0.01, cycle=True)),
    "inverse_time_decay": P(optimizers.RMSprop, P(schedules.InverseTimeDecay, 0.01, 4, 0.5)),
    "cosine_decay": P(
        optimizers.SGD, P(schedules.CosineDecay, 0.01, 9, warmup_target=0.1, warmup_steps=4)
    ),
    "cosine_decay_restarts": P(
        optimizers.SGD, P(schedules.CosineDecayRestarts, 0.1, 4, t_mul=1.5, m_mul=0.8)
    ),
    "schedule_accumulation": P(
        optimizers.SGD, P(schedules.ExponentialDecay, 0.1, 2, 0.5), gradient_accumulation_steps=2
    ),
    "own_schedule": P(optimizers.AdamW, P(Warmup)),
}

# For labels of a kind: units and activation of the output, and the labels.
TARGETS: dict[str, tuple[int, str | None, Callable[[], np.ndarray]]] = {
    "numbers": (3, None, lambda: normal(3)),
    "positive": (3, "softplus", lambda: np.abs(normal(3)) + 0.1),
    "binary": (1, "sigmoid", lambda: classes(2, 1).astype("float32")),
    "bits": (3, "sigmoid", lambda: classes(2, 3).astype("float32")),
    "signs": (2, "tanh", lambda: classes(2, 2).astype("float32") * 2 - 1),
    "one_hot": (3, "softmax", lambda: np.eye(3, dtype="float32")[classes(3)]),
    "sparse": (3, "softmax", lambda: classes(3)),
    "sparse_logits": (3, None, lambda: classes(3)),
    "logits": (3, None, lambda: np.eye(3, dtype="float32")[classes(3)]),
    "embedded": (8, None, lambda: classes(4)),
    "labelled": (3, "softmax", lambda: classes(3)),
}

# fmt: off
LOSSES: dict[str, tuple[str, P]] = {
    "mean_squared_error": ("numbers", P(losses.MeanSquaredError)),
    "mean_absolute_error": ("numbers", P(losses.MeanAbsoluteError)),
    "mean_absolute_percentage_error": ("positive", P(losses.MeanAbsolutePercentageError)),
    "mean_squared_logarithmic_error": ("positive", P(losses.MeanSquaredLogarithmicError)),
    "cosine_similarity": ("numbers", P(losses.CosineSimilarity)),
    "huber": ("numbers", P(losses.Huber, delta=0.5)),
    "log_cosh": ("numbers", P(losses.LogCosh)),
    "hinge": ("signs", P(losses.Hinge)),
    "squared_hinge": ("signs", P(losses.SquaredHinge)),
    "categorical_hinge": ("one_hot", P(losses.CategoricalHinge)),
    "kl_divergence": ("one_hot", P(losses.KLDivergence)),
    "poisson": ("positive", P(losses.Poisson)),
    "binary_crossentropy": ("bits", P(losses.BinaryCrossentropy, label_smoothing=0.1)),
    "binary_focal_crossentropy": (
        "binary", P(losses.BinaryFocalCrossentropy, apply_class_balancing=True)),
    "categorical_crossentropy": (
        "logits", P(losses.CategoricalCrossentropy, from_logits=True, label_smoothing=0.1)),
    "categorical_focal_crossentropy": ("one_hot", P(losses.CategoricalFocalCrossentropy)),
    "sparse_categorical_crossentropy": (
        "sparse_logits", P(losses.SparseCategoricalCrossentropy, from_logits=True, ignore_class=1)),
    "dice": ("bits", P(losses.Dice)),
    "tversky": ("bits", P(losses.Tversky, alpha=0.3, beta=0.7)),
    "circle": ("embedded", P(losses.Circle, gamma=8.0)),
    "generalized_crossentropy": ("labelled", P(losses.CategoricalGeneralizedCrossEntropy)),
    "summed": ("numbers", P(losses.MeanSquaredError, reduction="sum")),
    "mean_with_sample_weight": (
        "bits", P(losses.MeanSquaredError, reduction="mean_with_sample_weight")),
    "unreduced": ("numbers", P(losses.MeanSquaredError, reduction=None)),
}
# fmt: on


def with_loss(kind: str, loss: Any) -> Case:
    units, activation, labels = TARGETS[kind]
    model = dense(units, activation)
    model.compile(optimizers.SGD(0.05), made(loss))
    # The loss does not show that the labels are classes.
    options = {"labels": {"y": "int64[]"}} if kind in ("embedded", "labelled") else {}
    return Case(model, normal(6), labels(), **options)


# A model with an output for each name.
LOSS_NAMES: dict[str, list[str]] = {
    "numbers": ["mse", "MAE", "huber", "log_cosh", "cosine_similarity"],
    "positive": ["mape", "msle", "poisson"],
    "bits": ["bce", "binary_focal_crossentropy", "dice", "tversky"],
    "signs": ["hinge", "squared_hinge"],
    "one_hot": ["kld", "categorical_hinge", "categorical_focal_crossentropy", "ce"],
}


def by_name(kind: str, names: list[str]) -> Case:
    x = keras.Input((6,), name="x")
    units, activation, labels = TARGETS[kind]
    outputs = [layers.Dense(units, activation, name=f"to_{i}")(x) for i in range(len(names))]
    model = keras.Model(x, outputs)
    model.compile("sgd", names, loss_weights=[0.5 + i for i in range(len(names))])
    options = {}
    if "ce" in names:  # the labels decide which crossentropy it is
        options["labels"] = {f"y_to_{i}": f"float32[{units}]" for i in range(len(names))}
    return Case(model, normal(6), {f"to_{i}": labels() for i in range(len(names))}, **options)


# fmt: off
METRICS: dict[str, list[P | str]] = {
    "numbers": [
        "mse", P(metrics.MeanAbsoluteError), P(metrics.RootMeanSquaredError), P(metrics.CosineSimilarity),
        P(metrics.LogCoshError), P(metrics.R2Score), P(metrics.PearsonCorrelation), P(metrics.ConcordanceCorrelation)],
    "positive": [
        P(metrics.MeanSquaredError), P(metrics.MeanAbsolutePercentageError), P(metrics.MeanSquaredLogarithmicError),
        P(metrics.Poisson), P(metrics.KLDivergence)],
    "binary": [
        P(metrics.BinaryAccuracy, threshold=0.4), P(metrics.BinaryCrossentropy), P(metrics.TruePositives),
        P(metrics.TrueNegatives), P(metrics.FalsePositives), P(metrics.FalseNegatives),
        P(metrics.SensitivityAtSpecificity, 0.5), P(metrics.SpecificityAtSensitivity, 0.5),
        P(metrics.PrecisionAtRecall, 0.5), P(metrics.RecallAtPrecision, 0.5),
        P(metrics.AUC, num_thresholds=20, summation_method="majoring"),
        P(metrics.BinaryIoU, target_class_ids=[0, 1], threshold=0.4),
        P(metrics.FBetaScore, average="micro", beta=2.0, threshold=0.4)],
    "bits": [
        P(metrics.AUC, multi_label=True), P(metrics.Precision, top_k=1), P(metrics.Recall, class_id=1),
        P(metrics.F1Score, average="macro", threshold=0.5), P(metrics.BinaryAccuracy)],
    "signs": [P(metrics.Hinge), P(metrics.SquaredHinge)],
    "one_hot": [
        "accuracy", P(metrics.CategoricalAccuracy), P(metrics.CategoricalCrossentropy), P(metrics.CategoricalHinge),
        P(metrics.TopKCategoricalAccuracy, k=2), P(metrics.OneHotIoU, 3, target_class_ids=[0, 2]),
        P(metrics.OneHotMeanIoU, 3), P(metrics.F1Score, average="weighted"),
        P(metrics.FBetaScore, average="macro", beta=0.5)],
    "sparse": [
        P(metrics.SparseCategoricalAccuracy), P(metrics.SparseCategoricalCrossentropy),
        P(metrics.SparseTopKCategoricalAccuracy, k=2),
        P(metrics.IoU, 3, target_class_ids=[1], sparse_y_pred=False),
        P(metrics.MeanIoU, 3, sparse_y_pred=False)],
}
# fmt: on


def measured(kind: str, metrics: list[P | str]) -> Case:
    """Each metric without and with the weights of the samples."""
    units, activation, labels = TARGETS[kind]
    loss = "sparse_categorical_crossentropy" if kind == "sparse" else "mse"
    model = dense(units, activation)
    model.compile("adam", loss, metrics=made(metrics), weighted_metrics=made(metrics))
    weight = random.uniform(0, 2, TRAIN + VALIDATION).astype("float32")
    return Case(model, normal(6), labels(), weight, sample_weight=True)


def adapted(layer: Any) -> Any:
    """A preprocessing layer that is adapted to data."""
    layer.adapt(np.random.default_rng(7).normal(2, 3, (64, 6)).astype("float32"))
    return layer


# The data for a stack of layers.
DATA: dict[str, Callable[[], np.ndarray]] = {
    "numbers": lambda: normal(6),
    "sequences": lambda: normal(8, 4),
    "ended": lambda: (
        normal(8, 4)
        * (np.arange(8) < random.integers(3, 9, TRAIN + VALIDATION)[:, None])[:, :, None].astype(
            "float32"
        )
    ),
    "images": lambda: normal(8, 8, 3),
    "volumes": lambda: normal(5, 5, 5, 2),
    "clips": lambda: normal(3, 5, 5, 2),
    "tones": lambda: normal(400),
    "words": words,
    "pixels": lambda: random.uniform(0, 255, (TRAIN + VALIDATION, 8, 8, 3)).astype("float32"),
}

# fmt: off
LAYERS: dict[str, tuple[str, list[P]]] = {
    "conv1d": ("sequences", [
        P(layers.Conv1D, 4, 3, strides=2), P(layers.Conv1D, 4, 2, padding="causal", dilation_rate=2)]),
    "conv2d": ("images", [
        P(layers.Conv2D, 6, 3, padding="same", activation="relu"),
        P(layers.Conv2D, 6, 3, strides=2, groups=3)]),
    "conv3d": ("volumes", [P(layers.Conv3D, 4, 3, activation="relu")]),
    "depthwise_conv1d": ("sequences", [P(layers.DepthwiseConv1D, 3, depth_multiplier=2)]),
    "depthwise_conv2d": ("images", [P(layers.DepthwiseConv2D, 3, padding="same", activation="relu")]),
    "separable_conv1d": ("sequences", [P(layers.SeparableConv1D, 5, 3, activation="relu")]),
    "separable_conv2d": ("images", [P(layers.SeparableConv2D, 5, 3, activation="relu")]),
    "conv1d_transpose": ("sequences", [P(layers.Conv1DTranspose, 4, 3, strides=2)]),
    "conv2d_transpose": ("images", [P(layers.Conv2DTranspose, 4, 3, strides=2, padding="same")]),
    "conv3d_transpose": ("volumes", [P(layers.Conv3DTranspose, 2, 2)]),
    "pooling1d": ("sequences", [
        P(layers.Conv1D, 4, 2), P(layers.MaxPooling1D), P(layers.AveragePooling1D, 2), P(layers.GlobalMaxPooling1D)]),
    "pooling2d": ("images", [
        P(layers.Conv2D, 4, 1), P(layers.MaxPooling2D), P(layers.AveragePooling2D, 2, padding="same"),
        P(layers.GlobalAveragePooling2D)]),
    "pooling3d": ("volumes", [
        P(layers.Conv3D, 3, 2), P(layers.MaxPooling3D), P(layers.AveragePooling3D, 2), P(layers.GlobalMaxPooling3D)]),
    "adaptive_pooling": ("images", [
        P(layers.Conv2D, 4, 1), P(layers.AdaptiveAveragePooling2D, 3), P(layers.AdaptiveMaxPooling2D, 2)]),
    "batch_normalization": ("images", [
        P(layers.Conv2D, 4, 3), P(layers.BatchNormalization, momentum=0.8), P(layers.ReLU)]),
    "batch_normalization_frozen": ("numbers", [
        P(layers.Dense, 8), P(layers.BatchNormalization, trainable=False)]),
    "batch_normalization_masked": ("words", [
        P(layers.Embedding, 20, 4, mask_zero=True), P(layers.BatchNormalization), P(layers.GRU, 4)]),
    "layer_normalization": ("numbers", [P(layers.Dense, 8), P(layers.LayerNormalization)]),
    "group_normalization": ("images", [P(layers.Conv2D, 6, 3), P(layers.GroupNormalization, 3)]),
    "rms_normalization": ("numbers", [P(layers.Dense, 8), P(layers.RMSNormalization)]),
    "unit_normalization": ("numbers", [P(layers.Dense, 8), P(layers.UnitNormalization)]),
    "spectral_normalization": ("numbers", [P(layers.SpectralNormalization, P(layers.Dense, 8))]),
    "simple_rnn": ("sequences", [P(layers.SimpleRNN, 5, return_sequences=True), P(layers.SimpleRNN, 4)]),
    "lstm": ("sequences", [P(layers.LSTM, 5, return_sequences=True, go_backwards=True), P(layers.LSTM, 4)]),
    "lstm_dropout": ("sequences", [P(layers.LSTM, 5, dropout=0.2, recurrent_dropout=0.2, seed=3)]),
    "gru": ("sequences", [P(layers.GRU, 5, unroll=True), P(layers.Dense, 4)]),
    "gru_reset_before": ("sequences", [P(layers.GRU, 5, reset_after=False)]),
    "bidirectional": ("sequences", [
        P(layers.Bidirectional, P(layers.LSTM, 4, return_sequences=True), merge_mode="sum"),
        P(layers.Bidirectional, P(layers.GRU, 4))]),
    "bidirectional_masked": ("words", [
        P(layers.Embedding, 20, 4, mask_zero=True), P(layers.Bidirectional, P(layers.LSTM, 4))]),
    "masking": ("ended", [P(layers.Masking, 0.0), P(layers.SimpleRNN, 4)]),
    "stacked_cells": ("sequences", [P(layers.RNN, [P(layers.LSTMCell, 4), P(layers.GRUCell, 3)])]),
    "conv_lstm": ("clips", [P(layers.ConvLSTM2D, 3, 3)]),
    "time_distributed": ("sequences", [P(layers.TimeDistributed, P(layers.Dense, 3)), P(layers.LSTM, 3)]),
    "embedding": ("words", [P(layers.Embedding, 20, 4), P(layers.GlobalAveragePooling1D)]),
    "einsum_dense": ("sequences", [P(layers.EinsumDense, "abc,cd->abd", (8, 5), bias_axes="d")]),
    "dropout": ("numbers", [P(layers.Dense, 16, "relu"), P(layers.Dropout, 0.3, seed=1)]),
    "dropout_unseeded": ("numbers", [P(layers.Dense, 16, "relu"), P(layers.Dropout, 0.3)]),
    "spatial_dropout": ("images", [P(layers.Conv2D, 8, 3), P(layers.SpatialDropout2D, 0.3, seed=1)]),
    "noise": ("numbers", [
        P(layers.GaussianNoise, 0.1, seed=1), P(layers.Dense, 8, "selu"),
        P(layers.GaussianDropout, 0.2, seed=2), P(layers.AlphaDropout, 0.2, seed=3)]),
    "activity_regularization": ("numbers", [
        P(layers.Dense, 8), P(layers.ActivityRegularization, 0.01, 0.01)]),
    "activations": ("numbers", [
        P(layers.Dense, 8), P(layers.PReLU), P(layers.Dense, 8), P(layers.LeakyReLU, 0.1), P(layers.Dense, 8, "gelu"),
        P(layers.ELU), P(layers.Dense, 8, "mish"), P(layers.Softmax)]),
    "reshaping": ("images", [
        P(layers.Conv2D, 4, 3), P(layers.ZeroPadding2D, 1),
        P(layers.UpSampling2D, 2, interpolation="bilinear"), P(layers.Cropping2D, 2),
        P(layers.Permute, (3, 1, 2)), P(layers.Reshape, (4, -1))]),
    "regularizers": ("numbers", [
        P(layers.Dense, 8, kernel_regularizer="l2", bias_regularizer="l1"),
        P(layers.Dense, 8, kernel_regularizer=P(keras.regularizers.L1L2, 0.01, 0.02)),
        P(layers.Dense, 8, kernel_regularizer=P(keras.regularizers.OrthogonalRegularizer)),
        P(layers.Dense, 8, activity_regularizer="l2")]),
    "constraints": ("numbers", [
        P(layers.Dense, 8, kernel_constraint=P(keras.constraints.MaxNorm, 0.5)),
        P(layers.Dense, 8, kernel_constraint="non_neg", bias_constraint="non_neg"),
        P(layers.Dense, 8, kernel_constraint="unit_norm"),
        P(layers.Dense, 8, kernel_constraint=P(keras.constraints.MinMaxNorm, 0.2, 0.8, rate=0.5))]),
    "rescaling": ("pixels", [
        P(layers.Rescaling, 1 / 127.5, offset=-1.0), P(layers.Resizing, 6, 6), P(layers.CenterCrop, 4, 4),
        P(layers.Conv2D, 3, 3)]),
    "augmentation": ("pixels", [
        P(layers.RandomFlip, seed=1), P(layers.RandomRotation, 0.1, seed=2),
        P(layers.RandomTranslation, 0.1, 0.1, seed=3), P(layers.RandomZoom, 0.1, seed=4),
        P(layers.RandomContrast, 0.2, seed=5), P(layers.RandomBrightness, 0.1, seed=6),
        P(layers.Rescaling, 1 / 255), P(layers.Conv2D, 4, 3)]),
    "normalization": ("numbers", [P(adapted, P(layers.Normalization)), P(layers.Dense, 8, "relu")]),
    "discretization": ("numbers", [
        P(layers.Discretization, bin_boundaries=[-1.0, 0.0, 1.0]), P(layers.Embedding, 4, 3)]),
    "category_encoding": ("words", [P(layers.CategoryEncoding, 20, output_mode="count")]),
    "hashing": ("words", [P(layers.Hashing, 8), P(layers.Embedding, 8, 3)]),
    "integer_lookup": ("words", [
        P(layers.IntegerLookup, vocabulary=[1, 2, 3, 5, 8]), P(layers.Embedding, 6, 3)]),
    "spectrogram": ("tones", [
        P(layers.Reshape, (400, 1)), P(layers.STFTSpectrogram, frame_length=64, frame_step=32, fft_length=64)]),
    "mel_spectrogram": ("tones", [
        P(layers.MelSpectrogram, fft_length=64, sequence_stride=32, num_mel_bins=8, sampling_rate=400)]),
}
# fmt: on


def stacked(data: str, parts: list[P], optimizer: Any = "adam", policy: str = "float32") -> Case:
    """A classifier with these layers and a dense layer."""
    x = DATA[data]()
    with export.dtype_policy(policy):
        head = [layers.Flatten(), layers.Dense(3, "softmax", dtype="float32")]
        model = keras.Sequential(
            [keras.Input(x.shape[1:], dtype=x.dtype.name), *made(parts), *head]
        )
    model.compile(made(optimizer), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, x, classes(3))


def classified(x: Any, inputs: Any, output: Any, **options: Any) -> Case:
    """A classifier with these inputs and this output."""
    model = keras.Model(inputs, layers.Dense(3, "softmax")(output))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, x, classes(3), **options)


def residual() -> Case:
    """Residual blocks, whose sums TensorFlow rewrites where it knows their shapes"""
    x = y = keras.Input((8, 8, 3))
    for _ in range(2):
        branch, short = y, layers.BatchNormalization()(layers.Conv2D(8, 1)(y))
        for _ in range(2):
            branch = layers.Conv2D(8, 3, padding="same")(layers.ReLU()(branch))
            branch = layers.BatchNormalization()(branch)
        y = layers.ReLU()(layers.Add()([short, branch]))
    return classified(normal(8, 8, 3), x, layers.GlobalAveragePooling2D()(y), micro_batches=False)


def two_inputs() -> Case:
    """Two inputs by name, and every layer that merges."""
    a, b = keras.Input((6,), name="a"), keras.Input((4,), name="b")
    p, q = layers.Dense(5)(a), layers.Dense(5)(b)
    merged = [
        layer()([p, q])
        for layer in (
            layers.Add,
            layers.Subtract,
            layers.Multiply,
            layers.Average,
            layers.Maximum,
            layers.Minimum,
        )
    ]
    merged.append(layers.Dot(1, normalize=True)([p, q]))
    x = {"a": normal(6), "b": normal(4)}
    return classified(x, [a, b], layers.Concatenate()(merged))


def keyed_inputs() -> Case:
    """A dict of inputs, one of them of integers."""
    inputs = {"size": keras.Input((6,)), "kind": keras.Input((), dtype="int64")}
    kind = layers.Embedding(4, 3)(inputs["kind"])
    x = {"size": normal(6), "kind": classes(4)}
    return classified(x, inputs, layers.Concatenate()([inputs["size"], kind]))


def nested() -> Case:
    """A functional model of a Sequential that contains a model."""
    inner = keras.Sequential([keras.Input((6,)), dense(5, "relu"), layers.BatchNormalization()])
    x = keras.Input((6,), name="x")
    return classified(normal(6), x, layers.Add()([inner(x), layers.Dense(5)(x)]))


def shared() -> Case:
    """Layers and a model that are used twice."""
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    tower = keras.Sequential(
        [layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(4)]
    )
    x = {"a": normal(6), "b": normal(6)}
    return classified(x, [a, b], layers.Subtract()([tower(a), tower(b)]))


def frozen() -> Case:
    """Fine-tuning: a frozen model in inference mode under a new head."""
    base = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten()]
    )
    base.trainable = False
    x = keras.Input((8, 8, 3), name="x")
    return classified(normal(8, 8, 3), x, layers.Dropout(0.2, seed=1)(base(x, training=False)))


def transformer() -> Case:
    """A block with `MultiHeadAttention`, masked and causal."""
    x = keras.Input((7,), name="x", dtype="int64")
    hidden = layers.Embedding(20, 8, mask_zero=True)(x)
    attention = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=1)
    hidden = layers.LayerNormalization()(hidden + attention(hidden, hidden, use_causal_mask=True))
    hidden = layers.LayerNormalization()(hidden + layers.Dense(8)(layers.Dense(16, "gelu")(hidden)))
    return classified(words(), x, layers.GlobalAveragePooling1D()(hidden))


def attentions() -> Case:
    """`Attention`, `AdditiveAttention` and `GroupQueryAttention`."""
    x = keras.Input((8, 4), name="x")
    found = [
        layers.Attention(use_scale=True, score_mode="concat")([x, x]),
        layers.AdditiveAttention()([x, x]),
        layers.GroupQueryAttention(4, 4, 2)(x, x),
    ]
    return classified(normal(8, 4), x, layers.Flatten()(layers.Concatenate()(found)))


def language_model() -> Case:
    """Tied embeddings (`ReversibleEmbedding`), masked, with logits for each token."""
    x = keras.Input((7,), name="x", dtype="int64")
    table = layers.ReversibleEmbedding(20, 8, mask_zero=True)
    model = keras.Model(x, table(layers.GRU(8, return_sequences=True)(table(x)), reverse=True))
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["sparse_categorical_accuracy"])
    return Case(model, words(), classes(20, 7))


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
    model = masked().model
    metrics = [TokenF1(average=kind, name=kind) for kind in ("micro", "macro")]
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy", *metrics])
    return Case(model, words(), np.eye(3, dtype="float32")[classes(3, 7)])


class Subclass(keras.Model):
    """A model without keras.Input."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = layers.Dense(8), layers.Dense(3, "softmax")
        self.normal, self.drop = layers.BatchNormalization(), layers.Dropout(0.3, seed=1)

    def call(self, x: Any, training: bool = False) -> Any:
        hidden = self.drop(self.normal(self.hidden(x), training=training), training=training)
        return self.head(ops.relu(hidden))


def subclass() -> Case:
    """A subclass of `Model` with dropout and batch normalization."""
    model = Subclass()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3), inputs={"x": "float32[6]"})


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


def lora() -> Case:
    """`enable_lora`."""
    x = keras.Input((6,), name="x")
    layer = layers.Dense(8, "relu")
    case = classified(normal(6), x, layer(x))
    layer.enable_lora(2)
    case.model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return case


def quantized_lora() -> Case:
    """`quantize("int8")` and `enable_lora`."""
    case = lora()
    case.model.quantize("int8")
    case.model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return case


def float64() -> Case:
    """The policy `float64`."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        model = dense()
    finally:
        keras.config.set_dtype_policy(before)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6).astype("float64"), classes(3))


def compiled(**options: Any) -> Case:
    """An option of `compile` for speed."""
    model = dense()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], **options)
    return Case(model, normal(6), classes(3))


def binary_class_weights() -> Case:
    """`class_weight` of labels of one column."""
    model = dense(1, "sigmoid")
    model.compile("adam", "binary_crossentropy", weighted_metrics=["accuracy"])
    case = Case(model, normal(6), classes(2, 1).astype("float32"), sample_weight=True)
    case.class_weight = {0: 0.5, 1: 3.0}
    return case


def weighted_outputs() -> Case:
    """Losses, `loss_weights` and metrics by output."""
    case = several_outputs()
    case.model.compile(
        "adam",
        {"kind": "sparse_categorical_crossentropy", "size": "huber"},
        loss_weights={"kind": 0.3, "size": 2.0},
        metrics={"kind": ["accuracy"], "size": ["mae", metrics.RootMeanSquaredError()]},
    )
    return case


def changed_rate() -> Case:
    """`learning_rate` of a compiled optimizer assigned before training."""
    model = dense()
    model.compile(optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    model.optimizer.learning_rate = 0.01
    return Case(model, normal(6), classes(3))


def excluded() -> Case:
    """`exclude_from_weight_decay`."""
    model = dense()
    optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return Case(model, normal(6), classes(3))


def built() -> Case:
    """`ScheduleFreeAdamW`, with `optimizer.build(model.trainable_variables)` before `fit`."""
    case = optimized(P(optimizers.ScheduleFreeAdamW, 0.01, warmup_steps=3))
    case.model.optimizer.build(case.model.trainable_variables)
    return case


def ctc() -> Case:
    """`CTC` of sequences of logits."""
    model = keras.Sequential(
        [keras.Input((8, 4)), layers.LSTM(8, return_sequences=True), layers.Dense(5)]
    )
    model.compile("adam", losses.CTC())
    return Case(model, normal(8, 4), classes(4, 3) + 1, labels={"y": "int64[3]"})


# Refused cases.


def by_class_f1() -> Case:
    """F1 by class."""
    model = dense()
    model.compile("adam", "categorical_crossentropy", metrics=[metrics.F1Score()])
    return Case(model, normal(6), np.eye(3, dtype="float32")[classes(3)])


def half_weights() -> Case:
    """Weights of float16."""
    x = keras.Input((6,), name="x")
    return classified(normal(6), x, layers.Dense(8, dtype="float16")(x))


class OwnFit(keras.Model):
    """A model that drives its training itself."""

    def fit(self, *args: Any, **options: Any) -> Any:
        return super().fit(*args, **options)


def own_fit() -> Case:
    """A model that overrides `fit`."""
    x = keras.Input((6,), name="x")
    model = OwnFit(x, layers.Dense(3, "softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return Case(model, normal(6), classes(3))


def unused() -> Case:
    """Weights that do not affect the loss."""
    case = ema_unused()
    case.options = {}
    return case


def python_code() -> Case:
    """A layer that calls Python."""
    x = keras.Input((6,), name="x")
    double = layers.Lambda(
        lambda v: tf.ensure_shape(tf.numpy_function(np.tanh, [v], tf.float32), (None, 6))
    )
    return classified(normal(6), x, double(x))


def application(name: str, size: int, **options: Any) -> Case:
    model = getattr(keras.applications, name)(
        input_shape=(size, size, 3), weights=None, classes=3, **options
    )
    model.compile(optimizers.SGD(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(size, size, 3), classes(3), micro_batches=False)


def hub(name: str, task: str, **options: Any) -> Case:
    """An architecture of KerasHub from a small configuration."""
    import keras_hub

    backbone = getattr(keras_hub.models, f"{name}Backbone")(**options)
    kind = getattr(keras_hub.models, f"{name}{task}", None) or getattr(keras_hub.models, task)
    model = kind(backbone, **({} if task == "CausalLM" else {"num_classes": 3}), preprocessor=None)
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    if task == "CausalLM":
        model.compile("adam", loss)  # weighted_metrics is "auto"
    else:
        model.compile("adam", loss, metrics=["accuracy"])
    inputs = model.input
    if not isinstance(inputs, dict):
        return Case(model, normal(*inputs.shape[1:]), classes(3))
    ends = random.integers(3, 9, TRAIN + VALIDATION)[:, None]
    made = {
        "token_ids": classes(50, 8).astype("int32"),
        "segment_ids": classes(2, 8).astype("int32"),
        "padding_mask": (np.arange(8) < ends).astype("int32"),
    }
    # With the length of the text, which Keras reads from the data.
    specs = {name: "int32[8]" for name in inputs}
    x = {name: made[name] for name in inputs}
    if task != "CausalLM":
        return Case(model, x, classes(3), inputs=specs)
    weight = made["padding_mask"].astype("float32")
    return Case(model, x, classes(50, 8), weight, inputs=specs, sample_weight="[8]")


def rqvae() -> Case:
    """`RQVAEBackbone`, whose `compute_loss` comes from KerasHub"""
    from keras_hub.src.models.rqvae.rqvae_backbone import RQVAEBackbone

    model = RQVAEBackbone(6, [8], 4, [8], 16, 2)
    model.compile("adam")
    return Case(model, normal(6))


TEXT = {"vocabulary_size": 50, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
Cases = dict[str, tuple[str, Callable[[], Case]]]


def functions(*builds: Callable[[], Case]) -> Cases:
    """Cases by the names of functions, with their docstrings."""
    return {build.__name__: (build.__doc__.rstrip("."), build) for build in builds}


def stacks(names: list[str], **options: Any) -> Cases:
    """More stacks of layers, with other options."""
    (what,) = options.values()
    return {
        f"{name}_{what if isinstance(what, str) else what.func.__name__.lower()}": (
            f"{LAYERS[name][0]}: `{name}`, `{text(what) if isinstance(what, P) else what}`",
            P(stacked, *LAYERS[name], **options),
        )
        for name in names
    }


# Every run of the tests trains the first group, and `make conformance` the others.
GROUPS: dict[str, Cases] = {
    "Metrics, steps and outputs": functions(
        accuracy,
        stateful,
        weighted,
        class_weights,
        masked,
        several_outputs,
        keyed_outputs,
        ema,
        ema_best,
        own_tests,
        add_loss,
        text_classifier,
        columns,
        stateful_rnn,
        residual,
    ),
    "Own steps, losses and metrics": functions(
        crossentropy_by_name,
        mean_iou,
        masked_f1,
        keyed_step,
        own_optimizer,
        own_loss_of_one,
        no_labels,
        layer_metric,
        ema_overwritten,
        ema_unused,
        distillation,
        distiller,
        own_metrics,
        gan,
        weighted_elements,
    ),
    "Optimizers and schedules": {
        **{name: (f"`{text(x)}`", P(optimized, x)) for name, x in OPTIMIZERS.items()},
        **functions(changed_rate, excluded, built),
    },
    "Losses": {
        **{f"loss_{n}": (f"`{text(x)}`", P(with_loss, k, x)) for n, (k, x) in LOSSES.items()},
        **{
            f"losses_of_{kind}": (", ".join(f"`{n}`" for n in names), P(by_name, kind, names))
            for kind, names in LOSS_NAMES.items()
        },
        **functions(ctc, weighted_outputs),
    },
    "Metrics, without and with sample weights": {
        f"metrics_of_{kind}": (
            ", ".join(f"`{x}`" if isinstance(x, str) else f"`{text(x)}`" for x in metrics),
            P(measured, kind, metrics),
        )
        for kind, metrics in METRICS.items()
    },
    "Layers": {
        name: (f"{data}: {', '.join(f'`{text(x)}`' for x in parts)}", P(stacked, data, parts))
        for name, (data, parts) in LAYERS.items()
    },
    "Models": {
        **functions(
            two_inputs,
            keyed_inputs,
            nested,
            shared,
            frozen,
            transformer,
            attentions,
            language_model,
            binary_class_weights,
            subclass,
            own_layer,
            lora,
            quantized_lora,
        ),
        "steps_per_execution": ("`steps_per_execution=4`", P(compiled, steps_per_execution=4)),
        "jit_compile": ("`jit_compile=True`", P(compiled, jit_compile=True)),
        **stacks(["embedding"], optimizer=P(optimizers.Adam, 0.01, clipnorm=0.01)),
        **stacks(["embedding"], optimizer=P(optimizers.Adagrad, 0.1)),
        **stacks(["conv2d", "batch_normalization", "lstm", "dropout"], policy="mixed_bfloat16"),
        **stacks(["conv2d", "batch_normalization", "lstm", "dropout"], policy="mixed_float16"),
        **functions(float64),
    },
    "keras.applications, `weights=None`": {
        name.lower(): (
            f"`{name}`, images of {size} x {size}",
            P(application, name, size, **options),
        )
        for name, size, options in (
            ("MobileNetV2", 32, {"alpha": 0.35}),
            ("MobileNetV3Small", 32, {}),
            ("DenseNet121", 32, {}),
            ("EfficientNetB0", 32, {}),
            ("EfficientNetV2B0", 32, {}),
            ("ResNet50", 32, {}),
            ("ResNet50V2", 32, {}),
            ("ConvNeXtTiny", 32, {}),
            ("NASNetMobile", 32, {}),
            ("Xception", 71, {}),
        )
    },
    "KerasHub, from small configurations": {
        f"{name.lower()}": (f"`{name}Backbone`, `{task}`", P(hub, name, task, **options))
        for name, task, options in (
            ("Bert", "TextClassifier", {**TEXT, "num_heads": 2}),
            ("DistilBert", "TextClassifier", {**TEXT, "num_heads": 2}),
            ("Roberta", "TextClassifier", {**TEXT, "num_heads": 2}),
            ("GPT2", "CausalLM", {**TEXT, "num_heads": 2}),
            ("Llama", "CausalLM", {**TEXT, "num_query_heads": 2, "num_key_value_heads": 1}),
            (
                "Gemma",
                "CausalLM",
                {**TEXT, "num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
            ),
            (
                "ViT",
                "ImageClassifier",
                {
                    "image_shape": (16, 16, 3),
                    "patch_size": 4,
                    "num_layers": 2,
                    "num_heads": 2,
                    "hidden_dim": 16,
                    "mlp_dim": 32,
                },
            ),
            (
                "ResNet",
                "ImageClassifier",
                {
                    "image_shape": (32, 32, 3),
                    "input_conv_filters": [64],
                    "input_conv_kernel_sizes": [7],
                    "stackwise_num_filters": [64, 64],
                    "stackwise_num_blocks": [1, 1],
                    "stackwise_num_strides": [1, 2],
                    "block_type": "basic_block",
                },
            ),
        )
    }
    | functions(rqvae),
    "Refused": functions(by_class_f1, half_weights, own_fit, unused, python_code),
}

# Refused cases, and what to use instead.
REFUSED: dict[str, str] = {
    "by_class_f1": 'Use `average="macro"` or `"micro"`',
    "half_weights": "Use `mixed_float16`, which keeps weights in float32",
    "own_fit": "Override `train_step`",
    "unused": "Export with `--allow-unused`, as `ema_unused`",
    "python_code": "Do this when preparing the data",
    "loss_unreduced": "Leave `reduction` at its default",
}

METRIC_LIMIT, WEIGHT_LIMIT = 1e-5, 1e-6
# For a weight near 1 that moves by 0.01, the last digit alone is 6e-6 to 1.2e-5 of the change.
WEIGHT_UNITS = 1

# The limits of metrics and weights for cases with larger differences, with the reason.
DIFFERS: dict[str, tuple[float, float, str]] = {
    "schedule_free_adamw": (
        1.0,
        2.0,
        (
            "A fault of Keras: it builds the optimizer while it traces the first step, so its "
            "averages do not start from the weights. The weights jump to about 0. With steadyfit "
            "they do not, and neither do they in the case `built`"
        ),
    ),
    "transformer": (
        METRIC_LIMIT,
        1e-4,
        "The gradient of the key's bias is zero except for rounding, which Adam enlarges",
    ),
    "llama": (METRIC_LIMIT, 1e-5, "The last bits of weights: see Rounding of large models"),
    "convnexttiny": (
        METRIC_LIMIT,
        1e-5,
        (
            "The last bits of weights, also without Grappler, without oneDNN, and in one thread; "
            "the cause is not known"
        ),
    ),
    **{
        name: (1e3, 10.0, "Rounding, amplified: see Rounding of large models")
        for name in ("efficientnetb0", "efficientnetv2b0")
    },
    "jit_compile": (METRIC_LIMIT, 1e-4, "Keras then uses XLA, which rounds differently"),
    "loss_mean_squared_logarithmic_error": (
        METRIC_LIMIT,
        1e-5,
        (
            "The weights move little: this is the last bit of one. Keras with and without "
            "TensorFlow's graph optimizer differs by as much"
        ),
    ),
}


def weights(model: Any) -> dict[str, np.ndarray]:
    """The variables that training changes, except seeds; by position, since names may repeat."""
    return {f"{i}": w.numpy() for i, w in enumerate(model.weights)}


def make(folder: pathlib.Path, build: Callable[[], Case]) -> dict[str, Any]:
    """Export a case, train it with Keras, and write the results."""
    train, rest = slice(0, TRAIN), slice(TRAIN, None)
    case = seeded(build)
    if case.whole:
        train, rest = slice(0, 4 * BATCH), slice(TRAIN, TRAIN + 2 * BATCH)
    own = export._own_methods(case.model)
    try:
        export.export(case.model, folder / "model", check=False, **case.options)
    except (export.Refusal, export.UsageError) as error:
        return {"refused": getattr(error, "what", str(error))}
    # Keras trains a separate model, which the export cannot have changed.
    model = seeded(build).model
    kind = "csv" if case.table else "npz"
    for name, part in (("train", train), ("validation", rest)):
        fields = case.fields(part)
        texts = {n: f.astype(str) if f.dtype.kind == "O" else f for n, f in fields.items()}
        np.savez(folder / f"{name}.npz", **texts)
        if not case.table:
            continue
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(fields)
            table.writerows(zip(*(np.ravel(f).tolist() for f in fields.values()), strict=True))
    before = weights(case.model)
    y = case.y
    if isinstance(y, dict) and not case.keyed:
        y = list(y.values())
    callbacks = []
    if case.patience is not None:
        callbacks = [
            keras.callbacks.EarlyStopping(
                "val_loss", patience=case.patience, restore_best_weights=True
            )
        ]
    validates = case.validates and y is not None and ("train_step" not in own or "test_step" in own)
    history = model.fit(
        case.part(case.x, train),
        None if y is None else case.part(y, train),
        class_weight=case.class_weight or None,
        callbacks=callbacks,
        sample_weight=None if case.weight is None else case.part(case.weight, train),
        validation_data=tuple(
            case.part(v, rest) for v in (case.x, y, case.weight) if v is not None
        ) if validates else None,
        batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0,
    )  # fmt: skip
    np.savez(folder / "before.npz", **before)
    np.savez(folder / "after.npz", **weights(model))
    arguments = ["--shuffle=false", "--batch", str(BATCH), "--epochs", str(EPOCHS)]
    arguments += ["--data", str(folder / f"train.{kind}")]
    if validates:
        arguments += ["--validation", str(folder / f"validation.{kind}")]
    (folder / "arguments.json").write_text(json.dumps(arguments + case.arguments()))
    # For each output, Keras reports a mean over batches instead of samples; the last is smaller.
    outputs = case.y if isinstance(case.y, dict) else {}
    names = set() if own else {*outputs, *(getattr(model, "output_names", None) or [])}
    means = {f"{prefix}{name}_loss" for name in names for prefix in ("", "val_")}
    return {
        "paths": [w.path for w in model.weights],
        "history": {
            name: [float(v) for v in values]
            for name, values in history.history.items()
            if name not in means
        },
    }


def weight_difference(folder: pathlib.Path, paths: list[str]) -> tuple[float, float]:
    """The largest difference of a weight divided by the largest change of a weight. For weights
    beyond WEIGHT_LIMIT, the largest difference in units in the last place."""
    reader = tf.train.load_checkpoint(folder / "out" / "variables" / "variables")
    before, after = np.load(folder / "before.npz"), np.load(folder / "after.npz")
    pairs = []
    moved = 0.0
    seen: dict[str, int] = {}
    for i, path in enumerate(paths):
        seen[path] = seen.get(path, 0) + 1
        key = path if seen[path] == 1 else f"{path}#{seen[path]}"
        ours = reader.get_tensor(f"model/{key.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE")
        was, theirs = before[f"{i}"].astype("float64"), after[f"{i}"].astype("float64")
        moved = max(moved, float(np.max(np.abs(theirs - was), initial=0)))
        kind = np.float64 if after[f"{i}"].dtype == np.float64 else np.float32
        pairs.append((theirs, np.abs(theirs - ours), np.spacing(np.abs(theirs).astype(kind))))
    differs = units = 0.0
    for theirs, off, spacing in pairs:
        if not np.isfinite(off).all():
            return np.inf, np.inf
        differs = max(differs, float(np.max(off, initial=0)))
        beyond = off > WEIGHT_LIMIT * moved
        units = max(units, float(np.max(off[beyond] / spacing[beyond], initial=0)))
    return differs / moved, float(np.ceil(units))


def metric_difference(folder: pathlib.Path, history: dict[str, list[float]]) -> tuple[float, str]:
    """The largest relative difference of a metric in an epoch, and the metric's name."""
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    worst, which = 0.0, ""
    for name, theirs in history.items():
        ours = [r[name] for r in records if r.get(name) is not None]
        if len(ours) != len(theirs):
            return np.inf, f"{name} of {len(ours)} epochs"
        for a, b in zip(theirs, ours, strict=True):
            difference = 0.0 if a == b else abs(a - b) / max(1e-3, abs(a))
            if not difference <= worst:
                worst, which = difference, name
    return worst, which


def compare(folder: pathlib.Path, name: str, what: str) -> dict[str, Any]:
    """The result of a case, and the unexpected part of it."""
    row: dict[str, Any] = {"case": name, "what": what, "problem": ""}
    made = json.loads((folder / "keras.json").read_text())
    if "failed" in made:
        return {**row, "problem": made["failed"]}
    if "refused" in made:
        unexpected = "" if name in REFUSED else f"refused: {made['refused']}"
        return {**row, "refused": made["refused"], "note": REFUSED.get(name), "problem": unexpected}
    if name in REFUSED:
        return {**row, "problem": "exported, though REFUSED names it"}
    if not (folder / "out").exists():
        return {**row, "problem": "steadyfit did not train it"}
    metrics, weights, row["note"] = DIFFERS.get(name, (METRIC_LIMIT, WEIGHT_LIMIT, None))
    row["metrics"] = len(made["history"])
    row["difference"], row["worst"] = metric_difference(folder, made["history"])
    row["weights"], row["units"] = weight_difference(folder, made["paths"])
    if not row["difference"] <= metrics:
        row["problem"] += f"{row['worst']} differs by {row['difference']:.1e}. "
    if not (row["weights"] <= weights or row["units"] <= WEIGHT_UNITS):
        row["problem"] += (
            f"Weights differ by {row['weights']:.1e} of what moved, {row['units']:g} units."
        )
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in groups, as Markdown."""
    lines = [versions(), "", summary(rows), ""]
    found = {row["case"]: row for row in rows}
    for title, cases in GROUPS.items():
        lines += [f"### {title}", ""]
        lines += ["| case | what it is | metrics, largest relative difference | weights |"]
        lines += ["|---|---|---|---|"]
        for row in (found[name] for name in cases):
            metrics = weights = "-"
            if "metrics" in row:
                number = row["metrics"]
                metrics = f"{number} metric{'s' * (number != 1)}, {amount(row['difference'])}"
                weights = amount(row["weights"])
                if 0 < row["units"] < 100:
                    weights += f", {row['units']:g} ulp"
            elif "refused" in row:
                metrics = f"refused: {row['refused']}"
            what = f"{row['what']}. {row['note']}" if row.get("note") else row["what"]
            lines.append(f"| `{row['case']}` | {what} | {metrics} | {weights} |")
        lines.append("")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """The number of equal cases."""
    compared = [r for r in rows if "metrics" in r]
    close = [r for r in compared if r["difference"] <= METRIC_LIMIT]
    within = sum(r["weights"] <= WEIGHT_LIMIT for r in close)
    last = sum(r["weights"] > WEIGHT_LIMIT and r["units"] <= WEIGHT_UNITS for r in close)
    refused = sum("refused" in r for r in rows)
    share = (within + last) / max(len(compared), 1)
    return (
        f"{len(compared)} cases are compared. {within} are within the limits, {last} more except "
        f"for the last place of some weights ({share:.1%} together), and "
        f"{len(compared) - within - last} differ for a stated reason. {refused} are refused."
    )


def amount(difference: float) -> str:
    return f"{difference:.1e}" if difference else "equal"


def versions() -> str:
    """The versions that computed the values."""
    import keras_hub
    from tensorflow.python.util import _pywrap_util_port

    onednn = "on" if _pywrap_util_port.IsMklEnabled() else "off"
    return (
        f"TensorFlow {tf.__version__}, Keras {keras.__version__}, KerasHub "
        f"{keras_hub.__version__}, oneDNN {onednn}."
    )


MARK = "<!-- what `make conformance` found -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["make", "compare"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("case", nargs="*", help="only these")
    parser.add_argument("--all", action="store_true", help="not the first group only")
    parser.add_argument(
        "--table", type=pathlib.Path, help="a page, to write its table of all cases"
    )
    arguments = parser.parse_args()
    groups = list(GROUPS.values())
    cases = dict(item for g in groups for item in g.items())
    assert len(cases) == sum(map(len, groups)), "two cases of one name"
    names = arguments.case or (cases if arguments.all else groups[0])
    rows = []
    for name in names:
        what, build = cases[name]
        folder = arguments.folder / name
        if arguments.what == "compare":
            rows.append(compare(folder, name, what))
            continue
        folder.mkdir(parents=True)
        start = time.monotonic()
        try:
            result = make(folder, build)
        except Exception:  # noqa: BLE001 - the other cases continue
            result = {"failed": traceback.format_exc()}
            (folder / "arguments.json").unlink(missing_ok=True)
        (folder / "keras.json").write_text(json.dumps(result, indent=1))
        print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    if arguments.what == "compare":
        print(json.dumps(rows))
    if arguments.table:
        before, _, after = arguments.table.read_text().split(MARK)
        arguments.table.write_text(MARK.join([before, table(rows), after]))


if __name__ == "__main__":
    main()
