#!/usr/bin/env bash
# Runs each fuzz target of the module for a time, one after the other, and adds their counts
# to the summary of `make test`. What makes one fail is kept in testdata/fuzz of its package.
#
#   scripts/fuzz.sh TIME [SUMMARY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

passed=0
failed=()
while IFS=: read -r file target; do
    folder=./$(dirname "$file")
    echo "==> $target in $folder, $1"
    if "${GO:-go}" test -run '^$' -fuzz "^$target\$" -fuzztime "$1" -fuzzminimizetime 100x "$folder" </dev/null; then
        passed=$((passed + 1))
    else
        failed+=("$target")
    fi
done < <(git grep -oE '^func Fuzz[A-Za-z]+' -- '*_test.go' | sed 's/:func /:/')
if [ $# -gt 1 ]; then
    mkdir -p "$(dirname "$2")"
    echo "fuzz: $passed passed, ${#failed[@]} failed, 0 skipped" >>"$2"
fi
if [ "${#failed[@]}" -gt 0 ]; then
    echo "fuzz: failed: ${failed[*]}" >&2
    exit 1
fi
