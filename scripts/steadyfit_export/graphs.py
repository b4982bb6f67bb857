"""What the operations of a traced graph do: leave it, depend on others, use tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .names import Refusal, load_tensorflow

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


def refuse_foreign_ops(concrete: Any) -> None:
    graph = concrete.graph.as_graph_def()
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes.extend(function.node_def)
    found = [f"{n.op} {n.name!r} ({FOREIGN_OPS[n.op]})" for n in nodes if n.op in FOREIGN_OPS]
    if found:
        raise Refusal(
            "the graph leaves TensorFlow, or needs state that a checkpoint does not cover",
            found="; ".join(found[:5]),
            do="do this step when preparing the data, and export the rest of the model",
        )


def ancestors(graph: Any, tensors: Sequence[str]) -> list[Any]:
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


def operations(concrete: Any) -> list[tuple[str, bytes]]:
    """The operations of a traced function, with the values of constants."""
    return [
        (node.op, node.attr["value"].tensor.SerializeToString() if node.op == "Const" else b"")
        for node in concrete.graph.as_graph_def().node
    ]


def lookup_tables(model: Any, signatures: Mapping[str, Any]) -> list[Any]:
    """The lookup tables of layers that the steps use."""
    tf, _ = load_tensorflow()
    used = {id(tensor) for function in signatures.values() for tensor in function.captured_inputs}
    return [
        value
        for layer in model._flatten_layers()
        for held in vars(layer).values()
        for value in (held if isinstance(held, (list, tuple)) else [held])
        if isinstance(value, tf.saved_model.experimental.TrackableResource) and id(value.resource_handle) in used
    ]
