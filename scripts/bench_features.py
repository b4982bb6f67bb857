#!/usr/bin/env python3
"""Time fine-tuning with a frozen part: steadyfit with and without cached features, and Keras.

    make build runtime venv
    .runtime/venv/bin/python scripts/bench_features.py --turns 3

All programs train the same model on the same data with the same batch size, each in its own
process, in turn. Prints a table of medians (least to greatest): seconds from the start of the
process to its end, of which Keras needs some to import TensorFlow; seconds in training (for
Keras, in fit); and milliseconds of the second epoch. The models:

=========== ======================================================================
mobilenet   keras.applications MobileNetV2, 96x96 images, frozen, with a new head
module      a tf.Module with four frozen convolutions, not made by export.py
encoder     four frozen transformer blocks of width 256 on 64 tokens, and a head
=========== ======================================================================

"head" is steadyfit on the features alone, exported as data, with a model that is only the head.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

import bench_ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent


def head(keras: Any, width: int) -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((width,))
    return keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(inputs))


def mobilenet(keras: Any) -> tuple[Any, int]:
    keras.utils.set_random_seed(1)
    base = keras.applications.MobileNetV2(
        input_shape=(96, 96, 3), include_top=False, weights=None, pooling="avg"
    )
    base.trainable = False
    inputs = keras.Input((96, 96, 3))
    outputs = keras.layers.Dense(10, activation="softmax")(base(inputs, training=False))
    return keras.Model(inputs, outputs), 1280


def encoder(keras: Any) -> tuple[Any, int]:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    tokens = keras.Input((64,), dtype="int32")
    h = layers.Embedding(5000, 256)(tokens)
    for _ in range(4):
        h = layers.LayerNormalization()(h + layers.MultiHeadAttention(4, 64)(h, h))
        h = layers.LayerNormalization()(
            h + layers.Dense(256)(layers.Dense(1024, activation="gelu")(h))
        )
    base = keras.Model(tokens, layers.GlobalAveragePooling1D()(h))
    base.trainable = False
    inputs = keras.Input((64,), dtype="int32")
    outputs = layers.Dense(10, activation="softmax")(base(inputs, training=False))
    return keras.Model(inputs, outputs), 256


def save_module(folder: str) -> None:
    """Save a tf.Module with its own train step in plain TensorFlow."""
    import tensorflow as tf

    rng = np.random.default_rng(1)

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [3, 32, 64, 64, 128]
            self.filters = [
                tf.Variable(rng.normal(0, 0.1, (3, 3, a, b)).astype("float32"))
                for a, b in itertools.pairwise(sizes)
            ]
            self.head = tf.Variable(tf.zeros([128, 10]))

        def loss(self, x: Any, y: Any) -> Any:
            for f in self.filters:
                x = tf.nn.relu(tf.nn.conv2d(x, f, 2, "SAME"))
            logits = tf.reduce_mean(x, [1, 2]) @ self.head
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, 96, 96, 3], name="x"),
                tf.TensorSpec([None], tf.int64, name="y"),
            ]
        )
        def train(self, x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss(x, y)
            self.head.assign_sub(0.1 * tape.gradient(loss, self.head))
            return {"loss": loss}

    module = Module()
    tf.saved_model.save(module, folder, signatures={"train": module.train})


def prepare(name: str, folder: pathlib.Path, samples: int) -> None:
    """Write model, Keras model, head and data of a workload."""
    import keras

    import export

    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, samples)
    x = (
        rng.integers(0, 5000, (samples, 64), dtype=np.int32)
        if name == "encoder"
        else rng.random((samples, 96, 96, 3), dtype=np.float32)
    )
    np.savez(folder / "data.npz", x=x, y=y)
    if name == "module":
        save_module(str(folder / "model"))
        return
    model, width = {"mobilenet": mobilenet, "encoder": encoder}[name](keras)
    options = {
        "optimizer": "adam",
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
    }
    export.export(model, str(folder / "model"), **options)
    export.export(head(keras, width), str(folder / "head"), **options)
    model.save(folder / "model.keras")
    np.savez(folder / "features.npz", x=rng.random((samples, width), dtype=np.float32), y=y)


def keras_fit(folder: pathlib.Path, batch: int, epochs: int) -> None:
    import keras

    model = keras.models.load_model(folder / "model.keras")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    data = np.load(folder / "data.npz")
    ends = []
    began = time.monotonic()
    model.fit(
        data["x"],
        data["y"],
        batch_size=batch,
        epochs=epochs,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: ends.append(time.monotonic()))
        ],
    )
    print(json.dumps({"training": ends[-1] - began, "second": ends[1] - ends[0]}))


def output(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)


def steadyfit(folder: pathlib.Path, cache: str, batch: int, epochs: int) -> dict[str, float]:
    model, data = ("head", "features.npz") if cache == "head" else ("model", "data.npz")
    flags = {
        "model": folder / model,
        "data": folder / data,
        "batch": batch,
        "epochs": epochs,
        "seed": 1,
        "auto": "off",
        "cache-features": "off" if cache == "head" else cache,
        "out": folder / f"out-{cache}",
    }
    out = output([str(ROOT / "bin/steadyfit"), *bench_ranks.fit(flags)])
    rates = [float(m) for m in re.findall(r"steps/s (\S+)", out.stderr)]
    steps = -(-len(np.load(folder / data)["y"]) // batch)
    found = re.search(r"computed once for .*? in ([\d.]+)(m?s)", out.stderr)
    computed = float(found[1]) / (1000 if found[2] == "ms" else 1) if found else 0.0
    return {
        "training": computed + sum(steps / r for r in rates),
        "second": steps / rates[1],
        "text": out.stdout.splitlines()[0],
    }


def variant(name: str, folder: pathlib.Path, args: argparse.Namespace) -> dict[str, float]:
    began = time.monotonic()
    if name == "keras":
        flags = [f"--keras={folder}", f"--batch={args.batch}", f"--epochs={args.epochs}"]
        out = output([sys.executable, __file__, *flags])
        result = json.loads(out.stdout.splitlines()[-1])
    else:
        result = steadyfit(folder, name, args.batch, args.epochs)
    result["process"] = time.monotonic() - began
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="mobilenet,module,encoder")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--keras", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.keras:
        keras_fit(args.keras, args.batch, args.epochs)
        return
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as temp:
            folder = pathlib.Path(temp)
            prepare(name, folder, args.samples)
            variants = ["off", "on"] if name == "module" else ["off", "on", "head", "keras"]
            runs: dict[str, list[dict[str, float]]] = {v: [] for v in variants}
            for _ in range(args.turns):
                for v in variants:
                    runs[v].append(variant(v, folder, args))
            print(
                f"{name}: {args.samples} samples, batch {args.batch}, {args.epochs} epochs, {args.turns} turns"
            )
            for v in variants:
                cells = []
                for key, unit in (("process", 1), ("training", 1), ("second", 1000)):
                    values = [r[key] * unit for r in runs[v]]
                    cells.append(
                        f"{key} {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
                    )
                print(
                    f"  {v:5s}  " + "   ".join(cells) + f"   {runs[v][0].get('text', '')}",
                    flush=True,
                )
            off = runs["off"]
            for key in ("process", "training"):
                ratio = statistics.median(r[key] for r in off) / statistics.median(
                    r[key] for r in runs["on"]
                )
                print(f"  {key}: {ratio:.1f} times as fast with cached features")
            same = (folder / "out-off/variables/variables.data-00000-of-00001").read_bytes() == (
                folder / "out-on/variables/variables.data-00000-of-00001"
            ).read_bytes()
            print(
                f"  the weights of off and on are {'equal bit for bit' if same else 'not bit-equal'}"
            )


if __name__ == "__main__":
    main()
