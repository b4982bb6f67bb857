"""The weights that an export trains: LoRA matrices, int8 layers, and frozen layers."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .names import UsageError, load_tensorflow, progress
from .options import Options


def adapt(model: Any, options: Options) -> bool:
    """Quantize layers, add LoRA matrices and freeze everything else, if the options say so.

    A pattern is the name of a layer or any part of the path of a weight, as in ``head``,
    ``decoder/*/query`` or ``*/bias``.
    """
    if (options.lora, options.quantize, options.train_only) == (None, None, None):
        return False
    _, keras = load_tensorflow()
    train_only = split_patterns(options.train_only or ())
    if options.quantize not in (None, "int8"):
        raise UsageError(f"quantize {options.quantize!r}: expected int8")
    if options.lora is None and not train_only:
        raise UsageError("no weights to train: quantize needs lora or train_only, which has a pattern")
    layers = {path: layer for path, layer in layers_of(model) if path}
    whole = _trained_whole(model, layers, train_only)
    if options.quantize is not None:
        chosen = [
            layer
            for path, layer in layers.items()
            if path not in whole
            and type(layer).quantize is not keras.layers.Layer.quantize
            and layer.quantization_mode is None
        ]
        model.quantize(options.quantize, filters=lambda layer: any(layer is c for c in chosen))
    trained = {id(v) for weights in whole.values() for v in weights}
    if options.lora is not None:
        rank, colon, targets = str(options.lora).partition(":")
        patterns = split_patterns(targets if colon else "*")
        if not rank.isdigit() or int(rank) < 1 or not patterns:
            raise UsageError(f"lora {options.lora!r}: expected RANK[:TARGETS], as in 4 or 4:query,value")
        for layer in _lora_layers(layers, whole, patterns):
            layer.enable_lora(int(rank))
        for layer in layers.values():
            if getattr(layer, "lora_enabled", False):
                trained |= {id(v) for v in layer._trainable_variables if v.name.startswith("lora_")}
    _train_only(model, trained)
    weights = {id(v): v for v in model.weights}.values()
    count = sum(math.prod(v.shape) for v in weights if id(v) in trained)
    progress.info("%d of %d weights are trained", count, sum(math.prod(v.shape) for v in weights))
    return True


def _trained_whole(model: Any, layers: Mapping[str, Any], train_only: Sequence[str]) -> dict[str, list[Any]]:
    """The weights that train_only matches, by the path of their layer."""
    found: dict[str, list[Any]] = {}
    for pattern in train_only:
        matched = False
        for path, layer in [*layers.items(), ("", model)]:
            for v in layer._trainable_variables:
                if matches(pattern, f"{path}/{v.name}".strip("/")):
                    found.setdefault(path, []).append(v)
                    matched = True
        if not matched:
            raise UsageError(
                f"train_only {pattern!r} matches no weight that can be trained; "
                f"the layers with weights are {some_names(p for p, l in layers.items() if l.weights)}"
            )
    return found


def _lora_layers(layers: Mapping[str, Any], whole: Mapping[str, Any], targets: Sequence[str]) -> list[Any]:
    """The layers that get LoRA matrices. A container means all layers in it."""
    able = [path for path, layer in layers.items() if hasattr(layer, "enable_lora") and path not in whole]
    chosen: list[str] = []
    for pattern in targets:
        outer = [path for path in layers if matches(pattern, path)]
        found = [p for p in able if any(p == m or p.startswith(m + "/") for m in outer)]
        if not found:
            raise UsageError(
                f"lora target {pattern!r} matches no layer with enable_lora that train_only leaves out; "
                f"there are {some_names(able)}"
            )
        chosen += found
    return [layers[p] for p in dict.fromkeys(chosen) if not layers[p].lora_enabled]


def layers_of(layer: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Each layer of a model once, with the names on the path from the model to the layer."""
    seen = set() if seen is None else seen
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path, layer
    for child in layer._flatten_layers(include_self=False, recursive=False):
        yield from layers_of(child, f"{path}/{child.name}".strip("/"), seen)


def matches(pattern: str, path: str) -> bool:
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
    for _, layer in layers_of(model):
        layer.trainable = any(id(v) in trained for v in layer.weights)
    for _, layer in layers_of(model):
        for v in layer._trainable_variables:
            v.trainable = id(v) in trained


def some_names(names: Iterable[str], most: int = 8) -> str:
    """Return the first few names as text."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def split_patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(given, str):
        return tuple(given)
    return tuple(part.strip() for part in given.split(",") if part.strip())
