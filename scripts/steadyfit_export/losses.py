"""The losses of a Keras model, and the labels that they take."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .inputs import Inputs
from .names import Refusal, Spec, UsageError, load_tensorflow


def as_loss(loss: Any, from_logits: bool) -> Any:
    """Return a keras.losses.Loss for a name, a function or a Loss."""
    _, keras = load_tensorflow()
    from keras.src.losses.losses import LossFunctionWrapper

    try:
        loss = keras.losses.get(loss)
    except ValueError as error:
        raise UsageError(f"unknown loss {loss!r}: {error}") from error
    if isinstance(loss, keras.losses.Loss):
        if from_logits and not uses_logits(loss):
            raise UsageError("from_logits applies to a loss given by name; set it on the object")
        return loss
    name = re.sub(r"[^A-Za-z0-9_]", "", getattr(loss, "__name__", "")) or "loss"
    return LossFunctionWrapper(loss, name=name, **({"from_logits": True} if from_logits else {}))


def uses_logits(loss: Any) -> bool:
    return bool(getattr(loss, "from_logits", False) or getattr(loss, "_fn_kwargs", {}).get("from_logits", False))


def is_sparse(loss: Any) -> bool:
    return "sparse" in f"{loss.name} {type(loss).__name__}".lower()


class Losses(Inputs):
    """The part of a program that finds the loss and the labels of each output."""

    def _crossentropy(self, output: str, labels: Mapping[str, Spec] | None) -> str:
        """Return the loss that Keras uses for "crossentropy". labels are the specs, if given."""
        shape = self.outputs[output].shape
        if shape and shape[-1] == 1:
            return "binary_crossentropy"
        label = (labels or {}).get(f"y_{output}") or (labels or {}).get("y")
        if label is not None and len(label.shape) == len(shape) and label.shape[-1:] != (1,):
            return "categorical_crossentropy"
        return "sparse_categorical_crossentropy"

    def _find_losses(self, loss: Any, weights: Any, from_logits: bool, given: Mapping[str, Spec] | None) -> None:
        losses = self._per_output("loss", loss)
        weights = self._per_output("loss_weights", weights)
        self.losses = {
            n: as_loss(self._crossentropy(n, given) if v in ("crossentropy", "ce") else v, from_logits)
            for n, v in losses.items()
            if v is not None
        }
        self.loss_weights = {n: 1.0 if weights.get(n) is None else float(weights[n]) for n in self.losses}
        reductions = {item.reduction for item in self.losses.values()}
        if len(reductions) > 1 and "sum" in reductions:
            raise UsageError("some losses sum and others average: use the same reduction and set loss_weights")
        self.reduction = min(map(str, reductions))

    def _per_output(self, what: str, given: Any) -> dict[str, Any]:
        """A value for each output, from a dict, a list, or one value for all."""
        names = list(self.outputs)
        if isinstance(given, Mapping):
            given = self._by_output(what, given, names)
            return {n: given.get(n) for n in names}
        if not isinstance(given, (list, tuple)):
            return dict.fromkeys(names, given)
        if len(given) != len(names):
            raise UsageError(f"{len(given)} {what} for the outputs {', '.join(map(self.names.name, names))}")
        return dict(zip(names, given, strict=True))

    def _by_output(self, what: str, given: Mapping[str, Any], outputs: Iterable[str]) -> Any:
        """Entries of a dict of Keras compile, by the outputs of the signatures."""
        names = getattr(self.model, "output_names", None) or []
        known = {self.names.name(key): key for key in outputs}
        if len(names) == 1 and "output" in self.outputs:
            known[names[0]] = "output"
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise UsageError(f"{what} for {unknown}; the outputs are {', '.join(known)}")
        return {known[name]: value for name, value in given.items()}

    def _find_labels(self, given: Mapping[str, Spec] | None) -> None:
        self.label_of: dict[str, str] = {
            output: "y" if len(self.losses) == 1 else self._label(output) for output in self.losses
        }
        self.labels: dict[str, Spec] = {}
        given = {self.names.key(name): spec for name, spec in (given or {}).items()}
        for output, label in self.label_of.items():
            shape = self.outputs[output].shape
            if label in given:
                self.labels[label] = given[label]
            elif is_sparse(self.losses[output]):
                self.labels[label] = Spec("int64", shape[:-1])
            else:
                self.labels[label] = Spec("float32", shape)
                if len(shape) != 1 and shape[-1:] in ((), (1,)):
                    self._refuse_two_ranks(label, output)
            if label in self.inputs:
                raise UsageError(
                    f"the input {self.names.name(label)!r} is called like a label: rename that keras.Input"
                )
        unknown = sorted(map(self.names.name, set(given) - set(self.labels)))
        if unknown:
            labels = ", ".join(map(self.names.name, self.labels))
            raise UsageError(f"--label names {unknown}; the labels are {labels}")
        self.splits = True
        for output, loss in self.losses.items():
            self._probe_loss(output, loss)

    def _label(self, output: str) -> str:
        """The key of the label of an output."""
        return self.names.key(f"y_{self.names.name(output)}")

    def _loss_key(self, output: str) -> str:
        """The key of the loss of one output of several."""
        return self.names.key(f"{self.names.name(output)}_loss")

    def _refuse_two_ranks(self, label: str, output: str) -> None:
        """Refuse a loss whose result depends on whether labels have a last dimension of 1.

        If the labels of fit lack that dimension, Keras removes it from the predictions;
        otherwise it adds it. A loss over the last axis then uses another axis.
        """
        shape, loss = self.outputs[output].shape, self.losses[output]
        if self._same_for_ranks(output) is False:
            specs = [Spec("float32", shape), Spec("float32", shape[:-1] if shape else (1,))]
            raise Refusal(
                "the loss depends on whether the labels have a last dimension of 1",
                found=f"loss {loss.name!r} of output {output!r} is another one for {specs[0]} than for {specs[1]}",
                do=f"pass the labels that fit would get: --label {label}={specs[0]} or --label {label}={specs[1]}",
            )

    def _same_for_ranks(self, output: str) -> bool | None:
        """Whether a loss is the same for labels with and without a last dimension of 1; None if it takes one of them."""
        shape, loss = self.outputs[output].shape, self.losses[output]
        sizes = [7, *(4 if d is None else d for d in shape)]
        values = np.random.default_rng(0).uniform(0.1, 0.9, [2, *sizes]).astype("float32")
        y, p = self.tf.constant(values[0]), self.tf.constant(values[1])
        other = y[..., 0] if shape else y[:, None]
        try:
            return bool(np.isclose(float(loss(y, p)), float(loss(other, p)), rtol=1e-4))
        except (AssertionError, LookupError, TypeError, ValueError, self.tf.errors.OpError):
            return None  # _probe_loss reports a loss that takes none

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
        except Exception as error:
            raise Refusal(
                "the loss does not accept labels and predictions of these shapes",
                found=f"{where}: {type(error).__name__}: {error}",
                do="choose another loss, or set the labels with --label y=DTYPE[DIMS]",
            ) from error
        if reduced.shape.rank != 0 or not (values.shape.rank == 0 or values.shape[0] == n):
            raise Refusal(
                "the loss is not a scalar",
                found=f"{where} has the shape {tuple(values.shape)}",
                do="reduce over the last axis only, as Keras losses do, and leave reduction at its default",
            )
        most = max(1, len(self.outputs[output].shape))
        if values.shape.rank > most and math.prod(values.shape) > math.prod(prediction.shape):
            raise Refusal(
                "the loss broadcasts labels against predictions",
                found=f"{where} has the shape {tuple(values.shape)}, from labels {label} and predictions "
                f"{self.outputs[output]}",
                do="give the labels the shape of the predictions with --label y=DTYPE[DIMS]",
            )
        self.splits &= self._splits(loss, label, self.outputs[output])

    def _splits(self, loss: Any, label: Spec, output: Spec) -> bool:
        """Whether the loss of a batch is the mean over its parts, weighted by their samples.

        It is not the mean if the loss compares samples (Circle), computes one fraction for the
        whole batch (Dice), or ignores labels (ignore_class).
        """
        random = np.random.default_rng(0)

        def batch(spec: Spec) -> list[int]:
            return [6, *(4 if d is None else d for d in spec.shape)]

        tells, finite = False, set()
        # A margin may remove all small values, and a logarithm all negative ones.
        for scale in (1, 10, -10):
            y = self.tf.constant(random.integers(0, 2, batch(label)), label.dtype)
            p = self.tf.constant(random.uniform(0.1, 0.9, batch(output)) * scale, "float32")
            if getattr(loss.call(y, p), "_keras_mask", None) is not None:
                return False
            whole = float(loss(y, p))
            finite.add(math.isfinite(whole))
            self.partial |= len(finite) > 1
            parts = [float(loss(y[part], p[part])) for part in (slice(0, 2), slice(2, 6))]
            summed = sum(parts) if loss.reduction == "sum" else (2 * parts[0] + 4 * parts[1]) / 6
            if math.isfinite(whole) and not np.isclose(whole, summed, rtol=1e-4):
                return False
            tells = tells or math.isfinite(whole) and whole != 0
        return tells
