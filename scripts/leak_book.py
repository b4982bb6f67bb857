"""Writes docs/leaks: a page for each program of internal/lab/programs/leaks, and an index.

usage: python scripts/leak_book.py [--add OUT... --python PATH/bin/python] [--pages FOLDER]

The pages are made from docs/results/leaks.json.gz and the programs alone. --add first puts into the results what runs of
scripts/leaks.py --out OUT measured with that interpreter, in place of earlier runs with the same versions.
"""

import argparse
import ast
import difflib
import gzip
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "internal/lab/programs/leaks"
RESULTS = ROOT / "docs/results/leaks.json.gz"
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
VERSIONS = """import importlib.metadata as m, json, platform
found = {d.name.lower().replace("_", "-"): d.version for d in m.distributions() if d.name}
names = {"tensorflow": "tensorflow", "tensorflow-cpu": "tensorflow", "keras": "keras", "torch": "torch"}
print(json.dumps({n: found[k] for k, n in names.items() if k in found} | {"python": platform.python_version()}))"""


def specialized(source, mended):
    """Returns the code of one variant, without the lines that choose it. Numbers of rounds stay those of the leak."""
    code = re.sub(r'\A"""[^"]*"""\n+|^import sys\n+|^mended = .*\n', "", source, flags=re.MULTILINE)
    while True:
        for node in ast.walk(ast.parse(code)):
            test = ast.unparse(node.test) if isinstance(node, (ast.If, ast.IfExp)) else ""
            if test in ("mended", "not mended"):
                break
        else:
            return code.splitlines()
        body = (test == "mended") == mended
        lines = code.splitlines(keepends=True)
        if isinstance(node, ast.If):
            kept = node.body if body else node.orelse
            text = "".join(lines[kept[0].lineno - 1 : kept[-1].end_lineno]) if kept else ""
            text = textwrap.indent(textwrap.dedent(text), " " * node.col_offset)
            code = "".join([*lines[: node.lineno - 1], text, *lines[node.end_lineno :]])
        else:
            rounds = all(isinstance(getattr(n, "value", None), int) for n in (node.body, node.orelse))
            kept = node.body if (test != "mended" if rounds else body) else node.orelse
            code = code.replace(ast.get_source_segment(code, node), ast.get_source_segment(code, kept), 1)


def sentence(text):
    """Begins with a capital letter, unless the first word is a name in code."""
    return text[0].upper() + text[1:] if re.match(r"[a-z]+[ ,]", text) else text


def read_programs():
    truth = json.loads((PROGRAMS / "truth.json").read_text())
    programs = {}
    for path in sorted(PROGRAMS.glob("*.py")):
        source = path.read_text()
        what, rest = ast.get_docstring(ast.parse(source)).split("\n\n", 1)
        said = dict(line.split(": ", 1) for line in rest.splitlines())
        url, year, symptom = re.fullmatch(r"(\S+) \((\d+)\), (.*)\.", said["Report"]).groups()
        if (url, int(year)) != (truth[path.stem]["report"], truth[path.stem]["year"]):
            sys.exit(f"{path.name}: its report is not that of truth.json")
        lines = difflib.unified_diff(specialized(source, False), specialized(source, True), n=2, lineterm="")
        programs[path.stem] = {
            "what": what,
            "symptom": sentence(symptom),
            "report": "[{}]({})".format(re.sub(r"https://github.com/(.*)/(issues|pull)/", r"\1#", url), url),
            "year": year,
            "leaks": sentence(said["Leaks"]),
            "remedy": sentence(said["Mended"]),
            "mark": f"--mark {truth[path.stem]['mark']} " if "mark" in truth[path.stem] else "",
            "framework": "torch" if re.search(r"^import torch", source, re.MULTILINE) else "tensorflow",
            "change": "\n".join("..." if line.startswith("@@") else line for line in [*lines][3:]),
        }
    return programs


def add(runs, folders, python):
    """Returns the runs with those of the folders that scripts/leaks.py wrote, which replace older ones."""
    versions = json.loads(subprocess.check_output([python, "-c", VERSIONS], text=True))
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    machine = f"{os.cpu_count()} cores of {cpu[1] if cpu else os.uname().machine} with Linux"
    new = []
    for path in [path for folder in folders for path in folder.glob("*/answer.json")]:
        answer = json.loads(path.read_text())
        name = path.parent.name.removesuffix("-mended")
        if not (PROGRAMS / f"{name}.py").exists() or (answer["exit_code"] and not answer.get("ended")):
            continue  # its packages are missing
        run = {"program": name, "mended": name != path.parent.name, "machine": machine, "versions": versions}
        run |= {key: answer[key] for key in ("verdict", "cause", "unit", "steps", "seconds", "slope", "peak_bytes")}
        why = answer.get("why", {})
        why["place"] = os.path.basename(why.get("place", ""))
        new.append(run | {key: why[key] for key in ("evidence", "place", "change") if why.get(key)})

    def key(run):
        return json.dumps([run["program"], run["mended"], run["versions"]])

    replaced = {key(run) for run in new}
    runs = [run for run in runs if key(run) not in replaced] + new
    runs.sort(key=lambda run: (key(run), run["seconds"]))
    RESULTS.write_bytes(gzip.compress(("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n").encode(), mtime=0))
    return runs


def rate(runs):
    """Returns the growth of the runs with a verdict: the mean, and an interval that contains theirs."""
    runs = [run for run in runs if run["verdict"] != "undecided"]
    if not runs:
        return "–"
    mean = statistics.mean(run["slope"]["estimate"] for run in runs)
    ends = min(run["slope"]["low"] for run in runs), max(run["slope"]["high"] for run in runs)
    power = 2 if abs(mean) >= 1 << 20 else int(abs(mean) >= 1 << 10)
    mean, low, high = (f"{round(n / 1024**power, min(power, 1)) + 0:.{min(power, 1)}f}" for n in (mean, *ends))
    return f"{mean} {('B', 'KiB', 'MiB')[power]} [{low}, {high}] per {runs[0]['unit']}"


def verdict(runs):
    return " or ".join(sorted({run["verdict"] for run in runs})) or "–"


def history(cells, framework):
    """Says in which versions a program leaks. The cells have the runs by version, the oldest first."""
    versions = {}
    for version in [version for version, runs in cells.items() if runs]:
        verb = {"leak": "leaks", "level": "is level"}.get(verdict(cells[version]), "is undecided")
        versions.setdefault(verb, []).append(version)
    (verb, old), *rest = versions.items() or [("was not measured", [])]
    if not old:
        return f"{verb}."
    if not rest:
        return f"{verb} in each version that was measured."
    if len(rest) == 1 and [*old, *rest[0][1]] == [version for version, runs in cells.items() if runs]:
        return f"{verb} up to {framework} {old[-1]}, and {rest[0][0]} since {rest[0][1][0]}."
    return "; ".join(f"{verb} with {framework} {', '.join(old)}" for verb, old in versions.items()) + "."


def page(name, program, cells, mended):
    """Returns the page of a program. The cells have the runs by version, as reported and mended."""
    framework = FRAMEWORKS[program["framework"]]
    commands = [f"    steadyfit watch {program['mark']}-- python {name}.py{v}" for v in ("", " mended")]
    rows = [f"| {framework} | as reported | growth | mended | growth | runs |", "|---" * 6 + "|"]
    for version, runs in cells.items():
        row = [version, *(of(some) for some in (runs, mended[version]) for of in (verdict, rate))]
        rows.append(f"| {' | '.join(row)} | {len(runs)} and {len(mended[version])} |")
    text = [
        f"# {program['symptom']}",
        f"Reported in {program['year']}: {program['report']}.",
        f"{program['what']}\n[{name}.py](../../internal/lab/programs/leaks/{name}.py) does nothing else:",
        "\n".join(commands),
        "\n".join(rows),
        f"The program as reported {history(cells, framework)}",
        f"## Cause\n\n{program['leaks']}",
    ]
    for run in [run for runs in cells.values() for run in runs if run["verdict"] == "leak"][-1:]:
        wrap = textwrap.TextWrapper(100, initial_indent=" " * 4, subsequent_indent=" " * 13, break_on_hyphens=False)
        lines = [f"{key:9}{run[key]}" for key in ("cause", "evidence", "place", "change") if run.get(key)]
        text += [f"`watch` says with {framework} {run['versions'][program['framework']]}:"]
        text += ["\n".join(map(wrap.fill, lines))]
    text += [f"## What helps\n\n{program['remedy']}\n\n```diff\n{program['change']}\n```"]
    text += [f"The mended program {history(mended, framework)}", "[All reports](README.md)"]
    return "\n\n".join(text) + "\n"


def index(book, runs):
    """Returns the index. The book has for each program what page takes."""

    def all_of(get):
        return " or ".join(sorted({get(run) for run in runs} - {None}))

    intro = f"""Each row is a public report of memory that grows, and a small program that does what it describes. The
programs ran under [`steadyfit watch --until-sure`](../how-to/watch.md) on {all_of(lambda run: run["machine"])}, with Python
{all_of(lambda run: run["versions"]["python"])} and Keras {all_of(lambda run: run["versions"].get("keras"))}. The pages
give the memory that counts for a limit: anonymous memory, shared memory and swap of the program and its child processes. The page
of a report has the growth per step with its interval of 99%; of several runs, it has the mean, and an interval that
contains theirs. Small growth [counts as level](../how-to/watch.md#causes). The column of runs has the lowest number of
runs behind a verdict of its row. A dash stands for a version that was not measured."""
    text = ["# Reports of growing memory", textwrap.fill(intro, 120, break_long_words=False, break_on_hyphens=False)]
    text += ["`make leak-book` runs the programs and makes the pages again."]
    for key, name in FRAMEWORKS.items():
        entries = {n: entry for n, entry in book.items() if entry[0]["framework"] == key}
        versions = list(next(iter(entries.values()))[1])
        rows = [f"| symptom | report | cause | {' | '.join(versions)} | remedy | runs |"]
        rows.append("|---" * (len(versions) + 5) + "|")
        for n, (program, cells, mended) in sorted(entries.items(), key=lambda entry: entry[1][0]["symptom"].lower()):
            causes = [run["cause"] for some in cells.values() for run in some if run["verdict"] == "leak"]
            row = [f"[{program['symptom']}]({n}.md)", f"{program['report']}, {program['year']}", (["–", *causes])[-1]]
            row += [*map(verdict, cells.values()), program["remedy"].rstrip(".")]
            row += [str(min((len(some) for some in (*cells.values(), *mended.values()) if some), default=0))]
            rows.append(f"| {' | '.join(row)} |")
        text += [f"## {name}", "\n".join(rows)]
    return "\n\n".join(text) + "\n"


def pages(runs):
    """Returns the text of each file of the book."""
    book = {}
    for name, program in read_programs().items():
        key, cells = program["framework"], ({}, {})
        versions = {run["versions"][key] for run in runs if key in run["versions"]}
        for version in sorted(versions, key=lambda v: [*map(int, re.findall(r"\d+", v))]):
            of = [run for run in runs if run["program"] == name and run["versions"].get(key) == version]
            for mended in (False, True):
                cells[mended][version] = [run for run in of if run["mended"] == mended]
        book[name] = (program, *cells)
    return {"README.md": index(book, runs)} | {f"{name}.md": page(name, *entry) for name, entry in book.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pages", type=pathlib.Path, default=ROOT / "docs/leaks")
    options = parser.parse_args()
    runs = json.loads(gzip.decompress(RESULTS.read_bytes())) if RESULTS.exists() else []
    if options.add:
        runs = add(runs, options.add, options.python)
    made = pages(runs)
    options.pages.mkdir(parents=True, exist_ok=True)
    for old in {path.name for path in options.pages.glob("*.md")} - set(made):
        (options.pages / old).unlink()
    for name, text in made.items():
        (options.pages / name).write_text(text)


if __name__ == "__main__":
    main()
