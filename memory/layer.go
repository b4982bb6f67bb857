package memory

// Layer names an amount of a [Sample]. The name determines the unit: names that end in " count" are
// counts, names that end in " time" are nanoseconds, and all other amounts are bytes. A final name in
// parentheses marks a part of a layer, as in "gpu used (0)".
//
// A [Source] may add any layer. The cause of growth is found in these: "malloc in use", "malloc free",
// "live native bytes" and "live native count" (native objects that are not released), and "waiting native
// bytes" and "waiting native count" (unreachable ones that wait for the garbage collector).
type Layer string

// Layers that a program may judge or add. A [Sampler] adds further ones: of /proc/PID/status ("file",
// "shared memory", "swap", "peak rss", "thread count"), of the control group ("cgroup in use", "cgroup
// limit"), of the Go runtime of this process ("go heap", "go heap live", "go total", "waiting cleanup
// count", "gc cycle count", "goroutine count"), and "step time".
const (
	RSS  Layer = "rss"  // resident memory: anonymous, of files and shared
	Anon Layer = "anon" // anonymous memory: heaps and stacks

	MallocUsed Layer = "malloc in use" // allocated by the program
	MallocFree Layer = "malloc free"   // free, but not returned to the system
)
