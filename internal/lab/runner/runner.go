// Package runner runs the child processes of the laboratory: [Job.Run] a run of the matrix with
// its samples (package worker has the protocol), and [Exec] a command of a benchmark.
package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"steadyfit/internal/child"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// Job is a run of the matrix.
type Job struct {
	// Args start the child. Env is added to its environment.
	Args, Env []string
	Spec      worker.Spec
	Limit     memory.Bytes
	// Timeout is the longest time between two messages.
	Timeout time.Duration
	GPU     func(pid int) memory.Source
}

// Observed is what the parent saw of a run.
type Observed struct {
	Series memory.Series
	Phases map[string]memory.Sample
	Facts  map[string]string
	// Maps are the memory mappings of the child after the last step.
	Maps string
	// Threads counts threads by phase (steady and closed) and name.
	Threads map[string]map[string]int
	// Failure and Cause are empty for a successful run; Cause is set if the child did not end
	// by itself after a success. Log is the end of its standard error.
	Failure worker.Failure
	Cause   string
	Log     string
}

const seriesKeep = 512

var (
	// ErrHang means that a child sent no message within the timeout.
	ErrHang = errors.New("hang")
	// ErrOutside means that a signal from outside ended the child, so that the run has no
	// result.
	ErrOutside = errors.New("ended from outside the matrix")
)

// grace is the longest time from the last message of a child to its end, in which it frees
// memory or writes a core file.
const grace = 30 * time.Second

// Run runs the job in as many processes as necessary. An error has a cause outside the child:
// the program cannot start, the limit cannot be set, a disk is full (syscall.ENOSPC), a signal
// from outside, or ctx.
func (j Job) Run(ctx context.Context) (*Observed, error) {
	o := &Observed{
		Series:  memory.Series{Keep: seriesKeep},
		Phases:  make(map[string]memory.Sample),
		Facts:   make(map[string]string),
		Threads: make(map[string]map[string]int),
	}
	l, err := newLimit(j.Limit)
	if err != nil {
		return nil, err
	}
	defer l.close()
	for {
		from, err := o.process(ctx, j, l)
		if err != nil || from == 0 {
			return o, err
		}
		j.Spec.From = from
	}
}

// process runs one process. from is the number of completed steps if another process must
// continue, otherwise 0.
func (o *Observed) process(ctx context.Context, j Job, l *limit) (from int, err error) {
	p, err := child.Start(ctx, child.Command{Args: j.Args, Env: j.Env, Variable: worker.Env, Spec: j.Spec,
		KillWithParent: true})
	if err != nil {
		return 0, err
	}
	if err := l.apply(p.PID()); err != nil {
		_ = p.Kill("no memory limit")
		p.End(nil)
		return 0, err
	}
	last, talk := o.converse(p, j)
	p.Requests.Close() // A waiting child reads the end of the file and exits.
	patience := min(grace, j.Timeout)
	if talk == nil && !p.Wait(patience) {
		talk = fmt.Errorf("%w: it did not exit within %v after its last message", ErrHang, patience)
	}
	exit := p.End(nil)
	o.Log = p.Log.String()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if last == nil {
		if talk == nil && slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM},
			exit.Signal) {
			return 0, fmt.Errorf("%w: by signal %s", ErrOutside, exit.Signal)
		}
		o.Failure, o.Cause = worker.Failed, cause(exit, talk, l)
		if exit.OOMKilled || l.killed() {
			o.Failure = worker.OutOfMemory
		}
		return 0, fullDisk(o.Cause, o.Log)
	}
	if last.Kind == worker.KindAgain {
		if last.Step <= j.Spec.From {
			o.Failure, o.Cause = worker.Failed, fmt.Sprintf("the process asked to be restarted at step %d, its first step",
				last.Step)
			return 0, nil
		}
		return last.Step, nil
	}
	if o.Failure, o.Cause = last.Failure, last.Text; o.Failure != "" {
		return 0, fullDisk(o.Cause, o.Log)
	}
	if talk != nil {
		o.Cause = fmt.Sprintf("killed: it did not exit within %v after the last step", patience)
	}
	return 0, nil
}

// cause returns the reason why a child ended without a last message.
func cause(exit child.Exit, talk error, l *limit) string {
	switch {
	case talk != nil:
		return talk.Error()
	case l.killed():
		return "killed by the kernel: " + l.String()
	}
	why := exit.Cause
	if exit.Code == 0 {
		why = "ended without a result"
	}
	if l.size > 0 {
		why += " (under a " + l.String() + ")"
	}
	return why
}

// fullDisk returns an error if a child failed for lack of disk space, since another run would
// fail too.
func fullDisk(cause, log string) error {
	for line := range strings.Lines(cause + "\n" + log) {
		lower := strings.ToLower(line)
		if strings.Contains(lower, "no space left on device") || strings.Contains(lower, "disk quota exceeded") {
			return fmt.Errorf("%w: message of the child: %.200s; free some space and repeat the command, which resumes",
				syscall.ENOSPC, strings.TrimSpace(line))
		}
	}
	return nil
}

// converse takes samples until the last message. A nil message means that the child ended
// without it.
func (o *Observed) converse(p *child.Process, j Job) (*worker.Message, error) {
	var sources []memory.Source
	if j.GPU != nil {
		if source := j.GPU(p.PID()); source != nil {
			sources = append(sources, source)
		}
	}
	sampler, err := memory.NewSampler(p.PID(), sources...)
	if err != nil {
		return nil, nil // The child has ended; its exit status has the reason.
	}
	defer sampler.Close()
	var sample memory.Sample
	for {
		line, err := p.Receive(time.Now().Add(j.Timeout))
		switch {
		case errors.Is(err, child.ErrDeadline):
			return nil, fmt.Errorf("%w: no message for %v", ErrHang, j.Timeout)
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return nil, err
		}
		var m worker.Message
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, fmt.Errorf("message of the child: %w: %.80q", err, line)
		}
		switch m.Kind {
		case worker.KindFact:
			o.Facts[m.Name] = m.Value
			continue
		case worker.KindEnd, worker.KindAgain:
			return &m, nil
		case worker.KindPhase, worker.KindStep:
		default:
			return nil, fmt.Errorf("message of the child: unknown kind %q", m.Kind)
		}
		if err := sampler.Sample(m.Step, &sample); err != nil {
			return nil, nil
		}
		complete(&sample, m)
		if m.Kind == worker.KindStep {
			o.Series.Append(&sample)
		} else {
			o.phase(m.Name, p.PID(), &sample)
			if m.Name == worker.PhaseLoaded {
				_ = sampler.ResetPeak() // If this fails, the peak is that of the whole run.
			}
		}
		if _, err := p.Requests.Write([]byte{'.'}); err != nil {
			return nil, nil
		}
	}
}

// complete adds the values that only the child knows.
func complete(sample *memory.Sample, m worker.Message) {
	for layer, value := range m.Values {
		if sample.Get(layer).OK {
			continue // the parent reads this layer itself
		}
		r := memory.Reading{}
		if value != nil {
			r = memory.Known(memory.Bytes(*value))
		}
		sample.Set(layer, r)
	}
	if m.StepNS > 0 {
		sample.Set(memlayer.StepTime, memory.Known(memory.Bytes(m.StepNS)))
	}
}

var ends = []string{worker.PhaseSteady, worker.PhaseTraced, worker.PhaseClosed, worker.PhaseTrimmed}

func (o *Observed) phase(name string, pid int, sample *memory.Sample) {
	// With several processes, the start is that of the first process and the end that of the
	// last one.
	if _, there := o.Phases[name]; !there || slices.Contains(ends, name) {
		o.Phases[name] = memory.Sample{Step: sample.Step, At: sample.At, Values: slices.Clone(sample.Values)}
	}
	if name == worker.PhaseFirst || name == worker.PhaseSteady {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // empty is unknown
		o.Maps = string(text)
	}
	if name == worker.PhaseSteady || name == worker.PhaseClosed {
		o.Threads[name] = threadNames(pid)
	}
}

func threadNames(pid int) map[string]int {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	names := make(map[string]int)
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil { // the thread may have ended
			names[strings.TrimSpace(string(text))]++
		}
	}
	return names
}

const logStore = 2048

// Excerpt returns the log from the line with the cause, or its end.
func (o *Observed) Excerpt() string {
	line := strings.TrimSuffix(child.CauseLine(o.Log), "...")
	if i := strings.Index(o.Log, line); line != "" && i >= 0 && len(o.Log)-i > logStore {
		return o.Log[i : i+logStore]
	}
	return o.Log[max(0, len(o.Log)-logStore):]
}

type Output struct {
	Stdout  []byte
	Log     string // the end of its standard error
	Started time.Time
	Seconds float64
	CPU     time.Duration // processor time of the process, in user and system mode
}

// Exec runs a command to its end, for at most timeout; 0 is no limit.
func Exec(ctx context.Context, timeout time.Duration, args []string, env ...string) (Output, error) {
	if timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	var log child.Tail
	cmd.Stdout, cmd.Stderr = &out, &log
	o := Output{Started: time.Now()}
	err := cmd.Run()
	o.Stdout, o.Log, o.Seconds = out.Bytes(), log.String(), time.Since(o.Started).Seconds()
	if state := cmd.ProcessState; state != nil {
		o.CPU = state.UserTime() + state.SystemTime()
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		err = fmt.Errorf("%w: %s", err, child.CauseLine(o.Log))
	}
	return o, err
}
