"""The runtime fetcher, on small wheels made here; nothing is downloaded."""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

SCRIPTS = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(SCRIPTS))

import runtime

VERSION = "9.9.9"
C_API = "tensorflow/include/tensorflow/c/c_api.h"


def make_wheel(folder, members=None):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tensorflow_cpu-{VERSION}-cp311-cp311-manylinux2014_x86_64.whl"
    if members is None:
        members = {
            "tensorflow/libtensorflow_cc.so.2": b"cc" * 100,
            "tensorflow/libtensorflow_framework.so.2": b"framework",
            C_API: b'#include <stddef.h>\n#include "tsl/c/deep.h"\n  # include "gone.h"\n',
            "tensorflow/include/tsl/c/deep.h": b'#include "tsl/c/deeper.h"\n',
            "tensorflow/include/tsl/c/deeper.h": b'#include "tsl/c/deep.h"\n',
            "tensorflow/include/tsl/c/unused.h": b"",
            "tensorflow/python/big.py": b"x",
        }
    info = f"tensorflow_cpu-{VERSION}.dist-info/"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(
            info + "METADATA", f"Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: {VERSION}\n"
        )
        archive.writestr(
            info + "WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux2014_x86_64\n",
        )
        archive.writestr(info + "RECORD", "")
    return path


@pytest.fixture
def fetch(tmp_path, capfd):
    """Runs the fetcher into tmp_path/tensorflow; returns exit code and messages."""

    def run(*args):
        code = runtime.main(
            ["--dest", str(tmp_path / "tensorflow"), "--version", VERSION, *map(str, args)]
        )
        return code, capfd.readouterr().err

    return run


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_takes_libraries_and_the_headers_that_they_include(tmp_path, fetch):
    code, said = fetch("--wheel", make_wheel(tmp_path / "in"))
    assert code == 0, said
    dest = tmp_path / "tensorflow"
    files = {str(p.relative_to(dest)) for p in dest.rglob("*") if p.is_file()}
    assert files == {
        "libtensorflow_cc.so.2",
        "libtensorflow_framework.so.2",
        "include/tensorflow/c/c_api.h",
        "include/tsl/c/deep.h",
        "include/tsl/c/deeper.h",
        runtime.STAMP,
    }
    assert not (tmp_path / "tensorflow.partial").exists()


def test_second_run_does_nothing(tmp_path, fetch):
    wheel = make_wheel(tmp_path / "in")
    fetch("--wheel", wheel)
    wheel.unlink()
    code, said = fetch("--wheel", wheel)
    assert code == 0
    assert said.count("\n") == 1 and "nothing to do" in said


@pytest.mark.parametrize("harm", ["truncate", "remove", "stamp", "version"])
def test_incomplete_folder_is_made_again(tmp_path, fetch, harm):
    wheel = make_wheel(tmp_path / "in")
    fetch("--wheel", wheel)
    dest = tmp_path / "tensorflow"
    library = dest / "libtensorflow_cc.so.2"
    stamp = dest / runtime.STAMP
    if harm == "truncate":
        library.write_bytes(b"c")
    elif harm == "remove":
        library.unlink()
    elif harm == "stamp":
        stamp.write_text("{")
    else:
        stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "version": "1.0"}))
    code, said = fetch("--wheel", wheel)
    assert code == 0 and "extracting" in said
    assert library.read_bytes() == b"cc" * 100


def test_wheel_of_an_interrupted_run_is_taken(tmp_path, fetch, monkeypatch):
    partial = tmp_path / "tensorflow.partial"
    make_wheel(partial / "wheel")
    for leftover in ("incoming", "tmp", "tree", "old"):
        (partial / leftover).mkdir()
        (partial / leftover / "half").write_bytes(b"x")
    monkeypatch.setattr(runtime, "pip_download", lambda *_: pytest.fail("downloaded again"))
    code, said = fetch()
    assert code == 0 and "interrupted run" in said
    assert not partial.exists()


def test_damaged_wheel_of_an_interrupted_run_is_not_taken(tmp_path, fetch, monkeypatch):
    partial = tmp_path / "tensorflow.partial"
    half = make_wheel(partial / "wheel")
    half.write_bytes(half.read_bytes()[:50])
    whole = make_wheel(tmp_path / "in")
    monkeypatch.setattr(runtime, "pip_download", lambda *_: {"tensorflow-cpu": str(whole)})
    assert fetch()[0] == 0
    assert not half.exists()


def test_pip_serves_the_wheel(tmp_path, fetch, monkeypatch):
    # The real pip, with a folder for its index.
    wheel = make_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    code, said = fetch()
    assert code == 0, said
    assert "no hash given" in said
    assert (tmp_path / "tensorflow" / runtime.STAMP).exists()


def test_pinned_hash_is_compared_by_pip(tmp_path, capfd, monkeypatch):
    wheel = make_wheel(tmp_path / "index")
    pin = tmp_path / "pin.txt"
    pin.write_text(f"tensorflow-cpu=={VERSION} \\\n    --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(runtime, "PIN", str(pin))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    args = ["--dest", str(tmp_path / "tensorflow")]
    assert runtime.main(args) == 1
    assert "not the pinned one" in capfd.readouterr().err
    pin.write_text(f"tensorflow-cpu=={VERSION} --hash=sha256:{sha(wheel)}\n")
    assert runtime.main(args) == 0


def test_pip_without_such_a_wheel(tmp_path, fetch, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    code, said = fetch()
    assert code == 1 and f"no tensorflow-cpu {VERSION} wheel" in said
    assert not (tmp_path / "tensorflow").exists()


def test_hash_of_a_given_wheel(tmp_path, fetch):
    wheel = make_wheel(tmp_path / "in")
    code, said = fetch("--wheel", wheel, "--sha256", "0" * 64)
    assert code == 1 and "not the pinned one" in said
    assert fetch("--wheel", wheel, "--sha256", sha(wheel))[0] == 0


def test_damaged_member(tmp_path, fetch):
    wheel = make_wheel(tmp_path / "in")
    content = wheel.read_bytes()
    wheel.write_bytes(content.replace(b"cc" * 100, b"cx" * 100, 1))
    code, said = fetch("--wheel", wheel)
    assert code == 1 and "damaged" in said
    assert not (tmp_path / "tensorflow").exists()


def test_wheel_without_the_library(tmp_path, fetch):
    code, said = fetch("--wheel", make_wheel(tmp_path / "in", {C_API: b""}))
    assert code == 1 and "holds no libtensorflow_cc.so.2" in said


def test_foreign_folder_is_left_alone(tmp_path, fetch):
    mine = tmp_path / "tensorflow" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("x")
    code, said = fetch("--wheel", make_wheel(tmp_path / "in"))
    assert code == 1 and "was not made by this script" in said
    assert mine.exists()


def test_full_disk(tmp_path, fetch, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=300_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    code, said = fetch()
    assert code == 1 and "0.30 GB free, 1.20 GB are needed" in said


@pytest.mark.parametrize(
    ("system", "machine", "libc", "says"),
    [
        ("Darwin", "arm64", ("", ""), "Darwin arm64"),
        ("Linux", "riscv64", ("glibc", "2.36"), "Linux riscv64"),
        ("Linux", "aarch64", ("glibc", "2.17"), "glibc 2.17"),
        ("Linux", "x86_64", ("", ""), "not glibc"),
        ("Linux", "x86_64", ("glibc", "2.17"), "glibc 2.17"),
    ],
)
def test_other_platforms(fetch, monkeypatch, system, machine, libc, says):
    monkeypatch.setattr(runtime.platform, "system", lambda: system)
    monkeypatch.setattr(runtime.platform, "machine", lambda: machine)
    monkeypatch.setattr(runtime.platform, "libc_ver", lambda: libc)
    code, said = fetch()
    assert code == 1 and says in said


def test_python_without_pip(fetch, monkeypatch):
    monkeypatch.setattr(runtime.sys, "executable", shutil.which("false"))
    code, said = fetch()
    assert code == 1 and "has no pip" in said


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "WARNING: Retrying (Retry(total=4)) ...\nERROR: No matching distribution found",
            "could not reach",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "not the pinned one"),
        ("OSError: [Errno 28] No space left on device", "disk filled up"),
        ("something else", "its message is above"),
    ],
)
def test_explanations_of_pip_failures(output, says):
    assert says in runtime.explain_pip(output, "tensorflow-cpu " + VERSION, "x86_64")


def test_the_pin_of_this_project():
    (pin,) = runtime.read_pins(runtime.PIN, "tensorflow-cpu")
    assert pin.version.startswith("2.") and len(pin.hashes) >= 1


def test_pins_of_other_versions():
    def wanted(**args):
        return runtime.wanted(
            argparse.Namespace(
                **{"gpu": False, "version": None, "sha256": None, "machine": "x86_64", **args}
            )
        )

    (pinned,) = wanted()
    (earlier,) = wanted(version="2.16.2")
    assert earlier.version == "2.16.2" and len(earlier.hashes) == 1
    assert wanted(version=pinned.version) == [pinned]
    (given,) = wanted(version="2.16.2", sha256="ab")
    assert given.hashes == ("ab",)
    (unknown,) = wanted(version="2.0.0")
    assert unknown.hashes == ()
    (other,) = wanted(machine="aarch64")
    assert (other.package, other.version) == ("tensorflow", pinned.version)
    assert other.hashes and other.hashes != pinned.hashes


def test_stamp_of_an_older_script(tmp_path, fetch):
    wheel = make_wheel(tmp_path / "in")
    fetch("--wheel", wheel)
    stamp = tmp_path / "tensorflow" / runtime.STAMP
    held = json.loads(stamp.read_text())
    digest = held.pop("wheels")["tensorflow-cpu"]
    stamp.write_text(json.dumps({**held, "wheel_sha256": digest}))
    assert "nothing to do" in fetch("--sha256", sha(wheel))[1]


# For a GPU.


def test_the_pins_for_a_gpu():
    """They are for the same TensorFlow, and are what its metadata requires."""
    (cpu,) = runtime.read_pins(runtime.PIN, "tensorflow-cpu")
    pins = {p.package: p.version for p in runtime.read_pins(runtime.PIN_GPU, runtime.GPU_PACKAGES)}
    assert pins["tensorflow"] == cpu.version
    installed = importlib.metadata.distribution("tensorflow-cpu")
    assert installed.version == cpu.version
    asked = [Requirement(text) for text in installed.requires]
    asked = {r.name: r.specifier for r in asked if r.marker and "and-cuda" in str(r.marker)}
    assert pins.keys() == asked.keys() | {"tensorflow"}
    for package, versions in asked.items():
        assert versions.contains(pins[package]), f"{package} {pins[package]}: expected {versions}"


def gpu_wheel(folder, package, version, members):
    folder.mkdir(parents=True, exist_ok=True)
    tag = (
        "cp311-cp311-manylinux_2_27_x86_64"
        if package == "tensorflow"
        else "py3-none-manylinux2014_x86_64"
    )
    path = folder / f"{package.replace('-', '_')}-{version}-{tag}.whl"
    info = f"{package.replace('-', '_')}-{version}.dist-info/"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(info + "License.txt", f"terms of {package}")
        archive.writestr(
            info + "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
        archive.writestr(
            info + "WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        )
        archive.writestr(info + "RECORD", "")
    return path


@pytest.fixture
def gpu_index(tmp_path, monkeypatch):
    """A folder of wheels that serves as pip's index, and requirements that pin them."""
    folder = tmp_path / "index"
    wheels = [
        gpu_wheel(
            folder,
            "tensorflow",
            VERSION,
            {
                "tensorflow/libtensorflow_cc.so.2": b"cc",
                "tensorflow/libtensorflow_framework.so.2": b"framework",
                "tensorflow/cuda/nvvm/libdevice/libdevice.10.bc": b"bc",
                C_API: b"",
                "tensorflow/python/big.py": b"x",
            },
        ),
        gpu_wheel(
            folder,
            "nvidia-cublas-cu12",
            "12.9.1.4",
            {
                "nvidia/__init__.py": b"",
                "nvidia/cublas/lib/libcublas.so.12": b"blas",
                "nvidia/cublas/lib/libcublas_static.a": b"x",
                "nvidia/cublas/include/cublas.h": b"x",
            },
        ),
        gpu_wheel(
            folder,
            "nvidia-cuda-nvcc-cu12",
            "12.9.86",
            {
                "nvidia/cuda_nvcc/bin/ptxas": b"#!",
                "nvidia/cuda_nvcc/nvvm/bin/cicc": b"x",
                "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc": b"bc",
            },
        ),
    ]
    pins = tmp_path / "requirements-gpu.txt"
    pins.write_text(
        "# by a tool\n"
        f"tensorflow[and-cuda]=={VERSION} \\\n    --hash=sha256:{'1' * 64} \\\n    --hash=sha256:{sha(wheels[0])}\n"
        f"numpy==2.0.0 \\\n    --hash=sha256:{'2' * 64}\n"
        f"nvidia-cublas-cu12==12.9.1.4 ; sys_platform == 'linux' \\\n    --hash=sha256:{sha(wheels[1])}\n"
        f"nvidia-cuda-nvcc-cu12==12.9.86 \\\n    --hash=sha256:{sha(wheels[2])}\n"
    )
    monkeypatch.setattr(runtime, "PIN_GPU", str(pins))
    monkeypatch.setattr(runtime, "NEED_FETCH_GPU", 0)
    monkeypatch.setattr(runtime, "NEED_EXTRACT_GPU", 0)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return wheels


def test_for_a_gpu(tmp_path, gpu_index, capfd):
    dest = tmp_path / "gpu"
    assert runtime.main(["--gpu", "--dest", str(dest)]) == 0, capfd.readouterr().err
    files = {str(p.relative_to(dest)) for p in dest.rglob("*") if p.is_file()}
    assert files == {
        "tensorflow/libtensorflow_cc.so.2",
        "tensorflow/libtensorflow_framework.so.2",
        "tensorflow/cuda/nvvm/libdevice/libdevice.10.bc",
        "nvidia/cublas/lib/libcublas.so.12",
        "nvidia/cuda_nvcc/bin/ptxas",
        "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc",
        "nvidia/licenses/nvidia-cublas-cu12.txt",
        "nvidia/licenses/nvidia-cuda-nvcc-cu12.txt",
        runtime.STAMP,
    }
    assert (dest / "nvidia/cuda_nvcc/bin/ptxas").stat().st_mode & 0o111
    capfd.readouterr()
    for wheel in gpu_index:
        wheel.unlink()
    assert runtime.main(["--gpu", "--dest", str(dest)]) == 0
    assert "nothing to do" in capfd.readouterr().err


def test_gpu_wheels_of_an_interrupted_run(tmp_path, gpu_index, capfd):
    kept = tmp_path / "gpu.partial" / "wheel"
    kept.mkdir(parents=True)
    shutil.move(gpu_index[0], kept)
    assert runtime.main(["--gpu", "--dest", str(tmp_path / "gpu")]) == 0
    said = capfd.readouterr().err
    assert "interrupted run" in said and "downloading 2 wheels" in said


def test_gpu_wheels_that_were_given(tmp_path, gpu_index, capfd):
    given = [f"--wheel={wheel}" for wheel in gpu_index]
    dest = ["--gpu", "--dest", str(tmp_path / "gpu")]
    assert runtime.main([*dest, *given[:2]]) == 1
    assert "none of the files is a wheel of nvidia-cuda-nvcc-cu12" in capfd.readouterr().err
    with zipfile.ZipFile(gpu_index[2], "a") as archive:
        archive.writestr("another", "")
    assert runtime.main([*dest, *given]) == 1
    assert "not the pinned one" in capfd.readouterr().err


def test_gpu_wheel_of_another_layout(tmp_path, gpu_index, capfd, monkeypatch):
    monkeypatch.setattr(runtime, "GPU_FILES", runtime.re.compile("nothing"))
    assert runtime.main(["--gpu", "--dest", str(tmp_path / "gpu")]) == 1
    assert "holds no library as nvidia/NAME/lib" in capfd.readouterr().err


def test_command_line(tmp_path):
    script = SCRIPTS / "runtime.py"
    usage = subprocess.run(
        [sys.executable, script, "--sha256", "0"], check=False, capture_output=True, text=True
    )
    assert usage.returncode == 2 and "--version" in usage.stderr
