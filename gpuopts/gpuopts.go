// Package gpuopts turns settings of TensorFlow's devices and of how it runs a
// graph into what TensorFlow reads: the bytes of a tensorflow.ConfigProto. Its
// values are plain structs with useful zeros: an Options{} leaves every choice to
// TensorFlow.
//
// It does not decide anything and does not look at the machine: a setting for a
// GPU is valid where there is none, and without effect. What TensorFlow reads
// from the environment only (TF_GPU_ALLOCATOR, TF_ENABLE_ONEDNN_OPTS, ...) is not
// here. A value flows from the caller through Options.ConfigProto into
// session.Options.
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
)

// Options are settings for one session. TensorFlow sets up its devices and their
// threads once per process, with the options of the first session; those of later
// sessions are ignored by it. The comments say which ones belong to each session.
type Options struct {
	// IntraThreads is the number of threads that share one operation; 0 means
	// one per core. The pool is made by the first session of the process.
	IntraThreads int
	// InterThreads is the number of threads that run operations side by side; 0
	// means one per core. It too belongs to the first session, unless
	// PerSessionThreads is set.
	InterThreads int
	// PerSessionThreads gives the session a pool of InterThreads of its own, which
	// ends with it (ConfigProto.use_per_session_threads).
	PerSessionThreads bool
	// Executor says how the session steps through a graph.
	Executor Executor

	// GrapplerOff keeps TensorFlow from rewriting the session's graphs before they
	// run (RewriterConfig.disable_meta_optimizer). Precision and
	// MemoryOptimization are such rewritings and exclude it.
	GrapplerOff bool
	// MemoryOptimization says how the session's graphs are rewritten to need less
	// memory.
	MemoryOptimization MemoryOptimization
	// Precision rewrites the session's graphs to compute in 16 bits where
	// TensorFlow deems it safe. Variables stay as they are.
	Precision Precision
	// XLA says which parts of the session's graphs are compiled. Functions that
	// were exported with jit_compile are compiled in any case.
	XLA XLA

	// MemoryGrowth makes TensorFlow take GPU memory as it is needed, rather than
	// nearly all at the start (GPUOptions.allow_growth). It applies to all GPUs
	// alike, and frees nothing before the process ends.
	MemoryGrowth bool
	// MemoryFraction is the part of each GPU's memory that TensorFlow may take,
	// in (0, 1]; 0 leaves it to TensorFlow.
	MemoryFraction float64
	// VisibleGPUs are the indices of the GPUs to use; empty means all.
	VisibleGPUs []int
	// VirtualGPUs splits GPUs into devices of a fixed size: one list for each
	// visible GPU, in it the size of each of its devices in MiB. A list of one
	// number limits that GPU, an empty one leaves it whole. It excludes
	// MemoryFraction.
	VirtualGPUs [][]int
	// GPUAllocator manages the memory of all GPUs.
	GPUAllocator GPUAllocator
	// UnifiedMemory takes GPU memory that CUDA may move out to the host's memory
	// (GPUOptions.Experimental.use_unified_memory).
	UnifiedMemory bool
	// HostMemoryLimit is how much pinned memory of the host TensorFlow may take for
	// copies to and from GPUs, in MiB; 0 leaves it to TensorFlow.
	HostMemoryLimit int
}

// Executor is how a session steps through a graph
// (ConfigProto.Experimental.executor_type).
type Executor string

// The executors. "" is TensorFlow's default, which runs operations side by side.
const (
	// SingleThreaded runs one operation after the other on the calling thread. It
	// cannot run Switch and Merge, the control flow of TensorFlow 1.
	SingleThreaded Executor = "SINGLE_THREADED_EXECUTOR"
)

// XLA is how much of a graph is compiled without having been exported so
// (OptimizerOptions.global_jit_level). For a CPU TensorFlow asks for a second
// switch, cpu_global_jit; XLAOn1 and XLAOn2 set it, too.
type XLA string

// The levels. "" is TensorFlow's default, which is off unless TF_XLA_FLAGS in the
// environment says otherwise.
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
	// Float16CPU is for CPUs (auto_mixed_precision_cpu).
	Float16CPU Precision = "float16-cpu"
	// Float16GPU is for GPUs (auto_mixed_precision). The loss is not scaled by it.
	Float16GPU Precision = "float16-gpu"
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
// environment says.
const (
	// BFC is TensorFlow's own, which keeps what it took (allocator_type).
	BFC GPUAllocator = "BFC"
	// CUDAMallocAsync is that of CUDA 11.2 and newer (use_cuda_malloc_async).
	CUDAMallocAsync GPUAllocator = "cuda_malloc_async"
)

// ConfigProto returns the serialized tensorflow.ConfigProto of the options; no
// bytes if there is nothing to say.
func (o Options) ConfigProto() ([]byte, error) {
	if o.IntraThreads < 0 || o.InterThreads < 0 {
		return nil, fmt.Errorf("threads: got %d intra and %d inter; expected 0 (one per core) or more", o.IntraThreads, o.InterThreads)
	}
	config := &pb.ConfigProto{
		IntraOpParallelismThreads: int32(o.IntraThreads),
		InterOpParallelismThreads: int32(o.InterThreads),
		UsePerSessionThreads:      o.PerSessionThreads,
	}
	if err := among("executor", o.Executor, SingleThreaded); err != nil {
		return nil, err
	}
	if o.Executor != "" {
		config.Experimental = &pb.ConfigProto_Experimental{ExecutorType: string(o.Executor)}
	}
	graph, err := o.graph()
	if err != nil {
		return nil, err
	}
	if proto.Size(graph) > 0 {
		config.GraphOptions = graph
	}
	gpu, err := o.gpu()
	if err != nil {
		return nil, err
	}
	if proto.Size(gpu) > 0 {
		config.GpuOptions = gpu
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(config)
}

func (o Options) graph() (*pb.GraphOptions, error) {
	graph := &pb.GraphOptions{}
	switch o.XLA {
	case "":
	case XLAOff:
		graph.OptimizerOptions = &pb.OptimizerOptions{GlobalJitLevel: pb.OptimizerOptions_OFF}
	case XLAOn1:
		graph.OptimizerOptions = &pb.OptimizerOptions{GlobalJitLevel: pb.OptimizerOptions_ON_1, CpuGlobalJit: true}
	case XLAOn2:
		graph.OptimizerOptions = &pb.OptimizerOptions{GlobalJitLevel: pb.OptimizerOptions_ON_2, CpuGlobalJit: true}
	default:
		return nil, among("XLA", o.XLA, XLAOff, XLAOn1, XLAOn2)
	}

	if o.GrapplerOff && (o.Precision != "" || o.MemoryOptimization != "") {
		return nil, fmt.Errorf("got GrapplerOff with precision %q and memory optimization %q; expected either, since Grappler is what does these",
			o.Precision, o.MemoryOptimization)
	}
	rewrite := &pb.RewriterConfig{DisableMetaOptimizer: o.GrapplerOff}
	switch o.Precision {
	case "":
	case BFloat16:
		rewrite.AutoMixedPrecisionOnednnBfloat16 = pb.RewriterConfig_ON
	case Float16CPU:
		rewrite.AutoMixedPrecisionCpu = pb.RewriterConfig_ON
	case Float16GPU:
		rewrite.AutoMixedPrecision = pb.RewriterConfig_ON
	default:
		return nil, among("precision", o.Precision, BFloat16, Float16CPU, Float16GPU)
	}
	switch o.MemoryOptimization {
	case "":
	case MemoryNone:
		rewrite.MemoryOptimization = pb.RewriterConfig_NO_MEM_OPT
	case MemoryManual:
		rewrite.MemoryOptimization = pb.RewriterConfig_MANUAL
	case MemorySwapping:
		rewrite.MemoryOptimization = pb.RewriterConfig_SWAPPING_HEURISTICS
	case MemoryRecomputation:
		rewrite.MemoryOptimization = pb.RewriterConfig_RECOMPUTATION_HEURISTICS
	case MemoryScheduling:
		rewrite.MemoryOptimization = pb.RewriterConfig_SCHEDULING_HEURISTICS
	case MemoryHeuristics:
		rewrite.MemoryOptimization = pb.RewriterConfig_HEURISTICS
	default:
		return nil, among("memory optimization", o.MemoryOptimization,
			MemoryNone, MemoryManual, MemorySwapping, MemoryRecomputation, MemoryScheduling, MemoryHeuristics)
	}
	switch o.MemoryOptimization {
	case MemoryManual, MemoryRecomputation, MemoryHeuristics:
		rewrite.MemoryOptimizerTargetNodeNameScope = "gradient_tape/"
	}
	if proto.Size(rewrite) > 0 {
		graph.RewriteOptions = rewrite
	}
	return graph, nil
}

func (o Options) gpu() (*pb.GPUOptions, error) {
	if !(o.MemoryFraction >= 0 && o.MemoryFraction <= 1) {
		return nil, fmt.Errorf("GPU memory fraction: got %v; expected a number above 0 and up to 1, or 0 for TensorFlow's default", o.MemoryFraction)
	}
	visible := make([]string, len(o.VisibleGPUs))
	for i, gpu := range o.VisibleGPUs {
		if gpu < 0 {
			return nil, fmt.Errorf("visible GPUs: got %d; expected indices from 0", gpu)
		}
		visible[i] = strconv.Itoa(gpu)
	}
	if err := among("GPU allocator", o.GPUAllocator, BFC, CUDAMallocAsync); err != nil {
		return nil, err
	}
	if o.HostMemoryLimit < 0 {
		return nil, fmt.Errorf("host memory limit: got %d MiB; expected 0 (TensorFlow's default) or more", o.HostMemoryLimit)
	}
	if len(o.VirtualGPUs) > 0 && o.MemoryFraction > 0 {
		return nil, fmt.Errorf("got virtual GPUs with a memory fraction of %v; expected either, since both limit a GPU", o.MemoryFraction)
	}
	if n := len(o.VirtualGPUs); n > 0 && len(visible) > 0 && n != len(visible) {
		return nil, fmt.Errorf("virtual GPUs: got lists for %d GPUs; expected one for each of the %d visible ones", n, len(visible))
	}

	gpu := &pb.GPUOptions{
		AllowGrowth:                 o.MemoryGrowth,
		PerProcessGpuMemoryFraction: o.MemoryFraction,
		VisibleDeviceList:           strings.Join(visible, ","),
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
			if size <= 0 {
				return nil, fmt.Errorf("virtual GPUs: got a size of %d MiB; expected 1 or more", size)
			}
			devices.MemoryLimitMb = append(devices.MemoryLimitMb, float32(size))
		}
		experimental.VirtualDevices = append(experimental.VirtualDevices, devices)
	}
	if o.HostMemoryLimit > 0 {
		addFloat(experimental, 13, float32(o.HostMemoryLimit)) // gpu_host_mem_limit_in_mb
	}
	if proto.Size(experimental) > 0 {
		gpu.Experimental = experimental
	}
	return gpu, nil
}

// addFloat sets a field that TensorFlow has and the Go messages, which are those
// of TensorFlow 2.9, do not have.
func addFloat(message proto.Message, field protowire.Number, value float32) {
	m := message.ProtoReflect()
	wire := protowire.AppendTag(m.GetUnknown(), field, protowire.Fixed32Type)
	m.SetUnknown(protowire.AppendFixed32(wire, math.Float32bits(value)))
}

// among refuses a value that is neither empty nor one of the known ones.
func among[T ~string](what string, value T, known ...T) error {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("%s: got %q; expected one of %q, or nothing for TensorFlow's default", what, value, known)
}
