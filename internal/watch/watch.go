// Package watch runs any program, or observes one that runs already, and finds out whether its memory grows, what makes
// it grow, and what to change.
//
// # Samples
//
// A program is sampled with all its descendants (tree). A Python program gets a probe (folder probe), which marks the
// steps of a training, a loop of predictions or a session, and waits at a mark while its memory is read. A Go program
// marks its steps by memory.Mark, and a program of any kind by lines of its output. A program without marks is
// sampled by time.
//
// # Verdict
//
// Each kind of step has a memory.Series, and so has time. judge chooses the series, judges its layers, and looks for a
// cause: a count of the probe, or a container, that grows with the memory and by an amount that agrees with it.
//
// Linux only.
package watch

import (
	"errors"
	"io"
	"os"
	"regexp"
	"time"

	"steadyfit/memory"
)

// Options say what Run runs, and how long.
type Options struct {
	// Command is the program and its arguments.
	Command        []string
	Stdin          *os.File
	Stdout, Stderr *os.File
	// Mark, if not nil, matches lines of the output that end a step.
	Mark *regexp.Regexp
	// Within ends the program after this time, or as soon as the verdict is sure. 0 means never.
	Within time.Duration
	// UntilSure ends the program as soon as the verdict is sure.
	UntilSure bool
	// Every is the time between two calls of Report; 0 means that it is not called.
	Every  time.Duration
	Report func(*Report)
	// Samples receives the samples as JSON lines. Nil means none.
	Samples io.Writer

	// NativeStacks preloads jemalloc, which finds the native functions that allocated what grows in a Python program.
	NativeStacks bool
	// Measure, if not nil, takes samples at regular steps, and looks for no cause.
	Measure *Measure

	arm *arm // of a trial
}

// Measure says how a program is measured. Its report has all samples.
type Measure struct {
	// Every is the number of steps between two samples; the first step has one as well. 0 means that time decides.
	Every int
	// Env is added to the environment. Change is the name of a change that probe/remedies.py makes; empty for none.
	Env    []string
	Change string
	// Started is called when the process has started. It may be nil, like the functions below.
	Started func(pid int) error
	// GPU reads the GPU memory of a process.
	GPU func(pid int) memory.Source
	// Waits is called while the program waits at a mark of a kind.
	Waits func(kind string, pids []int)
}

// Kinds of marks that are no steps.
const (
	// Loaded comes before the first step. Measure then resets the peaks of the processes.
	Loaded = "loaded"
	// Ended comes at the end of a program in Python.
	Ended = "ended"
)

// ErrNotFound means that the program to run does not exist.
var ErrNotFound = errors.New("the program was not found")

// Verdicts of a program and of a layer of its memory.
const (
	Leak      = "leak"
	Level     = "level"
	Undecided = "undecided"
)

// Report is the answer.
type Report struct {
	Command []string `json:"command,omitempty"`
	PIDs    []int    `json:"pids,omitempty"`
	Verdict string   `json:"verdict"`
	// Cause names what makes the memory grow. It is empty without growth, and "not known" if nothing explains it.
	Cause string `json:"cause"`
	// Why explains Cause. Nil without a cause.
	Why *Cause `json:"why,omitempty"`
	// Unit is what the program counts: a kind of step, or "minute" without marks.
	Unit   string `json:"unit"`
	Steps  int    `json:"steps"`
	Epochs int    `json:"epochs,omitempty"`
	// Samples is the number of samples of the judged series.
	Samples int `json:"samples"`
	// Seconds is the time that was watched. StepSeconds is the mean time of a step in the judged part.
	Seconds     float64 `json:"seconds"`
	StepSeconds float64 `json:"step_seconds,omitempty"`
	// Slope is the growth per Unit of the memory that counts for a limit, and PerHour that of an hour.
	Slope   memory.Interval `json:"slope"`
	PerHour memory.Bytes    `json:"bytes_per_hour"`
	// PerEpoch is the growth of an epoch; 0 without epochs.
	PerEpoch memory.Bytes `json:"bytes_per_epoch,omitempty"`
	// From is the step or minute from which on the memory was judged. What comes before is warm-up.
	From float64 `json:"from"`
	// Peak is the largest memory of all processes together.
	Peak memory.Bytes `json:"peak_bytes"`
	// Left is what the control group or the machine has left, and GoneSeconds the time until it is used up.
	Left        memory.Bytes `json:"left_bytes,omitempty"`
	GoneSeconds float64      `json:"gone_in_seconds,omitempty"`
	Layers      []Layer      `json:"layers"`
	Processes   []Process    `json:"processes,omitempty"`
	// Stacks are the native stacks that allocated most of what grows, with Options.NativeStacks.
	Stacks []Stack `json:"native_stacks,omitempty"`
	// Excluded are causes that were looked for and not found.
	Excluded []string `json:"excluded,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	// Trials are the remedies that Try tried, best first, and Advice what follows from them.
	Trials []*Trial `json:"remedies,omitempty"`
	Advice string   `json:"advice,omitempty"`
	// Baseline says how the report compares with an earlier one.
	Baseline string `json:"baseline,omitempty"`
	// Exit is the exit code of the program; 128 plus the number of a signal that ended it. It is -1 while it runs.
	Exit int `json:"exit_code"`
	// Ended is why watch ended the program; empty if it ended by itself.
	Ended string `json:"ended,omitempty"`

	// All are the samples by kind of mark, with Options.Measure. Acted is how often its change was made.
	All   map[string]*memory.Series `json:"-"`
	Acted int                       `json:"-"`

	kind     string
	ends     []int // the steps at the first marks after the ends of epochs
	series   *memory.Series
	to       float64  // the end of the judged part
	hidden   bool     // whether more and more is allocated although the memory is level
	python   bool     // whether a process has the probe of Python
	suspects []string // containers that grow, and explain too little
}

// Layer is the verdict on a layer of memory.
type Layer struct {
	Name memory.Layer `json:"name"`
	// Verdict is leak, level or undecided. Kind is that of package memory.
	Verdict string          `json:"verdict"`
	Kind    memory.Kind     `json:"kind"`
	Slope   memory.Interval `json:"slope"`
	Start   memory.Bytes    `json:"start_bytes"`
	End     memory.Bytes    `json:"end_bytes"`
	Text    string          `json:"text"`
}

// Process is a process with its growth.
type Process struct {
	PID     int          `json:"pid"`
	Command string       `json:"command"`
	First   memory.Bytes `json:"first_bytes"`
	Last    memory.Bytes `json:"last_bytes"`
}

// Stack is native memory that a stack of functions allocated and did not free.
type Stack struct {
	// Growth is the memory per Unit, estimated from samples.
	Growth memory.Bytes `json:"bytes"`
	// Functions are those of native code, the innermost first.
	Functions []string `json:"functions"`
}

// Cause is the explanation of growth.
type Cause struct {
	// Evidence says which count grew with the memory, and by how much.
	Evidence string `json:"evidence"`
	// Place is where it happens, as FILE:LINE. It is empty if it is not known.
	Place string `json:"place,omitempty"`
	// Variable is the variable that holds a container that grows.
	Variable string `json:"variable,omitempty"`
	// Change is what to write instead.
	Change string `json:"change,omitempty"`
	// Share is the part of the growth that the cause explains, between 0 and 1; 0 if it is not known.
	Share float64 `json:"share,omitempty"`

	container bool // whether it is a container that grows
}
