"""The metrics of a Keras model, which are running values in variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .losses import Losses
from .names import RESERVED_OUTPUTS, Refusal, UsageError, kept_values


class Metrics(Losses):
    """The part of a program that makes metrics, updates them and resets them."""

    def _find_metrics(self, metrics: Any, weighted: Any) -> None:
        """Make the metrics of Keras compile, with their variables."""
        from keras.src.trainers.compile_utils import CompileMetrics

        made = CompileMetrics(
            self._metrics_by_output(metrics),
            self._metrics_by_output(weighted),
            output_names=[self.names.name(output) for output in self.outputs],
        )
        self._metrics = [made]
        y = {label: self._sample(spec, 2) for label, spec in self.labels.items()}
        outputs = {o: self._sample(spec, 2) for o, spec in self.outputs.items()}
        try:
            made.build(*self._pair(y, outputs))
            # Some metrics make variables with the first batch, and some keep values at a reset.
            with kept_values(made.variables):
                made.update_state(*self._pair(y, outputs))
                made.reset_state()
        except Exception as error:
            raise UsageError(f"metrics: {type(error).__name__}: {error}") from error
        # Layers may have metrics of their own, which Keras reports, too.
        model = self.model
        apart = {id(m) for m in (model._loss_tracker, model._compile_metrics)}
        apart |= {id(m) for m in getattr(model._compile_loss, "metrics", [])}
        self._metrics += [m for m in model.metrics if id(m) not in apart]
        taken = set(RESERVED_OUTPUTS) | {self._loss_key(o) for o in self.losses if len(self.losses) > 1}
        self.metrics: list[str] = []
        for name, value in self._metric_values().items():
            if name in taken:
                raise UsageError(f"a metric is called {name!r}, like another output")
            if isinstance(value, Mapping) or self.tf.convert_to_tensor(value).shape.rank != 0:
                raise Refusal(
                    f"metric {name!r} is not a scalar",
                    found=f"the result {value}",
                    do="have it average, or leave it out and compute it from predict's output",
                )
            self.metrics.append(name)

    def _metrics_by_output(self, metrics: Any) -> Any:
        if isinstance(metrics, Mapping):
            found = self._by_output("metrics", metrics, self.losses)
            return {self.names.name(output): value for output, value in found.items()}
        return metrics if metrics is None or isinstance(metrics, (list, tuple)) else [metrics]

    def _pair(self, y: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Labels and outputs in one structure, in the form for metrics."""
        if len(outputs) == 1:
            (output,) = outputs
            return y[self.label_of[output]], outputs[output]
        named = {o: self.names.name(o) for o in outputs}
        labels = {named[o]: y[self.label_of[o]] if o in self.label_of else None for o in outputs}
        return labels, {named[o]: value for o, value in outputs.items()}

    def _metric_values(self) -> dict[str, Any]:
        """The values of all metrics, by their names in Keras."""
        compiled, *others = self._metrics
        found: dict[str, Any] = {}
        for name, value in [*compiled.result().items(), *((m.name, m.result()) for m in others)]:
            key = name if name in RESERVED_OUTPUTS else self.names.key(name)
            if key in found:
                raise UsageError(f"two metrics are called {name!r}")
            found[key] = value
        return found

    def reset_metrics(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Reset the metrics; the outputs name them."""
        for metric in self._metrics:
            metric.reset_state()
        return {name: self.tf.zeros([]) for name in self.metrics}
