package session

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/child"
)

// SupervisedEnv is the environment variable that marks a child of Supervise.
const SupervisedEnv = "STEADYFIT_SUPERVISED"

var (
	// ErrAgain is what Supervised.Again returns: another process is to go on.
	ErrAgain = errors.New("another process is to go on")
	// ErrRetry marks an error of train that a new process may not meet again, so
	// that the training is started anew as after a crash: wrap it with %w.
	ErrRetry = errors.New("a new process may get further")
	// ErrOrphaned is the cause with which train's context is cancelled when the
	// supervising process is gone.
	ErrOrphaned = errors.New("the supervising process is gone")
)

// Supervisor says how Supervise watches. The zero value restarts after crashes
// and does not look for hangs.
type Supervisor struct {
	// Deadline is how long the child may give no sign of life before it is killed
	// as hung. It has to be longer than anything that train does between two calls
	// of Supervised.Alive: waiting for a batch from a disk that is away for a while and
	// the step with it, a checkpoint, the final save. Time that this
	// process itself does not run for, or in which nobody reads Stderr or the terminal
	// is stopped (Ctrl-S), does not count. 0 means never.
	Deadline time.Duration
	// Starting is the Deadline until the first step is done, which includes loading
	// the model and whatever TensorFlow compiles. 0 means ten times Deadline. Reading
	// all of the data does not have to fit in: fit.Loop.Alive tells of every batch that
	// is read to identify it, and Supervised.Busy of what tells nothing itself, which
	// may then take any time.
	Starting time.Duration
	// Restarts is how many deaths in a row without progress are borne; one more ends
	// it. Progress is that an attempt begins at a later step than all before it: at
	// a new checkpoint. 0 means 5; less than 0 bears none.
	Restarts int
	// Backoff is the time from a death to the next attempt. It doubles with each
	// death without progress, up to MaxBackoff. 0 means 1 s, and 1 min.
	Backoff, MaxBackoff time.Duration
	// Grace is the time that the child has to end after a signal has been passed to
	// it, or after it has said how it ends; it is killed then. It has to be enough for
	// a step and a checkpoint. 0 means Deadline, and at least 1 min.
	Grace time.Duration
	// ExitCode is the exit code that main gives to an error of train; it is that of a
	// child that has said how it ends and did not come to end. nil gives 1 to all.
	ExitCode func(err error) int `json:"-"`
	// Log gets deaths and restarts; nil discards them.
	Log *slog.Logger
	// Stderr gets what the child writes to its standard error; nil is that of this
	// process. The child's is a pipe. If this is a terminal, Supervised.Screen is
	// the way to it.
	Stderr io.Writer
	// Args are the program to start and its arguments; nil means this one with its
	// own. Env is added to the environment.
	Args, Env []string

	// after and tick stand in for time.After and a ticker in tests.
	after func(time.Duration) <-chan time.Time
	tick  func(time.Duration) (<-chan time.Time, func())
}

// Death is how one attempt ended that did not come to an end of its own.
type Death struct {
	Time    time.Time `json:"time"`
	Attempt int       `json:"attempt"`
	// Step is the last step that it told of; it may have done those of another 50 ms.
	Step int64 `json:"step"`
	// Lasted is how long it ran.
	Lasted time.Duration `json:"lasted_ns"`
	// Signal killed it, or it ended with ExitCode, which is -1 otherwise. Go turns
	// a SIGSEGV or SIGABRT, of C code too, into the exit code 2.
	Signal   syscall.Signal `json:"signal,omitempty"`
	ExitCode int            `json:"exit_code"`
	// OOMKilled means that the kernel killed it for memory, as far as the counter of
	// its control group tells; Hang, that it was killed here.
	OOMKilled bool `json:"oom_killed,omitempty"`
	Hang      bool `json:"hang,omitempty"`
	// OutOfMemory means that it is OOMKilled, or crashed after an allocation had failed.
	OutOfMemory bool `json:"out_of_memory,omitempty"`
	// Cause is all of that in words, with the line of the log that says most.
	Cause string `json:"cause"`
	// Log are the last lines of its standard error, 20 at most.
	Log []string `json:"log,omitempty"`
}

func (d Death) String() string {
	return fmt.Sprintf("attempt %d, step %d, after %v: %s", d.Attempt, d.Step, d.Lasted.Round(time.Millisecond), d.Cause)
}

// ChildError is a training that failed. It carries the exit code to end with.
type ChildError struct {
	// Code is the exit code of the child; 1 if it has none and Supervisor.ExitCode
	// gives none. Where errors.Is(err,
	// ErrOutOfMemory) holds, it says nothing.
	Code int
	// Text is train's error as the child told it.
	Text string
	// Deaths are those since the last progress, if they were too many; nil if the
	// child ended in an ordinary way.
	Deaths []Death
	// Lingered is true if the child said how it ends, and was killed as it did not. Else
	// one that ended in an ordinary way has reported the error itself.
	Lingered bool
}

func (e *ChildError) Error() string {
	if len(e.Deaths) == 0 {
		how := "ended"
		if e.Lingered {
			how = "had to be killed when it was to end"
		}
		return fmt.Sprintf("supervise: the training %s with exit code %d: %s", how, e.Code, e.Text)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "supervise: gave up; attempts without progress: %d", len(e.Deaths))
	for _, d := range e.Deaths {
		fmt.Fprintf(&b, "\n  %v", d)
	}
	if e.Is(ErrOutOfMemory) {
		b.WriteString("\nit needs more memory than there is: give it more, or let it take less (a smaller batch, or a memory budget)")
	}
	return b.String()
}

// Is reports that this is ErrOutOfMemory, if most of the processes ran out of memory: the
// training does not run on what the machine or the control group has.
func (e *ChildError) Is(target error) bool {
	killed := 0
	for _, d := range e.Deaths {
		if d.OutOfMemory {
			killed++
		}
	}
	return target == ErrOutOfMemory && 2*killed > len(e.Deaths)
}

// Reported reports whether an error of Supervise needs no words from main: the
// child has printed it already, or it only asks for another process.
func Reported(err error) bool {
	var c *ChildError
	return errors.Is(err, ErrAgain) || (errors.As(err, &c) && len(c.Deaths) == 0 && !c.Lingered)
}

// Supervise runs train in a process of its own and starts it anew, from its last
// checkpoint, whatever that dies of: SIGKILL, the kernel's OOM killer, an abort in
// TensorFlow, a hang. It is the one call in main:
//
//	err := session.Supervise(ctx, session.Supervisor{Deadline: time.Minute}, train)
//
// The first process to come here becomes the parent. It starts the same program
// with the same arguments, which comes here again and runs train; main must do the
// same in both until then, load no TensorFlow, and do nothing of weight after. The
// parent writes to no checkpoint and uses some 20 MiB. train has to resume if
// Supervised.Continues says so. The child's standard input is empty, since what one
// child has read is not there for the next; its standard output is this process's.
//
// In the child, the error is train's own, and main reports it and chooses the exit
// code. In the parent it is one of these:
//   - nil: the child ended with exit code 0.
//   - *ChildError: it ended with another one after an ordinary error, which is not
//     retried unless it wraps ErrRetry; or it died too often.
//   - context.Canceled: it was told to end and did not come to an end of its own.
//   - others: the child could not be started.
//
// A child that ends without train having returned has died, whatever its exit code
// is; so has one that ends with 2, Go's code for a crash, after train returned nil.
//
// SIGINT, SIGTERM and SIGHUP are passed to the child once, and in it cancel train's
// context; so does the end of ctx here. SIGINT after another signal kills. Ctrl-Z
// stops the child, too. The child is in a process group of its own, and whatever
// is left of that is killed when it has ended.
//
// If the parent itself is killed, train's context is cancelled with ErrOrphaned,
// and the child is killed after Grace if it has not ended. Wait for that before
// resuming by hand: two processes must not write to the same checkpoints. Where a
// control group is killed as a whole (memory.oom.group), the parent dies with the
// child, and restarting is up to who made the group.
func Supervise(ctx context.Context, o Supervisor, train func(ctx context.Context, c *Supervised) error) error {
	if ctx == nil {
		return fmt.Errorf("supervise: %w", causeOf(ctx))
	}
	if text, marked := os.LookupEnv(SupervisedEnv); marked {
		return supervised(ctx, text, o.ExitCode, train)
	}
	if inChild.Load() {
		return errors.New("supervise: this is the supervised process; call Supervise once, in main")
	}
	if err := supervisable(); err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	defer survivePipes()()
	p := newParent(o)
	signal.Notify(p.signals, passedSignals()...)
	defer signal.Stop(p.signals)
	return p.run(ctx)
}

// order is what a child is told, in its environment.
type order struct {
	Attempt int `json:"attempt"`
	// Begun is when the first attempt began.
	Begun  time.Time `json:"begun"`
	Deaths int       `json:"deaths,omitempty"`
	// MemoryDeaths are those of Death.OutOfMemory since a step was reached beyond the
	// last of them.
	MemoryDeaths int `json:"memory_deaths,omitempty"`
	// Step is the latest step of all attempts.
	Step     int64         `json:"step,omitempty"`
	Why      string        `json:"why,omitempty"`
	Died     bool          `json:"died,omitempty"`
	Last     *Death        `json:"last,omitempty"`
	Terminal bool          `json:"terminal,omitempty"`
	Grace    time.Duration `json:"grace_ns"`
}

// ending is how a child says that it ends.
type ending struct {
	Kind endKind `json:"kind"`
	Text string  `json:"text,omitempty"`
	// Code is the exit code that main will choose, if that is known.
	Code int `json:"code,omitempty"`
	// Step is the last one, of which a sign of life tells one every 50 ms only.
	Step int64 `json:"step,omitempty"`
}

type endKind string

const (
	endDone   endKind = "done"
	endFailed endKind = "failed"
	endAgain  endKind = "again"
	endRetry  endKind = "retry"
)

// parent is the supervising process.
type parent struct {
	Supervisor
	order    order
	terminal *os.File
	signals  chan os.Signal
	// row are the deaths since the last progress; from is the latest step that an
	// attempt began with.
	row  []Death
	from int64
	// memoryStep is the step of the last death that was out of memory.
	memoryStep int64
	// out is what is still to be said, by a goroutine of its own: nothing here must
	// wait for a terminal.
	out chan func()
	// asked counts the signals to end. told is true once the child has been told, or
	// is not to be started any more.
	asked int
	told  bool
}

func newParent(o Supervisor) *parent {
	p := &parent{Supervisor: o, signals: make(chan os.Signal, 16), out: make(chan func(), outRoom)}
	p.Starting = cmp.Or(p.Starting, 10*p.Deadline)
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
	if p.Args == nil {
		p.Args = os.Args
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
	p.order.Begun, p.order.Grace, p.order.Terminal = time.Now(), p.Grace, p.terminal != nil
	return p
}

// outRoom is how many pieces of a child's standard error, of 32 KiB at most, and lines
// of the log wait for somebody to read them. While there are more, the child waits.
const outRoom = 64

// say logs when all before it has been said. It is left out if nobody reads.
func (p *parent) say(level slog.Level, text string, args ...any) {
	select {
	case p.out <- func() { p.Log.Log(context.Background(), level, text, args...) }:
	default:
	}
}

func (p *parent) run(ctx context.Context) error {
	said := make(chan struct{})
	go func() {
		defer close(said)
		for say := range p.out {
			say()
		}
	}()
	err := p.attempts(ctx)
	close(p.out)
	p.await(said)
	return err
}

// await returns when all has been said, or when a signal comes: where nobody reads, what is
// left would hold this process for ever.
func (p *parent) await(said <-chan struct{}) {
	for {
		select {
		case <-said:
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
		p.order.Attempt++
		a, err := p.attempt(ctx)
		if err != nil && p.order.Attempt == 1 {
			return err
		}
		if err != nil {
			// Just after a machine has run out of memory, it may have none to start with.
			a.death.Cause = err.Error()
		} else if final, err := p.judge(ctx, a); final {
			return err
		}
		var wait time.Duration
		if a.again() {
			p.order.Why, p.order.Died = a.end.Text, false
		} else {
			p.order.Deaths++
			p.order.Last = &a.death
			p.order.Why, p.order.Died = fmt.Sprintf("restart %d: %s", p.order.Deaths, a.death.Cause), true
		}
		if !a.again() || !a.progress {
			p.row = append(p.row, a.death)
			if a.death.OutOfMemory {
				p.order.MemoryDeaths++
				p.memoryStep = max(p.memoryStep, a.death.Step)
			}
			if len(p.row) > p.Restarts {
				return &ChildError{Code: a.code(), Text: a.death.Cause, Deaths: p.row}
			}
			wait = min(p.Backoff<<min(len(p.row)-1, 30), p.MaxBackoff)
			p.say(slog.LevelWarn, "the training process ended and is started anew", "attempt", a.death.Attempt, "step", a.death.Step,
				"lasted", a.death.Lasted.Round(time.Millisecond), "cause", a.death.Cause, "in", wait)
		} else {
			p.say(slog.LevelInfo, "the training goes on in another process", "attempt", a.death.Attempt, "step", a.death.Step, "reason", a.end.Text)
		}
		if err := p.pause(ctx, wait); err != nil {
			return err
		}
	}
}

// judge says whether an attempt was the last one, and what is returned then.
func (p *parent) judge(ctx context.Context, a *attempt) (final bool, err error) {
	last := a.chosen() && (a.end.Kind == endDone || a.end.Kind == endFailed)
	switch {
	case last && a.death.ExitCode == 0:
		return true, nil
	case last:
		return true, &ChildError{Code: a.death.ExitCode, Text: cmp.Or(a.end.Text, "the training itself was complete")}
	case a.lingered && a.end.Kind == endDone:
		return true, nil // everything was done, and it only did not leave
	case a.lingered && a.end.Kind == endFailed:
		return true, &ChildError{Code: a.code(), Text: a.end.Text, Lingered: true}
	case p.told:
		return true, p.stopped(ctx, "it ended with: "+a.death.Cause)
	}
	return false, nil
}

func (p *parent) stopped(ctx context.Context, what string) error {
	return fmt.Errorf("supervise: the training was told to end; %s: %w", what, cmp.Or(ctx.Err(), context.Canceled))
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
			p.told = true
		}
		if p.told {
			return p.stopped(ctx, "no process was running")
		}
		if due == nil {
			return nil
		}
	}
}

// attempt is one process and what was seen of it.
type attempt struct {
	cmd   *exec.Cmd
	begun time.Time
	death Death // what it is if the attempt did not end otherwise
	end   *ending
	// steps is true after the first step; progress, if that was later than that of
	// every attempt before.
	steps, progress bool
	// killed is why it was killed here; lingered is true if it had said how it ends
	// and did not leave.
	killed   string
	lingered bool
}

// code is what to end with if there is no other attempt.
func (a *attempt) code() int {
	if a.chosen() {
		return max(1, a.death.ExitCode)
	}
	if a.end != nil {
		return max(1, a.end.Code)
	}
	return 1
}

func (a *attempt) again() bool { return a.end != nil && a.end.Kind == endAgain }

// crashCode is the exit code with which Go ends a process that has crashed.
const crashCode = 2

// chosen reports whether main has chosen the exit code. It may have crashed after
// train was done, and nothing else gives this code then.
func (a *attempt) chosen() bool {
	return a.end != nil && a.death.ExitCode >= 0 && (a.end.Kind != endDone || a.death.ExitCode != crashCode)
}

// ticks is in how many parts a deadline is counted.
const ticks = 8

// attempt runs one process to its end. The error is only about starting it.
func (p *parent) attempt(ctx context.Context) (*attempt, error) {
	a := &attempt{begun: time.Now(), death: Death{Attempt: p.order.Attempt, ExitCode: -1}}
	// A child is in the control group of its parent.
	oom := cgroup.NewOOMCounter(os.Getpid())
	messages, log, lifeline, err := p.start(a)
	if err != nil {
		a.death.Time, a.death.Lasted = time.Now(), time.Since(a.begun)
		return a, err
	}
	defer messages.Close()
	defer log.Close()
	p.say(slog.LevelDebug, "the training process was started", "attempt", p.order.Attempt, "pid", a.cmd.Process.Pid)
	lines := make(chan []byte)
	go func() {
		defer close(lines)
		for r := bufio.NewReader(messages); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return // a line that is torn says nothing
			}
			lines <- line
		}
	}()
	passed := &passing{w: p.Stderr, out: p.out, ended: make(chan struct{})}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		// What cannot be passed on is lost, but still read, so that the child goes on.
		_, _ = io.Copy(passed, log)
	}()
	exited := make(chan struct{})
	go func() { defer close(exited); child.Await(a.cmd) }()

	p.watch(ctx, a, lines, exited, passed)

	// Its end is in the state of the process, and a group that is gone is killed.
	_ = child.Collect(a.cmd)
	lifeline.Close()
	// All writers are gone, but for such as have left the group.
	now := time.Now()
	_ = messages.SetReadDeadline(now.Add(time.Second))
	_ = log.SetReadDeadline(now.Add(time.Second))
	for line := range lines {
		p.hear(a, line)
	}
	close(passed.ended)
	<-copied
	a.died(now, &oom, &passed.tail)
	return a, nil
}

// start starts the child. The files are closed by the caller.
func (p *parent) start(a *attempt) (messages, log, lifeline *os.File, err error) {
	var files []*os.File
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
			files = append(files, r, w)
		}
		return r, w
	}
	messages, toParent := pipe()
	log, stderr := pipe()
	fromParent, lifeline := pipe()
	defer func() {
		for _, f := range files {
			if f != nil && (err != nil || f == toParent || f == stderr || f == fromParent) {
				f.Close()
			}
		}
	}()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("supervise: %w", err)
	}
	text, err := json.Marshal(p.order)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("supervise: %w", err)
	}
	path, err := program(p.Args[0])
	if err != nil {
		return nil, nil, nil, fmt.Errorf("supervise: %w", err)
	}
	a.cmd = &exec.Cmd{
		Path: path, Args: p.Args, Env: append(append(os.Environ(), p.Env...), SupervisedEnv+"="+string(text)),
		Stdout: os.Stdout, Stderr: stderr, ExtraFiles: []*os.File{toParent, fromParent},
		SysProcAttr: child.Group(),
	}
	if p.terminal != nil {
		a.cmd.ExtraFiles = append(a.cmd.ExtraFiles, p.terminal)
	}
	if err = a.cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("supervise: cannot start %s: %w", path, err)
	}
	return messages, log, lifeline, nil
}

// program is the file to start. The program that runs may have been replaced on
// disk by another build, which must not go on with its training.
func program(name string) (string, error) {
	if name != os.Args[0] {
		return exec.LookPath(name)
	}
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	there, missing := os.Stat(path)
	running, unknown := os.Stat(self)
	if unknown == nil && (missing != nil || !os.SameFile(there, running)) {
		return self, nil
	}
	return path, nil
}

// watch returns when the child has ended.
func (p *parent) watch(ctx context.Context, a *attempt, lines <-chan []byte, exited <-chan struct{}, passed *passing) {
	done := ctx.Done()
	period := p.Starting / ticks
	tick, stopTick := p.ticker(period)
	defer func() { stopTick() }()
	silent := 0
	var grace <-chan time.Time
	for {
		select {
		case <-exited:
			return
		case line, ok := <-lines:
			if !ok {
				lines = nil
				break
			}
			silent = 0
			p.hear(a, line)
			if a.steps && period != p.Deadline/ticks {
				stopTick()
				period = p.Deadline / ticks
				tick, stopTick = p.ticker(period)
			}
		case <-tick:
			if passed.stuck.Load() || stopped(p.terminal) {
				break
			}
			if silent++; silent <= ticks || a.end != nil || p.told {
				break
			}
			a.death.Hang = true
			why := fmt.Sprintf("hang: no sign of life for %v", period*ticks)
			if state := child.State(a.cmd.Process.Pid); state != "" {
				why += " (" + state + ")"
			}
			p.kill(a, why)
		case s := <-p.signals:
			p.receive(s, a)
		case <-done:
			done = nil
			p.tell(a, syscall.SIGTERM)
		case <-grace:
			a.lingered = a.end != nil
			p.kill(a, fmt.Sprintf("killed, as it had not ended after %v", p.Grace))
		}
		if grace == nil && (p.told || a.end != nil) {
			grace = p.after(p.Grace)
		}
	}
}

// ticker is one that never ticks if there is no deadline.
func (p *parent) ticker(period time.Duration) (<-chan time.Time, func()) {
	if period <= 0 {
		return nil, func() {}
	}
	return p.tick(period)
}

// hear takes a line from the child: a step, or how it ends.
func (p *parent) hear(a *attempt, line []byte) {
	step, isStep := int64(0), len(line) > 1
	for _, c := range bytes.TrimSuffix(line, []byte{'\n'}) {
		isStep = isStep && '0' <= c && c <= '9'
		step = step*10 + int64(c-'0')
	}
	if !isStep {
		var e ending
		if json.Unmarshal(line, &e) == nil && e.Kind != "" {
			a.end = &e
			a.death.Step = max(a.death.Step, e.Step)
			p.order.Step = max(p.order.Step, e.Step)
		}
		return
	}
	a.death.Step = step
	if step > p.memoryStep {
		p.order.MemoryDeaths = 0 // what was done about them was enough
	}
	p.order.Step = max(p.order.Step, step)
	if step > 0 && !a.steps {
		a.steps = true
		if step > p.from {
			p.from, p.row, a.progress = step, nil, true
		}
	}
}

// receive acts on a signal; a is nil if no process runs.
func (p *parent) receive(s os.Signal, a *attempt) {
	if suspend(s, a) {
		return
	}
	if s == os.Interrupt && p.asked > 0 {
		p.kill(a, "killed by a second signal")
	}
	p.asked++
	sig, _ := s.(syscall.Signal)
	p.tell(a, sig)
}

// tell asks the child to end, once.
func (p *parent) tell(a *attempt, s syscall.Signal) {
	if !p.told && a != nil {
		p.warn(a.cmd.Process.Signal(s))
	}
	p.told = true
}

func (p *parent) kill(a *attempt, why string) {
	if a != nil {
		a.killed = cmp.Or(a.killed, why)
		p.warn(child.Kill(a.cmd.Process.Pid))
	}
}

// warn logs an error that there is nothing to do about.
func (p *parent) warn(err error) {
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.say(slog.LevelWarn, "the training process could not be reached", "error", err)
	}
}

// died completes what is known of the end of a process.
func (a *attempt) died(now time.Time, oom *cgroup.OOMCounter, log *child.Tail) {
	d := &a.death
	d.Time, d.Lasted, d.Log = now, now.Sub(a.begun), log.Lines(20)
	d.ExitCode = a.cmd.ProcessState.ExitCode()
	status, _ := a.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if d.ExitCode < 0 {
		d.Signal = status.Signal()
	}
	kills, counted := oom.New()
	switch {
	case a.killed != "" && d.Signal == syscall.SIGKILL:
		d.Cause = a.killed
		return
	case a.chosen():
		d.Cause = a.end.Text
		return
	case d.Signal == syscall.SIGKILL && kills > 0:
		d.OOMKilled, d.OutOfMemory = true, true
		d.Cause = "killed by the kernel, as memory ran out"
		return
	case d.Signal == syscall.SIGKILL && counted:
		d.Cause = "killed by SIGKILL, and not by the kernel for memory"
		return
	case d.Signal == syscall.SIGKILL:
		d.Cause = "killed by SIGKILL, which the kernel sends when memory runs out"
		return
	case d.ExitCode < 0:
		d.Cause = "killed by signal: " + d.Signal.String()
	default:
		d.Cause = fmt.Sprintf("crashed with exit code %d", d.ExitCode)
	}
	d.OutOfMemory = child.OutOfMemory(log.String())
	if line := child.Telling(log.String()); line != "" {
		d.Cause += ": " + line
	}
}
