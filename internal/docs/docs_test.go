// Package docs tests that what a document names exists: Go programs, links, make targets, commands and flags.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
)

const root = "../.."

// sample has an example of everything that the functions find, and similar text that they must not find.
const sample = "# Title with `steadyfit doctor --no-such`\n" + // 1
	"\n" +
	"See [a](docs/a.md), [b](b.md#part), [c](#here) and [d](https://example.org/x).\n" +
	"A C compiler, make, and Python; steadyfit trains. `make\nwrapped` and `make x -k V=1 # no`.\n" + // 4, 5
	"\n" +
	"    make demo build   # make comment\n" + // 7
	"    bin/steadyfit fit --model m \\\n" + // 8
	"        --data=d --epochs 3; go mod edit -replace steadyfit=../steadyfit\n" +
	"\n" +
	"```\n" +
	"$ steadyfit --tensorflow=x version; steadyfit launch --workers 2 -- fit --epochs 3; steadyfit watch -- ls -l\n" + // 12
	"[no](link.md)\n" +
	"```\n" +
	"- a list with `--keep 3 --best`, `x --other` and\n" + // 15
	"    a line that is no code: make nothing\n" +
	"\n" +
	"```go\npackage main // make go\n```\n" +
	"```go\npackage second\n```\n"

func TestExtraction(t *testing.T) {
	block, ok := GoBlock(sample)
	require.True(t, ok)
	require.Equal(t, "package main // make go\n", block)
	_, ok = GoBlock("```sh\nls\n```\n")
	require.False(t, ok)

	require.Equal(t, []Mention{{3, "docs/a.md"}, {3, "b.md"}}, Links(sample))
	require.Equal(t, []Mention{{4, "wrapped"}, {5, "x"}, {7, "demo"}, {7, "build"}}, MakeTargets(sample))
	require.Equal(t, []Use{
		{1, "doctor", []string{"--no-such"}},
		{8, "fit", []string{"--model", "--data", "--epochs"}},
		{12, "", []string{"--tensorflow"}},
		{12, "launch", []string{"--workers"}},
		{12, "fit", []string{"--epochs"}},
		{12, "watch", nil},
	}, Uses(sample))
	require.Equal(t, []Mention{{15, "--keep"}, {15, "--best"}}, Flags(sample))

	require.Equal(t, []testkit.Table{
		{Line: 3, Header: []string{"a", "b"}, Rows: [][]string{{"`x|y`", ""}, {"", "2"}}},
		{Line: 8, Header: []string{"c"}, Rows: nil},
	}, testkit.Tables("Text.\n\n| a | b |\n|---|:-:|\n| `x\\|y` | |\n| |2|\n\n| c |\n| --- |\n\n    | no |\n    |---|\n\n| no |\n| table |\n"))

	require.Equal(t, []string{"help", "test-unit", "lint"}, Targets("GO := go\nX ?= 1\n.PHONY: a\nhelp: ## list\n\techo: no\ntest-unit: a b\nlint:\n"))
	help := "Text.\n\nAvailable Commands:\n  fit         Train\n  x-y         Other\n\nFlags:\n      --config string   file with --values\n  -h, --help            help\n"
	require.Equal(t, []string{"fit", "x-y"}, HelpCommands(help))
	require.Equal(t, []string{"--config", "--help"}, HelpFlags(help))
}

// TestProgramCompiles builds the program in the README. A program with an unknown name must not compile.
func TestProgramCompiles(t *testing.T) {
	dependOnSources(t)
	program, ok := GoBlock(read(t, "README.md"))
	require.True(t, ok, "README.md has no block of Go")
	if out, err := build(t, program); err != nil {
		t.Errorf("README.md: its program does not compile: %v\n%s", err, out)
	}
	out, err := build(t, strings.Replace(program, "fit.Loop{", "fit.NoSuchLoop{", 1))
	require.Error(t, err)
	require.Contains(t, out, "fit.NoSuchLoop")
}

func build(t *testing.T, program string) (string, error) {
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o666))
	return goBuild(t, os.DevNull, file)
}

func goBuild(t *testing.T, out, what string) (string, error) {
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out, what)
	cmd.Dir = root
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func TestLinks(t *testing.T) {
	for _, file := range documents(t) {
		for _, l := range Links(read(t, file)) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(file), l.Text)); err != nil {
				t.Errorf("%s:%d: the link %s leads nowhere: %v", file, l.Line, l.Text, err)
			}
		}
	}
}

func TestMakeTargets(t *testing.T) {
	targets := Targets(read(t, "Makefile"))
	mentioned := 0
	for _, file := range documents(t) {
		for _, m := range MakeTargets(read(t, file)) {
			mentioned++
			if !slices.Contains(targets, m.Text) {
				t.Errorf("%s:%d: make %s: the Makefile has no such target; it has %v", file, m.Line, m.Text, targets)
			}
		}
	}
	require.Positive(t, mentioned, "the documents mention make")
}

var (
	goImage  = regexp.MustCompile(`(?m)^ARG GO_BASE=golang:(\d+\.\d+)-`)
	goModule = regexp.MustCompile(`(?m)^go (\d+\.\d+)`)
	copied   = regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`)
)

// Dockerfile.gpu builds with the Go version of go.mod, and the files that it copies exist.
func TestImage(t *testing.T) {
	dockerfile := read(t, "Dockerfile.gpu")
	image, module := goImage.FindStringSubmatch(dockerfile), goModule.FindStringSubmatch(read(t, "go.mod"))
	require.NotNil(t, image)
	require.NotNil(t, module)
	require.Equal(t, module[1], image[1], "Dockerfile.gpu builds with another Go than go.mod asks for")
	sources := 0
	for _, m := range copied.FindAllStringSubmatch(dockerfile, -1) {
		for source := range strings.FieldsSeq(m[1]) {
			sources++
			_, err := os.Stat(filepath.Join(root, source))
			require.NoError(t, err)
		}
	}
	require.Positive(t, sources)
}

var scriptFlag = regexp.MustCompile(`"(--[a-z][a-z0-9-]*)"`)

func TestCommandsAndFlags(t *testing.T) {
	dependOnSources(t)
	binary := filepath.Join(t.TempDir(), "steadyfit")
	out, err := goBuild(t, binary, "./cmd/steadyfit")
	require.NoError(t, err, out)
	help := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), binary, append(args, "--help")...).CombinedOutput()
		require.NoError(t, err, "%v: %s", args, out)
		return string(out)
	}
	top := help()
	known := map[string][]string{"": HelpFlags(top)}
	all := HelpFlags(top)
	for _, command := range HelpCommands(top) {
		known[command] = HelpFlags(help(command))
		all = append(all, known[command]...)
	}
	require.Contains(t, known["fit"], "--epochs")
	scripts, err := filepath.Glob(filepath.Join(root, "scripts", "*.py"))
	require.NoError(t, err)
	for _, module := range []string{"command.py", "importing.py"} {
		scripts = append(scripts, filepath.Join(root, "scripts", "steadyfit_export", module))
	}
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		for _, m := range scriptFlag.FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
	}

	uses := 0
	for _, file := range documents(t) {
		text := read(t, file)
		for _, u := range Uses(text) {
			uses++
			flags, ok := known[u.Command]
			if !ok {
				t.Errorf("%s:%d: steadyfit has no command %s", file, u.Line, u.Command)
				continue
			}
			for _, f := range u.Flags {
				if !slices.Contains(flags, f) && !(u.Command == "" && slices.Contains(all, f)) {
					t.Errorf("%s:%d: steadyfit %s has no flag %s", file, u.Line, u.Command, f)
				}
			}
		}
		for _, m := range Flags(text) {
			if !slices.Contains(all, m.Text) {
				t.Errorf("%s:%d: no command and no script has a flag %s", file, m.Line, m.Text)
			}
		}
	}
	require.Positive(t, uses, "the documents mention commands")
}

var codeSpan = regexp.MustCompile("`[^`\n]*`")

// The Go names in code spans exist.
//
//lane:run check
func TestGoNames(t *testing.T) {
	names := goNames(t)
	qualified := regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)
	checked := 0
	for _, file := range documents(t) {
		for _, span := range codeSpan.FindAllString(read(t, file), -1) {
			for _, m := range qualified.FindAllStringSubmatch(span, -1) {
				if !names[m[1]] {
					continue // a name of another module
				}
				checked++
				name := m[1] + "." + m[2]
				if !names[name] {
					t.Errorf("%s: %s: package %s has no %s", file, span, m[1], m[2])
				} else if m[3] != "" && !names[name+"."+m[3]] {
					t.Errorf("%s: %s: %s has no %s", file, span, name, m[3])
				}
			}
		}
	}
	require.Greater(t, checked, 50)
}

// goNames returns the packages of the module, their exported names, fields and methods, and their tests.
func goNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	for _, pattern := range []string{"*/*.go", "fit/*/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			pkg := strings.TrimSuffix(parsed.Name.Name, "_test")
			names[pkg] = pkg != "main"
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					names[pkg+"."+n.Name.Name] = n.Recv == nil || names[pkg+"."+n.Name.Name]
					if n.Recv != nil {
						receiver := n.Recv.List[0].Type
						if star, ok := receiver.(*ast.StarExpr); ok {
							receiver = star.X
						}
						if id, ok := receiver.(*ast.Ident); ok {
							names[pkg+"."+id.Name+"."+n.Name.Name] = true
						}
					}
					return false
				case *ast.TypeSpec:
					names[pkg+"."+n.Name.Name] = true
					if s, ok := n.Type.(*ast.StructType); ok {
						for _, f := range s.Fields.List {
							for _, id := range f.Names {
								names[pkg+"."+n.Name.Name+"."+id.Name] = true
							}
						}
					}
				case *ast.ValueSpec:
					for _, id := range n.Names {
						names[pkg+"."+id.Name] = true
					}
				}
				return true
			})
		}
	}
	return names
}

// documents returns the checked files, relative to the root.
func documents(t *testing.T) []string {
	found := []string{"README.md", "CONTRIBUTING.md"}
	for _, kind := range []string{"tutorial", "how-to", "questions", "leaks", "reference", "explanation"} {
		pages, err := filepath.Glob(filepath.Join(root, "docs", kind, "*.md"))
		require.NoError(t, err)
		require.NotEmpty(t, pages)
		for _, page := range pages {
			found = append(found, filepath.Join("docs", kind, filepath.Base(page)))
		}
	}
	return found
}

func read(t *testing.T, file string) string {
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	return string(text)
}

// dependOnSources opens the files that a test compiles with the go command, since go test repeats a test
// only if a file has changed that the test itself has opened.
func dependOnSources(t *testing.T) {
	read(t, "go.mod")
	for _, pattern := range []string{"*/*.go", "*/*/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			f, err := os.Open(file)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
}
