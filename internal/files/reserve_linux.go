package files

import (
	"errors"
	"os"
	"syscall"
)

// The types of in-memory file systems in statfs(2). Reserving space there would use the machine's
// memory.
const (
	tmpfs = 0x01021994
	ramfs = 0x858458f6
)

// reserve allocates disk space for a file if the file system supports that.
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
