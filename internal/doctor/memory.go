package doctor

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/cgroup"
	"steadyfit/memory"
)

const (
	// tight is where a training run of any size comes to its end: TensorFlow
	// alone makes 0.3 GiB resident when it is opened.
	tight = 512 * memory.MiB
	// scarce is below what a small image model needs at its peak.
	scarce = memory.GiB
)

const lessMemory = "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"

func checkMemory(m machine) []Check {
	groups := cgroup.ReadMemory(m.fs, "self")
	info, _ := m.readText("/proc/meminfo")
	total, available := meminfo(info, "MemTotal"), meminfo(info, "MemAvailable")
	checks := []Check{machineMemory(total, available), memoryLimit(groups, total)}
	if soft := groups.High; soft.Known() && below(soft, total) && !(groups.Limit.Known() && groups.Limit.Bytes < soft.Bytes) {
		checks = append(checks, Check{Name: "soft limit", Status: Warning,
			Found: fmt.Sprintf("%v (%s): above it the kernel slows the process down", memory.Bytes(soft.Bytes), soft.File),
			Fix:   "raise it to the hard limit: `systemctl set-property UNIT MemoryHigh=infinity`, or have the container's owner do it"})
	}
	if c, limited := addressSpace(m); limited {
		checks = append(checks, c)
	}
	return append(checks, swapSpace(info, groups), hugePages(m), allocator(m))
}

// meminfo finds "Name:   123 kB", which means units of 1024 bytes.
func meminfo(text, name string) memory.Reading {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == name+":" {
			if n, err := strconv.ParseInt(fields[1], 10, 53); err == nil {
				return memory.Known(memory.Bytes(n) * memory.KiB)
			}
		}
	}
	return memory.Reading{}
}

func machineMemory(total, available memory.Reading) Check {
	c := Check{Name: "machine", Found: fmt.Sprintf("%v, of which %v are available", total, available)}
	switch {
	case !total.OK && !available.OK:
		c.Status, c.Found = Note, "unknown: this system has no /proc/meminfo"
	case available.OK && available.Bytes < tight:
		c.Status, c.Fix = Problem, lessMemory
	case available.OK && available.Bytes < scarce:
		c.Status, c.Fix = Warning, lessMemory
	}
	return c
}

func memoryLimit(g cgroup.Memory, total memory.Reading) Check {
	c := Check{Name: "limit", Found: "none below the machine's memory"}
	if !below(g.Limit, total) {
		return c
	}
	c.Found = fmt.Sprintf("%v, of which %v are left (%s)", memory.Bytes(g.Limit.Bytes), reading(g.Left), g.Limit.File)
	const fix = "raise the limit (`docker run --memory 4g`, resources.limits.memory in Kubernetes, `systemd-run -p MemoryMax=4G`), or " + lessMemory
	left := g.Limit
	if g.Left.Known() {
		left = g.Left
	}
	switch {
	case left.Bytes < int64(tight):
		c.Status, c.Fix = Problem, fix
	case left.Bytes < int64(scarce):
		c.Status, c.Fix = Warning, fix
	}
	return c
}

// below reports whether a is known and less than total, where unknown is above all.
func below(a cgroup.Amount, total memory.Reading) bool {
	return a.Known() && (!total.OK || a.Bytes < int64(total.Bytes))
}

func reading(a cgroup.Amount) memory.Reading {
	return memory.Reading{Bytes: memory.Bytes(a.Bytes), OK: a.Known()}
}

// addressSpace reports ulimit -v if it is set. TensorFlow maps far more than it
// uses: its libraries alone are 0.85 GB.
func addressSpace(m machine) (c Check, limited bool) {
	text, _ := m.readText("/proc/self/limits")
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max address space")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		limit, err := strconv.ParseInt(fields[0], 10, 64)
		return Check{Name: "address space", Status: Warning,
			Found: fmt.Sprintf("limited to %v: TensorFlow maps more than it uses, and may not open", memory.Bytes(limit)),
			Fix:   "`ulimit -v unlimited`, and limit memory with a cgroup instead"}, err == nil
	}
	return Check{}, false
}

func swapSpace(info string, g cgroup.Memory) Check {
	total, free := meminfo(info, "SwapTotal"), meminfo(info, "SwapFree")
	c := Check{Name: "swap"}
	switch {
	case !total.OK:
		c.Status, c.Found = Note, "unknown"
	case total.Bytes == 0, g.Swap.Known() && g.Swap.Bytes == 0:
		c.Found = "none: a step that needs more memory than there is ends the process"
	case free.OK && total.Bytes-free.Bytes > scarce:
		c.Status = Warning
		c.Found = fmt.Sprintf("%v of %v in use: steps that touch swapped memory are slow", total.Bytes-free.Bytes, total)
		c.Fix = lessMemory
	default:
		c.Found = fmt.Sprintf("%v, free %v", total, free)
	}
	return c
}

func hugePages(m machine) Check {
	c := Check{Name: "transparent huge pages"}
	text, ok := m.readText("/sys/kernel/mm/transparent_hugepage/enabled")
	_, mode, found := strings.Cut(text, "[")
	mode, _, closed := strings.Cut(mode, "]")
	switch {
	case !ok || !found || !closed:
		c.Status, c.Found = Note, "unknown"
	case mode == "always":
		c.Status = Note
		c.Found = "always: faster page faults, and up to 2 MiB resident where one page was touched"
		c.Fix = "if resident memory matters more than speed: `echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`"
	default:
		c.Found = mode
	}
	return c
}

// replacements are the allocators that people preload instead of the C
// library's.
var replacements = []string{"jemalloc", "tcmalloc", "mimalloc"}

// allocator says which malloc the process has. LD_PRELOAD says what was asked
// for; the memory map says what came.
func allocator(m machine) Check {
	c := Check{Name: "malloc", Found: "of the C library"}
	if arenas := m.env["MALLOC_ARENA_MAX"]; arenas != "" {
		c.Found += ", at most " + arenas + " arenas (MALLOC_ARENA_MAX)"
	}
	maps, known := m.readText("/proc/self/maps")
	mapped := ""
	for line := range strings.Lines(maps) {
		// The path is the sixth field, and may hold blanks.
		start := strings.IndexByte(line, '/')
		if start < 0 {
			continue
		}
		file := strings.TrimSpace(line[start:])
		if isReplacement(file) {
			mapped = file
			break
		}
	}
	preload := strings.FieldsFunc(m.env["LD_PRELOAD"], func(r rune) bool { return r == ':' || r == ' ' })
	asked := slices.IndexFunc(preload, isReplacement)
	switch {
	case mapped != "":
		c.Found = mapped
	case asked >= 0 && known:
		c.Status = Warning
		c.Found = "of the C library: LD_PRELOAD names " + preload[asked] + ", which was not loaded"
		c.Fix = "check the path (`ls -l " + preload[asked] + "`); a program built with CGO_ENABLED=0 preloads nothing"
	case m.env["MALLOC_CONF"] != "":
		c.Status = Note
		c.Found = "of the C library, which does not read MALLOC_CONF (jemalloc does)"
		c.Fix = "preload jemalloc: `LD_PRELOAD=$(ldconfig -p | awk '/libjemalloc.so.2/ {print $NF; exit}') steadyfit ...`"
	}
	return c
}

func isReplacement(file string) bool {
	name := path.Base(file)
	return strings.Contains(name, ".so") && slices.ContainsFunc(replacements, func(r string) bool { return strings.Contains(name, r) })
}
