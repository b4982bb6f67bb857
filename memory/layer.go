package memory

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Layer names one amount of a [Sample] in reports and JSON. The name implies the unit: names
// that end in " count" are counts, names that end in " time" are nanoseconds, and all others
// are bytes. A source may add its own layers by that rule.
type Layer string

// The layers of the operating system, from /proc/PID/status on Linux. PSS is expensive and only
// read on request ([SamplerOptions.PSS]).
const (
	RSS    Layer = "rss"           // resident: Anon + File + Shared
	Anon   Layer = "anon"          // anonymous memory: heaps, stacks
	File   Layer = "file"          // pages of files, mostly libraries
	Shared Layer = "shared memory" // shmem and tmpfs
	Swap   Layer = "swap"          // anonymous memory that was swapped out
	PSS    Layer = "pss"           // RSS with shared pages divided among their users
	Peak   Layer = "peak rss"      // largest RSS (VmHWM) since the start or Sampler.ResetPeak

	Threads     Layer = "thread count"
	CgroupUsed  Layer = "cgroup in use" // memory of the whole control group, page cache included
	CgroupLimit Layer = "cgroup limit"  // smallest limit on it or a group above; absent if there is none
)

// The layers of the Go runtime, from runtime/metrics; absent for another process.
const (
	GoHeap       Layer = "go heap"               // objects, live or not yet swept
	GoLive       Layer = "go heap live"          // reachable at the last collection
	GoTotal      Layer = "go total"              // held by the Go runtime
	CleanupCount Layer = "waiting cleanup count" // cleanups and finalizers that are due
	GCCycles     Layer = "gc cycle count"        // collections since the start
	Goroutines   Layer = "goroutine count"
)

// The layers of a [Source] that attribution uses. They may have a part named by [Layer.Of].
const (
	MallocUsed   Layer = "malloc in use"   // handed out to the program
	MallocFree   Layer = "malloc free"     // free, but held from the system
	MallocArenas Layer = "malloc arenas"   // taken from the system
	TFUsed       Layer = "tensorflow used" // in use, by TensorFlow's own allocators
	TFPeak       Layer = "tensorflow peak" // the most that was in use in a step

	LiveBytes    Layer = "live native bytes"    // of native objects that are not released
	LiveCount    Layer = "live native count"    // their number
	WaitingBytes Layer = "waiting native bytes" // of those, unreachable ones that wait for the garbage collector
	WaitingCount Layer = "waiting native count" // their number

	GPUUsed      Layer = "gpu used"         // of the whole device
	GPUProcess   Layer = "gpu process used" // of this process
	GPUAllocator Layer = "gpu allocator used"
)

// StepTime is the time per step since the previous sample, without the sampling itself. The
// first sample does not have it.
const StepTime Layer = "step time"

// Of names a part of the layer: TFUsed.Of("mklcpu") is "tensorflow used (mklcpu)". The part has
// the unit of the whole.
func (l Layer) Of(part string) Layer { return l + Layer(" ("+part+")") }

// Whole returns the layer of which l is a part, or l itself.
func (l Layer) Whole() Layer {
	if i := strings.Index(string(l), " ("); i >= 0 && strings.HasSuffix(string(l), ")") {
		return l[:i]
	}
	return l
}

// unit is the unit of the amounts of a layer.
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

// Format formats an amount of the layer in its unit: "1.2 GiB", "17", "1.52ms".
func (l Layer) Format(r Reading) string {
	if !r.OK {
		return r.String()
	}
	return l.amount(float64(r.Bytes))
}

func (l Layer) amount(v float64) string {
	switch l.unit() {
	case inCount:
		return strconv.FormatFloat(v, 'g', 4, 64)
	case inNanoseconds:
		return fmt.Sprint(time.Duration(v))
	}
	return Bytes(v).String()
}
