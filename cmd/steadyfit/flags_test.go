package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/flags"
)

// Programs are what runs or prints command lines. All other packages are libraries.
var programs = []string{"cmd", "bench", "examples", "internal/accuracy", "internal/doctor", "internal/flags"}

// stringsOf calls do with each string literal in the libraries of the module.
func stringsOf(t *testing.T, do func(at, text string)) {
	const root = "../.."
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		within, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (slices.Contains(programs, within) || within != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				require.NoError(t, err)
				do(files.Position(l.Pos()).String(), text)
			}
			return true
		})
		return nil
	}))
}

// A program that uses the libraries has no flags, or other ones. A whole command line and
// what scripts/export.py takes may be in a text.
func TestLibrariesNameNoFlags(t *testing.T) {
	known := allFlags(newRoot(io.Discard, io.Discard))
	flag := regexp.MustCompile(`(?:^|[^a-z-])--([a-z][a-z-]*[a-z])`)
	found := 0
	stringsOf(t, func(at, text string) {
		for _, m := range flag.FindAllStringSubmatch(text, -1) {
			found++
			assert.False(t, known[m[1]] && !strings.HasPrefix(text, "steadyfit "), "%s: %q names the flag --%s; name the option in braces, as in {Loop.Batch} (package option)", at, text, m[1])
		}
	})
	assert.Positive(t, found, "flags of TensorFlow are in the strings of gpuopts")
}

// Options that the command does not set, so that its users never read of them.
var withoutFlag = []string{"Options.Executor", "Options.GarbageCollection", "Options.Grappler", "Options.GrapplerOff", "Options.HostMemoryLimit",
	"Options.MemoryOptimization", "Options.OneDNN", "Options.OneDNNSystemAllocator", "Options.PerSessionThreads", "Options.UnifiedMemory",
	"Options.XLAMinCluster", "Options.OneDNNPoolLimit", "Options.OneDNNMath", "Options.DeferredDeletion", "ResetPolicy.Restart"}

// Errors of the libraries name options, and the command names flags in their place.
func TestOptionsHaveFlags(t *testing.T) {
	known := allFlags(newRoot(io.Discard, io.Discard))
	option := regexp.MustCompile(`^((?:Options|Loop|ResetPolicy|Budget|CSVOptions|ImageOptions)\.[A-Z][A-Za-z]+)(?: .+)?$|\{([A-Za-z]+\.[A-Z][A-Za-z]+)(?: [^{}]*)?\}`)
	found := map[string]bool{}
	stringsOf(t, func(at, text string) {
		for _, m := range option.FindAllStringSubmatch(text, -1) {
			name := m[1] + m[2]
			if found[name] = true; slices.Contains(withoutFlag, name) {
				continue
			}
			flag, ok := strings.CutPrefix(flags.Name(name, ""), "--")
			assert.True(t, ok && known[flag], "%s: %q names the option %s, which has no flag in package flags", at, text, name)
		}
	})
	assert.Greater(t, len(found), 20)
}
