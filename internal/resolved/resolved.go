// Package resolved describes the settings that TensorFlow uses, as session.Session reads them back,
// and finds the options that have no effect.
package resolved

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/cpu"

	"steadyfit/gpuopts"
	"steadyfit/internal/english"
	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// Settings has the settings that TensorFlow uses, as read back from TensorFlow. Settings that
// cannot be read back, such as the sizes of thread pools, are absent.
type Settings struct {
	// TensorFlow is the version of the library.
	TensorFlow string
	// Devices are TensorFlow's devices. MemoryBytes of a GPU is the limit of its allocator.
	Devices []tfbind.Device
	// Unlimited names a GPU allocator without a limit, such as cuda_malloc_async; empty if the
	// allocator has a limit.
	Unlimited string
	// Step describes a traced train step; nil if none was traced. A trace shows neither the operations
	// in XLA clusters nor a computation in a narrower type inside a kernel. oneDNN can round float32 to
	// bfloat16 (gpuopts.Options.OneDNNMath), and a GPU can round it to TensorFloat-32.
	Step *native.Trace
	// StepsPerExecution is the number of train steps that StepsSignature runs per execution. It
	// is 0 if steps run one by one or no step was traced. The traced step is always a single
	// step.
	StepsPerExecution int
	StepsSignature    string
	// Untraced is the reason why no step was traced; empty otherwise.
	Untraced string
}

// String returns a one-line summary, such as "CPU; bfloat16 in 5 of 6 matrix operations,
// float32 in 1; oneDNN in 6 operations; TensorFlow 2.21.0".
func (r Settings) String() string {
	parts := []string{r.devices()}
	if r.StepsPerExecution > 1 {
		parts = append(parts, fmt.Sprintf("the trace shows a single step, but the training runs %d steps per execution of %s", r.StepsPerExecution, r.StepsSignature))
	}
	if r.Step != nil {
		parts = append(parts, partsOf(r.Step)...)
	}
	if r.Untraced != "" {
		parts = append(parts, "no step was traced: "+strings.Join(strings.Fields(r.Untraced), " "))
	}
	if r.TensorFlow != "" {
		parts = append(parts, "TensorFlow "+r.TensorFlow)
	}
	return strings.Join(parts, "; ")
}

// devices lists the devices. If there are several, the list includes the number of operations of
// each.
func (r Settings) devices() string {
	if len(r.Devices) == 0 {
		return "no devices"
	}
	names := ShortNames(r.Devices)
	for i, d := range r.Devices {
		switch {
		case d.Type != "GPU":
		case r.Unlimited != "":
			names[i] += fmt.Sprintf(" (%s, without a limit)", r.Unlimited)
		default:
			names[i] += fmt.Sprintf(" (up to %v)", memory.Bytes(d.MemoryBytes))
		}
		if len(r.Devices) > 1 && r.Step != nil && len(r.Step.Devices) > 0 {
			names[i] += fmt.Sprintf(" with %s", english.Count(r.Step.Devices[d.Name], "operation"))
		}
	}
	return strings.Join(names, ", ")
}

func partsOf(t *native.Trace) (parts []string) {
	if len(t.Devices) == 0 {
		return []string{"the executor cannot trace"}
	}
	all := 0
	for _, n := range t.Matrix {
		all += n
	}
	// Options ask for narrow types, which are therefore listed first.
	types := slices.SortedFunc(maps.Keys(t.Matrix), func(a, b tfbind.DType) int {
		return cmp.Or(cmp.Compare(a.Size(), b.Size()), cmp.Compare(a, b))
	})
	switch {
	case len(types) == 1:
		parts = append(parts, fmt.Sprintf("%v in all matrix operations (%d)", types[0], all))
	case all > 0:
		var counts []string
		for _, d := range types {
			counts = append(counts, fmt.Sprintf("%v in %d", d, t.Matrix[d]))
		}
		counts[0] += " of " + english.Count(all, "matrix operation")
		parts = append(parts, strings.Join(counts, ", "))
	case t.XLAClusters == 0:
		parts = append(parts, "no matrix operations")
	}
	if t.Casts > 0 {
		parts = append(parts, english.Count(t.Casts, "cast"))
	}
	if t.XLAClusters > 0 {
		parts = append(parts, english.Count(t.XLAClusters, "XLA cluster")+", whose operations are unknown")
	}
	if t.OneDNN > 0 {
		parts = append(parts, "oneDNN in "+english.Count(t.OneDNN, "operation"))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Allocators)) {
		text := "allocator " + name
		if peak := t.Allocators[name].Peak; peak.OK {
			text += fmt.Sprintf(" (peak %v)", peak.Bytes)
		}
		parts = append(parts, text)
	}
	return parts
}

// ErrNoGPU is session.ErrNoGPU.
var ErrNoGPU = errors.New("TensorFlow has no GPU here")

// Missing returns a warning for each option without effect, such as a precision in which no
// matrix operation ran, XLA that compiled nothing, or a GPU option without a GPU. It does not
// report effects that a trace cannot show. These include precision and XLA with several steps
// per execution.
func (r Settings) Missing(o gpuopts.Options) (list []*option.Error) {
	warn := func(setting, format string, args ...any) {
		list = append(list, option.New(setting, fmt.Sprintf(format, args...), ""))
	}
	gpus := HasGPU(r.Devices)
	required, settings := o.ForGPU()
	if len(r.Devices) > 0 && !gpus {
		for _, setting := range settings {
			warn(setting, "it has no effect: %v, only %s", ErrNoGPU, strings.Join(ShortNames(r.Devices), ", "))
		}
	}
	t := r.Step
	if t == nil || len(t.Devices) == 0 {
		return list
	}
	single := r.StepsPerExecution < 2
	if narrow, rewritten := narrowTypes[o.Precision]; single && rewritten {
		if why := whyNot(t, narrow); why != "" {
			warn("Options.Precision "+string(o.Precision), "%s", why)
		}
	}
	if single && (o.XLA == "on-1" || o.XLA == "on-2") && t.XLAClusters == 0 {
		warn("Options.XLA "+string(o.XLA), "nothing was compiled: TensorFlow found no group of at least {Options.XLAMinCluster} operations that XLA can compile")
	}
	if gpus && !slices.ContainsFunc(r.Devices, func(d tfbind.Device) bool { return d.Type == "GPU" && t.Devices[d.Name] > 0 }) {
		if len(required) > 0 {
			settings = required[:1]
		}
		for _, setting := range settings {
			warn(setting, "no operation ran on a GPU: the model was exported with its operations placed on the CPU, or has no operations for a GPU")
		}
	}
	return list
}

// narrowTypes has the element type of each 16-bit precision.
var narrowTypes = map[gpuopts.Precision]tfbind.DType{
	gpuopts.BFloat16: tfbind.BFloat16, gpuopts.Float16CPU: tfbind.Float16, gpuopts.Float16GPU: tfbind.Float16,
}

// whyNot returns why no matrix operation ran in type d. It returns "" if such an operation ran, or
// if XLA may have compiled one.
func whyNot(t *native.Trace, d tfbind.DType) string {
	nothing := fmt.Sprintf("nothing ran in %v: ", d)
	switch {
	case t.Matrix[d] > 0 || t.XLAClusters > 0 && t.Casts > 0:
		return ""
	case t.Casts > 0 || t.Floating[d] > 0:
		return fmt.Sprintf("no matrix operation returned %v, although other values are cast to it: the step computes in the original type and also casts", d)
	case d == tfbind.BFloat16 && t.OneDNN == 0:
		return nothing + "only oneDNN computes in it, and oneDNN ran no operation; steadyfit doctor reports whether oneDNN is on"
	case d == tfbind.BFloat16 && runtime.GOARCH == "amd64" && !cpu.X86.HasAVX512F:
		return nothing + "this CPU has no AVX-512, which oneDNN needs for bfloat16 on most CPUs (tensorflow/core/util/util.cc)"
	case len(t.Matrix) == 0:
		return nothing + "the step has no matrix operations that could be rewritten"
	}
	return nothing + "the model may fix the types of its operations, or have no operations that TensorFlow considers safe to rewrite (auto_mixed_precision_lists.h)"
}

// HasGPU reports whether one of the devices is a GPU.
func HasGPU(devices []tfbind.Device) bool {
	return slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
}

// ShortNames returns device names without job and task, such as "GPU:0". The only CPU is "CPU".
func ShortNames(devices []tfbind.Device) []string {
	names := make([]string, len(devices))
	cpus := 0
	for i, d := range devices {
		_, name, _ := strings.Cut(d.Name, "device:")
		names[i] = cmp.Or(name, d.Name)
		if d.Type == "CPU" {
			cpus++
		}
	}
	if i := slices.Index(names, "CPU:0"); i >= 0 && cpus == 1 {
		names[i] = "CPU"
	}
	return names
}
