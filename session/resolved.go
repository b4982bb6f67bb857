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
	"steadyfit/internal/contract"
	"steadyfit/internal/english"
	tracing "steadyfit/internal/native" // native is also a type of this package
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// Resolved has the settings that TensorFlow uses, as read back from TensorFlow. Settings that
// cannot be read back, such as the sizes of thread pools, are absent.
type Resolved struct {
	// TensorFlow is the version.
	TensorFlow string
	// Devices are TensorFlow's devices. MemoryBytes of a GPU is the limit of its allocator.
	Devices []tfbind.Device
	// Unlimited names a GPU allocator without a limit, such as cuda_malloc_async; empty if the
	// allocator has a limit.
	Unlimited string
	// Step describes a traced train step; nil if none was traced.
	Step *TracedStep
	// StepsPerExecution is the number of train steps that StepsSignature runs per execution. It
	// is 0 if steps run one by one or no step was traced. The traced step is always a single
	// step.
	StepsPerExecution int
	StepsSignature    string
	// Untraced is the reason why no step was traced; empty otherwise.
	Untraced string
}

// TracedStep counts the operations of a traced train step.
type TracedStep struct {
	// Operations counts the operations by the full name of their device. It is empty, like all
	// other fields, if the executor cannot trace (gpuopts.SingleThreaded).
	Operations map[string]int
	// Allocators has the peak memory of each TensorFlow allocator by its name, measured at the
	// end of each operation for the whole process. It includes the snapshot that
	// Session.Resolved takes. It is unknown if the allocator does not count.
	Allocators map[string]memory.Reading
	// Matrix counts matrix multiplications and convolutions, with their gradients, by the type
	// of their output. Floating counts all operations with floating-point outputs.
	//
	// A trace shows neither the operations in XLA clusters nor a computation in a narrower type
	// inside a kernel. oneDNN can round float32 to bfloat16 (gpuopts.Options.OneDNNMath), and a
	// GPU can round it to TensorFloat-32.
	Matrix, Floating map[tfbind.DType]int
	// Casts counts the casts that gpuopts.Options.Precision inserted.
	Casts int
	// Clusters counts the executions of XLA-compiled code. OneDNN counts the operations that
	// oneDNN ran.
	Clusters, OneDNN int
}

// Resolved returns the resolved settings. If b has samples, it traces a train step on b and
// then restores all variables bit for bit. Untraced is set if training has state that cannot be
// restored (contract.CodeStateNotSaved, CodeNoSaver), or if the step fails in TensorFlow.
//
// The traced step takes the time and the memory of a train step and a Snapshot, and some
// hundred bytes per operation. With micro-batches, one of them is traced. If the variables
// cannot be restored, Resolved returns an error, and some of the variables may be updated.
func (s *Session) Resolved(ctx context.Context, b data.Batch) (r Resolved, err error) {
	if r.Devices, err = s.devices(); err != nil {
		return r, err
	}
	info, err := tfbind.Load("")
	if err != nil {
		return r, err
	}
	r.TensorFlow = info.Version
	if first, env, ok := tfbind.FirstSession(); ok && hasGPU(r.Devices) {
		r.Unlimited = gpuopts.Unlimited(first, env)
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
		// The trace shows an XLA-compiled signature as a call of a function.
		r.Step.Clusters = t.Calls
	}
	if n := s.Stackable(s.opts.StepsPerExecution, b.Size); n > 1 {
		r.StepsPerExecution, r.StepsSignature = n, s.stacker.choose(n, b.Size, s.opts.StepsPerExecution).Signature.Name
	}
	return r, nil
}

// untraceable returns why a step cannot be traced and undone; empty if it can.
func (s *Session) untraceable() string {
	if s.train == nil {
		return "the session was opened read-only"
	}
	for _, p := range s.model.ProblemsFor(s.opts.TrainSignature) {
		if p.Code == contract.CodeStateNotSaved || p.Code == contract.CodeNoSaver && len(s.model.Variables) > 0 {
			return p.Message
		}
	}
	return ""
}

// errUndone means that the variables could not be restored after a traced step.
var errUndone = errors.New("the variables could not be restored after the traced step, and their values are unknown")

// rehearse traces a train step and restores the variables.
func (s *Session) rehearse(ctx context.Context, b data.Batch) (metadata []byte, err error) {
	before, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	if math.IsNaN(s.rate) {
		s.rate = 0 // any rate is valid, because Revert restores NaN
	}
	metadata, err = s.Trace(ctx, 0, b, make([]float64, len(s.trainNames)))
	if undone := s.Revert(context.WithoutCancel(ctx), before); undone != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errUndone, undone))
	}
	return metadata, err
}

// String returns a one-line summary, such as "CPU; bfloat16 in 5 of 6 matrix operations,
// float32 in 1; oneDNN in 6 operations; TensorFlow 2.21.0".
func (r Resolved) String() string {
	parts := []string{r.devices()}
	if r.StepsPerExecution > 1 {
		parts = append(parts, fmt.Sprintf("the trace shows a single step, but the training runs %d steps per execution of %s", r.StepsPerExecution, r.StepsSignature))
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

// devices lists the devices. If there are several, each has its number of operations.
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
			names[i] += fmt.Sprintf(" with %s", english.Count(r.Step.Operations[d.Name], "operation"))
		}
	}
	return strings.Join(names, ", ")
}

func (t *TracedStep) parts() (parts []string) {
	if len(t.Operations) == 0 {
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
	case t.Clusters == 0:
		parts = append(parts, "no matrix operations")
	}
	if t.Casts > 0 {
		parts = append(parts, english.Count(t.Casts, "cast"))
	}
	if t.Clusters > 0 {
		parts = append(parts, english.Count(t.Clusters, "XLA cluster")+", whose operations are unknown")
	}
	if t.OneDNN > 0 {
		parts = append(parts, "oneDNN in "+english.Count(t.OneDNN, "operation"))
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

// Missing returns a warning for each option without effect, such as a precision in which no
// matrix operation ran, XLA that compiled nothing, or a GPU option without a GPU. It does not
// report effects that a trace cannot show. These include precision and XLA with several steps
// per execution.
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
	if single && (o.XLA == "on-1" || o.XLA == "on-2") && t.Clusters == 0 {
		warn("Options.XLA "+string(o.XLA), "nothing was compiled: TensorFlow found no group of at least {Options.XLAMinCluster} operations that XLA can compile")
	}
	if gpus && !slices.ContainsFunc(r.Devices, func(d tfbind.Device) bool { return d.Type == "GPU" && t.Operations[d.Name] > 0 }) {
		settings := o.ForGPU()
		if asks := o.AsksForGPU(); asks != "" {
			settings = []string{asks}
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

// whyNot returns why no matrix operation ran in type d. It returns "" if one did, or if XLA may
// have compiled it.
func (t *TracedStep) whyNot(d tfbind.DType) string {
	nothing := fmt.Sprintf("nothing ran in %v: ", d)
	switch {
	case t.Matrix[d] > 0 || t.Clusters > 0 && t.Casts > 0:
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

func hasGPU(devices []tfbind.Device) bool {
	return slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
}

// shortNames returns device names without job and task, such as "GPU:0". The only CPU is "CPU".
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
