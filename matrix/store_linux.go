package matrix

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock takes the lock on a file without waiting, and errLocked if another process has
// it. The kernel lets go of it when the process ends. A file system without locks is
// no error.
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
