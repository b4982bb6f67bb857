// Package gpuopts translates settings of TensorFlow's devices and graph execution into a serialized
// tensorflow.ConfigProto and, for some settings, environment variables. An Options{} leaves every
// choice to TensorFlow.
//
// The package is pure Go, changes nothing and does not examine the machine, so GPU settings are valid
// on a machine without GPUs. session.Open rejects options that require a GPU (Options.ForGPU) if
// there is none.
//
// Options.ConfigProto goes into every session. Options.Environment lists variables, which [With]
// adds to an environment before TensorFlow is opened (session.UseEnvironment). Options.Check finds
// contradictions, which are errors, and settings without effect, which are warnings. TensorFlow
// reads variables when it is opened, and settings of devices and threads at the first session. A
// different setting after that is ErrTooLate.
//
// Statements about variables come from the cited source files of TensorFlow 2.21 and the strings in its
// library.
package gpuopts

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/tfproto"
	"steadyfit/option"
)

// Options are the settings of one session. TensorFlow sets up devices and threads once per process, for
// the first session, and reads the environment once.
type Options struct {
	// IntraThreads is the number of threads for one operation; 0 means TF_NUM_INTRAOP_THREADS, or
	// one per core. The first session creates the thread pool.
	IntraThreads int `json:",omitzero"`
	// InterThreads is the number of operations that run in parallel; 0 means
	// TF_NUM_INTEROP_THREADS, or one per core. The first session creates the thread pool, unless
	// PerSessionThreads is set.
	InterThreads int `json:",omitzero"`
	// PerSessionThreads gives the session a separate pool of InterThreads
	// (ConfigProto.use_per_session_threads).
	PerSessionThreads bool `json:",omitzero"`
	// Executor selects how the operations of a graph run (ConfigProto.Experimental.executor_type):
	// SingleThreaded, or empty for TensorFlow's default, which runs operations in parallel.
	Executor string `json:",omitzero"`

	// GrapplerOff disables all graph rewriting (RewriterConfig.disable_meta_optimizer). It
	// cannot be combined with Grappler, Precision or MemoryOptimization.
	GrapplerOff bool `json:",omitzero"`
	// Grappler enables or disables single passes of graph rewriting.
	Grappler Grappler `json:",omitzero"`
	// MemoryOptimization rewrites graphs to save memory (RewriterConfig.memory_optimization):
	// "none", "manual" (follows annotations), "swapping", "recomputation", "scheduling", or
	// "heuristics" (chooses). Empty means swapping from GPU to host, and scheduling.
	MemoryOptimization string `json:",omitzero"`
	// Precision rewrites graphs to compute in 16 bits where TensorFlow considers it safe. The
	// types of variables stay unchanged.
	Precision Precision `json:",omitzero"`
	// XLA compiles parts of graphs: "off", "on-1" or "on-2" (OptimizerOptions.global_jit_level).
	// The last two also set cpu_global_jit, which TensorFlow needs on a CPU. Empty means off, unless
	// --tf_xla_auto_jit in TF_XLA_FLAGS overrides the level (xla_cluster_util.cc). Functions
	// exported with jit_compile are always compiled.
	XLA string `json:",omitzero"`

	// MemoryGrowth allocates GPU memory as needed, instead of nearly all at the start
	// (GPUOptions.allow_growth). TensorFlow uses one value for all GPUs, and returns no memory
	// before the process ends.
	MemoryGrowth bool `json:",omitzero"`
	// MemoryFraction is the fraction of each GPU's memory that TensorFlow may use, above 0 and up to
	// 1; 0 means TensorFlow's default. With MemoryGrowth it must be below 1. With UnifiedMemory it
	// may be above 1.
	MemoryFraction float64 `json:",omitzero"`
	// VisibleGPUs are the indices of the GPUs to use, in the order of nvidia-smi; empty means all.
	// CUDA's default order differs, so the option also sets CUDA_DEVICE_ORDER=PCI_BUS_ID. If
	// CUDA_VISIBLE_DEVICES is set, the indices refer to the GPUs listed there.
	VisibleGPUs []int `json:",omitzero"`
	// VirtualGPUs splits GPUs into devices of a fixed size: for each visible GPU, a list of sizes
	// in MiB. One size limits that GPU; an empty list leaves it whole. It cannot be combined with MemoryFraction.
	VirtualGPUs [][]int `json:",omitzero"`
	// GPUAllocator is the allocator of GPU memory; empty means TensorFlow's default. "BFC" is
	// TensorFlow's own, and returns no memory to the GPU (allocator_type). "cuda_malloc_async"
	// needs CUDA 11.2 (use_cuda_malloc_async). It has no limit, so it excludes MemoryFraction and
	// VirtualGPUs. The variable TF_GPU_ALLOCATOR overrides the option (gpu_process_state.cc).
	GPUAllocator string `json:",omitzero"`
	// UnifiedMemory uses memory that CUDA can move to the host
	// (GPUOptions.Experimental.use_unified_memory). With a MemoryFraction above 1, the pool exceeds
	// the GPU's memory (gpu_device.cc). It needs BFC and compute capability 6.0.
	UnifiedMemory bool `json:",omitzero"`

	// OneDNN is "on" or "off". Empty lets TensorFlow decide by the processor
	// (TF_ENABLE_ONEDNN_OPTS, port.cc).
	OneDNN string `json:",omitzero"`
	// OneDNNSystemAllocator allocates oneDNN's large blocks with malloc, instead of from a pool
	// that never returns memory (TF_ONEDNN_USE_SYSTEM_ALLOCATOR, onednn_env_vars.cc).
	OneDNNSystemAllocator bool `json:",omitzero"`
	// OneDNNMath is the type in which oneDNN multiplies and convolves float32 values: empty for
	// float32, or "bfloat16", which rounds factors (TF_SET_ONEDNN_FPMATH_MODE=BF16, the only value
	// in mkl_util.h). Precision, in contrast, rewrites the graph.
	OneDNNMath string `json:",omitzero"`

	// Deterministic makes operations repeatable but slower. Operations that cannot be repeatable
	// fail (TF_DETERMINISTIC_OPS, determinism.cc).
	Deterministic bool `json:",omitzero"`
	// LogLevel is the lowest level of TensorFlow's log messages (TF_CPP_MIN_LOG_LEVEL): "info",
	// "warning", "error" or "fatal".
	LogLevel string `json:",omitzero"`
}

// Values of options.
const (
	on, off              = "on", "off"
	xlaOn1, xlaOn2       = "on-1", "on-2"
	bfc, cudaMallocAsync = "BFC", "cuda_malloc_async"
)

// aggressive enables a pass that relies on assumptions about the graph that may not hold.
const aggressive = "aggressive"

// Grappler enables or disables single passes of graph rewriting (RewriterConfig). The values are
// "on", "off" and "aggressive". An aggressive pass makes assumptions that may not hold, such as that
// fed values have the shape of their placeholder (rewriter_config.proto).
type Grappler struct {
	Layout, ConstantFolding, Shapes, Remapping, CommonSubgraphs, Arithmetic string `json:",omitzero"`
	Dependencies, Loops, Functions, Implementations, ConditionalCode        string `json:",omitzero"`
	// PruningOff keeps operations whose results are not used (disable_model_pruning).
	PruningOff bool `json:",omitzero"`
}

// SingleThreaded is an Executor. It runs all operations in sequence in the calling thread. It cannot
// run Switch and Merge, the control flow of TensorFlow 1, so TensorFlow keeps loops as functions.
// Operations in these functions may round differently.
const SingleThreaded = "SINGLE_THREADED_EXECUTOR"

// Precision is a rewriting of graphs to 16-bit types. Empty means no rewriting.
type Precision string

const (
	// BFloat16 works on CPUs with oneDNN (auto_mixed_precision_onednn_bfloat16).
	BFloat16 Precision = "bfloat16"
	// Float16CPU stores float16 and computes in float32 on CPUs (auto_mixed_precision_cpu,
	// rewriter_config.proto). It turns Grappler.CommonSubgraphs off by default, since TensorFlow
	// 2.21 otherwise aborts on two consecutive convolutions, as in the built-in digits-cnn.
	Float16CPU Precision = "float16-cpu"
	// Float16GPU works on GPUs, and on CPUs whose oneDNN supports float16 (auto_mixed_precision,
	// meta_optimizer.cc). It does not scale the loss.
	Float16GPU Precision = "float16-gpu"
	// Float16 means Float16GPU if TensorFlow has a GPU, and otherwise Float16CPU. Package session
	// chooses one.
	Float16 Precision = "float16"
)

// setting returns an option with its value, such as "Options.MemoryFraction 0.5", or "" if the option
// is not set.
func (o Options) setting(field string) string {
	v := reflect.ValueOf(o).FieldByName(field)
	if v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("Options.%s %v", field, v)
}

func (o Options) settings(fields ...string) (list []string) {
	for _, f := range fields {
		if s := o.setting(f); s != "" {
			list = append(list, s)
		}
	}
	return list
}

// ForGPU returns the options for GPUs that are set, with their values, such as "Options.VisibleGPUs [0]".
// Options in required need a GPU. Options in ignored have no effect without one, so the same Options also
// work on machines without GPUs.
func (o Options) ForGPU() (required, ignored []string) {
	return o.settings("VisibleGPUs", "VirtualGPUs", "GPUAllocator"),
		o.settings("MemoryGrowth", "MemoryFraction", "UnifiedMemory")
}

// ConfigProto returns the options as a serialized tensorflow.ConfigProto. It does not include the
// settings of Environment.
func (o Options) ConfigProto() ([]byte, error) {
	if err := o.valid(); err != nil {
		return nil, err
	}
	config := &tfproto.ConfigProto{
		IntraOpParallelismThreads: int32(o.IntraThreads),
		InterOpParallelismThreads: int32(o.InterThreads),
		UsePerSessionThreads:      o.PerSessionThreads,
	}
	if o.Executor != "" {
		config.Experimental = &tfproto.ConfigProto_Experimental{ExecutorType: string(o.Executor)}
	}
	if graph := o.graph(); proto.Size(graph) > 0 {
		config.GraphOptions = graph
	}
	if gpu := o.gpu(); proto.Size(gpu) > 0 {
		config.GpuOptions = gpu
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(config)
}

func (o Options) graph() *tfproto.GraphOptions {
	graph := &tfproto.GraphOptions{}
	switch o.XLA {
	case off:
		graph.OptimizerOptions = &tfproto.OptimizerOptions{GlobalJitLevel: tfproto.OptimizerOptions_OFF}
	case xlaOn1:
		graph.OptimizerOptions = &tfproto.OptimizerOptions{GlobalJitLevel: tfproto.OptimizerOptions_ON_1, CpuGlobalJit: true}
	case xlaOn2:
		graph.OptimizerOptions = &tfproto.OptimizerOptions{GlobalJitLevel: tfproto.OptimizerOptions_ON_2, CpuGlobalJit: true}
	}
	rewrite := &tfproto.RewriterConfig{DisableMetaOptimizer: o.GrapplerOff, DisableModelPruning: o.Grappler.PruningOff}
	for _, r := range o.Grappler.switches(rewrite) {
		*r.toggle = toggles[r.position]
	}
	switch o.Precision {
	case BFloat16:
		rewrite.AutoMixedPrecisionOnednnBfloat16 = tfproto.RewriterConfig_ON
	case Float16CPU:
		rewrite.AutoMixedPrecisionCpu = tfproto.RewriterConfig_ON
		if o.Grappler.CommonSubgraphs == "" {
			rewrite.CommonSubgraphElimination = tfproto.RewriterConfig_OFF
		}
	case Float16GPU:
		rewrite.AutoMixedPrecision = tfproto.RewriterConfig_ON
	}
	rewrite.MemoryOptimization = memoryOptimizations[o.MemoryOptimization]
	switch o.MemoryOptimization {
	case "manual", "recomputation", "heuristics":
		// To recompute activations, TensorFlow 2.21 looks for gradients under gradients/, their name
		// in TensorFlow 1. In TensorFlow 2 they are under gradient_tape/.
		rewrite.MemoryOptimizerTargetNodeNameScope = "gradient_tape/"
	}
	if proto.Size(rewrite) > 0 {
		graph.RewriteOptions = rewrite
	}
	return graph
}

var memoryOptimizations = map[string]tfproto.RewriterConfig_MemOptType{
	"none": tfproto.RewriterConfig_NO_MEM_OPT, "manual": tfproto.RewriterConfig_MANUAL,
	"swapping":      tfproto.RewriterConfig_SWAPPING_HEURISTICS,
	"recomputation": tfproto.RewriterConfig_RECOMPUTATION_HEURISTICS,
	"scheduling":    tfproto.RewriterConfig_SCHEDULING_HEURISTICS, "heuristics": tfproto.RewriterConfig_HEURISTICS,
}

var toggles = map[string]tfproto.RewriterConfig_Toggle{
	on: tfproto.RewriterConfig_ON, off: tfproto.RewriterConfig_OFF, aggressive: tfproto.RewriterConfig_AGGRESSIVE,
}

// rewriting is a pass of graph rewriting that is set, with its field in a configuration.
type rewriting struct {
	name     string
	position string
	toggle   *tfproto.RewriterConfig_Toggle
}

// switches returns the passes that are set.
func (g Grappler) switches(c *tfproto.RewriterConfig) []rewriting {
	all := []rewriting{
		{"Layout", g.Layout, &c.LayoutOptimizer},
		{"ConstantFolding", g.ConstantFolding, &c.ConstantFolding},
		{"Shapes", g.Shapes, &c.ShapeOptimization},
		{"Remapping", g.Remapping, &c.Remapping},
		{"CommonSubgraphs", g.CommonSubgraphs, &c.CommonSubgraphElimination},
		{"Arithmetic", g.Arithmetic, &c.ArithmeticOptimization},
		{"Dependencies", g.Dependencies, &c.DependencyOptimization},
		{"Loops", g.Loops, &c.LoopOptimization},
		{"Functions", g.Functions, &c.FunctionOptimization},
		{"Implementations", g.Implementations, &c.ImplementationSelector},
		{"ConditionalCode", g.ConditionalCode, &c.ExperimentalConditionalCodeMotion},
	}
	return slices.DeleteFunc(all, func(r rewriting) bool { return r.position == "" })
}

// setting returns the first switch that is set, with its value, or "".
func (g Grappler) setting() string {
	for _, r := range g.switches(&tfproto.RewriterConfig{}) {
		return fmt.Sprintf("Options.Grappler.%s %s", r.name, r.position)
	}
	return when(g.PruningOff, "Options.Grappler.PruningOff true")
}

func (o Options) gpu() *tfproto.GPUOptions {
	visible := make([]string, len(o.VisibleGPUs))
	for i, gpu := range o.VisibleGPUs {
		visible[i] = strconv.Itoa(gpu)
	}
	gpu := &tfproto.GPUOptions{
		AllowGrowth:                 o.MemoryGrowth,
		PerProcessGpuMemoryFraction: o.MemoryFraction,
		VisibleDeviceList:           strings.Join(visible, ","),
	}
	if o.GPUAllocator == bfc {
		gpu.AllocatorType = bfc
	}
	experimental := &tfproto.GPUOptions_Experimental{
		UseUnifiedMemory:   o.UnifiedMemory,
		UseCudaMallocAsync: o.GPUAllocator == cudaMallocAsync,
	}
	for _, sizes := range o.VirtualGPUs {
		devices := &tfproto.GPUOptions_Experimental_VirtualDevices{}
		for _, size := range sizes {
			devices.MemoryLimitMb = append(devices.MemoryLimitMb, float32(size))
		}
		experimental.VirtualDevices = append(experimental.VirtualDevices, devices)
	}
	if proto.Size(experimental) > 0 {
		gpu.Experimental = experimental
	}
	return gpu
}

// maxThreads is the maximum size of a thread pool. TensorFlow starts all threads, and aborts the process
// if the system refuses one.
const maxThreads = 1024

func (o Options) valid() error {
	for _, err := range []error{
		among("Executor", o.Executor, SingleThreaded),
		among("XLA", o.XLA, off, xlaOn1, xlaOn2),
		among("Precision", o.Precision, BFloat16, Float16, Float16CPU, Float16GPU),
		among("MemoryOptimization", o.MemoryOptimization,
			"none", "manual", "swapping", "recomputation", "scheduling", "heuristics"),
		among("GPUAllocator", o.GPUAllocator, bfc, cudaMallocAsync),
		among("OneDNN", o.OneDNN, on, off),
		among("OneDNNMath", o.OneDNNMath, "bfloat16"),
		among("LogLevel", o.LogLevel, logLevels...),
	} {
		if err != nil {
			return err
		}
	}
	for _, r := range o.Grappler.switches(&tfproto.RewriterConfig{}) {
		if err := among("Grappler."+r.name, r.position, on, off, aggressive); err != nil {
			return err
		}
	}
	for _, threads := range []struct {
		field string
		value int
	}{{"IntraThreads", o.IntraThreads}, {"InterThreads", o.InterThreads}} {
		if threads.value < 0 || threads.value > maxThreads {
			return refused(threads.field, threads.value, fmt.Sprintf("0 (one per core) to %d", maxThreads))
		}
	}
	expected, most := "a number above 0 and up to 1, or 0 for TensorFlow's default", 1.0
	if o.UnifiedMemory {
		expected, most = "a number above 0, or 0 for TensorFlow's default", math.MaxFloat64
	}
	if !(o.MemoryFraction >= 0 && o.MemoryFraction <= most) { // NaN is invalid too
		return refused("MemoryFraction", o.MemoryFraction, expected)
	}
	for i, gpu := range o.VisibleGPUs {
		switch {
		case gpu < 0:
			return refused("VisibleGPUs", o.VisibleGPUs, "indices from 0")
		case slices.Contains(o.VisibleGPUs[:i], gpu):
			return refused("VisibleGPUs", o.VisibleGPUs, "each index once")
		}
	}
	if slices.ContainsFunc(slices.Concat(o.VirtualGPUs...), func(size int) bool { return size <= 0 }) {
		return refused("VirtualGPUs", o.VirtualGPUs, "sizes of 1 MiB or more")
	}
	return o.excluded()
}

func among[T ~string](name string, value T, known ...T) error {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	return refused(name, value, fmt.Sprintf("one of %q, or empty for TensorFlow's default", known))
}

func refused(name string, value any, expected string) error {
	return &option.Error{Option: "Options." + name, Value: value, Reason: "expected " + expected}
}
