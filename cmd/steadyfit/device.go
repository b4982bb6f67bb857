package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"steadyfit/gpuopts"
	"steadyfit/internal/doctor"
	"steadyfit/memory"
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
}

var precisions = map[string]gpuopts.Precision{"fp32": "", "bf16": gpuopts.BFloat16, "fp16": gpuopts.Float16}

var gpuAllocators = map[string]gpuopts.GPUAllocator{"": "", "bfc": gpuopts.BFC, "cuda_malloc_async": gpuopts.CUDAMallocAsync}

// register adds the flags. What is not their own goes into o directly.
func (f *deviceFlags) register(flags *pflag.FlagSet, o *gpuopts.Options) {
	f.flags = flags
	flags.IntVar(&o.IntraThreads, "intra-threads", 0, "threads that share one operation; 0 means one per core")
	flags.IntVar(&o.InterThreads, "inter-threads", 0, "threads that run operations side by side; 0 means one per core")
	flags.StringVar(&f.precision, "precision", "fp32", "what the model computes in, where TensorFlow deems it safe: fp32 (as exported), bf16 (CPU), fp16 (GPU; emulated, and slow, on a CPU); variables stay as they are")
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

// parse puts what the flags say into o.
func (f *deviceFlags) parse(o *gpuopts.Options) error {
	var ok bool
	if o.Precision, ok = precisions[f.precision]; !ok {
		return usagef("--precision %s: expected fp32, bf16 or fp16", f.precision)
	}
	if o.GPUAllocator, ok = gpuAllocators[f.allocator]; !ok {
		return usagef("--gpu-allocator %s: expected bfc or cuda_malloc_async", f.allocator)
	}
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
	// To the options, off is as if nothing had been said.
	const force = "TF_FORCE_GPU_ALLOW_GROWTH"
	if value := os.Getenv(force); f.flags.Changed("memory-growth") && !o.MemoryGrowth && value == "true" {
		return gpuopts.Contradiction("Options.MemoryGrowth false", force, value, "TensorFlow obeys the variable", "unset it, or leave the option out")
	}
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
