#!/usr/bin/env python3
"""Train models with Keras fit, and compare steadyfit's trainings of the same models.

``conformance.py make DIR`` writes for each case a folder with the exported model, the data,
and ``keras.json``: the history of ``fit`` on the same weights, data and order, with a smaller
last batch, or the reason why the model is refused. ``arguments.json`` has the options of ``steadyfit fit``.
``conformance.py compare DIR`` reads the model ``out`` and the history that steadyfit made in each
folder, and prints the results as JSON: the number of metrics, their largest relative
difference, the largest difference of a weight relative to the change by the training,
and the differences that are not expected.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import keras
import numpy as np
import tensorflow as tf

import conformance_forms as forms
import conformance_models as models
import conformance_steps as steps
import conformance_tables as tables
import steadyfit_export as export
from conformance_models import BATCH, EPOCHS, TRAIN, Case, seeded
from conformance_tables import DIFFERS, METRIC_LIMIT, REFUSED, WEIGHT_LIMIT, WEIGHT_UNITS

Cases = dict[str, tuple[str, Callable[[], Case]]]
P = functools.partial


def functions(names: str) -> Cases:
    """Cases by the names of functions, with their docstrings."""
    found = {}
    for name in names.split():
        build = next(getattr(m, name) for m in (models, steps, tables, forms) if hasattr(m, name))
        found[name] = (build.__doc__.rstrip("."), build)
    return found


def quoted(texts: Any) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def stack(name: str, suffix: str, **options: str) -> Cases:
    """One more stack of layers, with an optimizer or a policy."""
    (what,) = options.values()
    described = f"{tables.LAYERS[name][0]}: `{name}`, `{what}`"
    return {f"{name}_{suffix}": (described, P(tables.stacked, name, **options))}


def more_stacks() -> Cases:
    """The stacks with other optimizers and policies."""
    found = stack("embedding", "adam", optimizer="Adam(0.01, clipnorm=0.01)")
    found |= stack("embedding", "adagrad", optimizer="Adagrad(0.1)")
    for policy in ("mixed_bfloat16", "mixed_float16"):
        for name in ("conv2d", "batch_normalization", "lstm", "dropout"):
            found |= stack(name, policy, policy=policy)
    return found


# Every run of the tests trains the first group, and `make conformance` the others.
GROUPS: dict[str, Cases] = {
    "Compared in every run of the tests": functions(
        "stateful class_weights masked keyed_outputs ema_best own_tests add_loss text_classifier residual"
    ),
    "Metrics, outputs, own steps and losses": functions(
        "accuracy weighted several_outputs ema columns stateful_rnn crossentropy_by_name mean_iou masked_f1 "
        "keyed_step own_optimizer own_loss_of_one no_labels layer_metric ema_overwritten ema_unused distillation "
        "distiller own_metrics gan weighted_elements"
    ),
    "Optimizers and schedules": {
        **{name: (f"`{text}`", P(tables.optimized, text)) for name, text in tables.OPTIMIZERS.items()},
        **functions("changed_rate excluded built"),
    },
    "Losses": {
        **{f"loss_{n}": (f"`{x}`", P(tables.with_loss, k, x)) for n, (k, x) in tables.LOSSES.items()},
        **{f"losses_of_{k}": (quoted(n), P(tables.by_name, k, n)) for k, n in tables.LOSS_NAMES.items()},
        **functions("ctc weighted_outputs"),
    },
    "Metrics, without and with sample weights": {
        f"metrics_of_{k}": (quoted(x), P(tables.measured, k, x)) for k, x in tables.METRICS.items()
    },
    "Layers": {
        name: (f"{data}: {quoted(texts)}", P(tables.stacked, name)) for name, (data, *texts) in tables.LAYERS.items()
    },
    "Models": {
        **functions(
            "two_inputs keyed_inputs nested shared frozen transformer attentions language_model "
            "binary_class_weights subclass own_layer lora quantized_lora"
        ),
        "steps_per_execution": ("`steps_per_execution=4`", P(models.classifier, steps_per_execution=4)),
        "jit_compile": ("`jit_compile=True`", P(models.classifier, jit_compile=True)),
        **more_stacks(),
        **functions("float64"),
    },
    "Common forms": functions(
        " ".join(n for n, f in vars(forms).items() if getattr(f, "__module__", "") == forms.__name__ and n[0] != "_")
    ),
    "keras.applications, `weights=None`": {
        name.lower(): (f"`{name}`, images of {size} x {size}", P(tables.application, name, size, options))
        for name, size, options in tables.APPLICATIONS
    },
    "KerasHub, from small configurations": {
        name.lower(): (f"`{name}Backbone`, `{task}`", P(tables.hub, name, task, options))
        for name, task, options in tables.HUB
    }
    | functions("rqvae"),
    "Refused": functions("by_class_f1 half_weights own_fit unused python_code"),
}


def part_of(values: Any, part: slice) -> Any:
    """Some samples of an array, or of each of several, as fit takes them."""
    return keras.tree.map_structure(lambda a: a[part].astype(object) if a.dtype.kind == "U" else a[part], values)


def arguments_of(case: Case) -> list[str]:
    """The options of ``steadyfit fit`` that the case needs."""
    found = []
    if case.class_weight:
        found += ["--class-weight", ",".join(f"{c}={w}" for c, w in case.class_weight.items())]
    if case.patience is not None:
        found += ["--early-stop", f"val_loss:{case.patience}", "--restore-best"]
    return found


def fields_of(case: Case, part: slice) -> dict[str, Any]:
    """The arrays of a dataset under the names of the exported inputs."""
    fields = {}
    for name, x in (case.x if isinstance(case.x, dict) else {"x": case.x}).items():
        fields |= {f"{name}/{i}": each for i, each in enumerate(x)} if isinstance(x, list) else {name: x}
    if isinstance(case.y, dict):
        fields |= {f"y_{name}": value for name, value in case.y.items()}
    elif case.y is not None:
        fields["y"] = case.y
    if case.weight is not None:
        fields["sample_weight"] = case.weight
    return part_of(fields, part)


def write_data(case: Case, folder: pathlib.Path, name: str, part: slice) -> None:
    """Write a dataset as .npz, and as CSV if the case trains from a table."""
    fields = fields_of(case, part)
    texts = {n: f.astype(str) if f.dtype.kind == "O" else f for n, f in fields.items()}
    np.savez(folder / f"{name}.npz", **texts)
    if case.table:
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(fields)
            table.writerows(zip(*(np.ravel(f).tolist() for f in fields.values()), strict=True))


def weights(model: Any) -> dict[str, np.ndarray]:
    """The variables that training changes, except seeds; by position, since names may repeat."""
    return {f"{i}": w.numpy() for i, w in enumerate(model.weights)}


def make(folder: pathlib.Path, build: Callable[[], Case]) -> dict[str, Any]:
    """Export a case, train it with Keras, and write the results."""
    train, rest = slice(0, TRAIN), slice(TRAIN, None)
    case = seeded(build)
    if case.whole:
        train, rest = slice(0, 4 * BATCH), slice(TRAIN, TRAIN + 2 * BATCH)
    own = export.own_methods(case.model)
    try:
        export.export(case.model, folder / "model", **case.options)
    except (export.Refusal, export.UsageError) as error:
        return {"refused": getattr(error, "what", str(error))}
    # Keras trains a separate model, which the export cannot have changed.
    model = seeded(build).model
    write_data(case, folder, "train", train)
    write_data(case, folder, "validation", rest)
    np.savez(folder / "before.npz", **weights(case.model))
    y = case.y
    if isinstance(y, dict) and not case.keyed:
        y = list(y.values())
    callbacks = []
    if case.patience is not None:
        stop = keras.callbacks.EarlyStopping("val_loss", patience=case.patience, restore_best_weights=True)
        callbacks = [stop]
    validates = case.validates and y is not None and ("train_step" not in own or "test_step" in own)
    validation = tuple(part_of(v, rest) for v in (case.x, y, case.weight) if v is not None)
    history = model.fit(
        part_of(case.x, train),
        None if y is None else part_of(y, train),
        class_weight=case.class_weight or None,
        callbacks=callbacks,
        sample_weight=None if case.weight is None else part_of(case.weight, train),
        validation_data=validation if validates else None,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
    )
    np.savez(folder / "after.npz", **weights(model))
    kind = "csv" if case.table else "npz"
    arguments = ["--shuffle=false", "--batch", str(BATCH), "--epochs", str(EPOCHS)]
    arguments += ["--data", str(folder / f"train.{kind}")]
    if validates:
        arguments += ["--validation", str(folder / f"validation.{kind}")]
    (folder / "arguments.json").write_text(json.dumps(arguments + arguments_of(case)))
    # For each output, Keras reports a mean over batches instead of samples; the last is smaller.
    outputs = case.y if isinstance(case.y, dict) else {}
    names = set() if own else {*outputs, *(getattr(model, "output_names", None) or [])}
    means = {f"{prefix}{name}_loss" for name in names for prefix in ("", "val_")}
    found = {n: [float(v) for v in values] for n, values in history.history.items() if n not in means}
    return {"paths": [w.path for w in model.weights], "history": found}


def weight_difference(folder: pathlib.Path, paths: list[str]) -> tuple[float, float]:
    """The largest difference of a weight divided by the largest change of a weight. For weights
    beyond WEIGHT_LIMIT, the largest difference in units in the last place."""
    reader = tf.train.load_checkpoint(folder / "out" / "variables" / "variables")
    before, after = np.load(folder / "before.npz"), np.load(folder / "after.npz")
    pairs = []
    moved = 0.0
    seen: dict[str, int] = {}
    for i, path in enumerate(paths):
        seen[path] = seen.get(path, 0) + 1
        key = path if seen[path] == 1 else f"{path}#{seen[path]}"
        ours = reader.get_tensor(f"model/{key.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE")
        was, theirs = before[f"{i}"].astype("float64"), after[f"{i}"].astype("float64")
        moved = max(moved, float(np.max(np.abs(theirs - was), initial=0)))
        kind = np.float64 if after[f"{i}"].dtype == np.float64 else np.float32
        pairs.append((theirs, np.abs(theirs - ours), np.spacing(np.abs(theirs).astype(kind))))
    differs = units = 0.0
    for theirs, off, spacing in pairs:
        if not np.isfinite(off).all():
            return np.inf, np.inf
        differs = max(differs, float(np.max(off, initial=0)))
        beyond = off > WEIGHT_LIMIT * moved
        units = max(units, float(np.max(off[beyond] / spacing[beyond], initial=0)))
    return differs / moved, float(np.ceil(units))


def metric_difference(folder: pathlib.Path, history: dict[str, list[float]]) -> tuple[float, str]:
    """The largest relative difference of a metric in an epoch, and the metric's name."""
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    worst, which = 0.0, ""
    for name, theirs in history.items():
        ours = [r[name] for r in records if r.get(name) is not None]
        if len(ours) != len(theirs):
            return np.inf, f"{name} of {len(ours)} epochs"
        for a, b in zip(theirs, ours, strict=True):
            difference = 0.0 if a == b else abs(a - b) / max(1e-3, abs(a))
            if not difference <= worst:
                worst, which = difference, name
    return worst, which


def compare(folder: pathlib.Path, name: str, what: str) -> dict[str, Any]:
    """The result of a case, and the unexpected part of it."""
    row: dict[str, Any] = {"case": name, "what": what, "problem": ""}
    made = json.loads((folder / "keras.json").read_text())
    if "failed" in made:
        return {**row, "problem": made["failed"]}
    if "refused" in made:
        unexpected = "" if name in REFUSED else f"refused: {made['refused']}"
        return {**row, "refused": made["refused"], "note": REFUSED.get(name), "problem": unexpected}
    if name in REFUSED:
        return {**row, "problem": "exported, though REFUSED names it"}
    if not (folder / "out").exists():
        return {**row, "problem": "steadyfit did not train it"}
    metrics, weights, row["note"] = DIFFERS.get(name, (METRIC_LIMIT, WEIGHT_LIMIT, None))
    row["metrics"] = len(made["history"])
    row["difference"], row["worst"] = metric_difference(folder, made["history"])
    row["weights"], row["units"] = weight_difference(folder, made["paths"])
    if not row["difference"] <= metrics:
        row["problem"] += f"{row['worst']} differs by {row['difference']:.1e}. "
    if not (row["weights"] <= weights or row["units"] <= WEIGHT_UNITS):
        row["problem"] += f"Weights differ by {row['weights']:.1e} of what moved, {row['units']:g} units."
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in groups, as Markdown."""
    lines = [versions(), "", summary(rows), ""]
    found = {row["case"]: row for row in rows}
    for title, cases in GROUPS.items():
        lines += [f"### {title}", ""]
        lines += ["| case | what it is | metrics, largest relative difference | weights |"]
        lines += ["|---|---|---|---|"]
        for row in (found[name] for name in cases):
            metrics = weights = "-"
            if "metrics" in row:
                number = row["metrics"]
                metrics = f"{number} metric{'s' * (number != 1)}, {amount(row['difference'])}"
                weights = amount(row["weights"])
                if 0 < row["units"] < 100:
                    weights += f", {row['units']:g} ulp"
            elif "refused" in row:
                metrics = f"refused: {row['refused']}"
            what = f"{row['what']}. {row['note']}" if row.get("note") else row["what"]
            lines.append(f"| `{row['case']}` | {what} | {metrics} | {weights} |")
        lines.append("")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """The number of equal cases."""
    compared = [r for r in rows if "metrics" in r]
    close = [r for r in compared if r["difference"] <= METRIC_LIMIT]
    within = sum(r["weights"] <= WEIGHT_LIMIT for r in close)
    last = sum(r["weights"] > WEIGHT_LIMIT and r["units"] <= WEIGHT_UNITS for r in close)
    refused = sum("refused" in r for r in rows)
    share = (within + last) / max(len(compared), 1)
    return (
        f"{len(compared)} cases are compared. {within} are within the limits, {last} more except "
        f"for the last place of some weights ({share:.1%} together), and "
        f"{len(compared) - within - last} differ for a stated reason. {refused} are refused."
    )


def amount(difference: float) -> str:
    return f"{difference:.1e}" if difference else "equal"


def versions() -> str:
    """The versions that computed the values."""
    import keras_hub
    from tensorflow.python.util import _pywrap_util_port

    onednn = "on" if _pywrap_util_port.IsMklEnabled() else "off"
    return f"TensorFlow {tf.__version__}, Keras {keras.__version__}, KerasHub {keras_hub.__version__}, oneDNN {onednn}."


MARK = "<!-- what `make conformance` found -->\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["make", "compare"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("case", nargs="*", help="only these")
    parser.add_argument("--all", action="store_true", help="not the first group only")
    parser.add_argument("--table", type=pathlib.Path, help="a page, to write its table of all cases")
    arguments = parser.parse_args()
    groups = list(GROUPS.values())
    cases = dict(item for g in groups for item in g.items())
    assert len(cases) == sum(map(len, groups)), "two cases of one name"
    names = arguments.case or (cases if arguments.all else groups[0])
    rows = []
    for name in names:
        what, build = cases[name]
        folder = arguments.folder / name
        if arguments.what == "compare":
            rows.append(compare(folder, name, what))
            continue
        folder.mkdir(parents=True)
        start = time.monotonic()
        try:
            result = make(folder, build)
        except Exception:  # noqa: BLE001 - the other cases continue
            result = {"failed": traceback.format_exc()}
            (folder / "arguments.json").unlink(missing_ok=True)
        (folder / "keras.json").write_text(json.dumps(result, indent=1))
        print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    if arguments.what == "compare":
        print(json.dumps(rows))
    if arguments.table:
        before, _, after = arguments.table.read_text().split(MARK)
        arguments.table.write_text(MARK.join([before, table(rows), after]))


if __name__ == "__main__":
    main()
