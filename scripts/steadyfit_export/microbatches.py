"""Micro-batches: the gradients of the parts of a batch, and whether they make the same step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .adapters import some_names
from .checks import random_values
from .graphs import ancestors
from .metrics import Metrics
from .names import kept_values


class Parts(Metrics):
    """The part of a program that has the signatures gradients and apply.

    It also finds what splitting a batch changes: rules find what the traced training pass shows,
    and compare_parts finds the rest.
    """

    inexact = ""  # why parts of a batch make another update; "" if they do not
    combines = True  # whether losses and metrics of evaluated parts give those of the batch
    _rank_one = ""  # the flags for labels of rank 2 of outputs of rank 1

    def _find_exactness(self) -> None:
        """Find whether a step on the parts of a batch equals the step on the whole batch."""
        keras = self.keras

        def named(is_one: Callable[[Any], bool]) -> str:
            found = [f"{type(v).__name__} {v.name}" for v in self.model._flatten_layers() if is_one(v)]
            return f" ({some_names(found, 3)})" if found else ""

        def trains(kind: type) -> str:
            return named(lambda layer: isinstance(layer, kind) and layer.trainable)

        def draws(layer: Any) -> bool:
            state = getattr(getattr(layer, "seed_generator", None), "state", None)
            return any(state is v for v in self._random)

        mixes = trains(keras.layers.BatchNormalization)
        masked = self._masked and len(self.losses) > 1
        alone = [y for o, y in self.label_of.items() if not self.outputs[o].shape and not self.labels[y].shape]
        self._rank_one = " ".join(f"--label {self.names.name(y)}={self.labels[y].dtype}[1]" for y in alone)
        weighted = self._rank_one if self.sample_weight else ""
        reasons = {
            f"each part has its own batch statistics{mixes}": mixes,
            f"each part draws its own random numbers{named(draws)}": self._random,
            "each part changes weights in the forward pass": self._writes,
            "each part divides the losses of several outputs by its own number of elements": masked,
            "the loss compares samples or leaves some out": not self.splits,
            "the scale of the loss adapts to the gradients of smaller parts": self.precision == "mixed_float16"
            and (self.scales_itself or self.loss_scale_input),
            f"the loss is its mean times the mean of the weights; {weighted} weights the samples": weighted,
            f"{self.optimizer.name} updates repeated rows separately" + trains(keras.layers.Embedding): self._sparse
            and not self._adds(),
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
        from tensorflow.python.framework import auto_control_deps_utils as utils

        graph = concrete.graph
        only_read = {id(graph.inputs[i]) for i in utils.get_read_only_resource_input_indices_graph(graph)}
        handles = {id(v.value.handle) for v in self.model.non_trainable_weights}
        return any(id(outer) in handles and id(inner) not in only_read for outer, inner in graph.captures)

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
            if any(op.type == "Placeholder" and op not in captured for op in ancestors(graph, names)):
                return True
        return False

    def compare_parts(self, signatures: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]]) -> None:
        """Compare a random batch with its parts; sets inexact and combines.

        This finds layers, losses and metrics that compare samples, which no rule can detect. It runs
        the signatures, and restores all variables afterwards.
        """
        config, name = self.tf.config.optimizer, "disable_meta_optimizer"
        before = config.get_experimental_options().get(name, False)
        # Rewriting the graph would take longer than these runs.
        config.set_experimental_options({name: True})
        try:
            if self.batch is None and "evaluate" in signatures and self.metrics:
                self._compare(signatures["evaluate"], ranges, False)
            if "gradients" in signatures and not self.inexact:
                self._compare(signatures["gradients"], ranges, True)
        finally:
            config.set_experimental_options({name: before})

    def _compare(self, signature: Any, ranges: Mapping[str, tuple[float, float]], trains: bool) -> None:
        """Compare the metrics of a random batch with those of its parts, and the loss and gradients of a training."""
        tf = self.tf
        random = np.random.default_rng(0)
        feeds, shapes = {}, self.shapes()
        for name, spec in signature.structured_input_signature[1].items():
            sizes = [8, *shapes[name]] if name in shapes else []
            value = random_values(random, name, spec.dtype, sizes, ranges.get(name))
            if name == "sample_weight":
                value = random.uniform(0.5, 2, sizes)
            feeds[name] = tf.constant(value, spec.dtype)
        weights = {id(v.value) for v in self.model.weights}
        changing = [v for v in signature.graph.variables if id(v) not in weights]

        def run(*parts: slice) -> dict[str, Any]:
            """The values of a batch in parts, by what they are."""
            total = before = 0.0
            values: dict[str, Any] = {}
            with kept_values(changing):
                for part in parts:
                    result = signature(**{k: v[part] if v.shape.rank else v for k, v in feeds.items()})
                    if trains:
                        weight = self.weight_sum.numpy()
                        total += float(result["loss"]) * (weight - before)
                        before = weight
                if trains:
                    divisor = 1.0 if self.reduction == "sum" else before
                    values["loss"] = total / divisor
                    for v, accumulator in zip(self.trainable, self.accumulators, strict=True):
                        values[f"gradient of {v.path}"] = accumulator.numpy() / divisor
            return values | {f"metric {self.names.name(n)}": result[n].numpy() for n in self.metrics if n in result}

        at_once, in_parts = None, None
        try:
            at_once = run(slice(0, 8))
            in_parts = run(slice(0, 3), slice(3, 8))
        except tf.errors.OpError as error:
            failure = f"the samples fail in parts ({error.message[:200]})"
        if at_once is None or not math.isfinite(at_once.get("loss", 0)):
            if trains:
                self.combines &= not self._penalises
                self.inexact = "a layer adds a loss of its inputs" if self._penalises else ""
            return
        if in_parts is None:
            self.combines = False
            self.inexact = self.inexact or failure
            return
        half = self.precision.startswith("mixed")
        whole = math.sqrt(sum(float(np.sum(np.square(a))) for n, a in at_once.items() if n.startswith("gradient")))
        for name, a in at_once.items():
            size, off = float(np.linalg.norm(a)), float(np.linalg.norm(np.subtract(a, in_parts[name])))
            kind = name.split()[0]
            relative, least = {
                "loss": (1e-3 if half else 1e-5, 1e-7),
                "gradient": (0.05 if half else 1e-3, 1e-5 * whole),
                "metric": (1e-2 if half else 1e-4, 1e-6),
            }[kind]
            if off > relative * size + least:
                self.combines &= kind == "gradient"
                reason = f"the {name} of 8 random samples is another one than in parts of 3 and 5"
                if kind == "metric" and self._rank_one:
                    reason += f"; with {self._rank_one} it is a mean over the samples"
                self.inexact = self.inexact or reason
                break

    def exactness(self) -> dict[str, Any]:
        """The metadata of what splitting a batch does."""
        reason = {"micro_batches_inexact": self.inexact} if self.inexact else {}
        # How the losses of the parts of a batch give that of the batch.
        reduction = self.reduction
        if not self.combines:
            reduction = "sum_in_training" if reduction == "sum" else "unknown"
        return {"micro_batches_exact": not self.inexact, **reason, "loss_reduction": reduction}

    def _make_accumulators(self) -> None:
        tf = self.tf
        self.accumulators = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False, name=f"accumulator/{v.path}")
            for v in self.trainable
        ]
        self.weight_sum = tf.Variable(0.0, trainable=False, name="accumulator/weight")
        self.sample_sum = tf.Variable(tf.zeros([], tf.int64), trainable=False, name="accumulator/samples")
        # The loss of the batch times its divisor, if the number of samples alone does not weight
        # the parts.
        self.loss_sum = None
        if self._masked and self.reduction != "sum":
            self.loss_sum = tf.Variable(0.0, trainable=False, name="accumulator/loss")

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
