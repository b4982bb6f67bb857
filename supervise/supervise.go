// Package supervise runs a training in a child process, and restarts it from its last
// checkpoint after a crash, a kill or a hang.
//
//	func main() {
//		err := supervise.Run(ctx, supervise.Options{Deadline: time.Minute}, train)
//		if err != nil && !supervise.Reported(err) {
//			log.Print(err)
//		}
//		os.Exit(supervise.ExitCode(err))
//	}
//
// The first process that calls [Run] becomes the parent. It starts the same program with the
// same arguments as its child. In the child, Run calls train with a [Worker]. Train calls
// Worker.Alive after every step, and resumes from its checkpoints if Status.Step is above 0. It
// may also request a new process with Worker.Restart.
//
// The package does not depend on TensorFlow, and the parent does not load it.
package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Env is the environment variable that marks a child of Run.
const Env = "STEADYFIT_SUPERVISED"

var (
	// ErrRestart is wrapped by the errors of Worker.Restart: train has saved its state.
	ErrRestart = errors.New("another process continues")
	// ErrRetry marks an error of train that may not occur in a new process. An error that wraps
	// it counts as a crash.
	ErrRetry = errors.New("a new process may get further")
	// errOrphaned is the cause of train's context when the parent has ended.
	errOrphaned = errors.New("the supervising process has ended")
)

// Options configure Run. The zero value restarts after crashes and ignores hangs.
type Options struct {
	// Deadline is the longest time between two signs of life before the child is killed as
	// hung. It has to cover a slow batch, a checkpoint and the final save. Time during which
	// this process does not run, or waits for a reader of Stderr, does not count. 0 disables
	// it.
	Deadline time.Duration
	// StartDeadline is the Deadline before the first step, to load and compile the model. 0
	// means ten times Deadline.
	StartDeadline time.Duration
	// Restarts is the number of consecutive crashes without progress to tolerate. Progress
	// means that an attempt began at a later step than all earlier ones. 0 means 5; a negative
	// number means none.
	Restarts int
	// Backoff is the time from a crash to the next attempt; 0 means 1 s. It doubles with each
	// crash without progress, up to MaxBackoff; 0 means 1 min.
	Backoff, MaxBackoff time.Duration
	// Grace is the time that the child has to end after a signal or after its last message. It
	// has to cover a step and a checkpoint. 0 means Deadline, but at least 1 min.
	Grace time.Duration
	// ExitCode returns main's exit code for an error of train. It is needed for a child that is
	// killed after its last message. nil means the function ExitCode.
	ExitCode func(err error) int `json:"-"`
	// Log receives crashes and restarts; nil discards them.
	Log *slog.Logger
	// Stderr receives the child's standard error, which is a pipe; nil means the standard error
	// of this process. If Stderr is a terminal, Worker.Terminal writes to it.
	Stderr io.Writer
	// Args are the program to start and its arguments; nil means this program with its own
	// arguments.
	Args []string
	// Env is added to the environment of the child.
	Env []string

	// after and tick replace time.After and a ticker in tests.
	after func(time.Duration) <-chan time.Time
	tick  func(time.Duration) (<-chan time.Time, func())
}

// Crash describes an attempt that ended in a crash.
type Crash struct {
	Time    time.Time `json:"time"`
	Attempt int       `json:"attempt"`
	// Step is the last step that was reported, at most 50 ms before the crash.
	Step int64 `json:"step"`
	// Lasted is the time for which the process ran.
	Lasted time.Duration `json:"lasted_ns"`
	// Signal is the signal that killed the process; otherwise it ended with ExitCode, which is
	// -1 after a signal. Go turns SIGSEGV and SIGABRT, also of C code, into exit code 2.
	Signal   syscall.Signal `json:"signal,omitempty"`
	ExitCode int            `json:"exit_code"`
	// OOMKilled means that the kernel killed the process because memory ran out, according to
	// the counter of its control group. Hang means that Run killed it.
	OOMKilled bool `json:"oom_killed,omitempty"`
	Hang      bool `json:"hang,omitempty"`
	// OutOfMemory means OOMKilled, or a crash after a failed allocation.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
	// Cause describes all of that in words, with the line of the log that names the cause.
	Cause string `json:"cause"`
	// Log holds the last lines of standard error, at most 20.
	Log []string `json:"log,omitempty"`
}

func (c Crash) String() string {
	return fmt.Sprintf("attempt %d, step %d, after %v: %s", c.Attempt, c.Step, c.Lasted.Round(time.Millisecond), c.Cause)
}

// Error reports a training that failed, and the exit code for main.
type Error struct {
	// Code is the exit code of the child, or otherwise that of Options.ExitCode; at least 1.
	Code int
	// Text is the text of train's error.
	Text string
	// Crashes are the crashes since the last progress, if there were too many. It is nil if
	// train returned an error, which the child has then printed itself.
	Crashes []Crash
	// Killed means that the child reported its error but had to be killed.
	Killed bool
}

func (e *Error) Error() string {
	if len(e.Crashes) == 0 {
		how := "ended with exit code %d"
		if e.Killed {
			how = "failed with exit code %d, and its process had to be killed"
		}
		return fmt.Sprintf("supervise: the training "+how+": %s", e.Code, e.Text)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "supervise: gave up; attempts without progress: %d", len(e.Crashes))
	for _, c := range e.Crashes {
		fmt.Fprintf(&b, "\n  %v", c)
	}
	if e.OutOfMemory() {
		b.WriteString("\nthe training needs more memory than is available; use a smaller batch, a memory budget, or a machine with more memory")
	}
	return b.String()
}

// OutOfMemory reports whether most of the crashes were due to lack of memory.
func (e *Error) OutOfMemory() bool {
	n := 0
	for _, c := range e.Crashes {
		if c.OutOfMemory {
			n++
		}
	}
	return 2*n > len(e.Crashes)
}

// Reported reports whether main need not print an error of Run, because the child has printed
// it or it only requests a new process.
func Reported(err error) bool {
	var e *Error
	return errors.Is(err, ErrRestart) || errors.As(err, &e) && len(e.Crashes) == 0 && !e.Killed
}

// ExitCode returns an exit code for an error of Run: 0 for nil and for ErrRestart, the child's
// code for an *Error, 130 for context.Canceled, and 1 for others.
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

// Run runs train in a child process and restarts it after every crash: SIGKILL, the kernel's
// OOM killer, an abort in TensorFlow, a hang. Main calls it once. The code before that call
// runs in parent and child alike, and must not load TensorFlow. The parent uses about 20 MiB
// and writes no checkpoints. The child's standard input is empty; its standard output is the
// parent's.
//
// In the child, Run returns train's error; main reports it and chooses the exit code. In the
// parent, Run returns
//   - nil: the child ended with exit code 0.
//   - *Error: the child ended with another exit code after an ordinary error, which is retried
//     only if it wraps ErrRetry; or it crashed too often.
//   - context.Canceled: the child was asked to end and did not end by itself.
//   - another error: the child could not be started.
//
// A child that ends before train has returned has crashed, whatever its exit code. So has a
// child that ends with exit code 2, which Go uses for crashes, after train returned nil.
//
// SIGINT, SIGTERM, SIGHUP and the end of ctx are passed to the child once and end train's
// context. A second SIGINT kills the child. Ctrl-Z also stops the child. The child has its own
// process group, and Run kills the rest of the group when the child has ended.
//
// If the parent is killed, train's context ends, and the child is killed after Grace. Before
// resuming by hand, wait until the child has ended: two processes must not write the same
// checkpoints. Where the kernel kills a control group as a whole (memory.oom.group), the parent
// also ends.
func Run(ctx context.Context, o Options, train func(ctx context.Context, w *Worker) error) error {
	switch {
	case ctx == nil:
		return errors.New("supervise: the context is nil; give one, such as context.Background()")
	case os.Getenv(Env) != "":
		if o.ExitCode == nil {
			o.ExitCode = ExitCode
		}
		return work(ctx, o.ExitCode, train)
	case inChild.Load():
		return errors.New("supervise: supervise.Run was called in the supervised process; call it once, in main")
	case runtime.GOOS != "linux":
		return errors.New("supervise: needs Linux")
	}
	defer survivePipes()()
	p := newParent(o)
	signal.Notify(p.signals, append(endSignals(), stopSignals...)...)
	defer signal.Stop(p.signals)
	return p.run(ctx)
}

// endSignals are the signals that ask a training to end. Signals that this process was started
// to ignore, as under nohup, stay ignored.
func endSignals() (list []os.Signal) {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// parent is the supervising process.
type parent struct {
	Options
	// next is the specification for the next child.
	next     spec
	terminal *os.File
	signals  chan os.Signal
	// crashes are the crashes since the last progress. from is the latest step at which an
	// attempt began. memoryStep is the step of the last crash due to lack of memory.
	crashes          []Crash
	from, memoryStep int64
	// out holds pending output. A separate goroutine writes it, because the parent must not
	// wait for a terminal.
	out chan func()
	// interrupted is true after a signal to end. ending is true once the child was asked to
	// end, or if no child is to be started.
	interrupted, ending bool
}

// outQueue is the number of pieces of the child's standard error, of at most 32 KiB, and of log
// lines that may wait for a reader. When the queue is full, the child waits.
const outQueue = 64

func newParent(o Options) *parent {
	p := &parent{Options: o, signals: make(chan os.Signal, 16), out: make(chan func(), outQueue)}
	p.StartDeadline = cmp.Or(p.StartDeadline, 10*p.Deadline)
	p.Restarts = max(0, cmp.Or(p.Restarts, 5))
	p.Backoff = cmp.Or(p.Backoff, time.Second)
	p.MaxBackoff = max(p.Backoff, cmp.Or(p.MaxBackoff, time.Minute))
	p.Grace = cmp.Or(p.Grace, max(p.Deadline, time.Minute))
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.Stderr == nil {
		p.Stderr = os.Stderr
	}
	if file, ok := p.Stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.terminal = file
	}
	if p.after == nil {
		p.after = time.After
	}
	if p.tick == nil {
		p.tick = func(d time.Duration) (<-chan time.Time, func()) {
			t := time.NewTicker(d)
			return t.C, t.Stop
		}
	}
	p.next = spec{Status: Status{Began: time.Now()}, Grace: p.Grace, Terminal: p.terminal != nil}
	return p
}

// log logs after all pending output. It drops the line if nobody reads.
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
	p.await(written)
	return err
}

// await returns when all output has been written, or at a signal: without a reader, the rest
// would block this process forever.
func (p *parent) await(written <-chan struct{}) {
	for {
		select {
		case <-written:
			return
		case s := <-p.signals:
			if !suspend(s, nil) {
				return
			}
		}
	}
}

// attempts runs one process after the other.
func (p *parent) attempts(ctx context.Context) error {
	for {
		p.next.Attempt++
		a, err := p.attempt(ctx)
		if err != nil && p.next.Attempt == 1 {
			return err
		}
		if err != nil {
			// Just after a machine has run out of memory, starting a process may fail.
			a.crash.Cause = err.Error()
		} else if final, err := p.judge(ctx, a); final {
			return err
		}
		planned := a.end != nil && a.end.End == endRestart
		if p.next.Crashed = !planned; planned {
			p.next.Reason = a.end.Text
		} else {
			p.next.Crashes++
			p.next.LastCrash = &a.crash
			p.next.Reason = fmt.Sprintf("restart %d: %s", p.next.Crashes, a.crash.Cause)
		}
		var wait time.Duration
		if planned && a.progress {
			p.log(slog.LevelInfo, "the training continues in another process", "attempt", a.crash.Attempt, "step", a.crash.Step, "reason", a.end.Text)
		} else {
			p.crashes = append(p.crashes, a.crash)
			if a.crash.OutOfMemory {
				p.next.MemoryCrashes++
				p.memoryStep = max(p.memoryStep, a.crash.Step)
			}
			if len(p.crashes) > p.Restarts {
				return &Error{Code: a.code(), Text: a.crash.Cause, Crashes: p.crashes}
			}
			wait = min(p.Backoff<<min(len(p.crashes)-1, 30), p.MaxBackoff)
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
	case finished && a.chosen() && a.crash.ExitCode == 0:
		return true, nil
	case finished && a.chosen():
		return true, &Error{Code: a.crash.ExitCode, Text: cmp.Or(a.end.Text, "the training itself was complete")}
	case finished && a.lingered && a.end.End == endDone:
		return true, nil
	case finished && a.lingered:
		return true, &Error{Code: a.code(), Text: a.end.Text, Killed: true}
	case p.ending:
		return true, canceled(ctx, "it ended with: "+a.crash.Cause)
	}
	return false, nil
}

func canceled(ctx context.Context, what string) error {
	return fmt.Errorf("supervise: the training was asked to end; %s: %w", what, cmp.Or(ctx.Err(), context.Canceled))
}

// pause waits until the next attempt is due.
func (p *parent) pause(ctx context.Context, wait time.Duration) error {
	due := p.after(wait)
	for {
		select {
		case <-due:
			due = nil
		case s := <-p.signals:
			p.receive(s, nil)
		case <-ctx.Done():
			p.ending = true
		}
		if p.ending {
			return canceled(ctx, "no process was running")
		}
		if due == nil {
			return nil
		}
	}
}
