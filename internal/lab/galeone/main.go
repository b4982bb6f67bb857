//go:build galeone

// Command galeone does a cell of the matrix the way people write it on the Go
// binding that exists, galeone's fork of TensorFlow's own: NewTensor with nested
// slices, Session.Run, Value, and nothing is closed, since only a Session can be.
// Tensors, graphs and statuses are freed by finalizers, when the Go heap has grown
// enough for a collection. What a knob asks for and the binding cannot do (closing
// a tensor, filling one again) ends as not applicable.
//
// A run flows like this. The parent starts the command with a cell.Spec; open
// makes a loop of the workload; work takes its steps and a sample wherever one is
// due; at the end the session is closed, all references are dropped, and the
// collector runs, for that is as near to freeing explicitly as the binding comes.
//
// libtensorflow is linked, so it is in the process before main begins: there is no
// sample of the phase start. The command is built under the tag galeone only, with
// the settings in bench/galeone.env.
package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/lab/cell"
	"steadyfit/internal/native"
)

// binding is the module that this command measures.
const binding = "github.com/galeone/tensorflow/tensorflow/go"

func main() { os.Exit(run()) }

func run() int {
	tensors := &tensors{}
	child, err := cell.Start(tensors)
	if err != nil {
		fmt.Fprintf(os.Stderr, "galeone: %v\n", err)
		return 1
	}
	result := guarded(child, tensors)
	failure := cell.Failed
	if outOfMemory(result) {
		failure = cell.OutOfMemory
	}
	if err := errors.Join(child.Done(result, failure), child.Close(), result); err != nil {
		fmt.Fprintf(os.Stderr, "galeone: %v\n", err)
		return 1
	}
	return 0
}

// guarded is work whose panics are errors: the binding panics on some values.
func guarded(child *cell.Child, tensors *tensors) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return work(child, tensors)
}

// outOfMemory looks for TensorFlow's words, since the binding keeps the code of an
// error to itself.
func outOfMemory(err error) bool {
	return err != nil && slices.ContainsFunc([]string{"OOM when allocating", "RESOURCE_EXHAUSTED", "Resource exhausted"},
		func(words string) bool { return strings.Contains(err.Error(), words) })
}

// job is one run.
type job struct {
	*cell.Child
	tensors *tensors
	random  *rand.Rand
	// drop: set references to nil when they are done with, rather than let them go
	// out of scope.
	drop bool

	trained     bool
	first, last float32 // losses
}

func (j *job) loss(v float32) {
	if !j.trained {
		j.trained, j.first = true, v
	}
	j.last = v
}

// loop is a workload that is ready to run; epoch and free may be nil.
type loop struct {
	step func(n int) error
	// epoch is called after the last step of each epoch but the last.
	epoch func() error
	// free closes what can be closed. References to everything else are in the
	// closures, and go with the loop.
	free func() error
}

func work(child *cell.Child, tensors *tensors) error {
	j := &job{Child: child, tensors: tensors, random: rand.New(rand.NewPCG(uint64(child.Spec.Seed), 0))}
	w, ok := workloads[child.Spec.Workload]
	if !ok {
		return fmt.Errorf("no workload %q on galeone's binding", child.Spec.Workload)
	}
	// Child finds a knob that nobody asked for only at the end of the run.
	for name, value := range child.Spec.Knobs {
		if !slices.Contains(append(strings.Fields(w.knobs), "gc", "trim"), name) {
			return &cell.KnobError{Failure: cell.NotApplicable, Name: name, Value: value, Reason: "on this binding the workload has nothing that it changes"}
		}
	}
	gc, err := j.Choice("gc", "", "epoch", "step")
	if err != nil {
		return err
	}
	trim, err := j.Choice("trim", "", "epoch")
	if err != nil {
		return err
	}
	if strings.Contains(w.knobs, "release") && j.Spec.Workload != "W1" {
		release, err := j.Choice("release", "gc", "drop")
		if err != nil {
			return err
		}
		j.drop = release == "drop"
	}
	if err := j.facts(); err != nil {
		return err
	}
	if err := j.Phase(cell.PhaseLibrary); err != nil {
		return err
	}
	free, err := j.steps(w, gc, trim)
	if err != nil {
		return err
	}
	if free != nil {
		if err := free(); err != nil {
			return err
		}
	}
	free = nil
	collect()
	debug.FreeOSMemory()
	if err := j.Phase(cell.PhaseClosed); err != nil {
		return err
	}
	if !native.Trim() {
		return nil
	}
	return j.Phase(cell.PhaseTrimmed)
}

// facts also makes the first call into TensorFlow.
func (j *job) facts() error {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == binding {
				version = m.Version
			}
		}
	}
	return errors.Join(
		j.Fact("tensorflow", tf.Version()),
		j.Fact("batch", strconv.Itoa(j.Spec.Batch)),
		j.Fact("binding", binding+" "+version),
		j.Fact(cell.FactAllocator, native.Allocator()),
	)
}

// steps runs the whole workload. It returns what is left to be called, so that the
// loop itself is unreachable afterwards.
func (j *job) steps(w workload, gc, trim string) (free func() error, err error) {
	l, err := w.open(j)
	if err != nil {
		return nil, err
	}
	if err := j.Phase(cell.PhaseLoaded); err != nil {
		return nil, err
	}
	for n := 1; n <= j.Spec.Steps; n++ {
		if err := l.step(n); err != nil {
			return nil, fmt.Errorf("step %d: %w", n, err)
		}
		if n == 1 {
			if err := j.Phase(cell.PhaseFirst); err != nil {
				return nil, err
			}
		}
		if gc == "step" {
			runtime.GC()
		}
		if n%j.Spec.Epoch == 0 {
			if l.epoch != nil && n < j.Spec.Steps {
				if err := l.epoch(); err != nil {
					return nil, fmt.Errorf("end of the epoch at step %d: %w", n, err)
				}
			}
			if gc == "epoch" {
				runtime.GC()
			}
			if trim == "epoch" && !native.Trim() {
				return nil, &cell.KnobError{Failure: cell.CouldNotApply, Name: "trim", Value: trim, Reason: "the allocator of this process cannot be asked for it"}
			}
		}
		if err := j.Step(n); err != nil {
			return nil, err
		}
	}
	if err := j.Phase(cell.PhaseSteady); err != nil {
		return nil, err
	}
	if !j.trained {
		return l.free, nil
	}
	return l.free, errors.Join(j.Fact(cell.FactLossFirst, formatLoss(j.first)), j.Fact(cell.FactLossLast, formatLoss(j.last)))
}

func formatLoss(loss float32) string { return strconv.FormatFloat(float64(loss), 'g', 6, 32) }

// collect returns when all that was unreachable has been freed. A finalizer makes
// new objects with finalizers (closing a session takes a status), so there is a
// second round.
func collect() {
	count := []metrics.Sample{{Name: "/gc/finalizers/queued:finalizers"}, {Name: "/gc/finalizers/executed:finalizers"}}
	for range 2 {
		runtime.GC()
		for metrics.Read(count); count[1].Value.Uint64() < count[0].Value.Uint64(); metrics.Read(count) {
			runtime.Gosched()
		}
	}
}
