// Package runner runs the programs of the matrix under the runner of package watch.
package runner

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"steadyfit/internal/child"
	"steadyfit/internal/files"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/watch"
	"steadyfit/memory"
)

// Job is a run of a program.
type Job struct {
	// Args are the program and its arguments. Env is added to its environment.
	Args, Env []string
	// Every is the number of steps between two samples; 0 means that time decides. Mark matches the lines of its output
	// that end a step, if it has no other marks.
	Every int
	Mark  *regexp.Regexp
	// Change is the name of a change that watch makes in a Python program; empty for none.
	Change string
	Limit  memory.Bytes
	// Timeout is the longest time between two marks, or of the whole run if lines of the output are its marks.
	Timeout time.Duration
	GPU     func(pid int) memory.Source
	// Scratch is a folder for the output of the program.
	Scratch string
}

// Phases between which a run has samples, besides the marks of package program.
const (
	First  = "first"  // the first step is done
	Steady = "steady" // the last step is done
)

// Failure is the kind of a failure.
type Failure string

const (
	// NotApplicable means that a remedy changes nothing in the program.
	NotApplicable Failure = program.NotApplicable
	// CouldNotApply means that this machine cannot apply a remedy.
	CouldNotApply Failure = program.CouldNotApply
	OutOfMemory   Failure = "out of memory"
	Failed        Failure = "failed"
)

// Observed is what was seen of a run.
type Observed struct {
	Series memory.Series
	Phases map[string]memory.Sample
	// Facts are the result that the program printed.
	Facts map[string]string
	// Maps are the memory mappings of its processes after the first step.
	Maps string
	// Acted is how often Job.Change was made.
	Acted int
	// Failure and Cause are empty for a successful run. Log is the end of its standard error.
	Failure Failure
	Cause   string
	Log     string
}

var (
	// ErrHang means that a program made no mark within the timeout.
	ErrHang = errors.New("hang")
	// ErrOutside means that a signal from outside ended the program, so that the run has no result.
	ErrOutside = errors.New("ended from outside the matrix")
)

// Run runs the job. An error has a cause outside the program: it cannot start, a disk is full
// (syscall.ENOSPC), a signal from outside, or ctx.
func (j Job) Run(ctx context.Context) (*Observed, error) {
	o := &Observed{Phases: map[string]memory.Sample{}, Facts: map[string]string{}}
	limit, err := newLimit(j.Limit)
	defer limit.close()
	if err != nil {
		o.Failure, o.Cause = CouldNotApply, fmt.Sprintf("a control group for its memory limit: %v", err)
		return o, nil
	}
	stdout, err := os.CreateTemp(j.Scratch, "stdout-")
	if err != nil {
		return nil, err
	}
	defer stdout.Close()
	stderr, err := os.CreateTemp(j.Scratch, "stderr-")
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	hang := time.AfterFunc(j.Timeout, func() { stop(fmt.Errorf("%w: no mark for %v", ErrHang, j.Timeout)) })
	defer hang.Stop()
	group := 0
	report, err := watch.Run(running, watch.Options{Command: j.Args, Mark: j.Mark, Stdout: stdout, Stderr: stderr,
		Measure: &watch.Measure{Every: j.Every, Env: j.Env, Change: j.Change, GPU: j.GPU,
			Started: func(pid int) error {
				group = pid
				return limit.apply(pid)
			},
			Waits: func(kind string, pids []int) {
				hang.Reset(j.Timeout)
				o.look(kind, pids)
			}}})
	if group != 0 {
		_ = syscall.Kill(-group, syscall.SIGKILL) // processes that are left
	}
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	o.collect(report)
	text, err := files.Read(stdout.Name(), maxOutput)
	if err != nil {
		return nil, err
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	// A program may print no result.
	_ = json.Unmarshal(lines[len(lines)-1], &o.Facts)
	if o.Log, err = end(stderr); err != nil {
		return nil, err
	}
	return o, o.failed(report.Exit, context.Cause(running), limit)
}

const (
	maxOutput = 64 << 20
	logKept   = 64 << 10
)

// end returns the end of a file.
func end(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	text := make([]byte, min(info.Size(), logKept))
	_, err = f.ReadAt(text, info.Size()-int64(len(text)))
	return string(text), err
}

// look looks at processes that wait at a mark.
func (o *Observed) look(kind string, pids []int) {
	if o.Maps == "" && kind != program.Loaded {
		for _, pid := range pids {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // empty is unknown
			o.Maps += string(text)
		}
	}
}

// leastSteps is the number of samples at steps below which those by time count.
const leastSteps = 2

// collect takes the samples of a report: the series of its steps, and the samples between phases.
func (o *Observed) collect(r *watch.Report) {
	o.Acted = r.Acted
	steps := &memory.Series{}
	for _, kind := range slices.Sorted(maps.Keys(r.All)) {
		s := r.All[kind]
		switch kind {
		case watch.Ended:
			kind = program.Closed
			fallthrough
		case program.Loaded, program.Closed, program.Trimmed:
			samples := s.Samples()
			o.Phases[kind] = samples[0]
			if kind != program.Loaded { // with several processes, those of the last one
				o.Phases[kind] = samples[len(samples)-1]
			}
		case "": // by time
		default:
			if s.Total() > steps.Total() {
				steps = s
			}
		}
	}
	if byTime := r.All[""]; byTime != nil && steps.Total() < leastSteps {
		steps = byTime
	}
	o.Series = *steps
	if samples := steps.Samples(); len(samples) > 0 {
		o.Phases[First], o.Phases[Steady] = samples[0], samples[len(samples)-1]
	}
}

// lack matches the messages of failed allocations: TensorFlow's, Python's, and those of C++ and Go.
var lack = regexp.MustCompile(`RESOURCE_EXHAUSTED|ResourceExhaustedError|OOM when allocating|MemoryError`)

// failed classifies the end of a program. An error has a cause outside the program.
func (o *Observed) failed(exit int, stopped error, l *limit) error {
	last := strings.TrimSpace(child.CauseLine(o.Log))
	lines := strings.Split(strings.TrimSpace(o.Log), "\n")
	final := lines[len(lines)-1]
	switch signal := syscall.Signal(exit - 128); {
	case stopped != nil:
		o.Failure, o.Cause = Failed, stopped.Error()
	case exit == 0 && o.Series.Total() == 0:
		o.Failure, o.Cause = Failed, "ended without a step"
	case exit == 0:
	case strings.Contains(final, program.NotApplicable+": "):
		o.Failure, o.Cause = NotApplicable, final
	case strings.Contains(final, program.CouldNotApply+": "):
		o.Failure, o.Cause = CouldNotApply, final
	case l.killed():
		o.Failure, o.Cause = OutOfMemory, "killed by the kernel: "+l.String()
	case slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}, signal):
		return fmt.Errorf("%w: by signal %s", ErrOutside, signal)
	default:
		o.Failure, o.Cause = Failed, cmp.Or(last, fmt.Sprintf("exit code %d", exit))
		if exit > 128 {
			o.Cause = fmt.Sprintf("signal: %s: %s", signal, last)
		}
		if lack.MatchString(o.Log) {
			o.Failure = OutOfMemory
		}
		if l.size > 0 {
			o.Cause += " (under a " + l.String() + ")"
		}
	}
	return fullDisk(o.Cause, o.Log)
}

// fullDisk returns an error if a program failed for lack of disk space, since another run would fail, too.
func fullDisk(cause, log string) error {
	for line := range strings.Lines(cause + "\n" + log) {
		lower := strings.ToLower(line)
		if strings.Contains(lower, "no space left on device") || strings.Contains(lower, "disk quota exceeded") {
			return fmt.Errorf("%w: message of the program: %.200s; free some space and repeat the command, which resumes",
				syscall.ENOSPC, strings.TrimSpace(line))
		}
	}
	return nil
}
