package matrix

import (
	"fmt"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/nearest"
	"steadyfit/memory"
)

// Remedies are all remedies that the matrix knows, in the order of the report. The
// first changes nothing.
func Remedies() []Remedy {
	slope, peak, reset := memory.LowerSlope, memory.LowerPeak, memory.LowerReset
	knob := func(pairs ...string) map[string]string {
		m := make(map[string]string, len(pairs)/2)
		for i := 0; i+1 < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	// What a ConfigProto sets has other names in Keras.
	onKeras := func(pairs ...string) map[string]Applied { return map[string]Applied{Keras: {Params: knob(pairs...)}} }
	const untold = "TensorFlow does not tell what it made of it"
	inGo, inKeras := []string{Go, Galeone}, []string{Keras}
	return []Remedy{
		{ID: Baseline, Group: "baseline", Title: "as it is", Goal: slope},

		{ID: "close", Group: "lifetimes", Title: "close tensors when they are done with", Goal: slope, Params: knob("release", "close"), Runtimes: []string{Go}},
		{ID: "drop", Group: "lifetimes", Title: "set references to nil", Goal: slope, Params: knob("release", "drop"), Runtimes: inGo},
		{ID: "gc-epoch", Group: "lifetimes", Title: "collect garbage after each epoch", Goal: slope, Params: knob("gc", "epoch")},
		{ID: "gc-step", Group: "lifetimes", Title: "collect garbage after each step", Goal: slope, Params: knob("gc", "step"), Runtimes: inGo}, // 0.2 s a step in Python
		{ID: "gogc-20", Group: "lifetimes", Title: "GOGC=20", Goal: slope, Env: knob("GOGC", "20"), Runtimes: inGo},
		{ID: "gomemlimit", Group: "lifetimes", Title: "GOMEMLIMIT=256MiB", Goal: slope, Env: knob("GOMEMLIMIT", "256MiB"), Runtimes: inGo},

		{ID: "batch-half", Group: "data", Title: "half the batch", Goal: peak, Params: knob(batchDivide, "2")},
		{ID: "batch-quarter", Group: "data", Title: "a quarter of the batch", Goal: peak, Params: knob(batchDivide, "4")},
		{ID: "micro-2", Group: "data", Title: "2 micro-batches, one update", Goal: peak, Params: knob("micro", "2"), Runtimes: []string{Go}},
		{ID: "micro-4", Group: "data", Title: "4 micro-batches, one update", Goal: peak, Params: knob("micro", "4"), Runtimes: []string{Go}},
		{ID: "buffers", Group: "data", Title: "one input buffer, used again", Goal: slope, Params: knob("input", "buffer")},
		{ID: "prefetch-1", Group: "data", Title: "prefetch 1 batch", Goal: slope, Params: knob("prefetch", "1")},
		{ID: "prefetch-4", Group: "data", Title: "prefetch 4 batches", Goal: slope, Params: knob("prefetch", "4")},
		{ID: "prefetch-16", Group: "data", Title: "prefetch 16 batches", Goal: slope, Params: knob("prefetch", "16")},
		{ID: "stream", Group: "data", Title: "stream the data from disk", Goal: peak, Params: knob("data", "disk")},
		{ID: "graph-data", Group: "data", Title: "in-graph tf.data", Goal: peak, Params: knob("data", "graph")},
		{ID: "pad", Group: "data", Title: "pad shapes to the largest", Goal: slope, Params: knob("shapes", "pad")},
		{ID: "bucket", Group: "data", Title: "round shapes up to powers of two", Goal: slope, Params: knob("shapes", "bucket")},
		{ID: "keep-last", Group: "data", Title: "keep only the last outputs", Goal: slope, Params: knob("history", "last")},

		{ID: "restore", Group: "session", Title: "reset variables in place each epoch", Goal: slope, Params: knob("reset", "restore")},
		{ID: "reload", Group: "session", Title: "close and reload with state each epoch", Goal: slope, Params: knob("reset", "reload")},
		{ID: "process", Group: "session", Title: "a child process each epoch", Goal: slope, Params: knob("reset", "process")},
		{ID: "close-session", Group: "session", Title: "close the session only", Goal: slope, Params: knob("close", "session"), Runtimes: inGo},
		{ID: "close-all", Group: "session", Title: "close session, graph and buffers", Goal: slope, Params: knob("close", "all"), Runtimes: []string{Go}},
		{ID: "reuse", Group: "session", Title: "load once, use again", Goal: slope, Params: knob("reuse", "1")},
		{ID: "sealed", Group: "session", Title: "graph sealed after building", Goal: slope, Params: knob("graph", "sealed")},
		{ID: "fixed-fetches", Group: "session", Title: "one fixed list of fetches", Goal: slope, Params: knob("fetches", "fixed")},
		{ID: "inter-1", Group: "session", Title: "one inter-op thread", Goal: slope, Device: &gpuopts.Options{InterThreads: 1}, On: onKeras("inter", "1"), PoolThreads: 1},
		{ID: "intra-1", Group: "session", Title: "one intra-op thread", Goal: slope, Device: &gpuopts.Options{IntraThreads: 1}, On: onKeras("intra", "1"), Unseen: "threads that share an operation have no name to count them by"},
		{ID: "session-threads", Group: "session", Title: "threads of its own for each session", Goal: slope, Device: &gpuopts.Options{PerSessionThreads: true}},
		{ID: "one-goroutine", Group: "session", Title: "allocate from one goroutine", Goal: slope, Params: knob("goroutines", "1")},

		{ID: "trim", Group: "allocator", Title: "malloc_trim each epoch", Goal: reset, Params: knob("trim", "epoch")},
		{ID: "arenas-1", Group: "allocator", Title: "MALLOC_ARENA_MAX=1", Goal: reset, Env: knob("MALLOC_ARENA_MAX", "1")},
		{ID: "arenas-2", Group: "allocator", Title: "MALLOC_ARENA_MAX=2", Goal: reset, Env: knob("MALLOC_ARENA_MAX", "2")},
		{ID: "arenas-4", Group: "allocator", Title: "MALLOC_ARENA_MAX=4", Goal: reset, Env: knob("MALLOC_ARENA_MAX", "4")},
		{ID: "mmap-64k", Group: "allocator", Title: "MALLOC_MMAP_THRESHOLD_=65536", Goal: reset, Env: knob("MALLOC_MMAP_THRESHOLD_", "65536")},
		{ID: "trim-0", Group: "allocator", Title: "MALLOC_TRIM_THRESHOLD_=0", Goal: reset, Env: knob("MALLOC_TRIM_THRESHOLD_", "0")},
		{ID: "jemalloc", Group: "allocator", Title: "jemalloc", Goal: reset, Preload: "jemalloc"},
		{ID: "jemalloc-eager", Group: "allocator", Title: "jemalloc, returning at once", Goal: reset, Preload: "jemalloc", Env: knob("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")},
		{ID: "jemalloc-purge", Group: "allocator", Title: "jemalloc, purged each epoch", Goal: reset, Preload: "jemalloc", Params: knob("trim", "epoch")},
		{ID: "tcmalloc", Group: "allocator", Title: "tcmalloc", Goal: reset, Preload: "tcmalloc"},
		{ID: "tcmalloc-release", Group: "allocator", Title: "tcmalloc, returning fast (TCMALLOC_RELEASE_RATE=10)", Goal: reset, Preload: "tcmalloc", Env: knob("TCMALLOC_RELEASE_RATE", "10")},
		{ID: "mimalloc", Group: "allocator", Title: "mimalloc", Goal: reset, Preload: "mimalloc"},
		// The name of version 2.0 and older, which 2.1 and newer still read.
		{ID: "mimalloc-eager", Group: "allocator", Title: "mimalloc, returning at once (MIMALLOC_RESET_DELAY=0)", Goal: reset, Preload: "mimalloc", Env: knob("MIMALLOC_RESET_DELAY", "0")},
		{ID: "system-allocator", Group: "allocator", Title: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1", Goal: reset, Env: knob("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")},
		{ID: "pool-cap", Group: "allocator", Title: "TF_MKL_ALLOC_MAX_BYTES of 300 MB", Goal: peak, Env: knob("TF_MKL_ALLOC_MAX_BYTES", "300000000")},
		{ID: "cpu-bfc", Group: "allocator", Title: "TF_CPU_ALLOCATOR_USE_BFC=1", Goal: slope, Env: knob("TF_CPU_ALLOCATOR_USE_BFC", "1")},

		{ID: "onednn-off", Group: "runtime", Title: "TF_ENABLE_ONEDNN_OPTS=0", Goal: reset, Env: knob("TF_ENABLE_ONEDNN_OPTS", "0"), Traced: map[string]bool{worker.FactOneDNN: false}},
		{ID: "primitive-cache-1", Group: "runtime", Title: "ONEDNN_PRIMITIVE_CACHE_CAPACITY=1", Goal: slope, Env: knob("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1")},
		{ID: "primitive-memuse", Group: "runtime", Title: "cache primitives with large buffers, too (TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE=false)", Goal: slope, Env: knob("TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE", "false")},
		{ID: "grappler-off", Group: "runtime", Title: "graph rewriting off", Goal: peak, Device: &gpuopts.Options{GrapplerOff: true}, On: onKeras("grappler", "0"), Traced: map[string]bool{worker.FactCalls: true}},
		{ID: "single-executor", Group: "runtime", Title: "single-threaded executor", Goal: peak, Device: &gpuopts.Options{Executor: gpuopts.SingleThreaded}, Traced: map[string]bool{worker.FactOperations: false}},
		rewriting("layout", "layouts", gpuopts.Grappler{Layout: gpuopts.Off}),
		rewriting("folding", "constant folding", gpuopts.Grappler{ConstantFolding: gpuopts.Off}),
		rewriting("shapes", "shapes", gpuopts.Grappler{Shapes: gpuopts.Off}),
		rewriting("remapping", "remapping, which fuses operations", gpuopts.Grappler{Remapping: gpuopts.Off}),
		rewriting("subgraphs", "common subgraphs", gpuopts.Grappler{CommonSubgraphs: gpuopts.Off}),
		rewriting("arithmetic", "arithmetic", gpuopts.Grappler{Arithmetic: gpuopts.Off}),
		rewriting("dependencies", "dependencies", gpuopts.Grappler{Dependencies: gpuopts.Off}),
		rewriting("loops", "loops", gpuopts.Grappler{Loops: gpuopts.Off}),
		rewriting("functions", "functions", gpuopts.Grappler{Functions: gpuopts.Off}),
		rewriting("implementations", "implementations", gpuopts.Grappler{Implementations: gpuopts.Off}),
		rewriting("conditional", "conditional code", gpuopts.Grappler{ConditionalCode: gpuopts.Off}),
		rewriting("pruning", "pruning", gpuopts.Grappler{PruningOff: true}),
		{ID: "recompute", Group: "runtime", Title: "memory_optimization: recomputation", Goal: peak, Device: &gpuopts.Options{MemoryOptimization: gpuopts.MemoryRecomputation}, Traced: map[string]bool{worker.FactRecomputed: true}},
		{ID: "memory-heuristics", Group: "runtime", Title: "memory_optimization: all heuristics", Goal: peak, Device: &gpuopts.Options{MemoryOptimization: gpuopts.MemoryHeuristics}, Traced: map[string]bool{worker.FactRecomputed: true}},
		{ID: "memory-none", Group: "runtime", Title: "memory_optimization: none", Goal: peak, Device: &gpuopts.Options{MemoryOptimization: gpuopts.MemoryNone}, OtherGraph: true},
		{ID: "memory-swapping", Group: "runtime", Title: "memory_optimization: swapping only, which is part of the default", Goal: peak, Device: &gpuopts.Options{MemoryOptimization: gpuopts.MemorySwapping}, OtherGraph: true},
		{ID: "memory-scheduling", Group: "runtime", Title: "memory_optimization: scheduling only, which is part of the default", Goal: peak, Device: &gpuopts.Options{MemoryOptimization: gpuopts.MemoryScheduling}, Unseen: "a trace does not show why operations ran in their order"},
		{ID: "xla", Group: "runtime", Title: "XLA for the whole graph", Goal: peak, Device: &gpuopts.Options{XLA: gpuopts.XLAOn2}, On: onKeras("jit", "1"), Traced: map[string]bool{worker.FactClusters: true}},
		{ID: "xla-min-cluster", Group: "runtime", Title: "XLA for parts of 32 operations and more (tf_xla_min_cluster_size)", Goal: peak, Device: &gpuopts.Options{XLA: gpuopts.XLAOn2}, Env: knob("TF_XLA_FLAGS", "--tf_xla_min_cluster_size=32"), Runtimes: inGo, Traced: map[string]bool{worker.FactClusters: true}},
		{ID: "xla-off", Group: "runtime", Title: "XLA off", Goal: slope, Params: knob("jit", "off")},
		{ID: "eager", Group: "runtime", Title: "functions run eagerly, operation by operation", Goal: peak, Params: knob("eager", "1"), Runtimes: []string{Go, Keras}},

		{ID: "deterministic", Group: "runtime", Title: "TF_DETERMINISTIC_OPS=1", Goal: peak, Env: knob("TF_DETERMINISTIC_OPS", "1")},
		{ID: "log-all", Group: "runtime", Title: "all that TensorFlow logs (TF_CPP_MIN_LOG_LEVEL=0)", Goal: peak, Env: knob("TF_CPP_MIN_LOG_LEVEL", "0")},

		{ID: "bf16", Group: "precision", Title: "bfloat16 by rewriting the graph", Goal: peak, Device: &gpuopts.Options{Precision: gpuopts.BFloat16}, On: onKeras("bf16", "1"), Traced: map[string]bool{worker.FactBFloat16: true}},
		{ID: "fp16", Group: "precision", Title: "float16 by rewriting the graph", Goal: peak, Device: &gpuopts.Options{Precision: gpuopts.Float16CPU}, Traced: map[string]bool{worker.FactFloat16: true}},
		{ID: "bf16-math", Group: "precision", Title: "products of float32 in bfloat16 (TF_SET_ONEDNN_FPMATH_MODE=BF16)", Goal: peak, Env: knob("TF_SET_ONEDNN_FPMATH_MODE", "BF16"), OtherLoss: true},

		{ID: "memory-growth", Group: "gpu", Title: "allow_growth", Goal: memory.LowerGPU, Device: &gpuopts.Options{MemoryGrowth: true}, NeedsGPU: true, Unseen: untold},
		{ID: "memory-fraction", Group: "gpu", Title: "memory fraction of 0.5", Goal: memory.LowerGPU, Device: &gpuopts.Options{MemoryFraction: 0.5}, NeedsGPU: true, Unseen: untold},
		{ID: "gpu-limit", Group: "gpu", Title: "a virtual GPU of 2 GiB", Goal: memory.LowerGPU, Device: &gpuopts.Options{VirtualGPUs: [][]int{{2048}}}, NeedsGPU: true, Unseen: untold},
		{ID: "fp16-gpu", Group: "gpu", Title: "float16 by rewriting the graph, for a GPU", Goal: memory.LowerGPU, Device: &gpuopts.Options{Precision: gpuopts.Float16GPU}, NeedsGPU: true, Traced: map[string]bool{worker.FactFloat16: true}},
		{ID: "cuda-async", Group: "gpu", Title: "TF_GPU_ALLOCATOR=cuda_malloc_async", Goal: memory.LowerGPU, Env: knob("TF_GPU_ALLOCATOR", "cuda_malloc_async"), NeedsGPU: true},
		{ID: "unified-memory", Group: "gpu", Title: "unified memory", Goal: memory.LowerGPU, Device: &gpuopts.Options{UnifiedMemory: true}, NeedsGPU: true, Unseen: untold},
		{ID: "bfc-gc", Group: "gpu", Title: "no garbage collection in the GPU's pool (TF_ENABLE_GPU_GARBAGE_COLLECTION=false)", Goal: memory.LowerGPU, Env: knob("TF_ENABLE_GPU_GARBAGE_COLLECTION", "false"), NeedsGPU: true},
		{ID: "host-limit", Group: "gpu", Title: "TF_GPU_HOST_MEM_LIMIT_IN_MB=256", Goal: peak, Env: knob("TF_GPU_HOST_MEM_LIMIT_IN_MB", "256"), NeedsGPU: true},

		{ID: "clear-session", Group: "keras", Title: "clear_session each epoch", Goal: slope, Params: knob("clear_session", "epoch"), Runtimes: inKeras},
		{ID: "own-loop", Group: "keras", Title: "own tf.function step", Goal: slope, Params: knob("loop", "function"), Runtimes: inKeras},
		{ID: "own-loop-del", Group: "keras", Title: "tf.function step with del of everything", Goal: slope, Params: knob("loop", "function", "del", "1"), Runtimes: inKeras},
		{ID: "train-on-batch", Group: "keras", Title: "train_on_batch", Goal: slope, Params: knob("loop", "train_on_batch"), Runtimes: inKeras},
		{ID: "generator", Group: "keras", Title: "a Python generator", Goal: slope, Params: knob("data", "generator"), Runtimes: inKeras},
		{ID: "tf-data", Group: "keras", Title: "tf.data", Goal: slope, Params: knob("data", "tfdata"), Runtimes: inKeras},
		{ID: "prefetch-auto", Group: "keras", Title: "tf.data with prefetch(AUTOTUNE)", Goal: slope, Params: knob("data", "tfdata", "prefetch", "auto"), Runtimes: inKeras},
		{ID: "cache", Group: "keras", Title: "tf.data with cache()", Goal: slope, Params: knob("data", "tfdata", "cache", "1"), Runtimes: inKeras},
		{ID: "from-generator", Group: "keras", Title: "tf.data from a Python generator", Goal: slope, Params: knob("data", "from_generator"), Runtimes: inKeras},
		{ID: "hoard", Group: "keras", Title: "a callback that keeps its logs", Goal: slope, Params: knob("callback", "hoard"), Runtimes: inKeras},
		{ID: "mixed-bf16", Group: "keras", Title: "policy mixed_bfloat16", Goal: peak, Params: knob("mixed", "mixed_bfloat16"), Runtimes: inKeras},
		{ID: "mixed-fp16", Group: "keras", Title: "policy mixed_float16", Goal: peak, Params: knob("mixed", "mixed_float16"), Runtimes: inKeras},

		{ID: "system-trim", Group: "combination", Title: "system allocator, malloc_trim each epoch", Goal: reset, Env: knob("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1"), Params: knob("trim", "epoch")},
		{ID: "release", Group: "combination", Title: "release profile: large blocks from malloc, which keeps them until malloc_trim each epoch", Goal: reset, Params: knob("trim", "epoch"),
			Env: knob("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1", "MALLOC_ARENA_MAX", "1", "MALLOC_MMAP_MAX_", "0", "MALLOC_TRIM_THRESHOLD_", "1099511627776")},
		{ID: "system-jemalloc", Group: "combination", Title: "system allocator and jemalloc", Goal: reset, Env: knob("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1"), Preload: "jemalloc"},
		{ID: "micro-4-bf16", Group: "combination", Title: "4 micro-batches in bfloat16", Goal: peak, Params: knob("micro", "4"), Device: &gpuopts.Options{Precision: gpuopts.BFloat16}, Runtimes: []string{Go}, Traced: map[string]bool{worker.FactBFloat16: true}},
	}
}

// rewriting is the remedy of leaving out one of Grappler's rewritings.
func rewriting(id, what string, without gpuopts.Grappler) Remedy {
	return Remedy{ID: "no-" + id, Group: "runtime", Title: "graph rewriting without " + what, Goal: memory.LowerPeak,
		Device: &gpuopts.Options{Grappler: without}, OtherGraph: true}
}

// batchDivide is the one knob that the parent turns itself, since it is the same
// for all runtimes: the batch of the Spec is divided by it, and nothing else; see
// worker.Spec.SetSize.
const batchDivide = "batch_divide"

// FindRemedy finds a remedy by its ID; the error offers the nearest ones.
func FindRemedy(id string) (Remedy, error) {
	var names []string
	for _, r := range Remedies() {
		if r.ID == id {
			return r, nil
		}
		names = append(names, r.ID)
	}
	names = nearest.Sort(id, names)
	return Remedy{}, fmt.Errorf("%w: remedy %q; the nearest are %s", ErrUnknown, id, strings.Join(names[:min(5, len(names))], ", "))
}
