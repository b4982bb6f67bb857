package gpuopts

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/tfprocess"
	"steadyfit/option"
)

// ErrTooLate means that TensorFlow reads a setting once per process, and has already read another
// value.
var ErrTooLate = errors.New("TensorFlow has already read this setting for the process")

// conflict returns the error for two options that exclude each other. one and other are options with
// their values, such as "Options.MemoryGrowth true".
func conflict(one, other, why, fix string) error {
	return option.New(one, "conflicts with {"+other+"}: "+why, fix)
}

// contradiction returns the error for an option, with its value, that an environment variable
// contradicts.
func contradiction(one, variable, value, why, fix string) error {
	return option.New(one, fmt.Sprintf("%s is %q in the environment, and %s", variable, value, why), fix)
}

const (
	forceGrowth  = "TF_FORCE_GPU_ALLOW_GROWTH"
	gpuAllocator = "TF_GPU_ALLOCATOR"
	systemMemory = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB"
	oneDNN       = "TF_ENABLE_ONEDNN_OPTS"
	autoJIT      = "--tf_xla_auto_jit"

	// Values of TF_GPU_ALLOCATOR that use CUDA's allocator without a pool, and BFC with checks.
	cudaMalloc  = "cuda_malloc"
	memoryGuard = "memory_guard"
)

func when(condition bool, setting string) string {
	if condition {
		return setting
	}
	return ""
}

func (o Options) excluded() error {
	const leaveOut = "remove one of them"
	async := when(o.GPUAllocator == cudaMallocAsync, o.setting("GPUAllocator"))
	virtual, fraction := o.setting("VirtualGPUs"), o.setting("MemoryFraction")
	for _, c := range []struct{ one, other, why, fix string }{
		{o.setting("GrapplerOff"), cmp.Or(o.setting("Precision"), o.setting("MemoryOptimization"), o.Grappler.setting()),
			"graph rewriting needs Grappler", leaveOut},
		{o.setting("MemoryGrowth"), when(o.MemoryFraction == 1, fraction),
			"the first takes memory as needed, the second takes all of it",
			"remove one of them, or set a fraction below 1 to limit the growth"},
		{virtual, fraction,
			"both limit a GPU, and TensorFlow accepts only one of them (gpu_device.cc)", leaveOut},
		{virtual, when(len(o.VirtualGPUs) != len(o.VisibleGPUs), o.setting("VisibleGPUs")),
			"each visible GPU has its own limit (gpu_device.cc)",
			fmt.Sprintf("set one limit for each of the %d visible GPUs", len(o.VisibleGPUs))},
		{async, o.setting("UnifiedMemory"),
			"only BFC uses unified memory (gpu_process_state.cc)", leaveOut},
		{async, o.limit(),
			"only BFC has a limit; CUDA's pool uses the limit only for the freed memory that it keeps " +
				"(gpu_cudamallocasync_allocator.cc)", leaveOut},
		{when(o.OneDNN == off, o.setting("OneDNN")), cmp.Or(o.needOneDNN()...),
			"the option needs oneDNN", leaveOut},
	} {
		if c.one != "" && c.other != "" {
			return conflict(c.one, c.other, c.why, c.fix)
		}
	}
	return nil
}

// limit returns the option that limits GPU memory, with its value, or "".
func (o Options) limit() string {
	sized := slices.ContainsFunc(o.VirtualGPUs, func(sizes []int) bool { return len(sizes) > 0 })
	return cmp.Or(when(sized, o.setting("VirtualGPUs")), o.setting("MemoryFraction"))
}

func (o Options) needOneDNN() []string {
	if o.Precision != BFloat16 {
		o.Precision = ""
	}
	return o.settings("Precision", "OneDNNSystemAllocator", "OneDNNMath")
}

// Check compares the options with an environment, a list of NAME=value like os.Environ. If
// ConfigProto fails, Check returns its error. Otherwise the error joins an *option.Error for each
// variable that contradicts an option. The warnings name options and variables without effect.
func (o Options) Check(env []string) ([]*option.Error, error) {
	want, err := o.Environment()
	if err != nil {
		return nil, err
	}
	c := checker{set: map[string]string{}}
	for _, kv := range slices.Backward(env) { // the first entry for a name counts
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
	return c.warnings, errors.Join(c.errs...)
}

type checker struct {
	set      map[string]string
	warnings []*option.Error
	errs     []error
}

func (c *checker) warn(setting, text string) {
	if setting != "" {
		c.warnings = append(c.warnings, option.New(setting, text, ""))
	}
}

const unset = "unset it, or leave the option out"

// contradicted adds an error for a setting that TensorFlow ignores because of a variable. An empty
// setting adds none.
func (c *checker) contradicted(setting, variable, why, fix string) {
	if setting != "" {
		c.errs = append(c.errs, contradiction(setting, variable, c.set[variable], why, fix))
	}
}

// overridden adds a warning about a variable that a number of threads overrides.
func (c *checker) overridden(variable, setting string, number int) {
	if have := c.set[variable]; setting != "" && have != "" && have != strconv.Itoa(number) {
		c.warn(variable, fmt.Sprintf("%s is not used: {%s} overrides it (process_util.cc, local_device.cc)", have, setting))
	}
}

func (o Options) checkGPU(c *checker) {
	const obeys = "TensorFlow obeys the variable"
	switch growth, ok := c.set[forceGrowth]; {
	case !ok:
	case growth == "true":
		c.contradicted(when(o.MemoryFraction == 1, o.setting("MemoryFraction")), forceGrowth,
			"TensorFlow takes memory as needed instead of all of it", unset)
	case growth == "false":
		c.contradicted(o.setting("MemoryGrowth"), forceGrowth, obeys, unset)
	default:
		c.warn(forceGrowth, fmt.Sprintf("TensorFlow accepts only true and false, and ignores %q (gpu_bfc_allocator.cc)",
			growth))
	}
	allocators := []string{cudaMallocAsync, cudaMalloc, memoryGuard}
	allocator := c.set[gpuAllocator]
	switch {
	case allocator != "" && !slices.Contains(allocators, allocator):
		c.warn(gpuAllocator, fmt.Sprintf("TensorFlow accepts only %s, and ignores %q (gpu_process_state.cc)",
			strings.Join(allocators, ", "), allocator))
	case allocator != "" && allocator != o.GPUAllocator:
		c.contradicted(o.setting("GPUAllocator"), gpuAllocator, obeys, unset)
	}
	// memory_guard wraps BFC (gpu_process_state.cc).
	if (allocator == cudaMallocAsync || allocator == cudaMalloc) && o.GPUAllocator == "" {
		c.contradicted(o.setting("UnifiedMemory"), gpuAllocator, "only BFC uses unified memory", unset)
		c.contradicted(o.limit(), gpuAllocator, "only BFC has a limit (gpu_process_state.cc)", unset)
	}
	if o.GPUAllocator == cudaMallocAsync || allocator == cudaMallocAsync {
		c.warn(o.setting("MemoryGrowth"), "cuda_malloc_async always takes memory as needed; the option applies only to "+
			"BFC (gpu_process_state.cc)")
	}
	if have := c.set[systemMemory]; have != "" {
		if n, err := strconv.ParseInt(strings.TrimSpace(have), 10, 64); err != nil || n < 0 {
			c.warn(systemMemory, fmt.Sprintf("TensorFlow accepts only a whole number of MiB from 0, and ignores %q "+
				"(gpu_device.cc)", have))
		} else {
			c.contradicted(o.setting("MemoryFraction"), systemMemory,
				"TensorFlow takes all free memory except that many MiB, whatever the fraction (gpu_device.cc)", unset)
		}
	}
	if shown, ok := c.set["CUDA_VISIBLE_DEVICES"]; ok {
		c.warn(o.setting("VisibleGPUs"), fmt.Sprintf("CUDA_VISIBLE_DEVICES is %q, so the indices refer to the GPUs listed "+
			"there, not to those of nvidia-smi", shown))
	}
}

func (o Options) checkCPU(c *checker) {
	if on, ok := tfprocess.ParseBool(c.set[oneDNN]); ok && !on && o.OneDNN == "" {
		for _, needs := range o.needOneDNN() {
			c.contradicted(needs, oneDNN, "the option needs oneDNN", unset)
		}
	}
	c.overridden("TF_NUM_INTRAOP_THREADS", o.setting("IntraThreads"), o.IntraThreads)
	c.overridden("TF_NUM_INTEROP_THREADS", o.setting("InterThreads"), o.InterThreads)
	jit, auto := flagIn(c.set[xlaFlags], autoJIT)
	level := map[string]string{off: "-1", xlaOn1: "1", xlaOn2: "2"}[o.XLA]
	if auto && jit != "0" && jit != level { // 0 leaves the level to the session
		c.contradicted(o.setting("XLA"), xlaFlags, autoJIT+" in it overrides the option (xla_cluster_util.cc)",
			"remove the flag from it, or leave the option out")
	}
}
