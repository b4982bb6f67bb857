"""The model of the command line: a saved file, or what a function returns."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from .names import UsageError, load_tensorflow

SAVED = (".keras", ".h5", ".hdf5")


def _load_saved(file: str, compiled: bool) -> Any:
    """A model of a file, with its optimizer, loss and metrics if compiled is true."""
    _, keras = load_tensorflow()
    # Older versions of Keras wrote these names, which Keras 3 does not find in an .h5 file.
    short = ("mse", "mae", "mape", "msle", "bce")
    names = {name: getattr(keras.losses.get(name), "__wrapped__", keras.losses.get(name)) for name in short}
    try:
        return keras.models.load_model(
            file, custom_objects=names if file.endswith(SAVED[1:]) else None, compile=compiled
        )
    except (TypeError, ValueError) as error:
        if not compiled:
            raise UsageError(f"{file}: {error}") from error
        raise UsageError(
            f"{file}: {error}; if this is about its optimizer, loss or metrics, pass --optimizer and --loss, which "
            "replace them"
        ) from error


def load_model(text: str, compiled: bool = True) -> tuple[Any, dict[str, Any]]:
    """Return (model, arguments of export) for a .keras file or module:function.

    If compiled is false, the optimizer, loss and metrics of a file are not read.
    """
    module_name, _, function_name = text.rpartition(":")
    file = text if text.endswith(SAVED) else module_name
    if file.endswith((*SAVED, ".py")) and not os.path.isfile(file):
        raise UsageError(f"no such file: {file}")
    if text.endswith(SAVED):
        return _load_saved(text, compiled), {}
    if not module_name or not function_name:
        raise UsageError(f"--model {text!r}: expected FILE.keras or module:function")
    if module_name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(pathlib.Path(module_name).stem, module_name)
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(pathlib.Path(module_name).absolute().parent))
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise UsageError(f"--model {text!r}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"--model {text!r}: {module_name} has no function {function_name!r}")
    result = function()
    if isinstance(result, Mapping):
        options = dict(result)
        return options.pop("model"), options
    if isinstance(result, tuple):
        return result[0], dict(zip(("optimizer", "loss", "metrics")[: len(result) - 1], result[1:], strict=True))
    return result, {}
