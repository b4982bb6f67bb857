"""The checks of a SavedModel that was written: it trains, and it resumes from its own checkpoint."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from .names import Refusal, literal, load_tensorflow, progress


def verify(path: str, metadata: Mapping[str, Any], program: Any) -> list[str]:
    """Load an export as a C program would, and check that it trains and resumes.

    Runs in a new session with its own graph, and uses only the SavedModel's restore op,
    signatures and saver. The files do not change. Returns one line per check that passed. The program is that of the
    export: it knows shapes that the model takes, and whether its loss may be NaN.

    Raises:
        Refusal: naming the first check that failed.
    """
    tf, _ = load_tensorflow()
    v1 = tf.compat.v1
    tf.get_logger().setLevel("ERROR")  # the loader that C programs use is deprecated in Python
    progress.info("loading what was saved")
    graph = tf.Graph()
    # Each signature runs once or twice; rewriting its graph would take longer than that.
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with graph.as_default(), v1.Session(graph=graph, config=config) as session:
        with literal(path) as files:
            meta = v1.saved_model.load(session, ["serve"], files)
        with tempfile.TemporaryDirectory() as temporary, literal(temporary) as folder:
            return _Check(metadata, session, meta, folder, program).run()


class _Check:
    """A loaded SavedModel, with a folder for its checkpoints."""

    def __init__(self, metadata: Mapping[str, Any], session: Any, meta: Any, folder: str, program: Any) -> None:
        tf, _ = load_tensorflow()
        self.program, self.shapes, self.partial = program, program.shapes(), program.partial
        self.metadata, self.session, self.saver, self.folder = metadata, session, meta.saver_def, folder
        self.signatures = {n: s for n, s in meta.signature_def.items() if not n.startswith("__")}
        # Saving a module that holds Keras objects leaves handles that no signature reaches.
        outputs = [info.name.split(":")[0] for s in self.signatures.values() for info in s.outputs.values()]
        definition = session.graph.as_graph_def()
        reached = {n.name for n in tf.compat.v1.graph_util.extract_sub_graph(definition, outputs).node}
        self.reads = {
            op.get_attr("shared_name").decode() or op.name: tf.raw_ops.ReadVariableOp(
                resource=op.outputs[0], dtype=tf.as_dtype(op.get_attr("dtype"))
            )
            for op in session.graph.get_operations()
            if op.type == "VarHandleOp"
            and op.name in reached
            and op.get_attr("dtype") != tf.string  # a path of an asset
        }
        self.random = np.random.default_rng(0)
        self.done = [f"{len(self.reads)} variables restored on load"]

    def run(self) -> list[str]:
        """Make all checks; returns a line for each."""
        start = self._save("start")
        if self.partial:  # the loss may be NaN, but not the predictions
            predicted = self._run("predict", self._feeds("predict", 16)).values()
            self.partial = all(np.isfinite(v).all() for v in predicted)
        middle = self._check_step()
        if "gradients" in self.signatures:
            self._check_parts(middle)
        passed = {"train", "gradients", "apply", "serving_default", "set_learning_rate"}
        for name in sorted(set(self.signatures) - passed):
            progress.info("checking %s", name)
            self._restore(start)
            self._run(name, self._feeds(name, 2, 2 if name.startswith("train_n") else None))
            self.done.append(f"{name} runs")
        return self.done

    def _check_step(self) -> str:
        """A train step on random data changes variables, and can be repeated from a checkpoint.

        Returns the checkpoint before that step.
        """
        progress.info("checking train and a resume")
        self._run("train", self._feeds("train", 3))
        middle, feeds = self._save("middle"), self._feeds("train", 2)
        before = self.session.run(self.reads)
        second = self._run("train", feeds)
        end = self.session.run(self.reads)
        changed = sum(not np.array_equal(before[n], end[n]) for n in self.reads)
        if not changed and second.get("grads_finite", True):
            raise Refusal(
                "a train step changes nothing",
                found=f"{len(self.reads)} variables with equal values before and after",
                do="check that the loss depends on the weights, and the learning rate",
            )
        loss = float(second["loss"])
        if not math.isfinite(loss):
            self.program.notes.append("the loss takes other predictions only: the check compares no values")
        self.done.append(f"train: loss {loss:.4g}, {changed} variables change")
        self._restore(middle)
        again = self._run("train", feeds)
        repeated = self.session.run(self.reads)
        for name in self.reads:
            if not _close(end[name], repeated[name]):
                raise Refusal(
                    "training does not resume from its own checkpoint",
                    found=f"{name} differs; loss {second['loss']} against {again['loss']}",
                    do="keep all state in tf.Variables that the saved module owns",
                )
        self.done.append("a step repeats after save and restore")
        return middle

    def _check_parts(self, start: str) -> None:
        """gradients and apply run, and equal the train step if the metadata says that they are exact."""
        progress.info("checking gradients and apply")
        inputs, feeds = self.signatures["gradients"].inputs, self._feeds("gradients", 2)
        self._restore(start)
        self._run("gradients", feeds)
        self._run("apply", {})
        if not self.metadata["micro_batches_exact"]:
            self.done.append("gradients and apply run")
            return
        split = self.session.run(self.reads)
        self._restore(start)
        whole_inputs = self.signatures["train"].inputs
        self._run("train", {i.name: feeds[inputs[key].name] for key, i in whole_inputs.items()})
        whole = self.session.run(self.reads)
        for name in self.reads:
            if not _close(split[name], whole[name], 1e-3):
                raise Refusal(
                    "gradients and apply give another step than train",
                    found=f"{name} differs",
                    do="export with --no-micro-batches",
                )
        self.done.append("gradients + apply equal train")

    def _save(self, tag: str) -> str:
        prefix = os.path.join(self.folder, tag)
        self.session.run(self.saver.save_tensor_name, {self.saver.filename_tensor_name: prefix})
        return prefix

    def _restore(self, prefix: str) -> None:
        self.session.run(self.saver.restore_op_name, {self.saver.filename_tensor_name: prefix})

    def _feeds(self, name: str, batch: int, steps: int | None = None) -> dict[str, Any]:
        """Random values for the inputs of a signature."""
        tf, _ = load_tensorflow()
        feeds = {}
        for key, info in self.signatures[name].inputs.items():
            dims = [d.size for d in info.tensor_shape.dim]
            name = self.metadata.get("names", {}).get(key, key)
            known = {**self.metadata["inputs"], **self.metadata["labels"]}.get(name, {}).get("range")
            usual = [d for d in (steps, batch, *self.shapes.get(key, ())) if d]
            sizes = [d if d > 0 else usual[i] for i, d in enumerate(dims)]
            dtype = tf.as_dtype(info.dtype)
            feeds[info.name] = random_values(self.random, key, dtype, sizes, known)
        return feeds

    def _run(self, name: str, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run a signature; its loss must be finite, or may be NaN if its function takes only some predictions."""
        # Sorted, so that fetches always have the same order in the executor.
        outputs = {k: v.name for k, v in sorted(self.signatures[name].outputs.items())}
        try:
            result = self.session.run(outputs, feeds)
        except Exception as error:
            advice = self.program.advice()
            lines = [line.strip() for line in str(error).partition("Original stack trace")[0].splitlines()]
            found = [line for line in lines if line and not line.startswith("[[")] or [""]
            if name.endswith("_xla"):
                advice = "leave out --xla-batch and --xla-steps: XLA cannot compile this step"
            raise Refusal(
                f"signature {name!r} fails on random data",
                found=f"{type(error).__name__}: {found[-1][:600]}",
                do=advice,
            ) from error
        if "loss" in result and not math.isfinite(float(result["loss"])) and not self.partial:
            raise Refusal(
                f"signature {name!r} returns a loss that is not a number",
                found=str(result["loss"]),
                do="check the loss for log(0) or division by 0; set the values that it takes with --range NAME=LOW:HIGH, "
                "for labels too, or export with --no-check",
            )
        return result


def random_values(random: Any, key: str, dtype: Any, shape: list[int], known: Any) -> Any:
    """Random values: texts, weights and scales of one, class labels, inputs in their range."""
    if dtype == "string":
        return np.resize(np.array(["1", "2"], dtype=object), shape)  # a model may convert texts to numbers
    if key in ("sample_weight", "loss_scale"):
        return np.ones(shape, "float32")
    if known:
        low, high = known
        values = random.uniform(low, high, shape)
    elif dtype.is_floating and key.startswith("y") and shape and shape[-1] > 1:
        # One-hot labels are valid for crossentropies and for regressions.
        values = np.eye(shape[-1])[random.integers(0, shape[-1], shape[:-1])]
    elif dtype.is_floating and not key.startswith("y"):
        values = random.normal(size=shape)
    else:
        values = random.integers(0, 2, shape)
    return np.asarray(values).astype(dtype.as_numpy_dtype)


def _close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    """Whether values are equal, except for the last bits of multi-threaded sums."""
    a, b = np.asarray(a).astype("float64"), np.asarray(b).astype("float64")
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))
