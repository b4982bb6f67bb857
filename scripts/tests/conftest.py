"""What the tests share: the exporter, and a SavedModel in a session as a C program sees it."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SCRIPTS))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf


class Loaded:
    """A SavedModel in a session of its own, driven through tensor names only."""

    def __init__(self, path: os.PathLike[str] | str) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.session = tf.compat.v1.Session(graph=self.graph)
            meta = tf.compat.v1.saved_model.load(self.session, ["serve"], str(path))
            self.signatures = {
                name: signature
                for name, signature in meta.signature_def.items()
                if not name.startswith("__")
            }
            self.saver = meta.saver_def
            self.reads = {
                op.get_attr("shared_name").decode(): tf.raw_ops.ReadVariableOp(
                    resource=op.outputs[0], dtype=tf.as_dtype(op.get_attr("dtype"))
                )
                for op in self.graph.get_operations()
                if op.type == "VarHandleOp"
            }

    def run(self, signature: str, **feeds: Any) -> dict[str, Any]:
        """Run a signature."""
        info = self.signatures[signature]
        assert set(feeds) == set(info.inputs)
        return self.session.run(
            {name: tensor.name for name, tensor in info.outputs.items()},
            {info.inputs[name].name: value for name, value in feeds.items()},
        )

    def variables(self) -> dict[str, np.ndarray]:
        """The value of every variable, by name."""
        return self.session.run(self.reads)

    def save(self, prefix: os.PathLike[str] | str) -> None:
        """Write a checkpoint."""
        self.session.run(
            self.saver.save_tensor_name, {self.saver.filename_tensor_name: str(prefix)}
        )

    def restore(self, prefix: os.PathLike[str] | str) -> None:
        """Read a checkpoint."""
        self.session.run(self.saver.restore_op_name, {self.saver.filename_tensor_name: str(prefix)})


@pytest.fixture
def load() -> Iterator[Callable[[Any], Loaded]]:
    """Open SavedModels; their sessions close when the test ends."""
    opened: list[Loaded] = []

    def open_(path: Any) -> Loaded:
        opened.append(Loaded(path))
        return opened[-1]

    yield open_
    for loaded in opened:
        loaded.session.close()


@pytest.fixture(autouse=True)
def fresh_keras() -> None:
    """Set fixed seeds and reset names for every test."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)


@pytest.fixture
def random() -> np.random.Generator:
    """Test data is the same in every run."""
    return np.random.default_rng(11)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> list[str]:
    """Names whose values differ in any bit."""
    assert set(a) == set(b)
    return [name for name in a if not np.array_equal(a[name], b[name])]


def close(a: dict[str, np.ndarray], b: dict[str, np.ndarray], tolerance: float = 1e-5) -> list[str]:
    """Names whose values differ by more than the order of float additions explains."""
    assert set(a) == set(b)
    return [n for n in a if not np.allclose(a[n], b[n], rtol=tolerance, atol=tolerance)]
