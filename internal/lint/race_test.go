package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The Makefile's NOT_IN_RACE has exactly the tests that skip themselves with the race detector,
// except those for which the setting of oneDNN makes no difference.
func TestSkippedInRaceRunElsewhere(t *testing.T) {
	without := []string{
		"TestTrainsAsKerasFit", "TestGoesOnInKeras", // compare with Keras, which has the same setting
		"TestOutOfMemory", "TestOutOfMemoryIsSplit", "TestOutOfMemoryOfMalloc", "TestOutOfMemoryOfKernels", "TestReleaseProfile", "TestModelsOfOthersTrain", // set oneDNN themselves
		"TestGolden", "TestRaggedInputIsRefused", // train nothing
		"TestEventsAreTheHistory",         // compares files
		"TestBudgetIsKeptWithCheckpoints", // TestBudgetIsKept runs with both settings
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^NOT_IN_RACE := (.*)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile has no NOT_IN_RACE")
	}
	listed := regexp.MustCompile(`^(` + string(line[1]) + `)$`)
	for _, dir := range []string{"cmd/steadyfit", "fit", "session"} {
		for name, skips := range skippedInRace(t, filepath.Join("../..", dir)) {
			if in := listed.MatchString(name); in != (skips && !slices.Contains(without, name)) {
				t.Errorf("%s: %s skips itself with the race detector: %v; in NOT_IN_RACE: %v", dir, name, skips, in)
			}
		}
	}
}

// skippedInRace reports for each test of a package whether it, or a function that it calls,
// skips in builds with the race detector. It knows functions by their names alone.
func skippedInRace(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	calls, skips := map[string][]string{}, map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			calls[f.Name.Name] = append(calls[f.Name.Name], f.Name.Name)
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.IfStmt:
					race := names(n.Cond)
					if (race["instrumented"] || race["raceDetector"] || race["RaceEnabled"]) && (names(n.Body)["Skip"] || names(n.Body)["Skipf"]) {
						skips[f.Name.Name] = true
					}
				case *ast.CallExpr:
					calls[f.Name.Name] = append(calls[f.Name.Name], slices.Collect(maps.Keys(names(n.Fun)))...)
				}
				return true
			})
		}
	}
	for changed := true; changed; {
		changed = false
		for caller, called := range calls {
			if !skips[caller] && slices.ContainsFunc(called, func(name string) bool { return skips[name] }) {
				skips[caller], changed = true, true
			}
		}
	}
	found := map[string]bool{}
	for name := range calls {
		if strings.HasPrefix(name, "Test") && name != "TestMain" {
			found[name] = skips[name]
		}
	}
	return found
}

// names returns the identifiers of a node.
func names(n ast.Node) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			found[id.Name] = true
		}
		return true
	})
	return found
}
