//go:build linux || darwin

package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// flock locks a file without waiting. Any error except errLockBusy means that the file system
// has no locks.
func flock(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errLockBusy
		case err != nil:
			return fmt.Errorf("flock %s: %w", file.Name(), err)
		default:
			return nil
		}
	}
}
