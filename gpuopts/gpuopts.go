// Package gpuopts turns settings of TensorFlow's devices and of how it runs a
// graph into what TensorFlow reads: the bytes of a tensorflow.ConfigProto, and
// environment variables for what it reads from nowhere else. Its values are plain
// structs with useful zeros: an Options{} leaves every choice to TensorFlow.
//
// It decides nothing, changes nothing and does not look at the machine: a setting
// for a GPU is valid here where there is none. session.Open refuses those that ask for
// one (Options.AsksForGPU) there. It is pure Go.
//
// A value flows like this. Options.ConfigProto goes into every session.
// Options.Environment lists variables, which [With] puts into an environment; they
// have to be there before TensorFlow is opened, which session.UseEnvironment and
// session.Open see to. Options.Check compares the options with each other and with
// an environment: what contradicts itself is an *option.Error that names both sides,
// what is set to no effect a warning. What TensorFlow has settled already is
// ErrTooLate: variables once it is open, devices and threads once the process has
// had a session ([Later]).
//
// What is said of variables was read in TensorFlow's sources, in the files named, and
// looked for in the strings of its library, version 2.21.
package gpuopts

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"steadyfit/option"
)

// Options are settings for one session. TensorFlow sets up its devices and their
// threads once per process, with the options of the first session, and reads the
// environment once; the comments say which settings belong to each session.
type Options struct {
	// IntraThreads is the number of threads that share one operation; 0 means
	// TF_NUM_INTRAOP_THREADS, or else one per core. The pool is made by the first
	// session of the process.
	IntraThreads int `json:",omitzero"`
	// InterThreads is the number of threads that run operations side by side; 0
	// means TF_NUM_INTEROP_THREADS, or else one per core. It too belongs to the first
	// session, unless PerSessionThreads is set.
	InterThreads int `json:",omitzero"`
	// PerSessionThreads gives the session a pool of InterThreads of its own, which
	// ends with it (ConfigProto.use_per_session_threads).
	PerSessionThreads bool `json:",omitzero"`
	// Executor says how the session steps through a graph.
	Executor Executor `json:",omitzero"`

	// GrapplerOff keeps TensorFlow from rewriting the session's graphs before they
	// run (RewriterConfig.disable_meta_optimizer). Grappler, Precision and
	// MemoryOptimization are such rewritings and exclude it.
	GrapplerOff bool `json:",omitzero"`
	// Grappler turns single rewritings of the session's graphs on or off.
	Grappler Grappler `json:",omitzero"`
	// MemoryOptimization says how the session's graphs are rewritten to need less
	// memory.
	MemoryOptimization MemoryOptimization `json:",omitzero"`
	// Precision rewrites the session's graphs to compute in 16 bits where
	// TensorFlow deems it safe. Variables stay as they are.
	Precision Precision `json:",omitzero"`
	// XLA says which parts of the session's graphs are compiled. Functions that
	// were exported with jit_compile are compiled in any case.
	XLA XLA `json:",omitzero"`
	// XLAMinCluster is the least number of operations that XLA compiles together; 0
	// leaves it to TensorFlow. It is for the process (--tf_xla_min_cluster_size of
	// TF_XLA_FLAGS), and does not apply to functions exported with jit_compile.
	XLAMinCluster int `json:",omitzero"`

	// MemoryGrowth makes TensorFlow take GPU memory as it is needed, rather than
	// nearly all at the start (GPUOptions.allow_growth). It is one value for all
	// GPUs, since TensorFlow has no other, and frees nothing before the process ends.
	MemoryGrowth bool `json:",omitzero"`
	// MemoryFraction is the part of each GPU's memory that TensorFlow may take,
	// in (0, 1]; 0 leaves it to TensorFlow. With MemoryGrowth it is the limit of
	// growth, and not 1. With UnifiedMemory it may be above 1: then the pool is larger
	// than the GPU.
	MemoryFraction float64 `json:",omitzero"`
	// VisibleGPUs are the indices of the GPUs to use, in the order of their PCI
	// addresses, which is that of nvidia-smi and NVML: CUDA's own order has the
	// fastest GPU first, so CUDA_DEVICE_ORDER=PCI_BUS_ID comes with it. Empty means
	// all. Where CUDA_VISIBLE_DEVICES is set, they count among those that it shows.
	VisibleGPUs []int `json:",omitzero"`
	// VirtualGPUs splits GPUs into devices of a fixed size: one list for each
	// visible GPU, in it the size of each of its devices in MiB. A list of one
	// number limits that GPU, an empty one leaves it whole. It excludes
	// MemoryFraction.
	VirtualGPUs [][]int `json:",omitzero"`
	// GPUAllocator manages the memory of all GPUs.
	GPUAllocator GPUAllocator `json:",omitzero"`
	// UnifiedMemory takes GPU memory that CUDA may move out to the host's memory
	// (GPUOptions.Experimental.use_unified_memory). The pool is as large as without it:
	// it is a MemoryFraction above 1 that makes it larger than the GPU (gpu_device.cc).
	// It is for BFC, and for GPUs of compute capability 6.0 and more.
	UnifiedMemory bool `json:",omitzero"`
	// HostMemoryLimit is how much pinned memory of the host TensorFlow may take for
	// copies to and from GPUs, in MiB; 0 leaves it to TensorFlow.
	HostMemoryLimit int `json:",omitzero"`
	// GarbageCollection says whether BFC gives regions that are wholly free back to
	// CUDA before it fails for want of memory, which TensorFlow does by default
	// (TF_ENABLE_GPU_GARBAGE_COLLECTION, gpu_bfc_allocator.cc).
	GarbageCollection Switch `json:",omitzero"`
	// DeferredDeletion is how many bytes of GPU memory may await their deletion
	// (GPUOptions.deferred_deletion_bytes). TensorFlow 2.21 takes it and does not
	// look at it (gpu_event_mgr.cc), which Check warns of.
	DeferredDeletion int64 `json:",omitzero"`

	// OneDNN turns oneDNN's operations on or off; "" leaves it to TensorFlow, which
	// goes by the processor (TF_ENABLE_ONEDNN_OPTS, port.cc).
	OneDNN Switch `json:",omitzero"`
	// OneDNNSystemAllocator takes oneDNN's large blocks from malloc rather than from
	// a pool that gives nothing back (TF_ONEDNN_USE_SYSTEM_ALLOCATOR,
	// onednn_env_vars.cc). session.UseReleaseProfile is that and what makes it fast.
	OneDNNSystemAllocator bool `json:",omitzero"`
	// OneDNNPoolLimit is the most that oneDNN's pool may hold, in bytes; 0 is the
	// machine's memory. A step that needs more fails (TF_MKL_ALLOC_MAX_BYTES,
	// mkl_cpu_allocator.h).
	OneDNNPoolLimit int64 `json:",omitzero"`
	// OneDNNMath is what oneDNN may compute products and convolutions of float32 in.
	OneDNNMath Math `json:",omitzero"`

	// Deterministic has operations give the same result each time, or fail where
	// they cannot, at a price in speed (TF_DETERMINISTIC_OPS, determinism.cc).
	Deterministic bool `json:",omitzero"`
	// LogLevel is the least that TensorFlow logs (TF_CPP_MIN_LOG_LEVEL).
	LogLevel LogLevel `json:",omitzero"`
}

// Switch turns something on or off. "" leaves it to TensorFlow.
type Switch string

// The positions.
const (
	On  Switch = "on"
	Off Switch = "off"
	// Aggressive is On, with assumptions that a graph may break, such as that a
	// placeholder is fed what its shape says (rewriter_config.proto). It is for Grappler.
	Aggressive Switch = "aggressive"
)

// Grappler are single rewritings of a graph (RewriterConfig).
type Grappler struct {
	// These are on by default.
	Layout, ConstantFolding, Shapes, Remapping, CommonSubgraphs, Arithmetic Switch `json:",omitzero"`
	Dependencies, Loops, Functions, Implementations, ConditionalCode        Switch `json:",omitzero"`
	// These are off by default.
	DebugStripper, ScopedAllocator, PinToHost Switch `json:",omitzero"`
	// PruningOff keeps operations that nothing needs (disable_model_pruning).
	PruningOff bool `json:",omitzero"`
}

// Math is what computes products of float32.
type Math string

// The ways. "" is float32.
const (
	// BFloat16Math rounds the factors to bfloat16 (TF_SET_ONEDNN_FPMATH_MODE=BF16,
	// the one value that mkl_util.h knows). Precision rewrites the graph instead.
	BFloat16Math Math = "bfloat16"
)

// LogLevel is how grave a line of TensorFlow's log must be.
type LogLevel string

// The levels. "" leaves it to TensorFlow.
const (
	LogInfo    LogLevel = "info"
	LogWarning LogLevel = "warning"
	LogError   LogLevel = "error"
	LogFatal   LogLevel = "fatal"
)

// Executor is how a session steps through a graph
// (ConfigProto.Experimental.executor_type).
type Executor string

// The executors. "" is TensorFlow's default, which runs operations side by side.
const (
	// SingleThreaded runs one operation after the other on the calling thread. It
	// cannot run Switch and Merge, the control flow of TensorFlow 1, so TensorFlow leaves
	// loops as functions for it, whose operations may round differently
	// (session.Rounding).
	SingleThreaded Executor = "SINGLE_THREADED_EXECUTOR"
)

// XLA is how much of a graph is compiled without having been exported so
// (OptimizerOptions.global_jit_level). For a CPU TensorFlow asks for a second
// switch, cpu_global_jit; XLAOn1 and XLAOn2 set it, too.
type XLA string

// The levels. "" is TensorFlow's default, which is off unless TF_XLA_FLAGS in the
// environment says otherwise: its --tf_xla_auto_jit goes before the session's level
// (xla_cluster_util.cc).
const (
	XLAOff XLA = "off"
	XLAOn1 XLA = "on-1"
	XLAOn2 XLA = "on-2"
)

// Precision is a rewriting to 16 bits.
type Precision string

// The rewritings. "" is none.
const (
	// BFloat16 is for CPUs, with oneDNN (auto_mixed_precision_onednn_bfloat16).
	BFloat16 Precision = "bfloat16"
	// Float16CPU is for CPUs: values are float16, what computes them float32
	// (auto_mixed_precision_cpu, rewriter_config.proto). Grappler.CommonSubgraphs is
	// off with it by default: TensorFlow 2.21 aborts the process where both meet two
	// convolutions in a row, as in the evaluate signature of the built-in digits-cnn.
	Float16CPU Precision = "float16-cpu"
	// Float16GPU is for GPUs, and for CPUs whose oneDNN has float16
	// (auto_mixed_precision, meta_optimizer.cc). The loss is not scaled by it.
	Float16GPU Precision = "float16-gpu"
	// Float16 is Float16GPU where TensorFlow has a GPU, and else Float16CPU: package
	// session resolves it before it opens a session.
	Float16 Precision = "float16"
)

// MemoryOptimization is a rewriting to save memory
// (RewriterConfig.memory_optimization).
type MemoryOptimization string

// The rewritings. "" is TensorFlow's default: swapping from a GPU to the host, and
// scheduling (rewriter_config.proto).
//
// Recomputing takes place for what gradients need. By default TensorFlow 2.21 looks
// for gradients under the name that those of TensorFlow 1 have, gradients/, and so
// does nothing; MemoryRecomputation, MemoryManual and MemoryHeuristics also set
// memory_optimizer_target_node_name_scope to gradient_tape/.
const (
	MemoryNone          MemoryOptimization = "none"
	MemoryManual        MemoryOptimization = "manual" // as annotated in the graph
	MemorySwapping      MemoryOptimization = "swapping"
	MemoryRecomputation MemoryOptimization = "recomputation"
	MemoryScheduling    MemoryOptimization = "scheduling"
	MemoryHeuristics    MemoryOptimization = "heuristics" // any of these
)

// GPUAllocator manages the memory of GPUs.
type GPUAllocator string

// The allocators. "" is TensorFlow's default, or what TF_GPU_ALLOCATOR in the
// environment says, which goes before the session's (gpu_process_state.cc).
const (
	// BFC is TensorFlow's own, which keeps what it took (allocator_type).
	BFC GPUAllocator = "BFC"
	// CUDAMallocAsync is that of CUDA 11.2 and newer (use_cuda_malloc_async). It takes
	// the place of BFC, and so of what is said of how BFC grows. It keeps to no limit, and
	// so excludes MemoryFraction and VirtualGPUs with sizes.
	CUDAMallocAsync GPUAllocator = "cuda_malloc_async"
)

// AsksForGPU returns the option that makes no sense without a GPU, with its value, as in
// "Options.VisibleGPUs [0]"; "" if there is none. These are VisibleGPUs, VirtualGPUs and
// GPUAllocator: they say which GPUs, how large, and managed by what. The other options for
// GPUs say how one is used if there is one, so that the same options serve machines with
// and without; and so does Float16GPU.
func (o Options) AsksForGPU() string {
	switch {
	case len(o.VisibleGPUs) > 0:
		return fmt.Sprintf("Options.VisibleGPUs %v", o.VisibleGPUs)
	case len(o.VirtualGPUs) > 0:
		return fmt.Sprintf("Options.VirtualGPUs %v", o.VirtualGPUs)
	case o.GPUAllocator != "":
		return fmt.Sprintf("Options.GPUAllocator %s", o.GPUAllocator)
	}
	return ""
}

// ForGPU lists the other options that are for GPUs, with their values: without one, they
// are without effect.
func (o Options) ForGPU() []string {
	var list []string
	add := func(given bool, field string, value any) {
		if given {
			list = append(list, fmt.Sprintf("Options.%s %v", field, value))
		}
	}
	add(o.MemoryGrowth, "MemoryGrowth", true)
	add(o.MemoryFraction > 0, "MemoryFraction", o.MemoryFraction)
	add(o.UnifiedMemory, "UnifiedMemory", true)
	add(o.HostMemoryLimit > 0, "HostMemoryLimit", o.HostMemoryLimit)
	add(o.GarbageCollection != "", "GarbageCollection", o.GarbageCollection)
	return list
}

// ConfigProto returns the serialized tensorflow.ConfigProto of the options; no
// bytes if there is nothing to say. What TensorFlow reads from the environment is not
// in it.
func (o Options) ConfigProto() ([]byte, error) {
	if err := o.valid(); err != nil {
		return nil, err
	}
	config := &pb.ConfigProto{
		IntraOpParallelismThreads: int32(o.IntraThreads),
		InterOpParallelismThreads: int32(o.InterThreads),
		UsePerSessionThreads:      o.PerSessionThreads,
	}
	if o.Executor != "" {
		config.Experimental = &pb.ConfigProto_Experimental{ExecutorType: string(o.Executor)}
	}
	if graph := o.graph(); proto.Size(graph) > 0 {
		config.GraphOptions = graph
	}
	if gpu := o.gpu(); proto.Size(gpu) > 0 {
		config.GpuOptions = gpu
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(config)
}

func (o Options) graph() *pb.GraphOptions {
	graph := &pb.GraphOptions{}
	switch o.XLA {
	case XLAOff:
		graph.OptimizerOptions = &pb.OptimizerOptions{GlobalJitLevel: pb.OptimizerOptions_OFF}
	case XLAOn1:
		graph.OptimizerOptions = &pb.OptimizerOptions{GlobalJitLevel: pb.OptimizerOptions_ON_1, CpuGlobalJit: true}
	case XLAOn2:
		graph.OptimizerOptions = &pb.OptimizerOptions{GlobalJitLevel: pb.OptimizerOptions_ON_2, CpuGlobalJit: true}
	}
	rewrite := &pb.RewriterConfig{DisableMetaOptimizer: o.GrapplerOff, DisableModelPruning: o.Grappler.PruningOff}
	for _, r := range o.Grappler.switches() {
		*r.field(rewrite) = toggles[r.position]
	}
	switch o.Precision {
	case BFloat16:
		rewrite.AutoMixedPrecisionOnednnBfloat16 = pb.RewriterConfig_ON
	case Float16CPU:
		rewrite.AutoMixedPrecisionCpu = pb.RewriterConfig_ON
		if o.Grappler.CommonSubgraphs == "" {
			rewrite.CommonSubgraphElimination = pb.RewriterConfig_OFF
		}
	case Float16GPU:
		rewrite.AutoMixedPrecision = pb.RewriterConfig_ON
	}
	rewrite.MemoryOptimization = memoryOptimizations[o.MemoryOptimization]
	switch o.MemoryOptimization {
	case MemoryManual, MemoryRecomputation, MemoryHeuristics:
		rewrite.MemoryOptimizerTargetNodeNameScope = "gradient_tape/"
	}
	if proto.Size(rewrite) > 0 {
		graph.RewriteOptions = rewrite
	}
	return graph
}

var memoryOptimizations = map[MemoryOptimization]pb.RewriterConfig_MemOptType{
	MemoryNone: pb.RewriterConfig_NO_MEM_OPT, MemoryManual: pb.RewriterConfig_MANUAL,
	MemorySwapping: pb.RewriterConfig_SWAPPING_HEURISTICS, MemoryRecomputation: pb.RewriterConfig_RECOMPUTATION_HEURISTICS,
	MemoryScheduling: pb.RewriterConfig_SCHEDULING_HEURISTICS, MemoryHeuristics: pb.RewriterConfig_HEURISTICS,
}

var toggles = map[Switch]pb.RewriterConfig_Toggle{
	On: pb.RewriterConfig_ON, Off: pb.RewriterConfig_OFF, Aggressive: pb.RewriterConfig_AGGRESSIVE,
}

// rewriting is one of Grappler, in the position that it is switched to.
type rewriting struct {
	name     string
	position Switch
	field    func(*pb.RewriterConfig) *pb.RewriterConfig_Toggle
}

// switches are those that are not left to TensorFlow.
func (g Grappler) switches() []rewriting {
	all := []rewriting{
		{"Layout", g.Layout, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.LayoutOptimizer }},
		{"ConstantFolding", g.ConstantFolding, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.ConstantFolding }},
		{"Shapes", g.Shapes, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.ShapeOptimization }},
		{"Remapping", g.Remapping, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.Remapping }},
		{"CommonSubgraphs", g.CommonSubgraphs, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.CommonSubgraphElimination }},
		{"Arithmetic", g.Arithmetic, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.ArithmeticOptimization }},
		{"Dependencies", g.Dependencies, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.DependencyOptimization }},
		{"Loops", g.Loops, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.LoopOptimization }},
		{"Functions", g.Functions, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.FunctionOptimization }},
		{"Implementations", g.Implementations, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.ImplementationSelector }},
		{"ConditionalCode", g.ConditionalCode, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.ExperimentalConditionalCodeMotion }},
		{"DebugStripper", g.DebugStripper, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.DebugStripper }},
		{"ScopedAllocator", g.ScopedAllocator, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.ScopedAllocatorOptimization }},
		{"PinToHost", g.PinToHost, func(c *pb.RewriterConfig) *pb.RewriterConfig_Toggle { return &c.PinToHostOptimization }},
	}
	return slices.DeleteFunc(all, func(r rewriting) bool { return r.position == "" })
}

func (o Options) gpu() *pb.GPUOptions {
	visible := make([]string, len(o.VisibleGPUs))
	for i, gpu := range o.VisibleGPUs {
		visible[i] = strconv.Itoa(gpu)
	}
	gpu := &pb.GPUOptions{
		AllowGrowth:                 o.MemoryGrowth,
		PerProcessGpuMemoryFraction: o.MemoryFraction,
		VisibleDeviceList:           strings.Join(visible, ","),
		DeferredDeletionBytes:       o.DeferredDeletion,
	}
	if o.GPUAllocator == BFC {
		gpu.AllocatorType = string(BFC)
	}
	experimental := &pb.GPUOptions_Experimental{
		UseUnifiedMemory:   o.UnifiedMemory,
		UseCudaMallocAsync: o.GPUAllocator == CUDAMallocAsync,
	}
	for _, sizes := range o.VirtualGPUs {
		devices := &pb.GPUOptions_Experimental_VirtualDevices{}
		for _, size := range sizes {
			devices.MemoryLimitMb = append(devices.MemoryLimitMb, float32(size))
		}
		experimental.VirtualDevices = append(experimental.VirtualDevices, devices)
	}
	if o.HostMemoryLimit > 0 {
		addFloat(experimental, hostMemoryLimit, float32(o.HostMemoryLimit))
	}
	if proto.Size(experimental) > 0 {
		gpu.Experimental = experimental
	}
	return gpu
}

// hostMemoryLimit is GPUOptions.Experimental.gpu_host_mem_limit_in_mb.
const hostMemoryLimit protowire.Number = 13

// addFloat sets a field that TensorFlow has and the Go messages, which are those
// of TensorFlow 2.9, do not have.
func addFloat(message proto.Message, field protowire.Number, value float32) {
	m := message.ProtoReflect()
	wire := protowire.AppendTag(m.GetUnknown(), field, protowire.Fixed32Type)
	m.SetUnknown(protowire.AppendFixed32(wire, math.Float32bits(value)))
}

// maxThreads is the most threads of a pool. TensorFlow starts all of them, and aborts the
// process if the system refuses one.
const maxThreads = 1024

// valid refuses values that are none, and options that exclude each other.
func (o Options) valid() error {
	for _, err := range []error{
		among("Executor", o.Executor, SingleThreaded),
		among("XLA", o.XLA, XLAOff, XLAOn1, XLAOn2),
		among("Precision", o.Precision, BFloat16, Float16, Float16CPU, Float16GPU),
		among("MemoryOptimization", o.MemoryOptimization,
			MemoryNone, MemoryManual, MemorySwapping, MemoryRecomputation, MemoryScheduling, MemoryHeuristics),
		among("GPUAllocator", o.GPUAllocator, BFC, CUDAMallocAsync),
		among("GarbageCollection", o.GarbageCollection, On, Off),
		among("OneDNN", o.OneDNN, On, Off),
		among("OneDNNMath", o.OneDNNMath, BFloat16Math),
		among("LogLevel", o.LogLevel, LogInfo, LogWarning, LogError, LogFatal),
	} {
		if err != nil {
			return err
		}
	}
	for _, r := range o.Grappler.switches() {
		if err := among("Grappler."+r.name, r.position, On, Off, Aggressive); err != nil {
			return err
		}
	}
	for _, t := range []struct {
		name  string
		value int
	}{{"IntraThreads", o.IntraThreads}, {"InterThreads", o.InterThreads}} {
		if t.value < 0 || t.value > maxThreads {
			return refused(t.name, t.value, fmt.Sprintf("0 (one per core) to %d", maxThreads))
		}
	}
	switch {
	case o.XLAMinCluster < 0:
		return refused("XLAMinCluster", o.XLAMinCluster, "0 (TensorFlow's default) or more operations")
	case o.UnifiedMemory && !(o.MemoryFraction >= 0 && o.MemoryFraction <= math.MaxFloat64):
		return refused("MemoryFraction", o.MemoryFraction, "a number above 0, or 0 for TensorFlow's default")
	case !o.UnifiedMemory && !(o.MemoryFraction >= 0 && o.MemoryFraction <= 1):
		return refused("MemoryFraction", o.MemoryFraction, "a number above 0 and up to 1, or 0 for TensorFlow's default")
	case o.HostMemoryLimit < 0:
		return refused("HostMemoryLimit", o.HostMemoryLimit, "0 (TensorFlow's default) or more MiB")
	case o.DeferredDeletion < 0:
		return refused("DeferredDeletion", o.DeferredDeletion, "0 (TensorFlow's default) or more bytes")
	case o.OneDNNPoolLimit < 0:
		return refused("OneDNNPoolLimit", o.OneDNNPoolLimit, "0 (the machine's memory) or more bytes")
	}
	for i, gpu := range o.VisibleGPUs {
		switch {
		case gpu < 0:
			return refused("VisibleGPUs", o.VisibleGPUs, "indices from 0")
		case slices.Contains(o.VisibleGPUs[:i], gpu):
			return refused("VisibleGPUs", o.VisibleGPUs, "each index once")
		}
	}
	for _, sizes := range o.VirtualGPUs {
		for _, size := range sizes {
			if size <= 0 {
				return refused("VirtualGPUs", o.VirtualGPUs, "sizes of 1 MiB or more")
			}
		}
	}
	return o.excluded()
}

// among refuses a value that is neither empty nor one of the known ones.
func among[T ~string](name string, value T, known ...T) error {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	return refused(name, value, fmt.Sprintf("one of %q, or nothing for TensorFlow's default", known))
}

// refused is the error of an option whose value is not what was expected.
func refused(name string, value any, expected string) error {
	return &option.Error{Option: "Options." + name, Value: value, Reason: "expected " + expected}
}
