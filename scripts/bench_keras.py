#!/usr/bin/env python3
"""Train a benchmark model in Python and print time and memory: a variant of ``make bench``.

    python scripts/bench_keras.py VARIANT --model NAME --data DIR --batch N --steps N --epochs N

The program in internal/lab/bench starts this for each run; it is not for use by hand. The model is
the one of bench_models.py that was exported for the other variants, with the same weights,
optimizer, loss and metrics, and the batches are those of DIR/x.npy and DIR/y.npy, in order:
an epoch is one pass over them. One epoch to warm up comes before the measured ones.

================== ===================================================================
keras-fit          Model.fit with its defaults, from NumPy arrays
keras-fit-spe      the same with steps_per_execution=50
keras-fit-jit      the same with jit_compile=True
keras-fit-spe-jit  both
keras-train-on-    a Python loop over Model.train_on_batch
batch
tf-function        a Python loop over a tf.function of one step, which reads each loss
tf-data            one tf.function for an epoch, with the loop over a tf.data.Dataset in it
================== ===================================================================

Prints one JSON object, measure.Sample in Go. Time between epochs counts, since it is part of the
time of ``fit``. The first step of tf-data cannot be measured, since an epoch is one call. With
steps_per_execution, the first step is the first call.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import bench_models
import steadyfit_export as export

FUSED = 50


def memory() -> dict[str, int]:
    """The kernel's figures for this process, in bytes, by the names in /proc/self/status."""
    found = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "RssAnon", "VmHWM"):
            found[name] = int(rest.split()[0]) * 1024
    return found


class Meter:
    """Times each epoch from the end of the previous one, and records the memory after it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.first = 0
        self.times: list[float] = []
        self.losses: list[float] = []
        self.anon: list[int] = []
        self.cpu = 0
        self._since = self._cpu = 0

    def step(self) -> None:
        """Record the end of the first step; later calls do nothing."""
        if self.first == 0:
            self.first = time.time_ns()

    def epoch(self, loss: float) -> None:
        """Record the end of an epoch; the first one is the warm-up."""
        now, used = time.monotonic_ns(), time.process_time_ns()
        self.losses.append(float(loss))
        if len(self.losses) > 1:
            self.times.append((now - self._since) / self.steps)
            self.cpu = used - self._cpu
            self.anon.append(memory()["RssAnon"])
        else:
            self._cpu = time.process_time_ns()
        self._since = time.monotonic_ns()

    def sample(self) -> dict[str, Any]:
        """The result in the form that the parent reads."""
        tf, keras = export.load_tensorflow()
        held = memory()
        return {
            "steps": self.steps * len(self.times),
            "step_ns": self.times,
            "anon_bytes": self.anon,
            "rss_bytes": held["VmRSS"],
            "peak_bytes": held["VmHWM"],
            "cpu_ns": self.cpu,
            "first_step_unix_ns": self.first,
            "warmup_loss": self.losses[0],
            "last_loss": self.losses[-1],
            "versions": {
                "tensorflow": tf.__version__,
                "keras": keras.__version__,
                "python": sys.version.split()[0],
            },
        }


class Training:
    """A model with its data, before a variant uses it."""

    def __init__(self, model: str, data: pathlib.Path, batch: int, steps: int, epochs: int) -> None:
        import numpy as np

        self.x, self.y = np.load(data / "x.npy"), np.load(data / "y.npy")
        if not len(self.x) == len(self.y) == batch * steps:
            raise SystemExit(
                f"{data}: {len(self.x)} and {len(self.y)} samples, expected {steps} batches of {batch}"
            )
        self.batch, self.steps, self.passes = batch, steps, 1 + epochs
        self.model, self.adam, options = bench_models.make_model(model)
        self.loss = export.as_loss(options["loss"], options.get("from_logits", False))
        self.metrics = options.get("metrics", [])
        self.meter = Meter(steps)

    def compile(self, fused: int = 1, jit: bool | str = "auto") -> None:
        """Compile the Keras model."""
        self.model.compile(
            optimizer=self.adam,
            loss=self.loss,
            metrics=list(self.metrics),
            steps_per_execution=fused,
            jit_compile=jit,
        )
        if jit is True and not self.model.jit_compile:
            raise SystemExit("Keras does not compile this model with XLA")

    def batches(self) -> Any:
        """The batches of an epoch, as views."""
        for start in range(0, len(self.x), self.batch):
            yield self.x[start : start + self.batch], self.y[start : start + self.batch]

    def fit(self, fused: int = 1, jit: bool | str = "auto") -> None:
        """Model.fit over all epochs."""
        _, keras = export.load_tensorflow()
        self.compile(fused, jit)
        model, meter = self.model, self.meter
        make = model.make_train_function

        def make_and_watch(force: bool = False) -> None:
            """Record only the first batch, since a callback for each batch would slow Keras
            down."""
            make(force)
            function = model.train_function

            def first(iterator: Any) -> Any:
                logs = function(iterator)
                for value in logs.values():
                    value.numpy()
                meter.step()
                model.train_function = function
                return logs

            if meter.first == 0:
                model.train_function = first

        model.make_train_function = make_and_watch
        end = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: meter.epoch(logs["loss"]))
        model.fit(
            self.x,
            self.y,
            batch_size=self.batch,
            epochs=self.passes,
            shuffle=False,
            verbose=0,
            callbacks=[end],
        )

    def train_on_batch(self) -> None:
        """A Python loop over Model.train_on_batch."""
        self.compile()
        for _ in range(self.passes):
            total = 0.0
            for x, y in self.batches():
                total += self.model.train_on_batch(x, y, return_dict=True)["loss"]
                self.meter.step()
            self.meter.epoch(total / self.steps)

    def one_step(self) -> Callable[[Any, Any], dict[str, Any]]:
        """A train step in plain TensorFlow: the loss of the batch, and Keras's metrics."""
        from keras.src.trainers.compile_utils import CompileMetrics

        tf, _ = export.load_tensorflow()
        model, adam, loss_of = self.model, self.adam, self.loss
        weights = model.trainable_variables
        adam.build(weights)
        metrics = CompileMetrics(list(self.metrics), None)
        metrics.build(tf.constant(self.y[:1]), tf.zeros([1, *model.outputs[0].shape[1:]]))

        def step(x: Any, y: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                out = model(x, training=True)
                loss = loss_of(y, out)
            adam.apply(tape.gradient(loss, [w.value for w in weights]), weights)
            metrics.update_state(y, out)
            return {"loss": loss, **metrics.result()}

        return step

    def tf_function(self) -> None:
        """A Python loop over a tf.function of one step."""
        tf, _ = export.load_tensorflow()
        step = tf.function(self.one_step(), autograph=False)
        for _ in range(self.passes):
            total = 0.0
            for x, y in self.batches():
                total += float(step(tf.constant(x), tf.constant(y))["loss"])
                self.meter.step()
            self.meter.epoch(total / self.steps)

    def tf_data(self) -> None:
        """One tf.function for an epoch over a tf.data.Dataset."""
        tf, _ = export.load_tensorflow()
        step = self.one_step()
        dataset = tf.data.Dataset.from_tensor_slices((self.x, self.y))
        dataset = dataset.batch(self.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

        @tf.function(autograph=False)
        def epoch() -> Any:
            first = {"loss": 0.0, **{name: 0.0 for name in self.metrics}}
            return dataset.reduce(
                {name: tf.constant(value) for name, value in first.items()},
                lambda sums, batch: {
                    name: sums[name] + value for name, value in step(*batch).items()
                },
            )

        for _ in range(self.passes):
            self.meter.epoch(float(epoch()["loss"]) / self.steps)


VARIANTS: dict[str, Callable[[Training], None]] = {
    "keras-fit": lambda t: t.fit(),
    "keras-fit-spe": lambda t: t.fit(FUSED),
    "keras-fit-jit": lambda t: t.fit(jit=True),
    "keras-fit-spe-jit": lambda t: t.fit(FUSED, True),
    "keras-train-on-batch": Training.train_on_batch,
    "tf-function": Training.tf_function,
    "tf-data": Training.tf_data,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variant", choices=list(VARIANTS))
    parser.add_argument("--model", required=True, choices=list(bench_models.MODELS))
    parser.add_argument("--data", required=True, type=pathlib.Path, help="folder of x.npy, y.npy")
    parser.add_argument("--batch", required=True, type=int)
    parser.add_argument("--steps", required=True, type=int, help="steps per epoch")
    parser.add_argument("--epochs", required=True, type=int, help="epochs after the first one")
    arguments = parser.parse_args(argv)
    training = Training(
        arguments.model, arguments.data, arguments.batch, arguments.steps, arguments.epochs
    )
    VARIANTS[arguments.variant](training)
    print(json.dumps(training.meter.sample()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
