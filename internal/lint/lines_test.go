package lint

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"steadyfit/internal/testkit"
)

// row is a row of the table of lines per package: packages, which match as in the table of layers, and how many
// lines they have together at most.
type row struct {
	packages []string
	limit    int
}

// limits reads the table of lines per package in CONTRIBUTING.md.
func limits(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range testkit.Tables(string(text)) {
		if !slices.Equal(table.Header, []string{"packages", "lines at most", "why it was raised"}) {
			continue
		}
		for _, cells := range table.Rows {
			limit, err := strconv.Atoi(strings.ReplaceAll(cells[1], ",", ""))
			if err != nil {
				t.Fatalf("CONTRIBUTING.md: %q: %v", cells[1], err)
			}
			rows = append(rows, row{strings.Split(strings.ReplaceAll(cells[0], "`", ""), ", "), limit})
		}
	}
	if rows == nil {
		t.Fatal("CONTRIBUTING.md has no table of lines per package")
	}
	return rows
}

// rowOf returns the row of a package, or -1. If several rows match, the one with the longest name counts.
func rowOf(rows []row, pkg string) (at int) {
	at, longest := -1, 0
	for i, r := range rows {
		for _, name := range r.packages {
			if matches(name, pkg) && len(name) > longest {
				at, longest = i, len(name)
			}
		}
	}
	return at
}

// CONTRIBUTING.md limits the lines of each package: Go without tests and generated files, with blank lines and comments.
func TestLinesPerPackage(t *testing.T) {
	rows := limits(t)
	lines, missing := make([]int, len(rows)), map[string]bool{}
	walk(t, filepath.Join("..", ".."), func(name string, content []byte) {
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") {
			return
		}
		pkg := path.Dir(name)
		switch at := rowOf(rows, pkg); {
		case at >= 0:
			lines[at] += bytes.Count(content, []byte("\n"))
		case !missing[pkg]:
			missing[pkg] = true
			t.Errorf("the table of lines per package in CONTRIBUTING.md has no row for %s", pkg)
		}
	})
	for i, r := range rows {
		if lines[i] > r.limit {
			t.Errorf("%s: %d lines, at most %d: remove what nobody needs, or raise the limit in CONTRIBUTING.md and say why",
				strings.Join(r.packages, ", "), lines[i], r.limit)
		}
		t.Logf("%6d of %6d %s", lines[i], r.limit, strings.Join(r.packages, ", "))
	}
}

func TestRowOf(t *testing.T) {
	rows := []row{{packages: []string{"internal/..."}}, {packages: []string{"fit/...", "internal/checkpoint"}}}
	for pkg, want := range map[string]int{"internal/dtype": 0, "internal/checkpoint": 1, "fit": 1, "fit/observe": 1, "train": -1} {
		if got := rowOf(rows, pkg); got != want {
			t.Errorf("rowOf(%s) = %d, want %d", pkg, got, want)
		}
	}
}
