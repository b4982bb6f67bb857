package workload

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/synth"
	"steadyfit/internal/lab/worker"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// The values of the parameter reset: what happens to the session after each epoch. The state of
// the model stays the same.
const (
	resetNone    = "none"
	resetRestore = "restore" // write and read the variables
	resetReload  = "reload"  // close the session and open another one
	resetProcess = "process" // another process continues
)

type engine interface {
	fit.Session
	Trace(ctx context.Context, step int64, b data.Batch, out []float64) (metadata []byte, err error)
	Roles() savedmodels.Roles
	Close() error
}

// trainer is a fit.Session with the parameters model, reset, micro and eager.
type trainer struct {
	engine // the current one
	b      *builder
	model  *savedmodels.Model
	opts   session.Options
	eager  bool
	reset  string
	micro  int
	state  string    // prefix of the files with the state
	values []float64 // scalars of the last step
	traced *[]byte   // where Train writes a trace; nil for none
}

func (b *builder) trainer(ctx context.Context) (*trainer, error) {
	model, err := loop.Model(b.Child)
	if err != nil {
		return nil, err
	}
	return b.trainerOf(ctx, model, gpuopts.Options{})
}

// trainerOf opens a model. The Spec's ConfigProto overrides device.
func (b *builder) trainerOf(ctx context.Context, model *savedmodels.Model, device gpuopts.Options) (*trainer, error) {
	t := &trainer{
		b: b, model: model,
		// An inexact update is also measured; checkMicro reports it.
		opts:  session.Options{Device: device, Config: b.Spec.Config, Seed: b.Spec.Seed, AllowInexactSplit: true, Cluster: b.cluster},
		reset: b.Choice("reset", resetNone, resetRestore, resetReload, resetProcess),
		micro: b.Int("micro", 1),
		eager: b.eager(),
		state: filepath.Join(b.Spec.Scratch, "state"),
	}
	if err := errors.Join(b.Err(), b.checkMicro(model, t.opts, t.micro)); err != nil {
		return nil, err
	}
	if t.eager && t.micro > 1 {
		return nil, b.microError("eager execution has no gradients and apply signatures")
	}
	if err := t.open(ctx); err != nil {
		return nil, err
	}
	b.onClose(func() error { return t.Close() }) // the last engine
	if b.Spec.From > 0 {
		if err := t.Restore(ctx, t.state); err != nil {
			return nil, err
		}
	}
	t.values = make([]float64, len(t.TrainMetrics()))
	return t, nil
}

func (b *builder) eager() bool { return b.Choice("eager", "", "1") == "1" }

// checkMicro returns an error if a batch cannot be split into parts, and reports whether their
// update is exact.
func (b *builder) checkMicro(model *savedmodels.Model, o session.Options, parts int) error {
	if parts < 1 || parts > b.Spec.Batch {
		return b.microError(fmt.Sprintf("the batch has only %d samples", b.Spec.Batch))
	}
	if parts == 1 {
		return nil
	}
	split, err := splitOf(model, o)
	if err != nil {
		return b.microError(err.Error())
	}
	return b.Fact(worker.FactSplit, split)
}

// splitOf returns the fact FactSplit, or an error if the batch cannot be split.
func splitOf(model *savedmodels.Model, o session.Options) (string, error) {
	o.AllowInexactSplit = false
	plan, err := session.Compile(model, o)
	if err == nil {
		err = plan.CheckSplit()
	}
	switch {
	case errors.Is(err, session.ErrInexactSplit):
		return worker.SplitInexact, nil
	case err != nil:
		return "", err
	}
	return worker.SplitExact, nil
}

func (b *builder) microError(reason string) error {
	return &worker.ParameterError{Failure: worker.NotApplicable, Name: "micro", Value: b.Param("micro", ""), Reason: reason}
}

func (t *trainer) open(ctx context.Context) (err error) {
	if t.eager {
		t.engine, err = newEagerEngine(t.model, t.opts)
		return err
	}
	s, err := session.OpenModel(ctx, t.model, t.opts)
	if err != nil {
		return err
	}
	t.engine = s
	if err := s.SetMicroBatches(t.micro); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// Train trains on a batch, and traces the step if traced is set.
func (t *trainer) Train(ctx context.Context, step int64, b data.Batch, out []float64) (err error) {
	if t.traced == nil {
		return t.engine.Train(ctx, step, b, out)
	}
	*t.traced, err = t.engine.Trace(ctx, step, b, out)
	return err
}

func (t *trainer) step(ctx context.Context, n int, b data.Batch) (float64, error) {
	if err := t.Train(ctx, int64(n-1), b, t.values); err != nil {
		return 0, err
	}
	return t.values[0], nil
}

func (t *trainer) endEpoch(ctx context.Context, _ int) error {
	if t.reset == resetNone {
		return nil
	}
	if err := t.Save(ctx, t.state); err != nil {
		return err
	}
	switch t.reset {
	case resetProcess:
		return loop.ErrSaved
	case resetReload:
		if err := t.Close(); err != nil {
			return err
		}
		if err := t.open(ctx); err != nil {
			return err
		}
	}
	return t.Restore(ctx, t.state)
}

func (t *trainer) loop(take func(context.Context) (data.Batch, error)) *loop.Loop {
	return &loop.Loop{
		Step: func(ctx context.Context, n int) (float64, error) {
			b, err := take(ctx)
			if err != nil {
				return 0, err
			}
			return t.step(ctx, n, b)
		},
		Epoch: t.endEpoch,
		Trace: func(into *[]byte) { t.traced = into },
	}
}

func (t *trainer) synth() (*synth.Synth, error) {
	return synth.New(t.model, t.Roles().Train, t.opts.Seed)
}

func (t *trainer) samples(n int) (*data.InMemory, error) {
	s, err := t.synth()
	if err != nil {
		return nil, err
	}
	return s.InMemory(n, 0)
}

// passes returns a function that returns the next batch, pass after pass. It skips the first
// done batches, which an earlier process used. A batch is valid until the next call.
func (b *builder) passes(ds data.Dataset, size, done int) func(context.Context) (data.Batch, error) {
	perPass := max(1, (ds.Len()+size-1)/size)
	pass := data.Pass{Batch: size, Epoch: done / perPass, Skip: done % perPass}
	var next func() (data.Batch, error, bool)
	stop := func() {}
	b.onClose(func() error { stop(); return nil })
	return func(context.Context) (data.Batch, error) {
		for range 2 {
			if next == nil {
				next, stop = iter.Pull2(ds.Batches(pass))
				pass.Skip = 0
			}
			if batch, err, ok := next(); ok {
				return batch, err
			}
			stop()
			next, pass.Epoch = nil, pass.Epoch+1
		}
		return data.Batch{}, fmt.Errorf("%s has fewer samples than a batch of %d", ds.Name(), size)
	}
}
