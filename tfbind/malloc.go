package tfbind

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Malloc has the memory that malloc reports for this process, in bytes. An amount that the
// allocator does not report is -1.
//
//   - glibc reports all arenas and mapped blocks (mallinfo2 of glibc 2.33; older versions
//     report nothing). Blocks in a thread's cache count as in use. Free is address space, so
//     [TrimMalloc] can return pages without changing it.
//   - jemalloc: InUse is stats.allocated, Arenas is stats.resident, and Free is their
//     difference.
//   - tcmalloc (gperftools): Arenas is the memory taken and not unmapped.
//   - mimalloc reports nothing, because it counts per thread.
type Malloc struct {
	// Allocator is "glibc", "jemalloc", "tcmalloc" or "mimalloc".
	Allocator string
	// InUse is the memory of blocks in use outside of Go. A pool of TensorFlow counts as in use
	// as a whole.
	InUse int64
	// Free is the memory that malloc keeps for reuse.
	Free int64
	// Arenas is the memory taken from the system, which is InUse + Free.
	Arenas int64
	// Mapped is the part of InUse in blocks that were mapped one by one, such as the regions of a
	// pool of TensorFlow. Only glibc reports it.
	Mapped int64
}

// allocators has the names for the enum in shim.h.
var allocators = [...]string{"", "glibc", "jemalloc", "tcmalloc", "mimalloc"}

// MallocInfo returns the statistics of malloc, which may be preloaded. ok is false for an
// allocator that [Malloc] does not list and in a build without cgo. MallocInfo does not need
// TensorFlow and does not allocate in Go. glibc locks each arena in turn and walks its free
// blocks. This takes some microseconds, and longer for a fragmented heap.
func MallocInfo() (Malloc, bool) {
	m := Malloc{"", -1, -1, -1, -1}
	if capi == nil {
		return m, false
	}
	var allocator int
	allocator, m.InUse, m.Free, m.Arenas, m.Mapped = capi.mallocInfo()
	m.Allocator = allocators[allocator]
	return m, allocator != 0
}

// TrimMalloc returns malloc's free memory to the system, and reports whether the allocator
// supports that:
//
//   - glibc: malloc_trim(0) returns free pages of all arenas.
//   - jemalloc: a purge returns the dirty pages of all arenas, but not the caches of threads.
//   - tcmalloc: MallocExtension_ReleaseFreeMemory does not return the caches of threads.
//   - mimalloc: mi_collect(true) returns memory of the calling thread and of ended threads, but
//     not of TensorFlow's threads.
//
// A large heap can take long, and other threads wait for malloc meanwhile. TrimMalloc does not
// affect TensorFlow's own pools.
func TrimMalloc() bool {
	return capi != nil && capi.trimMalloc()
}

// DumpHeap writes jemalloc's heap profile to a file: the memory in use by allocating stack,
// estimated from samples. It reports whether malloc is jemalloc with profiling, which
// MALLOC_CONF=prof:true turns on at the start of the process.
func DumpHeap(path string) bool { return capi != nil && capi.dumpHeap(path) }

// MaxMmapThreshold is the largest threshold, in bytes, for [SetMmapThreshold]. It is the limit
// of glibc's own adjustment (DEFAULT_MMAP_THRESHOLD_MAX).
const MaxMmapThreshold = 32 << 20

// mallocSettings are the environment variables for the same settings as SetMmapThreshold.
var mallocSettings = []string{"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"}

// SetMmapThreshold sets glibc's M_MMAP_THRESHOLD, in bytes. Larger blocks are mapped one by one
// and return to the system when they are freed. Smaller blocks come from arenas, which keep
// freed memory and fragment. SetMmapThreshold also sets M_TRIM_THRESHOLD, the free memory at an
// arena's end above which malloc returns memory, to twice that size. By default, glibc raises
// both settings up to MaxMmapThreshold as large blocks are freed; SetMmapThreshold turns that
// off.
//
// The setting holds for later allocations of the whole process. It affects TensorFlow on a CPU
// only if TensorFlow uses malloc: without oneDNN, or with TF_ONEDNN_USE_SYSTEM_ALLOCATOR. Set
// it before large blocks are in use, because an arena with enough free memory still serves a
// block of any size. A mapped block costs page faults at each allocation.
//
// The error reports that malloc is not glibc's, that the threshold is out of range, or that the
// environment sets a threshold.
func SetMmapThreshold(bytes int) error {
	if bytes < 1 || bytes > MaxMmapThreshold {
		return fmt.Errorf("mmap threshold: got %d bytes; expected 1 to %d", bytes, MaxMmapThreshold)
	}
	for _, name := range mallocSettings {
		if _, ok := os.LookupEnv(name); ok {
			return fmt.Errorf("mmap threshold: the environment variable %s already sets it; unset the variable", name)
		}
	}
	tunables := strings.Split(os.Getenv("GLIBC_TUNABLES"), ":")
	if i := slices.IndexFunc(tunables, func(t string) bool {
		return strings.HasPrefix(t, "glibc.malloc.mmap") || strings.HasPrefix(t, "glibc.malloc.trim")
	}); i >= 0 {
		return fmt.Errorf("mmap threshold: GLIBC_TUNABLES already sets %s; remove that tunable", tunables[i])
	}
	if capi == nil || !capi.setMmapThreshold(bytes) {
		return fmt.Errorf("mmap threshold: the malloc of this process is not glibc's")
	}
	return nil
}
