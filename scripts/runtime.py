#!/usr/bin/env python3
"""Fetch the TensorFlow runtime: `make runtime`.

A TensorFlow wheel holds the two shared libraries that steadyfit loads and the
headers of their C API; the rest of it, some 600 MB of Python, is not needed.
This script makes pip download the wheel that scripts/runtime.txt pins by hash,
extracts these files and deletes the wheel:

    .runtime/tensorflow/libtensorflow_cc.so.2          790 MB
    .runtime/tensorflow/libtensorflow_framework.so.2    65 MB, must lie beside it
    .runtime/tensorflow/include/tensorflow/c/...        headers, for `make abi`

A second run compares the folder with its stamp and does nothing. An
interrupted run leaves `<dest>.partial`; the next run takes a complete wheel
from there and removes the rest. <dest> appears only when all files are on the
disk.

For a GPU, `make runtime-gpu` fetches the wheel with GPU support and the libraries of
CUDA that it requires, in the versions and with the hashes of
scripts/requirements-gpu.txt. The two folders are side by side, since TensorFlow
looks for CUDA there:

    .runtime-gpu/tensorflow/libtensorflow_cc.so.2        1100 MB
    .runtime-gpu/tensorflow/libtensorflow_framework.so.2  163 MB
    .runtime-gpu/nvidia/cublas/lib/libcublas.so.12 ...   the libraries
    .runtime-gpu/nvidia/cuda_nvcc/bin/ptxas, nvvm/libdevice/libdevice.10.bc   for XLA

To run the tests or the matrix with another TensorFlow version (scripts/runtime-versions.txt
pins some):

    scripts/runtime.py --version 2.17.1
    STEADYFIT_TENSORFLOW=$PWD/.runtime-2.17.1/tensorflow make test-unit
    bin/steadyfit matrix --tensorflow 2.17.1,2.21.0

For a program that was built for another kind of machine, such as one to run under QEMU:

    scripts/runtime.py --machine aarch64 --dest .runtime-arm64/tensorflow

Needs Python 3.8 or newer and pip; uses the standard library only.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PIN = os.path.join(ROOT, "scripts", "runtime.txt")
PIN_EARLIER = os.path.join(ROOT, "scripts", "runtime-versions.txt")
PIN_GPU = os.path.join(ROOT, "scripts", "requirements-gpu.txt")
STAMP = "steadyfit-runtime.json"
# Increase this when the set of files taken from the wheel changes, so that folders made by an
# older script are made again.
LAYOUT = 1

LIBRARIES = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]
# The C headers that a C program may include. The headers that these include are added.
HEADERS = [
    "tensorflow/c/c_api.h",
    "tensorflow/c/c_api_experimental.h",
    "tensorflow/c/c_api_macros.h",
    "tensorflow/c/eager/c_api.h",
    "tensorflow/c/eager/c_api_experimental.h",
    "tensorflow/c/tf_attrtype.h",
    "tensorflow/c/tf_buffer.h",
    "tensorflow/c/tf_datatype.h",
    "tensorflow/c/tf_file_statistics.h",
    "tensorflow/c/tf_status.h",
    "tensorflow/c/tf_tensor.h",
    "tensorflow/c/tf_tstring.h",
]
NOTICES = ["THIRD_PARTY_NOTICES.txt", "include/LICENSE"]

# The files taken from the wheels for a GPU. From CUDA's: the libraries, the files that XLA needs
# for compilation, and the licence. Headers, static libraries and compilers of CUDA C are left out.
GPU_PACKAGES = r"tensorflow|nvidia-[a-z0-9-]+-cu12"
GPU_FILES = re.compile(
    r"nvidia/[^/]+/(lib/[^/]+\.so(\.[^/]*)?|bin/(ptxas|nvlink|fatbinary)|nvvm/libdevice/[^/]+\.bc)"
    r"|tensorflow/cuda/nvvm/libdevice/[^/]+\.bc"
)
GPU_LICENSE = re.compile(r"[^/]+\.dist-info/(licenses/)?License\.txt", re.IGNORECASE)

# The packages of TensorFlow without GPU support by kind of machine.
PACKAGES = {"x86_64": "tensorflow-cpu", "aarch64": "tensorflow"}


def platforms(machine, glibc=27):
    """The manylinux tags of wheels for a machine with this version of glibc, after the dot."""
    tags = [f"manylinux_2_{n}" for n in range(glibc, 4, -1)]
    return [f"{tag}_{machine}" for tag in [*tags, "manylinux2014", "manylinux2010", "manylinux1"]]


MB = 1_000_000
# pip downloads into a temporary folder and copies the wheel, so the disk must briefly hold it
# twice, and later the wheels and the extracted files.
NEED_FETCH, NEED_EXTRACT = 1200 * MB, 900 * MB
NEED_FETCH_GPU, NEED_EXTRACT_GPU = 10000 * MB, 6000 * MB


class Failure(Exception):
    """A failure that the user can fix."""


class Pin(NamedTuple):
    """A package in one version. The wheel must have one of the hashes, if there are any."""

    package: str
    version: str
    hashes: tuple = ()

    def requirement(self):
        return " ".join(
            [f"{self.package}=={self.version}", *("--hash=sha256:" + h for h in self.hashes)]
        )


def say(text):
    print("runtime: " + text, file=sys.stderr, flush=True)


def shown(path):
    """The path in the form in which a user would type it."""
    rel = os.path.relpath(path)
    return path if rel.startswith("..") else rel


def read_pins(path, packages):
    """The pins of packages whose whole names match, from a pip requirements file."""
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except FileNotFoundError:
        raise Failure(
            f"{shown(path)} is missing: the clone is incomplete; `git status` shows what is gone"
        )
    pins = []
    for line in re.sub(r"(^|\s)#.*", "", text).replace("\\\n", " ").splitlines():
        found = re.match(r"\s*([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", line)
        if found and re.fullmatch(packages, normal(found[1])):
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", line)
            pins.append(Pin(normal(found[1]), found[2], tuple(hashes)))
    if not pins or not all(p.hashes for p in pins):
        raise Failure(f"{shown(path)} must hold PACKAGE==VERSION --hash=sha256:HEX for {packages}")
    return pins


def normal(package):
    """A package's name in the form in which pip compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def package_of(wheel):
    return normal(os.path.basename(wheel).split("-")[0])


def check_platform():
    """Stop on machines where the wheel's libraries cannot be loaded."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in PACKAGES:
        raise Failure(
            f"this machine is {system} {machine}; the fetcher knows the wheels for Linux on {' and '.join(PACKAGES)}. "
            "Install TensorFlow another way and set STEADYFIT_TENSORFLOW to its library or folder"
        )
    libc, version = platform.libc_ver()
    if libc != "glibc":
        raise Failure(
            f"this system's C library is {libc or 'not glibc'}; TensorFlow's wheels need glibc 2.27 or newer"
        )
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < (2, 27):
        raise Failure(f"this system has glibc {version}; TensorFlow's wheels need 2.27 or newer")


def check_space(folder, need):
    free = shutil.disk_usage(folder).free
    if free < need:
        raise Failure(
            f"{shown(folder)} has {free / 1e9:.2f} GB free, {need / 1e9:.2f} GB are needed. "
            "Free some space, or choose another disk with --dest and set STEADYFIT_TENSORFLOW to it"
        )


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def complete(dest, pins):
    """Whether dest matches the stamp, and the stamp the requested version.

    Sizes are compared, not contents, because reading 850 MB at each `make test`
    would take too long.
    """
    try:
        with open(os.path.join(dest, STAMP), encoding="utf-8") as f:
            stamp = json.load(f)
        if stamp["layout"] != LAYOUT or stamp["version"] != tensorflow(pins).version:
            return False
        # Stamps of earlier versions describe the wheel for the CPU.
        held = stamp.get("wheels") or {"tensorflow-cpu": stamp["wheel_sha256"]}
        if held.keys() != {p.package for p in pins}:
            return False
        if any(p.hashes and held[p.package] not in p.hashes for p in pins):
            return False
        return all(
            os.path.getsize(os.path.join(dest, n)) == size for n, size in stamp["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def tensorflow(pins):
    return next(p for p in pins if p.package.startswith("tensorflow"))


def explain_pip(output, wanted, machine):
    """One sentence for the usual failures of `pip download`."""
    if re.search(
        r"Retrying|NewConnectionError|Max retries|name resolution|timed out|ConnectionError|SSLError|ProxyError",
        output,
    ):
        return (
            "pip could not reach its package index. Check the network and pip's own settings (`pip config list`), "
            "or bring the wheel by other means and pass --wheel FILE"
        )
    if re.search(r"DO NOT MATCH THE HASHES", output):
        return "the downloaded wheel is not the pinned one (hash differs). Do not use it; find out where pip got it from"
    if re.search(r"No space left", output):
        return "the disk filled up during the download"
    if re.search(r"No matching distribution|Could not find a version", output):
        return f"pip's package index offers no {wanted} wheel for CPython {TAG} on Linux {machine}"
    return "pip failed; its message is above"


TAG = "311"


def pip_download(partial, pins, machine):
    """Downloads wheels into partial/wheel and returns their paths by package."""
    pip = [sys.executable, "-m", "pip"]
    probe = subprocess.run([*pip, "--version"], check=False, capture_output=True)
    if probe.returncode:
        raise Failure(
            f"{sys.executable} has no pip. Install it (Debian: apt-get install python3-pip), or pass --wheel FILE"
        )
    incoming = os.path.join(partial, "incoming")
    os.makedirs(incoming)
    command = pip + ["download", "--no-deps", "--only-binary=:all:", "--dest", incoming]
    command += ["--python-version", TAG, "--implementation", "cp", "--abi", "cp" + TAG]
    for tag in platforms(machine):
        command += ["--platform", tag]
    if not sys.stderr.isatty():
        command += ["--progress-bar", "off"]
    if all(p.hashes for p in pins):
        pinned = os.path.join(incoming, "requirements.txt")
        with open(pinned, "w", encoding="utf-8") as f:
            f.writelines(p.requirement() + "\n" for p in pins)
        command += ["--require-hashes", "-r", pinned]
    else:
        command += [f"{p.package}=={p.version}" for p in pins]
    # pip unpacks downloads in TMPDIR, which may be a small tmpfs.
    temporary = os.path.join(partial, "tmp")
    os.makedirs(temporary)
    environment = dict(os.environ, TMPDIR=temporary, PIP_DISABLE_PIP_VERSION_CHECK="1")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        env=environment,
    )
    seen = []

    def echo():
        for line in process.stderr:
            text = line.decode("utf-8", "replace")
            seen.append(text)
            sys.stderr.write(text)
            sys.stderr.flush()

    reader = threading.Thread(target=echo, daemon=True)
    reader.start()
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    reader.join(5)
    if code:
        wanted = " or ".join(f"{p.package} {p.version}" for p in pins)
        raise Failure(explain_pip("".join(seen), wanted, machine))
    names = {package_of(n): n for n in os.listdir(incoming) if n.endswith(".whl")}
    if names.keys() != {p.package for p in pins}:
        raise Failure(
            f"pip left {sorted(names.values())} where a wheel of each package was expected"
        )
    kept = os.path.join(partial, "wheel")
    os.makedirs(kept, exist_ok=True)
    for name in names.values():
        os.replace(os.path.join(incoming, name), os.path.join(kept, name))
    return {package: os.path.join(kept, name) for package, name in names.items()}


def clean(partial):
    """Remove the files of an interrupted run, except complete wheels."""
    for name in ("incoming", "tmp", "tree", "old"):
        shutil.rmtree(os.path.join(partial, name), ignore_errors=True)


def kept_wheels(partial, pins):
    """Complete wheels from an interrupted run, by package."""
    folder = os.path.join(partial, "wheel")
    kept = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        pin = next((p for p in pins if p.package == package_of(name)), None)
        wanted = pin and f"-{pin.version}-" in name
        if wanted and zipfile.is_zipfile(path) and (not pin.hashes or sha256(path) in pin.hashes):
            kept[pin.package] = path
        else:
            os.remove(path)
    return kept


def given_wheels(paths, pins):
    """The wheels of --wheel, by package."""
    for path in paths:
        if not os.path.isfile(path):
            raise Failure(f"--wheel {path}: no such file")
    wheels = {package_of(path): path for path in paths}
    for p in pins:
        if p.package not in wheels:
            raise Failure(f"--wheel: none of the files is a wheel of {p.package}")
    return {p.package: wheels[p.package] for p in pins}


def header_closure(archive):
    """The paths, in the wheel, of HEADERS and of all headers that they include."""
    names = set(archive.namelist())
    found, todo = set(), list(HEADERS)
    while todo:
        header = todo.pop()
        name = "tensorflow/include/" + header
        if name in found or name not in names:
            continue  # not in this version, or a system header
        found.add(name)
        text = archive.read(name).decode("utf-8", "replace")
        todo += re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)
    return found


def members(archive, wheel, gpu):
    """The members of a wheel to extract: names in it, and their paths here."""
    names = archive.namelist()
    if not package_of(wheel).startswith("tensorflow"):
        taken = {n: n for n in names if GPU_FILES.fullmatch(n)}
        if not taken:
            raise Failure(f"{os.path.basename(wheel)} holds no library as nvidia/NAME/lib/*.so*")
        for n in filter(GPU_LICENSE.fullmatch, names):
            taken[n] = f"nvidia/licenses/{package_of(wheel)}.txt"
        return taken
    missing = [n for n in LIBRARIES if "tensorflow/" + n not in names]
    if missing:
        raise Failure(
            f"{os.path.basename(wheel)} holds no {' and no '.join(missing)}; take a newer TensorFlow"
        )
    wanted = ["tensorflow/" + n for n in LIBRARIES + NOTICES if "tensorflow/" + n in names]
    if gpu:
        return {n: n for n in wanted + [n for n in names if GPU_FILES.fullmatch(n)]}
    wanted += sorted(header_closure(archive))
    return {n: n[len("tensorflow/") :] for n in wanted}


def extract(wheels, tree, gpu):
    """Write the wanted members of the wheels below tree; returns their sizes."""
    sizes = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name, inner in members(archive, wheel, gpu).items():
                if os.path.isabs(inner) or ".." in inner.split("/"):
                    raise Failure(
                        f"the wheel holds a file with the name {name!r}; it is not a TensorFlow wheel"
                    )
                target = os.path.join(tree, inner)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                # zipfile compares the CRC at the end of each member.
                with archive.open(name) as source, open(target, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                    sink.flush()
                    os.fsync(sink.fileno())
                if "/bin/" in inner:
                    os.chmod(target, 0o755)
                sizes[inner] = os.path.getsize(target)
    return sizes


def install(wheels, partial, dest, version, digests, gpu):
    tree = os.path.join(partial, "tree")
    os.makedirs(tree)
    sizes = extract(wheels, tree, gpu)
    with open(os.path.join(tree, STAMP), "w", encoding="utf-8") as f:
        json.dump(
            {"layout": LAYOUT, "version": version, "wheels": digests, "files": sizes}, f, indent=1
        )
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())
    if os.path.lexists(dest):
        # A process that has mapped the old library keeps it, since a rename does not change its
        # inode.
        os.replace(dest, os.path.join(partial, "old"))
    os.replace(tree, dest)
    return sum(sizes.values())


def wanted(args):
    if args.gpu:
        return read_pins(PIN_GPU, GPU_PACKAGES)
    package = PACKAGES.get(args.machine, "tensorflow-cpu")
    pinned = read_pins(PIN, package)
    if not args.version:
        return pinned
    if args.sha256:
        return [Pin(package, args.version, (args.sha256,))]
    known = pinned + (read_pins(PIN_EARLIER, package) if package == "tensorflow-cpu" else [])
    return [p for p in known if p.version == args.version] or [Pin(package, args.version)]


def fetch(args):
    pins = wanted(args)
    version = tensorflow(pins).version
    dest = os.path.abspath(args.dest)
    if complete(dest, pins):
        say(f"TensorFlow {version} is in {shown(dest)}; nothing to do")
        return
    if args.machine == platform.machine():
        check_platform()
    partial = dest + ".partial"
    os.makedirs(partial, exist_ok=True)
    with open(os.path.join(partial, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another run is fetching; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            if complete(dest, pins):
                say(f"TensorFlow {version} is in {shown(dest)}; nothing to do")
                return
        if (
            os.path.exists(dest)
            and not os.path.exists(os.path.join(dest, STAMP))
            and os.listdir(dest)
        ):
            raise Failure(
                f"{shown(dest)} exists and was not made by this script; remove it or choose another --dest"
            )
        clean(partial)
        wheels = given_wheels(args.wheel, pins) if args.wheel else kept_wheels(partial, pins)
        if wheels and not args.wheel:
            say("taking what an interrupted run downloaded")
        missing = [p for p in pins if p.package not in wheels]
        if missing:
            check_space(partial, NEED_FETCH_GPU if args.gpu else NEED_FETCH)
            if not all(p.hashes for p in missing):
                say(
                    f"no hash given for {version}: the wheel is taken as pip serves it (pass --sha256 to pin it)"
                )
            names = (
                f"{len(missing)} wheels" if args.gpu else f"the {pins[0].package} {version} wheel"
            )
            say(f"downloading {names} with pip ({'3.4 GB in all' if args.gpu else 'about 270 MB'})")
            # One by one, so that an interruption loses one download only.
            for pin in missing:
                wheels.update(pip_download(partial, [pin], args.machine))
                clean(partial)
        else:
            check_space(partial, NEED_EXTRACT_GPU if args.gpu else NEED_EXTRACT)
        digests = {package: sha256(path) for package, path in wheels.items()}
        for p in pins:
            if p.hashes and digests[p.package] not in p.hashes:
                raise Failure(
                    f"{shown(wheels[p.package])} has SHA-256 {digests[p.package]}, not the pinned one"
                )
        say(f"extracting the libraries{'' if args.gpu else ' and C headers'} to {shown(dest)}")
        total = install(wheels.values(), partial, dest, version, digests, args.gpu)
        clean(partial)
        shutil.rmtree(os.path.join(partial, "wheel"), ignore_errors=True)
    shutil.rmtree(partial, ignore_errors=True)
    say(f"TensorFlow {version} is in {shown(dest)} ({total / 1e6:.0f} MB)")


def main(argv):
    parser = argparse.ArgumentParser(
        description="Fetches the TensorFlow libraries that steadyfit loads."
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="TensorFlow with GPU support and CUDA's libraries, as scripts/requirements-gpu.txt pins them",
    )
    parser.add_argument(
        "--dest",
        help="folder to make (default: .runtime/tensorflow; with --version V .runtime-V/tensorflow; with --gpu .runtime-gpu, which gets the folders tensorflow and nvidia)",
    )
    parser.add_argument(
        "--version",
        help="another version; unless scripts/runtime-versions.txt has its hash, or --sha256 is given, the hash is unchecked",
    )
    parser.add_argument("--sha256", help="hash of the wheel for --version")
    parser.add_argument(
        "--wheel",
        action="append",
        help="take this wheel file instead of downloading (with --gpu one for each package); a pinned version's hash is still compared",
    )
    parser.add_argument(
        "--machine",
        choices=list(PACKAGES),
        default=platform.machine(),
        help="kind of machine to fetch for (default: this one)",
    )
    args = parser.parse_args(argv)
    if args.gpu and args.machine != "x86_64":
        parser.error("--gpu needs a machine of the kind x86_64")
    if args.sha256 and not args.version:
        parser.error("--sha256 goes with --version")
    if args.gpu and args.version:
        parser.error("--gpu takes its versions from scripts/requirements-gpu.txt")
    if not args.dest:
        folder = ".runtime-" + args.version if args.version else ".runtime"
        args.dest = (
            os.path.join(ROOT, ".runtime-gpu")
            if args.gpu
            else os.path.join(ROOT, folder, "tensorflow")
        )
    # make and CI end a command with SIGTERM; pip must not continue without its parent.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        fetch(args)
    except Failure as failure:
        say(f"error: {failure}")
        return 1
    except OSError as error:
        say(f"error: {error}")
        return 1
    except zipfile.BadZipFile as error:
        say(f"error: the wheel is damaged ({error}); run again")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run again to go on (a complete download is kept)")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
