"""Several train steps in one execution, and steps that XLA compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .names import STATES


def repeat(tf: Any, step: Any, feeds: Mapping[str, Any], running: Sequence[str]) -> dict[str, Any]:
    """Run step once per slice of the first dimension. Return the mean of each output, or for
    bools whether all are true.

    For states and running metrics, return the value of the last step.

    The step is called as one function instead of being traced again, which keeps
    saved_model.pb small.
    """
    # loss_scale is constant within a call.
    stacked = [value for name, value in feeds.items() if name != "loss_scale"]
    static = [value.shape[0] for value in stacked if value.shape[0] is not None]
    n = static[0] if static else tf.shape(stacked[0])[0]
    outputs = step.structured_outputs
    last = {*STATES, *running}
    start = [tf.constant(True) if spec.dtype == tf.bool else tf.zeros([], spec.dtype) for spec in outputs.values()]

    def body(i: Any, *totals: Any) -> Any:
        result = step(**{k: v if k == "loss_scale" else v[i] for k, v in feeds.items()})
        return i + 1, *(
            result[name] if name in last else total & result[name] if total.dtype == tf.bool else total + result[name]
            for name, total in zip(outputs, totals, strict=True)
        )

    # The steps run one after the other, since they update the same variables.
    _, *totals = tf.while_loop(lambda i, *_: i < n, body, [tf.constant(0), *start], parallel_iterations=1)
    return {
        name: total if total.dtype == tf.bool or name in last else total / tf.cast(tf.maximum(n, 1), total.dtype)
        for name, total in zip(outputs, totals, strict=True)
    }


def xla_twins(
    tf: Any, train: Any, specs: Mapping[str, Any], batch: int, steps: int | None, running: Sequence[str]
) -> dict[str, Any]:
    """XLA-compiled signatures of train and train_n for one shape each."""

    def twin(lead: list[int], function: Callable) -> Any:
        def traced(**feeds: Any) -> Any:
            return function(feeds)

        fixed = {
            n: s if n == "loss_scale" else tf.TensorSpec([*lead, *s.shape[1:]], s.dtype, name=n)
            for n, s in specs.items()
        }
        return tf.function(traced, jit_compile=True, autograph=False).get_concrete_function(**fixed)

    result = {"train_xla": twin([batch], lambda feeds: train(**feeds))}
    if steps is not None:
        result["train_n_xla"] = twin([steps, batch], lambda feeds: repeat(tf, train, feeds, running))
    return result
