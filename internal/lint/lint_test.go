// Package lint tests the rules of this project that golangci-lint cannot state (.golangci.yml
// has the others): imports point to lower layers, packages have at most their number of lines, only
// some packages use cgo, and no file contains a path of one machine.
package lint

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// skipped folders hold fetched or built files.
var skipped = []string{".git", ".runtime", "bin", "out", "__pycache__", ".pytest_cache", ".ruff_cache", ".venv"}

// walk calls check with each file of the module and its path relative to root.
func walk(t *testing.T, root string, check func(name string, content []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(skipped, entry.Name()) || strings.HasPrefix(entry.Name(), ".runtime-"):
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		check(filepath.ToSlash(name), content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func importsC(name string, content []byte) bool {
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
	if err != nil {
		return false // the compiler reports the syntax error
	}
	for _, spec := range file.Imports {
		if spec.Path.Value == `"C"` {
			return true
		}
	}
	return false
}

func TestCgoIsInTfbind(t *testing.T) {
	binding := 0
	walk(t, filepath.Join("..", ".."), func(name string, content []byte) {
		if filepath.Ext(name) != ".go" || !importsC(name, content) {
			return
		}
		if strings.HasPrefix(name, "tfbind/") {
			binding++
			return
		}
		t.Errorf(`%s imports "C": add what is missing to tfbind and call it`, name)
	})
	if binding == 0 {
		t.Error(`no file of tfbind imports "C": the walk does not see it`)
	}
}

// machinePath matches folders of one machine. A letter, digit, dot or dash before the first
// slash makes the match a part of a relative path.
var machinePath = regexp.MustCompile(`(?:^|[^A-Za-z0-9_.\-}])(/(?:work|root|home/[A-Za-z0-9_.-]+|Users/[A-Za-z0-9_.-]+)/)`)

// binaryPath is machinePath without its left boundary: in a binary file, the length of a string
// comes before it and may look like a letter.
var binaryPath = regexp.MustCompile(`/(?:work|root|home/[A-Za-z0-9_.-]+|Users/[A-Za-z0-9_.-]+)/[A-Za-z0-9_.-]`)

// findMachinePath returns the line, from 1, and the path of the first match. Line 0 means no
// match.
func findMachinePath(content []byte) (line int, path string) {
	pattern := machinePath
	if bytes.IndexByte(content, 0) >= 0 {
		pattern = binaryPath
	}
	for text := range bytes.Lines(content) {
		line++
		if m := pattern.Find(text); m != nil {
			return line, strings.TrimSpace(string(m))
		}
	}
	return 0, ""
}

// A SavedModel may contain the path of the script that exported it.
func TestNoPathOfOneMachine(t *testing.T) {
	walk(t, filepath.Join("..", ".."), func(name string, content []byte) {
		if line, path := findMachinePath(content); line > 0 {
			t.Errorf("%s:%d: %q is a path of one machine; make it relative to the repository", name, line, path)
		}
	})
}

func TestFindMachinePath(t *testing.T) {
	// The texts are joined here, so that this file passes its own test.
	for text, want := range map[string]int{
		"see /" + "work/x/y":             2,
		"\"/" + "root/go/pkg\"":          2,
		"path=/" + "home/jo/models":      2,
		"\x00x/" + "root/export.py":      2,
		"docs/" + "work/x":               0,
		"$HOME/" + "work/x":              0,
		"${ROOT}/" + "work/x":            0,
		"/usr/lib and /tmp/x":            0,
		"https://example.org/" + "work/": 0,
		"\x00/" + "work\n":               0,
	} {
		if got, _ := findMachinePath([]byte("first\n" + text)); got != want {
			t.Errorf("findMachinePath(%q) = line %d, want %d", text, got, want)
		}
	}
}
