"""The tables of the cases of conformance.py: what they train, and where they may differ from Keras.

The texts are Python expressions, in the words of the table in docs/reference/keras.md.
"""

from __future__ import annotations

import keras
import numpy as np

import steadyfit_export as export
from conformance_models import (
    TRAIN,
    VALIDATION,
    Case,
    classes,
    compiled,
    dense,
    layers,
    losses,
    metrics,
    normal,
    one_hot,
    ops,
    optimizers,
    random_numbers,
    uniform,
    words,
)


class Warmup(optimizers.schedules.LearningRateSchedule):
    """A custom schedule."""

    def __call__(self, step):
        return 0.01 * ops.minimum(1.0, (ops.cast(step, "float32") + 1) / 6)


def adapted(layer):
    """A preprocessing layer that is adapted to data."""
    layer.adapt(np.random.default_rng(7).normal(2, 3, (64, 6)).astype("float32"))
    return layer


# fmt: off
OPTIMIZERS = {
    "sgd": "SGD(0.1)",
    "sgd_momentum": "SGD(0.1, momentum=0.9)",
    "sgd_nesterov": "SGD(0.1, momentum=0.9, nesterov=True)",
    "sgd_weight_decay": "SGD(0.1, weight_decay=0.01)",
    "sgd_clipnorm": "SGD(0.1, clipnorm=0.05)",
    "sgd_clipvalue": "SGD(0.1, clipvalue=0.01)",
    "sgd_global_clipnorm": "SGD(0.1, global_clipnorm=0.1)",
    "sgd_accumulation": "SGD(0.1, gradient_accumulation_steps=2)",
    "sgd_loss_scale_factor": "SGD(0.1, loss_scale_factor=8.0)",
    "rmsprop": "RMSprop(0.01)",
    "rmsprop_centered": "RMSprop(0.01, rho=0.8, momentum=0.9, centered=True)",
    "rmsprop_accumulation_ema": "RMSprop(0.01, gradient_accumulation_steps=3, use_ema=True, ema_momentum=0.8)",
    "adam": "Adam(0.01)",
    "adam_amsgrad": "Adam(0.01, beta_1=0.8, amsgrad=True)",
    "adam_accumulation": "Adam(0.01, gradient_accumulation_steps=4)",
    "adam_clipped": "Adam(0.01, global_clipnorm=0.1, weight_decay=0.01)",
    "adam_ema": "Adam(0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)",
    "adamw": "AdamW(0.01, weight_decay=0.1)",
    "adamw_amsgrad": "AdamW(0.01, weight_decay=0.1, amsgrad=True, clipnorm=0.05)",
    "adadelta": "Adadelta(1.0)",
    "adagrad": "Adagrad(0.1)",
    "adamax": "Adamax(0.01)",
    "adafactor": "Adafactor(0.1)",
    "adafactor_absolute": "Adafactor(0.01, relative_step=False, clip_threshold=0.5)",
    "nadam": "Nadam(0.01)",
    "ftrl": "Ftrl(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.01)",
    "ftrl_shrinkage": "Ftrl(0.1, l2_shrinkage_regularization_strength=0.01, beta=0.1)",
    "lion": "Lion(0.001)",
    "lamb": "Lamb(0.01)",
    "muon": "Muon(0.01)",
    "schedule_free_adamw": "ScheduleFreeAdamW(0.01, warmup_steps=3)",
    "loss_scale_optimizer": "LossScaleOptimizer(SGD(0.1), dynamic_growth_steps=4)",
    "multi_optimizer": "MultiOptimizer(OptimizerMap(SGD(0.1), {'.*bias': Adam(0.01)}))",
    "multi_optimizer_ema":
        "MultiOptimizer(OptimizerMap(SGD(0.1, use_ema=True, ema_momentum=0.8), {'.*bias': Adam(0.01)}))",
    "exponential_decay": "SGD(ExponentialDecay(0.1, 4, 0.5))",
    "exponential_staircase": "Adam(ExponentialDecay(0.01, 4, 0.5, staircase=True))",
    "piecewise_constant_decay": "SGD(PiecewiseConstantDecay([3, 8], [0.1, 0.05, 0.01]))",
    "polynomial_decay": "SGD(PolynomialDecay(0.1, 6, 0.01, power=2.0))",
    "polynomial_cycle": "SGD(PolynomialDecay(0.1, 6, 0.01, cycle=True))",
    "inverse_time_decay": "RMSprop(InverseTimeDecay(0.01, 4, 0.5))",
    "cosine_decay": "SGD(CosineDecay(0.01, 9, warmup_target=0.1, warmup_steps=4))",
    "cosine_decay_restarts": "SGD(CosineDecayRestarts(0.1, 4, t_mul=1.5, m_mul=0.8))",
    "schedule_accumulation": "SGD(ExponentialDecay(0.1, 2, 0.5), gradient_accumulation_steps=2)",
    "own_schedule": "AdamW(Warmup())",
}

# By the kind of labels.
LOSSES = {
    "mean_squared_error": ("numbers", "MeanSquaredError()"),
    "mean_absolute_error": ("numbers", "MeanAbsoluteError()"),
    "mean_absolute_percentage_error": ("positive", "MeanAbsolutePercentageError()"),
    "mean_squared_logarithmic_error": ("positive", "MeanSquaredLogarithmicError()"),
    "cosine_similarity": ("numbers", "CosineSimilarity()"),
    "huber": ("numbers", "Huber(delta=0.5)"),
    "log_cosh": ("numbers", "LogCosh()"),
    "hinge": ("signs", "Hinge()"),
    "squared_hinge": ("signs", "SquaredHinge()"),
    "categorical_hinge": ("one_hot", "CategoricalHinge()"),
    "kl_divergence": ("one_hot", "KLDivergence()"),
    "poisson": ("positive", "Poisson()"),
    "binary_crossentropy": ("bits", "BinaryCrossentropy(label_smoothing=0.1)"),
    "binary_focal_crossentropy": ("binary", "BinaryFocalCrossentropy(apply_class_balancing=True)"),
    "categorical_crossentropy": ("logits", "CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)"),
    "categorical_focal_crossentropy": ("one_hot", "CategoricalFocalCrossentropy()"),
    "sparse_categorical_crossentropy": (
        "sparse_logits", "SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)"),
    "dice": ("bits", "Dice()"),
    "tversky": ("bits", "Tversky(alpha=0.3, beta=0.7)"),
    "circle": ("embedded", "Circle(gamma=8.0)"),
    "generalized_crossentropy": ("labelled", "CategoricalGeneralizedCrossEntropy()"),
    "summed": ("numbers", "MeanSquaredError(reduction='sum')"),
    "mean_with_sample_weight": ("bits", "MeanSquaredError(reduction='mean_with_sample_weight')"),
    "unreduced": ("numbers", "MeanSquaredError(reduction=None)"),
}

# Trained without and with the weights of samples, by the kind of labels.
METRICS = {
    "numbers": (
        "mse", "MeanAbsoluteError()", "RootMeanSquaredError()", "CosineSimilarity()", "LogCoshError()",
        "R2Score()", "PearsonCorrelation()", "ConcordanceCorrelation()"),
    "positive": (
        "MeanSquaredError()", "MeanAbsolutePercentageError()", "MeanSquaredLogarithmicError()", "Poisson()",
        "KLDivergence()"),
    "binary": (
        "BinaryAccuracy(threshold=0.4)", "BinaryCrossentropy()", "TruePositives()", "TrueNegatives()",
        "FalsePositives()", "FalseNegatives()", "SensitivityAtSpecificity(0.5)",
        "SpecificityAtSensitivity(0.5)", "PrecisionAtRecall(0.5)", "RecallAtPrecision(0.5)",
        "AUC(num_thresholds=20, summation_method='majoring')",
        "BinaryIoU(target_class_ids=[0, 1], threshold=0.4)",
        "FBetaScore(average='micro', beta=2.0, threshold=0.4)"),
    "bits": (
        "AUC(multi_label=True)", "Precision(top_k=1)", "Recall(class_id=1)",
        "F1Score(average='macro', threshold=0.5)", "BinaryAccuracy()"),
    "signs": ("Hinge()", "SquaredHinge()"),
    "one_hot": (
        "accuracy", "CategoricalAccuracy()", "CategoricalCrossentropy()", "CategoricalHinge()",
        "TopKCategoricalAccuracy(k=2)", "OneHotIoU(3, target_class_ids=[0, 2])", "OneHotMeanIoU(3)",
        "F1Score(average='weighted')", "FBetaScore(average='macro', beta=0.5)"),
    "sparse": (
        "SparseCategoricalAccuracy()", "SparseCategoricalCrossentropy()", "SparseTopKCategoricalAccuracy(k=2)",
        "IoU(3, target_class_ids=[1], sparse_y_pred=False)", "MeanIoU(3, sparse_y_pred=False)"),
}

# Stacks of layers, by the data.
LAYERS = {
    "conv1d": ("sequences", "Conv1D(4, 3, strides=2)", "Conv1D(4, 2, padding='causal', dilation_rate=2)"),
    "conv2d": ("images", "Conv2D(6, 3, padding='same', activation='relu')", "Conv2D(6, 3, strides=2, groups=3)"),
    "conv3d": ("volumes", "Conv3D(4, 3, activation='relu')"),
    "depthwise_conv1d": ("sequences", "DepthwiseConv1D(3, depth_multiplier=2)"),
    "depthwise_conv2d": ("images", "DepthwiseConv2D(3, padding='same', activation='relu')"),
    "separable_conv1d": ("sequences", "SeparableConv1D(5, 3, activation='relu')"),
    "separable_conv2d": ("images", "SeparableConv2D(5, 3, activation='relu')"),
    "conv1d_transpose": ("sequences", "Conv1DTranspose(4, 3, strides=2)"),
    "conv2d_transpose": ("images", "Conv2DTranspose(4, 3, strides=2, padding='same')"),
    "conv3d_transpose": ("volumes", "Conv3DTranspose(2, 2)"),
    "pooling1d": ("sequences", "Conv1D(4, 2)", "MaxPooling1D()", "AveragePooling1D(2)", "GlobalMaxPooling1D()"),
    "pooling2d": (
        "images", "Conv2D(4, 1)", "MaxPooling2D()", "AveragePooling2D(2, padding='same')",
        "GlobalAveragePooling2D()"),
    "pooling3d": ("volumes", "Conv3D(3, 2)", "MaxPooling3D()", "AveragePooling3D(2)", "GlobalMaxPooling3D()"),
    "adaptive_pooling": ("images", "Conv2D(4, 1)", "AdaptiveAveragePooling2D(3)", "AdaptiveMaxPooling2D(2)"),
    "batch_normalization": ("images", "Conv2D(4, 3)", "BatchNormalization(momentum=0.8)", "ReLU()"),
    "batch_normalization_frozen": ("numbers", "Dense(8)", "BatchNormalization(trainable=False)"),
    "batch_normalization_masked": ("words", "Embedding(20, 4, mask_zero=True)", "BatchNormalization()", "GRU(4)"),
    "layer_normalization": ("numbers", "Dense(8)", "LayerNormalization()"),
    "group_normalization": ("images", "Conv2D(6, 3)", "GroupNormalization(3)"),
    "rms_normalization": ("numbers", "Dense(8)", "RMSNormalization()"),
    "unit_normalization": ("numbers", "Dense(8)", "UnitNormalization()"),
    "spectral_normalization": ("numbers", "SpectralNormalization(Dense(8))"),
    "simple_rnn": ("sequences", "SimpleRNN(5, return_sequences=True)", "SimpleRNN(4)"),
    "lstm": ("sequences", "LSTM(5, return_sequences=True, go_backwards=True)", "LSTM(4)"),
    "lstm_dropout": ("sequences", "LSTM(5, dropout=0.2, recurrent_dropout=0.2, seed=3)"),
    "gru": ("sequences", "GRU(5, unroll=True)", "Dense(4)"),
    "gru_reset_before": ("sequences", "GRU(5, reset_after=False)"),
    "bidirectional": (
        "sequences", "Bidirectional(LSTM(4, return_sequences=True), merge_mode='sum')",
        "Bidirectional(GRU(4))"),
    "bidirectional_masked": ("words", "Embedding(20, 4, mask_zero=True)", "Bidirectional(LSTM(4))"),
    "masking": ("ended", "Masking(0.0)", "SimpleRNN(4)"),
    "stacked_cells": ("sequences", "RNN([LSTMCell(4), GRUCell(3)])"),
    "conv_lstm": ("clips", "ConvLSTM2D(3, 3)"),
    "time_distributed": ("sequences", "TimeDistributed(Dense(3))", "LSTM(3)"),
    "embedding": ("words", "Embedding(20, 4)", "GlobalAveragePooling1D()"),
    "einsum_dense": ("sequences", "EinsumDense('abc,cd->abd', (8, 5), bias_axes='d')"),
    "dropout": ("numbers", "Dense(16, 'relu')", "Dropout(0.3, seed=1)"),
    "dropout_unseeded": ("numbers", "Dense(16, 'relu')", "Dropout(0.3)"),
    "spatial_dropout": ("images", "Conv2D(8, 3)", "SpatialDropout2D(0.3, seed=1)"),
    "noise": (
        "numbers", "GaussianNoise(0.1, seed=1)", "Dense(8, 'selu')", "GaussianDropout(0.2, seed=2)",
        "AlphaDropout(0.2, seed=3)"),
    "activity_regularization": ("numbers", "Dense(8)", "ActivityRegularization(0.01, 0.01)"),
    "activations": (
        "numbers", "Dense(8)", "PReLU()", "Dense(8)", "LeakyReLU(0.1)", "Dense(8, 'gelu')", "ELU()",
        "Dense(8, 'mish')", "Softmax()"),
    "reshaping": (
        "images", "Conv2D(4, 3)", "ZeroPadding2D(1)", "UpSampling2D(2, interpolation='bilinear')",
        "Cropping2D(2)", "Permute((3, 1, 2))", "Reshape((4, -1))"),
    "regularizers": (
        "numbers", "Dense(8, kernel_regularizer='l2', bias_regularizer='l1')",
        "Dense(8, kernel_regularizer=L1L2(0.01, 0.02))",
        "Dense(8, kernel_regularizer=OrthogonalRegularizer())", "Dense(8, activity_regularizer='l2')"),
    "constraints": (
        "numbers", "Dense(8, kernel_constraint=MaxNorm(0.5))",
        "Dense(8, kernel_constraint='non_neg', bias_constraint='non_neg')",
        "Dense(8, kernel_constraint='unit_norm')",
        "Dense(8, kernel_constraint=MinMaxNorm(0.2, 0.8, rate=0.5))"),
    "rescaling": (
        "pixels", "Rescaling(0.00784313725490196, offset=-1.0)", "Resizing(6, 6)", "CenterCrop(4, 4)",
        "Conv2D(3, 3)"),
    "augmentation": (
        "pixels", "RandomFlip(seed=1)", "RandomRotation(0.1, seed=2)", "RandomTranslation(0.1, 0.1, seed=3)",
        "RandomZoom(0.1, seed=4)", "RandomContrast(0.2, seed=5)", "RandomBrightness(0.1, seed=6)",
        "Rescaling(0.00392156862745098)", "Conv2D(4, 3)"),
    "normalization": ("numbers", "adapted(Normalization())", "Dense(8, 'relu')"),
    "discretization": ("numbers", "Discretization(bin_boundaries=[-1.0, 0.0, 1.0])", "Embedding(4, 3)"),
    "category_encoding": ("words", "CategoryEncoding(20, output_mode='count')"),
    "hashing": ("words", "Hashing(8)", "Embedding(8, 3)"),
    "integer_lookup": ("words", "IntegerLookup(vocabulary=[1, 2, 3, 5, 8])", "Embedding(6, 3)"),
    "spectrogram": ("tones", "Reshape((400, 1))", "STFTSpectrogram(frame_length=64, frame_step=32, fft_length=64)"),
    "mel_spectrogram": (
        "tones", "MelSpectrogram(fft_length=64, sequence_stride=32, num_mel_bins=8, sampling_rate=400)"),
}
# A model with an output for each name, by the kind of labels.
LOSS_NAMES = {
    "numbers": ("mse", "MAE", "huber", "log_cosh", "cosine_similarity"),
    "positive": ("mape", "msle", "poisson"),
    "bits": ("bce", "binary_focal_crossentropy", "dice", "tversky"),
    "signs": ("hinge", "squared_hinge"),
    "one_hot": ("kld", "categorical_hinge", "categorical_focal_crossentropy", "ce"),
}

# Architectures of keras.applications, with the size of the images.
APPLICATIONS = (
    ("MobileNetV2", 32, {"alpha": 0.35}), ("MobileNetV3Small", 32, {}), ("DenseNet121", 32, {}),
    ("EfficientNetB0", 32, {}), ("EfficientNetV2B0", 32, {}), ("ResNet50", 32, {}), ("ResNet50V2", 32, {}),
    ("ConvNeXtTiny", 32, {}), ("NASNetMobile", 32, {}), ("Xception", 71, {}),
)

# Architectures of KerasHub from small configurations.
TEXT = {"vocabulary_size": 50, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 32}
GROUPED = {**TEXT, "num_query_heads": 2, "num_key_value_heads": 1}
HUB = (
    ("Bert", "TextClassifier", {**TEXT, "num_heads": 2}),
    ("DistilBert", "TextClassifier", {**TEXT, "num_heads": 2}),
    ("Roberta", "TextClassifier", {**TEXT, "num_heads": 2}),
    ("GPT2", "CausalLM", {**TEXT, "num_heads": 2}),
    ("Llama", "CausalLM", GROUPED),
    ("Gemma", "CausalLM", {**GROUPED, "head_dim": 8}),
    ("ViT", "ImageClassifier", {
        "image_shape": (16, 16, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 16,
        "mlp_dim": 32}),
    ("ResNet", "ImageClassifier", {
        "image_shape": (32, 32, 3), "input_conv_filters": [64], "input_conv_kernel_sizes": [7],
        "stackwise_num_filters": [64, 64], "stackwise_num_blocks": [1, 1], "stackwise_num_strides": [1, 2],
        "block_type": "basic_block"}),
)

# For labels of a kind: units and activation of the output, and the labels.
TARGETS = {
    "numbers": (3, None, lambda: normal(3)),
    "positive": (3, "softplus", lambda: np.abs(normal(3)) + 0.1),
    "binary": (1, "sigmoid", lambda: classes(2, 1).astype("float32")),
    "bits": (3, "sigmoid", lambda: classes(2, 3).astype("float32")),
    "signs": (2, "tanh", lambda: classes(2, 2).astype("float32") * 2 - 1),
    "one_hot": (3, "softmax", one_hot),
    "sparse": (3, "softmax", lambda: classes(3)),
    "sparse_logits": (3, None, lambda: classes(3)),
    "logits": (3, None, one_hot),
    "embedded": (8, None, lambda: classes(4)),
    "labelled": (3, "softmax", lambda: classes(3)),
}

# The data for a stack of layers.
DATA = {
    "numbers": lambda: normal(6),
    "sequences": lambda: normal(8, 4),
    "ended": lambda: normal(8, 4) * (
        np.arange(8) < random_numbers().integers(3, 9, TRAIN + VALIDATION)[:, None]
    )[:, :, None].astype("float32"),
    "images": lambda: normal(8, 8, 3),
    "volumes": lambda: normal(5, 5, 5, 2),
    "clips": lambda: normal(3, 5, 5, 2),
    "tones": lambda: normal(400),
    "words": words,
    "pixels": lambda: random_numbers().uniform(0, 255, (TRAIN + VALIDATION, 8, 8, 3)).astype("float32"),
}
# fmt: on

# Refused cases, and what to use instead.
REFUSED = {
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

AMPLIFIED = "Rounding, amplified: see Rounding of large models"
# The limits of metrics and weights for cases with larger differences, with the reason.
DIFFERS = {
    "schedule_free_adamw": (
        1.0,
        2.0,
        (
            "A fault of Keras: it builds the optimizer while it traces the first step, so its averages do not start "
            "from the weights. The weights jump to about 0. With steadyfit they do not, and neither do they in the "
            "case `built`"
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
        "The last bits of weights, also without Grappler, without oneDNN, and in one thread; the cause is not known",
    ),
    "efficientnetb0": (1e3, 10.0, AMPLIFIED),
    "efficientnetv2b0": (1e3, 10.0, AMPLIFIED),
    "jit_compile": (METRIC_LIMIT, 1e-4, "Keras then uses XLA, which rounds differently and draws other random numbers"),
    "loss_mean_squared_logarithmic_error": (
        METRIC_LIMIT,
        1e-5,
        (
            "The weights move little: this is the last bit of one. Keras with and without TensorFlow's graph "
            "optimizer differs by as much"
        ),
    ),
}


def made(text: str, *of) -> object:
    """The object of an expression, with the names of these modules; a name such as "mse" stays."""
    if text.isidentifier():
        return text
    names = {name: value for module in of for name, value in vars(module).items()}
    return eval(text, {**names, "Warmup": Warmup, "adapted": adapted})


def optimized(text: str) -> Case:
    """A classifier with this optimizer."""
    model = compiled(dense(), made(text, optimizers.schedules, optimizers))
    return Case(model, normal(6), classes(3))


def with_loss(kind: str, text: str) -> Case:
    """A model of the output that a loss needs."""
    units, activation, labels = TARGETS[kind]
    model = dense(units, activation)
    model.compile(optimizers.SGD(0.05), made(text, losses))
    # The loss does not show that the labels are classes.
    options = {"labels": {"y": "int64[]"}} if kind in ("embedded", "labelled") else {}
    return Case(model, normal(6), labels(), **options)


def by_name(kind: str, names: tuple[str, ...]) -> Case:
    """A model with an output for each loss."""
    x = keras.Input((6,), name="x")
    units, activation, labels = TARGETS[kind]
    outputs = [layers.Dense(units, activation, name=f"to_{i}")(x) for i in range(len(names))]
    model = keras.Model(x, outputs)
    model.compile("sgd", list(names), loss_weights=[0.5 + i for i in range(len(names))])
    options = {}
    if "ce" in names:  # the labels decide which crossentropy it is
        options["labels"] = {f"y_to_{i}": f"float32[{units}]" for i in range(len(names))}
    return Case(model, normal(6), {f"to_{i}": labels() for i in range(len(names))}, **options)


def measured(kind: str, texts: tuple[str, ...]) -> Case:
    """Each metric without and with the weights of the samples."""
    units, activation, labels = TARGETS[kind]
    loss = "sparse_categorical_crossentropy" if kind == "sparse" else "mse"
    both = [[made(text, metrics) for text in texts] for _ in range(2)]
    model = compiled(dense(units, activation), loss=loss, metrics=both[0], weighted_metrics=both[1])
    weight = uniform()
    return Case(model, normal(6), labels(), weight, sample_weight=True)


def stacked(name: str, optimizer: str = "adam", policy: str = "float32") -> Case:
    """A classifier with the layers of a case and a dense layer."""
    data, *texts = LAYERS[name]
    x = DATA[data]()
    with export.dtype_policy(policy):
        head = [layers.Flatten(), layers.Dense(3, "softmax", dtype="float32")]
        inside = [made(text, keras.regularizers, keras.constraints, layers) for text in texts]
        model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype.name), *inside, *head])
    return Case(compiled(model, made(optimizer, optimizers)), x, classes(3))


def application(name: str, size: int, options: dict) -> Case:
    """A model of keras.applications without its weights."""
    make = getattr(keras.applications, name)
    model = make(input_shape=(size, size, 3), weights=None, classes=3, **options)
    return Case(compiled(model, optimizers.SGD(0.01)), normal(size, size, 3), classes(3), micro_batches=False)


def hub(name: str, task: str, options: dict) -> Case:
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
    ends = random_numbers().integers(3, 9, TRAIN + VALIDATION)[:, None]
    values = {
        "token_ids": classes(50, 8).astype("int32"),
        "segment_ids": classes(2, 8).astype("int32"),
        "padding_mask": (np.arange(8) < ends).astype("int32"),
    }
    # With the length of the text, which Keras reads from the data.
    specs = {name: "int32[8]" for name in inputs}
    x = {name: values[name] for name in inputs}
    if task != "CausalLM":
        return Case(model, x, classes(3), inputs=specs)
    weight = values["padding_mask"].astype("float32")
    return Case(model, x, classes(50, 8), weight, inputs=specs, sample_weight="[8]")


def rqvae() -> Case:
    """`RQVAEBackbone`, whose `compute_loss` comes from KerasHub"""
    from keras_hub.src.models.rqvae.rqvae_backbone import RQVAEBackbone

    model = RQVAEBackbone(6, [8], 4, [8], 16, 2)
    model.compile("adam")
    return Case(model, normal(6))
