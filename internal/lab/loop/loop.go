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

	"steadyfit/internal/lab/worker"
	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// ErrSaved means that the state of the run is in the scratch folder and another process
// continues. Loop.Epoch returns it, and Run returns it after Child.Again.
var ErrSaved = errors.New("another process continues")

// Loop is a workload that is ready to run.
type Loop struct {
	// Step runs step n, from 1, and returns its loss.
	Step      func(ctx context.Context, n int) (loss float64, err error)
	Untrained bool
	// Epoch is called after step n at the end of each epoch except the last one. It may be nil.
	Epoch func(ctx context.Context, n int) error
	// Steps runs all steps and calls after for each. If it is nil, Run calls Step.
	Steps func(ctx context.Context, after func(ctx context.Context, n int, loss float64) error) error
	// Trace makes the next steps write a tensorflow.RunMetadata to into. It is nil if steps
	// cannot be traced.
	Trace func(into *[]byte)
	// Close frees everything that can be freed explicitly.
	Close func() error
}

// Program has the parts that differ between runtimes.
type Program struct {
	// Linked means that the process has TensorFlow from its start, so that the phase start has
	// no sample.
	Linked bool
	Load   func() (version string, err error)
	// Open opens the loop. It must read all parameters of the workload.
	Open func(context.Context) (*Loop, error)
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
	r := &run{c: c, gc: c.Choice("gc", "", eachEpoch, eachStep), trim: c.Choice("trim", "", eachEpoch)}
	if err := c.Err(); err != nil {
		return err
	}
	if !p.Linked {
		if err := c.Phase(worker.PhaseStart); err != nil {
			return err
		}
	}
	version, err := p.Load()
	if err != nil {
		return err
	}
	if err := errors.Join(
		c.Phase(worker.PhaseLibrary),
		c.Fact("tensorflow", version),
		c.Fact("batch", strconv.Itoa(c.Spec.Batch)),
		c.Fact(worker.FactAllocator, native.Allocator()),
	); err != nil {
		return err
	}
	if err := r.work(ctx, p.Open); errors.Is(err, ErrSaved) {
		return errors.Join(c.Again(r.done), ErrSaved)
	} else if err != nil {
		return err
	}
	if p.Collect != nil {
		p.Collect()
	}
	debug.FreeOSMemory() // return freed Go memory too
	if err := c.Phase(worker.PhaseClosed); err != nil || !native.Trim() {
		return err
	}
	return c.Phase(worker.PhaseTrimmed)
}

// work opens the loop, runs its steps and closes it. Its objects are unreachable afterwards.
func (r *run) work(ctx context.Context, open func(context.Context) (*Loop, error)) error {
	l, err := open(ctx)
	if err != nil {
		return err
	}
	if err = r.c.Unused(); err == nil {
		err = r.phases(ctx, l)
	}
	closed := l.Close()
	if closed != nil && errors.Is(err, ErrSaved) {
		err = nil // the run fails
	}
	return errors.Join(err, closed)
}

func (r *run) phases(ctx context.Context, l *Loop) error {
	if err := r.c.Phase(worker.PhaseLoaded); err != nil {
		return err
	}
	if err := r.steps(ctx, l); err != nil {
		return err
	}
	if err := r.steady(); err != nil || l.Trace == nil || !r.c.Spec.Trace {
		return err
	}
	return r.trace(ctx, l)
}

func (r *run) steps(ctx context.Context, l *Loop) error {
	after := func(ctx context.Context, n int, loss float64) error { return r.after(ctx, l, n, loss) }
	if l.Steps != nil {
		return l.Steps(ctx, after)
	}
	for n := r.c.Spec.From + 1; n <= r.c.Spec.Steps; n++ {
		loss, err := l.Step(ctx, n)
		if err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		if err := after(ctx, n, loss); err != nil {
			return err
		}
	}
	return nil
}

// after counts step n, takes a sample if one is due, and ends the epoch. It allocates nothing
// except at the end of an epoch.
func (r *run) after(ctx context.Context, l *Loop, n int, loss float64) error {
	first := r.done == 0
	r.done = n
	if !l.Untrained {
		r.losses.add(loss)
	}
	if first {
		if err := r.c.Phase(worker.PhaseFirst); err != nil {
			return err
		}
	}
	if r.gc == eachStep {
		runtime.GC()
	}
	var saved error
	if n%r.c.Spec.Epoch == 0 {
		err := r.endEpoch(ctx, l, n)
		if err != nil && !errors.Is(err, ErrSaved) {
			return err
		}
		saved = err
	}
	if err := r.c.Step(n); err != nil {
		return err
	}
	return saved
}

func (r *run) endEpoch(ctx context.Context, l *Loop, n int) (err error) {
	if n < r.c.Spec.Steps && l.Epoch != nil {
		if err = l.Epoch(ctx, n); err != nil && !errors.Is(err, ErrSaved) {
			return fmt.Errorf("end of epoch at step %d: %w", n, err)
		}
	}
	if r.gc == eachEpoch {
		runtime.GC()
	}
	if r.trim == eachEpoch && !native.Trim() {
		return &worker.ParameterError{Failure: worker.CouldNotApply, Name: "trim", Value: r.trim, Reason: "the allocator of this process has no malloc_trim"}
	}
	return err
}

func (r *run) steady() error {
	errs := []error{r.c.Phase(worker.PhaseSteady)}
	if n := r.c.Last(memory.Threads); n.OK {
		errs = append(errs, r.c.Fact("threads", strconv.FormatInt(int64(n.Bytes), 10)))
	}
	for name, value := range r.losses.facts() {
		errs = append(errs, r.c.Fact(name, value))
	}
	return errors.Join(errs...)
}

// trace runs one more step, and reports the memory of TensorFlow's allocators and the
// operations of the rewritten graph. A trace takes memory itself, so it comes last.
func (r *run) trace(ctx context.Context, l *Loop) error {
	var metadata []byte
	l.Trace(&metadata)
	if _, err := l.Step(ctx, r.done+1); err != nil {
		return fmt.Errorf("traced step: %w", err)
	}
	if metadata == nil {
		return nil // eager execution has no graph
	}
	seen, err := native.ReadTrace(metadata)
	if err != nil {
		return err
	}
	var values []memory.Value
	for name, use := range seen.Allocators {
		used := memory.TFUsed
		if strings.HasPrefix(name, "GPU_") {
			used = memory.GPUAllocator
		}
		values = append(values, memory.Value{Layer: used.Of(name), Reading: use.InUse}, memory.Value{Layer: memory.TFPeak.Of(name), Reading: use.Peak})
	}
	if err := r.c.Phase(worker.PhaseTraced, values...); err != nil {
		return err
	}
	matrix := 0
	for _, count := range seen.Matrix {
		matrix += count
	}
	for _, fact := range []struct {
		name  string
		count int
	}{
		{worker.FactOperations, seen.Operations}, {worker.FactBFloat16, seen.BFloat16Casts}, {worker.FactFloat16, seen.Float16Casts},
		{worker.FactRecomputed, seen.Recomputed}, {worker.FactClusters, seen.XLAClusters}, {worker.FactOneDNN, seen.OneDNN}, {worker.FactCalls, seen.Calls},
		{worker.FactMatrix, matrix}, {worker.FactMatrixBFloat16, seen.Matrix[tfbind.BFloat16]}, {worker.FactMatrixFloat16, seen.Matrix[tfbind.Float16]},
	} {
		if err := r.c.Fact(fact.name, strconv.Itoa(fact.count)); err != nil {
			return err
		}
	}
	return nil
}

// losses may be NaN or infinite.
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
