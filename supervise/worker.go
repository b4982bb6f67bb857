package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"steadyfit/internal/child"
)

// Status is the state of a supervised training when one of its processes starts. The zero value
// means no supervision.
type Status struct {
	// Attempt is the number of this process, from 1.
	Attempt int `json:"attempt"`
	// Began is the time at which the first process started.
	Began time.Time `json:"began"`
	// Step is the latest step of all processes. Above 0, train must resume from the
	// checkpoints, if there are any. At 0, existing checkpoints belong to another training.
	Step int64 `json:"step,omitempty"`
	// Reason is the reason for starting this process, such as "restart 3: killed by SIGKILL";
	// empty for the first one.
	Reason string `json:"reason,omitempty"`
	// Crashed is true if the previous process crashed. Crashes is the number of crashes so far,
	// and LastCrash the last of them.
	Crashed   bool   `json:"crashed,omitempty"`
	Crashes   int    `json:"crashes,omitempty"`
	LastCrash *Crash `json:"last_crash,omitempty"`
	// MemoryCrashes is the number of crashes due to lack of memory since the training last got
	// beyond the step of such a crash. Above 0, the training needs less memory to continue.
	MemoryCrashes int `json:"memory_crashes,omitempty"`
}

// spec is the specification that a child receives.
type spec struct {
	Status
	Terminal bool          `json:"terminal,omitempty"`
	Grace    time.Duration `json:"grace_ns"`
}

// message is a sign of life or, with End, the last message.
type message struct {
	Step int64   `json:"step"`
	End  endKind `json:"end,omitempty"`
	Text string  `json:"text,omitempty"`
	// Code is main's exit code, if known.
	Code int `json:"code,omitempty"`
}

type endKind string

const (
	endDone    endKind = "done"
	endFailed  endKind = "failed"
	endRestart endKind = "restart"
	endRetry   endKind = "retry"
)

// Worker is the child's side of supervision. A nil Worker means no supervision. It is safe for
// concurrent use.
type Worker struct {
	spec   spec
	parent *child.Parent
	// fd is the descriptor of parent.Messages.
	fd       int
	terminal *os.File
	began    time.Time
	// sent is the time of the last sign of life, counted from began; 0 before the first.
	sent atomic.Int64
	// first is true once a step was sent.
	first atomic.Bool
	// step is the latest step, sent or not.
	step atomic.Int64
}

const (
	// aliveEvery is the least time between two signs of life.
	aliveEvery = 50 * time.Millisecond
	// busyEvery is the interval between the signs of life that Busy sends.
	busyEvery = 250 * time.Millisecond
)

// inChild is true in the child. Env is unset there after Run has read it.
var inChild atomic.Bool

// InChild reports whether this process is a child in which Run has called train.
func InChild() bool { return inChild.Load() }

// Status returns the state of the training when this process started.
func (w *Worker) Status() Status {
	if w == nil {
		return Status{}
	}
	return w.spec.Status
}

// Alive gives a sign of life after a train step. step is the number of train steps done,
// including those before a resume, or 0 before the first step of this process. Alive writes to
// a pipe at most every 50 ms, and neither allocates nor blocks.
func (w *Worker) Alive(step int64) {
	if w == nil {
		return
	}
	if step > 0 {
		w.step.Store(step)
	}
	now := int64(time.Since(w.began)) | 1
	sent := w.sent.Load()
	first := step > 0 && !w.first.Load()
	if sent != 0 && now-sent < int64(aliveEvery) && !first {
		return
	}
	if !w.sent.CompareAndSwap(sent, now) {
		return
	}
	var line [40]byte
	// If the parent does not read and the pipe is full, the next sign of life suffices.
	text := append(strconv.AppendInt(append(line[:0], `{"step":`...), step, 10), "}\n"...)
	if write(w.fd, text) == nil && first {
		w.first.Store(true)
	}
}

// Busy gives signs of life until done is called. It is for work before the first step that
// cannot call Alive, such as reading a file. done is called once.
func (w *Worker) Busy() (done func()) {
	if w == nil {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(busyEvery)
		defer t.Stop()
		for {
			w.Alive(0)
			select {
			case <-t.C:
			case <-stop:
				return
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

// Restart returns an error that wraps ErrRestart. Train saves its state and returns the error;
// another process then resumes at once, with fresh memory. That counts as a crash only if there
// was no progress. Without supervision, the error does not wrap ErrRestart.
func (w *Worker) Restart(reason string) error {
	if w == nil {
		return fmt.Errorf("%s: a new process is needed, but nothing starts one; train under supervise.Run", reason)
	}
	return fmt.Errorf("%s: %w", reason, ErrRestart)
}

// Terminal returns the destination for a progress bar: the terminal of the parent if it has
// one, otherwise the given writer.
func (w *Worker) Terminal(otherwise io.Writer) io.Writer {
	if w == nil || w.terminal == nil {
		return otherwise
	}
	return w.terminal
}

// work runs train in the child.
func work(ctx context.Context, exitCode func(error) int, train func(context.Context, *Worker) error) error {
	w := &Worker{began: time.Now(), fd: child.MessagesFD}
	var err error
	if w.parent, err = child.Connect(Env, &w.spec); err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	if w.spec.Terminal {
		if w.terminal, err = child.Inherited(child.FilesFD, syscall.S_IFCHR); err != nil {
			return fmt.Errorf("supervise: %w", err)
		}
		ignoreTerminalStop()
	}
	inChild.Store(true)
	survivePipes()
	ctx, orphan := context.WithCancelCause(ctx)
	defer orphan(nil)
	// The parent is watched even after train has returned, since main could hang, too.
	go w.watchParent(orphan)
	ctx, stop := signal.NotifyContext(ctx, endSignals()...)
	defer stop()
	err = train(ctx, w)
	if lost := w.end(err, exitCode); lost != nil {
		err = errors.Join(err, fmt.Errorf("supervise: reporting to the parent: %w", lost))
	}
	return err
}

// watchParent blocks until the parent has ended. The parent never writes.
func (w *Worker) watchParent(orphan context.CancelCauseFunc) {
	_, _ = w.parent.Requests.Read(make([]byte, 1))
	orphan(errOrphaned)
	time.Sleep(w.spec.Grace)
	_ = child.KillSelf() // there is no parent to report to
}

// end reports the end of train to the parent.
func (w *Worker) end(err error, exitCode func(error) int) error {
	m := message{End: endDone, Step: w.step.Load()}
	if err != nil {
		m.End, m.Text, m.Code = endFailed, err.Error(), exitCode(err)
	}
	switch {
	case errors.Is(err, ErrRestart):
		m.End, m.Text = endRestart, strings.TrimSuffix(m.Text, ": "+ErrRestart.Error())
	case errors.Is(err, ErrRetry):
		m.End = endRetry
	}
	if len(m.Text) > 2000 {
		m.Text = strings.ToValidUTF8(m.Text[:2000], "") + "..."
	}
	return cmp.Or(w.parent.Messages.SetWriteDeadline(time.Now().Add(w.spec.Grace)), w.parent.Send(m))
}
