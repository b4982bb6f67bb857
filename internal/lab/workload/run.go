// Package workload has the workloads of the matrix on the runtime "go", this project's own
// packages. Some workloads make mistakes on purpose, such as leaving tensors open, because
// their effect is measured.
//
// A child process calls [Run], which opens the workload of the Spec as a loop.Loop. At the end,
// Run compares the counters of open native objects with what the workload leaves open on
// purpose.
package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"steadyfit/cluster"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/worker"
	"steadyfit/tfbind"
)

var ErrUnknown = errors.New("unknown workload")

var workloads = map[string]func(context.Context, *builder) *loop.Loop{
	"W0":   newInMemory,
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
	"S1":   newValidated,
	"S1d":  newValidated,
	"S2":   newInMemory,
	"S2l":  newInMemory,
	"S3":   newS3,
	"S4":   newS4,
	"D1":   newD1,
	"user": newUser,
}

// IDs returns the sorted IDs of the workloads.
func IDs() []string { return slices.Sorted(maps.Keys(workloads)) }

// builder is the state of opening a workload. It closes everything at the end, even after an
// error.
type builder struct {
	*worker.Child
	closers []func() error
	left    tfbind.Counts // left open on purpose
	// cluster makes the trainer a rank; nil trains alone.
	cluster *cluster.Cluster
}

// onClose adds a function to call at the end, in reverse order.
func (b *builder) onClose(f func() error) { b.closers = append(b.closers, f) }

func (b *builder) close() error {
	var errs []error
	for _, f := range slices.Backward(b.closers) {
		errs = append(errs, f())
	}
	b.closers = nil
	return errors.Join(errs...)
}

func (b *builder) graph(g *graphdef.Graph) *tfbind.Session {
	def := worker.Must(g.Bytes())
	graph := worker.Must(tfbind.NewGraph())
	b.onClose(graph.Close)
	worker.Check(graph.Import(def, ""))
	s := worker.Must(tfbind.NewSession(graph, b.Spec.Config))
	b.onClose(s.Close)
	return s
}

func outputs(s *tfbind.Session, names ...string) []tfbind.Output {
	list := make([]tfbind.Output, len(names))
	for i, name := range names {
		list[i] = worker.Must(s.Graph().Output(name))
	}
	return list
}

// Open opens the Spec's workload without running it. TensorFlow must be loaded.
func Open(ctx context.Context, c *worker.Child) (l *loop.Loop, err error) {
	err = worker.Caught(func() { l = open(ctx, c, new(tfbind.Counts)) })
	return l, err
}

// open opens a workload. The Close function of the loop writes to left how many objects stay open
// on purpose.
func open(ctx context.Context, c *worker.Child, left *tfbind.Counts) (l *loop.Loop) {
	start, ok := workloads[c.Spec.Workload]
	if !ok {
		worker.Check(fmt.Errorf("%w %q; use one of %s", ErrUnknown, c.Spec.Workload,
			strings.Join(IDs(), ", ")))
	}
	b := &builder{Child: c}
	if err := worker.Caught(func() { l = start(ctx, b) }); err != nil {
		worker.Check(errors.Join(err, b.close()))
	}
	l.Close = func() {
		err := b.close()
		*left = b.left
		worker.Check(err)
	}
	return l
}

// Run runs all phases of the Spec's workload. lib is the location of TensorFlow, as in
// [tfbind.Load]. It reports the facts of package loop and the fact live: the native objects
// that remain at the end. The caller ends the run with Child.Done and [FailureOf], except after
// loop.ErrSaved.
func Run(ctx context.Context, c *worker.Child, lib string) error {
	var left tfbind.Counts
	err := loop.Run(ctx, c, loop.Program{
		Load: func() (string, error) {
			info, err := tfbind.Load(lib)
			return info.Version, err
		},
		Open: func(ctx context.Context) *loop.Loop {
			l := open(ctx, c, &left)
			// Otherwise the steps would reuse the free memory of loading, which would hide
			// their growth.
			debug.FreeOSMemory()
			return l
		},
	})
	if err != nil {
		return err
	}
	live := tfbind.Live()
	live.Leaked, live.LeakedBytes = 0, 0 // these counts depend on the garbage collector
	if err := c.Fact("live", describe(live)); err != nil {
		return err
	}
	if live != left {
		return fmt.Errorf("after closing everything, open objects: %s, expected %s", describe(live), describe(left))
	}
	return nil
}

// FailureOf returns the kind of failure, as an argument of Child.Done, for an error that Run
// returned.
func FailureOf(err error) worker.Failure {
	switch {
	case err == nil, errors.Is(err, worker.ErrParameter): // Done reads the failure from these errors
		return ""
	case errors.Is(err, tfbind.ErrResourceExhausted):
		return worker.OutOfMemory
	}
	return worker.Failed
}

// describe formats the fact live: "0", or "2 tensors of 131072 bytes, 1 sessions".
func describe(c tfbind.Counts) string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{
		{c.Tensors, fmt.Sprintf("tensors of %d bytes", c.TensorBytes)},
		{c.Steps, fmt.Sprintf("steps of %d bytes", c.StepBytes)},
		{c.Sessions, "sessions"}, {c.Graphs, "graphs"},
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
