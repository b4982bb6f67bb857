#!/usr/bin/env bash
# Measures predictions per second and memory in 6 turns. In each turn, every way to predict runs in a new process.
# benchstat prints the medians; the range of 6 values is its interval. Needs internal/lab/bench/build.sh.
#
#   serve.sh [ARGUMENT OF THE BENCHMARK, such as -test.benchtime=3s]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
programs=$PWD/out/bench
# shellcheck source=internal/lab/bench/galeone.env
source internal/lab/bench/galeone.env
for binding in galeone graft; do
    (cd internal/lab/bindings && go test -c -tags "$binding" -o "$programs/serve-$binding" ./beside)
done
export STEADYFIT_BENCH_C=$programs/cloop TF_CPP_MIN_LOG_LEVEL=2
for _ in 1 2 3 4 5 6; do
    for way in c galeone graft serve serve-joined; do
        binding=galeone
        [ "$way" != graft ] || binding=graft
        "$programs/serve-$binding" -test.run '^$' -test.bench "Serve/way=$way\$" "$@"
    done
done | tee "$programs/serve.txt"
go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da -col /way "$programs/serve.txt"
