//go:build unix

package measure

import (
	"syscall"
	"time"
)

// ProcessTime is how long the process's threads have run, in sum.
func ProcessTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
