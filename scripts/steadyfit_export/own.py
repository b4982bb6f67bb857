"""A Keras model whose own train_step and test_step are the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .graphs import operations, refuse_foreign_ops
from .names import Refusal, Spec, UsageError, by_path, load_tensorflow, optimizers, own_methods
from .options import Options
from .step import KerasProgram


class OwnStepProgram(KerasProgram):
    """A compiled Keras model whose own train_step and test_step are the steps.

    They are traced without changes, with all optimizers and metrics that they use. Their
    outputs are running values: for an epoch, Keras reports those of the last step.
    """

    inexact = "it has its own train step"

    def __init__(self, model: Any, options: Options) -> None:
        self.tf, self.keras = load_tensorflow()
        self.notes = []
        self.model, self.sample_weight = model, options.weight_spec()
        self.classes = options.class_names is not None
        self.loss_output = options.loss_output
        self.optimizer, self.reduction = model.optimizer, "sum_over_batch_size"
        self.precision = str(model.dtype_policy.name)
        if isinstance(self.optimizer, self.keras.optimizers.LossScaleOptimizer):
            raise UsageError(
                "a model with its own train step does not report the steps that a LossScaleOptimizer "
                "skips: make the layers under mixed_bfloat16"
            )
        self.calls = type(model).call is not self.keras.Model.call
        self.predicts = self.calls or "predict_step" in own_methods(model)
        if options.learning_rate is not None:
            self.optimizer.learning_rate = options.learning_rate
        self._find_inputs(options)
        self._find_targets(options.labels)
        self._trace()
        self._check_model()
        self.trainable = list(model.trainable_variables)

    def _find_targets(self, given: Mapping[str, Spec] | None) -> None:
        self.losses: dict[str, Any] = {}
        self.label_of: dict[str, str] = {}
        self.labels: dict[str, Spec] = {self.names.key(name): spec for name, spec in (given or {}).items()}
        if self.calls:
            self._probe_outputs()
        if self.calls and getattr(self.model, "loss", None) is not None:
            self._find_losses(self.model.loss, None, False, given)
            if given is None:
                self._find_labels(None)
                if "train_step" in own_methods(self.model):
                    self._refuse_two_ways()
        elif self.classes:
            raise UsageError("class_names needs a model that was compiled with a loss")

    def _refuse_two_ways(self) -> None:
        """Refuse a step that runs with and without labels: only the program that calls fit knows which."""
        labels, self.labels = self.labels, {}
        try:
            self._step(self.train)
        except (Refusal, UsageError):
            self.labels = labels  # it needs labels
            return
        names = ", ".join(f"--label {self.names.name(n)}={s}" for n, s in labels.items())
        raise Refusal(
            "it is not clear whether the model's own train step takes labels",
            found=f"{type(self.model).__name__}.train_step runs with labels and without them",
            do=f"say what fit passes to the step: {names}, or --label none",
        )

    def _data(self, feeds: Mapping[str, Any]) -> Any:
        """A batch in the form in which Keras passes it to a step."""
        names = list(self.labels)
        outputs = {o: self._label(o) for o in getattr(self, "outputs", {})}
        y: Any = {self.names.name(name): feeds[name] for name in names} or None
        if len(names) == 1:
            y = feeds[names[0]]
        elif names and set(names) <= set(outputs.values()):
            y = {output: feeds.get(label) for output, label in outputs.items()}
            keys = self.output_keys
            y = {keys[o]: v for o, v in y.items()} if keys else list(y.values())
        return self.keras.utils.pack_x_y_sample_weight(self._x(feeds), y, feeds.get("sample_weight"))

    def _trace(self) -> None:
        """Trace the steps once to create their variables, and find what they return."""
        probe = self._step(self.train)
        refuse_foreign_ops(probe)
        self.metrics = list(probe.structured_outputs)
        try:
            test = self._step(self.evaluate)
        except (Refusal, UsageError) as error:
            if "test_step" in own_methods(self.model):
                raise
            self.evaluates = False
            self.notes.append(f"no evaluate signature: {getattr(error, 'found', error)}")
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
            raise Refusal(
                "a step of the model's own cannot be traced",
                found=f"{step.__name__}: {type(error).__name__}: {str(error)[:600]}",
                do="use keras.ops in place of Python code that needs values; name the labels that the step "
                "takes with --label y=DTYPE[DIMS]",
            ) from error

    def _scalars(self, logs: Any, where: str) -> dict[str, Any]:
        """The values that a step returned, as Keras reports them."""
        tf = self.tf
        where = f"{type(self.model).__name__}.{where}"
        if not isinstance(logs, Mapping):
            raise UsageError(f"{where} returns no dict of scalars: return {{'loss': loss, ...}}")
        # At the end of an epoch, Keras uses the values of the metrics if the step returned as many
        # values. Metrics that the step did not update would be 0.
        used = {id(outer) for outer, _ in tf.compat.v1.get_default_graph().captures}
        metrics = [m for m in self.model.metrics if m.variables]
        current = self.model.get_metrics_result()
        if set(current) == set(logs) and all(any(id(v.value.handle) in used for v in m.variables) for m in metrics):
            logs = current
        result = {}
        for name, value in logs.items():
            tensor = tf.convert_to_tensor(value)
            if tensor.shape.rank != 0:
                raise UsageError(f"{where}: {name!r} is not a scalar: reduce it, for instance with keras.ops.mean")
            result["loss" if name == "loss" else self.names.key(name)] = tf.cast(tensor, "float32")
        if self.loss_output is not None:
            if self.loss_output not in logs:
                raise UsageError(f"loss_output {self.loss_output!r}: {where} returns {', '.join(logs)}")
            result["loss"] = tf.cast(logs[self.loss_output], "float32")
        if "loss" not in result:
            raise UsageError(
                f"{where} returns no loss but {', '.join(logs)}: name the value that stands for it with "
                "--loss-output NAME"
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
        if operations(again) != operations(result["train"]):
            raise Refusal(
                "the train step is another one each time that it is traced",
                found=f"{type(self.model).__name__}.train_step has other constants or operations, as of a "
                "counter or random numbers of Python",
                do="keep counters with add_weight, and draw with keras.random",
            )
        if self.learning_rate() is not None and "set_learning_rate" not in result:
            result.pop("finalize", None)  # compile makes an optimizer that the step does not use
        return result

    def tracked(self) -> Any:
        """An object that owns every variable of a step."""
        root = self.tf.Module()
        root.model = by_path(self.model.variables)
        root.optimizer = by_path([v for o in optimizers(self.model) for v in o.variables])
        root.metrics = by_path([v for m in self.model.metrics for v in m.variables])
        return self._owning_rest(root)

    def _sees_rank(self, output: str) -> bool:
        return True

    def metadata(self) -> dict[str, Any]:
        found = super().metadata()
        for label in found["labels"].values():
            label.pop("classes", None)  # the step may change them
            label["fixed_rank"] = True
        return {**found, "loss": {}, "own_step": own_methods(self.model) or ["add_loss"]}
