package supervise

import (
	"os"
	"os/signal"
	"syscall"
)

// survivePipes keeps the process alive when nobody reads its standard error: a child without a parent
// writes a last checkpoint, and a parent without a terminal restarts its child, and ends with the exit
// code of the training. SIGPIPE is caught, not ignored, since child processes would inherit an ignored
// signal.
func survivePipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// write writes a short line to a pipe, completely or not at all, without waiting.
func write(fd int, line []byte) error {
	_, err := syscall.Write(fd, line)
	return err
}
