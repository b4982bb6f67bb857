package files

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// FreeSpace returns the number of bytes that this user can write to the file system of a path.
func FreeSpace(path string) (bytes int64, ok bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}

// Lock locks a file or folder until it is closed, without waiting. Any error except ErrLocked means that
// the file system has no locks.
func Lock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrLocked
		case err != nil:
			return fmt.Errorf("flock %s: %w", f.Name(), err)
		default:
			return nil
		}
	}
}
