"""Turn a Keras 3 model into a trainable SavedModel.

A trainable SavedModel contains its own train step: a program in Go, Python, Java or C
loads it, feeds a batch and fetches the loss, without Keras or Python. The commands are
steadyfit-export and steadyfit-import. In Python:

    import steadyfit_export
    report = steadyfit_export.export(model, "out/dir", optimizer="adam",
                                     loss="sparse_categorical_crossentropy", metrics=["accuracy"])

docs/reference/contract.md describes the signatures that it writes, and docs/reference/keras.md
which models train as under Keras fit, and which are refused. TensorFlow is imported on first use,
so that ``--help`` is fast.

Every variable that a step touches is tracked by the saved object, optimizer
slots, dropout seeds and accumulators included, because only tracked variables are
initialised on load and covered by the SavedModel's saver.

The modules, from the first to the last: names, graphs (what operations do), adapters (which
weights train), remat (layers that are computed again), inputs, losses, metrics, microbatches,
repeat (several steps), step (the train step of a Keras model), own (a model with its own step),
checks (does the result train), write, load, command; importing (back to Keras).
"""

# ruff: noqa: F401
try:
    import numpy
except ModuleNotFoundError:
    raise ImportError("this Python has no TensorFlow and Keras: pip install tensorflow-cpu (or tensorflow)") from None

from .load import load_model
from .losses import as_loss
from .names import (
    FORMAT,
    METADATA,
    Refusal,
    Report,
    Spec,
    UsageError,
    dtype_policy,
    literal,
    load_tensorflow,
    numbered,
    optimizers,
    own_methods,
)
from .write import export
