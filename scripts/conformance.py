#!/usr/bin/env python3
"""Models trained by Keras fit, to be trained again by steadyfit and compared.

``conformance.py make DIR`` writes for each case a folder with the exported model, the data,
and ``keras.json``: the history of ``fit`` on the same weights, data and order, with a smaller
last batch. ``conformance.py compare DIR`` reads the model ``out`` that steadyfit trained into
each folder, and prints as JSON the largest difference of a weight, relative to how far training
moved the weights.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import sys
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
# How many samples there are: the last batch has 8, or 4 in validation.
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
    """A case that is the same each time that it is made."""
    global random
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(5)
    return build()


def normal(*shape: int) -> np.ndarray:
    return random.normal(size=(TRAIN + VALIDATION, *shape)).astype("float32")


def classes(n: int, *shape: int) -> np.ndarray:
    return random.integers(0, n, (TRAIN + VALIDATION, *shape)).astype("int64")


def dense(units: int = 3, activation: str | None = "softmax") -> keras.Model:
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(units, activation)]
    )


def accuracy() -> Case:
    model = dense()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


def stateful() -> Case:
    """Metrics that are no means over batches."""
    m = keras.metrics
    model = dense(1, "sigmoid")
    f1 = m.F1Score(average="micro", threshold=0.5)
    curves = [m.AUC(), m.AUC(curve="PR", name="pr")]
    metrics = [*curves, m.Precision(), m.Recall(), m.RootMeanSquaredError(), f1]
    model.compile("adam", "binary_crossentropy", metrics=metrics)
    return Case(model, normal(6), classes(2, 1).astype("float32"))


def crossentropy_by_name() -> Case:
    model = dense()
    metrics = ["sparse_categorical_crossentropy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    model.compile("adam", "crossentropy", metrics=metrics)
    return Case(model, normal(6), classes(3))


def mean_iou() -> Case:
    model = dense()
    metric = keras.metrics.MeanIoU(3, sparse_y_pred=False)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[metric])
    return Case(model, normal(6), classes(3))


def weighted() -> Case:
    """Metrics with and without the weights of the samples."""
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
    model = dense()
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    case = Case(model, normal(6), classes(3), sample_weight=True)
    case.class_weight = {0: 0.5, 2: 3.0}
    return case


def masked() -> Case:
    """A tagger of sequences that end early."""
    words = classes(20, 7)
    words[np.arange(7) >= random.integers(2, 8, TRAIN + VALIDATION)[:, None]] = 0
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int64"),
            layers.Embedding(20, 8, mask_zero=True),
            layers.LSTM(8, return_sequences=True),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, words, classes(3, 7))


def several_outputs() -> Case:
    """A list of metrics has one for each output."""
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
    """Lists of losses and metrics go by the sorted keys of a dict of outputs."""
    x = keras.Input((6,), name="x")
    hidden = layers.Dense(8, activation="relu")(x)
    model = keras.Model(x, {"size": layers.Dense(2)(hidden), "far": layers.Dense(2)(hidden)})
    model.compile("adam", ["mse", "mae"], metrics=["mae", "mse"])
    case = Case(model, normal(6), {"far": normal(2), "size": normal(2)})
    case.keyed = True
    return case


class KeyedStep(keras.Model):
    """A subclass with a step of its own, and a dict of outputs in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = layers.Dense(2), layers.Dense(2)

    def call(self, x: Any) -> Any:
        return {"size": self.one(x), "far": self.two(x)}

    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((x, y))


def keyed_step() -> Case:
    model = KeyedStep()
    model.compile("adam", {"far": "mse", "size": "mae"})
    case = Case(model, normal(6), {"far": normal(2), "size": normal(2)}, inputs={"x": "float32[6]"})
    case.keyed = True
    return case


class Halved(keras.optimizers.SGD):
    """An optimizer that changes gradients where Keras calls it."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(g / 2, v) for g, v in grads_and_vars])


def own_optimizer() -> Case:
    model = dense()
    model.compile(Halved(0.5), "sparse_categorical_crossentropy")
    return Case(model, normal(6), classes(3))


def own_loss_of_one() -> Case:
    """A method that is set on the model, and not on its class."""
    model = dense()

    def compute_loss(x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred))

    model.compute_loss = compute_loss
    model.compile("adam", "sparse_categorical_crossentropy")
    return Case(model, normal(6), classes(3))


class Contrast(keras.Model):
    """Compares two views of the inputs: a loss of compile, and no labels."""

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
    model = keras.Sequential([keras.Input((6,)), Tally(), layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


def ema(**options: Any) -> Case:
    model = dense()
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, **options)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return Case(model, normal(6), classes(3))


def ema_unused() -> Case:
    """Weights that the loss does not reach come first."""
    x = keras.Input((6,), name="x")
    outputs = [layers.Dense(3, name="idle")(x), layers.Dense(3, "softmax", name="kind")(x)]
    model = keras.Model(x, outputs)
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)
    model.compile(optimizer, [None, "sparse_categorical_crossentropy"])
    case = Case(model, normal(6), classes(3), allow_unused=True)
    case.validates = False
    return case


def ema_best() -> Case:
    """The best weights are those of the epoch, and not their averages."""
    case = ema()
    case.patience = 1
    return case


def ema_overwritten() -> Case:
    return ema(ema_overwrite_frequency=4)


class Distiller(keras.Model):
    """Learns from the labels and from another model."""

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
    model = Distiller()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return Case(model, normal(6), classes(3), inputs={"x": "float32[6]"})


class OwnMetrics(keras.Model):
    """Adds a metric to those of compile."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.highest = keras.metrics.Mean(name="confidence")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.highest.update_state(ops.max(y_pred, axis=-1))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def own_metrics() -> Case:
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
    model = Autoencoder()
    model.compile("adam")
    return Case(model, normal(6), inputs={"x": "float32[6]"})


class GAN(keras.Model):
    """Two networks with an optimizer each, and a step of its own."""

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


def text() -> Case:
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
    """An LSTM that goes on with the state of the batch before."""
    inputs = keras.Input(batch_shape=(BATCH, 7, 6))
    lstm = layers.LSTM(8, stateful=True)
    model = keras.Sequential([inputs, lstm, layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    case = Case(model, normal(7, 6), classes(3))
    case.whole = True
    return case


CASES: tuple[Callable[[], Case], ...] = (
    accuracy,
    stateful,
    crossentropy_by_name,
    mean_iou,
    weighted,
    class_weights,
    masked,
    several_outputs,
    keyed_outputs,
    keyed_step,
    own_optimizer,
    own_loss_of_one,
    no_labels,
    layer_metric,
    ema,
    ema_overwritten,
    ema_unused,
    ema_best,
    distillation,
    own_metrics,
    add_loss,
    gan,
    weighted_elements,
    text,
    columns,
    stateful_rnn,
)


def weights(model: Any) -> dict[str, np.ndarray]:
    """What training changes, but for seeds; by position, as layers may share names."""
    return {f"{i}": w.numpy() for i, w in enumerate(model.weights)}


def make(folder: pathlib.Path, build: Callable[[], Case]) -> None:
    """Export a case, train it with Keras, and write what came of it."""
    train, rest = slice(0, TRAIN), slice(TRAIN, None)
    case = seeded(build)
    if case.whole:
        train, rest = slice(0, 4 * BATCH), slice(TRAIN, TRAIN + 2 * BATCH)
    own = export._own_methods(case.model)
    export.export(case.model, folder / "model", check=False, **case.options)
    # Keras trains a model of its own, which the export cannot have changed.
    model = seeded(build).model
    for name, part in (("train", train), ("validation", rest)):
        fields = case.fields(part)
        if not case.table:
            np.savez(folder / f"{name}.npz", **fields)
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
    evaluates = "train_step" not in own or "test_step" in own
    history = model.fit(
        case.part(case.x, train),
        None if y is None else case.part(y, train),
        class_weight=case.class_weight or None,
        callbacks=callbacks,
        sample_weight=None if case.weight is None else case.part(case.weight, train),
        validation_data=tuple(
            case.part(v, rest) for v in (case.x, y, case.weight) if v is not None
        ) if case.validates and evaluates and y is not None else None,
        batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0,
    )  # fmt: skip
    after = weights(model)
    np.savez(folder / "before.npz", **before)
    np.savez(folder / "after.npz", **after)
    (folder / "paths.json").write_text(json.dumps([w.path for w in model.weights]))
    result = {
        "batch": BATCH,
        "epochs": EPOCHS,
        "validates": case.validates and evaluates and y is not None,
        "arguments": case.arguments(),
        "table": case.table,
        "history": {n: [float(v) for v in values] for n, values in history.history.items()},
    }
    (folder / "keras.json").write_text(json.dumps(result, indent=1))


def compare(folder: pathlib.Path) -> float:
    """The largest difference of a weight, as a part of the largest change of one."""
    reader = tf.train.load_checkpoint(folder / "out" / "variables" / "variables")
    before, after = np.load(folder / "before.npz"), np.load(folder / "after.npz")
    differs = moved = 0.0
    seen: dict[str, int] = {}
    for i, path in enumerate(json.loads((folder / "paths.json").read_text())):
        seen[path] = seen.get(path, 0) + 1
        key = path if seen[path] == 1 else f"{path}#{seen[path]}"
        ours = reader.get_tensor(f"model/{key.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE")
        theirs = after[f"{i}"]
        moved = max(moved, float(np.max(np.abs(theirs - before[f"{i}"]), initial=0)))
        differs = max(differs, float(np.max(np.abs(theirs - ours), initial=0)))
    return differs / moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["make", "compare"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("case", nargs="*", help="only these")
    arguments = parser.parse_args()
    differences = {}
    for build in CASES:
        name = build.__name__
        if arguments.case and name not in arguments.case:
            continue
        folder = arguments.folder / name
        if arguments.what == "compare":
            differences[name] = compare(folder)
            continue
        folder.mkdir(parents=True)
        make(folder, build)
    if differences:
        print(json.dumps(differences))


if __name__ == "__main__":
    main()
