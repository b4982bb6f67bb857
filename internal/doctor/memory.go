package doctor

import (
	"fmt"

	"steadyfit/internal/cgroup"
	"steadyfit/memory"
)

const (
	// tight is too little for any training: opening TensorFlow alone makes 0.3 GiB resident.
	tight = 512 * memory.MiB
	// scarce is less than the peak of a small image model.
	scarce = memory.GiB
)

const lessMemory = "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"

// graded returns the check of an amount of memory that is left.
func graded(name string, left memory.Reading, found, fix string) Check {
	switch {
	case left.OK && left.Bytes < tight:
		return problem(name, found, fix)
	case left.OK && left.Bytes < scarce:
		return warning(name, found, fix)
	}
	return ok(name, found)
}

func checkMemory(m machine) []Check {
	found := fmt.Sprintf("%v, of which %v are available", m.total, m.available)
	machine := graded("machine", m.available, found, lessMemory)
	return []Check{machine, memoryLimit(cgroup.ReadMemory(m.fs, "self"), m.total)}
}

func memoryLimit(g cgroup.Memory, total memory.Reading) Check {
	if !below(g.Limit, total) {
		return ok("limit", "none below the machine's memory")
	}
	limit, left := reading(g.Limit), reading(g.Left)
	found := fmt.Sprintf("%v, of which %v are left (%s)", limit, left, g.Limit.File)
	if !left.OK {
		left = limit
	}
	return graded("limit", left, found, "raise the limit (`docker run --memory 4g`, "+
		"resources.limits.memory in Kubernetes, `systemd-run -p MemoryMax=4G`), or "+lessMemory)
}

// below reports whether a is known and less than total. An unknown total counts as infinite.
func below(a cgroup.Amount, total memory.Reading) bool {
	return a.Known() && (!total.OK || a.Bytes < int64(total.Bytes))
}

func reading(a cgroup.Amount) memory.Reading {
	return memory.Reading{Bytes: memory.Bytes(a.Bytes), OK: a.Known()}
}
