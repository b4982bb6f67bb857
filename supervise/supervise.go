// Package supervise runs a task, such as a training, in a child process. It restarts the child after a
// crash, a kill or a hang.
//
//	func main() {
//		supervise.Init(map[string]supervise.Task{"train": train})
//		err := supervise.Run(ctx, supervise.Options{Deadline: time.Minute}, "train", job)
//		if err != nil {
//			log.Print(err)
//			os.Exit(supervise.ExitCode(err))
//		}
//	}
//
// A child process runs the same program with the same arguments. [Init] is the first call of main: in a
// child it runs the task and ends the process, so nothing of main runs twice. In the program itself, Init
// only makes the tasks known. [Run] starts the child, and passes a specification to its task as JSON.
//
// The task calls Worker.Alive after every step, and resumes from its checkpoints if Status.Step is above 0.
// It can request a new process with Worker.Restart. The package does not load TensorFlow. Package train
// runs its trainings with this package, so a program that only calls train.Run needs train.Init instead.
package supervise

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"steadyfit/internal/child"
)

var (
	// ErrRestart is wrapped by the error of Worker.Restart. A task returns it after it has saved its
	// state.
	ErrRestart = errors.New("another process continues")
	// ErrRetry marks an error of a task that may not occur in a new process. It counts as a crash.
	ErrRetry = errors.New("a new process may get further")
	// ErrPeer marks an ErrRetry whose cause is another process of the training.
	ErrPeer = fmt.Errorf("another process of the training ended: %w", ErrRetry)
	// errOrphaned cancels the context of a task when the parent has ended.
	errOrphaned = errors.New("the supervising process has ended")
)

// Options configure Run. The zero value restarts the child after crashes and ignores hangs.
type Options struct {
	// Deadline is the maximum time between two signs of life; 0 means no limit. A child that
	// exceeds it is killed as hung. Deadline must cover a slow batch, a checkpoint and the final
	// save; loading and compiling the model, before the first step, may take ten times as long. Time
	// while the parent waits for a reader of Stderr does not count.
	Deadline time.Duration
	// Restarts is the number of consecutive crashes without progress before Run gives up; 0 means 5,
	// and a negative number means none. An attempt makes progress if its first step is later than
	// the first steps of all earlier attempts.
	Restarts int
	// KillOrphan kills the child at once if the parent has ended, so that its peers notice it and
	// continue.
	KillOrphan bool
	// Backoff is the time between a crash and the next attempt; 0 means 1 s. It doubles with each
	// crash without progress up to 1 min.
	Backoff time.Duration
	// Grace is the time for the child to end after a signal. It must cover a step and a checkpoint.
	// 0 means Deadline, but at least 5 min.
	Grace time.Duration
	// Env are environment variables of the child, as in "NAME=value", in addition to those of this
	// process.
	Env []string
	// Result is a pointer to which the result of the task is decoded from JSON, or nil.
	Result any `json:"-"`
	// Log receives messages about crashes and restarts; nil discards them.
	Log *slog.Logger
	// Stderr receives the child's standard error; nil means os.Stderr.
	Stderr io.Writer

	// Only tests set the fields below: the program, and the functions of package time.
	args  []string
	after func(time.Duration) <-chan time.Time
	tick  func(time.Duration) (<-chan time.Time, func())
}

// Crash describes an attempt that ended in a crash.
type Crash struct {
	Attempt int
	// Step is the last step reported, at most 50 ms before the crash.
	Step int64
	// Lasted is the running time of the process.
	Lasted time.Duration
	// Peer means that the task returned ErrPeer.
	Peer bool
	// OutOfMemory means that the kernel killed the process for lack of memory, or that it crashed after a failed
	// allocation.
	OutOfMemory bool
	// Cause describes the crash in words, with the line of the log that names the cause.
	Cause string
}

// Error reports a task that failed. A task may also return an Error, to choose the exit code and the text.
type Error struct {
	// Code is the exit code for main, at least 1, and Text the text of the error.
	Code int
	Text string
	// Crashes has the crashes since the last progress if there were too many. It is empty if the task
	// returned an error.
	Crashes []Crash
	// Err is the cause; nil in the parent.
	Err error `json:"-"`
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) Error() string {
	if len(e.Crashes) == 0 {
		return e.Text
	}
	var b strings.Builder
	fmt.Fprintf(&b, "supervise: gave up; attempts without progress: %d", len(e.Crashes))
	for _, c := range e.Crashes {
		fmt.Fprintf(&b, "\n  attempt %d, step %d, after %v: %s", c.Attempt, c.Step, c.Lasted.Round(time.Millisecond), c.Cause)
	}
	if e.OutOfMemory() {
		b.WriteString("\nthe training needs more memory than is available; use a smaller batch, a memory budget, or a " +
			"machine with more memory")
	}
	return b.String()
}

// OutOfMemory reports whether most of the crashes were for lack of memory.
func (e *Error) OutOfMemory() bool {
	n := 0
	for _, c := range e.Crashes {
		if c.OutOfMemory {
			n++
		}
	}
	return 2*n > len(e.Crashes)
}

// ExitCode returns the exit code for an error of Run or of a task: 0 for nil and ErrRestart, Error.Code, 130
// for context.Canceled, and otherwise 1.
func ExitCode(err error) int {
	var e *Error
	switch {
	case err == nil, errors.Is(err, ErrRestart):
		return 0
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.Canceled):
		return 130
	}
	return 1
}

// Task is what a child process does. spec is the specification that Run was called with, as JSON. The
// result becomes Options.Result; nil means none.
type Task func(ctx context.Context, w *Worker, spec []byte) (result any, err error)

// inChild is true in a child process. tasks are the tasks of all calls of Init.
var (
	inChild atomic.Bool
	known   sync.Map // from the name of a task to the Task
)

// Init makes tasks known to Run. It is the first call of main, since main runs from its beginning in a
// child process. In a child whose task is among the tasks, Init runs the task and ends the process without
// returning; deferred functions of main do not run. Otherwise it returns at once. A program may call Init
// several times, with different tasks.
func Init(tasks map[string]Task) {
	for name, task := range tasks {
		known.Store(name, task)
	}
	if os.Getenv(child.SupervisedEnv) == "" {
		return
	}
	var named struct{ Task string }
	w := &Worker{}
	err := json.Unmarshal([]byte(os.Getenv(child.SupervisedEnv)), &named)
	task, mine := tasks[named.Task]
	if err == nil && !mine {
		return // another call of Init has the task
	}
	code := 1
	if w.parent, err = child.Connect(child.SupervisedEnv, &w.spec); err == nil {
		code, err = work(w, task)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "supervise:", err)
	}
	os.Exit(code) //nolint:revive // The process exists to run the task.
}

// Known reports whether Init was called with a task of this name.
func Known(task string) bool {
	_, ok := known.Load(task)
	return ok
}

// Run runs a task of Init in a child process, and restarts the child after a crash: SIGKILL, the kernel's
// OOM killer, an abort in TensorFlow, or a hang. A child has crashed if it ends before the task has
// returned. spec is passed to the task as JSON. The child's standard input is empty. The child shares the
// standard output of this process. A process that runs no TensorFlow itself uses about 20 MiB.
//
// Run returns
//   - nil: the task returned nil.
//   - *Error: the task returned an error, which is retried only if it wraps ErrRetry; or the child crashed
//     too often.
//   - context.Canceled: the child was asked to end and crashed.
//   - another error: the child could not be started.
//
// Once Run was called, writing to a pipe without a reader returns an error instead of ending the
// process (SIGPIPE).
//
// SIGINT, SIGTERM, SIGHUP and the end of ctx are passed to the child once and cancel the context of the
// task. A second SIGINT kills the child. When the child has ended, Run kills the remaining processes of its
// process group.
//
// If this process is killed, the context of the task is cancelled, and the child is killed after Grace, or
// at once with KillOrphan. Wait for its end before resuming by hand, since two processes must not write
// the same checkpoints. If the kernel kills control groups as a whole (memory.oom.group), it also
// kills the parent.
func Run(ctx context.Context, o Options, task string, spec any) error {
	switch {
	case ctx == nil:
		return errors.New("supervise: the context is nil; pass a context such as context.Background()")
	case os.Getenv(child.SupervisedEnv) != "":
		return errors.New("supervise: this child process has not run its task; call supervise.Init at the start of main")
	case inChild.Load():
		return errors.New("supervise: supervise.Run was called in a child process of supervise.Run")
	case !Known(task):
		return fmt.Errorf("supervise: no task %q is known; call supervise.Init with it at the start of main", task)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("supervise: the specification of the task: %w", err)
	}
	survivePipes()
	p := newParent(o)
	p.next.Task, p.next.Spec = task, text
	signal.Notify(p.signals, endSignals()...)
	defer signal.Stop(p.signals)
	return p.run(ctx)
}

// survivePipes keeps the process alive when nobody reads its standard error: a child without a parent
// writes a last checkpoint, and a parent without a terminal restarts its child, and ends with the exit
// code of the training. SIGPIPE is caught, not ignored, since child processes would inherit an ignored
// signal.
func survivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// endSignals returns the signals that ask a training to end. Signals that this process ignores, as
// under nohup, are left out.
func endSignals() (list []os.Signal) {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

type parent struct {
	Options
	// next is the specification for the next child.
	next    spec
	signals chan os.Signal
	// crashes has the crashes since the last progress, and restarts is the number of all crashes. from is the
	// latest step with which an attempt began. memoryStep is the step of the last crash for lack of memory.
	crashes          []Crash
	restarts         int
	from, memoryStep int64
	// out is a queue of output. A goroutine writes it, because the parent must not wait for a
	// terminal.
	out chan func()
	// interrupted is true after a signal to end. ending is true after the child was asked to end,
	// or if no child is to be started.
	interrupted, ending bool
}

// outQueue is the maximum number of log lines and of pieces of the child's standard error (up to 32 KiB)
// that wait for a reader. The child waits while the queue is full.
const outQueue = 64

func newParent(o Options) *parent {
	p := &parent{Options: o, signals: make(chan os.Signal, 16), out: make(chan func(), outQueue)}
	p.Restarts = max(0, cmp.Or(p.Restarts, 5))
	p.Backoff = cmp.Or(p.Backoff, time.Second)
	p.Grace = cmp.Or(p.Grace, max(p.Deadline, 5*time.Minute))
	p.Log = cmp.Or(p.Log, slog.New(slog.DiscardHandler))
	p.Stderr = cmp.Or[io.Writer](p.Stderr, os.Stderr)
	if p.after == nil {
		p.after = time.After
	}
	if p.tick == nil {
		p.tick = func(d time.Duration) (<-chan time.Time, func()) {
			if d <= 0 {
				return nil, func() {}
			}
			t := time.NewTicker(d)
			return t.C, t.Stop
		}
	}
	p.next = spec{Grace: p.Grace, KillOrphan: p.KillOrphan}
	return p
}

// log appends a line to the queue of output, or drops it if the queue is full.
func (p *parent) log(level slog.Level, text string, args ...any) {
	select {
	case p.out <- func() { p.Log.Log(context.Background(), level, text, args...) }:
	default:
	}
}

func (p *parent) run(ctx context.Context) error {
	written := make(chan struct{})
	go func() {
		defer close(written)
		for write := range p.out {
			write()
		}
	}()
	err := p.attempts(ctx)
	close(p.out)
	select {
	case <-written:
	case <-p.signals: // without a reader, writing would block forever
	}
	return err
}

func (p *parent) attempts(ctx context.Context) error {
	for {
		p.next.Attempt++
		a, err := p.attempt(ctx)
		if err != nil && p.next.Attempt == 1 {
			return err
		}
		if err != nil {
			// Starting a process can fail just after a machine ran out of memory.
			a.crash.Cause = err.Error()
		} else if final, err := p.judge(ctx, a); final {
			return err
		}
		planned := a.end != nil && a.end.End == endRestart
		if p.next.Crashed = !planned; planned {
			p.next.Reason = a.end.Text
		} else {
			p.restarts++
			p.next.Reason = fmt.Sprintf("restart %d: %s", p.restarts, a.crash.Cause)
		}
		var wait time.Duration
		if planned && a.progress {
			p.log(slog.LevelInfo, "the training continues in another process", "attempt", a.crash.Attempt, "step", a.crash.Step,
				"reason", a.end.Text)
		} else {
			p.crashes = append(p.crashes, a.crash)
			if a.crash.OutOfMemory {
				p.next.MemoryCrashes++
				p.memoryStep = max(p.memoryStep, a.crash.Step)
			}
			if len(p.crashes) > p.Restarts { // without progress
				return &Error{Code: a.code(), Text: a.crash.Cause, Crashes: p.crashes}
			}
			wait = min(p.Backoff<<min(len(p.crashes)-1, 30), max(p.Backoff, time.Minute))
			p.log(slog.LevelWarn, "the training process ended; restarting it", "attempt", a.crash.Attempt, "step", a.crash.Step,
				"lasted", a.crash.Lasted.Round(time.Millisecond), "cause", a.crash.Cause, "in", wait)
		}
		if err := p.pause(ctx, wait); err != nil {
			return err
		}
	}
}

// judge reports whether an attempt was the last one, and the error of Run in that case.
func (p *parent) judge(ctx context.Context, a *attempt) (final bool, err error) {
	finished := a.end != nil && (a.end.End == endDone || a.end.End == endFailed)
	switch {
	case finished:
		if a.end.End == endFailed {
			err = &Error{Code: a.code(), Text: a.end.Text}
		}
		if p.Result != nil && a.end.Result != nil {
			if bad := json.Unmarshal(a.end.Result, p.Result); bad != nil {
				err = errors.Join(err, fmt.Errorf("supervise: the result of the child cannot be read: %w", bad))
			}
		}
		return true, err
	case p.ending:
		return true, canceled(ctx, "it ended with: "+a.crash.Cause)
	}
	return false, nil
}

func canceled(ctx context.Context, what string) error {
	return fmt.Errorf("supervise: the training was asked to end; %s: %w", what, cmp.Or(ctx.Err(), context.Canceled))
}

func (p *parent) pause(ctx context.Context, wait time.Duration) error {
	select {
	case <-p.after(wait):
		return nil
	case <-p.signals:
	case <-ctx.Done():
	}
	return canceled(ctx, "no process was running")
}
