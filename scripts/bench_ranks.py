#!/usr/bin/env python3
"""Time train steps of two processes that train one model: steadyfit and TensorFlow.

    make build runtime venv
    .runtime/venv/bin/python scripts/bench_ranks.py --rounds 5

Every variant trains the same model from the same weights on the same batches, with Adam:

================ ===============================================================================
steadyfit        fit in one process, with the signature train
steadyfit-ranks  launch with two ranks of fit, each with half of a batch
tf               a custom training loop of TensorFlow's guide, with layers and Adam of Keras
tf-mwms          the same loop in two processes under MultiWorkerMirroredStrategy, with RING
================ ===============================================================================

A round runs each variant once in new processes, in an order that changes. The time of a step is by
the clock of the first process, over all epochs after the first one. It is an error if the mean loss
of a variant in the first epoch differs from that of steadyfit by more than 0.1%. The
table has medians over the rounds, with the least and the greatest value, in milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT = 600
RANKS = 2
EPOCHS = 4  # after the first one

# Input shape, samples of a batch, steps of an epoch.
MODELS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "digits": ((64,), 64, 100),
    "lstm": ((20, 16), 64, 100),
    "attention": ((32, 64), 32, 100),
    "image-224": ((224, 224, 3), 16, 15),
}
EXPORTED = ("attention",)  # not built in
VARIANTS = ("steadyfit", "steadyfit-ranks", "tf", "tf-mwms")


def make_model(name: str) -> tuple[Any, Any]:
    """The Keras model and its optimizer, with the weights of the exported one."""
    import keras

    import bench_models
    import builtin

    # make_model of bench_models clears Keras's state, and thereby the scope of a strategy.
    if name == "digits":
        keras.utils.set_random_seed(builtin.SEED)
        return builtin.make_digits(), keras.optimizers.Adam(2e-3)
    keras.utils.set_random_seed(bench_models.SEED)
    return bench_models.MODELS[name]()[0], keras.optimizers.Adam(1e-3)


def prepare(name: str, folder: pathlib.Path) -> None:
    """Write the model, if it is not built in, and the batches of an epoch."""
    folder.mkdir()
    if name in EXPORTED:
        import bench_models

        bench_models.export_model(name, folder / name, check=False)
    shape, batch, steps = MODELS[name]
    rng = np.random.default_rng(1)
    x = rng.random((batch * steps, *shape), dtype=np.float32)
    flat = x.reshape(len(x), -1) - 0.5
    y = (flat @ rng.standard_normal((flat.shape[1], 10), dtype=np.float32)).argmax(axis=1)
    np.savez(folder / "data.npz", x=x * 16 if name == "digits" else x, y=y.astype(np.int64))


def train(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """The custom training loop, under a strategy if TF_CONFIG is set: the times of a step by
    epoch, and the loss of the first epoch."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    mwms, rank, ranks = None, 0, 1
    if "TF_CONFIG" in os.environ:
        ring = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CollectiveCommunication.RING
        )
        mwms = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
        rank, ranks = json.loads(os.environ["TF_CONFIG"])["task"]["index"], RANKS
    with mwms.scope() if mwms else contextlib.nullcontext():
        model, adam = make_model(name)
        weights = model.trainable_variables
        adam.build(weights)
        _, batch, steps = MODELS[name]
        data = np.load(folder / "data.npz")
        part = batch // ranks

        def own(values: Any) -> Any:
            parts = values.reshape(steps, batch, *values.shape[1:])
            return parts[:, rank * part : (rank + 1) * part].reshape(-1, *values.shape[1:])

        def dataset(_: Any) -> Any:
            slices = tf.data.Dataset.from_tensor_slices((own(data["x"]), own(data["y"])))
            return slices.batch(part, drop_remainder=True).repeat().prefetch(tf.data.AUTOTUNE)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                out = model(x, training=True)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, out)
                loss = tf.nn.compute_average_loss(each, global_batch_size=batch)
            gradients = tape.gradient(loss, [w.value for w in weights])
            adam.apply_gradients(zip(gradients, weights, strict=True))
            right = tf.cast(tf.argmax(out, axis=1) == y, tf.float32)
            return tf.stack([loss, tf.reduce_sum(right) / batch])

        if mwms:
            batches = iter(mwms.distribute_datasets_from_function(dataset))
        else:
            batches = iter(dataset(None))

        @tf.function
        def train_step(iterator: Any) -> Any:
            if not mwms:
                return step(*next(iterator))
            results = mwms.run(step, args=next(iterator))
            return mwms.reduce(tf.distribute.ReduceOp.SUM, results, axis=None)

        times, losses = [], []
        for _ in range(1 + EPOCHS):
            began, total = time.monotonic(), 0.0
            for _ in range(steps):
                total += train_step(batches)
            losses.append(float(total[0]) / steps)
            times.append((time.monotonic() - began) / steps)
    count = int(sum(np.prod(w.shape) for w in weights))
    return {"times": times[1:], "loss": losses[0], "weights": count}


def run(command: list[str], configs: list[str | None]) -> str:
    """Run a command at the same time with each TF_CONFIG; returns the output of the first process."""
    started: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        for config in configs:
            env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "TF_CONFIG": config or ""}
            if config is None:
                del env["TF_CONFIG"]
            out = subprocess.DEVNULL if started else subprocess.PIPE
            p = subprocess.Popen(command, env=env, cwd=ROOT, text=True, stdout=out)
            stack.callback(p.wait)
            stack.callback(p.kill)
            started.append(p)
        text, _ = started[0].communicate(timeout=TIMEOUT)
        if any(p.wait(timeout=TIMEOUT) for p in started):
            raise SystemExit(f"failed: {' '.join(command)}")
    return text


def tensorflow(name: str, folder: pathlib.Path, ranks: int) -> dict[str, Any]:
    """Run train in one process, or in the workers of a strategy."""
    configs: list[str | None] = [None]
    if ranks > 1:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(ranks)]
            for s in sockets:
                s.bind(("127.0.0.1", 0))
            cluster = {"worker": [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]}
        configs = [
            json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
            for i in range(ranks)
        ]
    out = run([sys.executable, __file__, "--worker", name, f"--folder={folder}"], configs)
    return json.loads(out.splitlines()[-1])


def steadyfit(name: str, folder: pathlib.Path, ranks: int) -> dict[str, Any]:
    """Run fit in one process, or in the ranks of launch."""
    history = folder / "history.jsonl"
    history.unlink(missing_ok=True)
    model = folder / name if name in EXPORTED else f"builtin:{name}"
    command = [str(ROOT / "bin/steadyfit")]
    command += ["launch", f"--workers={ranks}", "--"] if ranks > 1 else []
    command += ["fit", f"--model={model}", f"--data={folder / 'data.npz'}", "--shuffle=false"]
    command += [f"--batch={MODELS[name][1]}", f"--epochs={1 + EPOCHS}", "--seed=1", "--auto=off"]
    run([*command, f"--history={history}"], [None])
    records = [json.loads(line) for line in history.read_text().splitlines()]
    times = [1 / r["steps_per_second"] for r in records[1:]]
    return {"times": times, "loss": records[0]["loss"]}


def measure(names: list[str], rounds: int, temp: pathlib.Path) -> dict[str, dict[str, Any]]:
    """The times of a step of each variant: one value for each round."""
    models: dict[str, dict[str, Any]] = {}
    for name in names:
        prepare(name, temp / name)
        models[name] = {"loss": {}, "ms": {v: [] for v in VARIANTS}}
    for i in range(rounds):
        first = i % len(VARIANTS)
        for name, m in models.items():
            for v in VARIANTS[first:] + VARIANTS[:first]:
                program = steadyfit if v.startswith("steadyfit") else tensorflow
                found = program(name, temp / name, RANKS if "-" in v else 1)
                m["ms"][v].append(1000 * statistics.median(found["times"]))
                m["loss"][v] = found["loss"]
                m["weights"] = found.get("weights") or m.get("weights")
            expected = m["loss"]["steadyfit"]
            if any(abs(loss / expected - 1) > 1e-3 for loss in m["loss"].values()):
                raise SystemExit(f"{name}: the variants differ in their losses: {m['loss']}")
        print(f"round {i + 1} of {rounds}", file=sys.stderr, flush=True)
    return models


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} \\[{min(values):.3g}, {max(values):.3g}\\]"


def table(models: dict[str, dict[str, Any]]) -> str:
    """The table of docs/how-to/several-machines.md."""
    head = "| model | weights | batch | `fit` | `launch`, 2 ranks | TensorFlow | "
    head += "MultiWorkerMirroredStrategy, 2 workers | to 2 ranks |"
    lines = [head, "|---" * 8 + "|"]
    for name, m in models.items():
        pairs = zip(m["ms"]["tf-mwms"], m["ms"]["steadyfit-ranks"], strict=True)
        cells = [*(cell(m["ms"][v]) for v in VARIANTS), cell([a / b for a, b in pairs])]
        lines.append(f"| `{name}` | {m['weights']:,} | {MODELS[name][1]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(train(args.worker, args.folder)))
        return
    with tempfile.TemporaryDirectory() as temp:
        print(table(measure(args.models.split(","), args.rounds, pathlib.Path(temp))))


if __name__ == "__main__":
    main()
