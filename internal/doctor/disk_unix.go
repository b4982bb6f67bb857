//go:build linux || darwin

package doctor

import (
	"fmt"
	"syscall"

	"steadyfit/memory"
)

// mayWrite is W_OK of access(2), which the syscall package does not name.
const mayWrite = 2

func diskSpace(dir string) (space, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return space{}, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return space{
		free:     memory.Known(memory.Bytes(s.Bavail) * memory.Bytes(s.Bsize)),
		writable: syscall.Access(dir, mayWrite) == nil,
	}, nil
}
