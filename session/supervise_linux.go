package session

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"steadyfit/internal/child"
)

// self is the program that runs, even if its file has been replaced.
const self = "/proc/self/exe"

func supervisable() error { return nil }

// endSignals ask a training to end. Those that this process was started to ignore,
// as under nohup, stay ignored.
func endSignals() []os.Signal {
	var list []os.Signal
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// passedSignals are what the parent acts on.
func passedSignals() []os.Signal { return append(endSignals(), syscall.SIGTSTP, syscall.SIGCONT) }

// suspend stops the child and this process on Ctrl-Z, and lets the child go on
// after it. It reports whether the signal was of that kind.
func suspend(s os.Signal, a *attempt) bool {
	if s != syscall.SIGTSTP && s != syscall.SIGCONT {
		return false
	}
	toChild := syscall.SIGCONT
	if s == syscall.SIGTSTP {
		toChild = syscall.SIGSTOP
	}
	if a != nil {
		_ = child.Signal(a.cmd.Process.Pid, toChild) // it may have ended
	}
	if s == syscall.SIGTSTP {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // a process may stop itself
	}
	return true
}

// attach takes over the files that the parent has opened.
func (c *Supervised) attach() (lifeline *os.File, err error) {
	open := func(fd int, name string, kind uint32) *os.File {
		var stat syscall.Stat_t
		if e := syscall.Fstat(fd, &stat); e != nil || stat.Mode&syscall.S_IFMT != kind {
			if err == nil {
				err = fmt.Errorf("file descriptor %d is not the %s that it opens", fd, name)
			}
			return nil
		}
		syscall.CloseOnExec(fd)
		if kind == syscall.S_IFIFO {
			if e := syscall.SetNonblock(fd, true); e != nil && err == nil {
				err = os.NewSyscallError("fcntl", e)
			}
		}
		return os.NewFile(uintptr(fd), name)
	}
	c.fd = pipeFD
	c.pipe = open(pipeFD, "pipe to the parent", syscall.S_IFIFO)
	lifeline = open(pipeFD+1, "pipe from the parent", syscall.S_IFIFO)
	if c.order.Terminal {
		c.terminal = open(pipeFD+2, "terminal", syscall.S_IFCHR)
		// The terminal may be set to stop processes in the background that write to it.
		signal.Ignore(syscall.SIGTTOU)
	}
	return lifeline, err
}

// send writes a short line to the parent, whole or not at all, and does not wait.
func (c *Supervised) send(line []byte) bool {
	_, err := syscall.Write(c.fd, line)
	return err == nil
}

// pipeFD is the first file after the standard ones.
const pipeFD = 3

// survivePipes keeps a process alive whose standard error nobody reads any more: a child
// whose parent is gone is to write a last checkpoint, and a parent whose terminal is gone to
// restart the child. The signal is caught rather than ignored, which other programs would
// inherit. stop ends that.
func survivePipes() (stop func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGPIPE)
	return func() { signal.Stop(caught) }
}
