package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"steadyfit/gpuopts"
	"steadyfit/internal/doctor"
	"steadyfit/internal/flags"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// deviceFlags choose the settings of TensorFlow's devices, alike for every command that
// opens a session.
type deviceFlags struct {
	precision, allocator string
	limits               []string
	xla                  bool
	flags                *pflag.FlagSet
	warnings             []*option.Error
}

// The words of --precision.
const (
	precisionFP32 = "fp32"
	precisionBF16 = "bf16"
	precisionFP16 = "fp16"
)

var gpuAllocators = map[string]gpuopts.GPUAllocator{"": "", "bfc": gpuopts.BFC, "cuda_malloc_async": gpuopts.CUDAMallocAsync}

// register adds the flags. What is not their own goes into o directly.
func (f *deviceFlags) register(flags *pflag.FlagSet, o *gpuopts.Options) {
	f.flags = flags
	flags.IntVar(&o.IntraThreads, "intra-threads", 0, "threads that share one operation; 0 means one per core")
	flags.IntVar(&o.InterThreads, "inter-threads", 0, "threads that run operations side by side; 0 means one per core")
	flags.StringVar(&f.precision, "precision", precisionFP32, "what the model computes in, where TensorFlow deems it safe: fp32 (as exported), bf16 (CPU), fp16 (GPU; emulated, and slow, on a CPU); variables stay as they are")
	flags.BoolVar(&f.xla, "xla", false, "compile what XLA can compile, beyond what was exported so")
	flags.BoolVar(&o.Deterministic, "deterministic", false, "operations give the same result every time or are an error, at a price in speed (TF_DETERMINISTIC_OPS)")
	growth := flags.VarPF(&growthFlag{&o.MemoryGrowth}, "memory-growth", "", "take GPU memory as it is needed rather than at the start, on all GPUs alike")
	growth.NoOptDefVal = "true"
	flags.Float64Var(&o.MemoryFraction, "gpu-memory-fraction", 0, "part of each GPU's memory to take at most; 0 leaves it to TensorFlow")
	flags.StringSliceVar(&f.limits, "gpu-memory-limit", nil, "memory to take at most of each of --visible-gpus, in their order, as in 2GiB,512MiB")
	flags.StringVar(&f.allocator, "gpu-allocator", "", "what manages GPU memory: bfc (TensorFlow's own, the default), cuda_malloc_async (CUDA's)")
	flags.IntSliceVar(&o.VisibleGPUs, "visible-gpus", nil, "GPUs to use, counted as nvidia-smi does, as in 0,1; default all")
}

// growthFlag is --memory-growth.
type growthFlag struct{ on *bool }

func (f *growthFlag) String() string {
	if f.on == nil {
		return "false"
	}
	return strconv.FormatBool(*f.on)
}

func (f *growthFlag) Type() string { return "bool" }

func (f *growthFlag) Set(text string) error {
	on, err := strconv.ParseBool(text)
	if strings.Contains(text, ",") {
		return errors.New("expected one value: TensorFlow wants memory growth alike on all GPUs")
	}
	if err != nil {
		return errors.New("expected true or false")
	}
	*f.on = on
	return nil
}

// apply puts what the flags say into o, and has the process run under the variables
// that this needs, which starts it anew; what contradicts itself or the environment is
// a usage error. It comes before anything that takes time.
func (f *deviceFlags) apply(o *gpuopts.Options) error {
	switch f.precision {
	case precisionFP32, precisionFP16: // for fp16, see decide
	case precisionBF16:
		o.Precision = gpuopts.BFloat16
	default:
		return usagef("--precision %s: expected fp32, bf16 or fp16", f.precision)
	}
	allocator, ok := gpuAllocators[f.allocator]
	if !ok {
		return usagef("--gpu-allocator %s: expected bfc or cuda_malloc_async", f.allocator)
	}
	o.GPUAllocator = allocator
	switch {
	case f.xla:
		o.XLA = gpuopts.XLAOn2
	case f.flags.Changed("xla"):
		o.XLA = gpuopts.XLAOff
	}
	o.VirtualGPUs = nil
	for _, text := range f.limits {
		size, err := memory.ParseBytes(text)
		if err != nil {
			return usagef("--gpu-memory-limit: %w", err)
		}
		if size < memory.MiB {
			return usagef("--gpu-memory-limit %s: TensorFlow counts a GPU's memory in MiB; expected at least one", text)
		}
		o.VirtualGPUs = append(o.VirtualGPUs, []int{int(size / memory.MiB)})
	}
	var err error
	if f.warnings, err = o.Check(os.Environ()); err != nil {
		return unusable(err)
	}
	// To the options, off is as if nothing had been said.
	const force = "TF_FORCE_GPU_ALLOW_GROWTH"
	if value := os.Getenv(force); f.flags.Changed("memory-growth") && !o.MemoryGrowth && value == "true" {
		return gpuopts.Contradiction("Options.MemoryGrowth false", force, value, "TensorFlow obeys the variable", "unset it, or leave the option out")
	}
	return unusable(session.UseEnvironment(*o))
}

// warn prints what has no effect, once the process need not be started anew any more.
// A supervised one leaves it to its parent, and one that was started anew has said it.
func (f *deviceFlags) warn(stderr io.Writer) {
	if os.Getenv(session.SupervisedEnv) != "" || startedAnew() {
		return
	}
	for _, w := range f.warnings {
		fmt.Fprintf(stderr, "steadyfit: warning: %s\n", option.Text(w, flags.Name))
	}
}

// decide settles what fp16 is, which depends on the devices that an open TensorFlow
// has: asking for them is what sets them up, with the options of the session to come.
func (f *deviceFlags) decide(o *gpuopts.Options, stderr io.Writer) error {
	if f.precision != precisionFP16 {
		return nil
	}
	types, err := deviceTypes(*o)
	if err != nil {
		return fmt.Errorf("--precision fp16: looking for a GPU: %w", err)
	}
	if types["GPU"] {
		o.Precision = gpuopts.Float16GPU
		return nil
	}
	o.Precision = gpuopts.Float16CPU
	fmt.Fprintf(stderr, "steadyfit: warning: --precision fp16: TensorFlow has no GPU here, only %s, and emulates float16 there with float32, which is slow; --precision bf16 is for CPUs\n",
		strings.Join(slices.Sorted(maps.Keys(types)), ", "))
	return nil
}

// noGPU adds to the error of options that ask for a GPU in vain what keeps TensorFlow from
// having one, library by library.
func (g *global) noGPU(ctx context.Context, err error) error {
	if !errors.Is(err, session.ErrNoGPU) {
		return err
	}
	text := ""
	for _, c := range doctor.Examine(ctx, doctor.Options{TensorFlow: g.tensorflow, NeedGPU: true}).Checks {
		if c.Group == "GPU" && c.Status == doctor.Problem {
			text += fmt.Sprintf("\n  %s: %s", c.Name, c.Found)
		}
	}
	switch {
	case text != "":
	case errors.As(err, new(*tfbind.Error)): // it has others
		return &environmentError{fmt.Errorf("%w\nsteadyfit doctor --gpu lists the GPUs that there are", err)}
	default:
		text = "\n  all that it needs is there: with --verbose, TensorFlow says what it made of it"
	}
	return &environmentError{fmt.Errorf("%w%s\nsteadyfit doctor --gpu says what to do", err, text)}
}

// mayFail reports whether the flags ask for something that may not take effect, so that
// it is worth a traced step to look.
func (f *deviceFlags) mayFail(o gpuopts.Options) bool {
	return o.Precision != "" || f.xla || o.AsksForGPU() != "" || len(o.ForGPU()) > 0
}

// deviceTypes are the kinds of devices that TensorFlow has with these options.
func deviceTypes(o gpuopts.Options) (types map[string]bool, err error) {
	config, err := o.ConfigProto()
	if err != nil {
		return nil, err
	}
	graph, err := tfbind.NewGraph()
	if err != nil {
		return nil, err
	}
	defer graph.Close()
	s, err := tfbind.NewSession(graph, config)
	if err != nil {
		return nil, session.GPUError(o, err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	devices, err := s.Devices()
	if err != nil {
		return nil, err
	}
	types = map[string]bool{}
	for _, d := range devices {
		types[d.Type] = true
	}
	return types, nil
}
