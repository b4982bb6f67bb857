package measure

import (
	"syscall"
	"time"
)

// ProcessTime returns the processor time of the process, summed over its threads.
func ProcessTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
