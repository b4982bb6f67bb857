"""The names that an export uses: errors, specs of tensors, signatures, and their metadata."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import keyword
import logging
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

VERSION = pathlib.Path(__file__).with_name("VERSION").read_text().strip()
FORMAT = 1
METADATA = os.path.join("assets.extra", "steadyfit.json")

# The command prints these messages, one for each phase of its work.
progress = logging.getLogger("steadyfit.export")

RESERVED_INPUTS = ("sample_weight", "learning_rate", "seed", "loss_scale", "group_size")
RESERVED_OUTPUTS = ("loss", "grads_finite", "global_step", "loss_scale", "skipped_steps")
# Scalars that are not means: several steps return the value of the last one.
STATES = ("loss_scale", "skipped_steps")


class Refusal(Exception):
    """A model that would not train correctly after export: what is wrong, and what to do."""

    def __init__(self, what: str, *, found: str, do: str) -> None:
        found = re.sub(r"\x1b\[[0-9;]*m", "", found)  # Keras colours its errors
        self.what, self.found, self.do = what, found, do
        super().__init__(f"{what}\n  found: {found}\n  do:    {do}")


class UsageError(Exception):
    """Arguments that do not fit together; exit code 2 of the command."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """One signature input without its batch dimension; None stands for any size."""

    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"

    def json(self) -> dict[str, Any]:
        """The metadata of the input, with its batch dimension."""
        return {"dtype": self.dtype, "shape": [-1, *(-1 if d is None else d for d in self.shape)]}


@dataclasses.dataclass(frozen=True)
class Report:
    """The files and checks of an export, and notes on how the model trains."""

    path: str
    bytes: int
    signatures: dict[str, dict[str, dict[str, str]]]
    metadata: dict[str, Any]
    checks: list[str]
    notes: list[str]


def parse_spec(text: str) -> Spec:
    """Read ``float32[28,28]``; ``?`` is a dimension of any size, ``[]`` a scalar."""
    match = re.fullmatch(r"([a-z][a-z0-9]*)\[(((\?|[1-9][0-9]*)(,|(?=\])))*)\]", text.replace(" ", ""))
    if not match:
        raise UsageError(f"cannot read {text!r}: expected DTYPE[DIMS], as in float32[28,28]")
    return Spec(match[1], tuple(None if d == "?" else int(d) for d in match[2].split(",") if d))


def load_tensorflow() -> tuple[Any, Any]:
    """Import TensorFlow, and Keras on TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import tensorflow as tf

    if keras.__version__ < "3":
        raise UsageError(f"found Keras {keras.__version__}: install Keras 3")
    return tf, keras


@contextlib.contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Keras's default dtype policy, for layers made in the block."""
    _, keras = load_tensorflow()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


class Names:
    """The names of a model's inputs, outputs, labels and metrics, and their keys in signatures.

    A key is an identifier that no other key equals in lower case, because TensorFlow makes Python
    parameters and names of operations from keys. The metadata has the names whose keys differ.
    """

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def key(self, name: str, wish: str = "") -> str:
        """The key of a name, the same for each call; wish, if no other name has it."""
        if name not in self._keys:
            key = wish or re.sub(r"[^A-Za-z0-9_]", "_", name)
            if not key[:1].isalpha():
                key = f"x{key}"
            if keyword.iskeyword(key) or key == "self":
                key += "_"
            taken = {*RESERVED_INPUTS, *RESERVED_OUTPUTS, *(k.lower() for k in self._keys.values())}
            candidates = itertools.chain([key], (f"{key}_{n}" for n in itertools.count(2)))
            self._keys[name] = next(k for k in candidates if k.lower() not in taken)
        return self._keys[name]

    def name(self, key: str) -> str:
        """The name of a key."""
        return next((n for n, k in self._keys.items() if k == key), key)

    def changed(self) -> dict[str, str]:
        """The names that differ from their keys, by key."""
        return {key: name for name, key in self._keys.items() if key != name}


def numbered(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of the items; repeated names get numbers."""
    result: dict[str, Any] = {}
    for name, value in items:
        key, n = name, 2
        while key in result:
            key, n = f"{name}#{n}", n + 1
        result[key] = value
    return result


def by_path(variables: Sequence[Any]) -> dict[str, Any]:
    """The tf.Variables of Keras variables by path."""
    return numbered((v.path, v.value) for v in variables)


def optimizers(model: Any) -> list[Any]:
    """The optimizer of compile, and other optimizers of the model's own steps."""
    _, keras = load_tensorflow()
    found = [model.optimizer, *vars(model).values()]
    return list({id(o): o for o in found if isinstance(o, keras.optimizers.Optimizer)}.values())


# The methods of a Keras model that determine what a step computes.
OWN_METHODS = (
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
    "compute_metrics",
    "reset_metrics",
    "get_metrics_result",
    "metrics",
)
# The methods that call the steps: an export cannot include them.
DRIVING_METHODS = ("fit", "make_train_function", "make_test_function")


def own_methods(model: Any, names: Sequence[str] = OWN_METHODS) -> list[str]:
    """The names of the methods that the model or its class overrides."""
    _, keras = load_tensorflow()

    def own(name: str) -> bool:
        if name in vars(model):
            return True
        owner = next(c for c in type(model).__mro__ if name in vars(c))
        # The fit of KerasHub's tasks prepares data, and then trains like that of Keras.
        prepares = name == "fit" and owner.__module__.split(".")[0] == "keras_hub"
        return owner not in keras.Model.__mro__ and not prepares

    return [name for name in names if own(name)]


@contextlib.contextmanager
def literal(folder: str | os.PathLike[str]) -> Iterator[str]:
    """A path of a folder that TensorFlow takes literally, for the block.

    TensorFlow takes the paths of files that it restores as patterns, though not of those that it saves.
    """
    if not any(c in os.fspath(folder) for c in "*?[\\") or not os.path.isdir(folder):
        yield os.fspath(folder)
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def kept_values(variables: Sequence[Any]) -> Iterator[None]:
    """Restore the values of variables after the block."""
    before = [(variable, variable.numpy()) for variable in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)
