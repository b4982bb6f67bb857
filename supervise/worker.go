package supervise

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"steadyfit/internal/child"
)

// Status is the state of a supervised training at the start of a child. The zero value means no
// supervision.
type Status struct {
	// Attempt is the number of this child, from 1.
	Attempt int `json:"attempt"`
	// Step is the latest step of all children. If Step is above 0, train resumes from the
	// checkpoints. If it is 0, existing checkpoints belong to another training.
	Step int64 `json:"step,omitempty"`
	// Reason says why this child was started, such as "restart 3: killed by SIGKILL". It is empty
	// for the first child.
	Reason string `json:"reason,omitempty"`
	// Crashed reports whether the previous child crashed.
	Crashed bool `json:"crashed,omitempty"`
	// MemoryCrashes is the number of crashes for lack of memory since the training last got beyond
	// the step of such a crash. If it is above 0, the training needs less memory to continue.
	MemoryCrashes int `json:"memory_crashes,omitempty"`
}

// spec is what a parent passes to a child.
type spec struct {
	Status
	// Task is the name of the task, and Spec its specification.
	Task       string          `json:"task"`
	Spec       json.RawMessage `json:"spec"`
	Grace      time.Duration   `json:"grace_ns"`
	KillOrphan bool            `json:"kill_orphan,omitempty"`
}

// message is a sign of life or, if End is not empty, the last message of a child.
type message struct {
	Step int64   `json:"step"`
	End  endKind `json:"end,omitempty"`
	Text string  `json:"text,omitempty"`
	// Code is the exit code of the child. Result is the result of the task.
	Code   int             `json:"code,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

type endKind string

const (
	endDone    endKind = "done"
	endFailed  endKind = "failed"
	endRestart endKind = "restart"
	endRetry   endKind = "retry"
	endPeer    endKind = "peer"
)

// Worker is the child's side of supervision. A nil Worker means no supervision. It is safe for concurrent
// use.
type Worker struct {
	spec   spec
	parent *child.Parent
	// fd is the descriptor of parent.Messages.
	fd    int
	began time.Time
	// sent is the time of the last sign of life, relative to began; 0 means none.
	sent  atomic.Int64
	first atomic.Bool
	// sending is held while a message is sent. A long one must not be mixed with others.
	sending sync.Mutex
	// step is the latest step, even if it was not sent yet.
	step atomic.Int64
	// done is true after Done.
	done atomic.Bool
}

const (
	// aliveEvery is the minimum time between two signs of life.
	aliveEvery = 50 * time.Millisecond
	// busyEvery is the time between two signs of life of Busy.
	busyEvery = 250 * time.Millisecond
)

// Status returns the state of the training at the start of this process.
func (w *Worker) Status() Status {
	if w == nil {
		return Status{}
	}
	return w.spec.Status
}

// Alive sends a sign of life after a step. step is the number of steps done, including those before a
// resume; 0 before the first step of this process. Alive writes to a pipe at most every 50 ms, and does
// not allocate or block.
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
	if !w.sending.TryLock() {
		return // another goroutine sends, or the last message was sent
	}
	defer w.sending.Unlock()
	w.sent.Store(now)
	var line [40]byte
	// If the pipe is full, this sign of life is dropped; the next one suffices.
	text := append(strconv.AppendInt(append(line[:0], `{"step":`...), step, 10), "}\n"...)
	if _, err := syscall.Write(w.fd, text); err == nil && first {
		w.first.Store(true)
	}
}

// Busy sends signs of life until done is called, for work that cannot call Alive, such as reading a
// file before the first step.
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

// Restart returns an error that wraps ErrRestart. Train saves its state and returns the error, and
// another child resumes at once with fresh memory. A restart without progress counts as a crash. If
// there is no supervision, the error does not wrap ErrRestart.
func (w *Worker) Restart(reason string) error {
	if w == nil {
		return fmt.Errorf("%s: a new process is needed, but the training runs in no child process of supervise.Run", reason)
	}
	return fmt.Errorf("%s: %w", reason, ErrRestart)
}

// work runs a task in a child, and returns the exit code.
func work(w *Worker, task Task) (code int, err error) {
	w.began, w.fd = time.Now(), child.MessagesFD
	inChild.Store(true)
	survivePipes()
	ctx, orphan := context.WithCancelCause(context.Background())
	defer orphan(nil)
	go w.watchParent(orphan)
	ctx, stop := signal.NotifyContext(ctx, endSignals()...)
	defer stop()
	result, err := task(ctx, w, w.spec.Spec)
	code, lost := w.end(result, err)
	if lost != nil {
		return 1, errors.Join(err, fmt.Errorf("reporting to the parent: %w", lost))
	}
	return code, nil
}

// watchParent blocks in a read until the parent has ended, since the parent never writes.
func (w *Worker) watchParent(orphan context.CancelCauseFunc) {
	_, _ = w.parent.Requests.Read(make([]byte, 1))
	if !w.spec.KillOrphan {
		orphan(errOrphaned)
		time.Sleep(w.spec.Grace)
	}
	_ = child.KillSelf() // nobody is left to handle the error
}

// Done reports that the training is complete, with the result for Options.Result, while the child still has
// to free what it holds. The parent does not restart a child that crashes after it. An error that the task
// returns replaces the report. A second call, or a call whose result cannot be sent, has no effect.
func (w *Worker) Done(result any) {
	if w == nil {
		return
	}
	text, err := json.Marshal(result)
	if err != nil || w.done.Swap(true) {
		return
	}
	w.sending.Lock()
	defer w.sending.Unlock()
	_ = w.send(message{End: endDone, Step: w.step.Load(), Result: text}) // the parent has ended
}

func (w *Worker) send(last message) error {
	return cmp.Or(w.parent.Messages.SetWriteDeadline(time.Now().Add(w.spec.Grace)), w.parent.Send(last))
}

// end sends the last message and returns the exit code.
func (w *Worker) end(result any, err error) (code int, lost error) {
	if w.done.Load() && err == nil {
		return 0, nil
	}
	m := message{End: endDone, Step: w.step.Load()}
	if result != nil && !errors.Is(err, ErrRestart) {
		var bad error
		if m.Result, bad = json.Marshal(result); bad != nil {
			err = errors.Join(err, fmt.Errorf("supervise: the result cannot be sent: %w", bad))
		}
	}
	switch {
	case errors.Is(err, ErrRestart):
		m.End, m.Text = endRestart, strings.TrimSuffix(err.Error(), ": "+ErrRestart.Error())
	case err != nil:
		m.End = endFailed
		m.Code, m.Text = ExitCode(err), err.Error()
		if errors.Is(err, ErrPeer) {
			m.End = endPeer
		} else if errors.Is(err, ErrRetry) {
			m.End = endRetry
		}
	}
	if m.End != endFailed && len(m.Text) > 2000 { // the parent may print several causes
		m.Text = strings.ToValidUTF8(m.Text[:2000], "") + "..."
	}
	w.sending.Lock() // signs of life may no longer be sent
	return m.Code, w.send(m)
}
