package tfbind

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Malloc is the memory that the malloc of this process reports, in bytes; an amount that it
// does not report is [NotReported].
//
//   - glibc: all arenas and mapped blocks, from mallinfo2 (glibc 2.33; an older one
//     reports nothing). Blocks in a thread's cache count as in use. Free is address space:
//     [TrimMalloc] can return pages from the middle of an arena without changing it.
//   - jemalloc: InUse is stats.allocated, Arenas stats.resident, Free their difference.
//   - tcmalloc (of gperftools): Arenas is what it took and has not unmapped.
//   - mimalloc reports nothing: it counts per thread.
type Malloc struct {
	// Allocator is "glibc", "jemalloc", "tcmalloc" or "mimalloc".
	Allocator string
	// InUse is the memory handed out to TensorFlow and other callers of malloc, not to Go.
	// TensorFlow's own pools count as a whole.
	InUse int64
	// Free is the memory that malloc holds for reuse.
	Free int64
	// Arenas is the memory taken from the system: InUse and Free together.
	Arenas int64
}

// NotReported stands for an amount that the allocator does not report.
const NotReported = -1

// The allocators by name, in the order of the enum in shim.h.
var allocators = [...]string{"", "glibc", "jemalloc", "tcmalloc", "mimalloc"}

// MallocInfo returns the statistics of the process's malloc, which is that of the C library or
// a preloaded one. If the allocator is not listed in [Malloc], and in a build without cgo, ok
// is false and all amounts are NotReported.
//
// MallocInfo does not need TensorFlow and does not allocate in Go. glibc locks each arena in
// turn and walks its free blocks, which takes some microseconds, and more for a fragmented
// heap.
func MallocInfo() (Malloc, bool) {
	m := Malloc{"", NotReported, NotReported, NotReported}
	if capi == nil {
		return m, false
	}
	var allocator int
	allocator, m.InUse, m.Free, m.Arenas = capi.mallocInfo()
	m.Allocator = allocators[allocator]
	return m, allocator != 0
}

// TrimMalloc asks the malloc of this process to return free memory to the system, and
// reports whether there was a way to ask:
//
//   - glibc: malloc_trim(0), which returns whole free pages of all arenas.
//   - jemalloc: a purge of the dirty pages of all arenas, without the caches of threads.
//   - tcmalloc: MallocExtension_ReleaseFreeMemory, without the caches of threads.
//   - mimalloc: mi_collect(true), for memory of the calling thread and of ended threads,
//     which leaves most to TensorFlow's threads.
//
// It can take long for a large heap, and other threads wait for malloc meanwhile.
// TensorFlow's own pools are in use to malloc and stay.
func TrimMalloc() bool {
	return capi != nil && capi.trimMalloc()
}

// MaxMmapThreshold is the highest threshold in bytes that [SetMmapThreshold] accepts. glibc's
// own adjustment has the same limit (DEFAULT_MMAP_THRESHOLD_MAX).
const MaxMmapThreshold = 32 << 20

// mallocSettings are the environment variables that set what SetMmapThreshold changes.
var mallocSettings = []string{"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"}

// SetMmapThreshold sets the size in bytes from which glibc's malloc maps each block separately
// (M_MMAP_THRESHOLD) and returns it to the system when it is freed. It also sets the free
// memory at an arena's end above which malloc returns memory (M_TRIM_THRESHOLD), to twice that
// size. Smaller blocks come from arenas, which keep freed memory and fragment. Call it before
// large blocks are in use: an arena with enough free memory still serves a block of any size.
//
// By default, glibc raises both thresholds as large blocks are freed, up to MaxMmapThreshold;
// a call ends that adjustment. A mapped block costs page faults each time it is allocated. The
// setting affects later allocations of the whole process. TensorFlow's CPU allocations are
// affected only where they come from malloc: without oneDNN, or with
// TF_ONEDNN_USE_SYSTEM_ALLOCATOR.
//
// SetMmapThreshold changes nothing and returns an error if malloc is not glibc's, the
// threshold is out of range, or an environment variable sets a threshold.
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
