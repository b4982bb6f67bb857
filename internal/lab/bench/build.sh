#!/usr/bin/env bash
# Builds the programs that need TensorFlow at link time into out/bench: the C loop of the benchmark, and the programs of
# the matrix on galeone's binding. Needs `make runtime`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
runtime=.runtime/tensorflow
[ -f "$runtime/libtensorflow_cc.so.2" ] || {
    echo "bench: $runtime is missing; run: make runtime" >&2
    exit 1
}
mkdir -p out/bench

loop=out/bench/cloop
if [ ! -x "$loop" ] || [ internal/lab/bench/cloop/cloop.c -nt "$loop" ] || [ "$runtime/libtensorflow_cc.so.2" -nt "$loop" ]; then
    # $ORIGIN stands for the folder of the program, for the dynamic linker.
    # shellcheck disable=SC2016
    "${CC:-cc}" -std=gnu11 -O2 -pthread -Wall -Werror -I"$runtime/include" -o "$loop" internal/lab/bench/cloop/cloop.c \
        -L"$runtime" -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 \
        '-Wl,-rpath,$ORIGIN/../../.runtime/tensorflow'
fi

# shellcheck source=internal/lab/bench/galeone.env
source internal/lab/bench/galeone.env
go build -tags galeone -o out/bench/galeone ./internal/lab/programs/galeone
