#!/usr/bin/env bash
# Runs go test under gotestsum, which prints failures, skipped tests with their
# reasons, and the slowest tests, each line after the title, since two of these scripts may
# run at the same time. Vet is left to scripts/lint.sh. The counts go to out/test/TITLE.xml.
#
# MODULE is the folder of another module to test.
#
#   scripts/gotest.sh TITLE [ARGUMENT OF GO TEST]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
gotestsum=gotest.tools/gotestsum@v1.13.0
title=$1
shift
mkdir -p out/test
reports=$PWD/out/test
cd "${MODULE:-.}"
{
    code=0
    "${GO:-go}" run "$gotestsum" --format pkgname-and-test-fails --format-hide-empty-pkg --format-icons text \
        --jsonfile "$reports/$title.json" --junitfile "$reports/$title.xml" --junitfile-project-name "$title" -- -vet=off "$@" || code=$?
    echo "tests of 5 seconds and more"
    "${GO:-go}" run "$gotestsum" tool slowest --threshold 5s --num 12 --jsonfile "$reports/$title.json" || true
    exit "$code"
} 2>&1 | sed -u "s/^/$title: /"
