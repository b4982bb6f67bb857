"""The command steadyfit-export: its flags, its messages and its exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence

from .load import SAVED, load_model
from .names import VERSION, Refusal, UsageError, dtype_policy, load_tensorflow, progress
from .options import Options
from .write import export

EXAMPLES = """\
Examples:
  steadyfit-export --model model.keras --out trainable
      a model that was compiled: optimizer, loss and metrics come with it
  steadyfit-export --model net.py:build --optimizer adam --learning-rate 1e-3 \\
      --loss sparse_categorical_crossentropy --from-logits --metrics accuracy \\
      --input-dtype uint8 --range 0:255 --out trainable

Exit codes: 0 written and checked, 1 refused (the reason is on stderr), 2 usage."""


def _pairs(items: Sequence[str], option: str, default: str | None = None) -> dict[str, str]:
    result = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            if default is None:
                raise UsageError(f"{option} {item!r}: expected NAME=VALUE")
            name, value = default, item
        result[name.strip()] = value.strip()
    return result


def _ranges(items: Sequence[str]) -> dict[str, tuple[float, float]]:
    result = {}
    for name, value in _pairs(items, "--range", "x").items():
        low, _, high = value.partition(":")
        try:
            result[name] = (float(low), float(high))
        except ValueError as error:
            raise UsageError(f"--range {value!r}: expected LOW:HIGH, as in 0:255") from error
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="steadyfit-export",
        description="Turn a Keras 3 model into a SavedModel that trains without Python.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"steadyfit-export {VERSION}")
    add = parser.add_argument_group("what to export").add_argument
    source = "a saved Keras model; or a function (module:function or file.py:function) that returns a \
model, (model, optimizer, loss, metrics), or a dict of export()'s arguments"
    add("--model", metavar="FILE.keras|MODULE:FUNCTION", required=True, help=source)
    add("--out", metavar="DIR", required=True, help="folder to write; must not exist")
    add("--force", action="store_true", help="replace an earlier export in --out")
    policies = ["float32", "mixed_bfloat16", "mixed_float16"]
    policy = "Keras dtype policy for the layers that the function of --model makes: mixed_bfloat16, or \
mixed_float16, which scales its loss"
    add("--policy", choices=policies, help=policy)
    add("--seed", type=int, default=0, help="seed set before the model is made (0)")
    unchecked = "write without training a step on random values, which not every loss takes"
    add("--no-check", action="store_true", help=unchecked)
    deterministic = "use operations with a deterministic form on a GPU, for fit --deterministic"
    add("--deterministic", action="store_true", help=deterministic)

    add = parser.add_argument_group("the train step").add_argument
    add("--optimizer", help="Keras name: adam, adamw, sgd, rmsprop, ...")
    add("--learning-rate", type=float, metavar="X", help="initial learning rate")
    add("--loss", help="Keras name: mse, sparse_categorical_crossentropy, ...")
    yes = {"action": "store_true", "default": None}
    add("--from-logits", **yes, help="the model gives logits, not probabilities")
    names = {"type": lambda text: text.split(",") if text else None}
    add("--metrics", **names, metavar="NAME,...", help="Keras names: accuracy, mae, auc, ...")
    output = "value of the model's own train_step that stands for the loss, if none is called so"
    add("--loss-output", metavar="NAME", help=output)
    weight = "add the input sample_weight, one per sample, or in that shape per sample: [7] or [?] for \
the steps of a sequence"
    add("--sample-weight", nargs="?", const="[]", metavar="[DIMS]", help=weight)
    scale = "add the input loss_scale, so that the training program scales the loss, in place of \
scaling inside the graph"
    add("--loss-scale-input", **yes, help=scale)
    whole = "leave out gradients and apply, whose accumulators take as much memory as the trainable \
weights"
    no = {"action": "store_false", "default": None}
    add("--no-micro-batches", **no, dest="micro_batches", help=whole)
    add("--allow-unused", **yes, help="accept trainable weights that get no gradient; they stay as they are")
    lora = "train LoRA matrices of this rank on these layers, as in 4:query,value (all that have \
enable_lora), and freeze the rest"
    add("--lora", metavar="RANK[:TARGETS]", help=lora)
    add("--quantize", choices=["int8"], help="keep frozen weights as int8 where their layer supports it")
    only = "train the weights of these layers or paths, as in head or */bias, and freeze the rest"
    add("--train-only", metavar="PATTERN,...", help=only)
    remat = "compute these layers again for the gradient, as in block_*: less memory, more time"
    add("--remat", metavar="LAYERS", help=remat)
    add("--xla-batch", type=int, metavar="B", help="add train_xla for batches of B")
    add("--xla-steps", type=int, metavar="N", help="add train_n_xla for N steps of B")

    add = parser.add_argument_group("inputs and labels").add_argument
    several = {"action": "append", "default": []}
    spec = "NAME=DTYPE[DIMS]"
    inputs = "input of a model without keras.Input, without the batch: x=float32[28,28]; repeat"
    add("--input", **several, dest="inputs", metavar=spec, help=inputs)
    labels = "labels, if not what the loss implies: y=int64[]; repeat. none: the model's own step \
takes none"
    add("--label", **several, dest="labels", metavar=spec, help=labels)
    dtype = "take this dtype and cast inside: uint8 images are a quarter of float32's bytes"
    add("--input-dtype", **several, dest="input_dtypes", metavar="[NAME=]DTYPE", help=dtype)
    ranges = "range of the values of an input or a label, for the metadata and the check: 0:255"
    add("--range", **several, dest="input_ranges", metavar="[NAME=]LOW:HIGH", help=ranges)
    add("--class-names", **names, metavar="A,B,...", help="class names; predict then gives probabilities and class")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("steadyfit-export: %(message)s"))
    progress.handlers = [handler]
    progress.setLevel(logging.INFO)
    progress.propagate = False
    try:
        _export(arguments)
    except UsageError as error:
        print(f"steadyfit-export: {error}", file=sys.stderr)
        return 2
    except Refusal as error:
        print(f"steadyfit-export: refused: {error}", file=sys.stderr)
        return 1
    return 0


def _export(arguments: argparse.Namespace) -> None:
    """Make the model, export it, and print the report."""
    tf, keras = load_tensorflow()
    keras.utils.set_random_seed(arguments.seed)
    if arguments.deterministic:
        tf.config.experimental.enable_op_determinism()
    if arguments.policy and arguments.model.endswith(SAVED):
        raise UsageError("--policy is for a model that a function makes; a saved one has its policies")
    progress.info("making the model")
    with dtype_policy(arguments.policy or "float32"):
        model, options = load_model(arguments.model, not (arguments.optimizer and arguments.loss))
    none = arguments.labels == ["none"]
    given = vars(arguments) | {
        "inputs": _pairs(arguments.inputs, "--input") or None,
        "labels": {} if none else _pairs(arguments.labels, "--label") or None,
        "input_dtypes": _pairs(arguments.input_dtypes, "--input-dtype", "x") or None,
        "input_ranges": _ranges(arguments.input_ranges) or None,
    }
    known = {field.name for field in dataclasses.fields(Options)}
    if strange := sorted(set(options) - known):
        raise UsageError(f"{arguments.model} returned arguments export() lacks: {strange}")
    # The command line overrides what the function returned.
    options.update({key: v for key, v in given.items() if key in known and v is not None})
    report = export(model, arguments.out, force=arguments.force, check=not arguments.no_check, **options)
    print(f"{report.path}: {report.bytes / 1024:.0f} KiB")
    for name, described in report.signatures.items():
        inputs = ", ".join(f"{k} {v}" for k, v in described["inputs"].items()) or "-"
        outputs = ", ".join(f"{k} {v}" for k, v in described["outputs"].items())
        print(f"  {name}: {inputs} -> {outputs}")
    for line in report.checks:
        print(f"  checked: {line}")
    for line in report.notes:
        print(f"  note: {line}")
