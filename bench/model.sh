#!/usr/bin/env bash
# Exports one benchmark model into out/models unless it is there.
#
#   bench/model.sh VENV NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1 name=$2
if [ -f "out/models/$name/saved_model.pb" ]; then
    exit 0
fi
make --no-print-directory venv
TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" scripts/bench_models.py out/models --only "$name"
