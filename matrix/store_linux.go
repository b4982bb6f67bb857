package matrix

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock locks a file until the process ends. It returns errLocked if another process has the
// lock. A file system without locks is not an error.
func lock(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return errLocked
		default:
			return nil
		}
	}
}
