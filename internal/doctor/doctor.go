// Package doctor examines whether steadyfit can train on this machine. It checks the TensorFlow
// library and a session, the CPU, memory and its limits, disk space, each GPU library, and the
// environment variables that TensorFlow reads or is wrongly thought to read.
//
// It does not benchmark or change anything: a fix is a text for a person. It opens TensorFlow
// in this process, which cannot be undone.
//
// The checks read files below a root (/proc, /sys, /etc, /dev), the environment and TensorFlow.
// Examine collects them in a fixed order into a Report, which is printed with WriteText or
// marshaled to JSON. Unknown amounts are reported as unknown, never as zero.
package doctor

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"steadyfit/internal/tflibrary"
	"steadyfit/tfbind"
)

// Status is the severity of a check. The zero value is OK.
type Status int

// The statuses, from harmless to harmful.
const (
	// OK means that nothing needs to be done.
	OK Status = iota
	// Note is information; nothing is wrong.
	Note
	// Warning means a cost in speed or memory, or a setting without the intended effect.
	Warning
	// Problem prevents training on this machine.
	Problem
)

// String returns "ok", "note", "warning" or "problem".
func (s Status) String() string { return [...]string{"ok", "note", "warning", "problem"}[s] }

// MarshalText returns the text of String.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Check is the result of one examination. The names of the JSON fields, Group and Name are
// stable. The check of an environment variable, a library or a GPU has the name of that item.
type Check struct {
	// Group is "TensorFlow", "CPU", "Memory", "Disk", "GPU" or "Environment".
	Group string `json:"group"`
	// Name is unique within its group.
	Name string `json:"name"`
	// Status is "ok", "note", "warning" or "problem".
	Status Status `json:"status"`
	// Found describes the finding.
	Found string `json:"found"`
	// Fix describes the remedy, with the command to run; empty if nothing needs to be done.
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

// Report is the outcome of an examination, in an order that is the same in each run.
type Report struct {
	Checks []Check `json:"checks"`
}

// Worst returns the most serious status of the report; OK if it is empty.
func (r Report) Worst() Status {
	worst := OK
	for _, c := range r.Checks {
		worst = max(worst, c.Status)
	}
	return worst
}

// Options select the scope of the examination. The zero value examines this machine for
// training on the CPU, with the TensorFlow that tflibrary.Locate finds.
type Options struct {
	// TensorFlow is the path of the library; see tflibrary.Locate.
	TensorFlow string
	// NeedGPU reports everything that prevents the use of a GPU as a problem.
	NeedGPU bool
	// Environ are the variables to examine, as "NAME=value"; nil means the variables of the
	// process, which TensorFlow itself always reads.
	Environ []string
}

// Examine examines the machine. It opens TensorFlow and runs one small session with GPU memory
// growth, so the process cannot train with other GPU options afterwards. TensorFlow prints to
// the standard error of the process while it opens.
//
// When ctx ends, the report has the findings so far and a problem that says where the
// examination stopped. A call into TensorFlow cannot be interrupted.
func Examine(ctx context.Context, o Options) Report {
	return examine(ctx, newMachine(o))
}

// machine is everything that the checks read; tests replace it.
type machine struct {
	fs         fs.FS
	env        map[string]string
	goMaxProcs int
	arch       string
	folders    []folder

	tensorflow string
	needGPU    bool
	locate     func(path string) (tflibrary.Location, error)
	load       func(path string) (tfbind.Info, error)
	try        func(context.Context) ([]tfbind.Device, error)
	runPath    func(file string) ([]string, error)
	contains   func(files, names []string) (map[string]bool, error)
	space      func(dir string) (space, error)
	gpus       func() gpuList
}

func newMachine(o Options) machine {
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
		fs: os.DirFS("/"), env: env, goMaxProcs: runtime.GOMAXPROCS(0), arch: runtime.GOARCH,
		folders:    folders(env),
		tensorflow: o.TensorFlow, needGPU: o.NeedGPU,
		locate: tflibrary.Locate, load: tfbind.Load, try: trySession,
		runPath: elfRunPath, contains: elfContains,
		space: diskSpace, gpus: listGPUs,
	}
}

func examine(ctx context.Context, m machine) Report {
	var (
		r   Report
		cpu = readProcessor(m.fs)
		tf  tensorFlow
	)
	// GPUs come first, since TensorFlow takes GPU memory once it is open.
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
		{"Environment", func() []Check { return append(checkVariables(m, tf), checkCluster(m)...) }},
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

// readText reads a small file below the root; ok is false if the file is missing or unreadable.
// path is absolute, as on the machine itself.
func (m machine) readText(path string) (string, bool) { return readText(m.fs, path) }

func readText(fsys fs.FS, path string) (string, bool) {
	text, err := fs.ReadFile(fsys, relative(path))
	return string(text), err == nil
}

// relative converts an absolute path to a name within an fs.FS.
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

// glob returns the absolute paths that match a pattern, sorted.
func (m machine) glob(pattern string) []string {
	names, _ := fs.Glob(m.fs, relative(pattern)) // the patterns are valid
	for i := range names {
		names[i] = "/" + names[i]
	}
	return names
}
