#!/usr/bin/env bash
# Runs every linter, prints the findings, and fails if there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
golangci=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0
failed=()
skipped=()

check() {
    local name=$1
    shift
    printf 'lint: %s\n' "$name" >&2
    "$@" || failed+=("$name")
}

bindings() {
    # shellcheck source=/dev/null
    (source internal/lab/bench/galeone.env && go vet -tags 'galeone tfgo' ./examples/augment &&
        cd internal/lab/bindings && go vet -tags galeone ./... && go vet -tags graft ./beside)
}

# tagged vets the packages that have files with these build tags. The tags do not change others.
tagged() {
    git grep -lzE '^//go:build.*gcstress' -- '*.go' | xargs -0r -n 1 dirname | sort -u | sed 's|^|./|' |
        xargs -r go vet -tags gcstress
}

shells() {
    local file ok=0
    while IFS= read -r -d '' file; do
        bash -n "$file" || ok=1
    done < <(git ls-files -z -- '*.sh' .ci/run)
    return "$ok"
}

pythons() {
    git ls-files -z -- '*.py' |
        xargs -0r python3 -c 'import ast, sys; [ast.parse(open(f, encoding="utf-8").read(), f) for f in sys.argv[1:]]'
}

# vulnerabilities looks for known ones in the modules. The database is on a network, GOVULNDB names a copy. Where none is
# reached, the check is reported as skipped; with VULNERABILITIES=required, as before a release, it fails.
vulnerabilities() {
    local output code=0
    output=$(go run "$govulncheck" ./... 2>&1) || code=$?
    printf '%s\n' "$output" >&2
    if [[ "$output" == *'fetching vulnerabilities'* && "${VULNERABILITIES:-}" != required ]]; then
        skipped+=('vulnerabilities: no database was reached')
        return 0
    fi
    return "$code"
}

check golangci-lint go run "$golangci" run ./...
check 'go vet, other bindings' bindings
check 'go vet, test tags' tagged
check 'builds without cgo' env CGO_ENABLED=0 go build ./data/... ./memory/... ./option/... ./supervise/...
check vulnerabilities vulnerabilities
check 'project rules' go test -count=1 ./internal/lint
check 'shell syntax' shells
check 'python syntax' pythons
if command -v shellcheck >/dev/null; then
    check shellcheck shellcheck scripts/*.sh internal/lab/bench/*.sh .ci/run
fi
if [ -x .runtime/venv/bin/ruff ]; then
    check ruff .runtime/venv/bin/ruff check scripts
    check 'ruff, probe' .runtime/venv/bin/ruff check --config scripts/ruff.toml internal/watch/probe
    check 'ruff, programs' .runtime/venv/bin/ruff check --config scripts/ruff.toml internal/lab/programs/keras
fi

if [ "${#failed[@]}" -gt 0 ]; then
    printf 'lint: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
if [ "${#skipped[@]}" -gt 0 ]; then
    printf 'lint: not checked: %s\n' "${skipped[@]}" >&2
fi
printf 'lint: clean\n' >&2
