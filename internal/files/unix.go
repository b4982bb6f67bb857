//go:build linux || darwin

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// FreeSpace returns the number of bytes that this user can write to the file system of a path.
func FreeSpace(path string) (bytes int64, ok bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}

// MayWrite reports whether this user may create files in a folder.
func MayWrite(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

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

// CheckOwner returns fs.ErrPermission if a file is not regular, or if a user besides this one and root owns it
// or may write to it.
func CheckOwner(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() || info.Mode()&0o022 != 0 || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return &fs.PathError{Op: "trust", Path: f.Name(), Err: fs.ErrPermission}
	}
	return nil
}
