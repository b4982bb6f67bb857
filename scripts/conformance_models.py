"""The data of the cases of conformance.py, and models of Keras's own layers.

Each function makes one case. Its name is that of the case, and its docstring describes it in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

EPOCHS, BATCH = 3, 16
# The number of samples: the last batch has 8, or 4 in validation.
TRAIN, VALIDATION = 72, 36
SPARSE = "sparse_categorical_crossentropy"

ops, layers, losses, metrics, optimizers = keras.ops, keras.layers, keras.losses, keras.metrics, keras.optimizers
random = np.random.default_rng()


class Case:
    """A compiled model with its data by field, and how it is exported."""

    def __init__(self, model: Any, x: Any, y: Any = None, weight: Any = None, **options: Any) -> None:
        self.model, self.x, self.y, self.weight, self.options = model, x, y, weight, options
        self.class_weight: dict[int, float] = {}
        self.keyed = False  # the outputs are a dict
        self.validates = True
        self.patience: int | None = None
        self.table = False  # the data is a CSV file
        self.whole = False  # no batch is smaller

    def having(self, **attributes: Any) -> Case:
        """The case with these attributes."""
        vars(self).update(attributes)
        return self


def seeded(build: Callable[[], Case]) -> Case:
    """Return the case that build makes, with the same random numbers each time."""
    global random
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(5)
    return build()


def random_numbers() -> np.random.Generator:
    """The generator of the data of a case."""
    return random


def normal(*shape: int) -> np.ndarray:
    return random.normal(size=(TRAIN + VALIDATION, *shape)).astype("float32")


def classes(n: int, *shape: int) -> np.ndarray:
    return random.integers(0, n, (TRAIN + VALIDATION, *shape)).astype("int64")


def uniform(*shape: int) -> np.ndarray:
    return random.uniform(0, 2, (TRAIN + VALIDATION, *shape)).astype("float32")


def one_hot(*shape: int) -> np.ndarray:
    return np.eye(3, dtype="float32")[classes(3, *shape)]


def words(rows: int = 20, length: int = 7) -> np.ndarray:
    """Sequences that end early, padded with zeros."""
    found = classes(rows, length)
    found[np.arange(length) >= random.integers(2, length + 1, len(found))[:, None]] = 0
    return found


def dense(units: int = 3, activation: str | None = "softmax") -> keras.Model:
    return keras.Sequential([keras.Input((6,)), layers.Dense(8, activation="relu"), layers.Dense(units, activation)])


def compiled(model: Any, optimizer: Any = "adam", loss: Any = SPARSE, metrics: Any = ("accuracy",), **options: Any):
    """The model, compiled as a classifier by default."""
    model.compile(optimizer, loss, metrics=list(metrics), **options)
    return model


def classifier(*arguments: Any, **options: Any) -> Case:
    """A dense classifier that is compiled with these arguments."""
    return Case(compiled(dense(), *arguments, **options), normal(6), classes(3))


def classified(x: Any, inputs: Any, output: Any, **options: Any) -> Case:
    """A classifier with these inputs and this output."""
    model = keras.Model(inputs, layers.Dense(3, "softmax")(output))
    return Case(compiled(model), x, classes(3), **options)


def of_subclass(model: Any, **options: Any) -> Case:
    """A classifier that is a subclass of Model with its own input."""
    return Case(model, normal(6), classes(3), inputs={"x": "float32[6]"}, **options)


def accuracy() -> Case:
    """A classifier with `accuracy`."""
    return classifier()


def stateful() -> Case:
    """AUC (ROC and PR), precision, recall, RMSE, F1."""
    curves = [metrics.AUC(), metrics.AUC(curve="PR", name="pr"), metrics.Precision(), metrics.Recall()]
    others = [metrics.RootMeanSquaredError(), metrics.F1Score(average="micro", threshold=0.5)]
    model = compiled(dense(1, "sigmoid"), loss="binary_crossentropy", metrics=[*curves, *others])
    return Case(model, normal(6), classes(2, 1).astype("float32"))


def crossentropy_by_name() -> Case:
    """`loss="crossentropy"`, top-k accuracy."""
    return classifier(loss="crossentropy", metrics=[SPARSE, metrics.SparseTopKCategoricalAccuracy(2)])


def mean_iou() -> Case:
    """`MeanIoU`."""
    return classifier("sgd", metrics=[metrics.MeanIoU(3, sparse_y_pred=False)])


def weighted() -> Case:
    """Sample weights, `metrics` and `weighted_metrics`."""
    entropy = metrics.MeanMetricWrapper(losses.sparse_categorical_crossentropy, name="entropy")
    weight = uniform()
    model = compiled(dense(), weighted_metrics=["accuracy", entropy])
    return Case(model, normal(6), classes(3), weight, sample_weight=True)


def class_weights() -> Case:
    """`class_weight`, `weighted_metrics`."""
    model = compiled(dense(), metrics=[], weighted_metrics=["accuracy"])
    case = Case(model, normal(6), classes(3), sample_weight=True)
    return case.having(class_weight={0: 0.5, 2: 3.0})


def tagger() -> keras.Model:
    embedding = layers.Embedding(20, 8, mask_zero=True)
    parts = [embedding, layers.LSTM(8, return_sequences=True), layers.Dense(3, activation="softmax")]
    return keras.Sequential([keras.Input((7,), dtype="int64"), *parts])


def masked() -> Case:
    """An LSTM tagger of masked sequences, `accuracy`."""
    return Case(compiled(tagger()), words(), classes(3, 7))


def several_outputs() -> Case:
    """Two outputs, flat lists of losses and metrics."""
    x = keras.Input((6,), name="x")
    hidden = layers.Dense(8, activation="relu")(x)
    outputs = [layers.Dense(3, "softmax", name="kind")(hidden), layers.Dense(1, name="size")(hidden)]
    model = compiled(keras.Model(x, outputs), loss=[SPARSE, "mse"], metrics=["accuracy", "mae"])
    return Case(model, normal(6), {"kind": classes(3), "size": normal(1)})


def keyed_outputs() -> Case:
    """A dict of outputs, with lists of losses and metrics in the order of its sorted keys."""
    x = keras.Input((6,), name="x")
    hidden = layers.Dense(8, activation="relu")(x)
    model = keras.Model(x, {"size": layers.Dense(2)(hidden), "far": layers.Dense(2)(hidden)})
    compiled(model, loss=["mse", "mae"], metrics=["mae", "mse"])
    return Case(model, normal(6), {"far": normal(2), "size": normal(2)}).having(keyed=True)


def ema(**options: Any) -> Case:
    """`use_ema`."""
    return classifier(optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, **options))


def ema_unused() -> Case:
    """`use_ema`, with weights that do not affect the loss."""
    x = keras.Input((6,), name="x")
    outputs = [layers.Dense(3, name="idle")(x), layers.Dense(3, "softmax", name="kind")(x)]
    model = keras.Model(x, outputs)
    model.compile(optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8), [None, SPARSE])
    return Case(model, normal(6), classes(3), allow_unused=True).having(validates=False)


def ema_best() -> Case:
    """`use_ema`, `EarlyStopping(restore_best_weights=True)`."""
    return ema().having(patience=1)


def ema_overwritten() -> Case:
    """`use_ema`, `ema_overwrite_frequency=4`."""
    return ema(ema_overwrite_frequency=4)


def weighted_elements() -> Case:
    """A weight for each step of a sequence."""
    recurrent = [keras.Input((7, 6)), layers.GRU(8, return_sequences=True), layers.Dense(3, "softmax")]
    metric = metrics.SparseCategoricalAccuracy(name="weighted")
    model = compiled(keras.Sequential(recurrent), weighted_metrics=[metric])
    weight = uniform(7)
    return Case(model, normal(7, 6), classes(3, 7), weight, sample_weight="[7]")


def text_classifier() -> Case:
    """A classifier of texts, from a table."""
    few = np.array(["a", "the", "cat", "dog,", "Dog", "ran", "sat", "far", '"out"', "é"])
    picked, lengths = classes(10, 8), random.integers(1, 9, TRAIN + VALIDATION)
    x = np.array([" ".join(few[p[:n]]) for p, n in zip(picked, lengths, strict=True)])
    vectorize = layers.TextVectorization(max_tokens=8, output_sequence_length=5)
    vectorize.adapt(x)
    inputs = keras.Input((1,), dtype="string", name="x")
    hidden = layers.Embedding(8, 6, mask_zero=True)(vectorize(inputs))
    return classified(x, inputs, layers.GlobalAveragePooling1D()(hidden)).having(table=True)


def columns() -> Case:
    """Columns of a table of several kinds, one of them text of few values."""
    city = np.array(["Bern", "Rom", "Oslo"])[classes(3)]
    code, age = classes(5), normal()
    a = keras.Input((1,), dtype="string", name="city")
    b, c = keras.Input((1,), dtype="int64", name="code"), keras.Input((1,), name="age")
    normalize = layers.Normalization(axis=None)
    normalize.adapt(age)
    cities = layers.StringLookup(vocabulary=["Bern", "Rom"], output_mode="one_hot")(a)
    codes = layers.IntegerLookup(vocabulary=[1, 2, 3], output_mode="one_hot")(b)
    hidden = [cities, layers.Hashing(3, output_mode="one_hot")(a), codes, normalize(c)]
    output = layers.Dense(1, "sigmoid")(layers.Dense(8, "relu")(layers.Concatenate()(hidden)))
    model = keras.Model({"city": a, "code": b, "age": c}, output)
    compiled(model, loss="binary_crossentropy", metrics=["auc"])
    x = {"city": city, "code": code, "age": age}
    return Case(model, x, classes(2, 1).astype("float32")).having(table=True)


def stateful_rnn() -> Case:
    """An LSTM that continues with the state of the previous batch."""
    inputs = keras.Input(batch_shape=(BATCH, 7, 6))
    model = keras.Sequential([inputs, layers.LSTM(8, stateful=True), layers.Dense(3, "softmax")])
    return Case(compiled(model), normal(7, 6), classes(3)).having(whole=True)


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
    both = [layers.Dense(5)(a), layers.Dense(5)(b)]
    kinds = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")
    merged = [getattr(layers, kind)()(both) for kind in kinds]
    merged.append(layers.Dot(1, normalize=True)(both))
    return classified({"a": normal(6), "b": normal(4)}, [a, b], layers.Concatenate()(merged))


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
    tower = keras.Sequential([layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(4)])
    return classified({"a": normal(6), "b": normal(6)}, [a, b], layers.Subtract()([tower(a), tower(b)]))


def frozen() -> Case:
    """Fine-tuning: a frozen model in inference mode under a new head."""
    parts = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten()]
    base = keras.Sequential([keras.Input((8, 8, 3)), *parts])
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
    found = [layers.Attention(use_scale=True, score_mode="concat")([x, x]), layers.AdditiveAttention()([x, x])]
    found.append(layers.GroupQueryAttention(4, 4, 2)(x, x))
    return classified(normal(8, 4), x, layers.Flatten()(layers.Concatenate()(found)))


def language_model() -> Case:
    """Tied embeddings (`ReversibleEmbedding`), masked, with logits for each token."""
    x = keras.Input((7,), name="x", dtype="int64")
    table = layers.ReversibleEmbedding(20, 8, mask_zero=True)
    model = keras.Model(x, table(layers.GRU(8, return_sequences=True)(table(x)), reverse=True))
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    return Case(compiled(model, loss=loss, metrics=["sparse_categorical_accuracy"]), words(), classes(20, 7))


def lora() -> Case:
    """`enable_lora`."""
    x = keras.Input((6,), name="x")
    layer = layers.Dense(8, "relu")
    case = classified(normal(6), x, layer(x))
    layer.enable_lora(2)
    compiled(case.model)
    return case


def quantized_lora() -> Case:
    """`quantize("int8")` and `enable_lora`."""
    case = lora()
    case.model.quantize("int8")
    compiled(case.model)
    return case


def float64() -> Case:
    """The policy `float64`."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        model = dense()
    finally:
        keras.config.set_dtype_policy(before)
    return Case(compiled(model), normal(6).astype("float64"), classes(3))


def binary_class_weights() -> Case:
    """`class_weight` of labels of one column."""
    model = dense(1, "sigmoid")
    model.compile("adam", "binary_crossentropy", weighted_metrics=["accuracy"])
    case = Case(model, normal(6), classes(2, 1).astype("float32"), sample_weight=True)
    return case.having(class_weight={0: 0.5, 1: 3.0})


def weighted_outputs() -> Case:
    """Losses, `loss_weights` and metrics by output."""
    case = several_outputs()
    case.model.compile(
        "adam",
        {"kind": SPARSE, "size": "huber"},
        loss_weights={"kind": 0.3, "size": 2.0},
        metrics={"kind": ["accuracy"], "size": ["mae", metrics.RootMeanSquaredError()]},
    )
    return case


def changed_rate() -> Case:
    """`learning_rate` of a compiled optimizer assigned before training."""
    case = classifier(optimizers.SGD(0.5), metrics=[])
    case.model.optimizer.learning_rate = 0.01
    return case


def excluded() -> Case:
    """`exclude_from_weight_decay`."""
    optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return classifier(optimizer, metrics=[])


def built() -> Case:
    """`ScheduleFreeAdamW`, with `optimizer.build(model.trainable_variables)` before `fit`."""
    case = classifier(optimizers.ScheduleFreeAdamW(0.01, warmup_steps=3))
    case.model.optimizer.build(case.model.trainable_variables)
    return case


def ctc() -> Case:
    """`CTC` of sequences of logits."""
    model = keras.Sequential([keras.Input((8, 4)), layers.LSTM(8, return_sequences=True), layers.Dense(5)])
    model.compile("adam", losses.CTC())
    return Case(model, normal(8, 4), classes(4, 3) + 1, labels={"y": "int64[3]"})


def by_class_f1() -> Case:
    """F1 by class."""
    model = compiled(dense(), loss="categorical_crossentropy", metrics=[metrics.F1Score()])
    return Case(model, normal(6), one_hot())


def half_weights() -> Case:
    """Weights of float16."""
    x = keras.Input((6,), name="x")
    return classified(normal(6), x, layers.Dense(8, dtype="float16")(x))


def unused() -> Case:
    """Weights that do not affect the loss."""
    return ema_unused().having(options={})


def python_code() -> Case:
    """A layer that calls Python."""
    x = keras.Input((6,), name="x")
    call = lambda v: tf.ensure_shape(tf.numpy_function(np.tanh, [v], tf.float32), (None, 6))
    return classified(normal(6), x, layers.Lambda(call)(x))
