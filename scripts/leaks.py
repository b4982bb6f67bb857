"""Runs the programs of a folder under steadyfit watch, and compares the answers with truth.json.

usage: python scripts/leaks.py --python PATH/bin/python [--steadyfit PATH] [--folder FOLDER] [PROGRAM ...]

The column rises shows what a simpler rule says of the same series: the share of samples that rise (a leak from 70% on).
--tracemalloc runs each program again without watch, and prints the line of Python whose allocations grew most in the same
time after the imports, with its part of the growth of the memory.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys

RISES = 0.7
ENV = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
LEVEL = {"verdict": "level", "cause": ""}
VERSION = """import importlib.metadata as m
print(*(d.version for name in ("tensorflow", "tensorflow-cpu") for d in m.distributions(name=name)))"""

TRACE = """import os, runpy, sys, threading, time, tracemalloc

def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

first = []

def begin():
    modules = 0
    while len(sys.modules) != modules:  # until the imports are over
        modules = len(sys.modules)
        time.sleep(1)
    first.append(tracemalloc.take_snapshot())
    first.append(held())  # with the memory of the snapshot
    time.sleep(float(seconds))
    compare()

def compare():
    now, last = held(), tracemalloc.take_snapshot()
    most = max(last.compare_to(first[0], "lineno"), key=lambda s: s.size_diff)
    f = most.traceback[0]
    print(f"TRACED {os.path.basename(f.filename)}:{f.lineno} {most.size_diff >> 10} KiB of {now - first[1] >> 10}", flush=True)
    os._exit(0)

tracemalloc.start()
seconds, *sys.argv = sys.argv[1:]
threading.Thread(target=begin, daemon=True).start()
runpy.run_path(sys.argv[0], run_name="__main__")
compare()"""


def traced(options, seconds, command):
    """Returns the line that tracemalloc shows."""
    code = [options.python, "-c", TRACE, str(seconds), *command]
    out = subprocess.run(code, check=False, capture_output=True, text=True, env=ENV).stdout
    return next((line for line in out.splitlines() if line.startswith("TRACED")), "TRACED nothing: the program failed")


def share_of_rises(samples, start):
    """Returns the part of the judged samples, of the kind with most samples, that are above the one before."""
    kinds = [s["kind"] for s in samples if s["kind"]]
    kind = max(set(kinds), key=kinds.count) if kinds else ""
    judged = [s["sample"] for s in samples if s["kind"] == kind and (not kind or s["sample"]["step"] >= start)]
    held = [s["values"]["memory"] for s in judged if s["values"]["memory"] is not None]
    return sum(b > a for a, b in itertools.pairwise(held)) / max(len(held) - 1, 1)


def run(options, name, flags, command):
    """Returns the answer of watch and the share of rises; None if the program fails, as without its packages."""
    out = options.out / name.replace(" ", "-")
    watch = [options.steadyfit, "watch", "--json", "--out", str(out), *options.flag, *flags, "--", options.python, *command]
    done = subprocess.run(watch, check=False, capture_output=True, text=True, env=ENV)
    if "\n{\n" not in "\n" + done.stdout:
        sys.exit(f"{name}: no answer\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout[done.stdout.index("{\n") :])
    (out / "answer.json").write_text(json.dumps(answer))
    if answer["exit_code"] and not answer.get("ended"):
        return None, 0
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    return answer, share_of_rises(samples, answer["from"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--steadyfit", default="steadyfit")
    parser.add_argument("--folder", type=pathlib.Path, default="internal/lab/programs/leaks")
    parser.add_argument("--out", type=pathlib.Path, default="out/leaks")
    parser.add_argument("--flag", action="append", default=[], help="a flag of steadyfit watch")
    parser.add_argument("--tracemalloc", action="store_true")
    parser.add_argument("programs", nargs="*")
    options = parser.parse_args()
    truth = json.loads((options.folder / "truth.json").read_text())
    print(f"{'program':28} {'verdict':10} {'right':6} {'seconds':>7} {'rises':>6}  cause (truth)")
    found = subprocess.check_output([options.python, "-c", VERSION], text=True)
    version = [int(n) for n in found.split()[0].split(".")[:2]]
    both = [name + v for name in sorted(truth) for v in (("", " mended") if "report" in truth[name] else ("",))]
    wrong = 0
    for name in options.programs or both:
        program, _, variant = name.partition(" ")
        want = truth[program].get("mended", LEVEL) if variant else truth[program]
        want = LEVEL if version >= want.get("ended", [99]) else want
        mark = ["--mark", truth[program]["mark"]] if "mark" in truth[program] else []
        command = [str(options.folder / f"{program}.py"), *variant.split()]
        answer, rises = run(options, name, mark, command)
        if answer is None:
            print(f"{name:28} does not run", flush=True)
            continue
        right = "cause" if want["cause"] not in answer["cause"] and answer["verdict"] == "leak" else "yes"
        right = right if answer["verdict"] == want["verdict"] else "NO"
        wrong += right != "yes"
        cheap = f"{rises:4.0%} {'!' if (rises >= RISES) != (want['verdict'] == 'leak') else ' '}"
        print(
            f"{name:28} {answer['verdict']:10} {right:6} {answer['seconds']:7.1f} {cheap:>6}  "
            f"{answer['cause']} ({want['cause']}) {answer['slope']['estimate']:.0f}/{answer['unit']} {answer['samples']}",
            flush=True,
        )
        if options.tracemalloc:
            print(" " * 28, traced(options, answer["seconds"], command), flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
