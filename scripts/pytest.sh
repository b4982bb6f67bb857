#!/usr/bin/env bash
# Runs the Python tests and adds their counts to the summary of `make test`.
#
#   scripts/pytest.sh VENV SUMMARY
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1 summary=$2
report=$(dirname "$summary")/pytest.xml

mkdir -p "$(dirname "$summary")"
rm -f "$report"
code=0
# -rs prints each skipped test with its reason.
TF_CPP_MIN_LOG_LEVEL=2 "$venv/bin/python" -m pytest -q -rs -n auto --maxprocesses 4 --junit-xml="$report" scripts/tests || code=$?

"$venv/bin/python" - "$report" "$summary" <<'PY'
import sys, xml.etree.ElementTree as tree
try:
    n = {k: int(v) for k, v in tree.parse(sys.argv[1]).find(".//testsuite").attrib.items() if v.isdigit()}
except (OSError, tree.ParseError, AttributeError):
    n = {"tests": 1, "errors": 1}  # pytest died before its report
failed = n.get("failures", 0) + n.get("errors", 0)
skipped = n.get("skipped", 0)
with open(sys.argv[2], "a", encoding="utf-8") as f:
    f.write(f"pytest: {n['tests'] - failed - skipped} passed, {failed} failed, {skipped} skipped\n")
PY
exit "$code"
