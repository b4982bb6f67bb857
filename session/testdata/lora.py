#!/usr/bin/env python3
"""Make the models of the tests: a frozen int8 base with LoRA and a trained head.

    .runtime/venv/bin/python session/testdata/lora.py

digits-lora takes the built-in digits. other/ has the variables of the same model with another
base. weights.safetensors is a file of the Python package safetensors, if it is installed.
"""

import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))

import steadyfit_export as export  # sets Keras' backend
import keras
import numpy as np


def write(out, seed):
    export.load_tensorflow()
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    x = keras.Input((64,), name="x")
    y = keras.layers.Dense(16, activation="relu", name="hidden")(keras.layers.Rescaling(1 / 16)(x))
    model = keras.Model(x, keras.layers.Dense(10, name="head")(y), name="digits")
    export.export(
        model,
        out,
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        lora="2:hidden",
        quantize="int8",
        train_only="head",
        force=True,
    )


def main():
    write(HERE / "digits-lora", 1)
    with tempfile.TemporaryDirectory() as temporary:
        write(f"{temporary}/m", 2)
        shutil.rmtree(HERE / "other", ignore_errors=True)
        shutil.copytree(f"{temporary}/m/variables", HERE / "other")
    try:
        from safetensors.numpy import save_file
    except ImportError:
        return
    values = np.arange(6, dtype="float32").reshape(2, 3)
    tensors = {"a/b": values, "half": values.astype("float16"), "n": np.array(-7),
               "none": np.zeros([0, 4], "int8"), "yes": np.array([True, False])}
    save_file(tensors, HERE / "weights.safetensors", {"format": "steadyfit.adapter/1", "base": "b"})


main()
