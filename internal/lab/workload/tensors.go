package workload

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/data"
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/synth"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// tensors are the inputs of a signature.
type tensors []*tfbind.Tensor

func (s tensors) close() error {
	for _, t := range s {
		t.Close()
	}
	return nil
}

// leave counts tensors that stay open on purpose.
func (b *builder) leave(s tensors) {
	b.left.Tensors += int64(len(s))
	for _, t := range s {
		b.left.TensorBytes += t.Bytes()
	}
}

func tensorsOf(inputs []savedmodels.Tensor, b data.Batch) (set tensors, err error) {
	for _, in := range inputs {
		a, ok := b.Field(in.Name)
		if !ok {
			return nil, errors.Join(fmt.Errorf("no field for input %s", in.Name), set.close())
		}
		x, err := newTensor(a)
		if err != nil {
			return nil, errors.Join(err, set.close())
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
	case []int32:
		return tfbind.NewTensor(v, shape...)
	case []uint8:
		return tfbind.NewTensor(v, shape...)
	}
	return nil, fmt.Errorf("%w: a tensor of %T", tfbind.ErrType, a.Values)
}

// leakFloats is the number of values of 64 KiB.
const leakFloats = 64 << 10 / 4

// newW1 is the step of W0 and a fetched tensor that stays open.
func newW1(ctx context.Context, b *builder) (*loop.Loop, error) {
	keep := b.Choice("release", "keep", "close") == "keep"
	_, l, err := b.inMemory(ctx, b.Spec.SetSize())
	if err != nil {
		return nil, err
	}
	s, in, out, err := b.identity(tfbind.Float32)
	if err != nil {
		return nil, err
	}
	values := make([]float32, leakFloats)
	var kept tensors
	train := l.Step
	l.Step = func(ctx context.Context, n int) (float64, error) {
		loss, err := train(ctx, n)
		if err != nil {
			return 0, err
		}
		// Identity returns its input, so the fetched tensor has the same buffer.
		x, err := tfbind.NewTensor(values, leakFloats)
		if err != nil {
			return 0, err
		}
		defer x.Close()
		y, err := s.Run(ctx, tfbind.Feeds{in: x}, []tfbind.Output{out})
		if err != nil {
			return 0, err
		}
		if !keep {
			return loss, y.Close()
		}
		kept = append(kept, y...)
		return loss, nil
	}
	b.onClose(func() error {
		b.leave(kept)
		return nil
	})
	return l, nil
}

// newW2 creates tensors for each step and leaves them open.
func newW2(ctx context.Context, b *builder) (*loop.Loop, error) {
	if b.Choice("input", "tensor", "buffer") == "buffer" {
		// Feed the session's own buffers.
		t, err := b.trainer(ctx)
		if err != nil {
			return nil, err
		}
		ds, err := t.samples(b.Spec.Batch)
		if err != nil {
			return nil, err
		}
		l := t.loop(b.passes(ds, b.Spec.Batch, 0))
		return l, nil
	}
	release := b.Choice("release", "gc", "close", "drop")
	t, err := b.tensorTrainer(1)
	if err != nil {
		return nil, err
	}
	batch, err := b.batch(t.model, t.model.Roles.Train, b.Spec.Batch)
	if err != nil {
		return nil, err
	}
	return t.loop(func(ctx context.Context, _ int) (float64, error) {
		set, err := tensorsOf(t.whole.inputs, batch)
		if err != nil {
			return 0, err
		}
		loss, err := t.train(ctx, set)
		if err != nil || release == "close" {
			return loss, errors.Join(err, set.close())
		}
		b.leave(set)
		if release == "drop" {
			clear(set)
		}
		return loss, nil
	}), nil
}

func (b *builder) batch(model *savedmodels.Model, signature string, n int) (data.Batch, error) {
	s, err := synth.New(model, signature, b.Spec.Seed)
	if err != nil {
		return data.Batch{}, err
	}
	batch := s.Batch(n)
	s.Fill(batch, 0)
	return batch, nil
}

// tensorTrainer trains on tensors of its caller.
type tensorTrainer struct {
	model   *savedmodels.Model
	session *tfbind.Session // nil with the parameter eager
	eager   *eagerModel     // nil without the parameter eager
	whole   signature       // the train step, or its gradients with micro-batches
	apply   signature
	traced  *[]byte // where train writes a trace; nil for none
}

type signature struct {
	inputs  []savedmodels.Tensor
	feeds   []tfbind.Output
	fetches []tfbind.Output
	program *program // for eager execution, instead of feeds and fetches
}

func (b *builder) tensorTrainer(micro int) (*tensorTrainer, error) {
	eager := b.eager()
	model, err := loop.Model(b.Child)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(model.CheckTrainable(savedmodels.CheckOptions{}), b.checkMicro(model, session.Options{}, micro)); err != nil {
		return nil, err
	}
	t := &tensorTrainer{model: model}
	if eager {
		t.eager, err = openEager(model, session.Options{Config: b.Spec.Config})
	} else {
		t.session, err = tfbind.LoadSavedModel(model.Dir, model.Tags, b.Spec.Config)
	}
	if err != nil {
		return nil, err
	}
	b.onClose(func() error { return errors.Join(t.session.Close(), t.eager.Close()) })
	first := model.Roles.Train
	if micro > 1 {
		first = model.Roles.Gradients
		if t.apply, err = t.signature(model.Roles.Apply, ""); err != nil {
			return nil, err
		}
	}
	if t.whole, err = t.signature(first, savedmodels.OutputLoss); err != nil {
		return nil, err
	}
	if eager {
		t.eager.settle()
	}
	return t, nil
}

func (t *tensorTrainer) loop(step func(ctx context.Context, n int) (float64, error)) *loop.Loop {
	return &loop.Loop{Step: step, Trace: func(into *[]byte) { t.traced = into }}
}

// signature finds the inputs of a signature and an output. An empty output means any.
func (t *tensorTrainer) signature(name, output string) (s signature, err error) {
	sig, err := t.model.Signature(name)
	if err != nil {
		return s, err
	}
	s.inputs = sig.DataInputs()
	if len(s.inputs) != len(sig.Inputs) {
		return s, fmt.Errorf("signature %s takes reserved inputs, which this loop does not feed", name)
	}
	fetch := sig.Output(output)
	if output == "" && len(sig.Outputs) > 0 {
		fetch = &sig.Outputs[0]
	}
	if fetch == nil {
		return s, fmt.Errorf("signature %s has no output %q", name, output)
	}
	if t.eager != nil {
		s.program, err = t.eager.part(sig, fetch.Op)
		return s, err
	}
	var names []string
	for _, in := range s.inputs {
		names = append(names, in.Op)
	}
	found, err := outputs(t.session, append(names, fetch.Op)...)
	if err != nil {
		return s, err
	}
	s.feeds, s.fetches = found[:len(names):len(names)], found[len(names):]
	return s, nil
}

func (t *tensorTrainer) train(ctx context.Context, set tensors) (float64, error) {
	var o tfbind.RunOptions
	if t.traced != nil {
		var err error
		if o.Proto, err = proto.Marshal(&pb.RunOptions{TraceLevel: pb.RunOptions_SOFTWARE_TRACE}); err != nil {
			return 0, err
		}
		o.Metadata = t.traced
	}
	return t.run(ctx, t.whole, set, o)
}

func (t *tensorTrainer) run(ctx context.Context, s signature, set tensors, o tfbind.RunOptions) (float64, error) {
	if t.eager != nil {
		var out [1]float64
		err := t.eager.scalars(ctx, s.program, set, out[:])
		return out[0], err
	}
	feeds := make(tfbind.Feeds, len(set))
	for i, x := range set {
		feeds[s.feeds[i]] = x
	}
	out, err := t.session.RunWith(ctx, feeds, s.fetches, o)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	return out[0].Float()
}

// newW4 loads the SavedModel for each step. With reuse, it loads it once and then only restores
// its variables.
func newW4(ctx context.Context, b *builder) (*loop.Loop, error) {
	if b.Choice("reuse", "0", "1") == "1" {
		t, err := b.trainer(ctx)
		if err != nil {
			return nil, err
		}
		batch, err := b.batch(t.model, t.Roles().Train, b.Spec.Batch)
		if err != nil {
			return nil, err
		}
		initial := filepath.Join(b.Spec.Scratch, "initial")
		if err := t.Save(ctx, initial); err != nil {
			return nil, err
		}
		l := t.loop(func(ctx context.Context) (data.Batch, error) { return batch, t.Restore(ctx, initial) })
		l.Epoch = nil
		// Every step follows a restore, so all draw the same random numbers.
		step := l.Step
		l.Step = func(ctx context.Context, _ int) (float64, error) { return step(ctx, 1) }
		return l, nil
	}
	keep := b.Choice("close", "none", "all") == "none" // a session is closed and deleted in one call
	model, err := loop.Model(b.Child)
	if err != nil {
		return nil, err
	}
	batch, err := b.batch(model, model.Roles.Train, b.Spec.Batch)
	if err != nil {
		return nil, err
	}
	plan, err := session.Compile(model, session.Options{Config: b.Spec.Config, Seed: b.Spec.Seed})
	if err != nil {
		return nil, err
	}
	var traced *[]byte
	step := func(ctx context.Context, _ int) (float64, error) {
		before := tfbind.Live()
		s, err := session.Open(ctx, plan)
		if err != nil {
			return 0, err
		}
		values := make([]float64, len(s.TrainMetrics()))
		if traced == nil {
			err = s.Train(ctx, 0, batch, values)
		} else {
			*traced, err = s.Trace(ctx, 0, batch, values)
		}
		if err != nil {
			return 0, errors.Join(err, s.Close())
		}
		if !keep {
			return values[0], s.Close()
		}
		after := tfbind.Live()
		b.left.Graphs += after.Graphs - before.Graphs
		b.left.Sessions += after.Sessions - before.Sessions
		b.left.Executors += after.Executors - before.Executors
		b.left.Steps += after.Steps - before.Steps
		b.left.StepBytes += after.StepBytes - before.StepBytes
		return values[0], nil
	}
	return &loop.Loop{Step: step, Trace: func(into *[]byte) { traced = into }}, nil
}

type predictor struct {
	step   *session.Step
	batch  data.Batch // generated
	traced *[]byte
}

func (b *builder) predictor(ctx context.Context, samples int) (*predictor, error) {
	model, err := loop.Model(b.Child)
	if err != nil {
		return nil, err
	}
	p := &predictor{}
	if p.batch, err = b.batch(model, model.Roles.Predict, samples); err != nil {
		return nil, err
	}
	s, err := session.OpenModel(ctx, model, session.Options{ReadOnly: true, Config: b.Spec.Config})
	if err != nil {
		return nil, err
	}
	b.onClose(s.Close)
	if p.step, err = s.Prepare(model.Roles.Predict); err != nil {
		return nil, err
	}
	b.onClose(p.step.Close)
	return p, nil
}

func (p *predictor) run(ctx context.Context, n int) error {
	err := p.step.Feed(p.batch.Slice(0, n))
	if err == nil && p.traced == nil {
		return p.step.Run(ctx)
	} else if err == nil {
		*p.traced, err = p.step.Trace(ctx)
	}
	return err
}

// newW10 keeps the predictions of each step as Go values.
func newW10(ctx context.Context, b *builder) (*loop.Loop, error) {
	keep := b.Choice("history", "keep", "last") == "keep"
	p, err := b.predictor(ctx, b.Spec.Batch)
	if err != nil {
		return nil, err
	}
	var history [][]any
	return &loop.Loop{Trace: func(into *[]byte) { p.traced = into }, Step: func(ctx context.Context, _ int) (float64, error) {
		if err := p.run(ctx, b.Spec.Batch); err != nil {
			return 0, err
		}
		var values []any
		for _, t := range p.step.Signature.Outputs {
			v, err := p.values(t.Name)
			if err != nil {
				return 0, err
			}
			values = append(values, v)
		}
		if !keep {
			history = history[:0]
		}
		history = append(history, values)
		return 0, nil
	}}, nil
}

func (p *predictor) values(name string) (any, error) {
	x, err := p.step.Output(name)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	switch x.DType() {
	case tfbind.Float32:
		return tfbind.Values[float32](x)
	case tfbind.Int64:
		return tfbind.Values[int64](x)
	}
	return nil, fmt.Errorf("output %s: %w: cannot keep values of type %s", name, tfbind.ErrType, x.DType())
}
