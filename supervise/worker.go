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

// Status is the state of a supervised training when a process of it starts. The zero value is
// that of a training without supervision.
type Status struct {
	// Attempt is the number of the process, from 1.
	Attempt int `json:"attempt"`
	// Began is when the first process started.
	Began time.Time `json:"began"`
	// Step is the latest step of all processes. Above 0, train must resume from the checkpoints
	// if there are any; at 0 they are another training's.
	Step int64 `json:"step,omitempty"`
	// Reason says why the process was started, as in "restart 3: killed by SIGKILL"; empty for
	// the first one.
	Reason string `json:"reason,omitempty"`
	// Crashed is true if the process before this one crashed; Crashes is how many have, and
	// LastCrash is the last of them.
	Crashed   bool   `json:"crashed,omitempty"`
	Crashes   int    `json:"crashes,omitempty"`
	LastCrash *Crash `json:"last_crash,omitempty"`
	// MemoryCrashes counts the crashes for lack of memory since a step was reached beyond the
	// last of them. The training needs less memory to continue.
	MemoryCrashes int `json:"memory_crashes,omitempty"`
}

// spec is what a child gets.
type spec struct {
	Status
	Terminal bool          `json:"terminal,omitempty"`
	Grace    time.Duration `json:"grace_ns"`
}

// message is a sign of life, or with End the last message.
type message struct {
	Step int64   `json:"step"`
	End  endKind `json:"end,omitempty"`
	Text string  `json:"text,omitempty"`
	// Code is main's exit code, if it is known.
	Code int `json:"code,omitempty"`
}

type endKind string

const (
	endDone    endKind = "done"
	endFailed  endKind = "failed"
	endRestart endKind = "restart"
	endRetry   endKind = "retry"
)

// Worker is the supervised process. A nil Worker is a process without supervision. It is safe
// for concurrent use.
type Worker struct {
	spec   spec
	parent *child.Parent
	// fd is the descriptor of parent.Messages.
	fd       int
	terminal *os.File
	began    time.Time
	// sent is when the last sign of life was sent, since began; 0 before.
	sent atomic.Int64
	// first is true once a step has been sent.
	first atomic.Bool
	// step is the newest one, sent or not.
	step atomic.Int64
}

const (
	// aliveEvery is the least time from one sign of life to the next.
	aliveEvery = 50 * time.Millisecond
	// busyEvery is the time from one sign of life of Busy to the next.
	busyEvery = 250 * time.Millisecond
)

// inChild is true in the child, where Env is not set any more.
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

// Alive is a sign of life after each train step. step counts the steps of the training, those
// before a resume included; it is 0 before this process has done one. Alive writes to a pipe
// every 50 ms, and neither allocates nor blocks.
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
	// If the pipe is full because the parent does not read, the next sign will do.
	text := append(strconv.AppendInt(append(line[:0], `{"step":`...), step, 10), "}\n"...)
	if write(w.fd, text) == nil && first {
		w.first.Store(true)
	}
}

// Busy gives signs of life until done is called, once, for work before the first step that
// cannot call Alive, such as reading a file.
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
// another process then resumes at once, with fresh memory. That is no crash, unless there was no
// progress. Without supervision, the error is an ordinary one.
func (w *Worker) Restart(reason string) error {
	if w == nil {
		return fmt.Errorf("%s: this needs a new process, and nothing starts one; train under supervise.Run", reason)
	}
	return fmt.Errorf("%s: %w", reason, ErrRestart)
}

// Terminal returns where a progress bar goes: the terminal of the parent if it has one, else
// the writer.
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
	// It watches on after train has returned: main could hang, too.
	go w.watchParent(orphan)
	ctx, stop := signal.NotifyContext(ctx, endSignals()...)
	defer stop()
	err = train(ctx, w)
	if lost := w.end(err, exitCode); lost != nil {
		err = errors.Join(err, fmt.Errorf("supervise: reporting to the parent: %w", lost))
	}
	return err
}

// watchParent reads until the parent has ended, which never writes.
func (w *Worker) watchParent(orphan context.CancelCauseFunc) {
	_, _ = w.parent.Requests.Read(make([]byte, 1))
	orphan(errOrphaned)
	time.Sleep(w.spec.Grace)
	_ = child.KillSelf() // nobody is left to report to
}

// end reports to the parent how train ended.
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
