#!/usr/bin/env bash
# Measures trainings or predictions, in turns: in a turn, every way runs every model in a new process. Every second turn
# has the reverse order. benchstat prints the medians; 6 turns or more give it an interval. Needs build.sh.
#
#   bench.sh train|serve [ARGUMENT OF THE BENCHMARK, such as -test.benchtime=3s]...
#
# TURNS, MODELS and WAYS choose what is run. The figures go to out/bench/train.txt or serve.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
what=$1
shift
export STEADYFIT_BENCH=$PWD/out/bench STEADYFIT_BENCH_PYTHON=$PWD/.runtime/venv/bin/python TF_CPP_MIN_LOG_LEVEL=2
# shellcheck source=internal/lab/bench/galeone.env
source internal/lab/bench/galeone.env
for binding in galeone graft; do
    (cd internal/lab/bindings && go test -c -tags "$binding" -o "$STEADYFIT_BENCH/bench-$binding" ./beside)
done

if [ "$what" = train ]; then
    models=${MODELS:-dense-100-64-1 dense-784-10 dropout-200-512-256-1 digits-cnn lstm attention image-224}
    ways=${WAYS:-c galeone fit fit-auto keras-fit keras-fit-spe keras-fit-jit keras-fit-spe-jit}
    rm -rf "$STEADYFIT_BENCH/data"
    for model in $models; do
        [ -e "$STEADYFIT_BENCH/models/$model" ] ||
            "$STEADYFIT_BENCH_PYTHON" scripts/bench_models.py "$STEADYFIT_BENCH/models" --twins --only "$model" >&2
    done
else
    models=model
    ways=${WAYS:-c galeone graft serve serve-joined}
fi
order=()
for model in $models; do
    for way in $ways; do
        [ "$what" = train ] && order+=("Train/model=$model\$/way=$way\$") || order+=("Serve/way=$way\$")
    done
done
for turn in $(seq "${TURNS:-6}"); do
    for i in "${!order[@]}"; do
        [ $((turn % 2)) = 1 ] || i=$((${#order[@]} - 1 - i))
        binding=galeone
        [[ ${order[i]} != *way=graft* ]] || binding=graft
        "$STEADYFIT_BENCH/bench-$binding" -test.run '^$' -test.bench "${order[i]}" "$@"
    done
done | tee "$STEADYFIT_BENCH/$what.txt"
go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da -row .name,/model,/goroutines -col /way "$STEADYFIT_BENCH/$what.txt"
