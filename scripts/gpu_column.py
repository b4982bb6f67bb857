#!/usr/bin/env python3
"""Measure on a machine with a GPU and without a network.

On a machine with a network, pack everything that the measurement needs into parts small enough
for any transfer: the wheels of scripts/requirements-gpu.txt and the project's programs.

    scripts/gpu_column.py pack --dest out/gpu-parts --python 3.12

On the machine with the GPU, in a checkout of the project, bring the parts in, in any number
of calls. A part that arrived damaged is named and left out. When all parts are there, the call
installs them and measures: the tests that need a GPU, the matrix of GPU options, the accuracy
of lower precisions, and a training, in this order.

    scripts/gpu_column.py run --parts PARTS --work WORK --within 9m

If the time for a command is limited, repeat the same call; it continues after the last stage
that ended. WORK/results has at most 5 files of at most 16 MB. Exit codes: 0 all stages passed,
1 a stage failed, 2 wrong arguments, 3 parts are missing, 4 the time ran out.

Needs Python 3.10 or newer; pack needs Go and pip, run needs venv.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import runtime

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "scripts" / "requirements-gpu.txt"
INDEX = "parts.json"
PART_MB, RESULT_BYTES = 60, 16_000_000
PACKAGES = {"gpu": "internal/gpu", "session": "session", "command": "cmd/steadyfit"}
# The same plan as `make matrix-gpu`.
MATRIX = "--workloads W0,W3,S1d,S3,S3v --remedies memory-growth,memory-fraction,gpu-limit,cuda-async,unified-memory,bfc-gc,host-limit,fp16-gpu,mixed-bf16,mixed-fp16"


class Failure(Exception):
    """A failure with the exit code of the program."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


def say(text: str) -> None:
    print("gpu_column: " + text, file=sys.stderr, flush=True)


def pack(dest: Path, python: str, part_mb: int) -> None:
    """Writes the parts and their index."""
    stage = dest / "content"
    (stage / "wheels").mkdir(parents=True, exist_ok=True)
    # pip takes only wheels with these tags; each CUDA library has a different one.
    check(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        + ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
        + [f"--platform={p}" for p in runtime.platforms("x86_64", 39)]
        + ["--dest", str(stage / "wheels"), "-r", str(REQUIREMENTS)]
    )
    programs = stage / "programs"
    programs.mkdir(exist_ok=True)
    build = ["go", "build", "-ldflags=-s -w", "-o"]
    check([*build, str(programs / "steadyfit"), "./cmd/steadyfit"])
    check([*build, str(programs / "accuracy"), "./internal/lab/accuracy"])
    for name, package in PACKAGES.items():
        check(["go", "test", "-c", "-o", str(programs / f"{name}.test"), "./" + package])
    with zipfile.ZipFile(stage / "programs.zip", "w", zipfile.ZIP_DEFLATED) as z:
        for file in sorted(programs.iterdir()):
            z.write(file, file.name)
    whole = dest / "content.tar"
    with tarfile.open(whole, "w") as t:
        t.add(stage / "wheels", "wheels")
        t.add(stage / "programs.zip", "programs.zip")
    parts = split(whole, dest, part_mb * 1_000_000)
    whole.unlink()
    shutil.rmtree(stage)
    say(f"{len(parts)} parts of at most {part_mb} MB in {dest}")


def split(whole: Path, dest: Path, size: int) -> list[dict[str, Any]]:
    """Splits a file into parts with an index of their hashes."""
    parts = []
    with whole.open("rb") as f:
        while block := f.read(size):
            name = f"part-{len(parts):03}"
            (dest / name).write_bytes(block)
            parts.append({"name": name, "sha256": hashlib.sha256(block).hexdigest()})
    (dest / INDEX).write_text(json.dumps(parts, indent=1))
    return parts


def collect(source: Path, kept: Path) -> list[str]:
    """Copies the intact parts of source to kept, and returns the names of those still missing."""
    kept.mkdir(parents=True, exist_ok=True)
    if (source / INDEX).exists():
        shutil.copy(source / INDEX, kept / INDEX)
    if not (kept / INDEX).exists():
        raise Failure(3, f"{source / INDEX} is missing: it must come with the first parts")
    missing = []
    for part in json.loads((kept / INDEX).read_text()):
        name = part["name"]
        if (kept / name).exists():
            continue
        if not (source / name).exists():
            missing.append(name)
        elif hashlib.sha256((source / name).read_bytes()).hexdigest() != part["sha256"]:
            say(f"{source / name} is damaged: its hash differs from the index; bring it again")
            missing.append(name)
        else:
            shutil.copy(source / name, kept / (name + ".partial"))
            (kept / (name + ".partial")).rename(kept / name)
    return missing


def unpack(kept: Path, content: Path) -> None:
    """Joins the parts and extracts them. The folder appears when its content is complete."""
    if content.exists():
        return
    partial = content.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    whole = partial / "content.tar"
    with whole.open("wb") as f:
        for part in json.loads((kept / INDEX).read_text()):
            f.write((kept / part["name"]).read_bytes())
    with tarfile.open(whole) as t:
        t.extractall(partial, filter="data")
    whole.unlink()
    with zipfile.ZipFile(partial / "programs.zip") as z:
        z.extractall(partial / "programs")
    for program in (partial / "programs").iterdir():
        program.chmod(0o755)
    partial.rename(content)


def stages(work: Path, accuracy_models: str) -> list[tuple[str, list[str], Path]]:
    """The commands in order, with their folders."""
    content, venv, out = work / "content", work / "venv", work / "results"
    programs, python = content / "programs", str(venv / "bin" / "python")
    steadyfit = str(programs / "steadyfit")
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--require-hashes"]
    install += ["--find-links", str(content / "wheels"), "-r", str(REQUIREMENTS)]
    found = [
        ("venv", [sys.executable, "-m", "venv", "--clear", str(venv)], ROOT),
        ("install", install, ROOT),
        ("doctor", [steadyfit, "doctor", "--gpu"], ROOT),
    ]
    for name, package in PACKAGES.items():
        test = [str(programs / f"{name}.test"), "-test.run=^TestOnGPU", "-test.v", "-test.count=1"]
        found.append((f"test-{name}", test, ROOT / package))
    matrix = [steadyfit, "matrix", "--runtime", "go,keras", "--python", python, *MATRIX.split()]
    accuracy = [str(programs / "accuracy"), "-steadyfit", steadyfit, "-models", accuracy_models]
    accuracy += ["-work", str(work / "accuracy"), "-json", str(out / "accuracy.json")]
    fit = [steadyfit, "fit", "--model", "builtin:digits", "--data", "builtin:digits"]
    return [
        *found,
        ("matrix", [*matrix, "--out", str(work / "matrix")], ROOT),
        ("accuracy", accuracy, ROOT),
        ("fit", [*fit, "--epochs", "2", "--json"], ROOT),
    ]


def measure(work: Path, plan: list[tuple[str, list[str], Path]], until: float) -> int:
    """Runs the stages that have not ended, and collects the results."""
    logs = work / "logs"
    logs.mkdir(exist_ok=True)
    (work / "results").mkdir(exist_ok=True)
    state = work / "stages.json"
    done = json.loads(state.read_text()) if state.exists() else {}
    code = 0
    for name, command, folder in plan:
        if name in done:
            continue
        if time.monotonic() > until:
            code = 4
            break
        began = time.monotonic()
        status = limited(command, folder, logs / f"{name}.log", until, environment(work))
        if status is None:
            say(f"{name}: the time ran out; the next call begins it again")
            code = 4
            break
        done[name] = {"exit": status, "seconds": round(time.monotonic() - began, 1)}
        say(f"{name}: exit {status} after {done[name]['seconds']} s")
        if status and name in ("venv", "install"):
            raise Failure(1, f"the wheels were not installed: see {logs / (name + '.log')}")
        state.write_text(json.dumps(done, indent=1))
    results(work)
    return code or int(any(s["exit"] for s in done.values()))


def environment(work: Path) -> dict[str, str]:
    found = sorted((work / "venv").glob("lib/python*/site-packages/tensorflow"))
    return {**os.environ, **({"STEADYFIT_TENSORFLOW": str(found[0])} if found else {})}


def limited(
    command: list[str], folder: Path, log: Path, until: float, env: dict[str, str]
) -> int | None:
    """The exit status of a command; None if the time ran out, after SIGTERM and its grace."""
    with log.open("wb") as f:
        p = subprocess.Popen(
            command, cwd=folder, env=env, stdout=f, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return p.wait(timeout=max(until - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            for sign, grace in ((signal.SIGTERM, 15), (signal.SIGKILL, None)):
                try:
                    os.killpg(p.pid, sign)
                    p.wait(timeout=grace)
                except (subprocess.TimeoutExpired, ProcessLookupError):
                    continue
                break
            return None


def results(work: Path) -> None:
    """Writes the files to copy back: logs, stages, and the matrix's data and report."""
    out = work / "results"
    with tarfile.open(out / "logs.tar.gz", "w:gz") as t:
        t.add(work / "logs", "logs")
        if (work / "stages.json").exists():
            t.add(work / "stages.json", "stages.json")
    for name in ("matrix.json", "report.html"):
        file = work / "matrix" / name
        if file.exists():
            with tarfile.open(out / (name + ".tar.gz"), "w:gz") as t:
                t.add(file, name)
    for file in out.iterdir():
        if file.stat().st_size > RESULT_BYTES:
            say(f"{file} has {file.stat().st_size} bytes, more than {RESULT_BYTES}")


def check(command: list[str]) -> None:
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise Failure(1, "failed: " + " ".join(command[:6]))


def duration(text: str) -> float:
    found = re.fullmatch(r"(\d+)(s|m)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a duration, as in 90s or 20m")
    return int(found[1]) * (60 if found[2] == "m" else 1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("pack", help="make the parts, on a machine with a network")
    p.add_argument("--dest", type=Path, required=True, help="folder for the parts")
    p.add_argument("--python", default="3.12", help="Python of the other machine (default 3.12)")
    p.add_argument(
        "--part-mb", type=int, default=PART_MB, help=f"size of a part (default {PART_MB})"
    )
    r = commands.add_parser("run", help="take in parts and measure, on the machine with the GPU")
    r.add_argument("--parts", type=Path, required=True, help="folder with parts")
    r.add_argument("--work", type=Path, required=True, help="folder that stays between calls")
    r.add_argument(
        "--within", type=duration, default=1500, help="time limit, as in 9m (default 25m)"
    )
    r.add_argument("--accuracy", default="digits", help="models of the accuracy (default digits)")
    a = parser.parse_args(arguments)
    until = time.monotonic() + getattr(a, "within", 0)
    try:
        if a.command == "pack":
            pack(a.dest.absolute(), a.python, a.part_mb)
            return 0
        work = a.work.absolute()
        missing = collect(a.parts.absolute(), work / "parts")
        if missing:
            raise Failure(3, f"missing parts: {' '.join(missing)}")
        unpack(work / "parts", work / "content")
        return measure(work, stages(work, a.accuracy), until)
    except Failure as e:
        say(f"error: {e}")
        return e.code


if __name__ == "__main__":
    sys.exit(main())
