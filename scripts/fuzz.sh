#!/usr/bin/env bash
# Runs each fuzz target of the module, one after the other. Go stores an input that
# fails in testdata/fuzz of the package. With guided, coverage guides the choice of inputs, as
# in long runs; that takes minutes to compile, since all packages are instrumented.
#
#   scripts/fuzz.sh COUNTx|TIME PROCESSES [guided]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

binaries=$(mktemp -d)
trap 'rm -rf "$binaries"' EXIT
targets=$(git grep -oE '^func Fuzz[A-Za-z0-9]+' -- '*_test.go' | sed 's/:func /:/')
failed=()
instrument=()
[ "${3:-}" != guided ] || instrument=(-fuzz=.)
while IFS=: read -r file target; do
    folder=$(dirname "$file")
    binary=$binaries/${folder//\//-}
    echo "==> $target in $folder, $1"
    [ -e "$binary" ] || "${GO:-go}" test -c -vet=off "${instrument[@]}" -o "$binary" "./$folder"
    (cd "$folder" && "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$1" -test.parallel "$2" \
        -test.fuzzminimizetime 100x -test.fuzzcachedir "$binaries/cache" </dev/null) || failed+=("$target")
done <<<"$targets"
if [ "${#failed[@]}" -gt 0 ]; then
    echo "fuzz: failed: ${failed[*]}" >&2
    exit 1
fi
