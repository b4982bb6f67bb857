package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/lab/cell"
	"steadyfit/internal/native"
	"steadyfit/internal/nearest"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// ErrAgain means that this process has done its part of a run and has told the
// parent so with Child.Again: end it without Child.Done.
var ErrAgain = errors.New("another process goes on")

// ErrUnknown: there is no workload of that ID.
var ErrUnknown = errors.New("unknown workload")

// The words of the knobs gc, trim and reset.
const (
	never    = ""
	eachStep = "step"
	eachEnd  = "epoch"
)

// job is a workload: what is between the phases. It was made with everything
// loaded.
type job interface {
	// step does step n, from 1, and returns its loss, which means nothing if the job is
	// untrained.
	step(ctx context.Context, n int) (loss float64, err error)
	// epoch is called after step n, at the end of each epoch but the last. After
	// errAgain the job's state is in the child's scratch folder.
	epoch(ctx context.Context, n int) error
	// close frees everything that can be freed. What it leaves behind on purpose is
	// returned.
	close() (left tfbind.Counts, err error)
}

// looper is a job that has a loop of its own. It calls run.after after each step.
type looper interface {
	loop(ctx context.Context, r *run) error
}

// errAgain ends the steps of a process whose state was saved.
var errAgain = errors.New("state saved")

// plain is embedded by jobs for which an epoch means nothing.
type plain struct{}

func (plain) epoch(context.Context, int) error { return nil }

// untrained is embedded by jobs whose steps train nothing.
type untrained struct{}

func (untrained) trainsNothing() {}

// losses are those of the first and the last step that trained. A run that diverged is
// one that trained: its last loss is no number, or infinite.
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

// facts are what the parent is told of them, by name; none if nothing was trained.
func (l *losses) facts() map[string]string {
	if !l.trained {
		return nil
	}
	return map[string]string{cell.FactLossFirst: formatLoss(l.first), cell.FactLossLast: formatLoss(l.last)}
}

// jobs has what makes the job of each workload.
var jobs = map[string]func(context.Context, *cell.Child) (job, error){
	"W0":   newW0,
	"W1":   newW1,
	"W2":   newW2,
	"W3":   newW3,
	"W4":   newW4,
	"W5":   newW5,
	"W6":   newW6,
	"W8":   newW8,
	"W9":   newW9,
	"W10":  newW10,
	"W11":  newW11,
	"W12":  newW12,
	"S0":   newS0,
	"S1":   newS1,
	"S1d":  newS1d,
	"S2":   newS2,
	"S2l":  newS2l,
	"S3":   newS3,
	"S4":   newS4,
	"user": newUser,
}

// IDs lists the workloads that Run knows, sorted.
func IDs() []string { return slices.Sorted(maps.Keys(jobs)) }

// Run does the child's workload from the first phase to the last. lib is where to
// find TensorFlow, as in [tfbind.Load]. It reports the facts tensorflow, batch,
// threads (at the end of the steps), those that package cell has names for, and live:
// the native objects that were left after all was closed.
//
// The caller ends the run with Child.Done and [FailureOf], but after ErrAgain. A
// process that goes on where another one ended sends the phases anew; its step
// "first" is the first one that it did itself.
func Run(ctx context.Context, c *cell.Child, lib string) error {
	create, ok := jobs[c.Spec.Workload]
	if !ok {
		return fmt.Errorf("%w %q; there are %s", ErrUnknown, c.Spec.Workload, strings.Join(nearest.Sort(c.Spec.Workload, IDs()), ", "))
	}
	r := &run{c: c}
	if err := r.knobs(); err != nil {
		return err
	}
	if err := c.Phase(cell.PhaseStart); err != nil {
		return err
	}
	info, err := tfbind.Load(lib)
	if err != nil {
		return err
	}
	if err := c.Phase(cell.PhaseLibrary); err != nil {
		return err
	}
	if err := errors.Join(
		c.Fact("tensorflow", info.Version),
		c.Fact("batch", strconv.Itoa(c.Spec.Batch)),
		c.Fact(cell.FactAllocator, native.Allocator()),
	); err != nil {
		return err
	}
	left, again, err := r.work(ctx, create)
	if err != nil {
		return err
	}
	if again {
		if err := c.Again(r.done); err != nil {
			return err
		}
		return ErrAgain
	}
	return r.end(left)
}

// FailureOf is the failure to give to Child.Done with an error of Run.
func FailureOf(err error) cell.Failure {
	switch {
	case err == nil, errors.Is(err, cell.ErrKnob): // Done looks into a knob's error itself
		return ""
	case errors.Is(err, tfbind.ErrResourceExhausted):
		return cell.OutOfMemory
	}
	return cell.Failed
}

// run is one call of Run.
type run struct {
	c        *cell.Child
	gc, trim string
	done     int // steps, those of earlier processes included
	began    bool
	losses   losses
}

// knobs asks for those that all workloads have.
func (r *run) knobs() (err error) {
	if r.gc, err = r.c.Choice("gc", never, eachEnd, eachStep); err != nil {
		return err
	}
	r.trim, err = r.c.Choice("trim", never, eachEnd)
	return err
}

// work makes the job, does its steps and closes it. Nothing of it can be reached
// afterwards.
func (r *run) work(ctx context.Context, create func(context.Context, *cell.Child) (job, error)) (left tfbind.Counts, again bool, err error) {
	j, err := create(ctx, r.c)
	if err != nil {
		return left, false, err
	}
	// Else the steps would grow into what loading left behind, unseen.
	debug.FreeOSMemory()
	if err = r.c.Phase(cell.PhaseLoaded); err == nil {
		err = r.steps(ctx, j)
	}
	again = errors.Is(err, errAgain)
	if again {
		err = nil
	} else if err == nil {
		err = r.steady()
	}
	if t, ok := j.(tracer); ok && r.c.Spec.Trace && err == nil && !again {
		err = r.trace(ctx, j, t)
	}
	left, closeErr := j.close()
	return left, again, errors.Join(err, closeErr)
}

func (r *run) steps(ctx context.Context, j job) error {
	if l, ok := j.(looper); ok {
		return l.loop(ctx, r)
	}
	for n := r.c.Spec.From + 1; n <= r.c.Spec.Steps; n++ {
		loss, err := j.step(ctx, n)
		if err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		if err := r.after(ctx, j, n, loss); err != nil {
			return err
		}
	}
	return nil
}

// after does what belongs between steps. It allocates nothing but where an epoch
// ends.
func (r *run) after(ctx context.Context, j job, n int, loss float64) error {
	r.done = n
	if _, ok := j.(interface{ trainsNothing() }); !ok {
		r.losses.add(loss)
	}
	if !r.began {
		r.began = true
		if err := r.c.Phase(cell.PhaseFirst); err != nil {
			return err
		}
	}
	if r.gc == eachStep {
		runtime.GC()
	}
	again := false
	if n%r.c.Spec.Epoch == 0 {
		var err error
		if again, err = r.endEpoch(ctx, j, n); err != nil {
			return err
		}
	}
	if err := r.c.Step(n); err != nil {
		return err
	}
	if again {
		return errAgain
	}
	return nil
}

func (r *run) endEpoch(ctx context.Context, j job, n int) (again bool, err error) {
	if n < r.c.Spec.Steps {
		err = j.epoch(ctx, n)
		if again = errors.Is(err, errAgain); err != nil && !again {
			return false, fmt.Errorf("end of the epoch at step %d: %w", n, err)
		}
	}
	if r.gc == eachEnd {
		runtime.GC()
	}
	if r.trim == eachEnd && !native.Trim() {
		return again, &cell.KnobError{Failure: cell.CouldNotApply, Name: "trim", Value: r.trim, Reason: "the allocator of this process cannot be asked for it"}
	}
	return again, nil
}

// steady is the end of the steps, with the job still open.
func (r *run) steady() error {
	if err := r.c.Phase(cell.PhaseSteady); err != nil {
		return err
	}
	var errs []error
	if n, ok := threads(); ok {
		errs = append(errs, r.c.Fact("threads", strconv.FormatInt(n, 10)))
	}
	for name, value := range r.losses.facts() {
		errs = append(errs, r.c.Fact(name, value))
	}
	return errors.Join(errs...)
}

// end takes the last samples and compares what is left with what should be.
func (r *run) end(left tfbind.Counts) error {
	// What Go code holds is freed explicitly too, as del does in Python.
	debug.FreeOSMemory()
	if err := r.c.Phase(cell.PhaseClosed); err != nil {
		return err
	}
	if native.Trim() {
		if err := r.c.Phase(cell.PhaseTrimmed); err != nil {
			return err
		}
	}
	live := tfbind.Live()
	live.Leaked, live.LeakedBytes = 0, 0 // depends on when garbage is collected
	if err := r.c.Fact("live", describe(live)); err != nil {
		return err
	}
	if live != left {
		return fmt.Errorf("after all was closed there are %s, expected %s", describe(live), describe(left))
	}
	return nil
}

// describe is the fact live: "0", or "2 tensors of 131072 bytes, 1 sessions".
func describe(c tfbind.Counts) string {
	var parts []string
	add := func(n int64, what string) {
		if n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(c.Tensors, fmt.Sprintf("tensors of %d bytes", c.TensorBytes))
	add(c.Steps, fmt.Sprintf("steps of %d bytes", c.StepBytes))
	add(c.Sessions, "sessions")
	add(c.Graphs, "graphs")
	add(c.Eagers, "eager contexts")
	add(c.EagerFrames, "eager frames")
	if parts == nil {
		return "0"
	}
	return strings.Join(parts, ", ")
}

func formatLoss(loss float64) string { return strconv.FormatFloat(loss, 'g', 6, 64) }

// threads is how many threads the process has, the pools of TensorFlow included.
func threads() (int64, bool) {
	sampler, err := memory.NewSampler(memory.SamplerOptions{})
	if err != nil {
		return 0, false
	}
	defer sampler.Close()
	var s memory.Sample
	if err := sampler.Sample(0, &s); err != nil {
		return 0, false
	}
	n := s.Get(memory.Threads)
	return int64(n.Bytes), n.OK
}
