package files

import (
	"errors"
	"os"
	"syscall"
)

// The file systems in memory, by statfs(2): a reservation there takes memory of the machine.
const (
	tmpfs = 0x01021994
	ramfs = 0x858458f6
)

// reserve allocates bytes on disk for a file, where the file system can do that.
func reserve(f *os.File, bytes int64) error {
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil || uint32(s.Type) == tmpfs || uint32(s.Type) == ramfs {
		return err
	}
	for {
		err := syscall.Fallocate(int(f.Fd()), 0, 0, max(bytes, 1))
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
