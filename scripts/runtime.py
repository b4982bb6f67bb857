#!/usr/bin/env python3
"""Fetches the TensorFlow runtime: `make runtime`.

A TensorFlow wheel holds the two shared libraries that steadyfit loads and the
headers of their C API; the rest of it, some 600 MB of Python, is not needed.
This script lets pip download the wheel that scripts/runtime.txt pins by hash,
takes out those files and deletes the wheel:

    .runtime/tensorflow/libtensorflow_cc.so.2          790 MB
    .runtime/tensorflow/libtensorflow_framework.so.2    65 MB, must lie beside it
    .runtime/tensorflow/include/tensorflow/c/...        headers, for `make abi`

A second run compares the folder with its stamp and does nothing. An
interrupted run leaves `<dest>.partial`; the next run takes a complete wheel
from there and throws the rest away. Nothing appears at <dest> before all of it
is on the disk.

Another TensorFlow, to run the tests against it:

    scripts/runtime.py --version 2.17.1 --dest .runtime-2.17/tensorflow
    STEADYFIT_TENSORFLOW=$PWD/.runtime-2.17/tensorflow make test-unit

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

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PIN = os.path.join(ROOT, "scripts", "runtime.txt")
STAMP = "steadyfit-runtime.json"
# Raised when the set of files taken from the wheel changes, so that folders
# made by an older script are made again.
LAYOUT = 1

LIBRARIES = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"]
# The C headers a C program may include; what these include comes with them.
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

# manylinux tags that TensorFlow has published x86-64 wheels under.
PLATFORMS = ["manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]

MB = 1_000_000
# pip downloads into a temporary folder and copies from there, so for a moment
# there are two wheels; afterwards one wheel and the libraries.
NEED_FETCH = 1200 * MB
NEED_EXTRACT = 900 * MB


class Failure(Exception):
    """Something that the person at the terminal can act on."""


def say(text):
    print("runtime: " + text, file=sys.stderr, flush=True)


def shown(path):
    """The path as the person would type it."""
    rel = os.path.relpath(path)
    return path if rel.startswith("..") else rel


def read_pin(path):
    """Version and hashes from a one-requirement pip file."""
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except FileNotFoundError:
        raise Failure(
            f"{shown(path)} is missing: the clone is incomplete; `git status` shows what is gone"
        )
    text = re.sub(r"(^|\s)#.*", "", text).replace("\\\n", " ")
    version = re.search(r"tensorflow[-_]cpu==([^\s;]+)", text)
    hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", text)
    if not version or not hashes:
        raise Failure(f"{shown(path)} must hold tensorflow-cpu==VERSION --hash=sha256:HEX")
    return version.group(1), hashes


def check_platform():
    """Stops on machines for which the wheel holds no loadable library."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "AMD64"):
        raise Failure(
            f"this machine is {system} {machine}; the fetcher knows the Linux x86_64 wheel only. "
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


def complete(dest, version, hashes):
    """Whether dest holds what the stamp says, and the stamp what was asked for.

    Sizes are compared, not contents: reading 850 MB at each `make test` would
    cost more than it could find.
    """
    try:
        with open(os.path.join(dest, STAMP), encoding="utf-8") as f:
            stamp = json.load(f)
        if stamp["layout"] != LAYOUT or stamp["version"] != version:
            return False
        if hashes and stamp["wheel_sha256"] not in hashes:
            return False
        return all(
            os.path.getsize(os.path.join(dest, n)) == size for n, size in stamp["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def explain_pip(output, version):
    """One sentence for the usual ways in which `pip download` fails."""
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
        return f"pip's package index offers no tensorflow-cpu {version} wheel for CPython {TAG} on Linux x86_64"
    return "pip failed; its message is above"


TAG = "311"


def pip_download(partial, version, pinned):
    """Downloads the wheel into partial/wheel and returns its path."""
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
    for tag in PLATFORMS:
        command += ["--platform", tag]
    if not sys.stderr.isatty():
        command += ["--progress-bar", "off"]
    command += ["--require-hashes", "-r", pinned] if pinned else ["tensorflow-cpu==" + version]
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
        raise Failure(explain_pip("".join(seen), version))
    names = [n for n in os.listdir(incoming) if n.endswith(".whl")]
    if len(names) != 1:
        raise Failure(f"pip left {names} where one wheel was expected")
    kept = os.path.join(partial, "wheel")
    os.makedirs(kept, exist_ok=True)
    wheel = os.path.join(kept, names[0])
    os.replace(os.path.join(incoming, names[0]), wheel)
    return wheel


def clean(partial):
    """Removes what an interrupted run left, except a complete wheel."""
    for name in ("incoming", "tmp", "tree", "old"):
        shutil.rmtree(os.path.join(partial, name), ignore_errors=True)


def kept_wheel(partial, version, hashes):
    """A complete wheel from an interrupted run, or None."""
    folder = os.path.join(partial, "wheel")
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name)
        wanted = name.lower().startswith(f"tensorflow_cpu-{version}-")
        if wanted and zipfile.is_zipfile(path) and (not hashes or sha256(path) in hashes):
            return path
        os.remove(path)
    return None


def header_closure(archive):
    """Names in the wheel of HEADERS and of all that they include."""
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


def extract(wheel, tree):
    """Writes the wanted members of the wheel below tree; returns their sizes."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        missing = [n for n in LIBRARIES if "tensorflow/" + n not in names]
        if missing:
            raise Failure(
                f"{os.path.basename(wheel)} holds no {' and no '.join(missing)}; take a newer TensorFlow"
            )
        wanted = ["tensorflow/" + n for n in LIBRARIES + NOTICES if "tensorflow/" + n in names]
        sizes = {}
        for name in wanted + sorted(header_closure(archive)):
            inner = name[len("tensorflow/") :]
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
            sizes[inner] = os.path.getsize(target)
        return sizes


def install(wheel, partial, dest, version, digest):
    tree = os.path.join(partial, "tree")
    os.makedirs(tree)
    sizes = extract(wheel, tree)
    with open(os.path.join(tree, STAMP), "w", encoding="utf-8") as f:
        json.dump(
            {"layout": LAYOUT, "version": version, "wheel_sha256": digest, "files": sizes},
            f,
            indent=1,
        )
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())
    if os.path.lexists(dest):
        # A process that has the old library mapped keeps it: a rename leaves its inode alone.
        os.replace(dest, os.path.join(partial, "old"))
    os.replace(tree, dest)
    return sum(sizes.values())


def fetch(args):
    if args.version:
        version, hashes, pinned = args.version, [args.sha256] if args.sha256 else [], None
    else:
        version, hashes = read_pin(PIN)
        pinned = PIN
    dest = os.path.abspath(args.dest)
    if complete(dest, version, hashes):
        say(f"TensorFlow {version} is in {shown(dest)}; nothing to do")
        return
    check_platform()
    partial = dest + ".partial"
    os.makedirs(partial, exist_ok=True)
    with open(os.path.join(partial, "lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another run is fetching; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            if complete(dest, version, hashes):
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
        if args.wheel:
            wheel = args.wheel
            if not os.path.isfile(wheel):
                raise Failure(f"--wheel {wheel}: no such file")
            check_space(partial, NEED_EXTRACT)
        else:
            wheel = kept_wheel(partial, version, hashes)
            if wheel:
                say("taking the wheel that an interrupted run downloaded")
                check_space(partial, NEED_EXTRACT)
            else:
                check_space(partial, NEED_FETCH)
                if not hashes:
                    say(
                        f"no hash given for {version}: the wheel is taken as pip serves it (pass --sha256 to pin it)"
                    )
                say(f"downloading the tensorflow-cpu {version} wheel with pip (about 270 MB)")
                wheel = pip_download(partial, version, pinned)
        digest = sha256(wheel)
        if hashes and digest not in hashes:
            raise Failure(f"{shown(wheel)} has SHA-256 {digest}, not the pinned one")
        say(f"extracting the libraries and C headers to {shown(dest)}")
        total = install(wheel, partial, dest, version, digest)
        clean(partial)
        shutil.rmtree(os.path.join(partial, "wheel"), ignore_errors=True)
    shutil.rmtree(partial, ignore_errors=True)
    say(f"TensorFlow {version} is in {shown(dest)} ({total / 1e6:.0f} MB)")


def main(argv):
    parser = argparse.ArgumentParser(
        description="Fetches the TensorFlow libraries that steadyfit loads."
    )
    parser.add_argument(
        "--dest",
        default=os.path.join(ROOT, ".runtime", "tensorflow"),
        help="folder to make (default: .runtime/tensorflow)",
    )
    parser.add_argument(
        "--version",
        help="another version than the pinned one; its hash is unchecked unless --sha256 is given",
    )
    parser.add_argument("--sha256", help="hash of the wheel for --version")
    parser.add_argument(
        "--wheel",
        help="take this wheel file instead of downloading; a pinned version's hash is still compared",
    )
    args = parser.parse_args(argv)
    if args.sha256 and not args.version:
        parser.error("--sha256 goes with --version")
    # make and CI end a command with SIGTERM; pip must not go on without its parent.
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
