"""The files of a release: the wheel in a new environment, and the archive in an empty folder."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import platform
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

import dist
import try_wheel

MACHINE = {name: machine for machine, name in dist.MACHINES.items()}.get(platform.machine())
pytestmark = pytest.mark.skipif(not shutil.which("go") or not MACHINE, reason="go is not on the PATH, or no known machine")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The program of the local C compiler, in place of that of Zig, and what is packed beside it."""
    out = tmp_path_factory.mktemp("program") / "steadyfit"
    subprocess.run(["go", "build", "-o", str(out), "./cmd/steadyfit"], cwd=dist.ROOT, check=True)
    program, parts, when = out.read_bytes(), dist.modules(MACHINE), dist.commit_time()
    return MACHINE, program, parts, dist.sbom(MACHINE, program, parts, when), when


def test_wheel(made, tmp_path):
    name, content = dist.wheel(*made)
    assert (name, content) == dist.wheel(*made), "two builds differ"
    (tmp_path / name).write_bytes(content)
    environment, folder = tmp_path / "env", tmp_path / "empty"
    folder.mkdir()
    venv.create(environment)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", str(tmp_path / name)], check=True)
    listed = subprocess.run([*pip, "check"], check=True, capture_output=True, text=True).stdout
    assert "No broken requirements" in listed
    # The TensorFlow of the environment of the tests.
    packages = next(environment.glob("lib/python3*/site-packages"))
    (packages / "tests.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    try_wheel.use(environment / "bin", folder)
    markers = subprocess.run([environment / "bin" / "python", "-m", "pytest", "--markers"], check=True, capture_output=True, text=True)
    assert "@pytest.mark.flat" in markers.stdout, "pytest finds the plugin"


def test_archive(made, tmp_path):
    _, program, parts, bill, when = made
    content = dist.archive("steadyfit-x", program, parts, bill, when)
    assert content == dist.archive("steadyfit-x", program, parts, bill, when), "two builds differ"
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert {(m.mtime, m.uid, m.uname) for m in tar} == {(when, 0, "")}
        tar.extractall(tmp_path)
    folder = tmp_path / "steadyfit-x"
    listed = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    found = {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.rglob("*") if f.is_file()}
    found.pop("SHA256SUMS")
    assert listed == found
    for command in ([folder / "bin/steadyfit"], [sys.executable, folder / "bin/steadyfit-export"]):
        said = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True).stdout
        assert dist.VERSION in said


def test_bill_of_materials(made):
    _, program, _, bill, _ = made
    document = json.loads(bill)
    packages = {p["name"]: p for p in document["packages"]}
    assert packages["steadyfit"]["checksums"][0]["checksumValue"] == hashlib.sha256(program).hexdigest()
    linked = re.findall(rb"\ndep\t(\S+)\t(\S+)", program)
    assert len(linked) > 20
    for path, version in linked:
        assert packages[path.decode()]["versionInfo"] == version.decode()
    assert {p["licenseConcluded"] for p in packages.values()} <= set(dist.LICENCES)
    assert len({p["SPDXID"] for p in packages.values()}) == len(packages)


def test_licences_are_in_both(made):
    _, content = dist.wheel(*made)
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    for path in ("uPlot/LICENSE", "github.com/spf13/cobra@", "std@"):
        assert any(f"licenses/{path}" in name for name in names)
    assert all(not pathlib.PurePath(name).is_absolute() and ".." not in name for name in names)
