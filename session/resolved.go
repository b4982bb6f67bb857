package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/cpu"

	"steadyfit/data"
	"steadyfit/gpuopts"
	tracing "steadyfit/internal/native" // native is a type of this package
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Resolved is the settings that TensorFlow really has, read back from it rather than taken
// from options. Settings that cannot be read back, such as the sizes of thread pools, are
// absent.
type Resolved struct {
	// TensorFlow is its version.
	TensorFlow string
	// Devices are the devices of TensorFlow. MemoryBytes of a GPU is the limit of its
	// allocator, if Unlimited is empty.
	Devices []tfbind.Device
	// Unlimited names an allocator of GPU memory without a limit, such as
	// cuda_malloc_async.
	Unlimited string
	// Step is a traced train step; nil if none was traced.
	Step *TracedStep
	// StepsPerExecution is the number of train steps that the training runs per execution
	// of StepsSignature, which is not what was traced; 0 if steps run one by one, or none
	// was traced.
	StepsPerExecution int
	StepsSignature    string
	// Untraced says why the step was not traced; else it is empty.
	Untraced string
}

// TracedStep is a traced train step, as numbers of operations.
type TracedStep struct {
	// Operations is by the full name of the device. It is empty, and so is the rest, if the
	// executor cannot trace (gpuopts.SingleThreaded).
	Operations map[string]int
	// Allocators has the largest amount that each of TensorFlow's allocators had handed
	// out at the end of an operation, by its name: to the whole process, and with a second
	// copy of the variables (see Session.Resolved). It is unknown for allocators that do not
	// count.
	Allocators map[string]memory.Reading
	// Matrix counts the operations that multiply matrices or convolve, gradients included,
	// by the element type of their output. They take most of the time of most models.
	// Floating counts all with floating-point outputs, which includes reading variables.
	//
	// A kernel may compute in another type: oneDNN can round float32 to bfloat16
	// (gpuopts.Options.OneDNNMath), a GPU to TensorFloat-32, and a trace does not show
	// that, nor the operations in XLA's clusters.
	Matrix, Floating map[tfbind.DType]int
	// Casts counts those that rewriting to 16 bits (gpuopts.Options.Precision) inserted.
	Casts int
	// Clusters counts the runs of code that XLA compiled, OneDNN the operations of oneDNN.
	Clusters, OneDNN int
}

// Resolved returns the resolved settings. With a batch, it trains on it in a step that is
// traced and undone: all variables are as before, bit for bit. Without samples (the zero
// Batch), if training has state that cannot be restored (savedmodels.CodeStateNotSaved,
// CodeNoSaver), or if the step fails in TensorFlow, no step is traced.
//
// The step takes the time and the memory of a train step, which TensorFlow may keep, a
// Snapshot, and some hundred bytes per operation. With micro-batches the last one is
// traced, with several steps per execution a single step. If the state cannot be restored,
// that is the error, and the variables are in doubt.
func (s *Session) Resolved(ctx context.Context, b data.Batch) (r Resolved, err error) {
	if r.Devices, err = s.Devices(); err != nil {
		return r, err
	}
	info, err := tfbind.Load("")
	if err != nil {
		return r, err
	}
	r.TensorFlow = info.Version
	if first, ok := tfbind.FirstConfig(); ok && hasGPU(r.Devices) {
		r.Unlimited = gpuopts.Unlimited(first, deviceEnviron())
	}
	if b.Size == 0 {
		return r, nil
	}
	if r.Untraced = s.untraceable(); r.Untraced != "" {
		return r, nil
	}
	metadata, err := s.rehearse(ctx, b)
	if err != nil {
		if errors.As(err, new(*tfbind.Error)) && !errors.Is(err, errUndone) {
			r.Untraced = err.Error()
			return r, nil
		}
		return r, err
	}
	t, err := tracing.ReadTrace(metadata)
	if err != nil {
		return r, err
	}
	r.Step = &TracedStep{
		Operations: t.Devices, Allocators: map[string]memory.Reading{},
		Matrix: t.Matrix, Floating: t.Floating, Casts: t.Casts, Clusters: t.XLAClusters, OneDNN: t.OneDNN,
	}
	for name, use := range t.Allocators {
		r.Step.Allocators[name] = use.Peak
	}
	if s.compiledFor(b.Size) != nil && s.parts < 2 && r.Step.Clusters == 0 {
		// The trace shows an XLA-compiled signature as a call of the function.
		r.Step.Clusters = t.Calls
	}
	if n := s.Stackable(s.opts.StepsPerExecution, b.Size); n > 1 {
		r.StepsPerExecution, r.StepsSignature = n, s.stacker.choose(n, b.Size, s.opts.StepsPerExecution).signature.Name
	}
	return r, nil
}

// untraceable says why a step cannot be traced and undone; empty if it can.
func (s *Session) untraceable() string {
	if s.train == nil {
		return "the session was opened to read only"
	}
	for _, p := range s.model.ProblemsFor(s.opts.TrainSignature) {
		if p.Code == savedmodels.CodeStateNotSaved || p.Code == savedmodels.CodeNoSaver && len(s.model.Variables) > 0 {
			return p.Message
		}
	}
	return ""
}

// errUndone: the changes of a rehearsal could not be undone.
var errUndone = errors.New("the state before the traced step could not be restored, so that the variables are in doubt")

// rehearse traces a train step, and undoes it.
func (s *Session) rehearse(ctx context.Context, b data.Batch) (metadata []byte, err error) {
	before, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	if math.IsNaN(s.rate) {
		s.rate = 0 // any will do; Revert restores that none is set
	}
	metadata, err = s.Trace(ctx, 0, b, make([]float64, len(s.trainNames)))
	if undone := s.Revert(context.WithoutCancel(ctx), before); undone != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errUndone, undone))
	}
	return metadata, err
}

// String is one line, as in "CPU; bfloat16 in 5 of 6 matrix operations, float32 in 1; 11
// casts; oneDNN in 6 operations; allocator mklcpu (peak 1.5 MiB); TensorFlow 2.21.0".
func (r Resolved) String() string {
	parts := []string{r.devices()}
	if r.StepsPerExecution > 1 {
		parts = append(parts, fmt.Sprintf("traced was one step, not the executions of %d by %s", r.StepsPerExecution, r.StepsSignature))
	}
	if r.Step != nil {
		parts = append(parts, r.Step.parts()...)
	}
	if r.Untraced != "" {
		parts = append(parts, "no step was traced: "+strings.Join(strings.Fields(r.Untraced), " "))
	}
	if r.TensorFlow != "" {
		parts = append(parts, "TensorFlow "+r.TensorFlow)
	}
	return strings.Join(parts, "; ")
}

// devices names the devices, and if there are several how many operations each ran.
func (r Resolved) devices() string {
	if len(r.Devices) == 0 {
		return "no devices"
	}
	names := shortNames(r.Devices)
	for i, d := range r.Devices {
		switch {
		case d.Type != "GPU":
		case r.Unlimited != "":
			names[i] += fmt.Sprintf(" (%s, without a limit)", r.Unlimited)
		default:
			names[i] += fmt.Sprintf(" (up to %v)", memory.Bytes(d.MemoryBytes))
		}
		if len(r.Devices) > 1 && r.Step != nil && len(r.Step.Operations) > 0 {
			names[i] += fmt.Sprintf(" with %s", plural(r.Step.Operations[d.Name], "operation"))
		}
	}
	return strings.Join(names, ", ")
}

func (t *TracedStep) parts() (parts []string) {
	if len(t.Operations) == 0 {
		return []string{"the executor does not trace"}
	}
	all := 0
	for _, n := range t.Matrix {
		all += n
	}
	// The narrow types first, which are those that options ask for.
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
		counts[0] += " of " + plural(all, "matrix operation")
		parts = append(parts, strings.Join(counts, ", "))
	case t.Clusters == 0:
		parts = append(parts, "no matrix operations")
	}
	if t.Casts > 0 {
		parts = append(parts, plural(t.Casts, "cast"))
	}
	if t.Clusters > 0 {
		parts = append(parts, plural(t.Clusters, "XLA cluster")+", not looked into")
	}
	if t.OneDNN > 0 {
		parts = append(parts, "oneDNN in "+plural(t.OneDNN, "operation"))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Allocators)) {
		text := "allocator " + name
		if peak := t.Allocators[name]; peak.OK {
			text += fmt.Sprintf(" (peak %v)", peak.Bytes)
		}
		parts = append(parts, text)
	}
	return parts
}

// Missing returns warnings of options without effect: a precision that no matrix operation
// ran in, an XLA that compiled nothing, a GPU that ran nothing, and options for GPUs where
// there is none. It does not warn of what was not traced: with several steps per
// execution, precision and XLA.
func (r Resolved) Missing(o gpuopts.Options) (list []*option.Error) {
	warn := func(setting, format string, args ...any) {
		list = append(list, option.New(setting, fmt.Sprintf(format, args...), ""))
	}
	gpus := hasGPU(r.Devices)
	if len(r.Devices) > 0 && !gpus {
		for _, setting := range o.ForGPU() {
			warn(setting, "it has no effect: %v, only %s", ErrNoGPU, strings.Join(shortNames(r.Devices), ", "))
		}
	}
	t := r.Step
	if t == nil || len(t.Operations) == 0 {
		return list
	}
	single := r.StepsPerExecution < 2
	if narrow, rewritten := narrowTypes[o.Precision]; single && rewritten {
		if why := t.whyNot(narrow); why != "" {
			warn("Options.Precision "+string(o.Precision), "%s", why)
		}
	}
	if single && (o.XLA == gpuopts.XLAOn1 || o.XLA == gpuopts.XLAOn2) && t.Clusters == 0 {
		warn("Options.XLA "+string(o.XLA), "nothing was compiled: TensorFlow found no operations that go together ({Options.XLAMinCluster} is how many it takes), or none that XLA can compile")
	}
	if gpus && !slices.ContainsFunc(r.Devices, func(d tfbind.Device) bool { return d.Type == "GPU" && t.Operations[d.Name] > 0 }) {
		settings := o.ForGPU()
		if asks := o.AsksForGPU(); asks != "" {
			settings = []string{asks}
		}
		for _, setting := range settings {
			warn(setting, "no operation ran on a GPU: the model was exported with its operations placed on the CPU, or has none that a GPU runs")
		}
	}
	return list
}

// narrowTypes are the types that rewriting computes in.
var narrowTypes = map[gpuopts.Precision]tfbind.DType{
	gpuopts.BFloat16: tfbind.BFloat16, gpuopts.Float16CPU: tfbind.Float16, gpuopts.Float16GPU: tfbind.Float16,
}

// whyNot says why no matrix operation ran in 16 bits; empty if one did, or XLA may have
// compiled it.
func (t *TracedStep) whyNot(d tfbind.DType) string {
	nothing := fmt.Sprintf("nothing ran in %v: ", d)
	switch {
	case t.Matrix[d] > 0 || t.Clusters > 0 && t.Casts > 0:
		return ""
	case t.Casts > 0 || t.Floating[d] > 0:
		return fmt.Sprintf("no matrix operation returned %v, though values in between are cast to it: the step computes as before, and casts in addition", d)
	case d == tfbind.BFloat16 && t.OneDNN == 0:
		return nothing + "oneDNN computes it, and ran no operation; steadyfit doctor says whether it is on"
	case d == tfbind.BFloat16 && runtime.GOARCH == "amd64" && !cpu.X86.HasAVX512F:
		return nothing + "this CPU has no AVX-512, without which oneDNN has no bfloat16 on most CPUs (tensorflow/core/util/util.cc)"
	case len(t.Matrix) == 0:
		return nothing + "the step has no matrix operations that could be rewritten"
	}
	return nothing + "the model may fix the types of its operations, or have none that TensorFlow deems safe to rewrite (auto_mixed_precision_lists.h)"
}

func hasGPU(devices []tfbind.Device) bool {
	return slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
}

// shortNames are the names of devices without their job and task: "GPU:0", and "CPU" if
// there is one.
func shortNames(devices []tfbind.Device) []string {
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

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
