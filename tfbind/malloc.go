package tfbind

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Malloc is what the malloc of this process says of itself, in bytes. What it
// does not tell is [NotTold], never 0.
//
// The amounts do not mean quite the same everywhere:
//
//   - glibc: all arenas and mapped blocks, from mallinfo2 (glibc 2.33; an older
//     one tells nothing). Blocks in a thread's cache count as in use. Free is
//     address space, and stays as it is where [TrimMalloc] gives pages back from
//     the middle of an arena: look at resident memory for that.
//   - jemalloc: InUse is stats.allocated, Arenas stats.resident, and Free their
//     difference: fragmentation, dirty pages and jemalloc's own tables.
//   - tcmalloc (of gperftools): Arenas is what it took and has not unmapped.
//   - mimalloc keeps its counts per thread, so a sum cannot be had: it tells
//     nothing.
type Malloc struct {
	// Allocator is "glibc", "jemalloc", "tcmalloc" or "mimalloc".
	Allocator string
	// InUse is handed out to the program: to TensorFlow and whatever else calls
	// malloc, not to Go. TensorFlow's own pools count as in use as a whole.
	InUse int64
	// Free is free but held.
	Free int64
	// Arenas is taken from the system: InUse and Free together.
	Arenas int64
}

// NotTold stands for an amount that the allocator does not tell.
const NotTold = -1

// The allocators by name, in the order of the enum in shim.h.
var allocators = [...]string{"", "glibc", "jemalloc", "tcmalloc", "mimalloc"}

// MallocInfo asks the malloc of this process what it holds: that of the C
// library, or the one that was preloaded in its place. It is false if that is
// none of those in [Malloc], or in a build without cgo; all amounts are NotTold
// then.
//
// It neither needs nor loads TensorFlow, links nothing, and allocates nothing in
// Go. glibc holds the lock of each arena in turn while it counts, and walks its
// free blocks: some microseconds, and more for a fragmented heap.
func MallocInfo() (Malloc, bool) {
	m := Malloc{"", NotTold, NotTold, NotTold}
	if capi == nil {
		return m, false
	}
	var allocator int
	allocator, m.InUse, m.Free, m.Arenas = capi.mallocInfo()
	m.Allocator = allocators[allocator]
	return m, allocator != 0
}

// TrimMalloc asks the malloc of this process to give back to the system what is
// free, and reports whether there was a way to ask, not whether anything came
// of it:
//
//   - glibc: malloc_trim(0), which gives back whole free pages of all arenas.
//   - jemalloc: a purge of all arenas: dirty pages go, caches of threads stay.
//   - tcmalloc: MallocExtension_ReleaseFreeMemory; caches of threads stay.
//   - mimalloc: mi_collect(true), which works on what the calling thread and
//     threads that have ended own, so it leaves most to TensorFlow's threads.
//
// It can take long for a large heap, and other threads wait for malloc meanwhile.
// What TensorFlow keeps in its own pools is in use to malloc and stays.
func TrimMalloc() bool {
	return capi != nil && capi.trimMalloc()
}

// MaxMmapThreshold is the highest threshold that [SetMmapThreshold] takes, in bytes. It
// is where glibc's own adjustment of the threshold ends (DEFAULT_MMAP_THRESHOLD_MAX).
const MaxMmapThreshold = 32 << 20

// mallocSettings are the environment variables with which a user has set what
// SetMmapThreshold would change.
var mallocSettings = []string{"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"}

// SetMmapThreshold sets the size, in bytes, from which glibc's malloc maps a block by
// itself (M_MMAP_THRESHOLD). Such a block goes back to the system when it is freed.
// Smaller blocks come from arenas, which keep what is freed and fragment. The size of
// free memory at the end of an arena that goes back (M_TRIM_THRESHOLD) becomes twice
// the threshold.
//
// A block comes from an arena all the same if that has free memory of its size: set the
// threshold before large blocks are in use.
//
// By default glibc raises both as large blocks are freed, up to MaxMmapThreshold; a
// call ends that. Mapping a block costs page faults each time it is used. The call
// affects later allocations of the whole process, TensorFlow's on the CPU included
// where they come from malloc: without oneDNN, or with TF_ONEDNN_USE_SYSTEM_ALLOCATOR.
//
// The error says why nothing was changed: another malloc than glibc's, a threshold
// that is not from 1 to MaxMmapThreshold, or a variable of glibc in the environment
// that sets one.
func SetMmapThreshold(bytes int) error {
	if bytes < 1 || bytes > MaxMmapThreshold {
		return fmt.Errorf("mmap threshold: got %d bytes; expected 1 to %d", bytes, MaxMmapThreshold)
	}
	for _, name := range mallocSettings {
		if _, ok := os.LookupEnv(name); ok {
			return fmt.Errorf("mmap threshold: %s is set in the environment, which decides", name)
		}
	}
	tunables := strings.Split(os.Getenv("GLIBC_TUNABLES"), ":")
	if i := slices.IndexFunc(tunables, func(t string) bool {
		return strings.HasPrefix(t, "glibc.malloc.mmap") || strings.HasPrefix(t, "glibc.malloc.trim")
	}); i >= 0 {
		return fmt.Errorf("mmap threshold: GLIBC_TUNABLES has %s, which decides", tunables[i])
	}
	if capi == nil || !capi.setMmapThreshold(bytes) {
		return fmt.Errorf("mmap threshold: the malloc of this process is not glibc's")
	}
	return nil
}
