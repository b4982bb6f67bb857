// Package doctor examines whether steadyfit can train on this machine. It checks the TensorFlow
// library and a session, the CPU, memory and its limits, each GPU library, and the
// environment variables that TensorFlow ignores.
//
// It does not benchmark or change anything: a fix is a text for a person. It opens TensorFlow
// in this process, which cannot be undone.
//
// The checks read files below a root (/proc, /sys, /etc, /dev), the environment and TensorFlow.
// Examine collects them in a fixed order into a Report, which is printed with WriteText or
// marshaled to JSON. Unknown amounts are reported as unknown, never as zero.
package doctor

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/shirou/gopsutil/v3/mem"

	"steadyfit/internal/tflibrary"
	"steadyfit/memory"
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
	// Group is "TensorFlow", "CPU", "Memory", "GPU" or "Environment".
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
	// With NeedGPU, everything that prevents the use of a GPU is reported as a problem.
	NeedGPU bool
}

// Examine examines the machine. It opens TensorFlow and runs one small session with GPU memory
// growth, so the process cannot train with other GPU options afterwards. TensorFlow prints to
// the standard error of the process while it opens.
func Examine(o Options) Report {
	return examine(newMachine(o))
}

// machine is everything that the checks read; tests replace it.
type machine struct {
	fs               fs.FS
	env              map[string]string
	cpu              processor
	cores            int // CPUs that the process may run on
	total, available memory.Reading

	tensorflow  string
	needGPU     bool
	locate      func(path string) (tflibrary.Location, error)
	load        func(path string) (tfbind.Info, error)
	try         func() ([]tfbind.Device, error)
	realFolder  func(file string) string
	builtForGPU func(file string) bool
	gpus        func() gpuList
}

func newMachine(o Options) machine {
	m := machine{
		fs: os.DirFS("/"), env: map[string]string{}, cores: runtime.NumCPU(),
		tensorflow: o.TensorFlow, needGPU: o.NeedGPU,
		locate: tflibrary.Locate, load: tfbind.Load, try: trySession,
		realFolder: realFolder, builtForGPU: builtForGPU,
		gpus: listGPUs,
	}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		m.env[name] = value
	}
	if all, err := cpu.Info(); err == nil && len(all) > 0 {
		m.cpu = processor{all[0].ModelName, all[0].Flags}
	}
	if v, err := mem.VirtualMemory(); err == nil && v.Total > 0 { // Total is 0 if gopsutil cannot read the file
		m.total, m.available = memory.Known(memory.Bytes(v.Total)), memory.Known(memory.Bytes(v.Available))
	}
	return m
}

// realFolder returns the folder of a file without symbolic links; empty if there is no such folder.
func realFolder(file string) string {
	folder, err := filepath.EvalSymlinks(filepath.Dir(file))
	if err != nil {
		return ""
	}
	return folder
}

func examine(m machine) Report {
	var r Report
	add := func(group string, checks []Check) {
		for _, c := range checks {
			c.Group = group
			r.Checks = append(r.Checks, c)
		}
	}
	// GPUs come first, since TensorFlow takes GPU memory once it is open.
	gpus := m.gpus()
	tf, checks := checkTensorFlow(m)
	add("TensorFlow", checks)
	add("CPU", checkCPU(m))
	add("Memory", checkMemory(m))
	add("GPU", checkGPU(m, tf, gpus))
	add("Environment", append(checkVariables(m), checkCluster(m)...))
	return r
}

// readText reads a small file below the root; empty if the file is missing or unreadable.
// path is absolute, as on the machine itself.
func (m machine) readText(path string) string {
	text, _ := fs.ReadFile(m.fs, relative(path))
	return string(text)
}

// relative converts an absolute path to a name within an fs.FS.
func relative(path string) string { return strings.TrimPrefix(filepath.Clean(path), "/") }

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
