#!/usr/bin/env python3
"""Build the files of a release: `make dist`.

    scripts/dist.py [--out out/dist] [--zig PYTHON] [amd64] [arm64]

For each machine, this makes an archive and a Python wheel, and SHA256SUMS of all of them. Zig, a package of
Python, compiles the C code for glibc 2.28, so that the program starts on older systems than the one that builds
it, and for arm64. Two builds of a commit on one machine are equal: times are those of the commit, and paths
of this machine are left out.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
VERSION = (ROOT / "internal" / "version" / "VERSION").read_text().strip()
GLIBC = (2, 28)
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
SUMMARY = "Find out why the memory of a training grows, and fine-tune TensorFlow models with memory that stays flat"
LICENCE_FILE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|PATENTS)[^/]*$|[^/]*\.LICENSE$", re.IGNORECASE)
# A text that only the licence has, from the first to the last choice.
LICENCES = {
    "Apache-2.0": r"Apache License\s+Version 2\.0",
    "MPL-2.0": r"Mozilla Public License,? [Vv]ersion 2\.0",
    "MIT": r"Permission is hereby granted, free of charge",
    "BSD-3-Clause": r"Redistribution and use in source and binary forms[\s\S]*[Nn]either the names?",
    "BSD-2-Clause": r"Redistribution and use in source and binary forms",
}

Files = dict[str, tuple[bytes, bool]]  # content by path, and whether it is a program


def output(*command: str, **environment: str) -> str:
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode:
        sys.exit(f"dist: {' '.join(command)} failed")
    return done.stdout


def build(machine: str, python: str, out: pathlib.Path) -> bytes:
    """Build the program for a machine."""
    target = f"{MACHINES[machine]}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    commit = output("git", "describe", "--tags", "--always", "--dirty", "--abbrev=12").strip()
    output(
        "go", "build", "-trimpath", "-buildvcs=false", f"-ldflags=-s -w -X steadyfit/internal/version.commit={commit}",
        "-o", str(out), "./cmd/steadyfit",
        GOOS="linux", GOARCH=machine, CGO_ENABLED="1", CC=f"{python} -m ziglang cc -target {target}",
    )  # fmt: skip
    program = out.read_bytes()
    newest = max((int(a), int(b)) for a, b in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?=[.\0])", program))
    if newest > GLIBC:
        sys.exit(f"dist: {out} needs glibc {newest[0]}.{newest[1]}, newer than {GLIBC[0]}.{GLIBC[1]}")
    return program


def modules(machine: str) -> list[dict]:
    """The modules in the program and Go itself, with their licences and the files that have them."""
    deps = output("go", "list", "-deps", "-json=Dir,Module", "./cmd/steadyfit", GOARCH=machine, GOOS="linux", CGO_ENABLED="1")
    goroot, goversion = output("go", "env", "GOROOT", "GOVERSION").split()
    found: dict[str, dict] = {"std": {"path": "std", "version": goversion.removeprefix("go"), "files": {}}}
    found["std"]["files"]["LICENSE"] = pathlib.Path(goroot, "LICENSE").read_bytes()
    decoder, at = json.JSONDecoder(), 0
    while at < len(deps.rstrip()):
        package, at = decoder.raw_decode(deps, at)
        at += 1
        module = package.get("Module")
        if module is None or module.get("Main"):
            continue
        entry = found.setdefault(module["Path"], {"path": module["Path"], "version": module["Version"], "files": {}})
        top, folder = pathlib.Path(module["Dir"]), pathlib.Path(package["Dir"])
        for parent in (folder, *folder.parents):
            for file in parent.iterdir():
                if file.is_file() and LICENCE_FILE.match(file.name):
                    entry["files"][str(file.relative_to(top))] = file.read_bytes()
            if parent == top:
                break
    for entry in found.values():
        text = b"\n".join(text for _, text in sorted(entry["files"].items())).decode(errors="replace")
        entry["licence"] = next((name for name, pattern in LICENCES.items() if re.search(pattern, text)), None)
        if entry["licence"] is None:
            sys.exit(f"dist: {entry['path']} has no known licence: {sorted(entry['files'])}")
    return [found[path] for path in sorted(found)]


def sbom(machine: str, program: bytes, parts: list[dict], when: int) -> bytes:
    """The bill of materials in SPDX 2.3."""
    digest = hashlib.sha256(program).hexdigest()

    def package(name: str, version: str, licence: str, **more: object) -> dict:
        return {"name": name, "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "versionInfo": version,
                "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": licence,
                "licenseDeclared": licence, "copyrightText": "NOASSERTION", **more}  # fmt: skip

    def purl(part: dict) -> list[dict]:
        locator = f"pkg:golang/{part['path'].lower()}@{part['version']}"
        return [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}]

    own = package("steadyfit", VERSION, "Apache-2.0", primaryPackagePurpose="APPLICATION",
                  checksums=[{"algorithm": "SHA256", "checksumValue": digest}])  # fmt: skip
    others = [package(p["path"], p["version"], p["licence"], externalRefs=purl(p)) for p in parts]
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"steadyfit-{VERSION}-linux-{machine}",
        "documentNamespace": f"https://spdx.org/spdxdocs/steadyfit-{VERSION}-linux-{machine}-{digest}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)), "creators": ["Tool: scripts/dist.py"]},
        "packages": [own, *others],
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own["SPDXID"]},
                          *({"spdxElementId": own["SPDXID"], "relationshipType": "DEPENDS_ON", "relatedSpdxElement": p["SPDXID"]} for p in others)],
    }  # fmt: skip
    return (json.dumps(document, indent=1) + "\n").encode()


def python_files() -> Files:
    """The exporter and the plugin of pytest."""
    files = [*(SCRIPTS / "steadyfit_export").glob("*.py"), SCRIPTS / "steadyfit_export" / "VERSION", SCRIPTS / "pytest_steadyfit.py"]
    return {str(f.relative_to(SCRIPTS)): (f.read_bytes(), False) for f in files}


def licences(parts: list[dict]) -> Files:
    files = {f"{p['path']}@{p['version']}/{name}": (text, False) for p in parts for name, text in p["files"].items()}
    return files | {"uPlot/LICENSE": ((ROOT / "internal/uplot/uplot.LICENSE").read_bytes(), False)}


def archive(name: str, program: bytes, parts: list[dict], bill: bytes, when: int) -> bytes:
    """The content of NAME.tar.gz."""
    documents = output("git", "ls-files", "-z", "docs", "README.md", "CHANGELOG.md", "LICENSE", "data/builtin/README.txt")
    files: Files = {file: ((ROOT / file).read_bytes(), False) for file in documents.split("\0") if file}
    files |= {f"bin/{path}": content for path, content in python_files().items()}
    files |= {f"bin/steadyfit-{n}": ((SCRIPTS / f"{n}.py").read_bytes(), True) for n in ("export", "import")}
    files |= {f"licences/{path}": content for path, content in licences(parts).items()}
    files |= {"bin/steadyfit": (program, True), "sbom.spdx.json": (bill, False)}
    files["SHA256SUMS"] = (sums({path: content for path, (content, _) in files.items()}), False)
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=when) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in sorted(files):
            content, executable = files[path]
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size, info.mtime, info.mode = len(content), when, 0o755 if executable else 0o644
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def wheel(machine: str, program: bytes, parts: list[dict], bill: bytes, when: int) -> tuple[str, bytes]:
    """The name and the content of the wheel."""
    tag = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_{MACHINES[machine]}"
    info = f"steadyfit-{VERSION}.dist-info"
    metadata = f"""Metadata-Version: 2.4
Name: steadyfit
Version: {VERSION}
Summary: {SUMMARY}
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.10
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

`steadyfit watch -- python train.py` says whether the memory of a program grows, what makes it grow, and what to change.
`steadyfit-export` turns a Keras model into a SavedModel that `steadyfit fit` trains, and `steadyfit-import` takes the
result back to Keras. Tests that are marked `flat` fail in pytest if their memory grows.

The package depends on nothing. It uses the TensorFlow (2.16 to 2.21) and the Keras of the environment in which it is
installed; `watch` also takes programs without them.
"""
    entries = """[console_scripts]
steadyfit-export = steadyfit_export.command:main
steadyfit-import = steadyfit_export.importing:main

[pytest11]
pytest_steadyfit = pytest_steadyfit
"""
    files = python_files() | {f"steadyfit-{VERSION}.data/scripts/steadyfit": (program, True)}
    texts = {
        "METADATA": metadata,
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: steadyfit {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": entries,
    }
    files |= {f"{info}/{name}": (text.encode(), False) for name, text in texts.items()}
    files |= {f"{info}/licenses/LICENSE": ((ROOT / "LICENSE").read_bytes(), False), f"{info}/sboms/steadyfit.spdx.json": (bill, False)}
    files |= {f"{info}/licenses/{path}": content for path, content in licences(parts).items()}
    hashes = {p: base64.urlsafe_b64encode(hashlib.sha256(c).digest()).rstrip(b"=").decode() for p, (c, _) in files.items()}
    record = [f"{path},sha256={hashes[path]},{len(files[path][0])}" for path in sorted(files)] + [f"{info}/RECORD,,"]
    files[f"{info}/RECORD"] = ("\n".join(record).encode() + b"\n", False)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for path, (content, executable) in sorted(files.items()):
            entry = zipfile.ZipInfo(path, time.gmtime(when)[:6])
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100755 if executable else 0o100644) << 16
            made.writestr(entry, content)
    return f"steadyfit-{VERSION}-{tag}.whl", packed.getvalue()


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)).encode()


def commit_time() -> int:
    """The time of all files: SOURCE_DATE_EPOCH, or that of the commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the archives and the wheels of a release.")
    parser.add_argument("machines", nargs="*", default=list(MACHINES), help="amd64, arm64; both if none is given")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out" / "dist", help="folder (out/dist)")
    parser.add_argument("--zig", default=sys.executable, metavar="PYTHON", help="a Python that has the package ziglang")
    arguments = parser.parse_args()
    if strange := set(arguments.machines) - set(MACHINES):
        parser.error(f"unknown machine {', '.join(strange)}: expected amd64 or arm64")
    arguments.out.mkdir(parents=True, exist_ok=True)
    when, made = commit_time(), {}
    for machine in arguments.machines:
        program = build(machine, arguments.zig, arguments.out / f"steadyfit-{machine}")
        parts = modules(machine)
        bill = sbom(machine, program, parts, when)
        name = f"steadyfit-{VERSION}-linux-{machine}"
        made[f"{name}.tar.gz"] = archive(name, program, parts, bill, when)
        path, content = wheel(machine, program, parts, bill, when)
        made[path] = content
    for path, content in made.items():
        (arguments.out / path).write_bytes(content)
        print(f"dist: {path}: {len(content) / 1e6:.1f} MB")
    (arguments.out / "SHA256SUMS").write_bytes(sums(made))


if __name__ == "__main__":
    main()
