package runner

import "golang.org/x/sys/unix"

const dataLimit = true

// setDataLimit sets RLIMIT_DATA, the writable memory that a process may map.
func setDataLimit(pid int, size uint64) error {
	return unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: size, Max: size}, nil)
}
