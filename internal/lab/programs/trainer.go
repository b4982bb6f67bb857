package programs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/synth"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// trainer is a session with the parameters reset and micro. A reset follows each epoch and does
// not change the state of the model.
type trainer struct {
	*session.Session // the current one
	model            *savedmodels.Model
	opts             session.Options
	reset            string
	micro            int
	state            string    // prefix of the files with the state
	values           []float64 // scalars of the last step
	traced           *[]byte   // where Train writes a trace; nil for none
}

func (b *run) trainer(ctx context.Context) *trainer { return b.trainerOf(ctx, b.OpenModel()) }

func (b *run) trainerOf(ctx context.Context, model *savedmodels.Model) *trainer {
	t := &trainer{
		model: model,
		// An inexact update is also measured.
		opts:  session.Options{Config: b.Config, Seed: b.Seed, AllowInexactSplit: true},
		reset: b.Choice("reset", contract.ResetNone, contract.ResetRestore, contract.ResetReload, contract.ResetProcess),
		micro: b.Int("micro", 1),
		state: filepath.Join(b.Scratch, "state"),
	}
	b.checkMicro(model, t.opts, t.micro)
	t.open(ctx)
	b.OnClose(func() error { return t.Close() }) // the last engine
	if b.From > 0 {
		program.Check(t.Restore(ctx, t.state))
	}
	t.values = make([]float64, len(t.TrainMetrics()))
	return t
}

// checkMicro ends the run if a batch cannot be split into parts.
func (b *run) checkMicro(model *savedmodels.Model, o session.Options, parts int) {
	if parts < 1 || parts > b.Batch {
		b.refuseMicro(fmt.Sprintf("the batch has only %d samples", b.Batch))
	}
	if parts == 1 {
		return
	}
	plan, err := session.Compile(model, o)
	if err == nil {
		err = plan.CheckSplit()
	}
	if err != nil {
		b.refuseMicro(err.Error())
	}
}

func (b *run) refuseMicro(reason string) {
	program.Refuse(program.NotApplicable, "micro", b.Option("micro", ""), reason)
}

func (t *trainer) open(ctx context.Context) {
	s := program.Must(session.OpenModel(ctx, t.model, t.opts))
	if err := s.SetMicroBatches(t.micro); err != nil {
		program.Check(errors.Join(err, s.Close()))
	}
	t.Session = s
}

// Train trains on a batch, and traces the step if traced is set.
func (t *trainer) Train(ctx context.Context, step int64, b data.Batch, out []float64) (err error) {
	if t.traced == nil {
		return t.Session.Train(ctx, step, b, out)
	}
	*t.traced, err = firstTrace(t.Session, func() error { return t.Session.Train(ctx, step, b, out) })
	return err
}

// firstTrace traces the function do. It returns the metadata of the first signature that ran, or nil if none ran.
func firstTrace(s *session.Session, do func() error) ([]byte, error) {
	all, err := s.Trace(do)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

func (t *trainer) step(ctx context.Context, n int, b data.Batch) float64 {
	program.Check(t.Train(ctx, int64(n-1), b, t.values))
	return t.values[0]
}

func (t *trainer) endEpoch(ctx context.Context, _ int) {
	if t.reset == contract.ResetNone {
		return
	}
	program.Check(t.Save(ctx, t.state))
	switch t.reset {
	case contract.ResetProcess:
		program.Check(program.ErrSaved)
	case contract.ResetReload:
		program.Check(t.Close())
		t.open(ctx)
	}
	program.Check(t.Restore(ctx, t.state))
}

func (t *trainer) loop(take func(context.Context) data.Batch) *program.Loop {
	return &program.Loop{
		Step:  func(ctx context.Context, n int) float64 { return t.step(ctx, n, take(ctx)) },
		Epoch: t.endEpoch,
		Trace: func(into *[]byte) { t.traced = into },
	}
}

func (t *trainer) synth() *synth.Synth {
	return program.Must(synth.New(t.model, t.Roles().Train, t.opts.Seed))
}

func (t *trainer) samples(n int) *data.InMemory { return program.Must(t.synth().InMemory(n, 0)) }

// passes returns a function that returns the next batch, pass after pass. It skips the first
// done batches, which an earlier process used. A batch is valid until the next call.
func (b *run) passes(ds data.Dataset, size, done int) func(context.Context) data.Batch {
	perPass := max(1, (ds.Len()+size-1)/size)
	next, stop := iter.Pull2(program.Passes(ds, data.Pass{Batch: size, Epoch: done / perPass, Skip: done % perPass}))
	b.OnClose(func() error { stop(); return nil })
	return func(context.Context) data.Batch {
		batch, err, _ := next()
		program.Check(err)
		return batch
	}
}
