package session

import (
	"os"

	"golang.org/x/sys/unix"
)

// stopped reports whether a terminal takes no output, as after Ctrl-S. nil does not.
func stopped(terminal *os.File) bool {
	if terminal == nil {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(terminal.Fd()), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0
}
