package lint

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// lanes are the parts of the tests that scripts/lane.sh knows, by the word that a test uses.
var lanes = map[string][]string{"skip": {"race", "gcstress", "check", "onednn"}, "run": {"onednn", "check", "soak"}}

// laneOf matches the line in which a test names its lanes, with the reason.
var laneOf = regexp.MustCompile(`(?m)^//lane:(\w*) *([a-z ]*?) ?(?:\(.+\))?$`)

// Each line with lanes stands above a test and names lanes that exist.
func TestLanesExist(t *testing.T) {
	walk(t, filepath.Join("..", ".."), func(name string, content []byte) {
		if !strings.HasSuffix(name, "_test.go") {
			return
		}
		for _, line := range laneOf.FindAllSubmatchIndex(content, -1) {
			text := string(content[line[0]:line[1]])
			known := lanes[string(content[line[2]:line[3]])]
			named := strings.Fields(string(content[line[4]:line[5]]))
			unknown := slices.ContainsFunc(named, func(lane string) bool { return !slices.Contains(known, lane) })
			if len(named) == 0 || unknown {
				t.Errorf("%s: %s: the lanes are %v", name, text, known)
			}
			after := content[line[1]+1:]
			if !bytes.HasPrefix(after, []byte("//lane:")) && !bytes.HasPrefix(after, []byte("func Test")) {
				t.Errorf("%s: %s: no test follows", name, text)
			}
		}
	})
}

// A test that skips itself with the race detector says whether it runs in the lane onednn, which has
// the setting of oneDNN that the lane race has.
func TestSkippedInRaceRunElsewhere(t *testing.T) {
	for _, dir := range []string{"cmd/steadyfit", "fit", "session"} {
		says := onednnLane(t, filepath.Join("../..", dir))
		for name, skips := range skippedInRace(t, filepath.Join("../..", dir)) {
			if skips != (says[name] != "") {
				t.Errorf("%s: %s skips itself with the race detector: %v; its line //lane:...onednn: %q", dir, name, skips, says[name])
			}
		}
	}
}

// onednnLane returns for each test of a package the line that names the lane onednn.
func onednnLane(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, file := range parseTests(t, dir) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			for _, c := range f.Doc.List {
				if line := laneOf.FindStringSubmatch(c.Text); line != nil && slices.Contains(strings.Fields(line[2]), "onednn") {
					found[f.Name.Name] = c.Text
				}
			}
		}
	}
	return found
}

// parseTests parses the test files of a package.
func parseTests(t *testing.T, dir string) (parsed []*ast.File) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
	}
	return parsed
}

// skippedInRace reports for each test of a package whether it, or a function that it calls,
// skips in builds with the race detector. It knows functions by their names alone.
func skippedInRace(t *testing.T, dir string) map[string]bool {
	t.Helper()
	calls, skips := map[string][]string{}, map[string]bool{}
	for _, file := range parseTests(t, dir) {
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
