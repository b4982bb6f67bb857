package lint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProject applies the rules to this repository.
func TestProject(t *testing.T) {
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatalf("the module's root is not at %s: %v", root, err)
	}
	findings, err := CheckTree(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Error(f)
	}
}

// TestRules shows that each rule finds what it is for, and nothing else.
func TestRules(t *testing.T) {
	tests := []struct {
		name string
		file string
		src  string
		want string // "line rule", or "" for no finding
	}{
		{"cgo outside tfbind", "session/a.go", "package session\n\nimport \"C\"\n", "3 cgo"},
		{"cgo in tfbind", "tfbind/a.go", "package tfbind\n\nimport \"C\"\n", ""},
		{"cgo in baseline", "internal/lab/baseline/a.go", "package main\n\nimport \"C\"\n", ""},
		{"cgo in a folder whose name begins alike", "tfbinder/a.go", "package tfbinder\n\nimport \"C\"\n", "3 cgo"},

		{"finalizer", "tfbind/a.go", "package tfbind\n\nimport \"runtime\"\n\nfunc f(x *int) {\n\truntime.SetFinalizer(x, nil)\n}\n", "6 finalizer"},
		{"finalizer by another name", "tfbind/a.go", "package tfbind\n\nimport rt \"runtime\"\n\nvar f = rt.SetFinalizer\n", "5 finalizer"},
		{"cleanup", "tfbind/a.go", "package tfbind\n\nimport \"runtime\"\n\nvar f = runtime.KeepAlive\n", ""},

		{"panic in a library", "fit/a.go", "package fit\n\nfunc f() {\n\tpanic(1)\n}\n", "4 panic"},
		{"panic in a test", "fit/a_test.go", "package fit\n\nfunc f() {\n\tpanic(1)\n}\n", ""},
		{"panic in a command", "cmd/x/a.go", "package main\n\nfunc f() {\n\tpanic(1)\n}\n", ""},
		{"panic with a reason", "fit/a.go", "package fit\n\nfunc f() {\n\tpanic(1) // lint:allow panic: unreachable, the switch is complete\n}\n", ""},
		{"panic with a reason above", "fit/a.go", "package fit\n\nfunc f() {\n\t// lint:allow panic: unreachable\n\tpanic(1)\n}\n", ""},
		{"allow without a reason", "fit/a.go", "package fit\n\nfunc f() {\n\tg() // lint:allow panic\n}\n", "4 allow"},
		{"allow for another rule", "fit/a.go", "package fit\n\nfunc f() {\n\tpanic(1) // lint:allow exit: no\n}\n", "4 panic"},

		{"error by value", "fit/a.go", "package fit\n\nimport \"fmt\"\n\nfunc f(err error) error {\n\treturn fmt.Errorf(\"a %d: %v\", 1, err)\n}\n", "6 errorf"},
		{"error by string", "fit/a.go", "package fit\n\nimport \"fmt\"\n\nfunc f(readErr error) error {\n\treturn fmt.Errorf(\"a: %s\", readErr)\n}\n", "6 errorf"},
		{"error of a context", "fit/a.go", "package fit\n\nimport \"fmt\"\n\nfunc f(c interface{ Err() error }) error {\n\treturn fmt.Errorf(\"%5.2f%% %+v\", 1.0, c.Err())\n}\n", "6 errorf"},
		{"error after a star", "fit/a.go", "package fit\n\nimport \"fmt\"\n\nfunc f(err error) error {\n\treturn fmt.Errorf(\"%*d %v\", 3, 1, err)\n}\n", "6 errorf"},
		{"error wrapped", "fit/a.go", "package fit\n\nimport \"fmt\"\n\nfunc f(err error) error {\n\treturn fmt.Errorf(\"a %v: %w\", 1, err)\n}\n", ""},

		{"exit in a library", "session/a.go", "package session\n\nimport \"os\"\n\nfunc f() {\n\tos.Exit(1)\n}\n", "6 exit"},
		{"exit in a command's helper", "cmd/x/a.go", "package main\n\nimport \"os\"\n\nfunc f() {\n\tos.Exit(1)\n}\n", "6 exit"},
		{"log.Fatal in a command's helper", "cmd/x/a.go", "package main\n\nimport \"log\"\n\nfunc f() {\n\tlog.Fatal(1)\n}\n", "6 exit"},
		{"exit in main", "cmd/x/a.go", "package main\n\nimport \"os\"\n\nfunc main() {\n\tos.Exit(1)\n}\n", ""},
		{"exit in TestMain", "session/a_test.go", "package session\n\nimport \"os\"\n\nfunc TestMain() {\n\tos.Exit(1)\n}\n", ""},
		{"exit in a test", "session/a_test.go", "package session\n\nimport \"os\"\n\nfunc TestX() {\n\tos.Exit(1)\n}\n", "6 exit"},

		{"print in a library", "data/a.go", "package data\n\nimport \"fmt\"\n\nfunc f() {\n\tfmt.Println(1)\n}\n", "6 print"},
		{"builtin print in a library", "data/a.go", "package data\n\nfunc f() {\n\tprintln(1)\n}\n", "4 print"},
		{"log in a library", "data/a.go", "package data\n\nimport \"log\"\n\nfunc f() {\n\tlog.Printf(\"x\")\n}\n", "6 print"},
		{"print to a writer", "data/a.go", "package data\n\nimport (\n\t\"fmt\"\n\t\"io\"\n)\n\nfunc f(w io.Writer) {\n\tfmt.Fprintln(w, 1)\n}\n", ""},
		{"print in a command", "cmd/x/a.go", "package main\n\nimport \"fmt\"\n\nfunc f() {\n\tfmt.Println(1)\n}\n", ""},
		{"print in an example", "data/a_test.go", "package data\n\nimport \"fmt\"\n\nfunc f() {\n\tfmt.Println(1)\n}\n", ""},

		{"sleep in a test", "data/a_test.go", "package data\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n}\n", "6 sleep"},
		{"sleep elsewhere", "memory/a.go", "package memory\n\nimport \"time\"\n\nfunc f() {\n\ttime.Sleep(1)\n}\n", ""},

		{"import upwards", "session/a.go", "package session\n\nimport \"steadyfit/fit\"\n", "3 imports"},
		{"import sideways", "memory/a.go", "package memory\n\nimport \"steadyfit/data\"\n", "3 imports"},
		{"import of memory by data", "data/a.go", "package data\n\nimport \"steadyfit/memory\"\n", ""},
		{"import of tfbind by fit", "fit/a.go", "package fit\n\nimport \"steadyfit/tfbind\"\n", "3 imports"},
		{"import of tfbind by a test of fit", "fit/a_test.go", "package fit\n\nimport \"steadyfit/tfbind\"\n", ""},
		{"import upwards by a test", "session/a_test.go", "package session\n\nimport \"steadyfit/matrix\"\n", "3 imports"},
		{"import upwards by a test from outside", "session/a_test.go", "package session_test\n\nimport \"steadyfit/fit\"\n", ""},
		{"import of tfbind by a test of data from outside", "data/a_test.go", "package data_test\n\nimport \"steadyfit/tfbind\"\n", "3 imports"},
		{"import of data", "session/a.go", "package session\n\nimport \"steadyfit/data\"\n", ""},
		{"import of tfbind by a test of data", "data/a_test.go", "package data\n\nimport \"steadyfit/tfbind\"\n", "3 imports"},
		{"import of a sub-package upwards", "tfbind/a.go", "package tfbind\n\nimport \"steadyfit/session/child\"\n", "3 imports"},
		{"import downwards", "session/a.go", "package session\n\nimport (\n\t\"steadyfit/savedmodels\"\n\t\"steadyfit/tfbind\"\n)\n", ""},
		{"import within a package", "data/npz/a.go", "package npz\n\nimport \"steadyfit/data\"\n", ""},
		{"import of a helper", "data/a.go", "package data\n\nimport \"steadyfit/internal/x\"\n", ""},
		{"import by a command", "cmd/x/a.go", "package main\n\nimport \"steadyfit/tfbind\"\n", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			findings, err := CheckFile(test.file, []byte(test.src))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range findings {
				if f.File != test.file || f.Fix == "" {
					t.Errorf("finding without file or fix: %+v", f)
				}
				got = append(got, strings.SplitN(strings.TrimPrefix(f.String(), test.file+":"), ":", 3)[0]+" "+f.Rule)
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("findings = %q, want %q", got, test.want)
			}
		})
	}
}

func TestText(t *testing.T) {
	// Put together here, so that this file passes its own rule.
	for text, want := range map[string]bool{
		"see /" + "work/x/y":             true,
		"\"/" + "root/go/pkg\"":          true,
		"path=/" + "home/jo/models":      true,
		"docs/" + "work/x":               false,
		"$HOME/" + "work/x":              false,
		"${ROOT}/" + "work/x":            false,
		"/usr/lib and /tmp/x":            false,
		"https://example.org/" + "work/": false,
	} {
		if got := len(CheckText("a.md", []byte("first line\n"+text+"\n"))) > 0; got != want {
			t.Errorf("CheckText(%q) found = %v, want %v", text, got, want)
		}
	}
	if f := CheckText("a.md", []byte("first\n/"+"work/x\n")); len(f) != 1 || f[0].Line != 2 {
		t.Errorf("findings = %v, want one on line 2", f)
	}
}

// TestTree shows that the walk reaches files, skips what is built, and follows
// imports through helper packages.
func TestTree(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"data/a.go":              "package data\n\nimport _ \"steadyfit/internal/x\"\n",
		"internal/x/x.go":        "package x\n\nimport _ \"steadyfit/tfbind\"\n",
		"fit/a.go":               "package fit\n\nfunc f() { panic(1) }\n",
		"fit/testdata/bad.go":    "package bad\n\nfunc f() { panic(1) }\n",
		"out/a.go":               "package out\n\nfunc f() { panic(1) }\n",
		".runtime/tensorflow/a":  "/" + "work/x\n",
		"docs/a.md":              "/" + "work/x\n",
		"docs/picture.png":       "\x00/" + "work\n",
		"docs/model.pb":          "\x00x/" + "root/export.py",
		".runtime-2.17/include":  "/" + "work/x\n",
		"scripts/__pycache__/b":  "/" + "work/x\n",
		"savedmodels/unused.txt": "fine\n",
	} {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	findings, err := CheckTree(root)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range findings {
		got[f.File+" "+f.Rule] = true
	}
	for _, want := range []string{"internal/x/x.go pure", "fit/a.go panic", "docs/a.md path", "docs/model.pb path"} {
		if !got[want] {
			t.Errorf("no finding %q in %v", want, findings)
		}
		delete(got, want)
	}
	if len(got) > 0 {
		t.Errorf("findings that should not be: %v", got)
	}
}
