// Package memlayer has the names of layers and causes of package memory that only this module's own
// packages use, and the texts of amounts in a layer's unit.
package memlayer

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"steadyfit/internal/stats"
	"steadyfit/internal/texts"
)

// Layers of the operating system, from /proc/PID/status on Linux.
const (
	File    = "file"          // resident pages of files, mostly libraries
	Shared  = "shared memory" // shmem and tmpfs
	Swap    = "swap"          // anonymous memory that was swapped out
	Peak    = "peak rss"      // largest RSS since the start or Sampler.ResetPeak (VmHWM)
	Threads = "thread count"
	// CgroupWorkingSet is the memory of the control group without the file pages that the kernel
	// drops first (inactive_file in memory.stat). Kubelet evicts by this amount. Only budgets and
	// resets of a training read it.
	CgroupWorkingSet = "cgroup working set"
)

// Layers of the Go runtime, from runtime/metrics; unknown for another process.
const (
	GoHeap       = "go heap"               // objects, live or not yet swept
	GoLive       = "go heap live"          // objects reachable at the last collection
	GoTotal      = "go total"              // memory held by the Go runtime
	CleanupCount = "waiting cleanup count" // cleanups and finalizers that are due
	GCCycles     = "gc cycle count"        // collections since the start
	Goroutines   = "goroutine count"
)

// StepTime is the mean time per step since the previous sample, excluding the sampling. The first
// sample does not have it.
const StepTime = "step time"

// Names of the layers that instances of memory.Sources report.
const (
	MallocArenas = "malloc arenas" // obtained from the system

	LiveBytes = "live native bytes" // bytes of native objects that are not released
	LiveCount = "live native count" // number of these objects

	// TensorFlow keeps memory for each operation of a graph, and for each set of feeds and fetches.
	GraphOperations = "graph operation count" // operations added to open graphs
	Executors       = "executor count"        // different sets of feeds and fetches that sessions ran

	GPUUsed    = "gpu used"         // memory in use on the whole device
	GPUProcess = "gpu process used" // device memory of this process
)

// Causes of growth, in the order in which they are checked. Causes that a program can change come first.
const (
	// GCLag: cleanups and finalizers wait for the garbage collector, which does not know the size of native
	// memory.
	GCLag = "garbage collection lag"
	// Unreleased: the program creates native objects and does not release them.
	Unreleased = "unreleased objects"
	// HostHistory: the live Go heap grows, so the program retains Go objects.
	HostHistory = "host history"
	// RuntimeCache: a graph or the number of executors grows while the number of native objects stays
	// constant.
	RuntimeCache = "runtime cache or graph"
	// NativeHeap: malloc in use grows, and no other layer explains it.
	NativeHeap = "native heap"
	// GoRuntime: the Go runtime grows while the live heap does not: garbage, stacks,
	// fragmentation, or memory not yet returned to the system.
	GoRuntime = "go runtime"
	// Retention: resident memory grows while malloc in use is flat, so malloc retains freed
	// memory. compare.Trimmed can confirm it.
	Retention = "retention"
	// Files: more pages of mapped files became resident.
	Files = "file pages"
	// Unattributed: no other sampled layer grows.
	Unattributed = "unattributed"
)

// WatchEnv is the variable with the socket to which a program under `steadyfit watch` sends its marks.
const WatchEnv = "STEADYFIT_WATCH"

// MarkEveryEnv is the variable with the number of steps of a kind between two marks of such a program. Without it, the
// time decides.
const MarkEveryEnv = "STEADYFIT_WATCH_EVERY"

// MarkSource, if it is set, adds what only the process knows to each mark of memory.Mark, such as the memory of malloc.
var MarkSource atomic.Pointer[func(add func(layer string, amount int64))]

// Crash is the kind of the verdict on a run that ended early. Series.Judge does not return it.
const Crash = "crash"

// Values of Verdict.Per.
const (
	PerStep   = "step"
	PerMinute = "minute"
)

func isCount[L ~string](layer L) bool { return strings.HasSuffix(string(layer), " count") }
func isTime[L ~string](layer L) bool  { return strings.HasSuffix(string(layer), " time") }

// InBytes reports whether the unit of a layer is bytes. Names that end in " count" are counts, and names
// that end in " time" are nanoseconds.
func InBytes[L ~string](layer L) bool { return !isCount(layer) && !isTime(layer) }

// Amount formats an amount in the unit of a layer: "1.2 GiB", "17", "1.52ms".
func Amount[L ~string](layer L, v float64) string {
	switch {
	case isCount(layer):
		return strconv.FormatFloat(v, 'g', 4, 64)
	case isTime(layer):
		return fmt.Sprint(time.Duration(v))
	}
	return texts.FormatBytes(int64(v))
}

// Rate formats a slope of a layer as "+3.1 MiB/min", or with its bounds as "+3.1 MiB/min [2.9, 3.4]". All
// numbers have the same unit.
func Rate[L ~string](layer L, per string, slope float64, bounds ...float64) string {
	unit, size := "", 1.0
	largest := math.Abs(slope)
	for _, b := range bounds {
		largest = max(largest, math.Abs(b))
	}
	switch {
	case isTime(layer):
		unit = " ns"
	case InBytes(layer):
		unit = " B"
		for _, u := range texts.BinaryUnits[1:] { // slopes are not printed in TiB
			if largest >= u.Size {
				unit, size = " "+u.Name, u.Size
				break
			}
		}
	}
	number := func(v float64) string { return stats.Decimal(v/size, digits(largest/size)) }
	text := number(slope)
	if strings.Trim(text, "0.") != "" && !strings.HasPrefix(text, "-") {
		text = "+" + text
	}
	if per == PerMinute {
		text += unit + "/min"
	} else {
		text += unit + "/step"
	}
	if len(bounds) == 2 {
		text += fmt.Sprintf(" [%s, %s]", number(bounds[0]), number(bounds[1]))
	}
	return text
}

// digits returns the number of decimals to print: none from 100 on, one from 1 on, and enough for two
// significant digits below 1.
func digits(v float64) int {
	switch {
	case v >= 100:
		return 0
	case v >= 1 || v == 0:
		return 1
	}
	return min(1-int(math.Floor(math.Log10(v))), 6)
}
