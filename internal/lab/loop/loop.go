// Package loop runs the steps of a workload, with samples between them, for all runtimes in Go.
// [Run] reads the parameters of all workloads (gc, trim), loads TensorFlow, opens the workload,
// runs its steps, closes it, and reports the facts of package worker.
package loop

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/memory"
)

// ErrSaved means that the state of the run is in the scratch folder and another process
// continues. Loop.Epoch returns it, and Run returns it after Child.Again.
var ErrSaved = errors.New("another process continues")

// Loop is a workload that is ready to run. Its functions end the run by worker.Check.
type Loop struct {
	// Step runs step n, from 1, and returns its loss.
	Step      func(ctx context.Context, n int) (loss float64)
	Untrained bool
	// Epoch is called after step n at the end of each epoch except the last one. It may be nil.
	Epoch func(ctx context.Context, n int)
	// Steps runs all steps and calls after for each. If it is nil, Run calls Step.
	Steps func(ctx context.Context, after func(ctx context.Context, n int, loss float64) error)
	// Trace makes the next steps store a serialized tensorflow.RunMetadata in *into. Trace is nil if
	// steps cannot be traced.
	Trace func(into *[]byte)
	// Close frees everything that can be freed explicitly.
	Close func()
}

// Program has the parts that differ between runtimes.
type Program struct {
	// Linked means that the process has TensorFlow from its start, so that the phase start has
	// no sample.
	Linked bool
	Load   func() (version string, err error)
	// Open opens the loop. It must read all parameters of the workload.
	Open func(context.Context) *Loop
	// Collect frees the objects that Close leaves to the garbage collector. It may be nil.
	Collect func()
}

type run struct {
	c        *worker.Child
	gc, trim string
	done     int // steps, including those of earlier processes
	losses   losses
}

const (
	eachStep  = "step"
	eachEpoch = "epoch"
)

// Run runs all phases. The caller then calls Child.Done, except after ErrSaved. A process that
// continues an earlier one sends all phases again.
func Run(ctx context.Context, c *worker.Child, p Program) error {
	return worker.Caught(func() {
		r := &run{c: c, gc: c.Choice("gc", "", eachEpoch, eachStep), trim: c.Choice("trim", "", eachEpoch)}
		r.all(ctx, p)
	})
}

func (r *run) all(ctx context.Context, p Program) {
	c := r.c
	if !p.Linked {
		worker.Check(c.Phase(worker.PhaseStart))
	}
	version := worker.Must(p.Load())
	worker.Check(errors.Join(
		c.Phase(worker.PhaseLibrary),
		c.Fact("tensorflow", version),
		c.Fact("batch", strconv.Itoa(c.Spec.Batch)),
		c.Fact(worker.FactAllocator, native.Allocator()),
	))
	err := r.work(ctx, p.Open)
	if errors.Is(err, ErrSaved) {
		err = errors.Join(c.Again(r.done), ErrSaved)
	}
	worker.Check(err)
	if p.Collect != nil {
		p.Collect()
	}
	debug.FreeOSMemory() // return freed Go memory too
	worker.Check(c.Phase(worker.PhaseClosed))
	if native.Trim() {
		worker.Check(c.Phase(worker.PhaseTrimmed))
	}
}

// work opens the loop, runs its steps and closes it. The loop's objects are unreachable afterwards.
func (r *run) work(ctx context.Context, open func(context.Context) *Loop) error {
	l := open(ctx)
	err := worker.Caught(func() {
		worker.Check(r.c.Unused())
		worker.Check(r.c.Phase(worker.PhaseLoaded))
		r.steps(ctx, l)
		r.steady()
		if l.Trace != nil && r.c.Spec.Trace {
			r.trace(ctx, l)
		}
	})
	closed := worker.Caught(l.Close)
	if closed != nil && errors.Is(err, ErrSaved) {
		err = nil // report that closing failed, although the state is saved
	}
	return errors.Join(err, closed)
}

func (r *run) steps(ctx context.Context, l *Loop) {
	if l.Steps != nil {
		l.Steps(ctx, func(ctx context.Context, n int, loss float64) error {
			return worker.Caught(func() { r.after(ctx, l, n, loss) })
		})
		return
	}
	for n := r.c.Spec.From + 1; n <= r.c.Spec.Steps; n++ {
		loss, err := step(ctx, l, n)
		if err != nil {
			worker.Check(fmt.Errorf("step %d: %w", n, err))
		}
		r.after(ctx, l, n, loss)
	}
}

func step(ctx context.Context, l *Loop, n int) (loss float64, err error) {
	err = worker.Caught(func() { loss = l.Step(ctx, n) })
	return loss, err
}

// after counts step n, takes a sample if one is due, and ends the epoch. It allocates nothing
// except at the end of an epoch.
func (r *run) after(ctx context.Context, l *Loop, n int, loss float64) {
	first := r.done == 0
	r.done = n
	if !l.Untrained {
		r.losses.add(loss)
	}
	if first {
		worker.Check(r.c.Phase(worker.PhaseFirst))
	}
	if r.gc == eachStep {
		runtime.GC()
	}
	var saved error
	if n%r.c.Spec.Epoch == 0 {
		saved = r.endEpoch(ctx, l, n)
	}
	worker.Check(r.c.Step(n))
	worker.Check(saved)
}

// endEpoch calls Loop.Epoch, collects garbage and trims malloc as the parameters ask. It returns
// ErrSaved if another process continues.
func (r *run) endEpoch(ctx context.Context, l *Loop, n int) (saved error) {
	if n < r.c.Spec.Steps && l.Epoch != nil {
		if saved = worker.Caught(func() { l.Epoch(ctx, n) }); saved != nil && !errors.Is(saved, ErrSaved) {
			worker.Check(fmt.Errorf("end of epoch at step %d: %w", n, saved))
		}
	}
	if r.gc == eachEpoch {
		runtime.GC()
	}
	if r.trim == eachEpoch && !native.Trim() {
		worker.Check(&worker.ParameterError{Failure: worker.CouldNotApply, Name: "trim", Value: r.trim,
			Reason: "the allocator of this process has no malloc_trim"})
	}
	return saved
}

func (r *run) steady() {
	worker.Check(r.c.Phase(worker.PhaseSteady))
	if n := r.c.Last(memlayer.Threads); n.OK {
		worker.Check(r.c.Fact("threads", strconv.FormatInt(int64(n.Bytes), 10)))
	}
	for name, value := range r.losses.facts() {
		worker.Check(r.c.Fact(name, value))
	}
}

// trace runs one more step, and reports the memory of TensorFlow's allocators and the
// operations of the rewritten graph. A trace takes memory itself, so it comes last.
func (r *run) trace(ctx context.Context, l *Loop) {
	var metadata []byte
	l.Trace(&metadata)
	if _, err := step(ctx, l, r.done+1); err != nil {
		worker.Check(fmt.Errorf("traced step: %w", err))
	}
	if metadata == nil {
		return // eager execution has no graph
	}
	seen := worker.Must(native.ReadTrace(metadata))
	var values []memory.Value
	for name, use := range seen.Allocators {
		used := memory.Layer(memlayer.TFUsed)
		if strings.HasPrefix(name, "GPU_") {
			used = memlayer.GPUAllocator
		}
		values = append(values, memory.Value{Layer: memlayer.Of[memory.Layer](used, name), Reading: use.InUse},
			memory.Value{Layer: memlayer.Of[memory.Layer](memlayer.TFPeak, name), Reading: use.Peak})
	}
	worker.Check(r.c.Phase(worker.PhaseTraced, values...))
	matrix := 0
	for _, count := range seen.Matrix {
		matrix += count
	}
	for _, fact := range []struct {
		name  string
		count int
	}{
		{worker.FactOperations, seen.Operations}, {worker.FactBFloat16, seen.BFloat16Casts},
		{worker.FactFloat16, seen.Float16Casts},
		{worker.FactRecomputed, seen.Recomputed}, {worker.FactClusters, seen.XLAClusters}, {worker.FactOneDNN, seen.OneDNN},
		{worker.FactCalls, seen.Calls},
		{worker.FactMatrix, matrix}, {worker.FactMatrixBFloat16, seen.Matrix[dtype.BFloat16]},
		{worker.FactMatrixFloat16, seen.Matrix[dtype.Float16]},
	} {
		worker.Check(r.c.Fact(fact.name, strconv.Itoa(fact.count)))
	}
}

// losses are the first and the last loss of a run. They may be NaN or infinite.
type losses struct {
	trained     bool
	first, last float64
}

func (l *losses) add(loss float64) {
	if !l.trained {
		l.trained, l.first = true, loss
	}
	l.last = loss
}

func (l *losses) facts() map[string]string {
	if !l.trained {
		return nil
	}
	format := func(loss float64) string { return strconv.FormatFloat(loss, 'g', 6, 64) }
	return map[string]string{worker.FactLossFirst: format(l.first), worker.FactLossLast: format(l.last)}
}
