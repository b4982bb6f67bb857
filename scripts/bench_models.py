#!/usr/bin/env python3
"""Export the models for measurements of speed and memory.

    python scripts/bench_models.py DIR [--only NAME] [--policy POLICY] [--twins] [--remat LAYERS]

The first five also ship with the project, as savedmodels/builtin/NAME.zip, which builtin.py
makes.

===================== ======================== ================ =========================
name                  x                        y                model
===================== ======================== ================ =========================
dense-100-64-1        float32 [B,100]          float32 [B,1]    one hidden layer, mse
dense-784-10          float32 [B,784]          int64 [B]        softmax regression
dropout-200-512-256-1 float32 [B,200]          float32 [B,1]    two dropouts, crossentropy
image-224             float32 [B,224,224,3]    int64 [B]        Conv32 3x3, pool, Dense10
lstm                  float32 [B,20,16]        int64 [B]        LSTM32, Dense10
digits-cnn            float32 [B,64]           int64 [B]        the built-in one, two
                                                                convolutions, dropout
attention             float32 [B,32,64]        int64 [B]        one block: 4 heads, dense 128
attention-deep        float32 [B,32,64]        int64 [B]        8 such blocks, block_*
image-deep            float32 [B,64,64,3]      int64 [B]        6 blocks of two Conv32 3x3,
                                                                block_*
transformer           float32 [B,16,1024]      int64 [B]        one block of 12.6 million
                                                                weights, for adapters
fashion-cnn           uint8 [B,28,28], 0..255  int64 [B]        two convolutions; learns
                                                                Fashion-MNIST
===================== ======================== ================ =========================

All train with Adam. The small dense ones have XLA-compiled signatures for the measured
shapes; --twins adds them to digits-cnn and attention. ``--policy`` makes models under another dtype
policy of Keras, from the same weights, in folders whose names have the suffix in
SUFFIXES; under mixed_float16 with ``--loss-scale-input`` the suffix is SCALED. ``--remat``
computes layers again for the gradient, as steadyfit-export does, with the suffix REMAT.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import steadyfit_export as export

SEED = 224
# The suffix of a model's name by its policy.
SUFFIXES = {"float32": "", "mixed_bfloat16": "-bf16", "mixed_float16": "-fp16"}
SCALED = "-scaled"
REMAT = "-remat"
TILE = 4096


def _tiled_glorot(shape: Sequence[int], dtype: Any = None) -> Any:
    """Glorot-uniform weights. Only TILE of them are drawn, and repeated to fill a matrix.

    The matrix of image-224 has 3.9 million weights, and the model measures time and memory, not
    accuracy. Repeated weights compress to almost nothing (16 KiB is within the window of
    deflate), so the model can ship with the project.
    """
    import keras
    import numpy as np

    limit = math.sqrt(6 / sum(shape))
    drawn = np.random.default_rng(SEED).uniform(-limit, limit, TILE)
    return keras.ops.convert_to_tensor(np.resize(drawn, shape), dtype=dtype)


def _dense_100_64_1() -> tuple[Any, dict[str, Any]]:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((100,)), layers.Dense(64, activation="relu"), layers.Dense(1)]
    )
    return model, {"loss": "mse", "xla_batch": 32, "xla_steps": 50}


def _dense_784_10() -> tuple[Any, dict[str, Any]]:
    import keras

    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10)])
    return model, {**_classifier(), "xla_batch": 32, "xla_steps": 50}


def _dropout_200_512_256_1() -> tuple[Any, dict[str, Any]]:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((200,)),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.3, seed=SEED),
            layers.Dense(256, activation="relu"),
            layers.Dropout(0.3, seed=SEED + 1),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    options = {"loss": "binary_crossentropy", "metrics": ["accuracy"]}
    return model, {**options, "xla_batch": 64, "xla_steps": 50}


def _image_224() -> tuple[Any, dict[str, Any]]:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((224, 224, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, kernel_initializer=_tiled_glorot),
        ]
    )
    return model, _classifier()


def _lstm() -> tuple[Any, dict[str, Any]]:
    import keras

    layers = keras.layers
    model = keras.Sequential([keras.Input((20, 16)), layers.LSTM(32), layers.Dense(10)])
    return model, _classifier()


def _digits_cnn() -> tuple[Any, dict[str, Any]]:
    import builtin

    return builtin.make_digits_cnn(), _classifier()


def _attention() -> tuple[Any, dict[str, Any]]:
    import keras

    x = keras.Input((32, 64))
    out = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(_attention_block(x)))
    return keras.Model(x, out), _classifier()


def _attention_block(x: Any) -> Any:
    import keras

    layers = keras.layers
    seen = layers.MultiHeadAttention(num_heads=4, key_dim=16)(x, x)
    mixed = layers.LayerNormalization()(layers.Add()([x, seen]))
    hidden = layers.Dense(64)(layers.Dense(128, activation="relu")(mixed))
    return layers.LayerNormalization()(layers.Add()([mixed, hidden]))


def _attention_deep() -> tuple[Any, dict[str, Any]]:
    import keras

    x = y = keras.Input((32, 64))
    for i in range(8):
        inner = keras.Input((32, 64))
        y = keras.Model(inner, _attention_block(inner), name=f"block_{i}")(y)
    out = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(y))
    return keras.Model(x, out), _classifier()


def _image_deep() -> tuple[Any, dict[str, Any]]:
    import keras

    layers = keras.layers
    x = keras.Input((64, 64, 3))
    y = layers.Conv2D(32, 3, padding="same")(x)
    for i in range(6):
        convolution = {"padding": "same", "activation": "relu"}
        block = [layers.Conv2D(32, 3, **convolution), layers.Conv2D(32, 3, **convolution)]
        y = keras.Sequential([*block, layers.LayerNormalization()], name=f"block_{i}")(y)
    return keras.Model(x, layers.Dense(10)(layers.GlobalAveragePooling2D()(y))), _classifier()


def _transformer() -> tuple[Any, dict[str, Any]]:
    import keras

    layers = keras.layers
    x = keras.Input((16, 1024))
    seen = layers.MultiHeadAttention(8, 128, name="block_attention")(x, x)
    mixed = layers.LayerNormalization(name="block_norm")(layers.Add()([x, seen]))
    up = layers.Dense(4096, activation="gelu", name="block_up")(mixed)
    y = layers.Add()([mixed, layers.Dense(1024, name="block_down")(up)])
    out = layers.Dense(10, name="head")(layers.GlobalAveragePooling1D()(y))
    return keras.Model(x, out), {**_classifier(), "learning_rate": 1e-3, "micro_batches": False}


def transformer() -> dict[str, Any]:
    """The model transformer for ``steadyfit-export --model scripts/bench_models.py:transformer``."""
    model, optimizer, options = make_model("transformer")
    return {"model": model, "optimizer": optimizer, **options}


def _fashion_cnn() -> tuple[Any, dict[str, Any]]:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            layers.Rescaling(1 / 255),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    names = "T-shirt,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Boot"
    return model, {
        **_classifier(),
        "input_dtypes": {"x": "uint8"},
        "input_ranges": {"x": (0, 255)},
        "class_names": names.split(","),
        "learning_rate": 2e-3,
    }


def _classifier() -> dict[str, Any]:
    return {
        "loss": "sparse_categorical_crossentropy",
        "from_logits": True,
        "metrics": ["accuracy"],
    }


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "dense-100-64-1": _dense_100_64_1,
    "dense-784-10": _dense_784_10,
    "dropout-200-512-256-1": _dropout_200_512_256_1,
    "image-224": _image_224,
    "lstm": _lstm,
    "digits-cnn": _digits_cnn,
    "attention": _attention,
    "attention-deep": _attention_deep,
    "image-deep": _image_deep,
    "transformer": _transformer,
    "fashion-cnn": _fashion_cnn,
}

# Models to which --twins adds XLA-compiled signatures, for 50 steps of 32. XLA cannot compile
# the gradient of the loop in lstm; the compiled step of image-224 takes four times as long.
TWINS = ("digits-cnn", "attention")


def make_model(name: str, policy: str = "float32") -> tuple[Any, Any, dict[str, Any]]:
    """Make a model, with the same weights each time, its optimizer, and its export arguments."""
    _, keras = export.load_tensorflow()
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)
    with export.dtype_policy(policy):
        model, options = MODELS[name]()
    return model, keras.optimizers.Adam(options.pop("learning_rate", 1e-3)), options


def export_model(
    name: str,
    out: pathlib.Path,
    check: bool = True,
    twins: bool = False,
    policy: str = "float32",
    loss_scale_input: bool = False,
    remat: str | None = None,
) -> export.Report:
    """Export one model to out, replacing an earlier export."""
    model, adam, options = make_model(name, policy)
    options |= {"loss_scale_input": loss_scale_input, "remat": remat}
    if twins and name in TWINS:
        options["xla_batch"], options["xla_steps"] = 32, 50
    return export.export(model, out, optimizer=adam, force=True, check=check, **options)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path, help="folder for the models, one folder each")
    parser.add_argument("--only", choices=list(MODELS), action="append", help="this one; repeat")
    parser.add_argument("--twins", action="store_true", help="more XLA-compiled signatures")
    parser.add_argument("--policy", choices=list(SUFFIXES), default="float32")
    parser.add_argument("--loss-scale-input", action="store_true", help="see steadyfit-export")
    parser.add_argument("--remat", metavar="LAYERS", help="see steadyfit-export")
    parser.add_argument(
        "--no-verify", action="store_true", help="do not load the exports to verify them"
    )
    arguments = parser.parse_args(argv)
    if arguments.loss_scale_input and arguments.policy != "mixed_float16":
        parser.error("--loss-scale-input is for --policy mixed_float16")
    for name in arguments.only or MODELS:
        suffix = SCALED if arguments.loss_scale_input else SUFFIXES[arguments.policy]
        suffix += REMAT if arguments.remat else ""
        report = export_model(
            name,
            arguments.out / (name + suffix),
            not arguments.no_verify,
            arguments.twins,
            arguments.policy,
            arguments.loss_scale_input,
            arguments.remat,
        )
        print(
            f"{report.path}: {report.bytes / 1024:.0f} KiB, {', '.join(report.signatures)}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
