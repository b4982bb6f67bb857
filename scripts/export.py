#!/usr/bin/env python3
"""Export a Keras 3 model as a trainable SavedModel: the command, and a module for other scripts.

    python scripts/export.py --help

    import export
    report = export.export(model, "out/dir", optimizer="adam",
                           loss="sparse_categorical_crossentropy", metrics=["accuracy"])

docs/reference/contract.md describes the signatures that it writes, and docs/reference/keras.md
which models train as under Keras fit, and which are refused. The code is in steadyfit_export.

TensorFlow is imported on first use, so that ``--help`` is fast.
"""

# ruff: noqa: F401
import sys

from steadyfit_export.command import main
from steadyfit_export.load import load_model
from steadyfit_export.losses import as_loss
from steadyfit_export.names import (
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
from steadyfit_export.write import export

if __name__ == "__main__":
    sys.exit(main())
