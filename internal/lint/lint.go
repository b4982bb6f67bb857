// Package lint holds the rules of this project that a reader of one file cannot
// see broken: where cgo may be, which way imports point, how libraries report
// trouble. Its test applies them to the whole tree, so `go test ./...` and
// `make lint` fail on a breach, with the file, the line and what to do instead.
//
// It reads syntax only (go/parser): rules that need types belong to go vet and
// staticcheck. A line that must break a rule says so, with the reason, on the
// line itself or on the one above:
//
//	os.Exit(code) // lint:allow exit: the supervising parent ends with its child's code
//
// A path and its source go into CheckFile, findings come out; CheckTree does so
// for a folder and adds the rules that need all files at once.
package lint

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Module is the path that the module's own imports begin with.
const Module = "steadyfit"

// A Finding is one breach of a rule.
type Finding struct {
	File string // relative to the module's root, with slashes
	Line int
	Rule string // the word that lint:allow takes
	Fix  string // what is wrong and what to do instead
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Fix)
}

// cgoFolders may import "C": tfbind is the binding, the others measure against it.
var cgoFolders = []string{"tfbind", "internal/lab/bench", "internal/lab/baseline"}

// mayImport lists, for each package of the module, the module's packages that it
// may import: the arrows of the design point one way. A package that is not
// listed (cmd, examples, bench, internal/...) may import all of them. All may import
// option, which has the errors of options. Tests may
// import all that their package reaches, and data and memory; tests from outside
// (package x_test) may import upwards, too, to try packages together.
var mayImport = map[string][]string{
	"tfbind":      {},
	"gpuopts":     {"tfbind"},
	"savedmodels": {"tfbind"},
	// session takes batches and reports memory: data and memory stand beside everything.
	"session": {"supervise", "savedmodels", "gpuopts", "tfbind", "data", "memory"},
	// fit steps a session; a handle of tfbind in its hands would be a second owner.
	"fit":    {"session", "savedmodels", "gpuopts", "data", "memory"},
	"train":  {"tune", "fit", "supervise", "session", "savedmodels", "gpuopts", "tfbind", "data", "memory"},
	"tune":   {"session", "savedmodels", "gpuopts", "tfbind", "data", "memory"},
	"matrix": {"fit", "session", "savedmodels", "gpuopts", "tfbind", "data", "memory"},
	// data asks how much memory is free before it expands a file.
	"data":   {"memory"},
	"memory": {},
	"option": {},
	// The parent of a supervised training loads no TensorFlow.
	"supervise": {},
}

// pure packages must build without cgo, so they reach tfbind by no way.
var pure = []string{"data", "memory", "option", "supervise"}

// CheckFile applies the rules that one Go file can break. file is its path
// relative to the module's root, with slashes.
func CheckFile(file string, src []byte) ([]Finding, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("lint: %w", err)
	}
	c := &checker{file: file, fset: fset, tree: tree, test: strings.HasSuffix(file, "_test.go"), allowed: map[string]bool{}}
	c.library = tree.Name.Name != "main" && !c.test
	c.readAllows()
	c.imports()
	c.walk()
	return c.findings, nil
}

type checker struct {
	file     string
	fset     *token.FileSet
	tree     *ast.File
	test     bool
	library  bool            // neither a test nor package main
	allowed  map[string]bool // "line rule"
	names    map[string]string
	findings []Finding
}

var allowComment = regexp.MustCompile(`^//\s*lint:allow\s+([a-z]+)(:\s*\S.*)?$`)

// readAllows notes the lines that lint:allow excuses: its own and the next.
func (c *checker) readAllows() {
	for _, group := range c.tree.Comments {
		for _, comment := range group.List {
			if !strings.Contains(comment.Text, "lint:allow") {
				continue
			}
			m := allowComment.FindStringSubmatch(comment.Text)
			if m == nil {
				continue // prose about lint:allow
			}
			line := c.fset.Position(comment.Pos()).Line
			if m[2] == "" {
				c.add(comment.Pos(), "allow", "say why after the rule's name: // lint:allow "+m[1]+": the reason")
				continue
			}
			c.allowed[fmt.Sprint(line, m[1])] = true
			c.allowed[fmt.Sprint(line+1, m[1])] = true
		}
	}
}

func (c *checker) add(pos token.Pos, rule, fix string) {
	line := c.fset.Position(pos).Line
	if c.allowed[fmt.Sprint(line, rule)] {
		return
	}
	c.findings = append(c.findings, Finding{c.file, line, rule, fix})
}

// imports checks the import declarations and notes the local package names.
func (c *checker) imports() {
	c.names = map[string]string{}
	own := topFolder(c.file)
	for _, spec := range c.tree.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has accepted it; nothing to check in it
		}
		name := path.Base(target)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		c.names[name] = target
		if target == "C" && !slices.ContainsFunc(cgoFolders, func(f string) bool { return strings.HasPrefix(c.file, f+"/") }) {
			c.add(spec.Pos(), "cgo", `import "C" belongs in tfbind only; add what is missing to tfbind and call it`)
		}
		imported, inModule := strings.CutPrefix(target, Module+"/")
		rules, listed := mayImport[own]
		if !inModule || !listed {
			continue
		}
		imported, _, _ = strings.Cut(imported, "/")
		if _, layered := mayImport[imported]; imported == own || imported == "option" || (!layered && imported == "internal") {
			continue
		}
		if !slices.Contains(rules, imported) && !(c.test && testMay(own, imported, strings.HasSuffix(c.tree.Name.Name, "_test"))) {
			c.add(spec.Pos(), "imports", fmt.Sprintf(
				"%s must not import %s (cmd -> matrix -> fit -> session -> {savedmodels, gpuopts} -> tfbind; data and memory stand beside); "+
					"define a small interface where it is used, or move the code down", own, imported))
		}
	}
}

// testMay reports whether a test of own may import target.
func testMay(own, target string, outside bool) bool {
	if slices.Contains(pure, own) {
		return slices.Contains(pure, target) // their tests, too, run without cgo
	}
	return outside || slices.Contains(pure, target) || slices.Contains(reach(own), target)
}

func reach(own string) []string {
	var all []string
	for _, next := range mayImport[own] {
		all = append(all, next)
		all = append(all, reach(next)...)
	}
	return all
}

func topFolder(file string) string {
	top, _, found := strings.Cut(file, "/")
	if !found {
		return ""
	}
	return top
}

// walk checks calls, knowing the function that each stands in.
func (c *checker) walk() {
	for _, decl := range c.tree.Decls {
		function := ""
		if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
			function = f.Name.Name
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				c.call(n, function)
			case *ast.SelectorExpr:
				// Also when it is only mentioned: f := runtime.SetFinalizer.
				if c.selector(n) == "runtime.SetFinalizer" {
					c.add(n.Pos(), "finalizer", "use Close, with runtime.AddCleanup on an inner handle as the safety net; a finalizer frees native memory when the Go heap grows, which it does not")
				}
			}
			return true
		})
	}
}

// selector returns "import/path.Name" for a name of an imported package.
func (c *checker) selector(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok || c.names[x.Name] == "" {
		return ""
	}
	return c.names[x.Name] + "." + s.Sel.Name
}

func (c *checker) call(call *ast.CallExpr, function string) {
	if name, ok := call.Fun.(*ast.Ident); ok {
		switch {
		case name.Name == "panic" && c.library:
			c.add(call.Pos(), "panic", "return an error: a library that panics takes its caller's training run with it")
		case (name.Name == "print" || name.Name == "println") && c.library:
			c.add(call.Pos(), "print", "a library writes to an io.Writer or a slog.Logger that its caller gives")
		}
		return
	}
	full := c.selector(call.Fun)
	switch {
	case full == "os.Exit" || strings.HasPrefix(full, "log.Fatal"):
		inMain := c.tree.Name.Name == "main" && function == "main" && !c.test
		if !inMain && !(c.test && function == "TestMain") {
			c.add(call.Pos(), "exit", "return an error or an exit code; only func main ends the process, else deferred Closes do not run")
		}
	case (full == "fmt.Print" || full == "fmt.Printf" || full == "fmt.Println" || strings.HasPrefix(full, "log.")) && c.library:
		c.add(call.Pos(), "print", "a library writes to an io.Writer or a slog.Logger that its caller gives")
	case full == "time.Sleep" && c.test:
		c.add(call.Pos(), "sleep", "wait for the event itself (a channel, a deadline on a poll) or use testing/synctest: a sleep is too short on a busy machine")
	case full == "fmt.Errorf":
		c.errorf(call)
	}
}

// errorf reports arguments that look like errors and are not wrapped.
func (c *checker) errorf(call *ast.CallExpr) {
	if len(call.Args) < 2 {
		return
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return
	}
	format, err := strconv.Unquote(literal.Value)
	if err != nil {
		return // the parser has accepted it; nothing to check in it
	}
	for i, verb := range verbs(format) {
		if i+1 >= len(call.Args) {
			return // go vet reports it
		}
		if (verb == 'v' || verb == 's') && looksLikeError(call.Args[i+1]) {
			c.add(call.Args[i+1].Pos(), "errorf", "use %w, so that errors.Is and errors.As see through the message")
		}
	}
}

// verbs returns the verb for each argument of a format without indexes ([1]);
// a width or precision given as * takes an argument, too.
func verbs(format string) []rune {
	var found []rune
	in := false
	for _, r := range format {
		switch {
		case !in:
			in = r == '%'
		case r == '[':
			return found
		case r == '*':
			found = append(found, r)
		case strings.ContainsRune("+-# 0123456789.", r):
		default:
			if r != '%' {
				found = append(found, r)
			}
			in = false
		}
	}
	return found
}

var errorName = regexp.MustCompile(`^(err|error|cause)$|(Err|Error)$|^(err|Err)[A-Z0-9]`)

// looksLikeError goes by names, since the rules read no types.
func looksLikeError(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return errorName.MatchString(e.Name)
	case *ast.SelectorExpr:
		return errorName.MatchString(e.Sel.Name)
	case *ast.CallExpr:
		if s, ok := e.Fun.(*ast.SelectorExpr); ok {
			pkg, _ := s.X.(*ast.Ident)
			return s.Sel.Name == "Err" || s.Sel.Name == "Unwrap" || (pkg != nil && pkg.Name == "errors")
		}
	}
	return false
}

// machinePath matches folders that exist on one machine only. A letter, digit,
// dot or dash before it makes it part of a longer, relative path.
var machinePath = regexp.MustCompile(`(?:^|[^A-Za-z0-9_.\-}])(/(?:work|root|home/[A-Za-z0-9_.-]+|Users/[A-Za-z0-9_.-]+)/)`)

// CheckText reports paths of somebody's machine in any text file.
func CheckText(file string, text []byte) []Finding {
	var found []Finding
	line := 0
	for content := range bytes.Lines(text) {
		line++
		if m := machinePath.FindSubmatch(content); m != nil {
			found = append(found, Finding{file, line, "path",
				fmt.Sprintf("%s exists on one machine only; write it relative to the repository, or to a variable", m[1])})
		}
	}
	return found
}

// anyMachinePath is machinePath without its left end: in a binary file the byte
// before a string is its length, which may look like a letter.
var anyMachinePath = regexp.MustCompile(`/(?:work|root|home/[A-Za-z0-9_.-]+|Users/[A-Za-z0-9_.-]+)/[A-Za-z0-9_.-]`)

// CheckBinary reports such paths in any other file. A SavedModel, for one,
// carries the path of the script that exported it.
func CheckBinary(file string, content []byte) []Finding {
	if m := anyMachinePath.Find(content); m != nil {
		return []Finding{{file, 1, "path", fmt.Sprintf("holds %q, a path of one machine; make the file again from another folder or strip it", m)}}
	}
	return nil
}

// skipped folders hold what is fetched or built, not what is committed.
var skipped = []string{".git", ".runtime", "bin", "out", "__pycache__", ".pytest_cache", ".ruff_cache", ".venv"}

// CheckTree applies all rules to the module in root.
func CheckTree(root string) ([]Finding, error) {
	var found []Finding
	edges := map[string][]edge{} // package folder -> its imports within the module
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			if slices.Contains(skipped, entry.Name()) || strings.HasPrefix(entry.Name(), ".runtime-") {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || entry.Name() == ".git" { // a file in a linked work tree
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text, 0) < 0 {
			found = append(found, CheckText(rel, text)...)
		} else {
			found = append(found, CheckBinary(rel, text)...)
		}
		if path.Ext(rel) != ".go" || strings.Contains("/"+rel, "/testdata/") {
			return nil
		}
		findings, err := CheckFile(rel, text)
		if err != nil {
			return err
		}
		found = append(found, findings...)
		if !strings.HasSuffix(rel, "_test.go") {
			edges[path.Dir(rel)] = append(edges[path.Dir(rel)], moduleImports(rel, text)...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("lint: %w", err)
	}
	return append(found, checkPure(edges)...), nil
}

// An edge is one import of a package of the module by another.
type edge struct {
	file   string
	line   int
	target string // folder of the imported package
}

func moduleImports(file string, src []byte) []edge {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, src, parser.ImportsOnly)
	if err != nil {
		return nil // CheckFile has reported it
	}
	var edges []edge
	for _, spec := range tree.Imports {
		target, _ := strconv.Unquote(spec.Path.Value)
		if target, ok := strings.CutPrefix(target, Module+"/"); ok {
			edges = append(edges, edge{file, fset.Position(spec.Pos()).Line, target})
		}
	}
	return edges
}

// checkPure follows imports from the pure packages, since a helper package
// could carry tfbind into one.
func checkPure(edges map[string][]edge) []Finding {
	var found []Finding
	for _, start := range pure {
		seen := map[string]bool{}
		var visit func(folder string)
		visit = func(folder string) {
			if seen[folder] {
				return
			}
			seen[folder] = true
			for _, e := range edges[folder] {
				if folder != start && e.target == "tfbind" {
					found = append(found, Finding{e.file, e.line, "pure",
						fmt.Sprintf("%s must build without cgo, and reaches tfbind through %s; split what it needs from %s", start, folder, folder)})
				}
				visit(e.target)
			}
		}
		visit(start)
	}
	return found
}
