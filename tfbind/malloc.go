package tfbind

import (
	"fmt"
	"os"

	"steadyfit/internal/tfprocess"
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

// mallocSettings are the environment variables that change the same settings as setMmapThreshold.
var mallocSettings = []string{"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"}

// setMmapThreshold implements tfprocess.SetMmapThreshold.
func setMmapThreshold(bytes int) error {
	if bytes < 1 || bytes > tfprocess.MaxMmapThreshold {
		return fmt.Errorf("mmap threshold: got %d bytes; expected 1 to %d", bytes, tfprocess.MaxMmapThreshold)
	}
	for _, name := range mallocSettings {
		if _, ok := os.LookupEnv(name); ok {
			return fmt.Errorf("mmap threshold: the environment variable %s already sets it; unset the variable", name)
		}
	}
	if capi == nil || !capi.setMmapThreshold(bytes) {
		return fmt.Errorf("mmap threshold: the malloc of this process is not glibc's")
	}
	return nil
}
