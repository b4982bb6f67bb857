package cgroup

import (
	"os"

	"github.com/shirou/gopsutil/v3/mem"
)

// Available returns the bytes that a process ("self" or a number) can still allocate: the machine's available
// memory (MemAvailable of /proc/meminfo), or the rest of the limit of its control groups if that is less.
func Available(pid string) Amount {
	var left Amount
	if m, err := mem.VirtualMemory(); err == nil && m.Total > 0 { // Total is 0 if gopsutil cannot read the file
		left = Amount{int64(m.Available), "/proc/meminfo"}
	}
	return least(left, ReadMemory(os.DirFS("/"), pid).Left)
}
