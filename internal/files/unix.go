//go:build linux || darwin

package files

import (
	"errors"
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

// lockDir locks a folder until the file is closed, without waiting.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	switch {
	case err == nil:
		return f, nil
	case !errors.Is(err, syscall.EWOULDBLOCK):
		err = errNoLocks
	}
	_ = f.Close()
	return nil, err
}
