// Package child runs a program as a child process and exchanges messages with it. It runs supervised
// trainings and trials of autotune.
//
// # Protocol
//
// A child reads its specification as JSON from an environment variable. It writes messages to file
// descriptor 3, one JSON value per line, and reads requests from descriptor 4 in a format of the
// caller. End of file on descriptor 4 means that the parent has ended. Standard error is the log. A
// child in Go calls [Connect].
//
// # Parent
//
// [Start] starts a child in a new process group. The parent receives messages from [Process.Messages]
// or, with a deadline, from [Process.Receive]. For every started process it must call [Process.End],
// which kills the rest of the group and returns how the child ended: with an exit code, by a signal, by
// the kernel's OOM killer, or by [Process.Kill].
//
// A child that needs a new process requests it in its last message. The caller decides about restarts.
// The package is pure Go.
package child

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"steadyfit/internal/cgroup"
)

// File descriptors of a child.
const (
	MessagesFD = 3
	requestsFD = 4
)

// SupervisedEnv is the variable with the specification of a child of supervise.Run, which unsets it.
const SupervisedEnv = "STEADYFIT_SUPERVISED"

var ErrDeadline = errors.New("no message in time")

type Command struct {
	// Args are the program and its arguments; nil means this program with its own arguments.
	Args []string
	Env  []string
	// Variable is the name of the environment variable for Spec.
	Variable string
	Spec     any
	Stdout   *os.File
	// Log receives a copy of the child's standard error, unless it is nil.
	Log io.Writer
}

type Process struct {
	// Requests is written by the parent and read by the child. Its end means that the parent has
	// ended.
	Requests *os.File
	// Messages has the lines that the child writes. It is closed at the end of the messages.
	Messages chan []byte
	// Exited is closed when the child has ended.
	Exited chan struct{}
	// Log is the end of the child's standard error. It is complete after End.
	Log Tail

	cmd           *exec.Cmd
	messages, log *os.File
	copied        chan struct{}
	release       func() bool
	oom           cgroup.OOMCounter

	mu     sync.Mutex
	killed string
	// collected is true after the process ID was released.
	collected bool
}

type Exit struct {
	Time time.Time
	// OutOfMemory is true if the kernel killed the child for lack of memory, or after a crash that followed a
	// failed allocation.
	OutOfMemory bool
	// Cause describes the end in words, with the line of the log that names the cause. Go converts SIGSEGV and
	// SIGABRT, also of C code, to exit code 2.
	Cause string
}

// self is the running executable, even if its file was replaced.
const self = "/proc/self/exe"

// Start starts a child. The child is killed when ctx ends.
func Start(ctx context.Context, c Command) (_ *Process, err error) {
	if c.Args == nil {
		c.Args = os.Args
	}
	path, err := self, error(nil)
	if c.Args[0] != os.Args[0] {
		path, err = exec.LookPath(c.Args[0])
	}
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", c.Args[0], err)
	}
	spec, err := json.Marshal(c.Spec)
	if err != nil {
		return nil, err
	}
	p := &Process{Messages: make(chan []byte), Exited: make(chan struct{}), copied: make(chan struct{})}
	var messages, requests, log *os.File // the ends of the child
	p.messages, messages, err = os.Pipe()
	if err == nil {
		requests, p.Requests, err = os.Pipe()
	}
	if err == nil {
		p.log, log, err = os.Pipe()
	}
	if err == nil {
		// A child starts in the control group of its parent.
		p.oom = cgroup.NewOOMCounter(os.Getpid())
		p.cmd = &exec.Cmd{
			Path: path, Args: c.Args, Env: append(append(os.Environ(), c.Env...), c.Variable+"="+string(spec)),
			Stderr: log, ExtraFiles: []*os.File{messages, requests},
			SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // Ctrl-C in a terminal does not signal the child
		}
		if c.Stdout != nil {
			p.cmd.Stdout = c.Stdout
		}
		err = p.cmd.Start()
	}
	for _, f := range []*os.File{messages, requests, log} {
		f.Close()
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("cannot start %s: %w", path, err)
	}
	p.release = context.AfterFunc(ctx, func() { _ = p.Kill(context.Cause(ctx).Error()) })
	go p.await()
	go p.read()
	go func() {
		defer close(p.copied)
		to := io.Writer(&p.Log)
		if c.Log != nil {
			to = io.MultiWriter(to, c.Log)
		}
		_, _ = io.Copy(to, p.log) // returns at the end of the log, or at the deadline set by End
	}()
	return p, nil
}

func (p *Process) read() {
	defer close(p.Messages)
	for r := bufio.NewReader(p.messages); ; {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		p.Messages <- line
	}
}

// await closes Exited when the child has ended. Its process ID stays reserved until cmd.Wait.
func (p *Process) await() {
	defer close(p.Exited)
	for {
		err := unix.Waitid(unix.P_PID, p.PID(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return // cmd.Wait waits instead
		}
	}
}

func (p *Process) PID() int { return p.cmd.Process.Pid }

// Receive returns the next message, io.EOF at the end, or ErrDeadline.
func (p *Process) Receive(until time.Time) ([]byte, error) {
	select {
	case line, ok := <-p.Messages:
		if !ok {
			return nil, io.EOF
		}
		return line, nil
	case <-time.After(time.Until(until)):
		return nil, ErrDeadline
	}
}

// Wait reports whether the child ends within a time.
func (p *Process) Wait(within time.Duration) bool {
	select {
	case <-p.Exited:
		return true
	case <-time.After(within):
		return false
	}
}

// Signal sends a signal to the child, or does nothing if the child has ended.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill kills the child and all processes that it started. The reason of the first call is Exit.Cause.
func (p *Process) Kill(reason string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = cmp.Or(p.killed, reason)
	if p.collected {
		return nil
	}
	return killGroup(p.PID())
}

// killGroup kills all processes of a group, or does nothing if the group is empty.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// KillSelf kills this process and its process group.
func KillSelf() error { return killGroup(os.Getpid()) }

// End kills the rest of the child's process group and returns how the child ended. It passes the
// remaining messages to hear, which may be nil.
func (p *Process) End(hear func(line []byte)) Exit {
	p.release()
	_ = p.Kill("")
	<-p.Exited
	p.mu.Lock()
	_ = killGroup(p.PID()) // the child may have started processes just before its end
	_ = p.cmd.Wait()       // ProcessState contains the result
	p.collected = true
	p.mu.Unlock()
	p.Requests.Close()
	now := time.Now()
	// A process that has left the group may keep the pipes open.
	_ = p.messages.SetReadDeadline(now.Add(time.Second))
	_ = p.log.SetReadDeadline(now.Add(time.Second))
	for line := range p.Messages {
		if hear != nil {
			hear(line)
		}
	}
	<-p.copied
	p.close()
	return p.exit(now)
}

func (p *Process) close() {
	for _, f := range []*os.File{p.messages, p.Requests, p.log} {
		f.Close() // no effect if f is nil or closed
	}
}

func (p *Process) exit(now time.Time) Exit {
	p.mu.Lock()
	reason := p.killed
	p.mu.Unlock()
	e := Exit{Time: now}
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	kills, counted := p.oom.New()
	killed := status.Signaled() && status.Signal() == syscall.SIGKILL
	switch {
	case killed && reason != "":
		e.Cause = reason
	case killed && kills > 0:
		e.OutOfMemory, e.Cause = true, "killed by the kernel because memory ran out"
	case killed && counted:
		e.Cause = "killed by SIGKILL, but not by the kernel for lack of memory"
	case killed:
		e.Cause = "killed by SIGKILL, which the kernel sends when memory runs out"
	case status.Signaled():
		e.Cause = "killed by signal: " + status.Signal().String()
	default:
		e.Cause = fmt.Sprintf("crashed with exit code %d", status.ExitStatus())
	}
	if killed {
		return e
	}
	log := p.Log.String()
	e.OutOfMemory = OutOfMemory(log)
	if line := CauseLine(log); line != "" {
		e.Cause += ": " + line
	}
	return e
}

type Parent struct{ Messages, Requests *os.File }

// Connect reads the specification from an environment variable, which it unsets, and opens the files of
// the protocol. Processes that the child starts do not inherit these files.
func Connect(variable string, spec any) (*Parent, error) {
	p := &Parent{}
	err := json.Unmarshal([]byte(os.Getenv(variable)), spec)
	if err == nil {
		p.Messages, err = inherited(MessagesFD)
	}
	if err == nil {
		p.Requests, err = inherited(requestsFD)
	}
	if err == nil {
		err = os.Unsetenv(variable)
	}
	if err != nil {
		return nil, fmt.Errorf("%s was not set by a parent process; unset it: %w", variable, err)
	}
	return p, nil
}

// Send writes a message to the parent.
func (p *Parent) Send(message any) error {
	line, err := json.Marshal(message)
	if err == nil {
		_, err = p.Messages.Write(append(line, '\n'))
	}
	return err
}

// inherited opens a pipe that the parent passed to this process. Writes to the raw descriptor do not block.
func inherited(fd int) (*os.File, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("file descriptor %d was not opened by a parent process", fd)
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("file descriptor %d", fd)), nil
}
