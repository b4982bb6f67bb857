package gpuopts

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"steadyfit/option"
)

// ErrTooLate means that TensorFlow reads the setting once per process, and has read another value.
var ErrTooLate = errors.New("TensorFlow has settled this for the process already")

// Conflict is the error of two options, each with its value as in "Options.MemoryGrowth
// true", that exclude each other.
func Conflict(one, other, why, fix string) error {
	return option.New(one, "conflicts with {"+other+"}: "+why, fix)
}

// Contradiction is the error of an option, with its value, that a variable in the
// environment excludes.
func Contradiction(one, variable, value, why, fix string) error {
	return option.New(one, fmt.Sprintf("%s is %q in the environment, and %s", variable, value, why), fix)
}

// Names that several checks need.
const (
	forceGrowth     = "TF_FORCE_GPU_ALLOW_GROWTH"
	gpuAllocator    = "TF_GPU_ALLOCATOR"
	systemMemory    = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB"
	oneDNN          = "TF_ENABLE_ONEDNN_OPTS"
	systemAllocator = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"
	poolLimit       = "TF_MKL_ALLOC_MAX_BYTES"
	autoJIT         = "--tf_xla_auto_jit"

	// Values of TF_GPU_ALLOCATOR: CUDA's own, without a pool, and BFC with checks.
	cudaMalloc  = "cuda_malloc"
	memoryGuard = "memory_guard"
)

// when returns a setting if a condition holds.
func when(condition bool, setting string) string {
	if condition {
		return setting
	}
	return ""
}

// excluded returns the error of the first two options that exclude each other.
func (o Options) excluded() error {
	const leaveOut = "leave one out"
	async := when(o.GPUAllocator == CUDAMallocAsync, o.setting("GPUAllocator"))
	virtual, fraction := o.setting("VirtualGPUs"), o.setting("MemoryFraction")
	for _, c := range []struct{ one, other, why, fix string }{
		{o.setting("GrapplerOff"), cmp.Or(o.setting("Precision"), o.setting("MemoryOptimization"), o.Grappler.setting()),
			"Grappler is what does that", leaveOut},
		{o.setting("MemoryGrowth"), when(o.MemoryFraction == 1, fraction),
			"the first takes memory as it is needed, the second all of it", "leave one out, or give a fraction below 1, which is the limit of growth"},
		{virtual, fraction,
			"both limit a GPU, and TensorFlow takes one of them (gpu_device.cc)", leaveOut},
		{virtual, when(len(o.VirtualGPUs) != len(o.VisibleGPUs), o.setting("VisibleGPUs")),
			"each visible GPU has its own limit (gpu_device.cc)", fmt.Sprintf("give one for each of the %d visible ones", len(o.VisibleGPUs))},
		{async, o.setting("UnifiedMemory"),
			"BFC is what takes unified memory (gpu_process_state.cc)", leaveOut},
		{async, o.setting("GarbageCollection"),
			"BFC is what collects garbage (gpu_bfc_allocator.cc)", leaveOut},
		{async, o.limit(),
			"BFC is what keeps to a limit, which CUDA's pool only takes for what to keep of freed memory (gpu_cudamallocasync_allocator.cc)", leaveOut},
		{o.setting("OneDNNSystemAllocator"), o.setting("OneDNNPoolLimit"),
			"the first goes around the pool that the second limits (mkl_cpu_allocator.h)", leaveOut},
		{when(o.XLA == XLAOff, o.setting("XLA")), o.setting("XLAMinCluster"),
			"XLA is what makes clusters", leaveOut},
		{when(o.OneDNN == Off, o.setting("OneDNN")), cmp.Or(o.needOneDNN()...),
			"oneDNN is what does that", leaveOut},
	} {
		if c.one != "" && c.other != "" {
			return Conflict(c.one, c.other, c.why, c.fix)
		}
	}
	return nil
}

// limit is the option that limits the memory of a GPU, with its value; "" if there is none.
func (o Options) limit() string {
	sized := slices.ContainsFunc(o.VirtualGPUs, func(sizes []int) bool { return len(sizes) > 0 })
	return cmp.Or(when(sized, o.setting("VirtualGPUs")), o.setting("MemoryFraction"))
}

// needOneDNN lists the options that oneDNN implements.
func (o Options) needOneDNN() []string {
	if o.Precision != BFloat16 {
		o.Precision = ""
	}
	return o.settings("Precision", "OneDNNSystemAllocator", "OneDNNPoolLimit", "OneDNNMath")
}

// Check compares the options with an environment, a list of NAME=value as of os.Environ,
// in which TensorFlow is to run. The error joins an *option.Error for each variable that
// contradicts an option, or is that of ConfigProto. The warnings name options and
// variables that have no effect.
func (o Options) Check(env []string) ([]*option.Error, error) {
	want, err := o.Environment()
	if err != nil {
		return nil, err
	}
	c := checker{set: map[string]string{}}
	for _, kv := range slices.Backward(env) { // of two with a name, the first counts
		name, value, _ := strings.Cut(kv, "=")
		c.set[name] = value
	}
	for _, v := range want {
		if _, _, err := With(env, []Variable{v}); err != nil {
			c.errs = append(c.errs, err)
		}
	}
	o.checkGPU(&c)
	o.checkCPU(&c)
	for _, name := range slices.Sorted(maps.Keys(c.set)) {
		instead, known := unread[name]
		// Others belong to other programs as well.
		if known && (strings.HasPrefix(name, "TF_") || strings.HasPrefix(name, "XLA_")) {
			c.warn(name, "TensorFlow 2.21 does not read it; what does work: "+instead)
		}
	}
	return c.warnings, errors.Join(c.errs...)
}

// checker collects what is wrong.
type checker struct {
	set      map[string]string
	warnings []*option.Error
	errs     []error
}

// warn adds a warning about a setting, unless that is "".
func (c *checker) warn(setting, text string) {
	if setting != "" {
		c.warnings = append(c.warnings, option.New(setting, text, ""))
	}
}

const unset = "unset it, or leave the option out"

// contradicted adds a setting, unless that is "", which TensorFlow ignores because of a
// variable.
func (c *checker) contradicted(setting, variable, why, fix string) {
	if setting != "" {
		c.errs = append(c.errs, Contradiction(setting, variable, c.set[variable], why, fix))
	}
}

// overridden warns of a variable that a number overrides.
func (c *checker) overridden(variable, setting string, number int, sources string) {
	if have := c.set[variable]; setting != "" && have != "" && have != strconv.Itoa(number) {
		c.warn(variable, fmt.Sprintf("%s is not used: {%s} goes before it (%s)", have, setting, sources))
	}
}

// withoutBFC reports whether a value of TF_GPU_ALLOCATOR replaces BFC; memory_guard is put
// before it (gpu_process_state.cc).
func withoutBFC(allocator string) bool {
	return allocator == string(CUDAMallocAsync) || allocator == cudaMalloc
}

func (o Options) checkGPU(c *checker) {
	const obeys = "TensorFlow obeys the variable"
	switch growth, ok := c.set[forceGrowth]; {
	case !ok:
	case growth == "true":
		c.contradicted(when(o.MemoryFraction == 1, o.setting("MemoryFraction")), forceGrowth, "takes memory as it is needed rather than all of it", unset)
	case growth == "false":
		c.contradicted(o.setting("MemoryGrowth"), forceGrowth, obeys, unset)
	default:
		c.warn(forceGrowth, fmt.Sprintf("TensorFlow understands true and false, in these letters, and takes %q as if it were not set (gpu_bfc_allocator.cc)", growth))
	}
	allocators := []string{string(CUDAMallocAsync), cudaMalloc, memoryGuard}
	allocator := c.set[gpuAllocator]
	switch {
	case allocator != "" && !slices.Contains(allocators, allocator):
		c.warn(gpuAllocator, fmt.Sprintf("TensorFlow understands %s, and takes %q as if it were not set (gpu_process_state.cc)", strings.Join(allocators, ", "), allocator))
	case allocator != "" && allocator != string(o.GPUAllocator):
		c.contradicted(o.setting("GPUAllocator"), gpuAllocator, obeys, unset)
	}
	if withoutBFC(allocator) && o.GPUAllocator == "" {
		c.contradicted(o.setting("UnifiedMemory"), gpuAllocator, "BFC is what takes unified memory", unset)
		c.contradicted(o.setting("GarbageCollection"), gpuAllocator, "BFC is what collects garbage", unset)
		c.contradicted(o.limit(), gpuAllocator, "BFC is what keeps to a limit (gpu_process_state.cc)", unset)
	}
	if o.GPUAllocator == CUDAMallocAsync || allocator == string(CUDAMallocAsync) {
		c.warn(o.setting("MemoryGrowth"), "cuda_malloc_async takes memory as it is needed in any case; growth is of BFC (gpu_process_state.cc)")
	}
	if have := c.set[systemMemory]; have != "" {
		if n, err := strconv.ParseInt(strings.TrimSpace(have), 10, 64); err != nil || n < 0 {
			c.warn(systemMemory, fmt.Sprintf("TensorFlow understands a whole number of MiB from 0, and takes %q as if it were not set (gpu_device.cc)", have))
		} else {
			c.contradicted(o.setting("MemoryFraction"), systemMemory, "TensorFlow takes all that is free but as many MiB, whatever the fraction (gpu_device.cc)", unset)
		}
	}
	c.overridden("TF_GPU_HOST_MEM_LIMIT_IN_MB", o.setting("HostMemoryLimit"), o.HostMemoryLimit, "gpu_process_state.cc")
	c.warn(o.setting("DeferredDeletion"), "TensorFlow 2.21 takes it and does not look at it (gpu_event_mgr.cc)")
	if shown, ok := c.set["CUDA_VISIBLE_DEVICES"]; ok {
		c.warn(o.setting("VisibleGPUs"), fmt.Sprintf("CUDA_VISIBLE_DEVICES is %q, and they count among the GPUs that it shows, no longer as in nvidia-smi", shown))
	}
}

func (o Options) checkCPU(c *checker) {
	if on, ok := readBool(c.set[oneDNN]); ok && !on && o.OneDNN == "" {
		for _, needs := range o.needOneDNN() {
			c.contradicted(needs, oneDNN, "oneDNN is what does that", unset)
		}
	}
	if _, ok := c.set[poolLimit]; ok && o.OneDNNSystemAllocator {
		c.warn(poolLimit, "it limits a pool that {Options.OneDNNSystemAllocator true} goes around (mkl_cpu_allocator.h)")
	}
	if on, _ := readBool(c.set[systemAllocator]); on {
		c.contradicted(o.setting("OneDNNPoolLimit"), systemAllocator, "goes around the pool that the option limits (mkl_cpu_allocator.h)", unset)
	}
	const sources = "process_util.cc, local_device.cc"
	c.overridden("TF_NUM_INTRAOP_THREADS", o.setting("IntraThreads"), o.IntraThreads, sources)
	c.overridden("TF_NUM_INTEROP_THREADS", o.setting("InterThreads"), o.InterThreads, sources)
	jit, auto := flagIn(c.set[xlaFlags], autoJIT)
	level := map[XLA]string{XLAOff: "-1", XLAOn1: "1", XLAOn2: "2"}[o.XLA]
	if auto && jit != "0" && jit != level { // 0 leaves it to the session
		c.contradicted(o.setting("XLA"), xlaFlags, autoJIT+" in it goes before the option (xla_cluster_util.cc)", "take the flag out of it, or leave the option out")
	}
	if on := auto && jit != "0" && jit != "-1"; o.XLA == "" && !on {
		c.warn(o.setting("XLAMinCluster"), "XLA is off, and makes no clusters; {Options.XLA} turns it on")
	}
}

// unread are variables from advice and other programs that the runtime of TensorFlow 2.21
// does not read, each with what does work. The library holds no string of those that begin
// with TF_ or XLA_.
var unread = map[string]string{
	"TF_GPU_MEMORY_ALLOW_GROWTH":          "TF_FORCE_GPU_ALLOW_GROWTH=true, or {Options.MemoryGrowth}",
	"TF_GPU_ALLOW_GROWTH":                 "TF_FORCE_GPU_ALLOW_GROWTH=true, or {Options.MemoryGrowth}",
	"TF_GPU_MEMORY_FRACTION":              "{Options.MemoryFraction X}",
	"TF_GPU_MEMORY_LIMIT":                 "{Options.VirtualGPUs}, or {Options.MemoryFraction X}",
	"TF_MEMORY_ALLOCATION":                "{Options.MemoryFraction X}",
	"TF_CUDA_HOST_MEM_LIMIT_IN_MB":        "TF_GPU_HOST_MEM_LIMIT_IN_MB",
	"TF_DISABLE_MKL":                      "TF_ENABLE_ONEDNN_OPTS=0",
	"TF_ENABLE_MKL":                       "TF_ENABLE_ONEDNN_OPTS=1",
	"TF_ENABLE_MKLDNN":                    "TF_ENABLE_ONEDNN_OPTS=1",
	"TF_INTRA_OP_PARALLELISM_THREADS":     "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"TF_INTER_OP_PARALLELISM_THREADS":     "TF_NUM_INTEROP_THREADS, or {Options.InterThreads N}",
	"TF_ENABLE_AUTO_MIXED_PRECISION":      "{Options.Precision float16-gpu}",
	"TF_ENABLE_TENSOR_FLOAT_32_EXECUTION": "NVIDIA_TF32_OVERRIDE=0, which cuBLAS and cuDNN read; TensorFlow itself is told by Python only",
	"TF_XLA_AUTO_JIT":                     "TF_XLA_FLAGS=--tf_xla_auto_jit=2, or {Options.XLA}",
	"XLA_PYTHON_CLIENT_PREALLOCATE":       "TF_FORCE_GPU_ALLOW_GROWTH=true, or {Options.MemoryGrowth} (JAX reads this one)",
	"XLA_PYTHON_CLIENT_MEM_FRACTION":      "{Options.MemoryFraction X} (JAX reads this one)",
	// The wheels run oneDNN in TensorFlow's own threads, not in OpenMP's.
	"OMP_NUM_THREADS": "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"MKL_NUM_THREADS": "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"KMP_BLOCKTIME":   "nothing: the wheels do not use OpenMP",
	"KMP_AFFINITY":    "nothing: the wheels do not use OpenMP",
}

// Unread are variables that people set and the runtime of TensorFlow 2.21 does not
// read, each with what does work, in which braces mark options (see option.Error).
func Unread() map[string]string { return maps.Clone(unread) }

// Later compares the serialized ConfigProto of a session with that of the first one of the
// process, with which TensorFlow has set up GPUs and threads: it would ignore other
// settings in silence, or fail. The error joins an *option.Error, which is ErrTooLate, for
// each setting of config that differs.
func Later(first, config []byte) error {
	var had, asks pb.ConfigProto
	for _, c := range []struct {
		wire    []byte
		message *pb.ConfigProto
	}{{first, &had}, {config, &asks}} {
		if err := proto.Unmarshal(c.wire, c.message); err != nil {
			return nil // TensorFlow will refuse it
		}
	}
	var errs []error
	for i, now := range processWide(&asks) {
		was := processWide(&had)[i]
		if now.value == "" || now.value == was.value {
			continue
		}
		if was.value == "" {
			was.value = "TensorFlow's default"
		}
		errs = append(errs, &option.Error{
			Option: now.option, Value: now.value,
			Reason: fmt.Sprintf("TensorFlow sets up %s once per process, and has done so with %s, for the first session", now.what, was.value),
			Fix:    now.fix, Err: ErrTooLate,
		})
	}
	return errors.Join(errs...)
}

// Unlimited names the allocator of a process that keeps to no limit of GPU memory, whatever
// the size of its devices: "cuda_malloc_async" or "cuda_malloc", which replace BFC
// (gpu_process_state.cc); "" if there is a limit. first is the serialized ConfigProto of
// the process's first session, env its environment, a list of NAME=value.
func Unlimited(first []byte, env []string) string {
	allocator := ""
	for _, kv := range slices.Backward(env) {
		if name, value, _ := strings.Cut(kv, "="); name == gpuAllocator {
			allocator = value
		}
	}
	switch {
	case withoutBFC(allocator):
		return allocator
	case allocator == memoryGuard:
		return ""
	}
	var config pb.ConfigProto
	if err := proto.Unmarshal(first, &config); err == nil && config.GetGpuOptions().GetExperimental().GetUseCudaMallocAsync() {
		return string(CUDAMallocAsync)
	}
	return ""
}

// settled is an option that TensorFlow reads from the first session only; the value is
// empty if it is left to TensorFlow.
type settled struct{ option, value, what, fix string }

func processWide(c *pb.ConfigProto) []settled {
	const gpus, threads = "its GPUs", "its threads"
	const fix = "open the session that needs it first, or in another process"
	gpu := c.GetGpuOptions()
	experimental := gpu.GetExperimental()
	number := func(n float64) string { return when(n != 0, strconv.FormatFloat(n, 'g', -1, 64)) }
	truth := func(on bool) string { return when(on, "true") }
	allocator := gpu.GetAllocatorType()
	if experimental.GetUseCudaMallocAsync() {
		allocator = string(CUDAMallocAsync)
	}
	inter := c.GetInterOpParallelismThreads()
	if c.GetUsePerSessionThreads() {
		inter = 0
	}
	var virtual [][]float32
	for _, d := range experimental.GetVirtualDevices() {
		virtual = append(virtual, d.GetMemoryLimitMb())
	}
	sizes := when(virtual != nil, fmt.Sprint(virtual))
	return []settled{
		{"Options.IntraThreads", number(float64(c.GetIntraOpParallelismThreads())), threads, fix},
		{"Options.InterThreads", number(float64(inter)), threads, fix + ", or set {Options.PerSessionThreads}"},
		{"Options.MemoryGrowth", truth(gpu.GetAllowGrowth()), gpus, fix},
		{"Options.MemoryFraction", number(gpu.GetPerProcessGpuMemoryFraction()), gpus, fix},
		{"Options.VisibleGPUs", gpu.GetVisibleDeviceList(), gpus, fix},
		{"Options.VirtualGPUs", sizes, gpus, fix},
		{"Options.GPUAllocator", allocator, gpus, fix},
		{"Options.UnifiedMemory", truth(experimental.GetUseUnifiedMemory()), gpus, fix},
		{"Options.HostMemoryLimit", number(float64(floatIn(experimental, hostMemoryLimit))), gpus, fix},
	}
}

// floatIn reads a field that the Go messages lack; 0 if it is not set.
func floatIn(message proto.Message, field protowire.Number) (value float32) {
	wire := []byte(message.ProtoReflect().GetUnknown())
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return value
		}
		wire = wire[n:]
		if number == field && kind == protowire.Fixed32Type {
			bits, _ := protowire.ConsumeFixed32(wire)
			value = math.Float32frombits(bits)
		}
		if n = protowire.ConsumeFieldValue(number, kind, wire); n < 0 {
			return value
		}
		wire = wire[n:]
	}
	return value
}
