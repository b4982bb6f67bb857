#!/usr/bin/env python3
"""Train a benchmark model with Keras and print time and memory: a variant of ``make bench``.

    python scripts/bench_keras.py VARIANT -model NAME -data DIR -batch N -steps N -epochs N

BenchmarkTrain in internal/lab/bindings starts this for each run; it is not for use by hand. The model is
the one of bench_models.py that was exported for the other variants, with the same weights,
optimizer, loss and metrics, and the batches are those of DIR/x.npy and DIR/y.npy, in order:
an epoch is one pass over them. One epoch to warm up comes before the measured ones.

================== ===================================================================
keras-fit          Model.fit with its defaults, from NumPy arrays
keras-fit-spe      the same with steps_per_execution=50
keras-fit-jit      the same with jit_compile=True
keras-fit-spe-jit  both
================== ===================================================================

Prints one JSON object. Time between epochs counts, since it is part of the time of ``fit``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

import bench_models
import steadyfit_export as export

VARIANTS: dict[str, dict[str, Any]] = {
    "keras-fit": {},
    "keras-fit-spe": {"steps_per_execution": 50},
    "keras-fit-jit": {"jit_compile": True},
    "keras-fit-spe-jit": {"steps_per_execution": 50, "jit_compile": True},
}


def memory() -> dict[str, int]:
    """The kernel's figures for this process, in bytes, by the names in /proc/self/status."""
    found = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("RssAnon", "VmHWM"):
            found[name] = int(rest.split()[0]) * 1024
    return found


def train(model: str, data: pathlib.Path, batch: int, steps: int, epochs: int, **options: Any) -> dict[str, Any]:
    """Train, and return the result in the form that the parent reads. The options are those of compile."""
    import numpy as np

    x, y = np.load(data / "x.npy"), np.load(data / "y.npy")
    if not len(x) == len(y) == batch * steps:
        raise SystemExit(f"{data}: {len(x)} and {len(y)} samples, expected {steps} batches of {batch}")
    _, keras = export.load_tensorflow()
    network, adam, exported = bench_models.make_model(model)
    loss = export.as_loss(exported["loss"], exported.get("from_logits", False))
    network.compile(optimizer=adam, loss=loss, metrics=list(exported.get("metrics", [])), **options)
    if "jit_compile" in options and not network.jit_compile:
        raise SystemExit("Keras does not compile this model with XLA")
    times, losses, anon = [], [], []
    since = 0

    def end(_: int, logs: dict[str, float]) -> None:
        """Record an epoch; the first one is the warm-up."""
        nonlocal since
        losses.append(float(logs["loss"]))
        if len(losses) > 1:
            times.append((time.monotonic_ns() - since) / steps)
            anon.append(memory()["RssAnon"])
        since = time.monotonic_ns()

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=end)]
    network.fit(x, y, batch_size=batch, epochs=1 + epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return {"step_ns": times, "anon_bytes": anon, "peak_bytes": memory()["VmHWM"], "warmup_loss": losses[0]}


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=list(VARIANTS))
    parser.add_argument("-model", required=True, choices=list(bench_models.MODELS))
    parser.add_argument("-data", required=True, type=pathlib.Path, help="folder of x.npy, y.npy")
    parser.add_argument("-batch", required=True, type=int)
    parser.add_argument("-steps", required=True, type=int, help="steps per epoch")
    parser.add_argument("-epochs", required=True, type=int, help="epochs after the first one")
    a = parser.parse_args(argv)
    print(json.dumps(train(a.model, a.data, a.batch, a.steps, a.epochs, **VARIANTS[a.variant])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
