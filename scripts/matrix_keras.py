#!/usr/bin/env python3
"""Do one run of the matrix with Keras: the child process of the runtime "keras".

Only ``steadyfit matrix`` can start this program. The same workloads exist in Go, with the
same models, batches and shapes.

The environment variable STEADYFIT_RUN describes the run in JSON. Messages go to file descriptor
3, one JSON object a line. After a message of kind "phase" or "step" the child waits for one
byte from descriptor 4. Meanwhile the parent samples the waiting process, so that every sample
is taken between steps. internal/lab/worker/worker.go describes the protocol.

========= ==============================================================================
workload  a step
========= ==============================================================================
W0        a train step on a batch from memory
W1        the same, and a tensor of 64 KiB that is kept
W2, S3    a train step on newly generated images
W3        a prediction for a random number of samples
W4        the model is built and compiled, and trained on one batch
W5        a tf.function is traced with a new Python number
W6        a keras.Model with another set of a model's 14 outputs is made and called
W8        threads make and drop tensors of 64 to 256 KiB
W9        a train step with jit_compile=True on a new number of samples
W10       predictions whose values are kept
W11       a train step from a tf.data pipeline with a shuffle buffer
W12       a tensor of strings is made, passed through an operation and read
S0        a train step on one of many batches of a large set
S1, S1d   a train step, with validation at each epoch's end
S2, S2l   a train step of a classifier; of an LSTM
S4        a train step whose logs are kept
========= ==============================================================================

Parameters that every workload has: ``gc`` and ``trim`` as in Go, and ``intra``, ``inter`` (threads),
``grappler`` (0: no graph rewriting) and ``bf16`` (1: rewriting to bfloat16). A parameter that the
workload or loop does not read ends the run as "not applicable" before it starts. Otherwise the
report would show the remedy as one without an effect.

In the loop "fit", the loss is the mean over the epoch so far, as Keras reports it.

TensorFlow is imported after the first sample, to measure the memory of the import.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import faulthandler
import functools
import gc
import json
import math
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import bench_models
import builtin
import steadyfit_export as export

ENVIRONMENT = "STEADYFIT_RUN"
MESSAGES, ANSWERS = 3, 4

NOT_APPLICABLE = "not applicable"
COULD_NOT_APPLY = "could not apply"
OUT_OF_MEMORY = "out of memory"
FAILED = "failed"


class ParameterError(Exception):
    """The run cannot use a parameter."""

    def __init__(self, failure: str, name: str, value: str, reason: str) -> None:
        self.failure = failure
        super().__init__(f"{failure}: {name}={value}: {reason}")


class Gone(Exception):
    """The parent has ended."""


class Again(Exception):
    """This process has saved its state; another one continues."""


# --- the protocol --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spec:
    """Description of the run: worker.Spec in Go."""

    workload: str
    steps: int
    every: int
    epoch: int
    batch: int
    seed: int
    samples: int = 0  # size of the data set; 0 is epoch * batch
    start: int = 0  # steps of earlier processes
    model: str = ""
    scratch: str = ""
    config: str = ""
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Spec:
        """Read the Spec from the environment.

        Raises:
            ValueError: it is no Spec.
        """
        names = {"from": "start", "knobs": "params"}
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            raw = {names.get(name, name): value for name, value in json.loads(text).items()}
            spec = cls(**{name: raw[name] for name in raw.keys() & known})
            for name in ("steps", "every", "epoch", "batch"):
                if getattr(spec, name) < 1:
                    raise ValueError(f"{name} is {getattr(spec, name)}: expected at least 1")
            if spec.samples < 0 or spec.samples % spec.epoch:
                raise ValueError(f"samples is {spec.samples}: expected a multiple of {spec.epoch}")
        except (TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return spec

    @property
    def set_size(self) -> int:
        """The number of samples in the dataset, independent of a divided batch."""
        return self.samples or self.epoch * self.batch

    @property
    def whole_batch(self) -> int:
        """The batch before a remedy divides it."""
        return self.set_size // self.epoch


class _Mallinfo2(ctypes.Structure):
    """The result of glibc's mallinfo2 (malloc.h, from glibc 2.33 on)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


class Malloc:
    """The malloc of this process: glibc's, or a preloaded one."""

    def __init__(self) -> None:
        self._all = ctypes.CDLL(None)
        self._info: Any = None
        if self._is_glibc():
            self._info = getattr(self._all, "mallinfo2", None)
            if self._info is not None:
                self._info.restype = _Mallinfo2

    def _is_glibc(self) -> bool:
        # With a preloaded allocator, glibc's functions still exist, but report nothing.
        try:
            libc = ctypes.CDLL("libc.so.6")
            ours, theirs = (ctypes.cast(c.malloc, ctypes.c_void_p).value for c in (self._all, libc))
        except (OSError, AttributeError):
            return False
        return ours == theirs

    def values(self) -> dict[str, int | None]:
        """The layers in bytes that only this process knows; None is unknown."""
        if self._info is None:
            return {"malloc in use": None, "malloc free": None, "malloc arenas": None}
        info = self._info()
        return {
            "malloc in use": info.uordblks + info.hblkhd,
            "malloc free": info.fordblks,
            "malloc arenas": info.arena + info.hblkhd,
        }

    def trim(self) -> bool:
        """Return free memory to the system; False if the allocator cannot do that."""
        if self._is_glibc():
            self._all.malloc_trim(ctypes.c_size_t(0))
            return True
        if hasattr(self._all, "mallctl"):  # jemalloc; 4096 stands for all arenas
            return self._all.mallctl(b"arena.4096.purge", None, None, None, ctypes.c_size_t(0)) == 0
        if hasattr(self._all, "MallocExtension_ReleaseFreeMemory"):  # tcmalloc
            self._all.MallocExtension_ReleaseFreeMemory()
            return True
        if hasattr(self._all, "mi_collect"):  # mimalloc
            self._all.mi_collect(ctypes.c_bool(True))
            return True
        return False


class Child:
    """The child's side of the protocol, and the parameters."""

    def __init__(self, spec: Spec, messages: int = MESSAGES, answers: int = ANSWERS) -> None:
        self.spec = spec
        self.malloc = Malloc()
        self._messages, self._answers = messages, answers
        self._used: set[str] = set()
        self._last = spec.start
        self._since: int | None = None

    def parameter(self, name: str, *words: str) -> str:
        """The value of a parameter, one of several words; the first is the default."""
        self._used.add(name)
        value = self.spec.params.get(name, words[0])
        if value not in words:
            shown = ", ".join(dict.fromkeys(filter(None, words)))
            raise ParameterError(NOT_APPLICABLE, name, value, f"this workload has only {shown}")
        return value

    def switch(self, name: str, default: bool = False) -> bool:
        """A parameter that is on or off."""
        words = ("1", "on", "0", "off") if default else ("0", "off", "1", "on")
        return self.parameter(name, *words) in ("1", "on")

    def xla(self, default: bool = False) -> bool:
        """The parameter jit: whether XLA compiles the step."""
        jit = self.switch("jit", default)
        if not jit and not default and "jit" in self.spec.params:
            self.refuse("jit", "it is off already")
        return jit

    def number(self, name: str, default: int, least: int = 0) -> int:
        """A parameter that is a number."""
        self._used.add(name)
        text = self.spec.params.get(name, str(default))
        if not re.fullmatch(r"\d{1,12}", text) or int(text) < least:
            raise ParameterError(
                NOT_APPLICABLE, name, text, f"expected a number of at least {least}"
            )
        return int(text)

    def refuse(self, name: str, reason: str) -> NoReturn:
        """End the run because of a parameter."""
        raise ParameterError(NOT_APPLICABLE, name, self.spec.params.get(name, ""), reason)

    def check_params(self) -> None:
        """Refuse parameters that were set but never read."""
        for name in sorted(set(self.spec.params) - self._used):
            self.refuse(name, "it changes nothing in this workload")
        if self.spec.config:
            raise ParameterError(NOT_APPLICABLE, "config", "...", "Keras takes no ConfigProto")

    def fact(self, name: str, value: object) -> None:
        """Report a fact about the run."""
        self._send({"kind": "fact", "name": name, "value": str(value)})

    def phase(self, name: str) -> None:
        """Request a sample between two phases."""
        self._ask({"kind": "phase", "name": name, "step": self._last})

    def step(self, step: int) -> None:
        """Request a sample after steps if one is due."""
        if step % self.spec.every:
            return
        message: dict[str, Any] = {"kind": "step", "step": step}
        if self._since is not None and step > self._last:
            message["step_ns"] = (time.monotonic_ns() - self._since) // (step - self._last)
        self._last = step
        self._ask(message)

    def again(self, step: int) -> None:
        """End this process, so that another one continues."""
        self._send({"kind": "again", "step": step})

    def end(self, error: BaseException | None = None) -> None:
        """Send the last message."""
        message = {"kind": "end"}
        if error is not None:
            message["failure"] = failure_of(error)
            message["text"] = str(error)[:2000] or type(error).__name__
        self._send(message)

    def _ask(self, message: dict[str, Any]) -> None:
        message["values"] = self.malloc.values()
        self._send(message)
        if not os.read(self._answers, 1):
            raise Gone("the parent has ended")
        self._since = time.monotonic_ns()

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._messages, line) :]
        except BrokenPipeError as error:
            raise Gone("the parent has ended") from error


def failure_of(error: BaseException) -> str:
    """The kind of failure for an exception."""
    if isinstance(error, ParameterError):
        return error.failure
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    # By name, since TensorFlow may be the module that could not be imported.
    if any(kind.__name__ == "ResourceExhaustedError" for kind in type(error).__mro__):
        return OUT_OF_MEMORY
    return FAILED


# --- models and samples --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model and the form of its samples."""

    make: Callable[[], tuple[Any, dict[str, Any]]]
    shape: tuple[int, ...]
    classes: int  # 2 if the model has one output
    float_label: bool = False


def _digits(make: Callable[[], Any]) -> Callable[[], tuple[Any, dict[str, Any]]]:
    options = {
        "loss": "sparse_categorical_crossentropy",
        "from_logits": True,
        "metrics": ["accuracy"],
        "learning_rate": 2e-3,
    }
    return lambda: (make(), dict(options))


ARCHITECTURES = {
    "digits": Architecture(_digits(builtin.make_digits), (64,), 10),
    "digits-cnn": Architecture(_digits(builtin.make_digits_cnn), (64,), 10),
    "dense-100-64-1": Architecture(bench_models.MODELS["dense-100-64-1"], (100,), 2, True),
    "dense-784-10": Architecture(bench_models.MODELS["dense-784-10"], (784,), 10),
    "dropout-200-512-256-1": Architecture(
        bench_models.MODELS["dropout-200-512-256-1"], (200,), 2, True
    ),
    "image-224": Architecture(bench_models.MODELS["image-224"], (224, 224, 3), 10),
    "lstm": Architecture(bench_models.MODELS["lstm"], (20, 16), 10),
}


def architecture_of(spec: Spec, default: str) -> str:
    """The architecture of the Spec's model, whose folder is called NAME or NAME-HASH."""
    folder = re.sub(r"-[0-9a-f]{16}$", "", pathlib.PurePath(spec.model).name)
    return folder if folder in ARCHITECTURES else default


class Samples:
    """Generates samples for an architecture from the seed and a key.

    They can be learnt: a sample of class k has larger values at every position that is k
    modulo the number of classes.
    """

    def __init__(self, architecture: Architecture, seed: int) -> None:
        self.architecture, self.seed = architecture, seed

    def make(self, n: int, key: int, into: Any = None) -> tuple[Any, Any]:
        """Make n samples (x, y), in the arrays of into if it is given."""
        import numpy as np

        a = self.architecture
        random = np.random.default_rng([self.seed, key])
        x = np.empty((n, *a.shape), "float32") if into is None else into[:n]
        random.random(out=x, dtype="float32")
        classes = random.integers(0, a.classes, n)
        flat = x.reshape(n, -1)
        for k in range(a.classes):
            flat[classes == k, k :: a.classes] += 1
        if a.float_label:
            return x, classes.astype("float32")[:, None]
        return x, classes

    def signature(self) -> tuple[Any, Any]:
        """The specs of a batch, for tf.data."""
        import tensorflow as tf

        a = self.architecture
        x = tf.TensorSpec((None, *a.shape), "float32")
        if a.float_label:
            return x, tf.TensorSpec((None, 1), "float32")
        return x, tf.TensorSpec((None,), "int64")


# --- loops ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """How a model is trained."""

    loop: str
    delete: bool
    eager: bool
    jit: bool
    mixed: str

    @classmethod
    def ask(cls, child: Child, jit: bool = False, delete_model: bool = False) -> LoopOptions:
        """Read the parameters of a train loop.

        Args:
            child: the child, which has the parameters.
            jit: whether XLA compiles the step if no parameter decides that.
            delete_model: whether the parameter del has an effect in every loop.
        """
        loop = child.parameter("loop", "fit", "function", "eager", "train_on_batch")
        options = cls(
            loop=loop,
            delete=child.switch("del"),
            eager=child.switch("eager"),
            jit=child.xla(default=jit),
            mixed=child.parameter("mixed", "", "mixed_bfloat16", "mixed_float16"),
        )
        own = loop in ("function", "eager")
        if options.delete and not own and not delete_model:
            child.refuse("del", f"the loop {loop} is that of Keras: there is nothing to delete")
        if options.eager and loop == "eager":
            child.refuse("eager", "the loop eager has no function to run eagerly")
        if options.eager or loop == "eager":
            if options.jit and "jit" in child.spec.params:
                child.refuse("jit", "eager execution compiles nothing")
            options = dataclasses.replace(options, jit=False)
        return options


class Learner:
    """A compiled model, and a step on it by the chosen loop."""

    def __init__(self, architecture: Architecture, options: LoopOptions) -> None:
        import keras
        import tensorflow as tf

        self.options = options
        self.model, described = architecture.make()
        self.loss = export.as_loss(described["loss"], described.get("from_logits", False))
        self.model.compile(
            optimizer=keras.optimizers.Adam(described.get("learning_rate", 1e-3)),
            loss=self.loss,
            metrics=described.get("metrics"),
            jit_compile=options.jit,
            run_eagerly=options.eager,
        )
        # Create the slots before a step is traced, since a traced step must not create variables.
        self.model.optimizer.build(self.model.trainable_variables)
        self._train, self._test = self._own_step, self._own_test
        if options.loop == "function":
            self._train = tf.function(self._own_step, jit_compile=options.jit)
            self._test = tf.function(self._own_test, jit_compile=options.jit)

    def step(self, x: Any, y: Any) -> float:
        """Train on a batch; returns the loss."""
        if self.options.loop == "train_on_batch":
            return float(self.model.train_on_batch(x, y, return_dict=True)["loss"])
        if self.options.loop == "fit":
            done = self.model.fit(x, y, batch_size=len(x), epochs=1, verbose=0)
            return float(done.history["loss"][0])
        import tensorflow as tf

        x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
        loss = self._train(x, y)
        value = float(loss)
        if self.options.delete:
            # This is often recommended, but has no effect, since these variables go out of scope
            # here.
            del x, y, loss
        return value

    def test(self, x: Any, y: Any) -> None:
        """Evaluate a batch."""
        if self.options.loop == "train_on_batch":
            self.model.test_on_batch(x, y)
            return
        import tensorflow as tf

        float(self._test(tf.convert_to_tensor(x), tf.convert_to_tensor(y)))

    def _own_step(self, x: Any, y: Any) -> Any:
        import tensorflow as tf

        model, optimizer = self.model, self.model.optimizer
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = self.loss(y, predictions)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        if self.options.delete:
            del tape, gradients, predictions, scaled
        return loss

    def _own_test(self, x: Any, y: Any) -> Any:
        return self.loss(y, self.model(x, training=False))

    def _variables(self) -> list[Any]:
        metrics = {id(v) for v in self.model.metrics_variables}
        own = [v for v in self.model.variables if id(v) not in metrics]
        return [*own, *self.model.optimizer.variables]

    def state(self) -> list[Any]:
        """Copies of all variables: weights, slots, the state of dropout."""
        return [v.numpy() for v in self._variables()]

    def restore(self, state: Sequence[Any]) -> None:
        """Assign the result of state, from this or another instance."""
        for variable, value in zip(self._variables(), state, strict=True):
            variable.assign(value)


# --- data ----------------------------------------------------------------------------

Batch = tuple[Any, Any]


class Feed(Protocol):
    """The source of a loop's batches."""

    aligned: bool  # whether Keras's epochs are those of the Spec

    def arguments(self) -> dict[str, Any]:
        """The arguments of Model.fit for the data."""

    def batches(self) -> Iterator[Batch]:
        """Endless batches, for a loop without Model.fit."""


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """How batches get to the loop."""

    data: str
    prefetch: int | None  # None disables prefetching; -1 means AUTOTUNE
    cache: bool

    @classmethod
    def ask(cls, child: Child, *words: str) -> DataOptions:
        """Read the parameters; words are the choices, the first is the default."""
        data = child.parameter("data", *words)
        data = {"memory": "numpy", "graph": "tfdata"}.get(data, data)
        options = cls(data, cls.ask_prefetch(child), child.switch("cache"))
        if data not in ("tfdata", "from_generator"):
            for name, given in (
                ("prefetch", options.prefetch is not None),
                ("cache", options.cache),
            ):
                if given:
                    child.refuse(name, f"with data={data} the matrix has no tf.data pipeline")
        return options

    @staticmethod
    def ask_prefetch(child: Child) -> int | None:
        """The parameter prefetch of tf.data."""
        if child.spec.params.get("prefetch") == "auto":
            child.parameter("prefetch", "auto")
            return -1
        return child.number("prefetch", 0) or None


ARRAYS = ("numpy", "memory", "generator", "tfdata", "graph", "from_generator")


class ArrayFeed:
    """Batches of arrays in memory."""

    def __init__(
        self, x: Any, y: Any, spec: Spec, options: DataOptions, samples: Samples, shuffle: int = 0
    ) -> None:
        self.x, self.y, self.spec = x, y, spec
        self.options, self.samples, self.shuffle = options, samples, shuffle
        passes = math.ceil(len(x) / spec.batch)
        # An epoch in Keras is a pass over the data. With a divided batch, it must have as many
        # steps as with the whole batch, so that Keras's work at the end of an epoch is equally
        # frequent per step. The next epoch then continues where the last one ended.
        own = math.ceil(len(x) / spec.whole_batch)
        self.steps = {} if passes == own else {"steps_per_epoch": own}
        self.whole = own == spec.epoch and passes % own == 0
        # Keras restarts its count of steps per epoch where an array ends.
        self.aligned = self.whole or options.data != "numpy"

    def arguments(self) -> dict[str, Any]:
        data = self.options.data
        if data == "numpy":
            return {"x": self.x, "y": self.y, "batch_size": self.spec.batch, **self.steps}
        if data in ("generator", "disk"):
            return {"x": self.batches(), "steps_per_epoch": self.spec.epoch}
        if self.whole and data == "tfdata":
            return {"x": self._dataset(), **self.steps}
        return {"x": self._dataset().repeat(), "steps_per_epoch": self.spec.epoch}

    def batches(self) -> Iterator[Batch]:
        one_pass = self._dataset() if self.options.data in ("tfdata", "from_generator") else None
        while True:
            yield from self._pass() if one_pass is None else one_pass

    def _pass(self) -> Iterator[Batch]:
        n = self.spec.batch
        for start in range(0, len(self.x), n):
            x, y = self.x[start : start + n], self.y[start : start + n]
            # A mapped file is read when its values are used.
            yield (x.copy(), y.copy()) if self.options.data == "disk" else (x, y)

    def _dataset(self) -> Any:
        import tensorflow as tf

        if self.options.data == "from_generator":
            dataset = tf.data.Dataset.from_generator(
                self._pass, output_signature=self.samples.signature()
            )
            return finish(dataset, self.options)
        dataset = tf.data.Dataset.from_tensor_slices((self.x, self.y))
        if self.options.cache:
            dataset = dataset.cache()
        if self.shuffle:
            dataset = dataset.shuffle(self.shuffle, seed=self.spec.seed)
        options = dataclasses.replace(self.options, cache=False)
        return finish(dataset.batch(self.spec.batch), options)


def finish(dataset: Any, options: DataOptions) -> Any:
    """Add the last stages of a pipeline."""
    import tensorflow as tf

    if options.cache:
        dataset = dataset.cache()
    if options.prefetch is not None:
        dataset = dataset.prefetch(tf.data.AUTOTUNE if options.prefetch < 0 else options.prefetch)
    return dataset


def large_set(spec: Spec, samples: Samples, rows: int, data: str) -> tuple[Any, Any]:
    """Generate the samples of S0, in arrays in memory or in mapped files."""
    import numpy as np

    a = samples.architecture
    shapes = {"x": ((rows, *a.shape), "float32"), "y": ((rows, 1), "float32")}
    if not a.float_label:
        shapes["y"] = ((rows,), "int64")
    arrays = {}
    for name, (shape, dtype) in shapes.items():
        if data == "disk":
            file = pathlib.Path(spec.scratch, f"{name}.npy")
            arrays[name] = np.lib.format.open_memmap(file, "w+", dtype, shape)
        else:
            arrays[name] = np.empty(shape, dtype)
    # In parts, to avoid a second copy of the whole array.
    part = 1024
    for start in range(0, rows, part):
        n = min(part, rows - start)
        x, y = samples.make(n, start)
        arrays["x"][start : start + n], arrays["y"][start : start + n] = x, y
    if data == "disk":
        for array in arrays.values():
            array.flush()
        files = (pathlib.Path(spec.scratch, f"{name}.npy") for name in ("x", "y"))
        x, y = (np.load(file, mmap_mode="r") for file in files)
        return x, y
    return arrays["x"], arrays["y"]


class Sizes:
    """Draws the number of samples of each step."""

    def __init__(self, child: Child, once: bool = False) -> None:
        self.shapes = child.parameter("shapes", "varying", "pad", "bucket")
        self.most = 2 * child.spec.batch
        self.seed, self.once = child.spec.seed, once

    def draw(self) -> Iterator[int]:
        """Yield sizes from 1 to twice the batch. With once, each size comes before any repeats."""
        import numpy as np

        random = np.random.default_rng([self.seed, 3])
        order = random.permutation(self.most) + 1
        at = 0
        while True:
            n = int(order[at % self.most] if self.once else random.integers(1, self.most + 1))
            at += 1
            yield {
                "varying": n,
                "pad": self.most,
                "bucket": min(1 << (n - 1).bit_length(), self.most),
            }[self.shapes]


class SizesFeed:
    """Batches of varying sizes from the same arrays."""

    aligned = True

    def __init__(self, sizes: Sizes, x: Any, y: Any, epoch: int) -> None:
        self.sizes, self.x, self.y, self.epoch = sizes, x, y, epoch

    def arguments(self) -> dict[str, Any]:
        return {"x": self.batches(), "steps_per_epoch": self.epoch}

    def batches(self) -> Iterator[Batch]:
        for n in self.sizes.draw():
            yield self.x[:n], self.y[:n]


class ImageFeed:
    """Images that are generated on demand."""

    aligned = True

    def __init__(
        self, spec: Spec, options: DataOptions, samples: Samples, how: ImageOptions
    ) -> None:
        self.spec, self.options, self.samples, self.how = spec, options, samples, how

    def arguments(self) -> dict[str, Any]:
        data = self._dataset() if self.options.data == "from_generator" else self.batches()
        return {"x": data, "steps_per_epoch": self.spec.epoch}

    def batches(self) -> Iterator[Batch]:
        if self.options.data == "from_generator":
            return iter(self._dataset())
        return self._made()

    def _dataset(self) -> Any:
        import tensorflow as tf

        dataset = tf.data.Dataset.from_generator(
            self._made, output_signature=self.samples.signature()
        )
        return finish(dataset, self.options)

    def _made(self) -> Iterator[Batch]:
        import numpy as np
        import tensorflow as tf

        random = np.random.default_rng([self.spec.seed, 5])
        n = self.spec.batch
        most = n * 5 // 4 if self.how.varying else n
        room = None
        if self.how.input == "buffer":
            room = np.empty((most, *self.samples.architecture.shape), "float32")
        key = self.spec.start
        while True:
            if self.how.varying:
                n = int(random.integers(max(1, self.spec.batch // 4), most + 1))
            x, y = self.samples.make(n, key, room)
            if self.how.augment:
                for i in range(n):
                    x[i] = augmented(x[i], random)
            if self.how.input == "tensor" and self.options.data == "generator":
                yield tf.constant(x), tf.constant(y)
            else:
                yield x, y
            key += 1


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """How images are generated."""

    input: str
    augment: bool
    varying: bool


def augmented(image: Any, random: Any) -> Any:
    """Flip, crop and brighten an image; each makes a new one, as is common in pipelines."""
    import numpy as np

    if random.random() < 0.5:
        image = image[:, ::-1].copy()
    height, width, _ = image.shape
    up, left = (int(random.integers(0, side // 8 + 1)) for side in (height, width))
    cropped = np.zeros_like(image)
    cropped[: height - up, : width - left] = image[up:, left:]
    return cropped * np.float32(random.uniform(0.8, 1.2))


# --- jobs ----------------------------------------------------------------------------


class Progress:
    """Collects garbage, trims malloc and takes samples between steps."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.collect = child.parameter("gc", "", "epoch", "step")
        self.trim = child.parameter("trim", "", "epoch") == "epoch"
        self.done = child.spec.start
        self.first: float | None = None
        self.last: float | None = None

    @property
    def at_epoch(self) -> bool:
        """Whether the last step ended an epoch."""
        return self.done % self.child.spec.epoch == 0

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.done >= self.child.spec.steps

    def step(self, loss: float | None = None) -> None:
        """Call after each step. At an epoch's end, epoch takes the sample."""
        self.done += 1
        if self.done == self.child.spec.start + 1:
            self.first = loss
            self.child.phase("first")
        self.last = loss
        if self.collect == "step":
            gc.collect()
        if not self.at_epoch:
            self.child.step(self.done)

    def epoch(self) -> None:
        """Call at an epoch's end, after the work of the job."""
        if self.collect == "epoch":
            gc.collect()
        if self.trim and not self.child.malloc.trim():
            reason = "the allocator of this process has no malloc_trim"
            raise ParameterError(COULD_NOT_APPLY, "trim", "epoch", reason)
        self.child.step(self.done)


class Job:
    """A workload. It reads its parameters in __init__; TensorFlow is imported before load."""

    loop = ""
    clears = True  # whether the job has the parameter clear_session

    def __init__(self, child: Child) -> None:
        self.child, self.spec = child, child.spec
        self.model = WORKLOADS[child.spec.workload][1]  # if the Spec has no model
        self.clear = self.clears and child.parameter("clear_session", "", "epoch") == "epoch"

    def load(self) -> None:
        """Make models and data."""

    def run(self, progress: Progress) -> None:
        """Do all steps."""
        while not progress.finished:
            progress.step(self.step(progress.done + 1))
            if progress.at_epoch:
                self.end_epoch(progress)

    def step(self, n: int) -> float | None:
        """Do step n, from 1; returns the loss, if it trained."""
        raise NotImplementedError

    def end_epoch(self, progress: Progress) -> None:
        """Do the work at an epoch's end."""
        again = False
        if not progress.finished:
            again = self.epoch()
        progress.epoch()
        if again:
            raise Again

    def epoch(self) -> bool:
        """Do the job's work at an epoch's end; True if another process continues."""
        if self.clear:
            import keras

            keras.backend.clear_session()
        return False

    def architecture(self) -> Architecture:
        """The architecture to work on."""
        self.model = architecture_of(self.spec, self.model)
        return ARCHITECTURES[self.model]

    def samples(self) -> Samples:
        """The generator of samples."""
        return Samples(self.architecture(), self.spec.seed)


class Training(Job):
    """Train steps on one model."""

    sources = ARRAYS  # choices of the parameter data
    reset = "none"
    jit = False  # whether XLA compiles the step unless a parameter says otherwise

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.options = LoopOptions.ask(child, jit=self.jit)
        self.loop = self.options.loop
        self.ask_data()
        self.hoard = child.parameter("callback", "", "hoard") == "hoard"
        if self.hoard and self.loop != "fit":
            child.refuse("callback", "only the loop fit has callbacks")
        self.validation: Batch | None = None
        self.learner: Learner | None = None
        self.kept: list[Any] = []

    def ask_data(self) -> None:
        """Read the parameters for the source of batches."""
        self.data = DataOptions.ask(self.child, *self.sources)
        self.reset = self.child.parameter("reset", "none", "restore", "reload", "process")

    def load(self) -> None:
        prepare(self.options, self.spec)
        self.learner = Learner(self.architecture(), self.options)
        if self.spec.start:
            self.learner.restore(self._read_state())
        self.feed = self.make_feed()

    def make_feed(self) -> Feed:
        """Make the data."""
        samples = self.samples()
        x, y = samples.make(self.samples_per_pass(), 0)
        return ArrayFeed(x, y, self.spec, self.data, samples)

    def samples_per_pass(self) -> int:
        """The number of samples in a pass: those of an epoch of whole batches."""
        return self.spec.set_size

    def after_step(self, logs: Mapping[str, float]) -> None:
        """Work of a workload after the train step."""

    def run(self, progress: Progress) -> None:
        if self.loop == "fit":
            self._fit(progress)
            return
        batches = self.feed.batches()
        while not progress.finished:
            x, y = next(batches)
            loss = self.learner.step(x, y)
            del x, y
            self.after_step({"loss": loss})
            progress.step(loss)
            if progress.at_epoch:
                self._validate()
                self.end_epoch(progress)

    def _validate(self) -> None:
        if self.validation is None:
            return
        x, y = self.validation
        for start in range(0, len(x), 64):
            self.learner.test(x[start : start + 64], y[start : start + 64])

    def _fit(self, progress: Progress) -> None:
        """Call Model.fit once, or for each epoch if the model changes between epochs."""
        whole = self.reset == "none"
        while not progress.finished:
            # More than enough, even if Keras's epochs are shorter. The run is stopped at the end.
            epochs = self.spec.steps if whole else 1
            arguments = self.feed.arguments()
            if self.validation is not None:
                arguments.update(validation_data=self.validation, validation_batch_size=64)
            callbacks = [self._callback(progress, whole)]
            if self.hoard:
                callbacks.insert(0, self._hoarder())
            self.learner.model.fit(**arguments, epochs=epochs, verbose=0, callbacks=callbacks)
            if not whole and progress.at_epoch:
                self.end_epoch(progress)

    def _callback(self, progress: Progress, whole: bool) -> Any:
        """The callback of fit that requests samples."""
        import keras

        job = self

        class Between(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
                job.after_step(logs)
                progress.step(float(logs["loss"]))
                if progress.at_epoch and not job.feed.aligned:
                    if whole:
                        job.end_epoch(progress)
                    else:
                        self.model.stop_training = True
                if progress.finished:
                    self.model.stop_training = True

            def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
                if whole and job.feed.aligned and progress.at_epoch:
                    job.end_epoch(progress)

        return Between()

    def _hoarder(self) -> Any:
        """A callback that keeps all of its arguments, as some users write it."""
        import keras

        watched = self.samples().make(self.spec.batch, 7)[0]

        class Hoarder(keras.callbacks.Callback):
            def __init__(self) -> None:
                super().__init__()
                self.logs: list[Mapping[str, float]] = []
                self.outputs: list[Any] = []

            def on_train_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
                self.logs.append(dict(logs))
                self.outputs.append(self.model(watched, training=False))

        return Hoarder()

    def epoch(self) -> bool:
        super().epoch()
        if self.reset == "none":
            return False
        self._write_state()
        if self.reset == "process":
            return True
        if self.reset == "reload":
            self.learner = None
            gc.collect()
            self.learner = Learner(self.architecture(), self.options)
        self.learner.restore(self._read_state())
        return False

    def _state_file(self) -> pathlib.Path:
        return pathlib.Path(self.spec.scratch, "state.npz")

    def _write_state(self) -> None:
        import numpy as np

        np.savez(self._state_file(), *self.learner.state())

    def _read_state(self) -> list[Any]:
        import numpy as np

        with np.load(self._state_file()) as file:
            return [file[f"arr_{i}"] for i in range(len(file.files))]


def prepare(options: LoopOptions, spec: Spec) -> None:
    """Set the options of all of Keras, before the first model."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(spec.seed % (1 << 32))
    if options.mixed:
        keras.mixed_precision.set_global_policy(options.mixed)
    if options.eager:
        tf.config.run_functions_eagerly(True)


class Kept(Training):
    """W1: a tensor of exactly 64 KiB is kept after each step."""

    size = 64 << 10

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.keep = child.parameter("release", "keep", "close", "del") == "keep"

    def load(self) -> None:
        super().load()
        import tensorflow as tf

        # Made eagerly: in a tf.function the tensors come from the arenas of several threads, and
        # the holes between them add a sixth to the growth.
        self.fetch = lambda: tf.fill([self.size // 4], 1.0)

    def after_step(self, logs: Mapping[str, float]) -> None:
        tensor = self.fetch()
        if self.keep:
            self.kept.append(tensor)


class Images(Training):
    """W2, S3: images are made for each step."""

    sources = ("generator", *ARRAYS)

    def ask_data(self) -> None:
        super().ask_data()
        made = self.data.data in ("generator", "from_generator")
        self.images = ImageOptions(
            self.child.parameter("input", "tensor", "buffer"),
            self.child.switch("augment"),
            self.child.parameter("shapes", "fixed", "varying") == "varying",
        )
        if self.data.data != "generator" and self.images.input != "tensor":
            self.child.refuse("input", f"with data={self.data.data} no Python generator is used")
        if not made and self.images.varying:
            self.child.refuse("shapes", f"with data={self.data.data} all batches are alike")
        if not made and self.images.augment:
            self.child.refuse("augment", f"with data={self.data.data} images are not augmented")

    def make_feed(self) -> Feed:
        if self.data.data in ("generator", "from_generator"):
            return ImageFeed(self.spec, self.data, self.samples(), self.images)
        return super().make_feed()


class Large(Training):
    """S0: a large set of samples."""

    sources = (*ARRAYS, "disk")

    def ask_data(self) -> None:
        super().ask_data()
        self.rows = self.child.number("rows", 1_000_000, least=self.spec.batch)

    def make_feed(self) -> Feed:
        samples = self.samples()
        x, y = large_set(self.spec, samples, self.rows, self.data.data)
        return ArrayFeed(x, y, self.spec, self.data, samples)


class Validated(Training):
    """S1, S1d: an epoch whose last batch is smaller, and validation at its end."""

    def samples_per_pass(self) -> int:
        """The last batch is a quarter full, like that of 1000 samples by 32."""
        return max(1, self.spec.set_size - self.spec.whole_batch * 3 // 4)

    def load(self) -> None:
        super().load()
        self.validation = self.samples().make(max(1, self.samples_per_pass() // 5), 1)


class Recorded(Training):
    """S4: the logs of each step are kept, as a logging callback does."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.keep = child.parameter("history", "keep", "last") == "keep"

    def samples_per_pass(self) -> int:
        """At most 200 batches, to avoid 60,000 samples in memory."""
        return min(self.spec.epoch, 200) * self.spec.whole_batch

    def after_step(self, logs: Mapping[str, float]) -> None:
        if not self.keep:
            self.kept.clear()
        self.kept.append({name: float(value) for name, value in logs.items()})


class Pipeline(Training):
    """W11: a shuffle buffer in a tf.data pipeline that restarts each epoch."""

    def ask_data(self) -> None:
        self.data = DataOptions("tfdata", DataOptions.ask_prefetch(self.child), False)
        self.shuffle = self.child.number("shuffle", 1000)

    def make_feed(self) -> Feed:
        samples = self.samples()
        x, y = samples.make(self.samples_per_pass(), 0)
        return ArrayFeed(x, y, self.spec, self.data, samples, self.shuffle)


class Compiled(Training):
    """W9: XLA compiles the step for each number of samples."""

    jit = True

    def ask_data(self) -> None:
        self.sizes = Sizes(self.child, once=True)

    def make_feed(self) -> Feed:
        x, y = self.samples().make(self.sizes.most, 0)
        return SizesFeed(self.sizes, x, y, self.spec.epoch)


class Rebuilt(Job):
    """W4: the model is built and compiled again for each step, as Keras users load it."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.options = LoopOptions.ask(child, delete_model=True)
        self.loop = self.options.loop
        self.reuse = child.switch("reuse")
        self.learner: Learner | None = None
        self.initial: list[Any] = []

    def load(self) -> None:
        prepare(self.options, self.spec)
        self.x, self.y = self.samples().make(self.spec.batch, 0)
        if self.reuse:
            self.learner = Learner(self.architecture(), self.options)
            self.initial = self.learner.state()

    def step(self, n: int) -> float:
        if self.reuse:
            self.learner.restore(self.initial)
        else:
            self.learner = Learner(self.architecture(), self.options)
        loss = self.learner.step(self.x, self.y)
        if self.options.delete and not self.reuse:
            self.learner = None
        return loss


class Predicting(Job):
    """Predictions, without training."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        words = ("predict", "fit", "predict_on_batch", "function", "eager")
        loop = child.parameter("loop", *words)
        # Keras's own loop, which other workloads call "fit", is "predict" here.
        self.loop = "predict" if loop == "fit" else loop
        self.eager = child.switch("eager")
        self.jit = child.xla()
        if self.eager and self.loop == "eager":
            child.refuse("eager", "the loop eager has no function to run eagerly")
        if self.jit and (self.eager or self.loop == "eager"):
            child.refuse("jit", "eager execution compiles nothing")

    def load(self) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(self.spec.seed % (1 << 32))
        if self.eager:
            tf.config.run_functions_eagerly(True)
        model, _ = self.architecture().make()
        model.compile(jit_compile=self.jit, run_eagerly=self.eager)
        call = functools.partial(model, training=False)
        if self.loop == "predict":
            self.predict = lambda x: model.predict(x, batch_size=len(x), verbose=0)
        elif self.loop == "predict_on_batch":
            self.predict = model.predict_on_batch
        elif self.loop == "function":
            function = tf.function(lambda x: call(x), jit_compile=self.jit)
            self.predict = lambda x: function(tf.convert_to_tensor(x)).numpy()
        else:
            self.predict = lambda x: call(tf.convert_to_tensor(x)).numpy()


class Varying(Predicting):
    """W3: a different number of samples in each step."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.sizes = Sizes(child)

    def load(self) -> None:
        super().load()
        self.x, _ = self.samples().make(self.sizes.most, 0)
        self.draw = self.sizes.draw()

    def step(self, n: int) -> None:
        self.predict(self.x[: next(self.draw)])


class History(Predicting):
    """W10: the values of all predictions are kept."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.keep = child.parameter("history", "keep", "last") == "keep"
        self.delete = child.switch("del")
        if self.delete and self.loop not in ("function", "eager"):
            child.refuse("del", f"{self.loop} is that of Keras: there is nothing to delete")
        self.history: list[Any] = []

    def load(self) -> None:
        super().load()
        self.x, _ = self.samples().make(self.spec.batch, 0)

    def step(self, n: int) -> None:
        values = self.predict(self.x)
        if not self.keep:
            self.history.clear()
        self.history.append(values)
        if self.delete:
            # The contents of the history remain, since they are the subject of the test.
            del values


class Growing(Job):
    """W5: a function is traced again for each new Python number."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.grow = child.parameter("graph", "grow", "sealed") == "grow"

    def load(self) -> None:
        import numpy as np
        import tensorflow as tf

        def constant(n: int) -> Any:
            return tf.identity(tf.constant(np.full(1024, n, "float32")))

        self.function = tf.function(constant)

    def step(self, n: int) -> None:
        self.function(n if self.grow else 0)


class Fetching(Job):
    """W6: a model is made for each set of outputs, as for inspecting layers."""

    outputs = 14

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.fixed = child.parameter("fetches", "varying", "fixed") == "fixed"

    def load(self) -> None:
        import keras
        import numpy as np

        self.x = np.zeros((1, 16), "float32")
        self.input = keras.Input((16,))
        self.all = [keras.layers.Rescaling(2.0)(self.input) for _ in range(self.outputs)]
        # The sets of outputs come in an order without a trend in their sizes.
        random = np.random.default_rng([self.spec.seed, 6])
        self.sets = [int(s) + 1 for s in random.permutation((1 << self.outputs) - 1)]

    def step(self, n: int) -> None:
        import keras

        bits = self.sets[0 if self.fixed else n % len(self.sets)]
        chosen = [output for i, output in enumerate(self.all) if bits & (1 << i)]
        keras.Model(self.input, chosen)(self.x, training=False)


class Bursts(Job):
    """W8: threads make tensors, and drop most of them out of order."""

    clears = False
    tensors = 320  # in a step, by all threads
    small, large = 64 << 10, 256 << 10  # bytes

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self.threads = child.number("goroutines", 8, least=1)
        self.survivors: list[list[Any]] = [[] for _ in range(self.threads)]

    def load(self) -> None:
        import numpy as np

        self.pool = concurrent.futures.ThreadPoolExecutor(self.threads)
        self.randoms = [np.random.default_rng([self.spec.seed, i]) for i in range(self.threads)]

    def step(self, n: int) -> None:
        # Each thread drops the tensors that another one kept.
        handed = self.survivors[1:] + self.survivors[:1]
        self.survivors = []
        futures = [
            self.pool.submit(self._burst, random, others)
            for random, others in zip(self.randoms, handed, strict=True)
        ]
        del handed
        self.survivors = [future.result() for future in futures]

    def _burst(self, random: Any, others: list[Any]) -> list[Any]:
        import tensorflow as tf

        count = self.tensors // self.threads
        made = []
        for i in range(count):
            if i == count // 2:
                others.clear()
            made.append(tf.fill([int(random.integers(self.small, self.large + 1)) // 4], 1.0))
        random.shuffle(made)
        kept = made[: count // 10]
        for i in range(count // 10, count):
            made[i] = None
        return kept


class Texts(Job):
    """W12: a tensor of strings is made, passed through an operation and read."""

    def load(self) -> None:
        import numpy as np

        random = np.random.default_rng([self.spec.seed, 12])
        lengths = random.integers(10, 201, 2000)
        letters = random.integers(ord("a"), ord("z") + 1, 2000)
        self.pool = [chr(a) * int(n) for a, n in zip(letters, lengths, strict=True)]

    def step(self, n: int) -> None:
        import tensorflow as tf

        start = n * 7 % 1000
        values = self.pool[start : start + 1000]
        back = tf.identity(tf.constant(values)).numpy()
        if [text.decode() for text in back] != values:
            raise RuntimeError("strings came back changed")


# The job and the architecture of each workload.
WORKLOADS: dict[str, tuple[type[Job], str]] = {
    "W0": (Training, "digits-cnn"),
    "W1": (Kept, "digits-cnn"),
    "W2": (Images, "image-224"),
    "W3": (Varying, "digits"),
    "W4": (Rebuilt, "image-224"),
    "W5": (Growing, ""),
    "W6": (Fetching, ""),
    "W8": (Bursts, ""),
    "W9": (Compiled, "dense-100-64-1"),
    "W10": (History, "digits"),
    "W11": (Pipeline, "dense-784-10"),
    "W12": (Texts, ""),
    "S0": (Large, "dense-100-64-1"),
    "S1": (Validated, "dense-100-64-1"),
    "S1d": (Validated, "dropout-200-512-256-1"),
    "S2": (Training, "dense-784-10"),
    "S2l": (Training, "lstm"),
    "S3": (Images, "image-224"),
    "S4": (Recorded, "dense-784-10"),
}


# --- the run -------------------------------------------------------------------------


class Runtime:
    """The parameters of TensorFlow itself."""

    def __init__(self, child: Child) -> None:
        self.intra, self.inter = child.number("intra", 0), child.number("inter", 0)
        self.grappler = child.switch("grappler", default=True)
        self.bf16 = child.switch("bf16")

    def start(self) -> tuple[Any, Any]:
        """Import TensorFlow and set the parameters; returns TensorFlow and Keras."""
        tf, keras = export.load_tensorflow()
        if self.intra:
            tf.config.threading.set_intra_op_parallelism_threads(self.intra)
        if self.inter:
            tf.config.threading.set_inter_op_parallelism_threads(self.inter)
        rewriting = {}
        if not self.grappler:
            rewriting["disable_meta_optimizer"] = True
        if self.bf16:
            rewriting["auto_mixed_precision_onednn_bfloat16"] = True
        if rewriting:
            tf.config.optimizer.set_experimental_options(rewriting)
        return tf, keras


def do(child: Child) -> None:
    """Do the run from the first phase to the last.

    Raises:
        Again: another process continues, which the parent knows.
        ParameterError: a parameter cannot be used.
    """
    if child.spec.workload not in WORKLOADS:
        known = ", ".join(WORKLOADS)
        raise ValueError(f"unknown workload {child.spec.workload!r} on Keras; there are {known}")
    runtime, progress = Runtime(child), Progress(child)
    job = WORKLOADS[child.spec.workload][0](child)
    child.check_params()
    child.phase("start")
    tf, keras = runtime.start()
    child.phase("library")
    child.fact("tensorflow", tf.__version__)
    child.fact("keras", keras.__version__)
    child.fact("python", sys.version.split()[0])
    child.fact("batch", child.spec.batch)
    if job.loop:
        child.fact("loop", job.loop)
    job.load()
    if job.model:
        child.fact("model", job.model)
    # Otherwise the steps would reuse free memory from loading, and their growth would not show.
    gc.collect()
    child.phase("loaded")
    try:
        job.run(progress)
    except Again:
        child.again(progress.done)
        raise
    child.phase("steady")
    child.fact("threads", len(os.listdir("/proc/self/task")))
    if progress.first is not None:
        child.fact("loss_first", f"{progress.first:.6g}")
        child.fact("loss_last", f"{progress.last:.6g}")
    vars(job).clear()
    keras.backend.clear_session()
    gc.collect()
    child.phase("closed")
    if child.malloc.trim():
        child.phase("trimmed")


def main() -> int:
    """Run the command; returns its exit code."""
    faulthandler.enable()  # TensorFlow can crash after a failed allocation
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        print(
            f"matrix_keras.py: {ENVIRONMENT} is not set: this program is started by "
            "steadyfit matrix, not by hand",
            file=sys.stderr,
        )
        return 2
    try:
        child = Child(Spec.read(text))
    except ValueError as error:
        print(f"matrix_keras.py: {ENVIRONMENT}: {error}", file=sys.stderr)
        return 2
    try:
        try:
            do(child)
        except (Again, Gone):
            raise
        except Exception as error:
            child.end(error)
            if failure_of(error) == FAILED:
                raise
            return 1
        child.end()
    except Again:
        return 0
    except Gone as error:
        print(f"matrix_keras.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
