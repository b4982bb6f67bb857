package watch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Run runs a program and watches it until it ends. Signals that this process gets are passed to the program. When ctx
// ends, the program is ended, too.
func Run(ctx context.Context, o Options) (*Report, error) {
	l, err := listen()
	if err != nil {
		return nil, err
	}
	defer l.close()
	// Before the program starts, since a signal must not be lost.
	signals := make(chan os.Signal, 8)
	for _, s := range passed {
		if !signal.Ignored(s) { // as in a program that nohup or a script runs in the background
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	w, err := start(o, l)
	if err != nil {
		return nil, err
	}
	w.recorder = newRecorder(o.Samples, w.cmd.Process.Pid)
	w.all = o.arm != nil
	if w.measure = o.Measure; w.measure != nil {
		w.all = true
		w.tree.measure(o.Measure.GPU)
	}
	w.watch(ctx, l, signals)
	report := w.report()
	report.All = w.series
	report.Processes = grown(w.tree.close())
	report.Exit = exitCode(w.cmd.ProcessState)
	return report, w.err
}

// passed are the signals that are passed to the program.
var passed = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
	syscall.SIGUSR2}

type program struct {
	*recorder
	o        Options
	cmd      *exec.Cmd
	marks    chan struct{} // a matching line of the output
	exited   chan struct{}
	ended    string
	kill     <-chan time.Time // when a program that was ended must have exited
	reported float64          // when Report was called, in seconds
	next     time.Time        // when the program is judged again
}

// start starts the program. On a terminal it shares the process group, so that the keys of the terminal act on both.
// Elsewhere it has a group of its own.
func start(o Options, l *listener) (*program, error) {
	path, err := exec.LookPath(o.Command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	p := &program{o: o, marks: make(chan struct{}, 1024), exited: make(chan struct{})}
	environment := slices.Concat(l.environment(), o.arm.environment(), o.Measure.environment())
	if o.NativeStacks {
		variables, err := stacksEnvironment()
		if err != nil {
			return nil, fmt.Errorf("native stacks: %w", err)
		}
		environment = append(environment, variables...)
	}
	p.cmd = &exec.Cmd{Path: path, Args: o.Command, Env: environment,
		Stdout: o.Stdout, Stderr: o.Stderr, SysProcAttr: &syscall.SysProcAttr{Setpgid: !isTerminal(o.Stdin)}}
	if o.Stdin != nil { // else it is /dev/null
		p.cmd.Stdin = o.Stdin
	}
	var copied sync.WaitGroup
	var pipes []io.Closer
	if o.Mark != nil {
		p.cmd.Env = append(p.cmd.Env, "PYTHONUNBUFFERED=1") // its output is a pipe
		for _, stream := range []*io.Writer{&p.cmd.Stdout, &p.cmd.Stderr} {
			to := *stream
			r, w, err := os.Pipe()
			if err != nil {
				return nil, fmt.Errorf("read the output: %w", err)
			}
			*stream = w
			pipes = append(pipes, w)
			copied.Go(func() { p.copyOutput(to, r) })
		}
	}
	err = p.cmd.Start()
	for _, pipe := range pipes {
		err = errors.Join(err, pipe.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("start the program: %w", err)
	}
	if o.Measure != nil && o.Measure.Started != nil {
		if err := o.Measure.Started(p.cmd.Process.Pid); err != nil {
			return nil, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
		}
	}
	go func() {
		_ = p.cmd.Wait() // the state has the exit code
		if o.Mark != nil {
			// A process that is left may keep the output open.
			done := make(chan struct{})
			go func() { copied.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(time.Second):
			}
		}
		close(p.exited)
	}()
	return p, nil
}

func isTerminal(f *os.File) bool {
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// copyOutput copies the output of the program, and counts its marks.
func (p *program) copyOutput(to io.Writer, from *os.File) {
	defer from.Close()
	lines := bufio.NewReaderSize(from, maxMessage)
	for {
		line, err := lines.ReadSlice('\n') // a long line comes in parts
		if len(line) > 0 {
			if _, failed := to.Write(line); failed != nil {
				to = io.Discard // the program keeps running although nobody reads its output
			}
			if p.o.Mark.Match(bytes.TrimRight(line, "\r\n")) {
				p.marks <- struct{}{}
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// graceful is the time between the signals SIGTERM and SIGKILL to a program that is ended.
const graceful = 10 * time.Second

// watch handles what happens until the program ends, or until it is ended.
func (p *program) watch(ctx context.Context, l *listener, signals <-chan os.Signal) {
	ticks := time.NewTicker(sampleEvery)
	defer ticks.Stop()
	var within <-chan time.Time
	if p.o.Within > 0 {
		within = time.After(p.o.Within)
	}
	p.sample(byTime)
	for {
		select {
		case m := <-l.messages:
			if p.receive(m); p.enough() {
				p.end(enoughSteps)
			}
		case <-p.marks:
			p.recorder.mark()
		case <-ticks.C:
			p.tick()
			p.verify()
			switch {
			case p.cmd == nil && len(p.tree.members) == 0:
				p.end("the process has ended")
			case p.enough():
				p.end(enoughSteps)
			case p.sure():
				p.end("the verdict is sure")
			}
		case <-within:
			p.end("the time is over")
		case s := <-signals:
			p.pass(s.(syscall.Signal))
		case <-p.kill:
			p.signalMembers(syscall.SIGKILL)
		case <-ctx.Done():
			p.end("watch was ended")
			ctx = context.WithoutCancel(ctx)
		case <-p.exited:
			if p.cmd == nil {
				return
			}
			p.leaveOutExit()
			if p.drain(l); p.ended != "" {
				p.endMembers()
			}
			return
		}
	}
}

// end ends the program. Processes that ran already go on without watch.
func (p *program) end(why string) {
	switch {
	case p.ended != "":
	case p.cmd == nil:
		p.ended = why
		close(p.exited)
	default:
		p.ended, p.kill = why, time.After(graceful)
		p.signal(syscall.SIGTERM)
		p.signalMembers(syscall.SIGTERM)
	}
}

// lastMessages is how long messages may still come after the end of the program.
const lastMessages = 100 * time.Millisecond

// drain handles the messages that are left at the end of the program.
func (p *program) drain(l *listener) {
	last := time.After(lastMessages)
	for {
		select {
		case m := <-l.messages:
			p.receive(m)
		case <-p.marks:
			p.recorder.mark()
		case <-last:
			return
		}
	}
}

// endMembers waits for the processes of a program that was ended, and ends those that are left after a while.
func (p *program) endMembers() {
	kill := time.After(graceful)
	for len(p.tree.members) > 0 {
		select {
		case <-kill:
			p.signalMembers(syscall.SIGKILL)
			return
		case <-time.After(sampleEvery):
			p.tree.sample() // removes those that have ended
		}
	}
}

// pass passes a signal on, unless the terminal has sent it to the program as well.
func (p *program) pass(s syscall.Signal) {
	if !isTerminal(p.o.Stdin) || s != syscall.SIGINT && s != syscall.SIGQUIT {
		p.signal(s)
	}
}

// signal sends a signal to the program, or to its process group if it has one.
func (p *program) signal(s syscall.Signal) {
	pid := p.cmd.Process.Pid
	if p.cmd.SysProcAttr.Setpgid {
		pid = -pid
	}
	_ = syscall.Kill(pid, s) // it may have ended
}

// signalMembers sends a signal to all processes of the program.
func (p *program) signalMembers(s syscall.Signal) {
	for pid := range p.tree.members {
		_ = syscall.Kill(pid, s) // it may have ended
	}
}

// judgeEvery is the time between two judgements of a running program.
const judgeEvery = 2 * time.Second

// sure judges the program now and then. It reports whether the verdict will not change.
func (p *program) sure() bool {
	live := p.o.Within > 0 || p.o.UntilSure || p.o.Every > 0
	if !live || time.Now().Before(p.next) {
		return false
	}
	begin := time.Now()
	r := p.report()
	p.next = time.Now().Add(max(judgeEvery, 20*time.Since(begin)))
	if p.o.Every > 0 && r.Seconds-p.reported >= p.o.Every.Seconds() {
		p.reported = r.Seconds
		p.o.Report(r)
	}
	// A program without steps may still start, or fill containers.
	least := leastMinutes * time.Minute
	if r.Verdict == Leak && r.Why.container {
		least = time.Minute
	}
	starts := r.Unit == perMinute && p.cmd != nil && r.Seconds < least.Seconds()
	return (p.o.Within > 0 || p.o.UntilSure) && !starts && r.sure()
}

func exitCode(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.ExitCode()
}

// report judges the samples so far.
func (p *program) report() *Report {
	r := p.recorder.report()
	r.Command, r.Ended, r.Exit = p.o.Command, p.ended, -1
	r.python, r.Acted = p.injected()
	return r
}

// Attach watches processes that run already, and their descendants, until they end, ctx ends, or the verdict is sure.
func Attach(ctx context.Context, pids []int, o Options) (*Report, error) {
	p := &program{o: o, recorder: newRecorder(o.Samples, pids...), exited: make(chan struct{})}
	p.attached = true
	if p.tree.sample(); len(p.tree.members) == 0 {
		return nil, fmt.Errorf("%w: no process %v can be read", ErrNotFound, pids)
	}
	p.watch(ctx, &listener{}, nil)
	report := p.report()
	report.PIDs = pids
	report.Processes = grown(p.tree.close())
	return report, p.err
}
