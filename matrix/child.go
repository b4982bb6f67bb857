package matrix

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"steadyfit/internal/child"
	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

// Command is how a child of a runtime is started.
type Command struct {
	// Args are the program and its arguments.
	Args []string
	// Env is added to the environment of the matrix.
	Env []string
	// Identity says which build this is, so that a resumed matrix does not take
	// over what another build measured.
	Identity string
	// Libraries are the TensorFlow libraries that the child uses.
	Libraries []string
}

// seriesKeep bounds the samples of one run.
const seriesKeep = 512

// logStore is how much of a child's standard error goes into the results, in bytes.
const logStore = 2048

// errHang ends a child that sends nothing for too long.
var errHang = errors.New("hang")

// errOutside is a child that somebody else ended: that says nothing of the child.
var errOutside = errors.New("ended from outside")

// grace is the longest time that a child may take to end after its last word. Its
// memory has been given back by then, and a core written.
const grace = 30 * time.Second

// observed is what the parent saw of one run.
type observed struct {
	gpu     func(pid int) memory.Source
	series  memory.Series
	phases  map[string]memory.Sample
	facts   map[string]string
	maps    string                    // what was mapped at the end of the steps
	threads map[string]map[string]int // how many of each name, by phase: steady and closed
	failure worker.Failure
	cause   string
	log     string
}

// observe runs one cell to its end. The error is only about what is not the
// child's doing: a program that cannot be started, a limit that cannot be set, a
// disk that is full (syscall.ENOSPC), a signal from outside, ctx.
func observe(ctx context.Context, command Command, env []string, spec worker.Spec, limit memory.Bytes, timeout time.Duration, gpu func(pid int) memory.Source) (*observed, error) {
	o := &observed{
		gpu:    gpu,
		series: memory.Series{Keep: seriesKeep},
		phases: make(map[string]memory.Sample),
		facts:  make(map[string]string),

		threads: make(map[string]map[string]int),
	}
	fence, err := newLimit(limit)
	if err != nil {
		return nil, err
	}
	defer fence.close()
	for {
		from, err := o.process(ctx, command, env, spec, fence, timeout)
		if err != nil || from == 0 {
			return o, err
		}
		spec.From = from
	}
}

// process runs one process of a run. If another one is to go on, from is the
// number of steps done; else it is 0.
func (o *observed) process(ctx context.Context, command Command, env []string, spec worker.Spec, fence limit, timeout time.Duration) (from int, err error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return 0, err
	}
	messages, toParent, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer messages.Close()
	toChild, answers, err := os.Pipe()
	if err != nil {
		toParent.Close()
		return 0, err
	}
	defer answers.Close()

	var log child.Tail
	cmd := exec.CommandContext(ctx, command.Args[0], command.Args[1:]...)
	cmd.Env = append(append(append(os.Environ(), command.Env...), env...), worker.Env+"="+string(text))
	cmd.Stderr = &log
	cmd.ExtraFiles = []*os.File{toParent, toChild}
	// A group of its own: Ctrl-C is for the matrix, which ends the child itself.
	cmd.SysProcAttr = childAttributes()
	cmd.Cancel = func() error { return child.Kill(cmd.Process.Pid) }
	// What has left the group may hold standard error open.
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	toParent.Close()
	toChild.Close()
	if err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", command.Args[0], err)
	}
	if err := fence.apply(cmd.Process.Pid); err != nil {
		_, _ = finish(cmd, true, 0)
		return 0, err
	}
	end, talk := o.converse(cmd.Process.Pid, messages, answers, timeout)
	// A child that waits for an answer, or has more to say, learns that nobody is
	// there any more.
	answers.Close()
	messages.Close()
	patience := min(grace, timeout)
	late, err := finish(cmd, talk != nil, patience)
	o.log = log.String()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, err
	}
	if end == nil {
		if late {
			talk = fmt.Errorf("%w: it did not end within %v after its last message", errHang, patience)
		}
		if signal, ok := outside(cmd.ProcessState); ok && talk == nil {
			return 0, fmt.Errorf("%w: by signal %s", errOutside, signal)
		}
		o.failure, o.cause = worker.Failed, causeOfDeath(cmd.ProcessState, talk, fence, o.log)
		if fence.killed() {
			o.failure = worker.OutOfMemory
		}
		return 0, full(o.cause, o.log)
	}
	if end.Kind == worker.KindAgain {
		if end.Step <= spec.From {
			o.failure, o.cause = worker.Failed, fmt.Sprintf("a process handed over after step %d, where it had begun", end.Step)
			return 0, nil
		}
		return end.Step, nil
	}
	if o.failure, o.cause = end.Failure, end.Text; o.failure != "" {
		return 0, full(o.cause, o.log)
	}
	if late {
		o.cause = fmt.Sprintf("killed: all was done, and it did not end within %v", patience)
	}
	return 0, nil
}

// finish has a child end, at once or when it has had its time, and with it what is
// left of its group. late is whether its time was up.
func finish(cmd *exec.Cmd, now bool, patience time.Duration) (late bool, err error) {
	pid := cmd.Process.Pid
	kill := func() {
		if failed := child.Kill(pid); failed != nil && !errors.Is(failed, os.ErrProcessDone) {
			err = errors.Join(err, fmt.Errorf("process %d cannot be ended: %w", pid, failed))
		}
	}
	if now {
		kill()
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		child.Await(cmd)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		late = !now
	}
	// It has not been waited for, so the number of the group is not another's.
	kill()
	<-over
	_ = cmd.Wait() // its state says how it ended
	return late, err
}

// outside tells whether a child died of a signal that no library sends itself.
func outside(state *os.ProcessState) (syscall.Signal, bool) {
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return 0, false
	}
	return status.Signal(), slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}, status.Signal())
}

// full is an error if a child failed for want of room on a disk: that is the
// machine's failure, and would be another remedy's the next time.
func full(cause, log string) error {
	for line := range strings.Lines(cause + "\n" + log) {
		lower := strings.ToLower(line)
		if strings.Contains(lower, "no space left on device") || strings.Contains(lower, "disk quota exceeded") {
			return fmt.Errorf("%w: the child said: %.200s; make room, and the same command goes on from there", syscall.ENOSPC, strings.TrimSpace(line))
		}
	}
	return nil
}

// converse takes samples until the child says that it is done. A nil message
// without an error is a child that ended without a word.
func (o *observed) converse(pid int, messages, answers *os.File, timeout time.Duration) (*worker.Message, error) {
	options := memory.SamplerOptions{PID: pid}
	if o.gpu != nil {
		if source := o.gpu(pid); source != nil {
			options.Sources = append(options.Sources, source)
		}
	}
	sampler, err := memory.NewSampler(options)
	if err != nil {
		return nil, nil // gone already; its exit status tells
	}
	defer sampler.Close()
	var sample memory.Sample
	lines := bufio.NewReader(messages)
	for {
		if err := messages.SetReadDeadline(time.Now().Add(timeout)); err != nil {
			return nil, err
		}
		line, err := lines.ReadBytes('\n')
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("%w: nothing heard for %v", errHang, timeout)
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
			o.facts[m.Name] = m.Value
			continue
		case worker.KindEnd, worker.KindAgain:
			return &m, nil
		case worker.KindPhase, worker.KindStep:
		default:
			return nil, fmt.Errorf("message of the child: kind %q is not known", m.Kind)
		}
		if err := sampler.Sample(m.Step, &sample); err != nil {
			return nil, nil
		}
		complete(&sample, m)
		if m.Kind == worker.KindStep {
			o.series.Append(&sample)
		} else {
			o.phase(m.Name, pid, &sample)
			if m.Name == worker.PhaseLoaded {
				// Where the system refuses, the peak is that of all of the run.
				_ = sampler.ResetPeak()
			}
		}
		if _, err := answers.Write([]byte{'.'}); err != nil {
			return nil, nil
		}
	}
}

// ends are the phases after the steps.
var ends = []string{worker.PhaseSteady, worker.PhaseTraced, worker.PhaseClosed, worker.PhaseTrimmed}

func (o *observed) phase(name string, pid int, sample *memory.Sample) {
	// Of a run of several processes, the beginning is that of the first one, and the
	// end that of the last.
	if _, there := o.phases[name]; !there || slices.Contains(ends, name) {
		o.phases[name] = sample.Clone()
	}
	if name == worker.PhaseFirst || name == worker.PhaseSteady {
		// Not known is no match, and a remedy that cannot be verified says so.
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		o.maps = string(text)
	}
	if name == worker.PhaseSteady || name == worker.PhaseClosed {
		o.threads[name] = threadNames(pid)
		o.facts[factPool] = strconv.Itoa(o.threads[worker.PhaseSteady][poolThreads])
	}
}

// threadNames counts the threads of a process by their names.
func threadNames(pid int) map[string]int {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	names := make(map[string]int)
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil { // else it has just ended
			names[strings.TrimSpace(string(text))]++
		}
	}
	return names
}

// complete adds to what the system told what only the child knows.
func complete(sample *memory.Sample, m worker.Message) {
	for layer, value := range m.Values {
		if r := sample.Get(layer); r.OK {
			continue // seen from outside
		}
		if value == nil {
			sample.Set(layer, memory.Reading{})
		} else {
			sample.Set(layer, memory.Known(memory.Bytes(*value)))
		}
	}
	if m.StepNS > 0 {
		sample.Set(memory.StepTime, memory.Known(memory.Bytes(m.StepNS)))
	}
}

// causeOfDeath says why a child ended without saying so.
func causeOfDeath(state *os.ProcessState, talk error, fence limit, log string) string {
	if talk != nil {
		return talk.Error()
	}
	if fence.killed() {
		return "killed by the kernel: " + fence.String()
	}
	var why string
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		why = "killed by signal " + status.Signal().String()
		if status.Signal() == syscall.SIGKILL {
			why += ", which the kernel sends when memory runs out"
		}
	} else if !state.Success() {
		why = state.String()
	} else {
		why = "ended without a result"
	}
	if fence.bytes() > 0 {
		why += " under a " + fence.String()
	}
	if line := child.CauseLine(log); line != "" {
		why += ": " + line
	}
	return why
}

// excerpt is the part of a log that goes into the results: where the telling line
// is, or its end.
func excerpt(log string) string {
	line := strings.TrimSuffix(child.CauseLine(log), "...")
	if i := strings.Index(log, line); line != "" && i >= 0 && len(log)-i > logStore {
		return log[i : i+logStore]
	}
	return log[max(0, len(log)-logStore):]
}
