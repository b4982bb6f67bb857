#!/usr/bin/env bash
# Prints a pattern for go test: the tests that a lane of `make test` skips, or the only ones that it
# runs. A test names these lanes in a line above its function, with the reason in parentheses:
#
#   //lane:skip race gcstress (ends processes)
#   //lane:run soak
#
#   scripts/lane.sh skip|run LANE
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

git grep -h --untracked -E '^//lane:|^func Test' -- '*_test.go' | awk -v verb="//lane:$1" -v lane="$2" '
    $1 == verb { for (i = 2; i <= NF && $i !~ /^\(/; i++) if ($i == lane) named = 1 }
    $1 == "func" {
        if (named) { sub(/\(.*/, "", $2); names = names "|" $2 }
        named = 0
    }
    END { if (names == "") exit 1; print "^(" substr(names, 2) ")$" }'
