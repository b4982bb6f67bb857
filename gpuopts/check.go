package gpuopts

import (
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

// ErrTooLate is a setting that TensorFlow takes once per process, and has taken otherwise.
var ErrTooLate = errors.New("TensorFlow has settled this for the process already")

// Conflict is the error of an option with a value, as in "Options.MemoryGrowth true", that
// excludes another one.
func Conflict(one, other, why, fix string) error {
	return option.New(one, "conflicts with {"+other+"}: "+why, fix)
}

// Contradiction is the error of an option with a value that a variable of the environment,
// which TensorFlow reads by itself, excludes.
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

	// Values of gpuAllocator: CUDA's own, without a pool, and BFC with checks.
	cudaMalloc  = "cuda_malloc"
	memoryGuard = "memory_guard"
)

// excluded are options that exclude each other.
func (o Options) excluded() error {
	if o.GrapplerOff {
		const why, fix = "Grappler is what does that", "leave one out"
		switch switches := o.Grappler.switches(); {
		case o.Precision != "":
			return Conflict("Options.GrapplerOff true", fmt.Sprintf("Options.Precision %s", o.Precision), why, fix)
		case o.MemoryOptimization != "":
			return Conflict("Options.GrapplerOff true", fmt.Sprintf("Options.MemoryOptimization %s", o.MemoryOptimization), why, fix)
		case len(switches) > 0:
			return Conflict("Options.GrapplerOff true", fmt.Sprintf("Options.Grappler.%s %s", switches[0].name, switches[0].position), why, fix)
		case o.Grappler.PruningOff:
			return Conflict("Options.GrapplerOff true", "Options.Grappler.PruningOff true", why, fix)
		}
	}
	switch {
	case o.MemoryGrowth && o.MemoryFraction == 1:
		return Conflict("Options.MemoryGrowth true", "Options.MemoryFraction 1",
			"the first takes memory as it is needed, the second all of it", "leave one out, or give a fraction below 1, which is the limit of growth")
	case len(o.VirtualGPUs) > 0 && o.MemoryFraction > 0:
		return Conflict(fmt.Sprintf("Options.VirtualGPUs %v", o.VirtualGPUs), fmt.Sprintf("Options.MemoryFraction %v", o.MemoryFraction),
			"both limit a GPU, and TensorFlow takes one of them (gpu_device.cc)", "leave one out")
	case len(o.VirtualGPUs) > 0 && len(o.VisibleGPUs) > 0 && len(o.VirtualGPUs) != len(o.VisibleGPUs):
		return Conflict(fmt.Sprintf("Options.VirtualGPUs %v", o.VirtualGPUs), fmt.Sprintf("Options.VisibleGPUs %v", o.VisibleGPUs),
			"each visible GPU has its own limit (gpu_device.cc)", fmt.Sprintf("give one for each of the %d visible ones", len(o.VisibleGPUs)))
	case o.GPUAllocator == CUDAMallocAsync && o.UnifiedMemory:
		return Conflict("Options.GPUAllocator cuda_malloc_async", "Options.UnifiedMemory true",
			"BFC is what takes unified memory (gpu_process_state.cc)", "leave one out")
	case o.GPUAllocator == CUDAMallocAsync && o.GarbageCollection != "":
		return Conflict("Options.GPUAllocator cuda_malloc_async", fmt.Sprintf("Options.GarbageCollection %s", o.GarbageCollection),
			"BFC is what collects garbage (gpu_bfc_allocator.cc)", "leave one out")
	case o.GPUAllocator == CUDAMallocAsync && o.limit() != "":
		return Conflict("Options.GPUAllocator cuda_malloc_async", o.limit(),
			"BFC is what keeps to a limit, which CUDA's pool only takes for what to keep of freed memory (gpu_cudamallocasync_allocator.cc)", "leave one out")
	case o.OneDNNSystemAllocator && o.OneDNNPoolLimit > 0:
		return Conflict("Options.OneDNNSystemAllocator true", fmt.Sprintf("Options.OneDNNPoolLimit %d", o.OneDNNPoolLimit),
			"the first goes around the pool that the second limits (mkl_cpu_allocator.h)", "leave one out")
	case o.XLA == XLAOff && o.XLAMinCluster > 0:
		return Conflict("Options.XLA off", fmt.Sprintf("Options.XLAMinCluster %d", o.XLAMinCluster), "XLA is what makes clusters", "leave one out")
	}
	if o.OneDNN == Off {
		for _, needs := range o.needOneDNN() {
			return Conflict("Options.OneDNN off", needs, "oneDNN is what does that", "leave one out")
		}
	}
	return nil
}

// limit is the option that limits the memory of a GPU, with its value; "" if there is none.
func (o Options) limit() string {
	switch {
	case slices.ContainsFunc(o.VirtualGPUs, func(sizes []int) bool { return len(sizes) > 0 }):
		return fmt.Sprintf("Options.VirtualGPUs %v", o.VirtualGPUs)
	case o.MemoryFraction > 0:
		return fmt.Sprintf("Options.MemoryFraction %v", o.MemoryFraction)
	}
	return ""
}

// needOneDNN are the options that are for oneDNN.
func (o Options) needOneDNN() []string {
	var list []string
	if o.Precision == BFloat16 {
		list = append(list, "Options.Precision bfloat16")
	}
	if o.OneDNNSystemAllocator {
		list = append(list, "Options.OneDNNSystemAllocator true")
	}
	if o.OneDNNPoolLimit > 0 {
		list = append(list, fmt.Sprintf("Options.OneDNNPoolLimit %d", o.OneDNNPoolLimit))
	}
	if o.OneDNNMath != "" {
		list = append(list, fmt.Sprintf("Options.OneDNNMath %s", o.OneDNNMath))
	}
	return list
}

// Check compares the options with an environment, a list of NAME=value as of
// os.Environ, in which TensorFlow is to run. The error joins an *option.Error for each
// variable that contradicts an option, or is of the options themselves, as that of
// ConfigProto. The warnings name options and variables that have no effect.
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

func (c *checker) warn(setting, text string) {
	c.warnings = append(c.warnings, option.New(setting, text, ""))
}

// contradicted adds a variable that TensorFlow obeys rather than an option.
func (c *checker) contradicted(one, name, why, fix string) {
	c.errs = append(c.errs, Contradiction(one, name, c.set[name], why, fix))
}

// withoutBFC reports whether a value of TF_GPU_ALLOCATOR takes another allocator in the
// place of BFC; memory_guard is put before it (gpu_process_state.cc).
func withoutBFC(allocator string) bool {
	return allocator == string(CUDAMallocAsync) || allocator == cudaMalloc
}

func (o Options) checkGPU(c *checker) {
	const obeys, unset = "TensorFlow obeys the variable", "unset it, or leave the option out"
	if growth, ok := c.set[forceGrowth]; ok {
		switch {
		case growth == "true" && o.MemoryFraction == 1:
			c.contradicted("Options.MemoryFraction 1", forceGrowth, "takes memory as it is needed rather than all of it", unset)
		case growth == "false" && o.MemoryGrowth:
			c.contradicted("Options.MemoryGrowth true", forceGrowth, obeys, unset)
		case growth != "true" && growth != "false":
			c.warn(forceGrowth, fmt.Sprintf("TensorFlow understands true and false, in these letters, and takes %q as if it were not set (gpu_bfc_allocator.cc)", growth))
		}
	}
	known := []string{string(CUDAMallocAsync), cudaMalloc, memoryGuard}
	switch have := c.set[gpuAllocator]; {
	case have == "":
	case !slices.Contains(known, have):
		c.warn(gpuAllocator, fmt.Sprintf("TensorFlow understands %s, and takes %q as if it were not set (gpu_process_state.cc)", strings.Join(known, ", "), have))
	case o.GPUAllocator != "" && have != string(o.GPUAllocator):
		c.contradicted("Options.GPUAllocator "+string(o.GPUAllocator), gpuAllocator, obeys, unset)
	}
	if have := c.set[gpuAllocator]; withoutBFC(have) && o.GPUAllocator == "" {
		if o.UnifiedMemory {
			c.contradicted("Options.UnifiedMemory true", gpuAllocator, "BFC is what takes unified memory", unset)
		}
		if o.GarbageCollection != "" {
			c.contradicted("Options.GarbageCollection "+string(o.GarbageCollection), gpuAllocator, "BFC is what collects garbage", unset)
		}
		if limit := o.limit(); limit != "" {
			c.contradicted(limit, gpuAllocator, "BFC is what keeps to a limit (gpu_process_state.cc)", unset)
		}
	}
	if o.MemoryGrowth && (o.GPUAllocator == CUDAMallocAsync || c.set[gpuAllocator] == string(CUDAMallocAsync)) {
		c.warn("Options.MemoryGrowth true", "cuda_malloc_async takes memory as it is needed in any case; growth is of BFC (gpu_process_state.cc)")
	}
	if have := c.set[systemMemory]; have != "" {
		reserved, err := strconv.ParseInt(strings.TrimSpace(have), 10, 64)
		switch {
		case err != nil || reserved < 0:
			c.warn(systemMemory, fmt.Sprintf("TensorFlow understands a whole number of MiB from 0, and takes %q as if it were not set (gpu_device.cc)", have))
		case o.MemoryFraction > 0:
			c.contradicted(fmt.Sprintf("Options.MemoryFraction %v", o.MemoryFraction), systemMemory,
				"TensorFlow takes all that is free but as many MiB, whatever the fraction (gpu_device.cc)", unset)
		}
	}
	const hostLimit = "TF_GPU_HOST_MEM_LIMIT_IN_MB"
	if have := c.set[hostLimit]; o.HostMemoryLimit > 0 && have != "" && have != strconv.Itoa(o.HostMemoryLimit) {
		c.warn(hostLimit, fmt.Sprintf("%s is not used: {Options.HostMemoryLimit %d} goes before it (gpu_process_state.cc)", have, o.HostMemoryLimit))
	}
	if o.DeferredDeletion > 0 {
		c.warn(fmt.Sprintf("Options.DeferredDeletion %d", o.DeferredDeletion), "TensorFlow 2.21 takes it and does not look at it (gpu_event_mgr.cc)")
	}
	if shown, ok := c.set["CUDA_VISIBLE_DEVICES"]; ok && len(o.VisibleGPUs) > 0 {
		c.warn(fmt.Sprintf("Options.VisibleGPUs %v", o.VisibleGPUs), fmt.Sprintf("CUDA_VISIBLE_DEVICES is %q, and they count among the GPUs that it shows, no longer as in nvidia-smi", shown))
	}
}

func (o Options) checkCPU(c *checker) {
	if on, ok := readBool(c.set[oneDNN]); ok && !on && o.OneDNN == "" {
		for _, needs := range o.needOneDNN() {
			c.contradicted(needs, oneDNN, "oneDNN is what does that", "unset it, or leave the option out")
		}
	}
	if _, ok := c.set[poolLimit]; ok && o.OneDNNSystemAllocator {
		c.warn(poolLimit, "it limits a pool that {Options.OneDNNSystemAllocator true} goes around (mkl_cpu_allocator.h)")
	}
	if on, _ := readBool(c.set[systemAllocator]); on && o.OneDNNPoolLimit > 0 {
		c.contradicted(fmt.Sprintf("Options.OneDNNPoolLimit %d", o.OneDNNPoolLimit), systemAllocator,
			"goes around the pool that the option limits (mkl_cpu_allocator.h)", "unset it, or leave the option out")
	}
	for _, threads := range []struct {
		name, variable string
		n              int
	}{
		{"Options.IntraThreads", "TF_NUM_INTRAOP_THREADS", o.IntraThreads},
		{"Options.InterThreads", "TF_NUM_INTEROP_THREADS", o.InterThreads},
	} {
		if have := c.set[threads.variable]; threads.n > 0 && have != "" && have != strconv.Itoa(threads.n) {
			c.warn(threads.variable, fmt.Sprintf("%s is not used: {%s %d} goes before it (process_util.cc, local_device.cc)", have, threads.name, threads.n))
		}
	}
	jit, auto := flagIn(c.set[xlaFlags], autoJIT)
	level := map[XLA]string{XLAOff: "-1", XLAOn1: "1", XLAOn2: "2"}[o.XLA]
	if auto && jit != "0" && level != "" && jit != level { // 0 leaves it to the session
		c.contradicted("Options.XLA "+string(o.XLA), xlaFlags, autoJIT+" in it goes before the option (xla_cluster_util.cc)", "take the flag out of it, or leave the option out")
	}
	if on := auto && jit != "0" && jit != "-1"; o.XLAMinCluster > 0 && o.XLA == "" && !on {
		c.warn(fmt.Sprintf("Options.XLAMinCluster %d", o.XLAMinCluster), "XLA is off, and makes no clusters; {Options.XLA} turns it on")
	}
}

// unread are variables that advice and other programs name, and that the runtime of
// TensorFlow 2.21 does not read, each with what does work. Those that begin with TF_ or
// XLA_ are not among the strings of its library.
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
	// The wheels run oneDNN in TensorFlow's own threads, not in OpenMP's. The
	// compiler inside TensorFlow holds the first name for code that it compiles.
	"OMP_NUM_THREADS": "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"MKL_NUM_THREADS": "TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}",
	"KMP_BLOCKTIME":   "nothing: the wheels do not use OpenMP",
	"KMP_AFFINITY":    "nothing: the wheels do not use OpenMP",
}

// Unread are variables that people set and the runtime of TensorFlow 2.21 does not
// read, each with what does work, in which braces mark options (see option.Error).
func Unread() map[string]string { return maps.Clone(unread) }

// Later checks the serialized ConfigProto of a session against that of the first one of
// the process, with which TensorFlow has set up GPUs and threads. What config asks of
// these has to be what the first had: TensorFlow would ignore it in silence, or fail.
// The error joins an *option.Error for each that is not, which is ErrTooLate. What config leaves out is taken
// as it is.
func Later(first, config []byte) error {
	var had, asks pb.ConfigProto
	for _, c := range []struct {
		wire    []byte
		message *pb.ConfigProto
	}{{first, &had}, {config, &asks}} {
		if err := proto.Unmarshal(c.wire, c.message); err != nil {
			return nil // TensorFlow says what is wrong with it
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

// Unlimited names the allocator of a process that holds the memory of its GPUs to no limit,
// whatever TensorFlow says of the size of its devices: "cuda_malloc_async" or "cuda_malloc",
// which take the place of BFC (gpu_process_state.cc); "" if there is a limit. first is the
// serialized ConfigProto of the process's first session, env the environment in
// which that was made, a list of NAME=value of which the first of a name counts.
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

// settled is what TensorFlow takes from the first session: an option with its value,
// which is empty if it is left to TensorFlow.
type settled struct{ option, value, what, fix string }

func processWide(c *pb.ConfigProto) []settled {
	const gpus, threads = "its GPUs", "its threads"
	const fix = "open the session that needs it first, or in another process"
	gpu := c.GetGpuOptions()
	experimental := gpu.GetExperimental()
	number := func(n float64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatFloat(n, 'g', -1, 64)
	}
	truth := func(on bool) string {
		if !on {
			return ""
		}
		return "true"
	}
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
	sizes := ""
	if virtual != nil {
		sizes = fmt.Sprint(virtual)
	}
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

// floatIn reads a field that the Go messages do not have; 0 if it is not set.
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
