package programs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/synth"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// tensors are the inputs of a signature.
type tensors []*tfbind.Tensor

func (s tensors) close() {
	for _, t := range s {
		t.Close()
	}
}

func tensorsOf(inputs []savedmodels.Tensor, b data.Batch) (set tensors, err error) {
	for _, in := range inputs {
		a, ok := b.Field(in.Name)
		var x *tfbind.Tensor
		if err = fmt.Errorf("no field for input %s", in.Name); ok {
			x, err = newTensor(a)
		}
		if err != nil {
			set.close()
			return nil, err
		}
		set = append(set, x)
	}
	return set, nil
}

func newTensor(a data.Array) (*tfbind.Tensor, error) {
	shape := make([]int64, len(a.Shape))
	for i, d := range a.Shape {
		shape[i] = int64(d)
	}
	switch v := a.Values.(type) {
	case []float32:
		return tfbind.NewTensor(v, shape...)
	case []int64:
		return tfbind.NewTensor(v, shape...)
	}
	return nil, fmt.Errorf("%w: a tensor of %T", tfbind.ErrType, a.Values)
}

// leakFloats is the number of values of 64 KiB.
const leakFloats = 64 << 10 / 4

// newW1 opens W1: the step of W0, and a fetched tensor that stays open.
func newW1(ctx context.Context, b *run) *program.Loop {
	keep := b.Choice("release", "keep", "close") == "keep"
	_, l := b.inMemory(ctx, b.Samples)
	s, in, out := b.identity(dtype.Float32)
	values := make([]float32, leakFloats)
	var kept tensors
	train := l.Step
	l.Step = func(ctx context.Context, n int) float64 {
		loss := train(ctx, n)
		// Identity returns its input, so the fetched tensor has the same buffer.
		x := program.Must(tfbind.NewTensor(values, leakFloats))
		defer x.Close()
		y := program.Must(s.Run(ctx, tfbind.Feeds{in: x}, []tfbind.Output{out}))
		if keep {
			kept = append(kept, y...)
		} else {
			program.Check(y.Close())
		}
		return loss
	}
	return l
}

// newW2 creates tensors for each step and leaves them open.
func newW2(ctx context.Context, b *run) *program.Loop {
	if b.Choice("input", "tensor", "buffer") == "buffer" {
		// Feed the session's own buffers.
		t := b.trainer(ctx)
		return t.loop(b.passes(t.samples(b.Batch), b.Batch, 0))
	}
	release := b.Choice("release", "gc", "close", "drop")
	t := b.tensorTrainer()
	batch := b.batch(t.model, t.model.Roles.Train, b.Batch)
	return t.loop(func(ctx context.Context, _ int) float64 {
		set := program.Must(tensorsOf(t.inputs, batch))
		loss := t.train(ctx, set)
		if release == "close" {
			set.close()
			return loss
		}
		if release == "drop" {
			clear(set)
		}
		return loss
	})
}

func (b *run) batch(model *savedmodels.Model, signature string, n int) data.Batch {
	s := program.Must(synth.New(model, signature, b.Seed))
	batch := s.Batch(n)
	s.Fill(batch, 0)
	return batch
}

// tensorTrainer trains on tensors of its caller.
type tensorTrainer struct {
	model   *savedmodels.Model
	session *tfbind.Session
	inputs  []savedmodels.Tensor
	feeds   []tfbind.Output
	fetches []tfbind.Output // the loss
	traced  *[]byte         // where train writes a trace; nil for none
}

func (b *run) tensorTrainer() *tensorTrainer {
	t := &tensorTrainer{model: b.OpenModel()}
	program.Check(t.model.CheckTrainable(false))
	var err error
	t.session, err = tfbind.LoadSavedModel(t.model.Dir, t.model.Tags, b.Config)
	program.Check(err)
	b.OnClose(func() error { return t.session.Close() })
	sig := program.Must(t.model.Signature(t.model.Roles.Train))
	t.inputs = sig.DataInputs()
	if len(t.inputs) != len(sig.Inputs) {
		program.Check(fmt.Errorf("signature %s takes reserved inputs, which this loop does not feed", sig.Name))
	}
	var names []string
	for _, in := range t.inputs {
		names = append(names, in.Op)
	}
	t.feeds, t.fetches = outputs(t.session, names...), outputs(t.session, sig.Output(contract.OutputLoss).Op)
	return t
}

func (t *tensorTrainer) loop(step func(ctx context.Context, n int) float64) *program.Loop {
	return &program.Loop{Step: step, Trace: func(into *[]byte) { t.traced = into }}
}

func (t *tensorTrainer) train(ctx context.Context, set tensors) float64 {
	if t.traced != nil {
		step := program.Must(t.session.Prepare(t.feeds, t.fetches))
		defer step.Close()
		for i, x := range set {
			program.Check(step.Set(i, program.Must(x.Slice(nil)), x.Shape()...))
		}
		*t.traced = program.Must(step.Trace(ctx))
		return program.Must(step.Float(0))
	}
	feeds := make(tfbind.Feeds, len(set))
	for i, x := range set {
		feeds[t.feeds[i]] = x
	}
	out := program.Must(t.session.Run(ctx, feeds, t.fetches))
	defer out.Close()
	return float64(program.Must(out[0].Slice(nil)).([]float32)[0])
}

// newW4 loads the SavedModel for each step. With reuse, newW4 loads the model once and then only
// restores the variables.
func newW4(ctx context.Context, b *run) *program.Loop {
	if b.Choice("reuse", "0", "1") == "1" {
		t := b.trainer(ctx)
		batch := b.batch(t.model, t.Roles().Train, b.Batch)
		initial := filepath.Join(b.Scratch, "initial")
		program.Check(t.Save(ctx, initial))
		// Every step follows a restore and has the number 1, so all steps draw the same random
		// numbers.
		l := t.loop(nil)
		l.Step = func(ctx context.Context, _ int) float64 {
			program.Check(t.Restore(ctx, initial))
			return t.step(ctx, 1, batch)
		}
		l.Epoch = nil
		return l
	}
	keep := b.Choice("close", "none", "all") == "none" // a session is closed and deleted in one call
	model := b.OpenModel()
	batch := b.batch(model, model.Roles.Train, b.Batch)
	plan := program.Must(session.Compile(model, session.Options{Config: b.Config, Seed: b.Seed}))
	var traced *[]byte
	step := func(ctx context.Context, _ int) float64 {
		s := program.Must(session.Open(ctx, plan))
		values := make([]float64, len(s.TrainMetrics()))
		var err error
		if traced == nil {
			err = s.Train(ctx, 0, batch, values)
		} else {
			*traced, err = firstTrace(s, func() error { return s.Train(ctx, 0, batch, values) })
		}
		if err != nil || !keep {
			program.Check(errors.Join(err, s.Close()))
		}
		return values[0]
	}
	return &program.Loop{Step: step, Trace: func(into *[]byte) { traced = into }}
}

type predictor struct {
	session *session.Session
	step    *session.Step
	batch   data.Batch // generated
	traced  *[]byte
}

func (b *run) predictor(ctx context.Context, samples int) *predictor {
	model := b.OpenModel()
	p := &predictor{batch: b.batch(model, model.Roles.Predict, samples)}
	s := program.Must(session.OpenModel(ctx, model, session.Options{ReadOnly: true, Config: b.Config}))
	b.OnClose(s.Close)
	p.session = s
	p.step = program.Must(s.Prepare(model.Roles.Predict))
	b.OnClose(p.step.Close)
	return p
}

func (p *predictor) run(ctx context.Context, n int) {
	program.Check(p.step.Feed(p.batch.Slice(0, n)))
	if p.traced == nil {
		program.Check(p.step.Run(ctx))
	} else {
		*p.traced = program.Must(firstTrace(p.session, func() error { return p.step.Run(ctx) }))
	}
}

// newW10 keeps the predictions of each step as Go values.
func newW10(ctx context.Context, b *run) *program.Loop {
	keep := b.Choice("history", "keep", "last") == "keep"
	p := b.predictor(ctx, b.Batch)
	var history [][]any
	return &program.Loop{Untrained: true, Trace: func(into *[]byte) { p.traced = into },
		Step: func(ctx context.Context, _ int) float64 {
			p.run(ctx, b.Batch)
			var values []any
			for _, t := range p.step.Signature.Outputs {
				var a data.Array
				program.Check(p.step.Read(t.Name, &a))
				values = append(values, a.Values)
			}
			if !keep {
				history = history[:0]
			}
			history = append(history, values)
			return 0
		}}
}
