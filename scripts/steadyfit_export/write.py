"""The export of a model: choose a program, trace it, write the SavedModel and its metadata."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from .checks import verify
from .graphs import lookup_tables
from .names import (
    DRIVING_METHODS,
    FORMAT,
    METADATA,
    VERSION,
    Refusal,
    Report,
    Spec,
    UsageError,
    kept_values,
    load_tensorflow,
    own_methods,
    progress,
)
from .options import Options
from .own import OwnStepProgram
from .step import KerasProgram


def _make_reproducible(path: str) -> None:
    """Write saved_model.pb in one canonical form, and remove random parts.

    Protobuf maps are written in hash order, and fingerprint.pb holds a random id (and a
    checksum of the bytes rewritten here). Loaders do without it.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    file = pathlib.Path(path, "saved_model.pb")
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    file.write_bytes(saved.SerializeToString(deterministic=True))
    pathlib.Path(path, "fingerprint.pb").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        pathlib.Path(path, "assets").rmdir()  # vocabularies in files are assets


@contextlib.contextmanager
def _atomic_directory(out: str, force: bool) -> Iterator[str]:
    """A folder beside out that gets its name when the block ends without an error."""
    target = pathlib.Path(out).absolute()
    if target.exists() or target.is_symlink():
        if not force:
            raise Refusal("the output exists", found=out, do="pass --force")
        # --force replaces an earlier export; it must not empty a home folder.
        if target.is_symlink() or (any(target.iterdir()) and not (target / "saved_model.pb").exists()):
            raise Refusal("the output holds something else than an export", found=out, do="choose another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, earlier = (target.with_name(f".{target.name}.{uuid.uuid4().hex}") for _ in range(2))
    temporary.mkdir()  # mkdtemp would ignore the umask
    try:
        yield str(temporary)
        if target.exists():
            target.rename(earlier)
        temporary.rename(target)
    finally:
        if earlier.exists() and not target.exists():
            earlier.rename(target)  # the last rename failed
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)


def export(
    model: Any,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    check: bool = True,
    **arguments: Any,
) -> Report:
    """Write a trainable SavedModel and check that it trains.

    Args:
        model: a Keras 3 model.
        out: folder to write; written under a temporary name and renamed.
        force: replaces an earlier export.
        check: loads the result into a fresh session and trains a step (see checks).
        arguments: the fields of Options.

    Raises:
        Refusal: the model would not train correctly.
        UsageError: the arguments do not fit together.
    """
    out, options = os.fspath(out), Options(**arguments)
    tf, keras = load_tensorflow()
    if not isinstance(model, keras.Model):
        raise UsageError(f"cannot export a {type(model).__name__}: expected a model of Keras 3")
    given = keras.tree.flatten([options.metrics, options.weighted_metrics, model.metrics])
    metrics = [v for m in given if isinstance(m, keras.metrics.Metric) for v in m.variables]
    with _atomic_directory(out, force) as temporary, kept_values(metrics):
        progress.info("checking the model")
        program = _program(model, options)
        progress.info("tracing the signatures")
        signatures = program.signatures(options.xla_batch, options.xla_steps)
        if "predict" in signatures:
            signatures.setdefault("serving_default", signatures["predict"])
        root = program.tracked()
        root.tables = lookup_tables(model, signatures)
        ranges = program.by_key("range", options.input_ranges, {**program.inputs, **program.labels})
        metadata = _metadata(program, signatures, options, ranges)
        progress.info("saving")
        saving = tf.saved_model.SaveOptions(save_debug_info=False, experimental_custom_gradients=False)
        with contextlib.ExitStack() as names:
            for v in root.variables:  # a graph cannot have the names of some metrics
                names.callback(setattr, v, "_handle_name", v._handle_name)
                v._handle_name = re.sub(r"^[^A-Za-z0-9.]|(?!:0$)[^A-Za-z0-9_.\\/>-]", ".", v._handle_name)
            tf.saved_model.save(root, temporary, signatures=signatures, options=saving)
        _make_reproducible(temporary)
        graph = pathlib.Path(temporary, "saved_model.pb").read_bytes()
        metadata["saved_model_sha256"] = hashlib.sha256(graph).hexdigest()
        # A function that has run is saved under another name.
        progress.info("comparing a batch with its parts")
        program.compare_parts(signatures, ranges)
        metadata.update(program.exactness())
        if "gradients" in signatures and program.inexact:
            program.notes.append(f"micro_batches_exact is false: {program.inexact}; batches are split only on request")
        file = pathlib.Path(temporary, METADATA)
        file.parent.mkdir()
        file.write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        checks = verify(temporary, metadata, program) if check else []
        size = sum(f.stat().st_size for f in pathlib.Path(temporary).rglob("*") if f.is_file())
        described = _describe(signatures)
    return Report(out, size, described, metadata, checks, program.notes)


def _program(model: Any, options: Options) -> KerasProgram:
    """The program of a model."""
    if options.class_names is not None and len(getattr(model, "outputs", None) or []) > 1:
        raise UsageError("class_names needs a model with one output")
    compiled = getattr(model, "compiled", False)
    if compiled and options.optimizer is None:
        options = dataclasses.replace(options, optimizer=model.optimizer)
    driving = own_methods(model, DRIVING_METHODS)
    if driving:
        raise Refusal(
            "the model drives its training itself",
            found=f"{type(model).__name__} has its own {', '.join(driving)}",
            do="override train_step in its place",
        )
    own = [name for name in own_methods(model) if name != "predict_step"]
    if own or (compiled and options.loss is None and model.loss is None):
        made = (options.loss, options.loss_weights, options.metrics, options.weighted_metrics)
        if not compiled or any(made) or options.optimizer is not model.optimizer:
            raise UsageError(
                f"{type(model).__name__} has its own {', '.join(own) or 'losses'}: compile it with the "
                "optimizer, loss and metrics that it should have"
            )
        made_here = (options.lora, options.quantize, options.train_only, options.remat)
        scaled = options.loss_scale_input or options.from_logits or options.allow_unused
        if scaled or any(v is not None for v in made_here):
            raise UsageError(
                "loss_scale_input, from_logits, allow_unused, remat, lora, quantize and train_only do not "
                "apply to a model with its own train step"
            )
        return OwnStepProgram(model, options)
    if options.loss_output is not None:
        raise UsageError("loss_output is for a model with its own train_step")
    return KerasProgram(model, _as_compiled(model, options) if compiled else options)


def _as_compiled(model: Any, options: Options) -> Options:
    """The options, with the loss and metrics of compile where none are given."""
    made = model._compile_metrics
    compiled = {
        "loss": model.loss,
        "loss_weights": getattr(model._compile_loss, "_user_loss_weights", None),
        "metrics": made._user_metrics if made is not None else None,
        "weighted_metrics": made._user_weighted_metrics if made is not None else None,
    }
    missing = {name: v for name, v in compiled.items() if getattr(options, name) is None}
    return dataclasses.replace(options, **missing)


def _metadata(
    program: KerasProgram,
    signatures: Mapping[str, Any],
    options: Options,
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """The metadata of an export, except for what comparing a batch with its parts shows."""
    tf, keras = load_tensorflow()
    metadata = {
        "format": FORMAT,
        "exporter": VERSION,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        **program.metadata(),
    }
    if "predict" in signatures:
        outputs = signatures["predict"].structured_outputs.items()
        shapes = {n: [-1 if d is None else d for d in tensor.shape] for n, tensor in outputs}
        metadata["outputs"] = {
            program.names.name(n): {"dtype": tensor.dtype.name, "shape": shapes[n]} for n, tensor in outputs
        }
    for name, (low, high) in ranges.items():
        described = metadata["inputs" if name in program.inputs else "labels"]
        described[program.names.name(name)]["range"] = [low, high]
    if program.names.changed():
        metadata["names"] = program.names.changed()
    if options.class_names is not None:
        metadata["class_names"] = list(options.class_names)
    if options.sample_weight:
        metadata["sample_weight"] = True
    if options.xla_batch is not None:
        metadata["compiled"] = {"train_xla": {"batch": options.xla_batch}}
        if options.xla_steps is not None:
            metadata["compiled"]["train_n_xla"] = {"steps": options.xla_steps, "batch": options.xla_batch}
    return metadata


def _describe(signatures: Mapping[str, Any]) -> dict[str, dict[str, dict[str, str]]]:
    """The inputs and outputs of the signatures, as text."""

    def text(spec: Any) -> str:
        return str(Spec(spec.dtype.name, tuple(spec.shape)))

    return {
        name: {
            "inputs": {k: text(v) for k, v in function.structured_input_signature[1].items()},
            "outputs": {k: text(v) for k, v in function.structured_outputs.items()},
        }
        for name, function in signatures.items()
    }
