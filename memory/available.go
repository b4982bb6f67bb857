package memory

import (
	"os"
	"strconv"
	"strings"
)

// Available is the memory that processes here may still take: what the machine has
// available (MemAvailable of /proc/meminfo), or what is left of the limit of this process's
// control group, whichever is less. It is unknown where neither is known.
func Available() Reading {
	var left Reading
	least := func(bytes Bytes) {
		if !left.OK || bytes < left.Bytes {
			left = Known(max(bytes, 0))
		}
	}
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemAvailable:" {
			if n, err := strconv.ParseInt(fields[1], 10, 53); err == nil {
				least(Bytes(n) * KiB)
			}
		}
	}
	sampler, err := NewSampler(SamplerOptions{})
	if err != nil {
		return left
	}
	defer sampler.Close()
	gauge, err := NewGauge(CgroupWorkingSet)
	if err != nil {
		return left
	}
	defer gauge.Close()
	var now Sample
	if sampler.Sample(0, &now) == nil {
		limit, used := now.Get(CgroupLimit), gauge.Read()
		if limit.OK && used.OK {
			least(limit.Bytes - used.Bytes)
		}
	}
	return left
}
