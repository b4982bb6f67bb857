package supervise

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// stopSignals are the signals of Ctrl-Z and fg.
var stopSignals = []os.Signal{syscall.SIGTSTP, syscall.SIGCONT}

// suspend stops the child and this process on Ctrl-Z, and resumes the child later. It returns false for
// other signals.
func suspend(s os.Signal, a *attempt) bool {
	if s != syscall.SIGTSTP && s != syscall.SIGCONT {
		return false
	}
	toChild := syscall.SIGCONT
	if s == syscall.SIGTSTP {
		toChild = syscall.SIGSTOP
	}
	if a != nil {
		_ = a.SignalGroup(toChild) // the child may have ended
	}
	if s == syscall.SIGTSTP {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // a process may always stop itself
	}
	return true
}

// survivePipes keeps the process alive when nobody reads its standard error: a child without a parent
// writes a last checkpoint, and a parent without a terminal restarts its child, and ends with the exit
// code of the training. SIGPIPE is caught, not ignored, since child processes would inherit an ignored
// signal.
func survivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// ignoreTerminalStop lets the child write to a terminal that stops background processes on output.
func ignoreTerminalStop() { signal.Ignore(syscall.SIGTTOU) }

// stopped reports whether a terminal accepts no output, as after Ctrl-S. A nil terminal accepts output.
func stopped(terminal *os.File) bool {
	if terminal == nil {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(terminal.Fd()), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0
}

// write writes a short line to a pipe, completely or not at all, without waiting.
func write(fd int, line []byte) error {
	_, err := syscall.Write(fd, line)
	return err
}
