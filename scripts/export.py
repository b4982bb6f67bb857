#!/usr/bin/env python3
"""Turn a Keras 3 model, or a tf.Module with a train step, into a trainable SavedModel.

A trainable SavedModel contains its own train step: a program in Go, Python, Java or C
loads it, feeds a batch and fetches the loss, without Keras or Python.
This file is a command (``python scripts/export.py --help``) and a library::

    import export
    report = export.export(model, "out/dir", optimizer="adam",
                           loss="sparse_categorical_crossentropy",
                           metrics=["accuracy"])

docs/reference/contract.md describes the signatures that it writes, and docs/reference/keras.md
which models train as under Keras fit, and which are refused.

Every variable that a step touches is tracked by the saved object, optimizer
slots, dropout seeds and accumulators included, because only tracked variables are
initialised on load and covered by the SavedModel's saver.

TensorFlow is imported on first use, so that ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import difflib
import fnmatch
import hashlib
import importlib
import importlib.util
import inspect
import json
import logging
import math
import os
import pathlib
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

VERSION = "0.1.0"
FORMAT = 1
METADATA = os.path.join("assets.extra", "steadyfit.json")

# The command prints these messages, one for each phase of its work.
progress = logging.getLogger("steadyfit.export")

RESERVED_INPUTS = ("sample_weight", "learning_rate", "seed", "loss_scale", "group_size")
# Scalars that are constant within a call: train_n takes one of each, not one per step.
UNSTACKED = ("learning_rate", "loss_scale", "group_size")
RESERVED_OUTPUTS = ("loss", "grads_finite", "global_step", "loss_scale", "skipped_steps")
# Scalars that are not means: several steps return the value of the last one.
STATES = ("loss_scale", "skipped_steps")

# Names of the signatures that a tf.Module may have. The first group has the names of its train
# step.
TRAIN_NAMES = ("train", "learn", "train_step")
MODULE_NAMES = (
    *TRAIN_NAMES,
    "train_n",
    "train_sync",
    "evaluate",
    "eval",
    "predict",
    "infer",
    "serving_default",
    "gradients",
    "accumulate",
    "apply",
    "set_learning_rate",
    "reset_metrics",
    "finalize",
    "save",
    "restore",
)

# Operations that leave the graph: they need this Python process, the file system, or tables that
# change, which the saver does not cover. A model that trains elsewhere must have none.
FOREIGN_OPS = {
    "PyFunc": "calls back into Python",
    "PyFuncStateless": "calls back into Python",
    "EagerPyFunc": "calls back into Python",
    "ReadFile": "reads a file",
    "WriteFile": "writes a file",
    "MatchingFiles": "lists files",
    "MutableHashTableV2": "is a table that changes, which the saver does not cover",
    "MutableDenseHashTableV2": "is a table that changes, which the saver does not cover",
    "LookupTableInsertV2": "changes a table, which the saver does not cover",
}


class Refusal(Exception):
    """A model that would not train correctly after export, with a fix."""

    def __init__(self, what: str, *, where: str, expected: str, found: str, do: str) -> None:
        found = re.sub(r"\x1b\[[0-9;]*m", "", found)  # Keras colours its errors
        self.what, self.where, self.expected, self.found, self.do = (
            what,
            where,
            expected,
            found,
            do,
        )
        super().__init__(
            f"{what}\n  where:    {where}\n  expected: {expected}\n"
            f"  found:    {found}\n  do:       {do}"
        )


class UsageError(Exception):
    """Arguments that do not fit together; exit code 2 of the command."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """One signature input without its batch dimension; None stands for any size."""

    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


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
    match = re.fullmatch(r"\s*([a-z][a-z0-9]*)\s*\[([^\]]*)\]\s*", text)
    if not match:
        raise UsageError(f"cannot read {text!r}: expected DTYPE[DIMS], as in float32[28,28]")
    dims: list[int | None] = []
    for part in filter(None, (p.strip() for p in match[2].split(","))):
        if part in ("?", "-1", "None"):
            dims.append(None)
        elif part.isdigit() and int(part) > 0:
            dims.append(int(part))
        else:
            raise UsageError(f"cannot read {text!r}: {part!r} is not a dimension")
    return Spec(match[1], tuple(dims))


def _load_tensorflow() -> tuple[Any, Any]:
    """Import TensorFlow and Keras, quietly, and check that their versions fit together."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import tensorflow as tf

    if keras.__version__.startswith("2."):
        raise Refusal(
            "Keras 2 is installed",
            where="keras.__version__",
            expected="3 or later",
            found=keras.__version__,
            do="install Keras 3, in an environment of its own if other programs need Keras 2",
        )
    if keras.backend.backend() != "tensorflow":
        raise Refusal(
            "Keras runs on another backend",
            where="keras.backend.backend()",
            expected="tensorflow",
            found=keras.backend.backend(),
            do="set KERAS_BACKEND=tensorflow before Keras is imported",
        )
    return tf, keras


@contextlib.contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Keras's default dtype policy, for layers made in the block."""
    if name not in ("float32", "mixed_bfloat16", "mixed_float16"):
        raise UsageError(f"policy {name!r}: expected float32, mixed_bfloat16 or mixed_float16")
    _, keras = _load_tensorflow()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


# --- losses and metrics ------------------------------------------------------------


def _as_loss(loss: Any, from_logits: bool) -> Any:
    """Return a keras.losses.Loss for a name, a function or a Loss."""
    _, keras = _load_tensorflow()
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError as error:
            raise UsageError(f"unknown loss {loss!r}: {error}") from error
    if inspect.isclass(loss) and issubclass(loss, keras.losses.Loss):
        loss = loss()
    if isinstance(loss, keras.losses.Loss):
        if from_logits and not getattr(loss, "_fn_kwargs", {}).get("from_logits", False):
            raise UsageError("from_logits applies to a loss given by name; set it on the object")
        return loss
    if not callable(loss):
        raise UsageError(f"loss is {loss!r}: expected a name, a function or a keras.losses.Loss")
    options = {}
    if from_logits:
        if "from_logits" not in inspect.signature(loss).parameters:
            raise UsageError(f"loss {loss.__name__!r} does not take from_logits")
        options["from_logits"] = True

    from keras.src.losses.losses import LossFunctionWrapper

    name = re.sub(r"[^A-Za-z0-9_]", "", getattr(loss, "__name__", "")) or "loss"
    return LossFunctionWrapper(loss, name=name, **options)


def _uses_logits(loss: Any) -> bool:
    return bool(
        getattr(loss, "from_logits", False)
        or getattr(loss, "_fn_kwargs", {}).get("from_logits", False)
    )


def _is_sparse(loss: Any) -> bool:
    return "sparse" in f"{loss.name} {type(loss).__name__}".lower()


# --- adapters: what a model trains -----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Adaptation:
    """Which weights of a Keras model are trained, and how the others are kept.

    A pattern is the name of a layer or any part of the path of a weight, as in ``head``,
    ``decoder/*/query`` or ``*/bias``.
    """

    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ()  # empty means all layers that have enable_lora
    quantize: str | None = None
    train_only: tuple[str, ...] = ()

    def apply(self, model: Any) -> None:
        """Quantize layers, add LoRA matrices and freeze everything else."""
        _, keras = _load_tensorflow()
        layers = {path: layer for path, layer in _layers(model) if path}
        whole = self._trained_whole(model, layers)
        if self.quantize:
            chosen = [
                layer
                for path, layer in layers.items()
                if path not in whole
                and type(layer).quantize is not keras.layers.Layer.quantize
                and layer.quantization_mode is None
            ]
            if not chosen:
                raise UsageError(
                    f"quantize {self.quantize}: no layer of the model can be quantized; leave it out"
                )
            model.quantize(self.quantize, filters=lambda layer: any(layer is c for c in chosen))
        trained = {id(v) for weights in whole.values() for v in weights}
        if self.lora_rank is not None:
            for path in self._lora_layers(layers, whole):
                self._enable_lora(path, layers[path])
            for layer in layers.values():
                if getattr(layer, "lora_enabled", False):
                    trained |= {
                        id(v) for v in layer._trainable_variables if v.name.startswith("lora_")
                    }
        _train_only(model, trained)
        weights = {id(v): v for v in model.weights}.values()
        count = sum(math.prod(v.shape) for v in weights if id(v) in trained)
        total = sum(math.prod(v.shape) for v in weights)
        progress.info("%d of %d weights are trained", count, total)

    def _trained_whole(self, model: Any, layers: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The weights that train_only matches, by the path of their layer."""
        found: dict[str, list[Any]] = {}
        for pattern in self.train_only:
            matched = False
            for path, layer in [*layers.items(), ("", model)]:
                for v in layer._trainable_variables:
                    if _matches(pattern, f"{path}/{v.name}".strip("/")):
                        found.setdefault(path, []).append(v)
                        matched = True
            if not matched:
                raise UsageError(
                    f"train_only {pattern!r} matches no weight that can be trained; "
                    f"the layers with weights are {_some((p for p, l in layers.items() if l.weights), pattern)}"
                )
        return found

    def _lora_layers(self, layers: Mapping[str, Any], whole: Mapping[str, list[Any]]) -> list[str]:
        """The paths of the layers that get LoRA matrices."""
        able = [path for path, layer in layers.items() if hasattr(layer, "enable_lora")]
        if not self.lora_targets:
            chosen = [p for p in able if p not in whole and not layers[p].lora_enabled]
            if not chosen and not any(layers[p].lora_enabled for p in able):
                raise UsageError(
                    "lora: no layer of the model has enable_lora, as Dense, EinsumDense, Embedding "
                    "and convolutions have; use train_only"
                )
            return chosen
        chosen = []
        for pattern in self.lora_targets:
            matched = [path for path in layers if _matches(pattern, path)]
            if not matched:
                raise UsageError(
                    f"lora target {pattern!r} matches no layer; those with enable_lora are "
                    f"{_some(able, pattern)}"
                )
            # A container, such as a block, means all layers in it.
            targets = [p for p in able if any(p == m or p.startswith(m + "/") for m in matched)]
            if not targets:
                kinds = sorted({type(layers[path]).__name__ for path in matched})
                raise UsageError(
                    f"lora target {pattern!r}: {_some(matched)} of type {', '.join(kinds)} has no "
                    f"enable_lora; the layers that have it are {_some(able)}"
                )
            for path in targets:
                if path in whole:
                    raise UsageError(
                        f"layer {path!r} is a lora target, and train_only trains its own weights; "
                        "leave one of them out"
                    )
                if not layers[path].lora_enabled and path not in chosen:
                    chosen.append(path)
        return chosen

    def _enable_lora(self, path: str, layer: Any) -> None:
        try:
            layer.enable_lora(self.lora_rank)
        except (ValueError, NotImplementedError) as error:
            raise Refusal(
                "LoRA cannot be enabled on a layer",
                where=f"layer {path!r} ({type(layer).__name__})",
                expected="a layer whose enable_lora accepts it",
                found=str(error),
                do="name other layers, as in --lora 4:query,value",
            ) from error


def _layers(layer: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Each layer of a model once, with the names on the path from the model to the layer."""
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path, layer
    for child in layer._flatten_layers(include_self=False, recursive=False):
        yield from _layers(child, f"{path}/{child.name}".strip("/"), seen)


def _matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path or consecutive parts of it."""
    parts = path.split("/")
    return any(
        fnmatch.fnmatchcase("/".join(parts[i:j]), pattern)
        for i in range(len(parts))
        for j in range(i + 1, len(parts) + 1)
    )


def _train_only(model: Any, trained: set[int]) -> None:
    """Freeze all weights except the given ones.

    A layer without trained weights is frozen itself: BatchNormalization then runs in inference
    mode, as in Keras.
    """
    for _, layer in _layers(model):
        layer.trainable = any(id(v) in trained for v in layer.weights)
    for _, layer in _layers(model):
        for v in layer._trainable_variables:
            v.trainable = id(v) in trained


def _some(names: Iterable[str], wanted: str = "", most: int = 8) -> str:
    """Return the first few names as text, with those most similar to `wanted` first."""

    def likeness(name: str) -> tuple[float, float]:
        ratios = [
            difflib.SequenceMatcher(None, wanted, part).ratio() for part in (name, *name.split("/"))
        ]
        best = max(ratios)
        return (best, ratios[0]) if best >= 0.6 else (0, 0)

    names = sorted(names, key=likeness, reverse=True)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def parse_lora(text: str) -> tuple[int, tuple[str, ...]]:
    """Read ``4`` or ``4:query,value``."""
    rank, colon, targets = text.partition(":")
    patterns = _patterns(targets)
    if not rank.strip().isdigit() or int(rank) < 1 or (colon and not patterns):
        raise UsageError(f"lora {text!r}: expected RANK[:TARGETS], as in 4 or 4:query,value")
    return int(rank), patterns


def _patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(given, str):
        return tuple(given)
    return tuple(part.strip() for part in given.split(",") if part.strip())


# --- gradient checkpointing ---------------------------------------------------------


def _matching_layers(model: Any, patterns: Sequence[str]) -> dict[str, Any]:
    """The outermost layers that match the patterns of remat, by path."""
    layers = {path: layer for path, layer in _layers(model) if path}
    if not patterns:
        raise UsageError(f"remat names no layer; there are {_some(layers)}")
    found: dict[str, Any] = {}
    for pattern in patterns:
        matched = {p: layer for p, layer in layers.items() if _matches(pattern, p)}
        if not matched:
            raise UsageError(
                f"remat {pattern!r} matches no layer; there are {_some(layers, pattern)}"
            )
        found |= matched
    return {
        path: layer
        for path, layer in found.items()
        if not any(path.startswith(f"{outer}/") for outer in found)
    }


@contextlib.contextmanager
def _rematerialized(layers: Mapping[str, Any]) -> Iterator[None]:
    """In the block, the gradients of these layers compute the layers again and keep only their
    inputs.

    tf.recompute_grad would draw other dropout masks in the second computation (TensorFlow 2.21),
    and Keras's RematScope fails in graphs (keras#21207).
    """
    problems: dict[str, str] = {}
    try:
        for path, layer in layers.items():
            layer.__dict__["call"] = _rematerialize(
                layer, lambda problem, path=path: problems.setdefault(path, problem)
            )
        yield
    finally:
        for layer in layers.values():
            layer.__dict__.pop("call", None)
    for path, problem in problems.items():
        raise Refusal(
            "a layer cannot be computed again for the gradient",
            where=f"layer {path!r} ({type(layers[path]).__name__})",
            expected="a layer that uses only its inputs and its own weights, whose only results are "
            "its outputs and states",
            found=problem,
            do="name other layers, as in --remat block_*",
        )


def _rematerialize(layer: Any, report: Callable[[str], Any]) -> Callable:
    """A replacement for the call of a layer. It reports layers that cannot be computed again.

    Weights and states are arguments of a function with its own gradient, so that both
    computations use the same values, including the seeds of dropout.
    """
    tf, keras = _load_tensorflow()
    tree = keras.tree
    trained, states = layer.trainable_variables, layer.non_trainable_variables

    def rematerialized(*args: Any, **kwargs: Any) -> Any:
        # In the second computation, no outer layer passes training to this one.
        training = layer._get_call_context().get_value("training")
        structure = (args, {**kwargs, "training": training})
        flat = tree.flatten(structure)
        floats = [i for i, v in enumerate(flat) if tf.is_tensor(v) and v.dtype.is_floating]
        masks = [getattr(flat[i], "_keras_mask", None) for i in floats]
        first: list[Any] = []

        def compute(values: Sequence[Any]) -> tuple[Any, dict[int, Any]]:
            """The outputs and assigned values for float inputs, trained weights and states."""
            arguments = list(flat)
            for i, value, mask in zip(floats, values, masks, strict=False):
                arguments[i] = value
                if mask is not None:
                    value._keras_mask = mask
            arguments, options = tree.pack_sequence_as(structure, arguments)
            mapping = zip([*trained, *states], values[len(floats) :], strict=True)
            replaced = layer.__dict__.pop("call", None)
            try:
                with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                    before = dict(scope.state_mapping)
                    result = layer(*arguments, **options)
            finally:
                if replaced:
                    layer.__dict__["call"] = replaced
            if scope.losses:
                report("add_loss or an activity regularizer")
            after = scope.state_mapping.items()
            return result, {k: value for k, value in after if value is not before.get(k)}

        @tf.custom_gradient
        def run(*values: Any) -> Any:
            values = [tf.identity(v) for v in values]
            earlier = set(tf.compat.v1.get_default_graph().get_operations())
            with tf.GradientTape() as tape:
                result, assigned = compute(values)
            first[:] = result, assigned
            # A layer such as MultiHeadAttention removes the mask of its input.
            for i, value, mask in zip(floats, values, masks, strict=False):
                if mask is not None and getattr(value, "_keras_mask", None) is None:
                    flat[i]._keras_mask = None
            for v in tape.watched_variables():
                report(f"the weight {v.name!r} of another layer")
            if assigned.keys() - {id(v) for v in states}:
                report("an assignment to a trained weight, or to a variable that is not a weight")
            if tensors := _captured(earlier, values):
                report(f"the tensor {tensors[0].name!r}, which is no input of the call")

            def gradient(*upstream: Any, variables: Any = ()) -> list[Any]:
                # Without the control inputs, TensorFlow would merge both computations.
                with tf.control_dependencies(upstream):
                    again = [tf.identity(v) for v in values]
                watched = again[: len(floats) + len(trained)]
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(watched)
                    repeated, _ = compute(again)
                grads = tape.gradient(
                    tree.flatten(repeated),
                    watched,
                    output_gradients=list(upstream),
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )
                return [*grads, *[None] * len(states)]

            return tree.flatten(result), gradient

        # _value is not cast to the layer's compute dtype.
        weights = [tf.convert_to_tensor(v._value) for v in [*trained, *states]]
        results = run(*[flat[i] for i in floats], *weights)
        outputs, assigned = first
        for v in states:
            if id(v) in assigned:
                v.assign(assigned[id(v)])
        for result, output in zip(results, tree.flatten(outputs), strict=True):
            if (mask := getattr(output, "_keras_mask", None)) is not None:
                result._keras_mask = mask
        return tree.pack_sequence_as(outputs, results)

    return rematerialized


def _captured(earlier: set[Any], values: Sequence[Any]) -> list[Any]:
    """Float tensors of earlier operations that later operations use, except values and
    constants."""
    tf, _ = _load_tensorflow()
    given = {v.ref() for v in values}
    return [
        t
        for op in tf.compat.v1.get_default_graph().get_operations()
        if op not in earlier
        for t in op.inputs
        if t.op in earlier
        and t.dtype.is_floating
        and t.op.type not in ("Const", "Placeholder")
        and t.ref() not in given
    ]


# --- a Keras model as a set of steps -------------------------------------------------


def _clean(name: str) -> str:
    """Make a Keras name valid for a signature."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name.split("/")[-1].split(":")[0])


class _KerasProgram:
    """A Keras model, its optimizer, loss and metrics, as functions of named tensors."""

    # The signatures that a program has, and whether the model can be called.
    evaluates = predicts = calls = True
    loss_scale_input = micro_batches = scales_itself = False
    inexact = "it has its own train step"  # why parts of a batch make another update; "" if not
    combines = True  # whether losses of evaluated parts give that of the batch
    batch: int | None = None  # the fixed batch size; None if any size is possible

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loss: Any,
        metrics: Any,
        *,
        weighted_metrics: Any,
        learning_rate: float | None,
        loss_weights: Any,
        from_logits: bool,
        inputs: Mapping[str, Spec] | None,
        labels: Mapping[str, Spec] | None,
        input_dtypes: Mapping[str, str] | None,
        sample_weight: Spec | None,
        loss_scale_input: bool,
        micro_batches: bool,
        allow_unused: bool,
        classes: bool,
        adaptation: Adaptation | None,
        remat: str | Sequence[str] | None,
    ) -> None:
        self.tf, self.keras = _load_tensorflow()
        self.notes: list[str] = []
        for name, value in (("optimizer", optimizer), ("loss", loss)):
            if value is None:
                raise UsageError(f"no {name}: pass one, or a model that was compiled with one")
        self.model = model
        self.sample_weight = sample_weight
        self.loss_scale_input = loss_scale_input
        self._find_inputs(inputs, input_dtypes or {})
        if adaptation:
            adaptation.apply(model)
            if getattr(optimizer, "built", False):  # created for the weights before the adaptation
                optimizer = optimizer.from_config(optimizer.get_config())
        self._check_model()
        self._probe_outputs()
        self._find_losses(loss, loss_weights, from_logits, labels)
        self._find_labels(labels)
        self._find_metrics(metrics, weighted_metrics)
        self.optimizer = self._find_optimizer(optimizer, learning_rate)
        self.trainable = list(model.trainable_variables)
        self.classes = classes
        self._remat = {} if remat is None else _matching_layers(model, _patterns(remat))
        self._probe_gradients(allow_unused)
        self._find_exactness()
        self.micro_batches = micro_batches and self.batch is None
        if self.micro_batches:
            self._make_accumulators()

    # Checks and discovery. Each follows those that it depends on.

    def _find_inputs(
        self, given: Mapping[str, Spec] | None, input_dtypes: Mapping[str, str]
    ) -> None:
        """Decide the names, dtypes and shapes of the model's inputs; build the model."""
        keras, model = self.keras, self.model
        where = f"model {model.name!r}"
        self.inputs: dict[str, Spec] = {}
        self._symbolic: dict[int, str] = {}  # names of inputs, by id of the tensor in the model
        self.model_dtypes: dict[str, str] = {}
        try:
            struct = model.input if model.built else None
        except (AttributeError, ValueError):
            # A Sequential knows its inputs, but has no input tensor until it is called.
            symbolic = getattr(model, "inputs", None) or []
            struct = symbolic[0] if len(symbolic) == 1 else None
        if struct is not None and given is None:
            if isinstance(struct, Mapping):
                items = [(key, struct[key]) for key in struct]
                self._pack = lambda flat: dict(zip(struct, flat, strict=True))
            else:
                flat = keras.tree.flatten(struct)
                items = [("x" if len(flat) == 1 else t.name, t) for t in flat]
                self._pack = lambda values: keras.tree.pack_sequence_as(struct, values)
            for name, tensor in items:
                name = _clean(name)
                self._symbolic[id(tensor)] = name
                if name in self.inputs:
                    raise Refusal(
                        f"two inputs are called {name!r}",
                        where=where,
                        expected="one name per input",
                        found=", ".join(t.name for _, t in items),
                        do="give each keras.Input a name",
                    )
                if tensor.shape and tensor.shape[0] is not None:
                    self.batch = tensor.shape[0]  # for example with a stateful RNN
                dtype = keras.backend.standardize_dtype(tensor.dtype)
                self.inputs[name] = Spec(dtype, tuple(tensor.shape[1:]))
        elif given:
            self.inputs = dict(given)
            names = list(given)
            self._pack = lambda flat: (
                flat[0] if len(flat) == 1 else dict(zip(names, flat, strict=True))
            )
            specs = {
                n: self.tf.TensorSpec([None, *spec.shape], spec.dtype, name=n)
                for n, spec in self.inputs.items()
            }
            try:
                if self.calls:  # tracing changes no seed; running would
                    self._concrete(
                        lambda feeds: model(self._pack(list(feeds.values())), training=False), specs
                    )
            except Exception as error:
                raise Refusal(
                    "the model does not accept the inputs given",
                    where=where,
                    expected="a forward pass on "
                    + ", ".join(f"{n}={s}" for n, s in self.inputs.items()),
                    found=f"{type(error).__name__}: {error}",
                    do="correct --input",
                ) from error
        else:
            raise Refusal(
                "the model has no keras.Input, so the shapes of its inputs are unknown",
                where=where,
                expected="a model with keras.Input, or one whose inputs are given",
                found=f"{type(model).__name__} without input shapes",
                do="start it with keras.Input(shape), or pass --input x=float32[...]",
            )
        for name in self.inputs:
            if name in RESERVED_INPUTS or name == "y":
                raise Refusal(
                    f"an input has the reserved name {name!r}",
                    where=where,
                    expected="a name other than y, " + ", ".join(RESERVED_INPUTS),
                    found=name,
                    do="rename that keras.Input",
                )
        self.model_dtypes = {name: spec.dtype for name, spec in self.inputs.items()}
        for name, dtype in input_dtypes.items():
            if name not in self.inputs:
                raise UsageError(
                    f"--input-dtype names {name!r}; the inputs are {', '.join(self.inputs)}"
                )
            self.inputs[name] = Spec(dtype, self.inputs[name].shape)

    def _sample(self, spec: Spec, batch: int) -> Any:
        return self.tf.zeros([batch, *(4 if d is None else d for d in spec.shape)], spec.dtype)

    def _check_model(self) -> None:
        model = self.model
        if not model.trainable_variables:
            raise Refusal(
                "the model has nothing to train",
                where=f"model {model.name!r}",
                expected="at least one trainable weight",
                found=f"{len(model.variables)} variables, none of them trainable",
                do="set trainable=True on the layers that should learn",
            )
        half = [v for v in model.trainable_variables if v.dtype in ("float16", "bfloat16")]
        if half:
            # Gradients would have 16 bits, too, and the loss scale can make them overflow.
            raise Refusal(
                "weights of 16 bits",
                where=f"model {model.name!r}, weight {half[0].path!r}",
                expected="weights in float32, which mixed policies keep",
                found=f"{half[0].dtype}, as of {len(half)} of {len(model.trainable_variables)} weights",
                do="make the layers under mixed_float16 or mixed_bfloat16",
            )

    def _forward(self, feeds: Mapping[str, Any], training: bool) -> dict[str, Any]:
        """Run the model; returns its outputs by name."""
        # Keras passes training only to a call that takes it.
        given = {"training": training} if self.model._call_has_training_arg else {}
        return self._named(self.model(self._x(feeds), **given))

    def _x(self, feeds: Mapping[str, Any]) -> Any:
        """The model's input, in its structure and dtypes."""
        values = []
        for name, dtype in self.model_dtypes.items():
            value = feeds[name]
            values.append(value if value.dtype.name == dtype else self.tf.cast(value, dtype))
        return self._pack(values)

    def _named(self, outputs: Any) -> dict[str, Any]:
        """Outputs by name, in the order in which Keras pairs them with losses and metrics."""
        self.output_keys: dict[str, str] = {}
        if isinstance(outputs, Mapping):
            ordered = isinstance(outputs, collections.OrderedDict)
            self.output_keys = {_clean(k): k for k in (outputs if ordered else sorted(outputs))}
            if len(self.output_keys) != len(outputs):
                raise UsageError(f"two outputs of {', '.join(outputs)} have the same name")
            return {name: outputs[key] for name, key in self.output_keys.items()}
        flat = self.keras.tree.flatten(outputs)
        if len(flat) == 1:
            return {"output": flat[0]}
        names = getattr(self.model, "output_names", None) or []
        names = [_clean(name) for name in names]
        if len(names) != len(flat):
            names = [f"output_{i}" for i in range(len(flat))]
        if len(set(names)) != len(flat):
            raise UsageError(
                f"two of the outputs {', '.join(names)} have the same name; end the model with one "
                "layer of its own name for each output"
            )
        return dict(zip(names, flat, strict=True))

    def _specs(
        self, *, labels: bool, lead: Sequence[int | None] = (), step: bool = False
    ) -> dict[str, Any]:
        """TensorSpecs of a signature's inputs, with the leading dimensions and the batch first."""
        specs = dict(self.inputs)
        if labels:
            specs.update(self.labels)
            if self.sample_weight is not None:
                specs["sample_weight"] = self.sample_weight
        result = {
            name: self.tf.TensorSpec([*lead, self.batch, *spec.shape], spec.dtype, name=name)
            for name, spec in specs.items()
        }
        if step and self.loss_scale_input:
            result["loss_scale"] = self.tf.TensorSpec([], "float32", name="loss_scale")
        return result

    def _concrete(self, function: Callable, specs: Mapping[str, Any], **options: Any) -> Any:
        """Trace function(feeds) under its named inputs."""

        # Grappler does not know the shapes of values that a session feeds. Without this call, it
        # would rewrite other sums than in Keras, and results would round differently.
        def traced(**feeds: Any) -> Any:
            known = {name: self.tf.ensure_shape(feed, feed.shape) for name, feed in feeds.items()}
            return function(known)

        # AutoGraph would rewrite Keras's code slowly and without effect.
        traced_function = self.tf.function(traced, autograph=False, **options)
        return traced_function.get_concrete_function(**specs)

    def _probe_outputs(self) -> None:
        """Find the model's outputs, and check that no layer leaves the graph."""
        before = {id(v) for v in self.model.variables}
        specs = self._specs(labels=False)
        try:
            probe = self._concrete(lambda feeds: self._forward(feeds, False), specs)
        except UsageError:
            raise
        except Exception as error:
            lazy = "singleton tf.Variable" in str(error)
            raise Refusal(
                "variables appear while the model runs"
                if lazy
                else "the model does not run inside a graph",
                where=f"model {self.model.name!r}",
                expected="all variables created before the first call"
                if lazy
                else "a forward pass that TensorFlow can trace",
                found=f"{type(error).__name__}: {str(error)[:600]}",
                do="create them in __init__ or build(), with self.add_weight"
                if lazy
                else "replace Python code that needs the values of tensors by keras.ops",
            ) from error
        _refuse_foreign_ops(probe, "the model's forward pass")
        late = [v for v in self.model.variables if id(v) not in before]
        metrics = [m for layer in self.model._flatten_layers() for m in layer._metrics]
        counted = [v for m in metrics for v in m.variables]
        known = {id(v.value) for v in [*self.model.variables, *counted, *self._states()]}
        strange = [v for v in probe.graph.variables if id(v) not in known]
        if late or strange:
            raise Refusal(
                "variables appear while the model runs",
                where=f"model {self.model.name!r}",
                expected="all variables created before, and owned by the model",
                found=", ".join([v.path for v in late] + [v.name for v in strange]),
                do="create them in __init__ or build(), with self.add_weight, and keep layers as "
                "attributes of the model",
            )
        self.outputs: dict[str, Spec] = {}
        for name, tensor in probe.structured_outputs.items():
            shape = tensor.shape
            if shape.rank is None:
                raise Refusal(
                    "an output has no known rank",
                    where=f"model {self.model.name!r}, output {name!r}",
                    expected="a shape such as (None, 10)",
                    found="an unknown shape",
                    do="use layers that keep shapes, or tf.ensure_shape in the model",
                )
            self.outputs[name] = Spec(tensor.dtype.name, tuple(shape.as_list()[1:]))
        if self.model._call_has_training_arg or "train_step" in _own_methods(self.model):
            return
        told = self._concrete(
            lambda feeds: self._named(self.model(self._x(feeds), training=True)), specs
        )
        if _constants(told) != _constants(probe):
            self.notes.append(
                f"{type(self.model).__name__}.call has no argument training, so layers such as "
                "Dropout and BatchNormalization do the same in training as in inference, as under "
                "Keras fit; add the argument if they should train"
            )

    def _states(self) -> list[Any]:
        """The states of stateful RNNs, which are not among the variables of the model."""
        rnns = [v for v in self.model._flatten_layers() if isinstance(v, self.keras.layers.RNN)]
        return [
            v for layer in rnns if layer.stateful for v in self.keras.tree.flatten(layer.states)
        ]

    def _crossentropy(self, output: str, labels: Mapping[str, Spec] | None) -> str:
        """Return the loss that Keras uses for "crossentropy". labels are the specs, if given."""
        shape = self.outputs[output].shape
        if shape and shape[-1] == 1:
            return "binary_crossentropy"
        label = (labels or {}).get(f"y_{output}") or (labels or {}).get("y")
        if label is not None and len(label.shape) == len(shape) and label.shape[-1:] != (1,):
            return "categorical_crossentropy"
        return "sparse_categorical_crossentropy"

    def _find_losses(
        self, loss: Any, weights: Any, from_logits: bool, given: Mapping[str, Spec] | None
    ) -> None:
        names = list(self.outputs)
        if isinstance(loss, Mapping):
            loss = self._by_output("loss", loss, names)
            chosen = {n: loss[n] for n in names if loss.get(n) is not None}
        elif isinstance(loss, (list, tuple)):
            if len(loss) != len(names):
                raise UsageError(f"{len(loss)} losses for the outputs {', '.join(names)}")
            chosen = {n: v for n, v in zip(names, loss, strict=True) if v is not None}
        else:
            chosen = dict.fromkeys(names, loss)
        if isinstance(weights, Mapping):
            weights = self._by_output("loss_weights", weights, names)
        elif isinstance(weights, (list, tuple)):
            if len(weights) != len(names):
                raise UsageError(f"{len(weights)} loss_weights for the outputs {', '.join(names)}")
            weights = dict(zip(names, weights, strict=True))
        else:
            weights = dict.fromkeys(names, weights)
        self.losses = {
            n: _as_loss(
                self._crossentropy(n, given) if v in ("crossentropy", "ce") else v, from_logits
            )
            for n, v in chosen.items()
        }
        self.loss_weights = {
            n: 1.0 if weights.get(n) is None else float(weights[n]) for n in self.losses
        }
        for name, item in self.losses.items():
            if item.reduction in (None, "none"):
                raise Refusal(
                    "the loss is not a scalar",
                    where=f"loss {item.name!r} of output {name!r}",
                    expected="a reduction: sum_over_batch_size, mean_with_sample_weight or sum",
                    found=f"reduction={item.reduction!r}, one value per sample",
                    do="leave reduction at its default",
                )
        reductions = {item.reduction for item in self.losses.values()}
        if len(reductions) > 1 and "sum" in reductions:
            raise Refusal(
                "losses that sum and losses that average are mixed",
                where="losses of the outputs " + ", ".join(self.losses),
                expected="one kind, so that micro-batches can be weighted",
                found=", ".join(sorted(map(str, reductions))),
                do="use the same reduction everywhere and set loss_weights",
            )
        self.reduction = min(map(str, reductions))

    def _by_output(self, what: str, given: Mapping[str, Any], outputs: Iterable[str]) -> Any:
        """Entries of a dict of Keras compile, by the outputs of the signatures."""
        names = getattr(self.model, "output_names", None) or []
        only = {_clean(names[0]): "output"} if len(names) == 1 and "output" in self.outputs else {}
        cleaned = {only.get(_clean(k), _clean(k)): v for k, v in given.items()}
        unknown = sorted(set(cleaned) - set(outputs))
        if unknown:
            raise UsageError(f"{what} for {unknown}; the outputs are {', '.join(outputs)}")
        return cleaned

    def _find_labels(self, given: Mapping[str, Spec] | None) -> None:
        self.label_of: dict[str, str] = {
            output: "y" if len(self.losses) == 1 else f"y_{output}" for output in self.losses
        }
        self.labels: dict[str, Spec] = {}
        for output, label in self.label_of.items():
            shape = self.outputs[output].shape
            if given and label in given:
                self.labels[label] = given[label]
            elif _is_sparse(self.losses[output]):
                self.labels[label] = Spec("int64", shape[:-1])
            else:
                self.labels[label] = Spec("float32", shape)
                self._refuse_two_ranks(label, output)
        unknown = sorted(set(given or {}) - set(self.labels))
        if unknown:
            raise UsageError(f"--label names {unknown}; the labels are {', '.join(self.labels)}")
        clash = sorted(set(self.labels) & set(self.inputs))
        if clash:
            raise UsageError(f"{clash} names both an input and labels: rename the keras.Input")
        self.splits = True
        for output, loss in self.losses.items():
            self._probe_loss(output, loss)

    def _refuse_two_ranks(self, label: str, output: str) -> None:
        """Refuse a loss whose result depends on whether labels have a last dimension of 1.

        If the labels of fit lack that dimension, Keras removes it from the predictions;
        otherwise it adds it. A loss over the last axis then uses another axis.
        """
        shape, loss = self.outputs[output].shape, self.losses[output]
        other = (1,) if not shape else shape[:-1]
        if len(shape) == 1 or shape[-1:] not in ((), (1,)):
            return
        import numpy as np

        sizes = [7, *(4 if d is None else d for d in shape)]
        values = np.random.default_rng(0).uniform(0.1, 0.9, [2, *sizes]).astype("float32")
        y, p = self.tf.constant(values[0]), self.tf.constant(values[1])
        short = y[:, None] if not shape else y[..., 0]
        try:
            same = np.isclose(float(loss(y, p)), float(loss(short, p)), rtol=1e-4)
        except (AssertionError, LookupError, TypeError, ValueError, self.tf.errors.OpError):
            return  # it takes at most one of the two; _probe_loss reports a loss that takes none
        if not same:
            raise Refusal(
                "the loss depends on whether the labels have a last dimension of 1",
                where=f"loss {loss.name!r} of output {output!r} {self.outputs[output]}",
                expected="the shape of the labels that fit would get",
                found="another loss for labels in the shape of the output than for "
                f"{label}={Spec('float32', other)}",
                do=f"pass --label {label}={Spec('float32', shape)} or "
                f"--label {label}={Spec('float32', other)}",
            )

    def _probe_loss(self, output: str, loss: Any) -> None:
        """Run a loss on a few synthetic samples and check the shape of its result."""
        tf = self.tf
        label = self.labels[self.label_of[output]]
        # A number of samples that no other dimension has, so that a swapped axis is found.
        n = next(n for n in range(5, 99) if n not in label.shape + self.outputs[output].shape)
        y = self._sample(label, n)
        prediction = self._sample(dataclasses.replace(self.outputs[output], dtype="float32"), n)
        where = f"loss {loss.name!r} of output {output!r}"
        try:
            y_cast = tf.cast(y, "float32") if y.dtype.is_floating else y
            values = tf.convert_to_tensor(loss.call(y_cast, prediction))
            reduced = tf.convert_to_tensor(loss(y, prediction))
            self.splits &= self._splits(loss, label, self.outputs[output])
        except Exception as error:
            raise Refusal(
                "the loss does not accept labels and predictions of these shapes",
                where=where,
                expected=f"labels {label} to fit predictions {self.outputs[output]}",
                found=f"{type(error).__name__}: {error}",
                do="choose another loss, or set the labels with --label y=DTYPE[DIMS]",
            ) from error
        self.scalar_loss = values.shape.rank == 0
        if reduced.shape.rank != 0 or not (self.scalar_loss or values.shape[0] == n):
            raise Refusal(
                "the loss is not a scalar",
                where=where,
                expected=f"one value per sample, shape ({n}, ...) for {n} samples, or one scalar",
                found=f"shape {tuple(values.shape)}",
                do="reduce over the last axis only, as Keras losses do",
            )
        most = max(1, len(self.outputs[output].shape))
        if values.shape.rank > most and math.prod(values.shape) > math.prod(prediction.shape):
            raise Refusal(
                "the loss broadcasts labels against predictions",
                where=where,
                expected=f"at most {most} dimensions",
                found=f"shape {tuple(values.shape)} from labels {label} and predictions "
                f"{self.outputs[output]}",
                do="give the labels the shape of the predictions with --label y=DTYPE[DIMS]",
            )
        weights = self.sample_weight
        if weights is None:
            return
        if self.scalar_loss:
            raise Refusal(
                "sample weights cannot reach this loss",
                where=where,
                expected="one value per sample to be weighted",
                found="a scalar that is already reduced",
                do="return per-sample values from the loss, or leave out --sample-weight",
            )
        if len(weights.shape) >= values.shape.rank:
            raise Refusal(
                "the sample weights have more dimensions than the losses",
                where=where,
                expected=f"at most {values.shape.rank - 1} behind the batch",
                found=f"sample_weight {weights}",
                do="give --sample-weight fewer dimensions",
            )

    def _splits(self, loss: Any, label: Spec, output: Spec) -> bool:
        """Whether the loss of a batch is the mean over its parts, weighted by their samples.

        It is not the mean if the loss compares samples (Circle), computes one fraction for the
        whole batch (Dice), or ignores labels (ignore_class).
        """
        import numpy as np

        random = np.random.default_rng(0)

        def batch(spec: Spec) -> list[int]:
            return [6, *(4 if d is None else d for d in spec.shape)]

        tells = False
        # A margin may remove all small values, and a logarithm all negative ones.
        for scale in (1, 10, -10):
            y = self.tf.constant(random.integers(0, 2, batch(label)), label.dtype)
            p = self.tf.constant(random.uniform(0.1, 0.9, batch(output)) * scale, "float32")
            if getattr(loss.call(y, p), "_keras_mask", None) is not None:
                return False
            whole = float(loss(y, p))
            parts = [float(loss(y[part], p[part])) for part in (slice(0, 2), slice(2, 6))]
            summed = sum(parts) if loss.reduction == "sum" else (2 * parts[0] + 4 * parts[1]) / 6
            if math.isfinite(whole) and not np.isclose(whole, summed, rtol=1e-4):
                return False
            tells = tells or math.isfinite(whole) and whole != 0
        return tells

    def _find_metrics(self, metrics: Any, weighted: Any) -> None:
        """Make the metrics of Keras compile, with their variables."""
        from keras.src.trainers.compile_utils import CompileMetrics

        made = CompileMetrics(
            self._metrics_by_output(metrics),
            self._metrics_by_output(weighted),
            output_names=list(self.outputs),
        )
        # The metrics create their variables with the first batch.
        self._metrics = [made]
        y = {label: self._sample(spec, 2) for label, spec in self.labels.items()}
        outputs = {o: self._sample(spec, 2) for o, spec in self.outputs.items()}
        try:
            made.update_state(*self._pair(y, outputs))
        except Exception as error:
            raise UsageError(f"metrics: {type(error).__name__}: {error}") from error
        # Layers may have metrics of their own, which Keras reports, too.
        model = self.model
        apart = {id(m) for m in (model._loss_tracker, model._compile_metrics)}
        apart |= {id(m) for m in getattr(model._compile_loss, "metrics", [])}
        self._metrics += [m for m in model.metrics if id(m) not in apart]
        for metric in self._metrics:
            metric.reset_state()
        taken = set(RESERVED_OUTPUTS) | {f"{o}_loss" for o in self.losses if len(self.losses) > 1}
        self.metrics: list[str] = []
        for name, value in self._metric_values().items():
            if name in taken:
                raise UsageError(f"a metric is called {name!r}, like another output")
            found = f"a dict of {', '.join(value)}" if isinstance(value, Mapping) else None
            if found is None and self.tf.convert_to_tensor(value).shape.rank != 0:
                found = f"shape {tuple(value.shape)}"
            if found is not None:
                raise Refusal(
                    f"metric {name!r} is not a scalar",
                    where="metrics",
                    expected="one number",
                    found=found,
                    do="have it average, or leave it out and compute it from predict's output",
                )
            self.metrics.append(name)

    def _metrics_by_output(self, metrics: Any) -> Any:
        if isinstance(metrics, Mapping):
            return self._by_output("metrics", metrics, self.losses)
        return metrics if metrics is None or isinstance(metrics, (list, tuple)) else [metrics]

    def _pair(self, y: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Labels and outputs in one structure, in the form for metrics."""
        if len(outputs) == 1:
            (output,) = outputs
            return y[self.label_of[output]], outputs[output]
        labels = {o: y[self.label_of[o]] if o in self.label_of else None for o in outputs}
        return labels, dict(outputs)

    def _metric_values(self) -> dict[str, Any]:
        """The values of all metrics, by their names in Keras."""
        compiled, *others = self._metrics
        found: dict[str, Any] = {}
        for name, value in [*compiled.result().items(), *((m.name, m.result()) for m in others)]:
            clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
            if clean in found:
                raise UsageError(f"two metrics are called {clean!r}")
            if not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*", name):
                raise UsageError(
                    f"a metric is called {name!r}: give it a name without {' '!r} and the like"
                )
            found[clean] = value
        return found

    def _find_optimizer(self, optimizer: Any, learning_rate: float | None) -> Any:
        keras = self.keras
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            try:
                optimizer = keras.optimizers.get(optimizer)
            except (ValueError, TypeError) as error:
                raise UsageError(f"unknown optimizer {optimizer!r}: {error}") from error
        if optimizer.built:
            mine = [id(v) for v in self.model.trainable_variables]
            # The inner optimizer holds the list when loss scaling wraps it.
            inner = getattr(optimizer, "inner_optimizer", optimizer)
            theirs = list(inner._trainable_variables)
            if [id(v) for v in theirs] != mine:
                raise Refusal(
                    "the optimizer belongs to another model",
                    where=f"optimizer {optimizer.name!r}",
                    expected=f"an optimizer not yet built, or built on the {len(mine)} trainable "
                    f"weights of {self.model.name!r}",
                    found=f"{len(theirs)} weights, first {theirs[0].path if theirs else '-'}",
                    do="make a new optimizer (from_config(optimizer.get_config()) copies one)",
                )
        policies = {layer.dtype_policy.name for layer in self.model._flatten_layers()}
        half = "mixed_float16" in policies
        wrapped = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if wrapped and self.loss_scale_input:
            raise UsageError(
                "loss_scale_input: the optimizer scales the loss itself; pass its inner_optimizer"
            )
        self.precision = (
            "mixed_float16"
            if half
            else "mixed_bfloat16"
            if "mixed_bfloat16" in policies
            else str(self.model.dtype_policy.name)
        )
        if half and not wrapped and not self.loss_scale_input:
            # Without loss scaling, float16 gradients underflow. Keras compile wraps the optimizer
            # in the same way.
            if optimizer.built:
                raise Refusal(
                    "a float16 model without loss scaling",
                    where=f"optimizer {optimizer.name!r}",
                    expected="keras.optimizers.LossScaleOptimizer",
                    found="an optimizer that is already built",
                    do="wrap it before it is built",
                )
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        if learning_rate is not None:
            try:
                optimizer.learning_rate = learning_rate
            except (TypeError, ValueError) as error:
                raise UsageError(f"cannot set the learning rate: {error}") from error
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.scales_itself = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if self.scales_itself:
            zero = self.tf.zeros([], self.tf.int64)
            self.skipped = self.tf.Variable(zero, trainable=False, name="skipped_steps")
        return optimizer

    def _probe_gradients(self, allow_unused: bool) -> None:
        """Find trainable weights that do not affect the loss."""
        missing: list[bool] = []

        def probe(feeds: Mapping[str, Any]) -> Any:
            with self.tf.GradientTape() as tape:
                loss, _, _ = self._objective(feeds, True)
            grads = tape.gradient(loss, [v.value for v in self.trainable])
            missing[:] = [g is None for g in grads]
            self._sparse = any(isinstance(g, self.tf.IndexedSlices) for g in grads)
            return loss

        concrete = self._concrete(probe, self._specs(labels=True))
        _refuse_foreign_ops(concrete, "the training pass")
        self._random = self._draws(concrete)
        self._writes = self._changes_state(concrete)
        self._penalises = self._penalises_batches(concrete)
        unused = [v.path for v, none in zip(self.trainable, missing, strict=True) if none]
        if len(unused) == len(self.trainable) or (unused and not allow_unused):
            raise Refusal(
                "weights get no gradient from the loss",
                where=f"model {self.model.name!r}",
                expected="every trainable weight on the way from an input to the loss",
                found=", ".join(unused),
                do="set trainable=False on them or connect them"
                + ("" if len(unused) == len(self.trainable) else ", or pass --allow-unused"),
            )
        self.trainable = [v for v, none in zip(self.trainable, missing, strict=True) if not none]

    def _find_exactness(self) -> None:
        """Find whether a step on the parts of a batch equals the step on the whole batch."""
        keras = self.keras

        def named(is_one: Callable[[Any], bool]) -> str:
            found = [
                f"{type(v).__name__} {v.name}" for v in self.model._flatten_layers() if is_one(v)
            ]
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            return f" ({', '.join(found[:3])}{more})" if found else ""

        def trains(kind: type) -> str:
            return named(lambda layer: isinstance(layer, kind) and layer.trainable)

        def draws(layer: Any) -> bool:
            state = getattr(getattr(layer, "seed_generator", None), "state", None)
            return any(state is v for v in self._random)

        mixes = trains(keras.layers.BatchNormalization)
        masked = self._masked and len(self.losses) > 1
        reasons = {
            f"each part has its own batch statistics{mixes}": mixes,
            f"each part draws its own random numbers{named(draws)}": self._random,
            "each part changes weights in the forward pass": self._writes,
            "each part divides the losses of several outputs by its own number of elements": masked,
            "the loss compares samples or leaves some out": not self.splits,
            f"{self.optimizer.name} updates repeated rows separately"
            + trains(keras.layers.Embedding): self._sparse and not self._adds(),
        }
        self.inexact = "; ".join(reason for reason, holds in reasons.items() if holds)
        # Keras divides the loss of a batch by its elements that are not masked. The penalties of a
        # summed loss count only with the first part, and an evaluation has no first part.
        unequal = self._penalty if self.reduction == "sum" else self._masked
        self.combines = self.splits and not unequal and not (self.inexact and self._penalises)

    def _adds(self) -> bool:
        """Whether the update by an IndexedSlices equals that by its dense table.

        If a row occurs twice, Keras 3 squares or clips both gradients instead of their sum.
        """
        optimizers = [self.optimizer, getattr(self.optimizer, "inner_optimizer", self.optimizer)]
        if self.loss_scale_input or any(o.gradient_accumulation_steps for o in optimizers):
            return True  # its gradient is dense by then
        return type(optimizers[-1]) is self.keras.optimizers.SGD and not any(
            o.clipnorm or o.global_clipnorm or o.clipvalue for o in optimizers
        )

    def _draws(self, concrete: Any) -> list[Any]:
        """The seeds of the random numbers that the training pass draws.

        Layers that could draw but do not (LSTM without dropout) have a seed that is not read.
        The verification refuses operations that draw without a saved seed.
        """
        read = {id(tensor) for tensor in concrete.captured_inputs}
        seeds = [v for v in self.model.non_trainable_variables if "seed_generator" in v.path]
        return [v for v in seeds if id(v.value.handle) in read]

    def _changes_state(self, concrete: Any) -> bool:
        """Whether the training pass assigns to weights, as SpectralNormalization does."""
        handles = {id(v.value.handle) for v in self.model.non_trainable_weights}
        inside = {inner.op.name for outer, inner in concrete.graph.captures if id(outer) in handles}
        graph = concrete.graph.as_graph_def()
        library = {f.signature.name: f for f in graph.library.function}
        return any(_assigns(graph.node, name, library) for name in inside)

    def _penalises_batches(self, concrete: Any) -> bool:
        """Whether a layer adds a loss of its inputs that may not be a mean over the samples."""
        keras, graph = self.keras, concrete.graph
        captured = {tensor.op for tensor in graph.internal_captures}
        means = self.reduction in ("mean", "sum_over_batch_size") and not self._masked
        means_of = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
        for layer in self.model._flatten_layers():
            own = type(layer).__module__.startswith("keras.src.")
            if means and own and type(layer.activity_regularizer) in means_of:
                continue
            names = [t.name for t in layer._losses if getattr(t, "graph", None) is graph]
            if any(
                op.type == "Placeholder" and op not in captured for op in _ancestors(graph, names)
            ):
                return True
        return False

    def compare_parts(self, gradients: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Compare the gradients of a random batch with those of its parts; sets inexact.

        This finds layers and losses that compare samples, which no rule can detect. It runs the
        signature itself, and restores all variables afterwards.
        """
        import numpy as np

        tf = self.tf
        random = np.random.default_rng(0)
        feeds = {}
        for name, spec in gradients.structured_input_signature[1].items():
            sizes = [8 if i == 0 else d or 4 for i, d in enumerate(spec.shape)]
            value = _random(np, random, name, spec.dtype, sizes, ranges.get(name))
            if name == "sample_weight":
                value = random.uniform(0.5, 2, sizes)
            feeds[name] = tf.constant(value, spec.dtype)
        weights = {id(v.value) for v in self.model.weights}
        changing = [v for v in gradients.graph.variables if id(v) not in weights]

        def run(*parts: slice) -> list[Any]:
            """The loss and the gradients of a batch in parts."""
            total = before = 0.0
            with _kept(changing):
                for part in parts:
                    loss = gradients(
                        **{k: v[part] if v.shape.rank else v for k, v in feeds.items()}
                    )
                    weight = self.weight_sum.numpy()
                    total += float(loss["loss"]) * (weight - before)
                    before = weight
                divisor = 1.0 if self.reduction == "sum" else before
                return [total / divisor, *(a.numpy() / divisor for a in self.accumulators)]

        options = tf.config.optimizer.get_experimental_options()
        name, at_once = "disable_meta_optimizer", None
        try:
            # Rewriting the graph would take longer than these runs.
            tf.config.optimizer.set_experimental_options({name: True})
            try:
                at_once = run(slice(0, 8))
            except tf.errors.OpError:
                # The model may convert texts to numbers.
                for key in [key for key, value in feeds.items() if value.dtype == tf.string]:
                    numbers = np.resize(np.array(NUMBERS, dtype=object), feeds[key].shape)
                    feeds[key] = tf.constant(numbers)
                at_once = run(slice(0, 8))
            in_parts = run(slice(0, 3), slice(3, 8))
        except tf.errors.OpError as error:
            in_parts = None
            found = f"the samples fail in parts ({error.message[:200]})"
        finally:
            tf.config.optimizer.set_experimental_options({name: options.get(name, False)})
        if at_once is None or not math.isfinite(at_once[0]):
            self.combines &= not self._penalises
            found = "a layer adds a loss of its inputs" if self._penalises else ""
        elif in_parts is None:
            self.combines = False
        else:
            found = ""
            half = self.precision.startswith("mixed")
            whole = math.sqrt(sum(float(np.sum(np.square(g))) for g in at_once[1:]))
            names = ["loss", *(f"gradient of {v.path}" for v in self.trainable)]
            for name, a, b in zip(names, at_once, in_parts, strict=True):
                size, off = float(np.linalg.norm(a)), float(np.linalg.norm(np.subtract(a, b)))
                least = 1e-5 * whole
                relative = 0.05 if half else 1e-3
                if name == "loss":
                    relative, least = 1e-3 if half else 1e-5, 1e-7
                if off > relative * size + least:
                    self.combines &= name != "loss"
                    found = (
                        f"the {name} of 8 random samples is another one than in parts of 3 and 5"
                    )
                    break
        self.inexact = found

    def _make_accumulators(self) -> None:
        tf = self.tf
        self.accumulators = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False, name=f"accumulator/{v.path}")
            for v in self.trainable
        ]
        self.weight_sum = tf.Variable(0.0, trainable=False, name="accumulator/weight")
        self.sample_sum = tf.Variable(
            tf.zeros([], tf.int64), trainable=False, name="accumulator/samples"
        )
        # The loss of the batch times its divisor, if the number of samples alone does not weight
        # the parts.
        self.loss_sum = None
        if self._masked and self.reduction != "sum":
            self.loss_sum = tf.Variable(0.0, trainable=False, name="accumulator/loss")

    # The steps.

    def _objective(
        self, feeds: Mapping[str, Any], training: bool, regularise: Any = None
    ) -> tuple[Any, dict[str, Any], Any]:
        """Loss as Keras fit minimises it, scalars to report, and the batch's weight.

        The weight is the divisor of the loss, up to a factor common to all batches. It weights
        micro-batch gradients in their average.
        """
        tf = self.tf
        outputs = self._forward(feeds, training)
        weights = feeds.get("sample_weight")
        total = tf.zeros([], "float32")
        scalars: dict[str, Any] = {}
        batch = tf.shape(next(iter(outputs.values())))[0]
        divisor = tf.cast(batch, "float32")
        if self.reduction == "mean_with_sample_weight" and weights is not None:
            divisor = tf.reduce_sum(weights)
        self._masked = False
        for output, loss in self.losses.items():
            prediction = outputs[output]
            y = feeds[self.label_of[output]]
            shaped = weights
            if weights is not None and weights.shape.rank == 1:
                # Per-sample losses of a [B,T,C] output are [B,T]; weights must not meet T.
                rank = max(1, len(self.outputs[output].shape))
                shaped = tf.reshape(weights, [-1] + [1] * (rank - 1))
            mask = getattr(prediction, "_keras_mask", None)
            if mask is not None:
                self._masked = True
                if len(self.losses) == 1 and self.reduction != "sum":
                    kept = tf.cast(mask, "float32")
                    if self.reduction == "mean_with_sample_weight" and shaped is not None:
                        kept *= shaped
                    divisor = tf.reduce_sum(kept)
            value = tf.cast(loss(y, prediction, sample_weight=shaped), "float32")
            if len(self.losses) > 1:
                scalars[f"{output}_loss"] = value
            total += self.loss_weights[output] * value
        extra = [tf.reduce_sum(tf.cast(item, "float32")) for item in self.model.losses]
        self._penalty = bool(extra)
        if extra:
            penalty = tf.add_n(extra)
            total += penalty if regularise is None else penalty * regularise
        scalars = {"loss": total, **scalars}
        if self.metrics:
            self._metrics[0].update_state(*self._pair(feeds, outputs), sample_weight=weights)
            for name, value in self._metric_values().items():
                scalars[name] = tf.cast(value, "float32")
        return total, scalars, divisor

    def reset_metrics(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Reset the metrics; the outputs name them."""
        for metric in self._metrics:
            metric.reset_state()
        return {name: self.tf.zeros([]) for name in self.metrics}

    def finalize(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the weights by their moving averages, as Keras does at the end of fit."""
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        step = self.optimizer.iterations
        return {"global_step": self.tf.cast(getattr(step, "value", step), "int64")}

    def _gradient(
        self, feeds: Mapping[str, Any], regularise: Any = None
    ) -> tuple[list[Any], dict[str, Any], Any]:
        tf = self.tf
        with tf.GradientTape() as tape:
            with _rematerialized(self._remat):
                loss, scalars, divisor = self._objective(feeds, True, regularise)
            scaled = self.optimizer.scale_loss(loss)
            if self.loss_scale_input:
                scaled *= feeds["loss_scale"]
        grads = tape.gradient(scaled, [v.value for v in self.trainable])
        if self.loss_scale_input:
            grads = [tf.convert_to_tensor(g) / tf.cast(feeds["loss_scale"], g.dtype) for g in grads]
        if self.loss_scale_input or self.scales_itself:
            scalars["grads_finite"] = self._finite(grads)
        return grads, scalars, divisor

    def _finite(self, grads: Sequence[Any]) -> Any:
        tf = self.tf
        return tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(g))) for g in grads]
        )

    def _update(self, grads: Sequence[Any], finite: Any) -> None:
        """One optimizer step; no step if the loss is scaled and the gradients are not finite."""
        tf = self.tf
        if self.loss_scale_input:

            def good() -> Any:
                self.optimizer.apply_gradients(zip(grads, self.trainable, strict=True))
                return tf.constant(True)

            tf.cond(finite, good, lambda: tf.constant(False))
            return
        self.optimizer.apply_gradients(zip(grads, self.trainable, strict=True))
        if self.scales_itself:
            self.skipped.assign_add(tf.cast(~finite, tf.int64))

    def _scale(self) -> dict[str, Any]:
        """The current scale of the loss inside the graph."""
        if not self.scales_itself:
            return {}
        tf = self.tf
        return {
            "loss_scale": tf.identity(self.optimizer.dynamic_scale.value),
            "skipped_steps": tf.identity(self.skipped),
        }

    def train(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """One optimizer step."""
        grads, scalars, _ = self._gradient(feeds)
        self._update(grads, scalars.get("grads_finite"))
        return {**scalars, **self._scale()}

    def evaluate(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Loss and metrics without a step, in inference mode."""
        return self._objective(feeds, False)[1]

    def predict(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's outputs in float32; for a classifier, probabilities and the class too."""
        tf = self.tf
        outputs = {
            name: tf.cast(value, "float32") if value.dtype.is_floating else value
            for name, value in self._predicted(feeds).items()
        }
        if not self.classes:
            return outputs
        (name,) = outputs
        value = outputs[name]
        named = {}
        if _uses_logits(self.losses[name]):
            named["logits"] = value
            value = tf.nn.softmax(value) if value.shape[-1] != 1 else tf.sigmoid(value)
        named["probabilities"] = value
        if value.shape[-1] == 1:
            named["class"] = tf.cast(value[..., 0] > 0.5, "int64")
        else:
            named["class"] = tf.argmax(value, axis=-1, output_type=tf.int64)
        return named

    def _predicted(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        if "predict_step" in _own_methods(self.model):
            return self._named(self.model.predict_step(self._x(feeds)))
        return self._forward(feeds, False)

    def gradients(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Add a micro-batch to the accumulators."""
        tf = self.tf
        regularise = None
        if self.reduction == "sum":
            # A summed loss has no divisor, so the penalties count only with the first part.
            regularise = tf.cast(tf.equal(self.sample_sum, 0), "float32")
        grads, scalars, divisor = self._gradient(feeds, regularise)
        if self.reduction == "sum":
            divisor = tf.ones([], "float32")
        for accumulator, grad in zip(self.accumulators, grads, strict=True):
            # The mean's gradient times its divisor, in float32. The gradient of the sum would
            # overflow in float16.
            weighted = tf.convert_to_tensor(grad) * tf.cast(divisor, accumulator.dtype)
            accumulator.assign_add(weighted)
        self.weight_sum.assign_add(divisor)
        if self.loss_sum is not None:
            self.loss_sum.assign_add(scalars["loss"] * divisor)
        first = next(iter(self.inputs))
        self.sample_sum.assign_add(tf.shape(feeds[first], out_type=tf.int64)[0])
        return {**scalars, **self._scale()}

    def apply(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """One optimizer step with the accumulated gradients; clears them."""
        tf = self.tf
        check = tf.debugging.Assert(
            self.sample_sum > 0,
            ["apply: nothing accumulated; run the gradients signature first"],
        )
        # This depends on the check, so that a call out of order changes nothing.
        with tf.control_dependencies([check]):
            if self.reduction == "sum":
                divisor = tf.ones([], "float32")
            else:
                divisor = tf.identity(self.weight_sum)
            grads = [tf.math.divide_no_nan(a, tf.cast(divisor, a.dtype)) for a in self.accumulators]
            # divide_no_nan turns x/0 into 0 but keeps NaN and Inf for the finite check.
            finite = self._finite(grads) if self.loss_scale_input or self.scales_itself else None
            self._update(grads, finite)
            result = {}
            if self.loss_sum is not None:
                result["loss"] = tf.math.divide_no_nan(self.loss_sum, divisor)
                self.loss_sum.assign(0.0)
            for accumulator in self.accumulators:
                accumulator.assign(tf.zeros_like(accumulator))
            self.weight_sum.assign(0.0)
            self.sample_sum.assign(tf.zeros([], tf.int64))
            # With gradient_accumulation_steps, iterations is not a variable, but computed from
            # one.
            step = self.optimizer.iterations
            result["global_step"] = tf.cast(getattr(step, "value", step), "int64")
            if finite is not None:
                result["grads_finite"] = finite
            return {**result, **self._scale()}

    def learning_rate(self) -> Any:
        """The variable that holds the learning rate, or None under a schedule."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        rate = getattr(inner, "_learning_rate", None)
        return rate.value if isinstance(rate, self.keras.Variable) else None

    def signatures(self, xla_batch: int | None, xla_steps: int | None) -> dict[str, Any]:
        """Trace every signature."""
        tf = self.tf
        if self.batch is not None and xla_batch not in (None, self.batch):
            raise UsageError(
                f"xla_batch is {xla_batch}, and the model takes batches of {self.batch}"
            )
        specs = self._specs(labels=True, step=True)
        train = self._concrete(self.train, specs)
        result = {
            "train": train,
            "train_n": self._concrete(
                lambda feeds: repeat(tf, train, feeds, self.metrics),
                self._specs(labels=True, lead=(None,), step=True),
            ),
        }
        if self.evaluates:
            result["evaluate"] = self._concrete(self.evaluate, self._specs(labels=True))
        if self.predicts:
            result["predict"] = self._concrete(self.predict, self._specs(labels=False))
        if self.micro_batches:
            result["gradients"] = self._concrete(self.gradients, specs)
            result["apply"] = self._concrete(self.apply, {})
        if self.metrics:
            result["reset_metrics"] = self._concrete(self.reset_metrics, {})
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        if any(getattr(o, "use_ema", False) for o in (inner, *getattr(inner, "optimizers", ()))):
            result["finalize"] = self._concrete(self.finalize, {})
        rate = self.learning_rate()
        # A MultiOptimizer has no learning rate itself: each of its optimizers has one.
        if rate is not None and any(v is rate for v in train.graph.variables):
            result["set_learning_rate"] = self._concrete(
                lambda feeds: {"learning_rate": tf.identity(rate.assign(feeds["learning_rate"]))},
                {"learning_rate": tf.TensorSpec([], "float32", name="learning_rate")},
            )
        result.update(xla_twins(tf, train, specs, xla_batch, xla_steps, self.metrics))
        return result

    def tracked(self) -> Any:
        """An object that owns every variable of the steps, under readable names."""
        tf = self.tf
        root = tf.Module()
        root.model = _by_path(self.model.variables)
        root.optimizer = _by_path(self.optimizer.variables)
        root.states = _by_path(self._states())
        owned = {id(v) for v in self.model.variables}
        root.metrics = _by_path(
            [v for m in self._metrics for v in m.variables if id(v) not in owned]
        )
        if self.scales_itself:
            root.skipped_steps = self.skipped
        if self.micro_batches:
            root.accumulators = {
                v.path: a for v, a in zip(self.trainable, self.accumulators, strict=True)
            }
            root.accumulated = {"weight": self.weight_sum, "samples": self.sample_sum}
            if self.loss_sum is not None:
                root.accumulated["loss"] = self.loss_sum
        return root

    def _rows(self) -> dict[str, int]:
        """The rows of Embedding tables, by the name of the integer input that indexes the table
        directly.

        For an index beyond the table, TensorFlow fails on a CPU and returns zeros on a GPU
        (documented at tf.gather). In Keras, negative indices count from the end of the table.
        """
        embedding = self.keras.layers.Embedding
        found: dict[str, int] = {}
        for layer in self.model._flatten_layers():
            if not isinstance(layer, embedding) or type(layer).call is not embedding.call:
                continue  # another call may change its indices
            for node in layer._inbound_nodes:
                for tensor in node.input_tensors:
                    name = self._symbolic.get(id(tensor))
                    if name is not None and "int" in self.inputs[name].dtype:
                        rows = int(layer.input_dim)
                        found[name] = min(rows, found.get(name, rows))
        return found

    def _noted_reduction(self) -> str:
        """How the losses of the parts of a batch give that of the batch."""
        if self.combines:
            return self.reduction
        return "sum_in_training" if self.reduction == "sum" else "unknown"

    def metadata(self) -> dict[str, Any]:
        """The metadata of the steps."""
        inputs = {n: _spec_json(s) for n, s in self.inputs.items()}
        for name, rows in self._rows().items():
            inputs[name]["rows"] = rows
        labels = {n: _spec_json(s) for n, s in self.labels.items()}
        sparse = self.keras.losses.sparse_categorical_crossentropy
        for output, loss in self.losses.items():
            size = self.outputs[output].shape[-1:]
            options = getattr(loss, "_fn_kwargs", {})
            counted = getattr(loss, "fn", None) is sparse and size != (None,)
            if counted and options.get("ignore_class") is None:
                labels[self.label_of[output]]["classes"] = size[0]
        return {
            "inputs": inputs,
            "labels": labels,
            "metrics": self.metrics,
            "loss": {n: item.name for n, item in self.losses.items()},
            "optimizer": getattr(
                getattr(self.optimizer, "inner_optimizer", self.optimizer), "name", None
            ),
            "precision": self.precision,
            **self.exactness(),
        }

    def exactness(self) -> dict[str, Any]:
        """The metadata of what splitting a batch does."""
        reason = {"micro_batches_inexact": self.inexact} if self.inexact else {}
        reduction = self._noted_reduction()
        return {"micro_batches_exact": not self.inexact, **reason, "loss_reduction": reduction}


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


def _own_methods(model: Any, names: Sequence[str] = OWN_METHODS) -> list[str]:
    """The names of the methods that the model or its class overrides."""
    _, keras = _load_tensorflow()

    def own(name: str) -> bool:
        if name in vars(model):
            return True
        owner = next(c for c in type(model).__mro__ if name in vars(c))
        # The fit of KerasHub's tasks prepares data, and then trains like that of Keras.
        prepares = name == "fit" and owner.__module__.split(".")[0] == "keras_hub"
        return owner not in keras.Model.__mro__ and not prepares

    return [name for name in names if own(name)]


class _OwnStepProgram(_KerasProgram):
    """A compiled Keras model whose own train_step and test_step are the steps.

    They are traced without changes, with all optimizers and metrics that they use. Their
    outputs are running values: for an epoch, Keras reports those of the last step.
    """

    def __init__(
        self,
        model: Any,
        *,
        learning_rate: float | None,
        inputs: Mapping[str, Spec] | None,
        labels: Mapping[str, Spec] | None,
        input_dtypes: Mapping[str, str] | None,
        sample_weight: Spec | None,
        loss_output: str | None,
        classes: bool,
        adaptation: Adaptation | None,
    ) -> None:
        self.tf, self.keras = _load_tensorflow()
        self.notes = []
        self.model, self.sample_weight, self.classes = model, sample_weight, classes
        self.loss_output = loss_output
        self.optimizer, self.reduction = model.optimizer, "sum_over_batch_size"
        self.precision = str(model.dtype_policy.name)
        if isinstance(self.optimizer, self.keras.optimizers.LossScaleOptimizer):
            raise Refusal(
                "a model of float16 with its own train step",
                where=f"{type(model).__name__}.{_own_methods(model)[0]}"
                if _own_methods(model)
                else "add_loss",
                expected="a policy without loss scaling, such as mixed_bfloat16",
                found="a LossScaleOptimizer, whose skipped steps the step does not report",
                do="make the layers under mixed_bfloat16",
            )
        self.calls = type(model).call is not self.keras.Model.call
        self.predicts = self.calls or "predict_step" in _own_methods(model)
        if learning_rate is not None:
            if self.optimizer is None:
                raise UsageError("learning_rate: the model was compiled without an optimizer")
            self.optimizer.learning_rate = learning_rate
        self._find_inputs(inputs, input_dtypes or {})
        if adaptation:
            if any(o.built for o in optimizers(model)):
                raise UsageError(
                    "lora, quantize and train_only: an optimizer of the model is already built on "
                    "other weights; compile the model with a new one"
                )
            adaptation.apply(model)
        self._find_targets(labels)
        self._trace()
        self._check_model()
        self.trainable = list(model.trainable_variables)

    def _find_targets(self, given: Mapping[str, Spec] | None) -> None:
        self.losses: dict[str, Any] = {}
        self.labels: dict[str, Spec] = dict(given or {})
        if self.calls:
            self._probe_outputs()
        if self.calls and getattr(self.model, "loss", None) is not None:
            self._find_losses(self.model.loss, None, False, given)
            if given is None:
                self._find_labels(None)
                self._refuse_two_ways()
        elif self.classes:
            raise UsageError("class_names needs a model that was compiled with a loss")

    def _refuse_two_ways(self) -> None:
        """Refuse a step if it is not clear whether fit passes labels to it."""
        if "train_step" not in _own_methods(self.model):
            return
        labels, self.labels = self.labels, {}
        try:
            self._step(self.train)
        except (Refusal, UsageError):
            self.labels = labels  # it needs labels
            return
        names = ", ".join(f"--label {n}={s}" for n, s in labels.items())
        raise Refusal(
            "it is not clear whether the model's own train step takes labels",
            where=f"{type(self.model).__name__}.train_step",
            expected="a step that runs either with labels or without them",
            found="one that runs with both, and a loss that was given to compile",
            do=f"say which fit gives it: {names}, or --label none",
        )

    def _data(self, feeds: Mapping[str, Any]) -> Any:
        """A batch in the form in which Keras passes it to a step."""
        names = list(self.labels)
        outputs = getattr(self, "outputs", {})
        y: Any = {name: feeds[name] for name in names} or None
        if len(names) == 1:
            y = feeds[names[0]]
        elif names and all(n.startswith("y_") and n[2:] in outputs for n in names):
            y = {o: feeds.get(f"y_{o}") for o in outputs}
            keys = self.output_keys
            y = {keys[o]: v for o, v in y.items()} if keys else list(y.values())
        return self.keras.utils.pack_x_y_sample_weight(
            self._x(feeds), y, feeds.get("sample_weight")
        )

    def _trace(self) -> None:
        """Trace the steps once to create their variables, and find what they return."""
        probe = self._step(self.train)
        _refuse_foreign_ops(probe, "the model's own train step")
        self.metrics = list(probe.structured_outputs)
        try:
            test = self._step(self.evaluate)
        except Refusal as error:
            if "test_step" in _own_methods(self.model):
                raise
            self.evaluates = False
            self.notes.append(f"no evaluate signature: {error.found}")
        except UsageError as error:
            self.evaluates = False
            self.notes.append(f"no evaluate signature: {error}")
        else:
            self.metrics += [n for n in test.structured_outputs if n not in self.metrics]

    def _step(self, step: Callable) -> Any:
        """Trace one of the model's own steps."""
        specs = self._specs(labels=True)
        try:
            return self._concrete(step, specs)
        except (Refusal, UsageError):
            raise
        except Exception as error:
            if "No loss to compute" in str(error):
                raise UsageError(
                    "no loss: pass one, or a model that was compiled with one"
                ) from error
            raise Refusal(
                "a step of the model's own cannot be traced",
                where=f"{type(self.model).__name__}, {step.__name__}",
                expected="a step that TensorFlow can run as a graph on "
                + ", ".join(f"{n} {s}" for n, s in {**self.inputs, **self.labels}.items()),
                found=f"{type(error).__name__}: {str(error)[:600]}",
                do=(
                    ""
                    if self.labels
                    else "if it takes labels, name them with --label y=DTYPE[DIMS]; "
                )
                + "use keras.ops in place of Python code that needs values",
            ) from error

    def _scalars(self, logs: Any, where: str) -> dict[str, Any]:
        """The values that a step returned, as Keras reports them."""
        tf = self.tf
        where = f"{type(self.model).__name__}.{where}"
        if not isinstance(logs, Mapping):
            raise Refusal(
                "a step returns no dict",
                where=where,
                expected="a dict of scalars by name",
                found=type(logs).__name__,
                do="return {'loss': loss, ...}",
            )
        # At the end of an epoch, Keras uses the values of the metrics if the step returned as many
        # values. Metrics that the step did not update would be 0.
        used = {id(outer) for outer, _ in tf.compat.v1.get_default_graph().captures}
        metrics = [m for m in self.model.metrics if m.variables]
        current = self.model.get_metrics_result()
        if set(current) == set(logs) and all(
            any(id(v.value.handle) in used for v in m.variables) for m in metrics
        ):
            logs = current
        result = {}
        for name, value in logs.items():
            tensor = tf.convert_to_tensor(value)
            if tensor.shape.rank != 0:
                raise Refusal(
                    f"{name!r} is not a scalar",
                    where=where,
                    expected="shape ()",
                    found=f"shape {tensor.shape}",
                    do="reduce it, for instance with keras.ops.mean",
                )
            if name in RESERVED_OUTPUTS and name != "loss":
                raise UsageError(f"{where} returns {name!r}, a reserved name: give it another")
            result[_clean(name)] = tf.cast(tensor, "float32")
        if self.loss_output is not None:
            if _clean(self.loss_output) not in result:
                raise UsageError(
                    f"loss_output {self.loss_output!r}: {where} returns {', '.join(result)}"
                )
            result["loss"] = result[_clean(self.loss_output)]
        if "loss" not in result:
            raise Refusal(
                "the step returns no loss",
                where=where,
                expected="a value called loss, to record and to watch for NaN",
                found=", ".join(result),
                do="name the value that stands for it with --loss-output NAME",
            )
        return {"loss": result.pop("loss"), **result}

    def train(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's train_step."""
        return self._scalars(self.model.train_step(self._data(feeds)), "train_step")

    def evaluate(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's test_step."""
        return self._scalars(self.model.test_step(self._data(feeds)), "test_step")

    def reset_metrics(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's reset_metrics; the outputs name the values that the steps return."""
        self.model.reset_metrics()
        return {name: self.tf.zeros([]) for name in self.metrics}

    def signatures(self, xla_batch: int | None, xla_steps: int | None) -> dict[str, Any]:
        result = super().signatures(xla_batch, xla_steps)
        again = self._concrete(self.train, self._specs(labels=True))
        if _constants(again) != _constants(result["train"]):
            raise Refusal(
                "the train step is another one each time that it is traced",
                where=f"{type(self.model).__name__}.train_step",
                expected="the same graph: what changes from step to step is in variables",
                found="other constants, as of a counter or random numbers of Python",
                do="keep counters with add_weight, and draw with keras.random",
            )
        if self.learning_rate() is not None and "set_learning_rate" not in result:
            result.pop("finalize", None)  # compile makes an optimizer that the step does not use
        self.touched = {id(v): v for f in result.values() for v in f.graph.variables}
        return result

    def tracked(self) -> Any:
        """An object that owns every variable of a step."""
        root = self.tf.Module()
        root.model = _by_path(self.model.variables)
        root.optimizer = _by_path([v for o in optimizers(self.model) for v in o.variables])
        root.metrics = _by_path([v for m in self.model.metrics for v in m.variables])
        owned = {id(v) for v in root.variables}
        root.step = _numbered((v.name, v) for i, v in self.touched.items() if i not in owned)
        return root

    def metadata(self) -> dict[str, Any]:
        found = super().metadata()
        for label in found["labels"].values():
            label.pop("classes", None)  # the step may change them
        return {**found, "loss": {}, "own_step": _own_methods(self.model) or ["add_loss"]}


def optimizers(model: Any) -> list[Any]:
    """The optimizer of compile, and other optimizers of the model's own steps."""
    _, keras = _load_tensorflow()
    found = [model.optimizer, *vars(model).values()]
    return list({id(o): o for o in found if isinstance(o, keras.optimizers.Optimizer)}.values())


def _constants(concrete: Any) -> list[tuple[str, bytes]]:
    """The operations of a graph, with the values of constants."""
    return [
        (node.op, node.attr["value"].tensor.SerializeToString() if node.op == "Const" else b"")
        for node in concrete.graph.as_graph_def().node
    ]


def _assigns(nodes: Iterable[Any], variable: str, library: Mapping[str, Any]) -> bool:
    """Whether nodes assign to a variable, or pass it to a library function that does."""
    for node in nodes:
        for at, name in enumerate(node.input):
            if name.split(":")[0] != variable:
                continue
            if node.op.startswith(("Assign", "Resource")) and not node.op.startswith(
                "ResourceGather"
            ):
                return True
            # The index of the branch comes first.
            at -= node.op in ("If", "StatelessIf", "Case", "StatelessCase")
            called = [a.func.name for a in node.attr.values() if a.HasField("func")]
            called += [f.name for a in node.attr.values() for f in a.list.func]
            for function in (library[f] for f in called):
                argument = function.signature.input_arg[at].name
                if _assigns(function.node_def, argument, library):
                    return True
    return False


def _by_path(variables: Sequence[Any]) -> dict[str, Any]:
    """Keras variables' tf.Variables by path; a repeated path gets a number."""
    return _numbered((v.path, v.value) for v in variables)


def _numbered(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of the items; repeated names get numbers."""
    result: dict[str, Any] = {}
    for name, value in items:
        key, n = name, 2
        while key in result:
            key, n = f"{name}#{n}", n + 1
        result[key] = value
    return result


def _spec_json(spec: Spec) -> dict[str, Any]:
    return {"dtype": spec.dtype, "shape": [-1, *(-1 if d is None else d for d in spec.shape)]}


def _tensors_json(specs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        n: {"dtype": s.dtype.name, "shape": [-1 if d is None else d for d in s.shape]}
        for n, s in specs.items()
    }


def repeat(
    tf: Any, step: Any, feeds: Mapping[str, Any], running: Sequence[str] = ()
) -> dict[str, Any]:
    """Run step once per slice of the first dimension. Return the mean of each output, or for
    bools whether all are true.

    For states and running metrics, return the value of the last step.

    The step is called as one function instead of being traced again, which keeps
    saved_model.pb small.
    """
    stacked = [value for name, value in feeds.items() if name not in UNSTACKED]
    static = [value.shape[0] for value in stacked if value.shape[0] is not None]
    n = static[0] if static else tf.shape(stacked[0])[0]
    outputs = step.structured_outputs
    last = {*STATES, *running}
    start = [
        tf.constant(True) if spec.dtype == tf.bool else tf.zeros([], spec.dtype)
        for spec in outputs.values()
    ]

    def body(i: Any, *totals: Any) -> Any:
        result = step(**{k: v if k in UNSTACKED else v[i] for k, v in feeds.items()})
        return i + 1, *(
            result[name]
            if name in last
            else total & result[name]
            if total.dtype == tf.bool
            else total + result[name]
            for name, total in zip(outputs, totals, strict=True)
        )

    # The steps run one after the other, since they update the same variables.
    _, *totals = tf.while_loop(
        lambda i, *_: i < n, body, [tf.constant(0), *start], parallel_iterations=1
    )
    return {
        name: total
        if total.dtype == tf.bool or name in last
        else total / tf.cast(tf.maximum(n, 1), total.dtype)
        for name, total in zip(outputs, totals, strict=True)
    }


def xla_twins(
    tf: Any,
    train: Any,
    specs: Mapping[str, Any],
    batch: int | None,
    steps: int | None,
    running: Sequence[str] = (),
) -> dict[str, Any]:
    """XLA-compiled signatures of train and train_n for one shape each."""
    result: dict[str, Any] = {}
    if batch is None:
        return result
    for name, spec in specs.items():
        if any(d is None for d in spec.shape[1:]):
            raise Refusal(
                "an XLA-compiled signature needs fixed shapes",
                where=f"input {name!r}",
                expected="known sizes behind the batch",
                found=str(spec.shape),
                do="fix the input's size, or leave out --xla-batch",
            )

    def twin(lead: list[int], function: Callable) -> Any:
        def traced(**feeds: Any) -> Any:
            return function(feeds)

        fixed = {
            n: s if n in UNSTACKED else tf.TensorSpec([*lead, *s.shape[1:]], s.dtype, name=n)
            for n, s in specs.items()
        }
        return tf.function(traced, jit_compile=True, autograph=False).get_concrete_function(**fixed)

    result["train_xla"] = twin([batch], lambda feeds: train(**feeds))
    if steps is not None:
        result["train_n_xla"] = twin(
            [steps, batch], lambda feeds: repeat(tf, train, feeds, running)
        )
    return result


# --- a tf.Module that brings its own steps --------------------------------------------


class _ModuleProgram:
    """A tf.Module whose tf.functions are named after the signatures."""

    def __init__(self, module: Any, train_n: bool = True) -> None:
        self.tf, self.keras = _load_tensorflow()
        self.module = module
        where = type(module).__name__
        self.functions: dict[str, Any] = {}
        for name in MODULE_NAMES:
            function = getattr(module, name, None)
            if function is None or not hasattr(function, "get_concrete_function"):
                continue
            if getattr(function, "input_signature", None) is None:
                raise Refusal(
                    "a step has no input signature",
                    where=f"{where}.{name}",
                    expected="@tf.function(input_signature=[tf.TensorSpec(shape, dtype, name)])",
                    found="a tf.function that takes anything",
                    do="add input_signature; use None for the batch",
                )
            for spec in self.tf.nest.flatten(function.input_signature):
                if not isinstance(spec, self.tf.TensorSpec):
                    raise Refusal(
                        "an input is not one dense tensor",
                        where=f"{where}.{name}",
                        expected="a tf.TensorSpec",
                        found=str(spec),
                        do="make the rows equally long when preparing the data",
                    )
                if not spec.name:
                    raise Refusal(
                        "an input has no name",
                        where=f"{where}.{name}",
                        expected="a TensorSpec with name=...",
                        found=str(spec),
                        do="name it; data is fed by that name",
                    )
            first = next(iter(inspect.signature(function.python_function).parameters), None)
            bound = inspect.ismethod(function.python_function)
            if not bound and first not in (None, "self"):
                # TensorFlow recognises a method by this parameter name only.
                declared = len(inspect.signature(function.python_function).parameters)
                if declared > len(function.input_signature):
                    raise Refusal(
                        "a step's first parameter has another name",
                        where=f"{where}.{name}",
                        expected="self",
                        found=str(first),
                        do="call it self",
                    )
            self.functions[name] = function.get_concrete_function()
            _refuse_foreign_ops(self.functions[name], f"{where}.{name}")
        step = next((n for n in TRAIN_NAMES if n in self.functions), None)
        if step is None:
            raise Refusal(
                "the module has no train step",
                where=where,
                expected="a tf.function with an input_signature called train",
                found="tf.functions: " + (", ".join(self.functions) or "none"),
                do="write one that takes a batch, updates the weights and returns {'loss': ...}",
            )
        self.step = step
        outputs = self.functions[step].structured_outputs
        if not isinstance(outputs, Mapping) or "loss" not in outputs:
            raise Refusal(
                "the train step returns no loss",
                where=f"{where}.{step}",
                expected="a dict with a scalar 'loss'",
                found=str(outputs),
                do="return {'loss': loss, ...}",
            )
        for name, spec in outputs.items():
            if spec.shape.rank != 0:
                raise Refusal(
                    "the loss is not a scalar" if name == "loss" else f"{name!r} is not a scalar",
                    where=f"{where}.{step}",
                    expected="shape ()",
                    found=f"shape {spec.shape}",
                    do="reduce it, for instance with tf.reduce_mean",
                )
        self.inputs = {
            spec.name: spec for spec in self.tf.nest.flatten(self._method(step).input_signature)
        }
        reset = self.functions.get("reset_metrics")
        self.running = list(reset.structured_outputs) if reset else []
        if train_n and "train_n" not in self.functions:
            self.functions["train_n"] = self._train_n(self.functions[step])

    def _method(self, name: str) -> Any:
        return getattr(self.module, name)

    def _train_n(self, step: Any) -> Any:
        tf = self.tf
        specs = {
            name: spec
            if name in UNSTACKED
            else tf.TensorSpec([None, *spec.shape], spec.dtype, name)
            for name, spec in self.inputs.items()
        }

        def traced(**feeds: Any) -> Any:
            return repeat(tf, self._by_name(step), feeds, self.running)

        return tf.function(traced, autograph=False).get_concrete_function(**specs)

    def _by_name(self, step: Any) -> Any:
        """The step with its inputs by the names of their TensorSpecs, as batches have them."""
        names = list(self.inputs)

        class Step:
            structured_outputs = step.structured_outputs

            def __call__(self, **feeds: Any) -> Any:
                return step(*(feeds[name] for name in names))

        return Step()

    def signatures(self, xla_batch: int | None, xla_steps: int | None) -> dict[str, Any]:
        """The module's own steps, train_n, and the compiled signatures."""
        twins = xla_twins(
            self.tf,
            self._by_name(self.functions[self.step]),
            self.inputs,
            xla_batch,
            xla_steps,
            self.running,
        )
        return {**self.functions, **twins}

    def tracked(self) -> Any:
        """The module, and objects that its steps use but the module does not own.

        Keras optimizers are the usual case: tf.Module does not see their slots.
        """
        owned = {id(v) for v in self.module.variables}
        used = {id(v): v for f in self.functions.values() for v in f.graph.variables}
        root = self.tf.Module()
        root.module = self.module
        root.used = [v for key, v in used.items() if key not in owned]
        return root

    def metadata(self) -> dict[str, Any]:
        """The metadata of the train step."""
        outputs = self.functions[self.step].structured_outputs
        return {
            "inputs": _tensors_json(self.inputs),
            "metrics": [n for n in outputs if n not in RESERVED_OUTPUTS],
        }


def _refuse_foreign_ops(concrete: Any, where: str) -> None:
    graph = concrete.graph.as_graph_def()
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes.extend(function.node_def)
    found = [f"{n.op} {n.name!r} ({FOREIGN_OPS[n.op]})" for n in nodes if n.op in FOREIGN_OPS]
    if found:
        raise Refusal(
            "the graph leaves TensorFlow, or needs state that a checkpoint does not cover",
            where=where,
            expected="operations that run anywhere: no Python, no files, no tables that change",
            found="; ".join(found[:5]) + (f"; {len(found) - 5} more" if len(found) > 5 else ""),
            do="do this step when preparing the data, and export the rest of the model",
        )


# --- writing ---------------------------------------------------------------------------


def _directory_size(path: str) -> int:
    return sum(f.stat().st_size for f in pathlib.Path(path).rglob("*") if f.is_file())


def _make_reproducible(path: str) -> None:
    """Write saved_model.pb in one canonical form, and remove random parts.

    Protobuf maps are written in hash order, and fingerprint.pb holds a random id (and a
    checksum of the bytes rewritten here). Loaders do without it.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    file = pathlib.Path(path, "saved_model.pb")
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    file.write_bytes(saved.SerializeToString(deterministic=True))
    pathlib.Path(path, "fingerprint.pb").unlink(missing_ok=True)


@contextlib.contextmanager
def _atomic_directory(out: str, force: bool) -> Iterator[str]:
    """A folder beside out that gets its name when the block ends without an error."""
    target = pathlib.Path(out).absolute()
    if target.exists() or target.is_symlink():
        where = {"where": str(out), "expected": "a folder that does not exist yet"}
        if not force:
            raise Refusal("the output exists", **where, found="a file or folder", do="pass --force")
        if not target.is_dir() or target.is_symlink():
            raise Refusal(
                "the output is not a folder", **where, found="a file or link", do="remove it"
            )
        # --force replaces an earlier export; it must not empty a home folder.
        if any(target.iterdir()) and not (target / "saved_model.pb").exists():
            raise Refusal(
                "the output holds something else",
                **where,
                found="files, but no saved_model.pb",
                do="choose another folder",
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = str(target.parent / f".{target.name}.{uuid.uuid4().hex}")
    os.mkdir(temporary)  # mkdtemp would ignore the umask
    try:
        yield temporary
        if target.exists():
            old = tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent)
            os.rename(target, os.path.join(old, target.name))
            try:
                os.rename(temporary, target)
            except OSError:
                os.rename(os.path.join(old, target.name), target)
                raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _kept(variables: Sequence[Any]) -> Iterator[None]:
    """Restore the values of variables after the block."""
    before = [(variable, variable.numpy()) for variable in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def export(
    model: Any,
    out: str | os.PathLike[str],
    *,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    weighted_metrics: Any = None,
    learning_rate: float | None = None,
    loss_output: str | None = None,
    loss_weights: Any = None,
    from_logits: bool = False,
    inputs: Mapping[str, Spec | str] | None = None,
    labels: Mapping[str, Spec | str] | None = None,
    input_dtypes: Mapping[str, str] | None = None,
    input_ranges: Mapping[str, tuple[float, float]] | None = None,
    class_names: Sequence[str] | None = None,
    sample_weight: bool | str = False,
    loss_scale_input: bool = False,
    micro_batches: bool = True,
    xla_batch: int | None = None,
    xla_steps: int | None = None,
    allow_unused: bool = False,
    lora: int | str | None = None,
    quantize: str | None = None,
    train_only: str | Sequence[str] | None = None,
    remat: str | Sequence[str] | None = None,
    force: bool = False,
    check: bool = True,
) -> Report:
    """Write a trainable SavedModel and check that it trains.

    Args:
        model: a Keras 3 model, or a tf.Module whose tf.functions are named after the
            signatures (at least ``train``).
        out: folder to write; written under a temporary name and renamed.
        optimizer, loss, metrics, weighted_metrics: names, functions or Keras objects; dicts
            by output for a model with several, or for metrics a list with an entry per
            output. The defaults are those that the model was compiled with. A model whose class
            overrides train_step, compute_loss or similar methods, or whose only loss comes from
            add_loss, is exported with its own steps. These arguments compile it if it is not
            compiled yet.
        learning_rate: replaces the optimizer's.
        loss_output: which value of the model's own train_step is reported as ``loss``, if
            none has that name.
        loss_weights: by output, as in Keras compile.
        from_logits: for a crossentropy given by name.
        inputs: specs of a model without keras.Input, as Spec or ``"float32[64]"``.
        labels: specs that replace the ones derived from the outputs.
        input_dtypes: dtype that a signature takes in place of the model's own, by input:
            uint8 images are a quarter of the bytes of float32 ones.
        input_ranges: (lowest, highest) value by input; written to the metadata.
        class_names: of a classifier; ``predict`` then gives ``probabilities`` and
            ``class`` (and ``logits``, if the model gives those).
        sample_weight: adds the input ``sample_weight`` [B] to train, train_n, evaluate and
            gradients; ``"[7]"`` and ``"[?]"`` are weights [B,7] and [B,T] of the elements of
            labels. It must then always be fed; ones change nothing.
        loss_scale_input: adds the input ``loss_scale`` [] to train, train_n and gradients: the
            loss is multiplied with it, the gradients are divided by it, and a step whose
            gradients are not finite changes no weight, and gives ``grads_finite`` false.
        micro_batches: adds ``gradients`` and ``apply``, and accumulators as large as the
            trainable weights.
        xla_batch, xla_steps: add ``train_xla`` and ``train_n_xla`` for these sizes.
        allow_unused: leaves weights that get no gradient as they are, rather than refuse.
        lora: a rank, or ``"4:query,value"`` with patterns of layers: adds Keras's LoRA matrices
            to these layers (by default to all that have enable_lora), and trains nothing else.
        quantize: ``"int8"`` keeps the weights of layers that support it as int8, as Keras's
            quantize does, except those that train_only matches.
        train_only: patterns of the weights to train, in addition to those of lora; all others
            are frozen. A pattern is the name of a layer or a part of a weight's path: ``head``,
            ``decoder/*/query``, ``*/bias``. These three change the model.
        remat: patterns of layers whose activations the step computes again for the gradient
            and does not keep: less memory and more time, with the same results.
        force: replaces an earlier export.
        check: loads the result into a fresh session and trains a step (see verify).

    Raises:
        Refusal: the model would not train correctly.
        UsageError: the arguments do not fit together.
    """
    out = os.fspath(out)
    tf, keras = _load_tensorflow()
    if xla_steps is not None and xla_batch is None:
        raise UsageError("xla_steps needs xla_batch")
    if remat is not None and xla_batch is not None:
        raise UsageError(
            "remat does not apply to the compiled signatures of xla_batch: XLA may merge both "
            "computations; leave one of them out"
        )
    adaptation = _adaptation(lora, quantize, train_only)
    with _atomic_directory(out, force) as temporary, contextlib.ExitStack() as at_end:
        progress.info("checking the model")
        program: _KerasProgram | _ModuleProgram
        _refuse_keras_2(model)
        if isinstance(model, keras.Model):
            if class_names is not None and len(_outputs_of(model)) > 1:
                raise UsageError("class_names needs a model with one output")
            compiled = getattr(model, "compiled", False)
            if compiled:
                optimizer = model.optimizer if optimizer is None else optimizer
            shared: dict[str, Any] = {
                "learning_rate": learning_rate,
                "inputs": _as_specs(inputs),
                "labels": _as_specs(labels),
                "input_dtypes": input_dtypes,
                "sample_weight": parse_spec(
                    f"float32{'[]' if sample_weight is True else sample_weight}"
                )
                if sample_weight
                else None,
                "classes": class_names is not None,
                "adaptation": adaptation,
            }
            driving = _own_methods(model, DRIVING_METHODS)
            if driving:
                raise Refusal(
                    "the model drives its training itself",
                    where=f"{type(model).__name__}.{driving[0]}",
                    expected="a model that Keras fit trains step by step",
                    found="its own " + ", ".join(driving),
                    do="override train_step in its place",
                )
            own = [name for name in _own_methods(model) if name != "predict_step"]
            if own or (compiled and loss is None and model.loss is None):
                _compile_own(model, own, optimizer, loss, loss_weights, metrics, weighted_metrics)
                if loss_scale_input or from_logits or allow_unused or remat is not None:
                    raise UsageError(
                        "a model with its own train step: loss_scale_input, from_logits, "
                        "allow_unused and remat do not apply"
                    )
                program = _OwnStepProgram(model, loss_output=loss_output, **shared)
            else:
                if loss_output is not None:
                    raise UsageError("loss_output is for a model with its own train_step")
                if compiled:
                    loss = model.loss if loss is None else loss
                    if loss_weights is None:
                        loss_weights = getattr(model._compile_loss, "_user_loss_weights", None)
                    made = model._compile_metrics
                    if made is not None and metrics is None:
                        metrics = made._user_metrics
                    if made is not None and weighted_metrics is None:
                        weighted_metrics = made._user_weighted_metrics
                given = keras.tree.flatten([metrics, weighted_metrics, model.metrics])
                users = [m for m in given if isinstance(m, keras.metrics.Metric)]
                at_end.enter_context(_kept([v for m in users for v in m.variables]))
                program = _KerasProgram(
                    model,
                    optimizer,
                    loss,
                    metrics,
                    weighted_metrics=weighted_metrics,
                    loss_weights=loss_weights,
                    from_logits=from_logits,
                    loss_scale_input=loss_scale_input,
                    micro_batches=micro_batches,
                    allow_unused=allow_unused,
                    remat=remat,
                    **shared,
                )
        elif isinstance(model, tf.Module):
            if optimizer is not None or loss is not None or metrics:
                raise UsageError(
                    "a tf.Module brings its own step: optimizer, loss and metrics do not apply"
                )
            if loss_scale_input:
                raise UsageError("a tf.Module brings its own step: give that the input loss_scale")
            if adaptation or remat is not None:
                raise UsageError(
                    "a tf.Module brings its own step: lora, quantize, train_only and remat do not "
                    "apply"
                )
            program = _ModuleProgram(model)
        else:
            raise UsageError(
                f"cannot export a {type(model).__name__}: expected a Keras model or a tf.Module"
            )
        unknown = sorted(set(input_ranges or {}) - set(program.inputs))
        if unknown:
            raise UsageError(f"a range for {unknown}; the inputs are {', '.join(program.inputs)}")
        progress.info("tracing the signatures")
        signatures = program.signatures(xla_batch, xla_steps)
        if "predict" in signatures:
            signatures.setdefault("serving_default", signatures["predict"])
        root = program.tracked()
        if isinstance(model, keras.Model):
            root.tables = _tables(model, signatures)
        _refuse_untracked(signatures, root)
        metadata = {
            "format": FORMAT,
            "exporter": VERSION,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            **program.metadata(),
        }
        if "predict" in signatures and isinstance(
            signatures["predict"].structured_outputs, Mapping
        ):
            metadata["outputs"] = _tensors_json(signatures["predict"].structured_outputs)
        for name, (low, high) in (input_ranges or {}).items():
            metadata["inputs"][name]["range"] = [low, high]
        if class_names is not None:
            metadata["class_names"] = list(class_names)
        if sample_weight:
            metadata["sample_weight"] = True
        if xla_batch is not None:
            metadata["compiled"] = {"train_xla": {"batch": xla_batch}}
            if xla_steps is not None:
                metadata["compiled"]["train_n_xla"] = {"steps": xla_steps, "batch": xla_batch}
        progress.info("saving")
        tf.saved_model.save(
            root,
            temporary,
            signatures=signatures,
            options=tf.saved_model.SaveOptions(
                save_debug_info=False, experimental_custom_gradients=False
            ),
        )
        _make_reproducible(temporary)
        graph = pathlib.Path(temporary, "saved_model.pb").read_bytes()
        metadata["saved_model_sha256"] = hashlib.sha256(graph).hexdigest()
        if "gradients" in signatures and isinstance(program, _KerasProgram):
            if not program.inexact:
                # A function that has run is saved under another name.
                progress.info("comparing a batch with its parts")
                program.compare_parts(signatures["gradients"], input_ranges or {})
                metadata.update(program.exactness())
            if program.inexact:
                program.notes.append(
                    f"micro_batches_exact is false: {program.inexact}; "
                    "batches are split only on request"
                )
        file = pathlib.Path(temporary, METADATA)
        file.parent.mkdir()
        file.write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        with contextlib.suppress(OSError):
            pathlib.Path(temporary, "assets").rmdir()  # vocabularies in files are assets
        checks = verify(temporary) if check else []
        size = _directory_size(temporary)
        described = _describe(signatures)
    return Report(out, size, described, metadata, checks, getattr(program, "notes", []))


def _adaptation(
    lora: int | str | None, quantize: str | None, train_only: str | Sequence[str] | None
) -> Adaptation | None:
    """The adaptation that the arguments of export describe; None if there is none."""
    if lora is None and quantize is None and train_only is None:
        return None
    if quantize not in (None, "int8"):
        raise UsageError(f"quantize {quantize!r}: expected int8")
    patterns = _patterns(train_only or ())
    if lora is None and not patterns:
        raise UsageError(
            "quantize needs lora or train_only, the weights to train: int8 weights are frozen"
            if quantize
            else "train_only has no pattern"
        )
    rank, targets = (None, ()) if lora is None else parse_lora(str(lora))
    return Adaptation(rank, targets, quantize, patterns)


def _compile_own(
    model: Any,
    own: Sequence[str],
    optimizer: Any,
    loss: Any,
    loss_weights: Any,
    metrics: Any,
    weighted_metrics: Any,
) -> None:
    """Compile a model that has its own steps, unless it is compiled."""
    if getattr(model, "compiled", False):
        given = (loss, loss_weights, metrics or None, weighted_metrics or None)
        if any(v is not None for v in given) or optimizer is not model.optimizer:
            raise UsageError(
                f"{type(model).__name__} has its own {', '.join(own) or 'losses'} and is "
                "compiled: compile it with the optimizer, loss and metrics that it should have"
            )
        return
    if optimizer is None:
        raise UsageError("no optimizer: pass one, or a model that was compiled with one")
    try:
        model.compile(
            optimizer=optimizer,
            loss=loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
        )
    except TypeError as error:
        raise UsageError(
            f"{type(model).__name__}.compile takes other arguments ({error}): compile the model"
        ) from error


def _refuse_keras_2(model: Any) -> None:
    """Refuse a model of tf_keras, or of the Keras in TensorFlow: both are Keras 2."""
    for owner in type(model).__mro__:
        if f"{owner.__module__}.".startswith(("tf_keras.", "tensorflow.python.keras.")):
            raise Refusal(
                "the model is one of Keras 2",
                where=f"{type(model).__module__}.{type(model).__name__}",
                expected="a model made with `import keras`, version 3",
                found=f"a class of {owner.__module__}",
                do="make the model with Keras 3; or write it with "
                "model.save('model.h5', include_optimizer=False), which Keras 3 reads, and pass "
                "--model model.h5 with --optimizer and --loss",
            )


def _outputs_of(model: Any) -> list[Any]:
    try:
        return list(model.outputs)
    except (AttributeError, TypeError):
        return []


def _as_specs(specs: Mapping[str, Spec | str] | None) -> dict[str, Spec] | None:
    if specs is None:
        return None
    return {n: parse_spec(s) if isinstance(s, str) else s for n, s in specs.items()}


def _tables(model: Any, signatures: Mapping[str, Any]) -> list[Any]:
    """The lookup tables of layers that the steps use."""
    tf, _ = _load_tensorflow()
    used = {id(tensor) for function in signatures.values() for tensor in function.captured_inputs}
    return [
        value
        for layer in model._flatten_layers()
        for held in vars(layer).values()
        for value in (held if isinstance(held, (list, tuple)) else [held])
        if isinstance(value, tf.saved_model.experimental.TrackableResource)
        and id(value.resource_handle) in used
    ]


def _refuse_untracked(signatures: Mapping[str, Any], root: Any) -> None:
    """Check that the saved object owns every variable of a step."""
    owned = {id(v) for v in root.variables}
    for name, function in signatures.items():
        missing = [v.name for v in function.graph.variables if id(v) not in owned]
        if missing:
            raise Refusal(
                "a step uses variables that nothing owns",
                where=f"signature {name!r}",
                expected="variables of the model or the optimizer, created before export",
                found=", ".join(missing),
                do="create them in __init__ or build() and keep them as attributes",
            )


def _describe(signatures: Mapping[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    def text(spec: Any) -> str:
        dims = ",".join("?" if d is None else str(d) for d in spec.shape)
        return f"{spec.dtype.name}[{dims}]"

    result = {}
    for name, function in signatures.items():
        args, kwargs = function.structured_input_signature
        specs = {spec.name: spec for spec in args} | dict(kwargs)
        outputs = function.structured_outputs
        outputs = outputs if isinstance(outputs, Mapping) else {"output_0": outputs}
        result[name] = {
            "inputs": {k: text(v) for k, v in specs.items()},
            "outputs": {k: text(v) for k, v in outputs.items()},
        }
    return result


# --- verification ----------------------------------------------------------------------


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Load a SavedModel as a C program would, and check that it trains and resumes.

    Runs in a new session with its own graph, and uses only the SavedModel's restore op,
    signatures and saver. The files do not change. Returns one line per check that passed.

    Raises:
        Refusal: naming the first check that failed.
    """
    tf, _ = _load_tensorflow()
    import numpy as np

    path = os.fspath(path)
    v1 = tf.compat.v1
    done: list[str] = []
    where = f"SavedModel {path}"
    metadata: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        metadata = json.loads(pathlib.Path(path, METADATA).read_text(encoding="utf-8"))

    def refuse(what: str, expected: str, found: str, do: str) -> Refusal:
        return Refusal(what, where=where, expected=expected, found=found, do=do)

    progress.info("loading what was saved")
    graph = tf.Graph()
    # Each signature runs once or twice; rewriting its graph would take longer than that.
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with graph.as_default(), v1.Session(graph=graph, config=config) as session, _quiet():
        try:
            meta = v1.saved_model.load(session, ["serve"], path)
        except Exception as error:
            raise refuse(
                "it does not load", "a SavedModel", str(error), "export it again"
            ) from error
        signatures = {
            name: signature
            for name, signature in meta.signature_def.items()
            if not name.startswith("__")
        }
        step = next((n for n in TRAIN_NAMES if n in signatures), None)
        if step is None:
            raise refuse(
                "it has no train step",
                "a signature called " + " or ".join(TRAIN_NAMES),
                ", ".join(sorted(signatures)) or "no signature",
                "export it with scripts/export.py",
            )

        # Find variables that the restore op left empty: the step would fail on first use. Handles
        # that no signature reaches do not count, since saving a module that holds Keras objects
        # leaves such copies behind.
        outputs = [info.name for s in signatures.values() for info in s.outputs.values()]
        handles = [op for op in _ancestors(graph, outputs) if op.type == "VarHandleOp"]
        # The same variable may have several handles with one shared name.
        names = {op.get_attr("shared_name").decode() or op.name: op for op in handles}
        ready = session.run(
            {n: tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for n, op in names.items()}
        )
        empty = sorted(name for name, ok in ready.items() if not ok)
        if empty:
            raise refuse(
                "variables are not part of the SavedModel's checkpoint",
                "every variable that a signature uses to be restored on load",
                ", ".join(empty[:8]) + (f", {len(empty) - 8} more" if len(empty) > 8 else ""),
                "track them: after optimizer.build(model.trainable_variables), keep "
                "[v.value for v in model.variables + optimizer.variables] on the saved module",
            )
        done.append(f"{len(names)} variables restored on load")
        reads = {
            n: tf.raw_ops.ReadVariableOp(
                resource=op.outputs[0], dtype=tf.as_dtype(op.get_attr("dtype"))
            )
            for n, op in names.items()
        }

        random = np.random.default_rng(0)
        texts = WORDS

        def batch_of(name: str, batch: int, steps: int | None = None) -> dict[str, Any]:
            feeds = {}
            for key, info in signatures[name].inputs.items():
                dims = [d.size for d in info.tensor_shape.dim]
                known = metadata.get("inputs", {}).get(key, {}).get("range")
                lead = [d for d in ([steps] if steps else []) + [batch] if d]
                if key in ("seed", "learning_rate", "loss_scale", "group_size"):
                    lead = []
                sizes = [
                    d if d > 0 else (lead[i] if i < len(lead) else 4) for i, d in enumerate(dims)
                ]
                feeds[info.name] = _random(
                    np, random, key, tf.as_dtype(info.dtype), sizes, known, texts
                )
            return feeds

        def run(name: str, feeds: dict[str, Any]) -> dict[str, Any]:
            # Sorted, so that fetches always have the same order in the executor.
            outputs = {k: v.name for k, v in sorted(signatures[name].outputs.items())}
            try:
                return session.run(outputs, feeds)
            except Exception as error:
                advice = "run the same step in Python to see the cause"
                if name.endswith("_xla"):
                    advice = (
                        "leave out --xla-batch and --xla-steps: "
                        "XLA cannot compile this model's step"
                    )
                raise refuse(
                    f"signature {name!r} fails",
                    "a result on random data of the right shapes",
                    f"{type(error).__name__}: {str(error)[:600]}",
                    advice,
                ) from error

        def finite(name: str, result: dict[str, Any]) -> None:
            if "loss" in result and not math.isfinite(float(result["loss"])):
                raise refuse(
                    f"signature {name!r} returns a loss that is not a number",
                    "a finite loss on random data",
                    str(result["loss"]),
                    "check the loss for log(0) or division by 0, and the scale of the inputs",
                )

        saver = meta.saver_def
        with tempfile.TemporaryDirectory() as folder:

            def save(tag: str) -> str:
                prefix = os.path.join(folder, tag)
                session.run(saver.save_tensor_name, {saver.filename_tensor_name: prefix})
                return prefix

            def restore(prefix: str) -> None:
                session.run(saver.restore_op_name, {saver.filename_tensor_name: prefix})

            if not saver.restore_op_name:
                raise refuse("it has no saver", "saver_def", "none", "export it without skip_saver")
            progress.info("checking %s", step)
            start = save("start")
            initial = session.run(reads)
            try:
                first = run(step, batch_of(step, 3))
            except Refusal as words:
                if tf.string not in {
                    tf.as_dtype(i.dtype) for i in signatures[step].inputs.values()
                }:
                    raise
                texts = NUMBERS  # the model may convert texts to numbers
                restore(start)
                try:
                    first = run(step, batch_of(step, 3))
                except Refusal as numbers:
                    raise refuse(
                        words.what,
                        f"a result on the texts {WORDS}, or on {NUMBERS}",
                        f"with words: {words.found}; with numbers: {numbers.found}",
                        words.do,
                    ) from numbers
            finite(step, first)
            if "reset_metrics" in signatures:
                run("reset_metrics", {})  # the state of metrics does not count
            after = session.run(reads)
            changed = [n for n in reads if not np.array_equal(initial[n], after[n])]
            if not changed and first.get("grads_finite", True):
                raise refuse(
                    "a train step changes nothing",
                    "variables that differ afterwards",
                    f"{len(reads)} variables, all the same",
                    "check that the step applies its gradients, and the learning rate",
                )
            done.append(f"{step}: loss {float(first['loss']):.4g}, {len(changed)} variables change")
            progress.info("checking a resume")
            # Resume: after restoring the state of the first step, the second step must be the
            # same.
            middle = save("middle")
            other = batch_of(step, 2)
            second = run(step, other)
            finite(step, second)
            end = session.run(reads)
            restore(middle)
            again = run(step, other)
            repeated = session.run(reads)
            # Multi-threaded reductions may differ in the last bits between two runs.
            for name in reads:
                if not _close(np, end[name], repeated[name]):
                    raise refuse(
                        "training does not resume from its own checkpoint",
                        "the same step after restore",
                        f"{name} differs; loss {second['loss']} against {again['loss']}",
                        "keep all state in tf.Variables that the saved module owns",
                    )
            done.append("a step repeats after save and restore")

            if {"gradients", "apply"} <= set(signatures) and metadata.get("micro_batches_exact"):
                progress.info("checking gradients and apply")
                restore(middle)
                half = batch_of("gradients", 2)
                run("gradients", half)
                run("apply", {})
                split = session.run(reads)
                restore(middle)
                named = {k: half[v.name] for k, v in signatures["gradients"].inputs.items()}
                run(step, {v.name: named[k] for k, v in signatures[step].inputs.items()})
                whole = session.run(reads)
                for name in reads:
                    if not _close(np, split[name], whole[name], 1e-3):
                        raise refuse(
                            "gradients and apply give another step than train",
                            "the same weights",
                            f"{name} differs",
                            "export with --no-micro-batches",
                        )
                done.append("gradients + apply equal train")
            checked = {step, "gradients", "apply", "save", "restore", "serving_default"}
            for name in sorted(set(signatures) - checked):
                progress.info("checking %s", name)
                restore(start)
                if name == "set_learning_rate":
                    key = next(iter(signatures[name].inputs))
                    info = signatures[name].inputs[key]
                    got = run(name, {info.name: 0.5})
                    if "learning_rate" in got and got["learning_rate"] != 0.5:
                        raise refuse(
                            "set_learning_rate has no effect",
                            "0.5, which was fed",
                            str(got["learning_rate"]),
                            "assign the variable that the train step reads",
                        )
                    continue
                if name == "train_sync":
                    continue
                result = run(name, batch_of(name, 2, 2 if name.startswith("train_n") else None))
                finite(name, result)
                done.append(f"{name} runs")
    return done


def _ancestors(graph: Any, tensors: Sequence[str]) -> list[Any]:
    """All operations that the tensors depend on, in the order of the graph."""
    pending = [graph.get_tensor_by_name(name).op for name in tensors]
    seen = set(pending)
    while pending:
        op = pending.pop()
        for other in [t.op for t in op.inputs] + op.control_inputs:
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return [op for op in graph.get_operations() if op in seen]


# The texts that checks feed: words first, and numbers with an empty cell if a step fails on words.
WORDS = ("one", "two words")
NUMBERS = ("1", "", "2")


def _random(
    np: Any,
    random: Any,
    key: str,
    dtype: Any,
    shape: list[int],
    known: Any,
    texts: Sequence[str] = WORDS,
) -> Any:
    """Random values: texts, weights and scales of one, class labels, inputs in their range."""
    if dtype == "string":
        return np.resize(np.array(texts, dtype=object), shape)
    if key in ("sample_weight", "loss_scale"):
        return np.ones(shape, "float32")
    if known:
        low, high = known
        values = random.uniform(low, high, shape)
    elif dtype.is_floating and key.startswith("y") and shape and shape[-1] > 1:
        # One-hot labels are valid for crossentropies and for regressions.
        values = np.eye(shape[-1])[random.integers(0, shape[-1], shape[:-1])]
    elif dtype.is_floating and not key.startswith("y"):
        values = random.normal(size=shape)
    else:
        values = random.integers(0, 2, shape)
    return np.asarray(values).astype(dtype.as_numpy_dtype)


def _close(np: Any, a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "fV":
        return bool(np.array_equal(a, b))
    a, b = a.astype("float64"), b.astype("float64")
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide TensorFlow's deprecation notices about the loader that C programs use."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# --- the command -----------------------------------------------------------------------


SAVED = (".keras", ".h5", ".hdf5")


def _load_model(text: str) -> tuple[Any, dict[str, Any]]:
    """Return (model, arguments of export) for a .keras file or module:function."""
    _, keras = _load_tensorflow()
    if text.endswith(SAVED):
        if not os.path.isfile(text):
            raise UsageError(f"no such file: {text}")
        try:
            return keras.models.load_model(text), {}
        except Exception as error:
            raise Refusal(
                "the model file does not load",
                where=text,
                expected="a model made of Keras's own layers",
                found=f"{type(error).__name__}: {str(error)[:600]}",
                do="for custom layers, pass --model file.py:function with a function that "
                "imports them and loads the file",
            ) from error
    module_name, _, function_name = text.rpartition(":")
    if not module_name or not function_name:
        raise UsageError(f"--model {text!r}: expected FILE.keras or module:function")
    if module_name.endswith(".py"):
        if not os.path.isfile(module_name):
            raise UsageError(f"no such file: {module_name}")
        spec = importlib.util.spec_from_file_location(pathlib.Path(module_name).stem, module_name)
        assert spec is not None and spec.loader is not None
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
        if "model" not in options:
            raise UsageError(f"{text} returned a dict without 'model'")
        return options.pop("model"), options
    if isinstance(result, tuple):
        if not 1 <= len(result) <= 4:
            raise UsageError(
                f"{text} returned {len(result)} values: expected up to 4, "
                "(model, optimizer, loss, metrics)"
            )
        return result[0], dict(zip(("optimizer", "loss", "metrics"), result[1:], strict=False))
    return result, {}


def _pairs(items: Sequence[str], option: str, default: str | None = None) -> dict[str, str]:
    result = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            if default is None:
                raise UsageError(f"{option} {item!r}: expected NAME=VALUE")
            name, value = default, item
        result[name.strip()] = value.strip()
    return result


def _ranges(items: Sequence[str]) -> dict[str, tuple[float, float]]:
    result = {}
    for name, value in _pairs(items, "--range", "x").items():
        low, _, high = value.partition(":")
        try:
            result[name] = (float(low), float(high))
        except ValueError as error:
            raise UsageError(f"--range {value!r}: expected LOW:HIGH, as in 0:255") from error
    return result


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError("must be a number of at least 0")
    return value


def _names(text: str) -> list[str] | None:
    return text.split(",") if text else None


# The options of the command that are not arguments of export.
OF_COMMAND = ("model", "out", "policy", "seed", "deterministic", "verify")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="export.py",
        description="Turn a Keras 3 model, or a tf.Module with a train step, into a SavedModel "
        "that trains without Python.",
        epilog="Examples:\n"
        "  export.py --model model.keras --out trainable\n"
        "      a model that was compiled: optimizer, loss and metrics come with it\n"
        "  export.py --model net.py:build --optimizer adam --learning-rate 1e-3 \\\n"
        "      --loss sparse_categorical_crossentropy --from-logits --metrics accuracy \\\n"
        "      --input-dtype uint8 --range 0:255 --out trainable\n"
        "  export.py --verify trainable\n"
        "      check any SavedModel, whoever wrote it\n\n"
        "Exit codes: 0 written and checked, 1 refused (the reason is on stderr), 2 usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"export.py {VERSION}")
    what = parser.add_argument_group("what to export")
    what.add_argument(
        "--model",
        metavar="FILE.keras|MODULE:FUNCTION",
        help="a saved Keras model; or a function (module:function or file.py:function) that "
        "returns a model, (model, optimizer, loss, metrics), a dict of export()'s arguments, "
        "or a tf.Module with tf.functions named after the signatures",
    )
    what.add_argument("--out", metavar="DIR", help="folder to write; must not exist")
    what.add_argument("--force", action="store_true", help="replace an earlier export in --out")
    what.add_argument(
        "--policy",
        metavar="NAME",
        help="Keras dtype policy for the layers that the function of --model makes: "
        "mixed_bfloat16, or mixed_float16, which scales its loss",
    )
    what.add_argument("--seed", type=int, default=0, help="seed set before the model is made (0)")
    what.add_argument(
        "--deterministic",
        action="store_true",
        help="use operations with a deterministic form on a GPU, for fit --deterministic",
    )
    what.add_argument(
        "--verify",
        metavar="DIR",
        help="instead of exporting, load a SavedModel, train a step and resume from its saver",
    )
    step = parser.add_argument_group("the train step")
    step.add_argument("--optimizer", help="Keras name: adam, adamw, sgd, rmsprop, ...")
    step.add_argument("--learning-rate", type=_rate, metavar="X", help="initial learning rate")
    step.add_argument("--loss", help="Keras name: mse, sparse_categorical_crossentropy, ...")
    step.add_argument(
        "--from-logits",
        action="store_true",
        default=None,
        help="the model gives logits, not probabilities",
    )
    step.add_argument(
        "--metrics", type=_names, metavar="NAME,...", help="Keras names: accuracy, mae, auc, ..."
    )
    step.add_argument(
        "--loss-output",
        metavar="NAME",
        help="which value of the model's own train_step stands for the loss, if none is called so",
    )
    step.add_argument(
        "--sample-weight",
        nargs="?",
        const="[]",
        metavar="[DIMS]",
        help="add the input sample_weight, one per sample, or in that shape per sample: [7] or [?] "
        "for the steps of a sequence",
    )
    step.add_argument(
        "--loss-scale-input",
        action="store_true",
        default=None,
        help="add the input loss_scale, so that the training program scales the loss, in place of scaling "
        "inside the graph",
    )
    step.add_argument(
        "--no-micro-batches",
        action="store_false",
        default=None,
        dest="micro_batches",
        help="leave out gradients and apply, whose accumulators take as much memory as the "
        "trainable weights",
    )
    step.add_argument(
        "--allow-unused",
        action="store_true",
        default=None,
        help="accept trainable weights that get no gradient; they stay as they are",
    )
    step.add_argument(
        "--lora",
        metavar="RANK[:TARGETS]",
        help="train LoRA matrices of this rank on these layers, as in 4:query,value (all that have "
        "enable_lora), and freeze the rest",
    )
    step.add_argument(
        "--quantize",
        choices=["int8"],
        help="keep frozen weights as int8 where their layer supports it",
    )
    step.add_argument(
        "--train-only",
        metavar="PATTERN,...",
        help="train the weights of these layers or paths, as in head or */bias, and freeze the rest",
    )
    step.add_argument(
        "--remat",
        metavar="LAYERS",
        help="compute these layers again for the gradient, as in block_*: less memory, more time",
    )
    step.add_argument(
        "--xla-batch", type=_positive, metavar="B", help="add train_xla for batches of B"
    )
    step.add_argument(
        "--xla-steps", type=_positive, metavar="N", help="add train_n_xla for N steps of B"
    )
    io = parser.add_argument_group("inputs and labels")
    io.add_argument(
        "--input",
        action="append",
        default=[],
        dest="inputs",
        metavar="NAME=DTYPE[DIMS]",
        help="input of a model without keras.Input, without the batch: x=float32[28,28]; repeat",
    )
    io.add_argument(
        "--label",
        action="append",
        default=[],
        dest="labels",
        metavar="NAME=DTYPE[DIMS]",
        help="labels, if not what the loss implies: y=int64[]; repeat. none: the model's own step "
        "takes none",
    )
    io.add_argument(
        "--input-dtype",
        action="append",
        default=[],
        dest="input_dtypes",
        metavar="[NAME=]DTYPE",
        help="take this dtype and cast inside: uint8 images are a quarter of float32's bytes",
    )
    io.add_argument(
        "--range",
        action="append",
        default=[],
        dest="input_ranges",
        metavar="[NAME=]LOW:HIGH",
        help="range of an input's values, for the metadata: 0:255",
    )
    io.add_argument(
        "--class-names",
        type=_names,
        metavar="A,B,...",
        help="names of the classes; predict then gives probabilities and class",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("export.py: %(message)s"))
    progress.handlers = [handler]
    progress.setLevel(logging.INFO)
    progress.propagate = False
    try:
        if arguments.verify:
            if arguments.model or arguments.out:
                raise UsageError("--verify stands alone")
            for line in verify(arguments.verify):
                print(line)
            return 0
        if not arguments.model or not arguments.out:
            raise UsageError("--model and --out are required")
        tf, keras = _load_tensorflow()
        keras.utils.set_random_seed(arguments.seed)
        if arguments.deterministic:
            tf.config.experimental.enable_op_determinism()
        if arguments.policy and arguments.model.endswith(SAVED):
            raise UsageError(
                "--policy is for a model that a function makes; a saved one has its policies"
            )
        progress.info("making the model")
        with dtype_policy(arguments.policy or "float32"):
            model, options = _load_model(arguments.model)
        given = {key: v for key, v in vars(arguments).items() if key not in OF_COMMAND}
        given |= {
            "inputs": _pairs(arguments.inputs, "--input") or None,
            "labels": {}
            if arguments.labels == ["none"]
            else _pairs(arguments.labels, "--label") or None,
            "input_dtypes": _pairs(arguments.input_dtypes, "--input-dtype", "x") or None,
            "input_ranges": _ranges(arguments.input_ranges) or None,
        }
        strange = sorted(set(options) - set(inspect.signature(export).parameters))
        if strange:
            raise UsageError(f"{arguments.model} returned arguments export() lacks: {strange}")
        # The command line overrides what the function returned.
        options.update({key: value for key, value in given.items() if value is not None})
        report = export(model, arguments.out, **options)
    except UsageError as error:
        print(f"export.py: {error}", file=sys.stderr)
        return 2
    except Refusal as error:
        print(f"export.py: refused: {error}", file=sys.stderr)
        return 1
    print(f"{report.path}: {report.bytes / 1024:.0f} KiB")
    for name, described in report.signatures.items():
        inputs = ", ".join(f"{k} {v}" for k, v in described["inputs"].items()) or "-"
        outputs = ", ".join(f"{k} {v}" for k, v in described["outputs"].items())
        print(f"  {name}: {inputs} -> {outputs}")
    for line in report.checks:
        print(f"  checked: {line}")
    for line in report.notes:
        print(f"  note: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
