#!/usr/bin/env bash
# Runs every linter, prints what each finds, and fails if one found something.
#
#   scripts/lint.sh honnef.co/go/tools/cmd/staticcheck@VERSION
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
staticcheck=$1
failed=()

check() {
    local name=$1
    shift
    printf 'lint: %s\n' "$name" >&2
    "$@" || failed+=("$name")
}

formatted() {
    local files
    files=$(git ls-files -z --cached --others --exclude-standard -- '*.go' | xargs -0r gofmt -l)
    [ -z "$files" ] || {
        printf '%s\n' "$files" 'run: gofmt -w on these files' >&2
        return 1
    }
}

shells() {
    local file ok=0
    while IFS= read -r -d '' file; do
        bash -n "$file" || ok=1
    done < <(git ls-files -z --cached --others --exclude-standard -- '*.sh' .ci/run)
    return "$ok"
}

pythons() {
    git ls-files -z --cached --others --exclude-standard -- '*.py' |
        xargs -0r python3 -c 'import ast, sys; [ast.parse(open(f, encoding="utf-8").read(), f) for f in sys.argv[1:]]'
}

galeone() {
    # shellcheck source=/dev/null
    (source internal/lab/bench/galeone.env && go vet -tags 'galeone tfgo' ./internal/lab/baseline ./internal/lab/galeone/... ./examples/augment)
}

check gofmt formatted
check 'go vet' go vet ./...
check 'go vet, tags galeone and tfgo' galeone
check 'go vet, test tags' go vet -tags 'gcstress leakcheck' ./...
check staticcheck go run "$staticcheck" ./...
check 'project rules' go test -count=1 ./internal/lint
check 'shell syntax' shells
check 'python syntax' pythons
if command -v shellcheck >/dev/null; then
    check shellcheck shellcheck scripts/*.sh internal/lab/bench/*.sh .ci/run
fi
if [ -x .runtime/venv/bin/ruff ]; then
    check ruff .runtime/venv/bin/ruff check scripts
fi

if [ "${#failed[@]}" -gt 0 ]; then
    printf 'lint: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
printf 'lint: clean\n' >&2
