"""The command steadyfit-import: copy weights and the optimizer's state of a trained SavedModel to its Keras model.

``steadyfit-import OUT --into model.keras`` reads the SavedModel that ``steadyfit fit --out OUT`` wrote
for an export of model.keras. Keras ``fit`` then continues as if it had trained the model
itself, except for random numbers: a Keras file does not store the state of seeds, which only
the function ``restore`` sets.

Variables are matched by their paths. Loading a model changes the paths, since Keras renumbers
names and drops the model's own name. In that case variables are matched by position, since both
sides keep the order of the model. Other differences of paths, and different shapes or dtypes,
are refused. Nothing is written unless everything matches.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from .load import load_model
from .names import Refusal, UsageError, literal, load_tensorflow, numbered, optimizers, own_methods

GROUPS = ("model", "optimizer")
WEIGHTS = ".weights.h5"


def trained(out: str | os.PathLike[str], files: str) -> tuple[Any, dict[str, dict[str, str]]]:
    """Open a trained SavedModel, with its literal path; returns a reader, and its keys by group and path, in order."""
    tf, _ = load_tensorflow()
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    try:
        reader = tf.train.load_checkpoint(os.path.join(files, "variables", "variables"))
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
            reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
        )
    except (ValueError, tf.errors.OpError) as error:
        raise UsageError(f"{out} is no SavedModel with weights: {error}") from error

    def children(node: Any) -> dict[str, Any]:
        return {child.local_name: graph.nodes[child.node_id] for child in node.children}

    root = children(graph.nodes[0])
    found = {
        group: {path: a.checkpoint_key for path, n in children(top).items() for a in n.attributes}
        for group, top in root.items()
        if group in (*GROUPS, "step")
    }
    if not set(GROUPS) <= set(found) or found.get("step"):
        raise Refusal(
            "the trained model has no record of the Keras model's variables",
            found="variables of the model's own step: " + ", ".join(found["step"])
            if found.get("step")
            else "groups of variables: " + (", ".join(root) or "none"),
            do="export the model with this version, with optimizers as attributes of the model",
        )
    return reader, found


def restore(out: str | os.PathLike[str], model: Any) -> dict[str, int]:
    """Assign all variables of a trained SavedModel to a compiled Keras model.

    Returns the number of variables by group. If one does not match, the model is unchanged.

    Raises:
        Refusal: naming the first variable that does not match.
        UsageError: out is no SavedModel.
    """
    with literal(out) as files:
        return _restore(out, *trained(out, files), model)


def _restore(out: Any, reader: Any, keys: dict[str, dict[str, str]], model: Any) -> dict[str, int]:
    _, keras = load_tensorflow()
    if not isinstance(model, keras.Model):
        raise UsageError(f"cannot restore a {type(model).__name__}: expected a Keras model")
    if not model.compiled:
        raise Refusal(
            "the Keras model is not compiled",
            found="no optimizer",
            do="compile the model, and save it again",
        )
    pairs = {"model": _matched(out, reader, keys["model"], model.variables, "model")}
    _build(model, keys, pairs["model"])
    variables = [v for o in optimizers(model) for v in o.variables]
    pairs["optimizer"] = _matched(out, reader, keys["optimizer"], variables, "optimizer")
    for variable, key in itertools.chain(*pairs.values()):
        variable.assign(reader.get_tensor(key))
    return {group: len(pairs[group]) for group in GROUPS}


def _build(model: Any, keys: dict[str, dict[str, str]], pairs: Sequence[tuple[Any, str]]) -> None:
    """Build the optimizers that the trained model has built: those of an own step for the weights that have slots."""
    names = {key: path.partition("#")[0].replace("/", "_") for path, key in keys["model"].items()}
    longest = sorted(names.values(), key=len, reverse=True)
    made = optimizers(model)
    slots: list[list[str]] = []  # the weights of the variables of each optimizer
    for path in keys["optimizer"]:
        name = path.partition("/")[2]
        if not slots or (len(made) > 1 and re.fullmatch(r"iteration(#\d+)?", name)):
            slots.append([])
        slots[-1].append(next((n for n in longest if name.startswith(f"{n}_")), ""))
    for optimizer, found in zip(made, slots, strict=False):
        if optimizer.built or len(found) <= len(optimizer.variables):
            continue
        weights = model.trainable_variables
        if "train_step" in own_methods(model):
            held = [(found.index(names[key]), v) for v, key in pairs if names[key] in found]
            weights = [v for _, v in sorted(held, key=lambda pair: pair[0])] or weights
        optimizer.build(weights)


def _matched(
    out: Any, reader: Any, keys: dict[str, str], variables: Sequence[Any], group: str
) -> list[tuple[Any, str]]:
    """Pair each variable of the Keras model with its key."""
    named = numbered((v.path, v) for v in variables)
    if set(named) == set(keys):
        keys = {path: keys[path] for path in named}
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    pairs = []
    for theirs, ours in itertools.zip_longest(keys.items(), named.items()):
        there = here = ("", "nothing")
        if theirs is not None:
            key = theirs[1]
            there = (theirs[0], f"{dtypes[key].name}{shapes[key]}")
        if ours is not None:
            value = ours[1].value
            here = (ours[0], f"{value.dtype.name}{value.shape.as_list()}")
        if there[1] != here[1] or not _alike(there[0], here[0], group):
            raise Refusal(
                f"the {group}'s variables differ",
                found=f"variable {len(pairs) + 1} of {out}: {' '.join(there).strip()}, of {len(keys)} in the trained "
                f"model; {' '.join(here).strip()}, of {len(named)} variables of the {group} in Keras",
                do="give the Keras model that was exported, compiled with the same optimizer and "
                "the same layers trainable",
            )
        pairs.append((ours[1], theirs[1]))
    return pairs


def _alike(a: str, b: str, group: str) -> bool:
    """Whether the paths differ only in numbers and a prefix."""
    a, b = (re.sub(r"_\d+(?=[_/]|$)", "", path) for path in (a, b))
    if group == "optimizer":
        # Split into the optimizer's name, and the path of a weight with underscores.
        (one, _, a), (other, _, b) = a.partition("/"), b.partition("/")
        if one != other:
            return False
        a, b = a.replace("/", "_"), b.replace("/", "_")
    # The name of the model may go before the path.
    a, b = sorted((a, b), key=len)
    return a == b or b.endswith(("_" if group == "optimizer" else "/") + a)


def write(model: Any, path: pathlib.Path) -> None:
    """Replace the file by a Keras model, or by weights for load_weights."""
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        (model.save_weights if path.name.endswith(WEIGHTS) else model.save)(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="steadyfit-import",
        description="Put the weights and the optimizer's state of a trained SavedModel back into "
        "the Keras model that it was exported from.",
        epilog="Exit codes: 0 written, 1 refused (the reason is on stderr), 2 usage.",
    )
    parser.add_argument("trained", metavar="OUT", help="what `steadyfit fit --out OUT` wrote")
    parser.add_argument(
        "--into",
        required=True,
        metavar="FILE.keras|MODULE:FUNCTION",
        help="the compiled Keras model, or a function that returns it, as for steadyfit-export --model",
    )
    parser.add_argument(
        "--out",
        metavar="FILE.keras",
        help=f"file to write, in place of that of --into; FILE{WEIGHTS} for load_weights of Keras",
    )
    arguments = parser.parse_args(argv)
    target = arguments.out or arguments.into
    try:
        if not target.endswith((".keras", WEIGHTS)):
            raise UsageError(
                f"cannot write {target!r}: --out takes FILE.keras or FILE{WEIGHTS}"
            )
        if not pathlib.Path(target).parent.is_dir():
            raise UsageError(f"cannot write {target!r}: the folder does not exist; make it first")
        model, _ = load_model(arguments.into)
        counts = restore(arguments.trained, model)
        write(model, pathlib.Path(target))
    except UsageError as error:
        print(f"steadyfit-import: {error}", file=sys.stderr)
        return 2
    except Refusal as error:
        print(f"steadyfit-import: refused: {error}", file=sys.stderr)
        return 1
    print(
        f"{target}: {counts['model']} variables of the model, {counts['optimizer']} of optimizers"
    )
    return 0
