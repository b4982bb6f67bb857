package lint

import (
	"fmt"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers has every package of the module, lowest first. A package imports packages of lower layers only.
// Packages of one row that ends in "/..." import each other, too. Imports of tests do not count.
var layers = [][]string{
	// Leaves.
	{"option", "internal/cgroup", "internal/contract", "internal/dtype", "internal/files", "internal/stats",
		"internal/testkit", "internal/texts", "internal/tfprocess", "internal/tfproto", "internal/uplot",
		"internal/version", "internal/wire"},
	{"internal/bundle", "internal/child", "internal/graphdef", "internal/manifest", "internal/memlayer",
		"internal/tflibrary"},
	// Public packages that stand beside each other.
	{"data/...", "gpuopts", "memory", "savedmodels", "supervise", "tfbind"},
	{"cluster", "internal/checkpoint", "internal/gpu", "internal/inputs", "internal/native"},
	{"internal/resolved"},
	{"session/..."},
	{"fit/..."},
	{"internal/autotune", "internal/budget"},
	{"train"},
	{"serve"},
	// What measures and examines.
	{"internal/doctor", "internal/explain", "internal/watch"},
	{"internal/lab/..."},
	{"cmd/steadyfit", "examples/..."},
	{"internal/lint"},
}

// never has imports that the layers allow. A handle of tfbind in package fit would be a second owner.
var never = [][2]string{{"fit/...", "tfbind"}}

// matches reports whether a package is the one of a row, or one below it if the row ends in "/...".
func matches(row, pkg string) bool {
	if below, ok := strings.CutSuffix(row, "/..."); ok {
		return pkg == below || strings.HasPrefix(pkg, below+"/")
	}
	return pkg == row
}

// layerOf returns the layer and the row of a package, or -1.
func layerOf(pkg string) (layer int, row string) {
	for i, rows := range layers {
		if j := slices.IndexFunc(rows, func(row string) bool { return matches(row, pkg) }); j >= 0 {
			return i, rows[j]
		}
	}
	return -1, ""
}

// wrongImport says why a package must not import another one, or returns "".
func wrongImport(pkg, imported string) string {
	layer, row := layerOf(pkg)
	below, rowBelow := layerOf(imported)
	switch {
	case layer < 0:
		return pkg + " is in no layer: add it to the table in this test"
	case below < 0:
		return imported + " is in no layer: add it to the table in this test"
	case slices.ContainsFunc(never, func(n [2]string) bool { return matches(n[0], pkg) && matches(n[1], imported) }):
		return fmt.Sprintf("%s must not import %s", pkg, imported)
	case below > layer, below == layer && (row != rowBelow || !strings.HasSuffix(row, "/...")):
		return fmt.Sprintf("%s (layer %d) must not import %s (layer %d): imports point to lower layers", pkg, layer, imported,
			below)
	}
	return ""
}

func TestImportsPointDown(t *testing.T) {
	const module = "steadyfit/"
	seen := map[string]bool{}
	walk(t, filepath.Join("..", ".."), func(name string, content []byte) {
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return
		}
		pkg := path.Dir(name)
		if layer, row := layerOf(pkg); layer < 0 {
			t.Error(wrongImport(pkg, pkg))
		} else {
			seen[row] = true
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
		if err != nil {
			return // the compiler reports the syntax error
		}
		for _, spec := range file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if below, ours := strings.CutPrefix(imported, module); ours {
				if why := wrongImport(pkg, below); why != "" {
					t.Errorf("%s: %s", name, why)
				}
			}
		}
	})
	for _, row := range slices.Concat(layers...) {
		if !seen[row] && row != "internal/lint" {
			t.Errorf("the table has %s, which does not exist", row)
		}
	}
}

func TestWrongImport(t *testing.T) {
	for _, c := range []struct {
		pkg, imported string
		right         bool
	}{
		{"train", "fit", true},
		{"fit", "train", false},
		{"train", "internal/explain", false},
		{"savedmodels", "tfbind", false},
		{"fit/observe", "fit", true},
		{"fit", "tfbind", false},
		{"internal/dtype", "tfbind", false},
		{"data", "memory", false},
		{"internal/unknown", "option", false},
	} {
		if why := wrongImport(c.pkg, c.imported); (why == "") != c.right {
			t.Errorf("%s imports %s: %q", c.pkg, c.imported, why)
		}
	}
}
