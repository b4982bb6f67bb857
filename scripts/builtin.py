#!/usr/bin/env python3
"""Make the models and the data that ship with the project (``make models``).

Writes the models for the digits and those for measurements of speed and memory
(bench_models.py), each as an archive in savedmodels/builtin, and
data/builtin/digits-{train,test}.npz, from fixed seeds. ``--check`` also trains the digits
models through their signatures and fails if one does not learn.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import pathlib
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import bench_models
import steadyfit_export as export

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = 1797
XLA_BATCH, XLA_STEPS = 32, 16
CLASS_NAMES = [str(digit) for digit in range(10)]

DATA_README = """\
Handwritten digits, 8x8 pixels

digits-train.npz   1438 samples
digits-test.npz     359 samples
    x  uint8 [N,64]   pixels in rows, 0 (paper) to 16 (ink)
    y  int64 [N]      the digit, 0 to 9

Source: Optical Recognition of Handwritten Digits, by E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, doi:10.24432/C50P49. These are the 1797 images of its test part, as
scikit-learn bundles them (sklearn.datasets.load_digits). Licence: Creative Commons
Attribution 4.0 International (CC BY 4.0). Changes made here: stored as uint8, shuffled and
split.

Split: stratified by digit, 80/20, with sklearn.model_selection.train_test_split(
test_size=359, stratify=y, random_state=1797). Written by scripts/builtin.py.
"""

MODELS_README = """\
Models that ship with the project, untrained, written by scripts/builtin.py from fixed seeds.
All train with Adam and carry train, train_n, evaluate, predict, gradients, apply and
set_learning_rate.

For use with the digits data (data/builtin): digits and digits-cnn take x float32
[B,64], an 8x8 image with pixels 0 to 16 (scaling is part of the model), and labels y int64
[B], and train on the crossentropy. digits has two dense layers, and also train_xla (batch 32)
and train_n_xla (16 steps of 32); digits-cnn has two convolutions and dropout.

Both in lower precision, made of the same weights under a dtype policy of Keras,
for measuring what that costs: digits-bf16 and digits-cnn-bf16 under mixed_bfloat16, digits-fp16
and digits-cnn-fp16 under mixed_float16, which scale their loss inside the graph (outputs
loss_scale, skipped_steps and grads_finite). digits-scaled is digits under mixed_float16 with
loss_scale as an input. They have no XLA twins.

For measuring speed and memory (scripts/bench_models.py defines them):
    dense-100-64-1         x float32 [B,100]          y float32 [B,1]   one hidden layer, mse
    dense-784-10           x float32 [B,784]          y int64 [B]       softmax regression
    dropout-200-512-256-1  x float32 [B,200]          y float32 [B,1]   two dropouts, crossentropy
    image-224              x float32 [B,224,224,3]    y int64 [B]       convolution, pool, dense
    lstm                   x float32 [B,20,16]        y int64 [B]       LSTM, dense
The first three also have train_xla (batch 32; dropout-200-512-256-1: 64) and train_n_xla (50
steps of that). image-224 takes 63 MB unpacked: 3.9 million weights, with Adam's slots and the
accumulators of gradients. Its dense weights repeat 4096 random values, so that it packs well:
it is for measuring time and memory, not for accuracy.

The same versions of TensorFlow, Keras and zlib write the same bytes again. Licence: that of
the project; they contain no data of others.
"""


def make_digits() -> Any:
    """A dense classifier for 8x8 digits that gives logits."""
    import keras

    return keras.Sequential(
        [
            keras.Input((64,), name="x"),
            keras.layers.Rescaling(1 / 16, name="scale"),
            keras.layers.Dense(128, activation="relu", name="hidden"),
            keras.layers.Dense(10, name="logits"),
        ],
        name="digits",
    )


def make_digits_cnn() -> Any:
    """A small convolutional classifier for 8x8 digits, with dropout, that gives logits."""
    import keras

    return keras.Sequential(
        [
            keras.Input((64,), name="x"),
            keras.layers.Rescaling(1 / 16, name="scale"),
            keras.layers.Reshape((8, 8, 1), name="image"),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2"),
            keras.layers.MaxPooling2D(name="pool"),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dropout(0.25, seed=SEED, name="dropout"),
            keras.layers.Dense(10, name="logits"),
        ],
        name="digits_cnn",
    )


MODELS = {
    "digits": (make_digits, {"xla_batch": XLA_BATCH, "xla_steps": XLA_STEPS}),
    "digits-cnn": (make_digits_cnn, {}),
}

# The same models under dtype policies: model, policy, more options.
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "digits-bf16": ("digits", "mixed_bfloat16", {}),
    "digits-fp16": ("digits", "mixed_float16", {}),
    "digits-scaled": ("digits", "mixed_float16", {"loss_scale_input": True}),
    "digits-cnn-bf16": ("digits-cnn", "mixed_bfloat16", {}),
    "digits-cnn-fp16": ("digits-cnn", "mixed_float16", {}),
}

# The models of bench_models.MODELS that ship.
ARCHIVES = ("dense-100-64-1", "dense-784-10", "dropout-200-512-256-1", "image-224", "lstm")
PACKED = (*MODELS, *VARIANTS, *ARCHIVES)
# An archive is committed and becomes part of every program that opens a model.
ARCHIVE_LIMIT = 2_000_000


def export_model(name: str, out: pathlib.Path) -> export.Report:
    """Export one built-in model to out, replacing an earlier export."""
    export.load_tensorflow()
    import keras

    base, policy, options = VARIANTS.get(name, (name, "float32", {}))
    make, own = MODELS[base]
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)
    with export.dtype_policy(policy):
        model = make()
    return export.export(
        model,
        out,
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        input_ranges={"x": (0, 16)},
        class_names=CLASS_NAMES,
        force=True,
        **(own if base == name else options),
    )


def write_zip(path: pathlib.Path, files: Mapping[str, bytes]) -> None:
    """Write an archive whose bytes depend on the files' names and content only."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)


def write_npz(path: pathlib.Path, arrays: dict[str, Any]) -> None:
    """Write an .npz whose bytes depend on the arrays only (numpy.savez stores the time)."""
    import numpy as np

    files = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), version=(1, 0))
        files[f"{name}.npy"] = buffer.getvalue()
    write_zip(path, files)


def make_archive(name: str, path: pathlib.Path) -> export.Report:
    """Export a model to an archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder, name)
        make = bench_models.export_model if name in ARCHIVES else export_model
        report = make(name, model)
        files = sorted(file for file in model.rglob("*") if file.is_file())
        write_zip(path, {file.relative_to(model).as_posix(): file.read_bytes() for file in files})
    if (size := path.stat().st_size) > ARCHIVE_LIMIT:
        path.unlink()
        raise export.UsageError(f"{path}: {size} bytes, at most {ARCHIVE_LIMIT} can be committed")
    return report


def make_data(out: pathlib.Path) -> None:
    """Write the digits and their README."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x, y = x.astype("uint8"), y.astype("int64")
    train_x, test_x, train_y, test_y = train_test_split(
        x, y, test_size=359, stratify=y, random_state=SEED
    )
    out.mkdir(parents=True, exist_ok=True)
    write_npz(out / "digits-train.npz", {"x": train_x, "y": train_y})
    write_npz(out / "digits-test.npz", {"x": test_x, "y": test_y})
    (out / "README.txt").write_text(DATA_README, encoding="utf-8")


def train(model: pathlib.Path, data: pathlib.Path, epochs: int, batch: int = 32) -> float:
    """Train an archived model through its signatures; returns the accuracy on the test part."""
    tf, _ = export.load_tensorflow()
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(model).extractall(folder)
        loaded = tf.saved_model.load(folder)
    step, evaluate = loaded.signatures["train"], loaded.signatures["evaluate"]
    part = {name: dict(np.load(data / f"digits-{name}.npz")) for name in ("train", "test")}
    x, y = part["train"]["x"].astype("float32"), part["train"]["y"]
    order = np.random.default_rng(SEED)
    for _ in range(epochs):
        shuffled = order.permutation(len(x))
        for start in range(0, len(x), batch):
            rows = shuffled[start : start + batch]
            step(x=tf.constant(x[rows]), y=tf.constant(y[rows]))
    loaded.signatures["reset_metrics"]()
    result = evaluate(
        x=tf.constant(part["test"]["x"].astype("float32")), y=tf.constant(part["test"]["y"])
    )
    return float(result["accuracy"])


def _exit_with(argv: Sequence[str]) -> None:
    sys.exit(main(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "savedmodels" / "builtin")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data" / "builtin")
    parser.add_argument("--only", choices=[*PACKED, "data"], help="this one only")
    parser.add_argument("--check", action="store_true", help="train each model and check it")
    parser.add_argument("--epochs", type=int, default=25, help="epochs of --check (25)")
    arguments = parser.parse_args(argv)
    names = [name for name in MODELS if arguments.only in (None, name)]
    if arguments.only is None:
        # TensorFlow numbers functions over the life of a process, so each model has its own
        # process and gets the same bytes in any order. A fork has TensorFlow already imported.
        for name in ["data", *PACKED]:
            places = ["--models", str(arguments.models), "--data", str(arguments.data)]
            process = multiprocessing.get_context("fork").Process(
                target=_exit_with, args=(["--only", name, *places],)
            )
            process.start()
            process.join()
            if process.exitcode != 0:
                print(f"builtin.py: making {name} failed", file=sys.stderr)
                return 1
    elif arguments.only == "data":
        make_data(arguments.data)
        print(f"{arguments.data}: digits-train.npz, digits-test.npz")
    else:
        path = arguments.models / f"{arguments.only}.zip"
        report = make_archive(arguments.only, path)
        size = f"{report.bytes / 1024:.0f} KiB, packed {path.stat().st_size / 1024:.0f} KiB"
        print(f"{path}: {size}, {', '.join(report.signatures)}")
        (arguments.models / "README.txt").write_text(MODELS_README, encoding="utf-8")
    failed = False
    for name in names if arguments.check else []:
        start = time.monotonic()
        accuracy = train(arguments.models / f"{name}.zip", arguments.data, arguments.epochs)
        seconds = time.monotonic() - start
        failed |= accuracy < 0.97
        print(
            f"{name}: test accuracy {accuracy:.4f} after {arguments.epochs} epochs, {seconds:.1f} s"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
