"""The train step of a Keras model, and the signatures around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .adapters import adapt
from .graphs import refuse_foreign_ops
from .losses import uses_logits
from .microbatches import Parts
from .names import Refusal, UsageError, by_path, load_tensorflow, numbered, own_methods
from .options import Options
from .remat import matching_layers, rematerialized
from .repeat import repeat, xla_twins


class KerasProgram(Parts):
    """A Keras model, its optimizer, loss and metrics, as functions of named tensors."""

    # The signatures that a program has.
    evaluates = predicts = True
    micro_batches = scales_itself = False

    def __init__(self, model: Any, options: Options) -> None:
        self.tf, self.keras = load_tensorflow()
        self.notes: list[str] = []
        for name, value in (("optimizer", options.optimizer), ("loss", options.loss)):
            if value is None:
                raise UsageError(f"no {name}: pass one, or a model that was compiled with one")
        self.model, self.optimizer = model, options.optimizer
        self.sample_weight = options.weight_spec()
        self.loss_scale_input = options.loss_scale_input
        self._find_inputs(options)
        if adapt(model, options) and getattr(self.optimizer, "built", False):  # for the weights before
            self.optimizer = self.optimizer.from_config(self.optimizer.get_config())
        self._check_model()
        self._probe_outputs()
        self._find_losses(options.loss, options.loss_weights, options.from_logits, options.labels)
        self._find_labels(options.labels)
        self._find_metrics(options.metrics, options.weighted_metrics)
        self._find_optimizer(options.learning_rate)
        self.trainable = list(model.trainable_variables)
        self.classes = options.class_names is not None
        self._remat = {} if options.remat is None else matching_layers(model, options.remat)
        self._probe_gradients(options.allow_unused)
        self._find_exactness()
        self.micro_batches = options.micro_batches and self.batch is None
        if self.micro_batches:
            self._make_accumulators()

    def _find_optimizer(self, learning_rate: float | None) -> None:
        """Make and build the optimizer, which scales the loss if the model needs that."""
        keras, optimizer = self.keras, self.optimizer
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            try:
                optimizer = keras.optimizers.get(optimizer)
            except (ValueError, TypeError) as error:
                raise UsageError(f"unknown optimizer {optimizer!r}: {error}") from error
        if optimizer.built and not getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables:
            # Keras builds the optimizer of an .h5 file for no weights, and does not load its state.
            optimizer = optimizer.from_config(optimizer.get_config())
            self.notes.append("the file has no state of the optimizer: it starts anew")
        if optimizer.built:
            self._refuse_foreign(optimizer)
        policies = {layer.dtype_policy.name for layer in self.model._flatten_layers()}
        half = "mixed_float16" in policies
        wrapped = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if wrapped and self.loss_scale_input:
            raise UsageError("loss_scale_input: the optimizer scales the loss itself; pass its inner_optimizer")
        mixed = [name for name in ("mixed_float16", "mixed_bfloat16") if name in policies]
        self.precision = mixed[0] if mixed else str(self.model.dtype_policy.name)
        if half and not wrapped and not self.loss_scale_input:
            # Without loss scaling, float16 gradients underflow. Keras compile wraps the optimizer in the same way, before
            # it is built, except for auto_scale_loss=False or a model of another policy than its layers.
            if optimizer.built:
                raise Refusal(
                    "a float16 model without loss scaling",
                    found=f"optimizer {optimizer.name!r}, which is already built",
                    do="wrap it in keras.optimizers.LossScaleOptimizer before it is built; a file does not store "
                    "auto_scale_loss=False of compile: export such a model from its function, --model FILE.py:FUNCTION",
                )
            if optimizer is getattr(self.model, "optimizer", None):
                self.notes.append("the model is compiled without loss scaling: small gradients are zero in float16")
            else:
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        if learning_rate is not None:
            optimizer.learning_rate = learning_rate
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        self.scales_itself = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if self.scales_itself:
            zero = self.tf.zeros([], self.tf.int64)
            self.skipped = self.tf.Variable(zero, trainable=False, name="skipped_steps")
        self.optimizer = optimizer

    def _refuse_foreign(self, optimizer: Any) -> None:
        """Refuse an optimizer that was built for other weights than those of the model."""
        # The inner optimizer holds the list when loss scaling wraps it.
        theirs = getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables
        if [id(v) for v in theirs] != [id(v) for v in self.model.trainable_variables]:
            raise Refusal(
                "the optimizer belongs to another model",
                found=f"{optimizer.name!r} has {len(theirs)} weights, first {theirs[0].path if theirs else '-'}",
                do="make a new optimizer (from_config(optimizer.get_config()) copies one)",
            )

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
        refuse_foreign_ops(concrete)
        self._random = self._draws(concrete)
        self._writes = self._changes_state(concrete)
        self._penalises = self._penalises_batches(concrete)
        unused = [v.path for v, none in zip(self.trainable, missing, strict=True) if none]
        if len(unused) == len(self.trainable) or (unused and not allow_unused):
            raise Refusal(
                "weights get no gradient from the loss",
                found=", ".join(unused),
                do="set trainable=False on them or connect them"
                + ("" if len(unused) == len(self.trainable) else ", or pass --allow-unused"),
            )
        self.trainable = [v for v, none in zip(self.trainable, missing, strict=True) if not none]

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
                scalars[self._loss_key(output)] = value
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

    def finalize(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the weights by their moving averages, as Keras does at the end of fit."""
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        step = self.optimizer.iterations
        return {"global_step": self.tf.cast(getattr(step, "value", step), "int64")}

    def _gradient(self, feeds: Mapping[str, Any], regularise: Any = None) -> tuple[list[Any], dict[str, Any], Any]:
        tf = self.tf
        with tf.GradientTape() as tape:
            with rematerialized(self._remat):
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
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(g))) for g in grads])

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
        if uses_logits(self.losses[name]):
            named["logits"] = value
            value = tf.nn.softmax(value) if value.shape[-1] != 1 else tf.sigmoid(value)
        named["probabilities"] = value
        if value.shape[-1] == 1:
            named["class"] = tf.cast(value[..., 0] > 0.5, "int64")
        else:
            named["class"] = tf.argmax(value, axis=-1, output_type=tf.int64)
        return named

    def _predicted(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        if "predict_step" in own_methods(self.model):
            return self._named(self.model.predict_step(self._x(feeds)))
        return self._forward(feeds, False)

    def _inner(self) -> Any:
        """The optimizer itself, without the one that scales the loss."""
        return getattr(self.optimizer, "inner_optimizer", self.optimizer)

    def learning_rate(self) -> Any:
        """The variable that holds the learning rate, or None under a schedule."""
        rate = getattr(self._inner(), "_learning_rate", None)
        return rate.value if isinstance(rate, self.keras.Variable) else None

    def signatures(self, xla_batch: int | None, xla_steps: int | None) -> dict[str, Any]:
        """Trace every signature."""
        tf = self.tf
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
        inner = self._inner()
        if any(getattr(o, "use_ema", False) for o in (inner, *getattr(inner, "optimizers", ()))):
            result["finalize"] = self._concrete(self.finalize, {})
        rate = self.learning_rate()
        # A MultiOptimizer has no learning rate itself: each of its optimizers has one.
        if rate is not None and any(v is rate for v in train.graph.variables):
            result["set_learning_rate"] = self._concrete(
                lambda feeds: {"learning_rate": tf.identity(rate.assign(feeds["learning_rate"]))},
                {"learning_rate": tf.TensorSpec([], "float32", name="learning_rate")},
            )
        if xla_batch is not None:
            result.update(xla_twins(tf, train, specs, xla_batch, xla_steps, self.metrics))
        self._touched = {id(v): v for f in result.values() for v in f.graph.variables}
        return result

    def tracked(self) -> Any:
        """An object that owns every variable of the steps, under readable names."""
        tf = self.tf
        root = tf.Module()
        root.model = by_path(self.model.variables)
        root.optimizer = by_path(self.optimizer.variables)
        root.states = by_path(self._states())
        owned = {id(v) for v in self.model.variables}
        root.metrics = by_path([v for m in self._metrics for v in m.variables if id(v) not in owned])
        if self.scales_itself:
            root.skipped_steps = self.skipped
        if self.micro_batches:
            root.accumulators = numbered((v.path, a) for v, a in zip(self.trainable, self.accumulators, strict=True))
            root.accumulated = {"weight": self.weight_sum, "samples": self.sample_sum}
            if self.loss_sum is not None:
                root.accumulated["loss"] = self.loss_sum
        return self._owning_rest(root)

    def _owning_rest(self, root: Any) -> Any:
        """The root, which also owns the variables of the steps that Keras does not know."""
        owned = {id(v) for v in root.variables}
        if rest := numbered((v.name, v) for i, v in self._touched.items() if i not in owned):
            root.step = rest
        return root

    def _sees_rank(self, output: str) -> bool:
        """Whether results depend on a last dimension of 1 of the labels.

        Keras's own losses and metrics add or remove it. For outputs of rank 1, this changes results: with
        the dimension, metrics are means over samples, and losses weight each sample; without it, metrics
        are means over batches, and losses multiply the mean loss by the mean weight.
        """
        compiled = self._metrics[0].metrics if self.metrics else []
        made = [getattr(item, "_fn", getattr(item, "fn", type(item))) for item in [self.losses[output], *compiled]]
        own = [not getattr(f, "__module__", "").startswith("keras.") for f in made]
        # Keras gives labels and predictions the same rank before it calls a function.
        if own[0] and hasattr(self.losses[output], "fn") and self.sample_weight is None:
            own[0] = not self._same_for_ranks(output)
        return any(own) or (bool(compiled) or self.sample_weight is not None) and not self.outputs[output].shape

    def metadata(self) -> dict[str, Any]:
        """The metadata of the steps."""
        named = self.names.name
        inputs = {named(n): s.json() for n, s in self.inputs.items()}
        for name, rows in self._rows().items():
            inputs[named(name)]["rows"] = rows
        labels = {named(n): s.json() for n, s in self.labels.items()}
        for output, label in self.label_of.items():
            if self._sees_rank(output):
                labels[named(label)]["fixed_rank"] = True
        sparse = self.keras.losses.sparse_categorical_crossentropy
        for output in self.label_of:
            size, loss = self.outputs[output].shape[-1:], self.losses[output]
            options = getattr(loss, "_fn_kwargs", {})
            counted = getattr(loss, "fn", None) is sparse and size != (None,)
            if counted and options.get("ignore_class") is None:
                labels[named(self.label_of[output])]["classes"] = size[0]
        return {
            "inputs": inputs,
            "labels": labels,
            "metrics": [named(n) for n in self.metrics],
            "loss": {named(n): item.name for n, item in self.losses.items()},
            "optimizer": getattr(self._inner(), "name", None),
            "precision": self.precision,
            **self.exactness(),
        }
