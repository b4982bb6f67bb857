package memory

import (
	"os"

	"github.com/shirou/gopsutil/v3/mem"

	"steadyfit/internal/cgroup"
)

// Available is the memory that this process can still take: what the machine has
// available (MemAvailable of /proc/meminfo), or what is left of the limit of its
// control groups, whichever is less. It is unknown where neither is known.
func Available() Reading {
	var left Reading
	if m, err := mem.VirtualMemory(); err == nil && m.Total > 0 { // gopsutil ignores a file that it cannot read
		left = Known(Bytes(m.Available))
	}
	if group := cgroup.ReadMemory(os.DirFS("/"), "self").Left; group.Known() {
		if !left.OK || Bytes(group.Bytes) < left.Bytes {
			left = Known(Bytes(group.Bytes))
		}
	}
	return left
}
