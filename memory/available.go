package memory

import (
	"os"

	"github.com/shirou/gopsutil/v3/mem"

	"steadyfit/internal/cgroup"
)

// Available returns the memory that this process can still allocate: the machine's available memory
// (MemAvailable of /proc/meminfo), or the rest of the limit of its control groups if that is less.
func Available() Reading {
	var left Reading
	if m, err := mem.VirtualMemory(); err == nil && m.Total > 0 { // Total is 0 if gopsutil cannot read the file
		left = Known(Bytes(m.Available))
	}
	if group := cgroup.ReadMemory(os.DirFS("/"), "self").Left; group.Known() {
		if !left.OK || Bytes(group.Bytes) < left.Bytes {
			left = Known(Bytes(group.Bytes))
		}
	}
	return left
}
