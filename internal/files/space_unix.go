//go:build linux || darwin

package files

import "syscall"

// FreeSpace is the number of bytes that this user can still write to the file
// system of a path.
func FreeSpace(path string) (bytes int64, ok bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * int64(s.Bsize), true
}
