"""Write a pretrained network with a frozen base, and data to fine-tune it on.

    python examples/transfer/pretrain.py OUT

pretrains a small convolutional network on the built-in digits 0 to 4. OUT/model is the
network with frozen convolutions and a new head, and OUT/train.npz and OUT/test.npz are the
digits 5 to 9. Nothing is downloaded. Other networks:

    --fashion FOLDER         pretrain on the Fashion-MNIST files of a folder and fine-tune on
                             all digits, as images of 28x28 pixels
    --application NAME       a network of keras.applications, such as MobileNetV2, with the
                             weights of --weights and the digits 5 to 9 as color images of
                             --size pixels; with --classes N, only the model, for images of
                             your own
"""

from __future__ import annotations

import argparse
import gzip
import inspect
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import steadyfit_export as export

Arrays = tuple[Any, Any]


def digits() -> tuple[Arrays, Arrays]:
    """The training and test part of the built-in digits: images from 0 to 255, and labels."""
    import numpy as np

    parts = []
    for name in ("train", "test"):
        with np.load(ROOT / "data" / "builtin" / f"digits-{name}.npz") as part:
            x = (part["x"].astype("float32") * (255 / 16)).round().astype("uint8")
            parts.append((x.reshape(-1, 8, 8), part["y"]))
    return parts[0], parts[1]


def read_idx(file: pathlib.Path) -> Any:
    """Read a gzipped IDX file of unsigned bytes."""
    import numpy as np

    data = gzip.decompress(file.read_bytes())
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{file}: not an IDX file of unsigned bytes")
    shape = np.frombuffer(data, ">i4", data[3], 4)
    return np.frombuffer(data, "uint8", offset=4 + 4 * data[3]).reshape(shape)


def fashion(folder: pathlib.Path) -> Arrays:
    """The training part of Fashion-MNIST, from its gzipped IDX files."""
    return (
        read_idx(folder / "train-images-idx3-ubyte.gz"),
        read_idx(folder / "train-labels-idx1-ubyte.gz"),
    )


def of_classes(part: Arrays, first: int, last: int) -> Arrays:
    """The samples of some classes, counted from 0."""
    x, y = part
    chosen = (y >= first) & (y <= last)
    return x[chosen], y[chosen] - first


def small_base(size: int) -> Any:
    """Two convolutions, for gray images of bytes."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((size, size)),
            layers.Rescaling(1 / 255),
            layers.Reshape((size, size, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ],
        name="base",
    )


def application_base(name: str, weights: str | None, size: int) -> Any:
    """A network of keras.applications without its head, for color images of bytes."""
    import keras

    make = getattr(keras.applications, name)
    network = make(include_top=False, weights=weights, input_shape=(size, size, 3), pooling="avg")
    image = keras.Input((size, size, 3))
    scaled = inspect.getmodule(make).preprocess_input(image)
    return keras.Model(image, network(scaled, training=False), name="base")


def with_head(base: Any, classes: int) -> Any:
    """A classifier on the features of a base."""
    import keras

    image = keras.Input(base.input_shape[1:])
    hidden = keras.layers.Dense(64, activation="relu", name="hidden")(base(image, training=False))
    return keras.Model(image, keras.layers.Dense(classes, name="head")(hidden))


def pretrain(base: Any, part: Arrays, classes: int, epochs: int) -> None:
    """Train a base below a head that is then dropped."""
    import keras

    model = with_head(base, classes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(*part, batch_size=32, epochs=epochs, verbose=2)


def resized(part: Arrays, size: int) -> Arrays:
    """Gray images in another size."""
    import tensorflow as tf

    x, y = part
    return tf.image.resize(x[..., None], (size, size)).numpy()[..., 0].round().astype("uint8"), y


def main(argv: Sequence[str] | None = None) -> None:
    """Write model and data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=pathlib.Path, help="folder to write")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the pretraining (10)")
    parser.add_argument("--fashion", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--application", metavar="NAME")
    parser.add_argument("--weights", help="a file, or imagenet, which Keras downloads; or random")
    parser.add_argument("--size", type=int, default=96, help="pixels of a side (96)")
    parser.add_argument("--classes", type=int, help="classes of your images")
    arguments = parser.parse_args(argv)
    if arguments.fashion and arguments.application:
        parser.error("--fashion and --application are two ways to get a network; choose one")
    if arguments.application and not arguments.weights:
        parser.error("--application needs --weights: a file, imagenet or random")

    _, keras = export.load_tensorflow()
    import numpy as np

    keras.utils.set_random_seed(1)
    train, test = digits()
    if arguments.fashion:
        base = small_base(28)
        pretrain(base, fashion(arguments.fashion), 10, arguments.epochs)
        train, test = resized(train, 28), resized(test, 28)
    else:
        if arguments.application:
            size = arguments.size
            weights = None if arguments.weights == "random" else arguments.weights
            base = application_base(arguments.application, weights, size)
            train, test = (
                (np.repeat(x[..., None], 3, axis=-1), y)
                for x, y in (resized(train, size), resized(test, size))
            )
        else:
            base = small_base(8)
            pretrain(base, of_classes(train, 0, 4), 5, arguments.epochs)
        train, test = of_classes(train, 5, 9), of_classes(test, 5, 9)

    classes = arguments.classes or int(train[1].max()) + 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    export.export(
        with_head(base, classes),
        arguments.out / "model",
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        input_dtypes={"x": "uint8"},
        input_ranges={"x": (0, 255)},
        train_only="hidden,head",
        force=True,
    )
    if arguments.classes:
        return
    for name, (x, y) in (("train", train), ("test", test)):
        np.savez(arguments.out / f"{name}.npz", x=x, y=y.astype("int64"))


if __name__ == "__main__":
    main()
