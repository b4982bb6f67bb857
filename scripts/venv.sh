#!/usr/bin/env bash
# Makes the Python environment of the exporter and its tests (`make venv`), or one with
# GPU support (`make venv-gpu`).
#
#   scripts/venv.sh [FOLDER [REQUIREMENTS]]
#
# The requirements file pins every package by version and hash. The stamp has the hash of the
# requirements file and the Python version, so a second run does nothing and a changed pin
# installs again. The stamp is written last, so an interrupted run is repeated.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:-$root/.runtime/venv}
requirements=$(realpath "${2:-$root/scripts/requirements.txt}")
python=${PYTHON:-python3}
stamp=$venv/steadyfit-venv.txt

say() { printf 'venv: %s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

command -v "$python" >/dev/null || die "no $python on the PATH; set PYTHON to a Python 3.11 or newer"
[ -f "$requirements" ] || die "$requirements is missing: the clone is incomplete"

wanted="$("$python" -c 'import sys; print("python", sys.version.split()[0])') requirements $(sha256sum <"$requirements" | cut -d' ' -f1)"

# A moved virtual environment does not work, so check that its interpreter starts.
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "$(realpath --relative-to="$PWD" "$venv") is up to date; nothing to do"
    exit 0
fi

mkdir -p "$(dirname "$venv")"
free_kb=$(df -Pk "$(dirname "$venv")" | awk 'NR == 2 { print $4 }')
need_kb=3000000
size='about 2 GB'
if grep -q '^nvidia-' "$requirements"; then
    need_kb=14000000
    size='about 8 GB'
fi
[ "$free_kb" -ge "$need_kb" ] || die "$((free_kb / 1000)) MB are free on the disk of $venv, $((need_kb / 1000)) MB are needed"

say "making $(realpath --relative-to="$PWD" "$venv") with $("$python" --version) and the packages of $(realpath --relative-to="$PWD" "$requirements") ($size)"
rm -f "$stamp"
"$python" -m venv --clear "$venv" || die "could not make the environment; on Debian, apt-get install python3-venv"

# pip unpacks downloads in TMPDIR, which may be a small tmpfs.
tmp=$(mktemp -d "$venv/tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
TMPDIR=$tmp "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --require-hashes --only-binary=:all: -r "$requirements" >&2 ||
    die "pip could not install the packages; its message is above (no network, or this Python has no wheel for a pinned version: set PYTHON to a Python 3.11)"

printf '%s\n' "$wanted" >"$stamp"
say "done"
