package tfbind

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
