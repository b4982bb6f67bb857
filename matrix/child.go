package matrix

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"steadyfit/matrix/cell"
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

// logKeep is how much of a child's standard error is looked through for a cause,
// in bytes: when a library aborts, Go's traces of all goroutines come after it.
// logStore is how much of it goes into the results.
const (
	logKeep  = 256 << 10
	logStore = 2048
)

// errHang ends a child that sends nothing for too long.
var errHang = errors.New("hang")

// observed is what the parent saw of one run.
type observed struct {
	gpu     func(pid int) memory.Source
	series  memory.Series
	phases  map[string]memory.Sample
	facts   map[string]string
	maps    string // what was mapped at the end of the steps
	failure cell.Failure
	cause   string
	log     string
}

// observe runs one cell to its end. The error is only about what is not the
// child's doing: a program that cannot be started, ctx.
func observe(ctx context.Context, command Command, env []string, spec cell.Spec, limit memory.Bytes, timeout time.Duration, gpu func(pid int) memory.Source) (*observed, error) {
	o := &observed{
		gpu:    gpu,
		series: memory.Series{Keep: seriesKeep},
		phases: make(map[string]memory.Sample),
		facts:  make(map[string]string),
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
func (o *observed) process(ctx context.Context, command Command, env []string, spec cell.Spec, fence limit, timeout time.Duration) (from int, err error) {
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

	var log tail
	cmd := exec.CommandContext(ctx, command.Args[0], command.Args[1:]...)
	cmd.Env = append(append(append(os.Environ(), command.Env...), env...), cell.Env+"="+string(text))
	cmd.Stderr = &log
	cmd.ExtraFiles = []*os.File{toParent, toChild}
	// A group of its own: Ctrl-C is for the matrix, which ends the child itself.
	cmd.SysProcAttr = childAttributes()
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	err = cmd.Start()
	toParent.Close()
	toChild.Close()
	if err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", command.Args[0], err)
	}
	end, talk := o.converse(cmd.Process.Pid, messages, answers, fence, timeout)
	if talk != nil {
		if kill := killGroup(cmd.Process.Pid); kill != nil && !errors.Is(kill, syscall.ESRCH) {
			talk = errors.Join(talk, kill)
		}
	}
	wait := cmd.Wait()
	o.log = log.String()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if end == nil {
		o.failure, o.cause = cell.Failed, causeOfDeath(cmd.ProcessState, wait, talk, fence, o.log)
		if fence.killed() {
			o.failure = cell.OutOfMemory
		}
		return 0, nil
	}
	if end.Kind == cell.KindAgain {
		if end.Step <= spec.From {
			o.failure, o.cause = cell.Failed, fmt.Sprintf("a process handed over after step %d, where it had begun", end.Step)
			return 0, nil
		}
		return end.Step, nil
	}
	o.failure, o.cause = end.Failure, end.Text
	return 0, nil
}

// converse takes samples until the child says that it is done. A nil message
// without an error is a child that ended without a word.
func (o *observed) converse(pid int, messages, answers *os.File, fence limit, timeout time.Duration) (*cell.Message, error) {
	if err := fence.apply(pid); err != nil {
		return nil, err
	}
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
		var m cell.Message
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, fmt.Errorf("message of the child: %w: %.80q", err, line)
		}
		switch m.Kind {
		case cell.KindFact:
			o.facts[m.Name] = m.Value
			continue
		case cell.KindEnd, cell.KindAgain:
			return &m, nil
		case cell.KindPhase, cell.KindStep:
		default:
			return nil, fmt.Errorf("message of the child: kind %q is not known", m.Kind)
		}
		if err := sampler.Sample(m.Step, &sample); err != nil {
			return nil, nil
		}
		complete(&sample, m)
		if m.Kind == cell.KindStep {
			o.series.Append(&sample)
		} else {
			o.phase(m.Name, pid, &sample)
		}
		if _, err := answers.Write([]byte{'.'}); err != nil {
			return nil, nil
		}
	}
}

// ends are the phases after the steps.
var ends = []string{cell.PhaseSteady, cell.PhaseTraced, cell.PhaseClosed, cell.PhaseTrimmed}

func (o *observed) phase(name string, pid int, sample *memory.Sample) {
	// Of a run of several processes, the beginning is that of the first one, and the
	// end that of the last.
	if _, there := o.phases[name]; !there || slices.Contains(ends, name) {
		o.phases[name] = sample.Clone()
	}
	if name == cell.PhaseFirst || name == cell.PhaseSteady {
		// Not known is no match, and a remedy that cannot be verified says so.
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		o.maps = string(text)
	}
}

// complete adds to what the system told what only the child knows.
func complete(sample *memory.Sample, m cell.Message) {
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
func causeOfDeath(state *os.ProcessState, wait, talk error, fence limit, log string) string {
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
	} else if wait != nil {
		why = wait.Error()
	} else {
		why = "ended without a result"
	}
	if fence.bytes() > 0 {
		why += " under a " + fence.String()
	}
	if line := lastLine(log); line != "" {
		why += ": " + line
	}
	return why
}

// telling are words that begin the line of a log that says what went wrong; the
// last lines are often a trace.
var telling = []string{"terminate called", "what():", "fatal error:", "panic:", "F0000", "Check failed", "MemoryError", "out of memory", "OOM"}

func lastLine(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	for _, line := range lines {
		for _, word := range telling {
			if strings.Contains(line, word) {
				last = strings.TrimSpace(line)
			}
		}
	}
	if len(last) > 200 {
		last = last[:200] + "..."
	}
	return last
}

// tail keeps the end of what is written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*logKeep {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-logKeep:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	kept := t.kept
	if len(kept) > logKeep {
		kept = kept[len(kept)-logKeep:]
	}
	return string(bytes.ToValidUTF8(kept, []byte("?")))
}

// excerpt is the part of a log that goes into the results: where the telling line
// is, or its end.
func excerpt(log string) string {
	if i := strings.Index(log, lastLine(log)); i >= 0 && len(log)-i > logStore {
		return log[i : i+logStore]
	}
	return log[max(0, len(log)-logStore):]
}
