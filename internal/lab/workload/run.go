// Package workload has the workloads of the matrix on this project's own packages: the runtime
// "go".
//
// It is not for training models: to measure their effect, some workloads make mistakes on
// purpose, such as leaving tensors open.
//
// A child process starts a worker.Child and calls [Run]. Run opens the workload of the Spec as a
// loop.Loop, and package loop does the steps. At the end, Run compares the binding's counters
// with the objects that the workload leaves open on purpose.
package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/nearest"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// ErrUnknown means that no workload has the ID.
var ErrUnknown = errors.New("unknown workload")

// workload makes a loop.
type workload struct {
	open      func(context.Context, *builder) (*loop.Loop, error)
	untrained bool // its steps train nothing
}

var workloads = map[string]workload{
	"W0":   {open: newInMemory},
	"W1":   {open: newW1},
	"W2":   {open: newW2},
	"W3":   {newW3, true},
	"W4":   {open: newW4},
	"W5":   {newW5, true},
	"W6":   {newW6, true},
	"W8":   {newW8, true},
	"W9":   {open: newW9},
	"W10":  {newW10, true},
	"W11":  {open: newW11},
	"W12":  {newW12, true},
	"S0":   {open: newS0},
	"S1":   {open: newValidated},
	"S1d":  {open: newValidated},
	"S2":   {open: newInMemory},
	"S2l":  {open: newInMemory},
	"S3":   {open: newS3},
	"S4":   {open: newS4},
	"user": {open: newUser},
}

// IDs lists the workloads that Run can run, sorted.
func IDs() []string { return slices.Sorted(maps.Keys(workloads)) }

// builder is the state for making a workload. It closes everything that was opened, also after
// an error.
type builder struct {
	*worker.Child
	closers []func() error
	left    tfbind.Counts // left open on purpose
}

// onClose adds a function to call at the end. The last added function is called first.
func (b *builder) onClose(f func() error) { b.closers = append(b.closers, f) }

func (b *builder) close() error {
	var errs []error
	for _, f := range slices.Backward(b.closers) {
		errs = append(errs, f())
	}
	b.closers = nil
	return errors.Join(errs...)
}

// model opens the Spec's model, or the one that the parameter model names.
func (b *builder) model() (*savedmodels.Model, error) {
	name := b.Param("model", "")
	if err := b.Err(); err != nil {
		return nil, err
	}
	if name == "" {
		return savedmodels.Open(b.Spec.Model)
	}
	m, err := savedmodels.Builtin(name)
	if errors.Is(err, savedmodels.ErrUnknownBuiltin) {
		return nil, &worker.ParameterError{Failure: worker.CouldNotApply, Name: "model", Value: name, Reason: err.Error()}
	}
	return m, err
}

// graph opens a session on its own graph.
func (b *builder) graph(g *graphdef.Graph) (*tfbind.Session, error) {
	def, err := g.Bytes()
	if err = errors.Join(b.Err(), err); err != nil {
		return nil, err
	}
	graph, err := tfbind.NewGraph()
	if err != nil {
		return nil, err
	}
	b.onClose(graph.Close)
	if err := graph.Import(def, ""); err != nil {
		return nil, err
	}
	s, err := tfbind.NewSession(graph, b.Spec.Config)
	if err != nil {
		return nil, err
	}
	b.onClose(s.Close)
	return s, nil
}

// outputs looks up outputs by name.
func outputs(s *tfbind.Session, names ...string) ([]tfbind.Output, error) {
	list := make([]tfbind.Output, len(names))
	for i, name := range names {
		var err error
		if list[i], err = s.Graph().Output(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Run does the child's workload from the first phase to the last. lib is the location of
// TensorFlow, as in [tfbind.Load]. In addition to the facts of package loop it reports the fact
// live: the native objects that remain after everything was closed. The caller ends the run with
// Child.Done and [FailureOf], except after loop.ErrSaved.
func Run(ctx context.Context, c *worker.Child, lib string) error {
	w, ok := workloads[c.Spec.Workload]
	if !ok {
		return fmt.Errorf("%w %q; there are %s", ErrUnknown, c.Spec.Workload, strings.Join(nearest.Sort(c.Spec.Workload, IDs()), ", "))
	}
	var left tfbind.Counts
	err := loop.Run(ctx, c, loop.Program{
		Load: func() (string, error) {
			info, err := tfbind.Load(lib)
			if err != nil {
				return "", err
			}
			return info.Version, nil
		},
		Open: func(ctx context.Context) (*loop.Loop, error) {
			b := &builder{Child: c}
			l, err := w.open(ctx, b)
			if err = errors.Join(b.Err(), err); err != nil {
				return nil, errors.Join(err, b.close())
			}
			l.Untrained = w.untrained
			l.Close = func() error {
				err := b.close()
				left = b.left
				return err
			}
			// Otherwise the steps would reuse the free memory of loading, and their growth would
			// not show.
			debug.FreeOSMemory()
			return l, nil
		},
	})
	if err != nil {
		return err
	}
	live := tfbind.Live()
	live.Leaked, live.LeakedBytes = 0, 0 // the number depends on the garbage collector
	if err := c.Fact("live", describe(live)); err != nil {
		return err
	}
	if live != left {
		return fmt.Errorf("after everything was closed there are %s, expected %s", describe(live), describe(left))
	}
	return nil
}

// FailureOf returns the failure to pass to Child.Done with an error of Run.
func FailureOf(err error) worker.Failure {
	switch {
	case err == nil, errors.Is(err, worker.ErrParameter): // Done reads the failure from these errors
		return ""
	case errors.Is(err, tfbind.ErrResourceExhausted):
		return worker.OutOfMemory
	}
	return worker.Failed
}

// describe returns the fact live: "0", or "2 tensors of 131072 bytes, 1 sessions".
func describe(c tfbind.Counts) string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{
		{c.Tensors, fmt.Sprintf("tensors of %d bytes", c.TensorBytes)}, {c.Steps, fmt.Sprintf("steps of %d bytes", c.StepBytes)},
		{c.Sessions, "sessions"}, {c.Graphs, "graphs"}, {c.Eagers, "eager contexts"}, {c.EagerFrames, "eager frames"},
	} {
		if p.n != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if parts == nil {
		return "0"
	}
	return strings.Join(parts, ", ")
}
