package memory

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Layer names an amount of a [Sample]. The name determines the unit: names that end in " count" are
// counts, names that end in " time" are nanoseconds, and all other amounts are bytes. A [Source] may
// add layers with other names.
type Layer string

// Layers of the operating system, from /proc/PID/status on Linux. The layer "pss" is expensive and only
// read with [SamplerOptions.PSS].
const (
	RSS    Layer = "rss"           // resident memory: Anon + File + Shared
	Anon   Layer = "anon"          // anonymous memory: heaps and stacks
	File   Layer = "file"          // resident pages of files, mostly libraries
	shared Layer = "shared memory" // shmem and tmpfs
	swap   Layer = "swap"          // anonymous memory that was swapped out
	pss    Layer = "pss"           // RSS with shared pages divided among their users
	Peak   Layer = "peak rss"      // largest RSS since the start or Sampler.ResetPeak (VmHWM)

	Threads     Layer = "thread count"
	cgroupUsed  Layer = "cgroup in use" // memory of the control group, including the page cache
	CgroupLimit Layer = "cgroup limit"  // lowest limit of the group and its parents; unknown without a limit
	// CgroupWorkingSet is the memory of the control group without the file pages that the kernel
	// drops first (inactive_file in memory.stat). Kubelet evicts by this amount. Only budgets and
	// resets of a training read it.
	CgroupWorkingSet Layer = "cgroup working set"
)

// Layers of the Go runtime, from runtime/metrics; unknown for another process.
const (
	GoHeap       Layer = "go heap"               // objects, live or not yet swept
	goLive       Layer = "go heap live"          // objects reachable at the last collection
	goTotal      Layer = "go total"              // memory held by the Go runtime
	cleanupCount Layer = "waiting cleanup count" // cleanups and finalizers that are due
	gcCycles     Layer = "gc cycle count"        // collections since the start
	goroutines   Layer = "goroutine count"
)

// Layers of a [Source] that attribution uses. [Layer.Of] names parts of them.
const (
	MallocUsed   Layer = "malloc in use"   // allocated by the program
	MallocFree   Layer = "malloc free"     // free, but not returned to the system
	MallocArenas Layer = "malloc arenas"   // obtained from the system
	TFUsed       Layer = "tensorflow used" // allocated by TensorFlow's own allocators
	TFPeak       Layer = "tensorflow peak" // largest TFUsed during a step

	LiveBytes    Layer = "live native bytes"    // bytes of native objects that are not released
	LiveCount    Layer = "live native count"    // number of these objects
	WaitingBytes Layer = "waiting native bytes" // bytes of unreachable native objects that wait for the garbage collector
	WaitingCount Layer = "waiting native count" // number of these objects

	// TensorFlow keeps memory for each operation of a graph, and for each set of feeds and fetches.
	GraphOperations Layer = "graph operation count" // operations added to open graphs
	Executors       Layer = "executor count"        // different sets of feeds and fetches that sessions ran

	GPUUsed      Layer = "gpu used"         // memory in use on the whole device
	GPUProcess   Layer = "gpu process used" // device memory of this process
	GPUAllocator Layer = "gpu allocator used"
)

// StepTime is the mean time per step since the previous sample, excluding the sampling. The first
// sample does not have it.
const StepTime Layer = "step time"

// Of names a part of the layer in the same unit: TFUsed.Of("mklcpu") is "tensorflow used (mklcpu)".
func (l Layer) Of(part string) Layer { return l + Layer(" ("+part+")") }

// Whole returns the layer without a part name.
func (l Layer) Whole() Layer {
	if i := strings.Index(string(l), " ("); i >= 0 && strings.HasSuffix(string(l), ")") {
		return l[:i]
	}
	return l
}

type unit int

const (
	inBytes unit = iota
	inCount
	inNanoseconds
)

func (l Layer) unit() unit {
	switch whole := string(l.Whole()); {
	case strings.HasSuffix(whole, " count"):
		return inCount
	case strings.HasSuffix(whole, " time"):
		return inNanoseconds
	}
	return inBytes
}

// amount formats an amount in the unit of the layer: "1.2 GiB", "17", "1.52ms".
func (l Layer) amount(v float64) string {
	switch l.unit() {
	case inCount:
		return strconv.FormatFloat(v, 'g', 4, 64)
	case inNanoseconds:
		return fmt.Sprint(time.Duration(v))
	}
	return Bytes(v).String()
}
