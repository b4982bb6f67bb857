// Package resolved describes the settings that TensorFlow uses, as session.Session reads them back,
// and finds the options that have no effect.
package resolved

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/dtype"
	"steadyfit/internal/native"
	"steadyfit/internal/texts"
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
	// Step describes a traced train step; nil if none was traced. A trace shows neither the operations
	// in XLA clusters nor a computation in a narrower type inside a kernel. oneDNN can round float32 to
	// bfloat16 (gpuopts.Options.OneDNNMath), and a GPU can round it to TensorFloat-32.
	Step *native.Trace
}

// String returns a one-line summary, such as "CPU; bfloat16 in 5 of 6 matrix operations,
// float32 in 1; oneDNN in 6 operations; TensorFlow 2.21.0".
func (r Settings) String() string {
	parts := []string{Devices(r.Devices)}
	if r.Step != nil {
		parts = append(parts, partsOf(r.Step)...)
	}
	return strings.Join(append(parts, "TensorFlow "+r.TensorFlow), "; ")
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
	types := slices.SortedFunc(maps.Keys(t.Matrix), func(a, b dtype.DType) int {
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
		counts[0] += " of " + texts.Count(all, "matrix operation")
		parts = append(parts, strings.Join(counts, ", "))
	}
	if t.Casts > 0 {
		parts = append(parts, texts.Count(t.Casts, "cast"))
	}
	if t.XLAClusters > 0 {
		parts = append(parts, texts.Count(t.XLAClusters, "XLA cluster")+", whose operations are unknown")
	}
	if t.OneDNN > 0 {
		parts = append(parts, "oneDNN in "+texts.Count(t.OneDNN, "operation"))
	}
	return parts
}

// ErrNoGPU is session.ErrNoGPU.
var ErrNoGPU = errors.New("TensorFlow has no GPU here")

// Missing returns a warning for each option without effect, such as a precision in which no
// matrix operation ran, XLA that compiled nothing, or a GPU option without a GPU. It does not
// report effects that a trace cannot show.
func (r Settings) Missing(o gpuopts.Options) (list []*option.Error) {
	warn := func(setting, format string, args ...any) {
		list = append(list, option.New(setting, fmt.Sprintf(format, args...), ""))
	}
	required, settings := o.ForGPU()
	if len(r.Devices) > 0 && !HasGPU(r.Devices) {
		for _, setting := range settings {
			warn(setting, "it has no effect: %v, only %s", ErrNoGPU, strings.Join(ShortNames(r.Devices), ", "))
		}
	}
	t := r.Step
	if t == nil || len(t.Devices) == 0 {
		return list
	}
	if d, rewritten := narrowTypes[o.Precision]; rewritten && t.Matrix[d] == 0 && (t.XLAClusters == 0 || t.Casts == 0) {
		warn("Options.Precision "+string(o.Precision), "no matrix operation ran in %v: the model may fix the types of its "+
			"operations, or the processor may not compute in it; steadyfit doctor reports what the processor has", d)
	}
	if (o.XLA == "on-1" || o.XLA == "on-2") && t.XLAClusters == 0 {
		warn("Options.XLA "+string(o.XLA), "nothing was compiled: TensorFlow found no group of operations that is large "+
			"enough for XLA")
	}
	if HasGPU(r.Devices) && !slices.ContainsFunc(r.Devices, func(d tfbind.Device) bool {
		return d.Type == "GPU" && t.Devices[d.Name] > 0
	}) {
		for _, setting := range append(required, settings...) {
			warn(setting, "no operation ran on a GPU: the model was exported with its operations placed on the CPU, or has "+
				"no operations for a GPU")
		}
	}
	return list
}

// narrowTypes has the element type of each 16-bit precision.
var narrowTypes = map[gpuopts.Precision]dtype.DType{
	gpuopts.BFloat16: dtype.BFloat16, gpuopts.Float16CPU: dtype.Float16, gpuopts.Float16GPU: dtype.Float16,
}

// HasGPU reports whether one of the devices is a GPU.
func HasGPU(devices []tfbind.Device) bool {
	return slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
}

// Devices lists devices by ShortNames, GPUs with their memory.
func Devices(devices []tfbind.Device) string {
	names := ShortNames(devices)
	for i, d := range devices {
		if d.Type == "GPU" {
			names[i] += fmt.Sprintf(" (up to %v)", memory.Bytes(d.MemoryBytes))
		}
	}
	return strings.Join(names, ", ")
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
