#!/usr/bin/env python3
"""Time train steps of two processes that train one model: steadyfit and TensorFlow.

    make build runtime venv
    .runtime/venv/bin/python scripts/bench_ranks.py --rounds 5 --json ranks.json
    .runtime/venv/bin/python scripts/bench_ranks.py --collectives

Every variant trains the same model from the same weights on the same batches, with Adam:

================ ===============================================================================
steadyfit        fit in one process, with the signature train
steadyfit-ranks  launch with N ranks of fit, each with its part of a batch
tf               a custom training loop of TensorFlow's guide, with layers and Adam of Keras
tf-mwms          the same loop in N processes under MultiWorkerMirroredStrategy, with RING
================ ===============================================================================

A round runs each variant once in new processes, in an order that changes. The time of a step is by
the clock of the first process, over all epochs after the first one. It is an error if the mean loss
of a variant in the first epoch differs from that of steadyfit by more than 0.1%. The
table has medians over the rounds, with the least and the greatest value, in milliseconds. The
command has no option for micro-batches, so one process in N micro-batches is not measured.

--collectives measures TensorFlow's ring all-reduce alone, and computes from it the time of an
exchange for larger clusters.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT = 600

# Input shape, samples of a batch, steps of an epoch.
MODELS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "digits": ((64,), 64, 100),
    "lstm": ((20, 16), 64, 100),
    "attention": ((32, 64), 32, 100),
    "image-224": ((224, 224, 3), 16, 15),
}
EXPORTED = ("attention",)  # not built in
VARIANTS = ("steadyfit", "steadyfit-ranks", "tf", "tf-mwms")
SIZES = (1, 1 << 22)  # float32 values in an all-reduce
RANKS = (8, 64, 512)


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


def free_ports(n: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


@contextlib.contextmanager
def strategy(threads: int) -> Iterator[tuple[Any, int, int]]:
    """The strategy of TF_CONFIG (None without TF_CONFIG), the rank and the number of ranks."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    if "TF_CONFIG" not in os.environ:
        yield None, 0, 1
        return
    config = json.loads(os.environ["TF_CONFIG"])
    communication = tf.distribute.experimental
    mwms = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=communication.CommunicationOptions(
            implementation=communication.CollectiveCommunication.RING
        )
    )
    with mwms.scope():
        yield mwms, config["task"]["index"], len(config["cluster"]["worker"])


def train(name: str, folder: pathlib.Path, epochs: int, threads: int) -> dict[str, Any]:
    """The custom training loop: the times of a step by epoch, and the loss of the first epoch."""
    with strategy(threads) as (mwms, rank, ranks):
        import tensorflow as tf

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
            adam.apply_gradients(
                zip(tape.gradient(loss, [w.value for w in weights]), weights, strict=True)
            )
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
        for _ in range(1 + epochs):
            began, total = time.monotonic(), 0.0
            for _ in range(steps):
                total += train_step(batches)
            losses.append(float(total[0]) / steps)
            times.append((time.monotonic() - began) / steps)
    count = int(sum(np.prod(w.shape) for w in weights))
    return {"times": times[1:], "loss": losses[0], "weights": count}


def run(commands: list[list[str]], environments: list[dict[str, str]]) -> str:
    """Run processes at the same time; returns the output of the first one."""
    with tempfile.TemporaryDirectory() as temp, contextlib.ExitStack() as stack:
        logs = [
            stack.enter_context(open(pathlib.Path(temp, str(i)), "w+"))
            for i in range(len(commands))
        ]
        started = []
        try:
            for command, environment, log in zip(commands, environments, logs, strict=True):
                started.append(
                    subprocess.Popen(
                        command,
                        env=environment,
                        cwd=ROOT,
                        text=True,
                        stderr=log,
                        stdout=subprocess.DEVNULL if started else subprocess.PIPE,
                    )
                )
            out, _ = started[0].communicate(timeout=TIMEOUT)
            codes = [p.wait(timeout=TIMEOUT) for p in started]
        finally:
            for p in started:
                p.kill()
                p.wait()
        for code, log in zip(codes, logs, strict=True):
            if code != 0:
                log.seek(0)
                raise SystemExit(f"{' '.join(commands[0])}: exit code {code}\n{log.read()[-4000:]}")
        return out


def workers(ranks: int, arguments: list[str]) -> dict[str, Any]:
    """Run this script as one process, or as the workers of a strategy."""
    command = [sys.executable, __file__, *arguments]
    base = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    base.pop("TF_CONFIG", None)
    if ranks == 1:
        out = run([command], [base])
    else:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(ranks)]}
        configs = [
            {"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(ranks)
        ]
        out = run(
            [command] * ranks, [{**base, "TF_CONFIG": json.dumps(config)} for config in configs]
        )
    return json.loads(out.splitlines()[-1])


def fit(flags: dict[str, Any]) -> list[str]:
    """The arguments of steadyfit for a training."""
    return ["fit", *(f"--{flag}={value}" for flag, value in flags.items())]


def steadyfit(
    args: argparse.Namespace, name: str, folder: pathlib.Path, ranks: int
) -> dict[str, Any]:
    history = folder / "history.jsonl"
    history.unlink(missing_ok=True)
    launch = ["launch", f"--workers={ranks}", "--"] if ranks > 1 else []
    flags = {
        "model": folder / name if name in EXPORTED else f"builtin:{name}",
        "data": folder / "data.npz",
        "batch": MODELS[name][1],
        "epochs": 1 + args.epochs,
        "seed": 1,
        "shuffle": "false",
        "auto": "off",
        "intra-threads": args.threads,
        "history": history,
    }
    command = [str(args.steadyfit), *launch, *fit(flags)]
    run([command], [{k: v for k, v in os.environ.items() if k != "TF_CONFIG"}])
    records = [json.loads(line) for line in history.read_text().splitlines()]
    return {
        "times": [1 / r["steps_per_second"] for r in records[1:]],
        "loss": records[0]["loss"],
    }


def measure(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Add the times of the steps of each variant to the result: one value for each round."""
    names = args.models.split(",")
    models = {
        name: {
            "batch": MODELS[name][1],
            "steps": MODELS[name][2],
            "loss": {},
            "ms": {v: [] for v in VARIANTS},
        }
        for name in names
    }
    result["models"] = models
    with tempfile.TemporaryDirectory() as temp:
        for name in names:
            prepare(name, pathlib.Path(temp, name))
        for i in range(args.rounds):
            first = i % len(VARIANTS)
            for name, m in models.items():
                for v in VARIANTS[first:] + VARIANTS[:first]:
                    found = variant(args, v, name, pathlib.Path(temp, name))
                    m["ms"][v].append(1000 * statistics.median(found["times"]))
                    m["loss"][v] = found["loss"]
                    m["weights"] = found.get("weights") or m.get("weights")
                if any(
                    abs(loss / m["loss"]["steadyfit"] - 1) > 1e-3
                    for v, loss in m["loss"].items()
                ):
                    raise SystemExit(f"{name}: the variants differ in their losses: {m['loss']}")
            print(f"round {i + 1} of {args.rounds}", file=sys.stderr, flush=True)
            save(args, result)


def variant(args: argparse.Namespace, v: str, name: str, folder: pathlib.Path) -> dict[str, Any]:
    ranks = 1 if v in ("steadyfit", "tf") else args.ranks
    if v.startswith("steadyfit"):
        return steadyfit(args, name, folder, ranks)
    hidden = ["--worker", name, f"--folder={folder}", f"--epochs={args.epochs}"]
    return workers(ranks, [*hidden, f"--threads={args.threads}"])


def save(args: argparse.Namespace, result: dict[str, Any]) -> None:
    result["load_after"] = os.getloadavg()
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} \\[{min(values):.3g}, {max(values):.3g}\\]"


def table(models: dict[str, Any]) -> str:
    lines = [
        "| model | weights | batch | " + " | ".join(VARIANTS) + " | tf-mwms / steadyfit-ranks |",
        "|---" * (4 + len(VARIANTS)) + "|",
    ]
    for name, m in models.items():
        ratios = [
            a / b for a, b in zip(m["ms"]["tf-mwms"], m["ms"]["steadyfit-ranks"], strict=True)
        ]
        cells = [*(cell(m["ms"][v]) for v in VARIANTS), cell(ratios)]
        lines.append(f"| `{name}` | {m['weights']:,} | {m['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "avx512": "avx512f" in info,
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "load": os.getloadavg(),
    }


def reduce_times() -> list[dict[str, Any]]:
    """The time of a ring all-reduce of float32 values, by their number."""
    with strategy(0) as (_, _, ranks):
        import tensorflow as tf

        chain = 8
        found = []
        for at, size in enumerate(SIZES):

            @tf.function
            def reduce(x: Any, at: int = at) -> Any:
                for i in range(chain):
                    x = tf.raw_ops.CollectiveReduceV2(
                        input=x / ranks,
                        group_size=ranks,
                        group_key=1000,
                        instance_key=1000 + at * chain + i,
                        ordering_token=[],
                        merge_op="Add",
                        final_op="Id",
                        communication_hint="ring",
                    )
                return x[0]

            x = tf.ones([size])
            times = []
            for _ in range(3 + (40 if size < 1 << 18 else 8)):
                began = time.monotonic()
                float(reduce(x))
                times.append((time.monotonic() - began) / chain)
            found.append({"bytes": 4 * size, "ms": 1000 * statistics.median(times[3:])})
    return found


def exchange(weights: float, ranks: int, message: float, rate: float) -> float:
    """Seconds of a ring all-reduce: 2 (N - 1) messages, each of a part of the weights."""
    return 2 * (ranks - 1) * (message + 4 * weights / ranks / rate)


def collectives(rounds: int) -> dict[str, Any]:
    """Measure messages and bytes with 2 and 3 ranks, and print the times of larger clusters."""
    costs = []
    print("| ranks | message, ms | MB/s |\n|---|---|---|")
    for ranks in (2, 3):
        messages, rates = [], []
        for _ in range(rounds):
            times = workers(ranks, ["--worker", "collectives"])["times"]
            small, large = times[0], times[-1]
            messages.append(small["ms"] / (2 * (ranks - 1)))
            moved = 2 * (ranks - 1) / ranks * large["bytes"]
            rates.append(moved / (large["ms"] - small["ms"]) / 1000)
        costs.append({"ranks": ranks, "message_ms": messages, "mb_per_second": rates})
        print(f"| {ranks} | {cell(messages)} | {cell(rates)} |", flush=True)
    message = statistics.median(costs[0]["message_ms"]) / 1000
    own = statistics.median(costs[0]["mb_per_second"]) * 1e6
    print("\n| weights | bytes | " + " | ".join(f"{n} ranks, ms" for n in RANKS) + " |")
    print("|---" * (2 + len(RANKS)) + "|")
    for weights in (1e6, 25e6, 100e6):
        for text, rate in (("10 Gbit/s", 1.25e9), ("100 Gbit/s", 12.5e9), ("as measured", own)):
            cells = [f"{1000 * exchange(weights, n, message, rate):,.0f}" for n in RANKS]
            print(f"| {weights / 1e6:.0f} million | {text} | " + " | ".join(cells) + " |")
    return {"costs": costs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="epochs after the first one")
    parser.add_argument("--threads", type=int, default=0, help="of an operation; 0: all cores")
    parser.add_argument("--collectives", action="store_true")
    parser.add_argument("--steadyfit", type=pathlib.Path, default=ROOT / "bin/steadyfit")
    parser.add_argument("--json", type=pathlib.Path, help="file for all values")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker == "collectives":
        print(json.dumps({"times": reduce_times()}))
        return
    if args.worker:
        print(json.dumps(train(args.worker, args.folder, args.epochs, args.threads)))
        return
    result: dict[str, Any] = {"machine": machine(), "ranks": args.ranks, "threads": args.threads}
    if args.collectives:
        result |= collectives(args.rounds)
    else:
        measure(args, result)
        print(table(result["models"]))
    save(args, result)


if __name__ == "__main__":
    main()
