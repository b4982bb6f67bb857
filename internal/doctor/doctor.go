// Package doctor examines the machine that steadyfit is to train on: the
// TensorFlow library and whether a session runs, the CPU, memory and its
// limits, disk space, the GPU libraries one by one, and the environment
// variables that TensorFlow reads or is wrongly thought to read.
//
// It is not a benchmark, measures no model, and changes nothing: a fix is a text for a
// person. It opens TensorFlow in this process, which cannot be undone.
//
// Functions read files below a root (/proc, /sys, /etc, /dev), the environment and
// TensorFlow itself, and return a Check each; Examine puts them in a fixed order into a
// Report, which is printed with WriteText or marshaled to JSON. Unknown amounts are
// called unknown, never zero.
package doctor

import (
	"context"
	"encoding"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"steadyfit/tfbind"
)

// Status is how much a check matters. The zero value is OK.
type Status int

// From harmless to harmful.
const (
	// OK needs nothing.
	OK Status = iota
	// Note is worth knowing; nothing is wrong.
	Note
	// Warning costs speed or memory, or has not the intended effect.
	Warning
	// Problem keeps training from running here.
	Problem
)

var (
	statusNames                          = []string{"ok", "note", "warning", "problem"}
	_           encoding.TextMarshaler   = OK
	_           encoding.TextUnmarshaler = (*Status)(nil)
)

// String is "ok", "note", "warning" or "problem".
func (s Status) String() string {
	if s < 0 || int(s) >= len(statusNames) {
		return fmt.Sprintf("Status(%d)", int(s))
	}
	return statusNames[s]
}

// MarshalText writes the word that String gives.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word that String gives.
func (s *Status) UnmarshalText(text []byte) error {
	i := slices.Index(statusNames, string(text))
	if i < 0 {
		return fmt.Errorf("status %q: expected one of %s", text, strings.Join(statusNames, ", "))
	}
	*s = Status(i)
	return nil
}

// Check is the result of one examination. The names of the JSON fields are stable, and
// so are Group and Name; checks of environment variables, libraries and GPUs are named
// after these.
type Check struct {
	// Group is "TensorFlow", "CPU", "Memory", "Disk", "GPU" or "Environment".
	Group string `json:"group"`
	// Name is unique within its group.
	Name string `json:"name"`
	// Status is "ok", "note", "warning" or "problem".
	Status Status `json:"status"`
	// Found describes what is there.
	Found string `json:"found"`
	// Fix is what to do, with the command to run; empty if there is nothing to do.
	Fix string `json:"fix,omitempty"`
}

func ok(name, found string) Check { return Check{Name: name, Found: found} }

func note(name, found, fix string) Check {
	return Check{Name: name, Status: Note, Found: found, Fix: fix}
}

func warning(name, found, fix string) Check {
	return Check{Name: name, Status: Warning, Found: found, Fix: fix}
}

func problem(name, found, fix string) Check {
	return Check{Name: name, Status: Problem, Found: found, Fix: fix}
}

// Report is the outcome of an examination, in an order that does not change
// from run to run.
type Report struct {
	Checks []Check `json:"checks"`
}

// Worst is the most serious status of the report; OK if it is empty.
func (r Report) Worst() Status {
	worst := OK
	for _, c := range r.Checks {
		worst = max(worst, c.Status)
	}
	return worst
}

// Options select what to examine. The zero value examines this machine for training on
// the CPU, with the TensorFlow that tfbind.Locate finds.
type Options struct {
	// TensorFlow is the path of the library, see tfbind.Locate.
	TensorFlow string
	// NeedGPU makes everything that prevents the use of a GPU a problem.
	NeedGPU bool
	// Root is the folder that holds proc, sys, dev and etc; empty means /.
	// TensorFlow is searched and opened outside it.
	Root string
	// Environ are the variables to examine, as "NAME=value"; nil means those of
	// the process. TensorFlow itself always reads those of the process.
	Environ []string
	// Work is the folder that training writes to; empty means the working
	// directory.
	Work string
}

// Examine examines the machine. It opens TensorFlow and runs one tiny session with GPU
// memory growth, so call it in a process that will not train with other GPU options.
// TensorFlow prints to the process's stderr while it opens.
//
// When ctx ends, the report holds what was found until then, and a problem that says
// where it stopped. A call into TensorFlow cannot be interrupted.
func Examine(ctx context.Context, o Options) Report {
	return examine(ctx, newMachine(o))
}

// machine is everything the checks read; tests replace it.
type machine struct {
	fs         fs.FS
	env        map[string]string
	goMaxProcs int
	arch       string
	folders    []folder

	tensorflow string
	needGPU    bool
	locate     func(path string) (tfbind.Location, error)
	load       func(path string) (tfbind.Info, error)
	try        func(context.Context) ([]tfbind.Device, error)
	runPath    func(file string) ([]string, error)
	contains   func(files, names []string) (map[string]bool, error)
	space      func(dir string) (space, error)
	gpus       func() gpuList
}

func newMachine(o Options) machine {
	root := o.Root
	if root == "" {
		root = "/"
	}
	environ := o.Environ
	if environ == nil {
		environ = os.Environ()
	}
	env := map[string]string{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return machine{
		fs: os.DirFS(root), env: env, goMaxProcs: runtime.GOMAXPROCS(0), arch: runtime.GOARCH,
		folders:    folders(env, o.Work),
		tensorflow: o.TensorFlow, needGPU: o.NeedGPU,
		locate: tfbind.Locate, load: tfbind.Load, try: trySession,
		runPath: elfRunPath, contains: elfContains,
		space: func(dir string) (space, error) { return diskSpace(filepath.Join(root, dir)) },
		gpus:  func() gpuList { return listGPUs(root) },
	}
}

func examine(ctx context.Context, m machine) Report {
	var (
		r   Report
		cpu = readProcessor(m.fs)
		tf  tensorFlow
	)
	// First, since TensorFlow takes memory of a GPU once it is open.
	gpus := m.gpus()
	m.gpus = func() gpuList { return gpus }
	for _, part := range []struct {
		group string
		look  func() []Check
	}{
		{"TensorFlow", func() (checks []Check) { tf, checks = checkTensorFlow(ctx, m, cpu); return checks }},
		{"CPU", func() []Check { return checkCPU(m, cpu) }},
		{"Memory", func() []Check { return checkMemory(m) }},
		{"Disk", func() []Check { return checkDisk(m) }},
		{"GPU", func() []Check { return checkGPU(m, tf) }},
		{"Environment", func() []Check { return checkVariables(m, tf) }},
	} {
		if err := context.Cause(ctx); err != nil {
			stopped := problem("examination", "stopped before this part: "+err.Error(), "run `steadyfit doctor` again")
			stopped.Group = part.group
			r.Checks = append(r.Checks, stopped)
			break
		}
		for _, c := range part.look() {
			c.Group = part.group
			r.Checks = append(r.Checks, c)
		}
	}
	return r
}

// readText reads a small file below the root; a file that is missing or
// refused reads as "", false. path is absolute, as on the machine itself.
func (m machine) readText(path string) (string, bool) { return readText(m.fs, path) }

func readText(fsys fs.FS, path string) (string, bool) {
	text, err := fs.ReadFile(fsys, relative(path))
	return string(text), err == nil
}

// relative turns an absolute path into a name within an fs.FS.
func relative(path string) string {
	path = strings.TrimPrefix(filepath.Clean("/"+path), "/")
	if path == "" {
		return "."
	}
	return path
}

func (m machine) exists(path string) bool {
	_, err := fs.Stat(m.fs, relative(path))
	return err == nil
}

// glob lists the absolute paths that match a pattern, sorted.
func (m machine) glob(pattern string) ([]string, error) {
	names, err := fs.Glob(m.fs, relative(pattern))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	for i := range names {
		names[i] = "/" + names[i]
	}
	return names, nil
}
