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

// Effects are what TensorFlow has and does, read back from it rather than taken from
// options. What cannot be read back is absent: of thread pools, for instance, TensorFlow
// does not tell how large they are.
type Effects struct {
	// TensorFlow is its version.
	TensorFlow string
	// Devices are those that TensorFlow has. MemoryBytes of a GPU is the most that its
	// allocator may take, unless that is Unlimited.
	Devices []tfbind.Device
	// Unlimited names an allocator of GPU memory that keeps to no limit, such as
	// cuda_malloc_async; it is empty if there is none.
	Unlimited string
	// Step is what a train step did; nil if none was traced.
	Step *StepEffects
	// Together is how many train steps a call of the training runs with the signature
	// TogetherBy (Options.StepsPerExecution), which is not what was traced; 0 if steps run one by
	// one, or none was traced.
	Together   int
	TogetherBy string
	// Untraced says why a step was not traced that was to be; else it is empty.
	Untraced string
}

// StepEffects are what a traced train step did, as numbers of operations that ran.
type StepEffects struct {
	// Operations is by the full name of the device. It is empty where the executor cannot
	// trace (gpuopts.SingleThreaded), and then so is the rest.
	Operations map[string]int
	// Allocators has the most that each of TensorFlow's allocators had handed out at the
	// end of an operation, in bytes, by its name: to the whole process, and with the
	// variables once more (see Session.Effects). It is unknown of allocators that keep no
	// count.
	Allocators map[string]memory.Reading
	// Matrix counts the operations that multiply matrices or convolve, gradients
	// included, by the element type of what they gave out. It is where the time of most
	// models goes. Floating counts all that gave out floating-point numbers, which
	// includes reading variables.
	//
	// What a kernel computes in may be another type: oneDNN can round float32 to bfloat16
	// on the way (gpuopts.Options.OneDNNMath), a GPU to TensorFloat-32, and a trace does
	// not tell. Nor does it look into what XLA compiled.
	Matrix, Floating map[tfbind.DType]int
	// Casts are those that rewriting to 16 bits (gpuopts.Options.Precision) put in.
	Casts int
	// Clusters is how often something ran that XLA compiled, OneDNN how many operations
	// were oneDNN's.
	Clusters, OneDNN int
}

// Effects tells what is in force. With a batch, it trains on it, in a step that is traced,
// and undoes that: all variables are as before, bit for bit. A batch of no samples (the
// zero Batch) has nothing traced. Where training has state that could not be brought back
// (savedmodels.CodeStateNotSaved, CodeNoSaver), or the step fails in TensorFlow, none is
// traced either, and Untraced says so.
//
// The step takes the time and the memory of a train step, which TensorFlow may keep, and
// beside that a Snapshot and the trace: some hundred bytes per operation. Of a batch that is
// split it is the last part that is traced, and of a training that runs several steps in one
// call a single step. If the state cannot be brought back, that is
// the error, and the variables are in doubt.
func (s *Session) Effects(ctx context.Context, b data.Batch) (e Effects, err error) {
	if e.Devices, err = s.Devices(); err != nil {
		return e, err
	}
	info, err := tfbind.Load("")
	if err != nil {
		return e, err
	}
	e.TensorFlow = info.Version
	if first, ok := tfbind.FirstConfig(); ok && hasGPU(e.Devices) {
		e.Unlimited = gpuopts.Unlimited(first, deviceEnviron())
	}
	if b.Size == 0 {
		return e, nil
	}
	if s.train == nil {
		e.Untraced = "the session was opened to read only"
		return e, nil
	}
	if e.Untraced = s.notHeld(); e.Untraced != "" {
		return e, nil
	}
	metadata, err := s.rehearse(ctx, b)
	var failed *tfbind.Error
	switch {
	case err == nil:
	case errors.As(err, &failed) && !errors.Is(err, errUndone):
		e.Untraced = err.Error()
		return e, nil
	default:
		return e, err
	}
	t, err := tracing.ReadTrace(metadata)
	if err != nil {
		return e, err
	}
	e.Step = stepEffects(t)
	if s.twinOf(b.Size) != nil && s.parts < 2 && e.Step.Clusters == 0 {
		// The trace has a twin as a call of the function that XLA compiles as a whole.
		e.Step.Clusters = t.Calls
	}
	if n := s.Stackable(s.opts.StepsPerExecution, b.Size); n > 1 {
		e.Together, e.TogetherBy = n, s.stacker.choose(n, b.Size, s.opts.StepsPerExecution).signature.Name
	}
	return e, nil
}

// notHeld says what of training a snapshot does not hold; "" if it holds all.
func (s *Session) notHeld() string {
	for _, p := range s.model.ProblemsFor(s.opts.TrainSignature) {
		if p.Code == savedmodels.CodeStateNotSaved || p.Code == savedmodels.CodeNoSaver && len(s.model.Variables) > 0 {
			return p.Message
		}
	}
	return ""
}

// errUndone: what a rehearsal changed could not be brought back.
var errUndone = errors.New("the state before the traced step could not be brought back, so that the variables are in doubt")

// rehearse traces a train step, and undoes it.
func (s *Session) rehearse(ctx context.Context, b data.Batch) (metadata []byte, err error) {
	before, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, before.Close()) }()
	if math.IsNaN(s.rate) {
		s.rate = 0 // any will do; Revert brings back that none is set
	}
	metadata, err = s.Trace(ctx, 0, b, make([]float64, len(s.trainNames)))
	if undone := s.Revert(context.WithoutCancel(ctx), before); undone != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errUndone, undone))
	}
	return metadata, err
}

func stepEffects(t tracing.Trace) *StepEffects {
	step := &StepEffects{
		Operations: t.Devices, Allocators: map[string]memory.Reading{},
		Matrix: t.Matrix, Floating: t.Floating, Casts: t.Casts, Clusters: t.XLAClusters, OneDNN: t.OneDNN,
	}
	for name, use := range t.Allocators {
		step.Allocators[name] = use.Peak
	}
	return step
}

// String is one line, as in "CPU; bfloat16 in 5 of 6 matrix operations, float32 in 1; 11
// casts; oneDNN in 6 operations; allocator mklcpu (peak 1.5 MiB); TensorFlow 2.21.0".
func (e Effects) String() string {
	parts := []string{e.devices()}
	if e.Together > 1 {
		parts = append(parts, fmt.Sprintf("traced was one step, and calls of %d run %s, which was not", e.Together, e.TogetherBy))
	}
	if e.Step != nil {
		parts = append(parts, e.Step.parts()...)
	}
	if e.Untraced != "" {
		parts = append(parts, "no step was traced: "+strings.Join(strings.Fields(e.Untraced), " "))
	}
	if e.TensorFlow != "" {
		parts = append(parts, "TensorFlow "+e.TensorFlow)
	}
	return strings.Join(parts, "; ")
}

// devices names the devices, and where there are several how many operations each ran.
func (e Effects) devices() string {
	if len(e.Devices) == 0 {
		return "no devices"
	}
	names := shortNames(e.Devices)
	for i, d := range e.Devices {
		switch {
		case d.Type != "GPU":
		case e.Unlimited != "":
			names[i] += fmt.Sprintf(" (%s, without a limit)", e.Unlimited)
		default:
			names[i] += fmt.Sprintf(" (up to %v)", memory.Bytes(d.MemoryBytes))
		}
		if len(e.Devices) > 1 && e.Step != nil && len(e.Step.Operations) > 0 {
			names[i] += fmt.Sprintf(" with %s", plural(e.Step.Operations[d.Name], "operation"))
		}
	}
	return strings.Join(names, ", ")
}

func (t *StepEffects) parts() (parts []string) {
	if len(t.Operations) == 0 {
		return []string{"the executor does not trace"}
	}
	all := 0
	for _, n := range t.Matrix {
		all += n
	}
	switch {
	case len(t.Matrix) == 1:
		for d := range t.Matrix {
			parts = append(parts, fmt.Sprintf("%v in all matrix operations (%d)", d, all))
		}
	case all > 0:
		// The narrow types first, which are the ones that were asked for.
		types := slices.SortedFunc(maps.Keys(t.Matrix), func(a, b tfbind.DType) int {
			return cmp.Or(cmp.Compare(a.Size(), b.Size()), cmp.Compare(a, b))
		})
		var counts []string
		for i, d := range types {
			count := fmt.Sprintf("%v in %d", d, t.Matrix[d])
			if i == 0 {
				count += fmt.Sprintf(" of %s", plural(all, "matrix operation"))
			}
			counts = append(counts, count)
		}
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

// Missing compares the effects with options, and warns of those that have none: a
// precision that no matrix operation ran in, an XLA that compiled nothing, a GPU that ran
// nothing, and options for GPUs where there is none. What was not traced is not warned of:
// where several steps run in one call, that is the precision and XLA.
func (e Effects) Missing(o gpuopts.Options) (list []*option.Error) {
	warn := func(setting, format string, args ...any) {
		list = append(list, option.New(setting, fmt.Sprintf(format, args...), ""))
	}
	if len(e.Devices) > 0 && !hasGPU(e.Devices) {
		for _, setting := range o.ForGPU() {
			warn(setting, "it has no effect: %v, only %s", ErrNoGPU, strings.Join(shortNames(e.Devices), ", "))
		}
	}
	t := e.Step
	if t == nil || len(t.Operations) == 0 {
		return list
	}
	if narrow, rewritten := narrowTypes[o.Precision]; rewritten && e.Together < 2 && t.Matrix[narrow] == 0 && !(t.Clusters > 0 && t.Casts > 0) {
		setting := fmt.Sprintf("Options.Precision %s", o.Precision)
		if t.Casts > 0 || t.Floating[narrow] > 0 {
			warn(setting, "no matrix operation gave out %v, though values in between are cast to it: the step computes as before, and casts beside that", narrow)
		} else {
			warn(setting, "nothing ran in %v: %s", narrow, e.whyNot(narrow))
		}
	}
	if (o.XLA == gpuopts.XLAOn1 || o.XLA == gpuopts.XLAOn2) && e.Together < 2 && t.Clusters == 0 {
		warn("Options.XLA "+string(o.XLA), "nothing was compiled: TensorFlow found no operations that go together ({Options.XLAMinCluster} is how many it takes), or none that XLA can compile")
	}
	if hasGPU(e.Devices) && (o.AsksForGPU() != "" || len(o.ForGPU()) > 0) {
		onGPU := 0
		for _, d := range e.Devices {
			if d.Type == "GPU" {
				onGPU += t.Operations[d.Name]
			}
		}
		if onGPU == 0 {
			settings := o.ForGPU()
			if asks := o.AsksForGPU(); asks != "" {
				settings = []string{asks}
			}
			for _, setting := range settings {
				warn(setting, "no operation ran on a GPU: the model was exported with its operations placed on the CPU, or has none that a GPU runs")
			}
		}
	}
	return list
}

// narrowTypes are what rewriting computes in.
var narrowTypes = map[gpuopts.Precision]tfbind.DType{
	gpuopts.BFloat16: tfbind.BFloat16, gpuopts.Float16CPU: tfbind.Float16, gpuopts.Float16GPU: tfbind.Float16,
}

// whyNot says what can keep a rewriting from computing in 16 bits.
func (e Effects) whyNot(d tfbind.DType) string {
	switch {
	case d == tfbind.BFloat16 && e.Step.OneDNN == 0:
		return "oneDNN is what computes it, and ran no operation; steadyfit doctor says whether it is on"
	case d == tfbind.BFloat16 && runtime.GOARCH == "amd64" && !cpu.X86.HasAVX512F:
		return "this CPU has no AVX-512, without which oneDNN has no bfloat16 on most CPUs (tensorflow/core/util/util.cc)"
	case len(e.Step.Matrix) == 0:
		return "the step has no matrix operations that could be rewritten"
	}
	return "the model may fix the types of its operations, or have none that TensorFlow deems safe to rewrite (auto_mixed_precision_lists.h)"
}

func hasGPU(devices []tfbind.Device) bool {
	return slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
}

// shortNames are the names of devices without where they are: "GPU:0", and "CPU" where
// there is one.
func shortNames(devices []tfbind.Device) []string {
	names := make([]string, len(devices))
	for i, d := range devices {
		_, name, found := strings.Cut(d.Name, "device:")
		if !found {
			name = d.Name
		}
		if name == "CPU:0" && !slices.ContainsFunc(devices, func(o tfbind.Device) bool { return o.Type == "CPU" && o.Name != d.Name }) {
			name = "CPU"
		}
		names[i] = name
	}
	return names
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
