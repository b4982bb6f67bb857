"""Gradient checkpointing: layers that the gradient computes again, and whose results are not kept."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .adapters import layers_of, matches, some_names, split_patterns
from .names import Refusal, UsageError, load_tensorflow


def matching_layers(model: Any, given: str | Sequence[str]) -> dict[str, Any]:
    """The outermost layers that match the patterns of remat, by path."""
    layers = {path: layer for path, layer in layers_of(model) if path}
    found: dict[str, Any] = {}
    for pattern in split_patterns(given):
        matched = {p: layer for p, layer in layers.items() if matches(pattern, p)}
        if not matched:
            raise UsageError(f"remat {pattern!r} matches no layer; there are {some_names(layers)}")
        found |= matched
    return {path: layer for path, layer in found.items() if not any(path.startswith(f"{outer}/") for outer in found)}


@contextlib.contextmanager
def rematerialized(layers: Mapping[str, Any]) -> Iterator[None]:
    """In the block, the gradients of these layers compute the layers again and keep only their
    inputs.

    tf.recompute_grad would draw other dropout masks in the second computation (TensorFlow 2.21),
    and Keras's RematScope fails in graphs (keras#21207).
    """
    problems: dict[str, str] = {}  # Keras would change the type of an error inside a layer
    try:
        for path, layer in layers.items():
            report = functools.partial(problems.setdefault, path)
            layer.__dict__["call"] = _rematerialize(layer, report)
        yield
    finally:
        for layer in layers.values():
            layer.__dict__.pop("call", None)
    for path, problem in problems.items():
        raise Refusal(
            "a layer cannot be computed again for the gradient",
            found=f"layer {path!r} ({type(layers[path]).__name__}) uses {problem}",
            do="name other layers, as in --remat block_*",
        )


def _rematerialize(layer: Any, report: Callable[[str], Any]) -> Callable:
    """A replacement for the call of a layer. It reports layers that cannot be computed again.

    Weights and states are arguments of a function with its own gradient, so that both
    computations use the same values, including the seeds of dropout.
    """
    tf, keras = load_tensorflow()
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
            for tensor in _stored_tensors(earlier, values):
                report(f"the tensor {tensor.name!r}, which is no input of its call")

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


def _stored_tensors(earlier: set[Any], values: Sequence[Any]) -> list[Any]:
    """The float tensors of earlier operations that later ones use, except values and constants.

    Another layer stored such a tensor. The gradient of the layer would not reach it.
    """
    tf, _ = load_tensorflow()
    known = {v.ref() for v in values}
    return [
        tensor
        for op in tf.compat.v1.get_default_graph().get_operations()
        if op not in earlier
        for tensor in op.inputs
        if tensor.op in earlier
        and tensor.dtype.is_floating
        and tensor.op.type not in ("Const", "Placeholder")
        and tensor.ref() not in known
    ]
