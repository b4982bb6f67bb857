package workload

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"steadyfit/data"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/cell"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// W1: the step of W0, and a fetched tensor that is never closed.

// leakFloats are 64 KiB.
const leakFloats = 64 << 10 / 4

type leaking struct {
	*loop
	session *tfbind.Session
	in, out tfbind.Output
	values  []float32
	keep    bool
	kept    []*tfbind.Tensor
}

func newW1(ctx context.Context, c *cell.Child) (job, error) {
	release, err := c.Choice("release", "keep", "close")
	if err != nil {
		return nil, err
	}
	l, err := newLoop(ctx, c, c.Spec.SetSize())
	if err != nil {
		return nil, err
	}
	g := new(graphdef.Graph).Placeholder("x", tfbind.Float32).Add("y", "Identity", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}, "x")
	j := &leaking{loop: l, keep: release == "keep", values: make([]float32, leakFloats)}
	if j.session, err = openGraph(g, c.Spec.Config); err == nil {
		err = errors.Join(find(j.session, "x", &j.in), find(j.session, "y", &j.out))
	}
	if err != nil {
		return nil, errors.Join(err, closeGraph(j.session), closeErr(l))
	}
	return j, nil
}

func (j *leaking) step(ctx context.Context, n int) (float64, error) {
	loss, err := j.loop.step(ctx, n)
	if err != nil {
		return 0, err
	}
	// Identity hands its input on, so that what is fetched is the buffer that is
	// made here, of exactly 64 KiB.
	x, err := tfbind.NewTensor(j.values, leakFloats)
	if err != nil {
		return 0, err
	}
	defer x.Close()
	y, err := j.session.Run(ctx, tfbind.Feeds{j.in: x}, []tfbind.Output{j.out})
	if err != nil {
		return 0, err
	}
	if !j.keep {
		return loss, y.Close()
	}
	j.kept = append(j.kept, y...)
	return loss, nil
}

func (j *leaking) close() (tfbind.Counts, error) {
	left := tfbind.Counts{Tensors: int64(len(j.kept)), TensorBytes: int64(len(j.kept)) * leakFloats * 4}
	_, err := j.loop.close()
	return left, errors.Join(err, closeGraph(j.session))
}

// W2: the tensors that a step is fed are made anew, and left alone.

// dropped feeds tensors to a train signature.
type dropped struct {
	plain
	*tensorTrainer
	batch   data.Batch
	release string
	left    tfbind.Counts
}

func newW2(ctx context.Context, c *cell.Child) (job, error) {
	input, err := c.Choice("input", "tensor", "buffer")
	if err != nil {
		return nil, err
	}
	if input == "buffer" {
		return newLoopOverOne(ctx, c)
	}
	release, err := c.Choice("release", "gc", "close", "drop")
	if err != nil {
		return nil, err
	}
	t, err := newTensorTrainer(c, 1)
	if err != nil {
		return nil, err
	}
	s, err := newSynth(t.model, t.model.Roles.Train, c.Spec.Seed)
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	j := &dropped{tensorTrainer: t, batch: s.batch(c.Spec.Batch), release: release}
	s.fill(j.batch, 0)
	return j, nil
}

func (j *dropped) step(ctx context.Context, _ int) (float64, error) {
	tensors, err := j.tensors(j.batch)
	if err != nil {
		return 0, err
	}
	loss, err := j.train(ctx, tensors)
	if err != nil {
		return 0, errors.Join(err, tensors.close())
	}
	if j.release == "close" {
		return loss, tensors.close()
	}
	j.left.Tensors += int64(len(tensors))
	for i := range tensors {
		j.left.TensorBytes += tensors[i].Bytes()
		if j.release == "drop" {
			tensors[i] = nil
		}
	}
	return loss, nil
}

func (j *dropped) close() (tfbind.Counts, error) { return j.left, j.tensorTrainer.close() }

// newLoopOverOne feeds the same samples through the session's own buffers.
func newLoopOverOne(ctx context.Context, c *cell.Child) (job, error) {
	t, err := newTrainer(ctx, c)
	if err != nil {
		return nil, err
	}
	ds, err := t.samples(c.Spec.Batch)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return &loop{trainer: t, source: newPasses(ds, c.Spec.Batch, 0)}, nil
}

// tensorTrainer trains through tensors that its caller makes and owns.
type tensorTrainer struct {
	tracing
	model   *savedmodels.Model
	session *tfbind.Session // nil with the knob eager
	eager   *eagerModel     // nil without it
	micro   int
	whole   signature // the whole step, or gradients with micro-batches
	apply   signature
}

// signature is one that is run with tensors.
type signature struct {
	inputs  []savedmodels.Tensor
	feeds   []tfbind.Output
	fetches []tfbind.Output
	program *program // of eager execution, which has no feeds and fetches
}

// tensorSet has a tensor for each input of a signature.
type tensorSet []*tfbind.Tensor

func (s tensorSet) close() error {
	for _, t := range s {
		t.Close()
	}
	return nil
}

func newTensorTrainer(c *cell.Child, micro int) (*tensorTrainer, error) {
	model, err := openModel(c)
	if err != nil {
		return nil, err
	}
	if err := model.CheckTrainable(savedmodels.CheckOptions{}); err != nil {
		return nil, err
	}
	roles := model.Roles
	if err := checkMicro(c, model, session.Options{}, micro); err != nil {
		return nil, err
	}
	eager, err := eagerly(c)
	if err != nil {
		return nil, err
	}
	t := &tensorTrainer{model: model, micro: micro}
	if eager {
		t.eager, err = openEager(model, session.Options{Config: c.Spec.Config})
	} else {
		t.session, err = tfbind.LoadSavedModel(model.Dir, model.Tags, c.Spec.Config)
	}
	if err != nil {
		return nil, err
	}
	first := roles.Train
	if micro > 1 {
		first = roles.Gradients
		t.apply, err = t.signature(roles.Apply, "")
	}
	if err == nil {
		t.whole, err = t.signature(first, savedmodels.OutputLoss)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	if t.eager != nil {
		t.eager.settle()
	}
	return t, nil
}

// signature looks up the inputs of a signature and one output: any if no name is
// given.
func (t *tensorTrainer) signature(name, output string) (s signature, err error) {
	sig, err := t.model.Signature(name)
	if err != nil {
		return s, err
	}
	s.inputs = sig.DataInputs()
	if len(s.inputs) != len(sig.Inputs) {
		return s, fmt.Errorf("signature %s takes reserved inputs, which cannot be fed here", name)
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
	for _, in := range append(s.inputs, *fetch) {
		o, err := t.session.Graph().Output(in.Op)
		if err != nil {
			return s, err
		}
		s.feeds = append(s.feeds, o)
	}
	last := len(s.feeds) - 1
	s.feeds, s.fetches = s.feeds[:last:last], s.feeds[last:]
	return s, nil
}

// tensors copies a batch into new tensors.
func (t *tensorTrainer) tensors(b data.Batch) (tensorSet, error) { return tensorsOf(t.whole.inputs, b) }

func tensorsOf(inputs []savedmodels.Tensor, b data.Batch) (set tensorSet, err error) {
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
	return nil, fmt.Errorf("%w: no tensor of %T is made here", tfbind.ErrType, a.Values)
}

// train is one step on tensors, which stay the caller's.
func (t *tensorTrainer) train(ctx context.Context, set tensorSet) (float64, error) {
	options, err := t.runOptions()
	if err != nil {
		return 0, err
	}
	return t.runWith(ctx, t.whole, set, options)
}

func (t *tensorTrainer) run(ctx context.Context, s signature, set tensorSet) (float64, error) {
	return t.runWith(ctx, s, set, tfbind.RunOptions{})
}

func (t *tensorTrainer) runWith(ctx context.Context, s signature, set tensorSet, options tfbind.RunOptions) (float64, error) {
	if t.eager != nil {
		var out [1]float64
		err := t.eager.scalars(ctx, s.program, set, out[:])
		return out[0], err
	}
	feeds := make(tfbind.Feeds, len(set))
	for i, x := range set {
		feeds[s.feeds[i]] = x
	}
	out, err := t.session.RunWith(ctx, feeds, s.fetches, options)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	return out[0].Float()
}

func (t *tensorTrainer) close() error { return errors.Join(t.session.Close(), t.eager.Close()) }

// W4: a SavedModel is loaded for each step.

type reloading struct {
	plain
	tracing
	plan  *session.Plan
	batch data.Batch
	keep  bool
	left  tfbind.Counts
}

func newW4(ctx context.Context, c *cell.Child) (job, error) {
	reuse, err := c.Choice("reuse", "0", "1")
	if err != nil {
		return nil, err
	}
	if reuse == "1" {
		return newReusing(ctx, c)
	}
	// This binding closes a session and deletes it in one.
	what, err := c.Choice("close", "none", "all")
	if err != nil {
		return nil, err
	}
	model, err := openModel(c)
	if err != nil {
		return nil, err
	}
	s, err := newSynth(model, model.Roles.Train, c.Spec.Seed)
	if err != nil {
		return nil, err
	}
	plan, err := session.Compile(model, session.Options{Config: c.Spec.Config, Seed: c.Spec.Seed})
	if err != nil {
		return nil, err
	}
	j := &reloading{plan: plan, batch: s.batch(c.Spec.Batch), keep: what == "none"}
	s.fill(j.batch, 0)
	return j, nil
}

func (j *reloading) step(ctx context.Context, _ int) (float64, error) {
	before := tfbind.Live()
	s, err := session.Open(ctx, j.plan)
	if err != nil {
		return 0, err
	}
	values := make([]float64, len(s.TrainMetrics()))
	if j.into == nil {
		err = s.Train(ctx, 0, j.batch, values)
	} else {
		*j.into, err = s.Trace(ctx, 0, j.batch, values)
	}
	if err != nil {
		return 0, errors.Join(err, s.Close())
	}
	if !j.keep {
		return values[0], s.Close()
	}
	after := tfbind.Live()
	j.left.Graphs += after.Graphs - before.Graphs
	j.left.Sessions += after.Sessions - before.Sessions
	j.left.Steps += after.Steps - before.Steps
	j.left.StepBytes += after.StepBytes - before.StepBytes
	return values[0], nil
}

func (j *reloading) close() (tfbind.Counts, error) { return j.left, nil }

// reusing has the same outcome with one session: its variables are put back.
type reusing struct {
	plain
	*trainer
	batch   data.Batch
	initial string
}

func newReusing(ctx context.Context, c *cell.Child) (job, error) {
	t, err := newTrainer(ctx, c)
	if err != nil {
		return nil, err
	}
	j := &reusing{trainer: t, initial: filepath.Join(c.Spec.Scratch, "initial")}
	s, err := t.synth()
	if err == nil {
		j.batch = s.batch(c.Spec.Batch)
		s.fill(j.batch, 0)
		err = t.Save(ctx, j.initial)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return j, nil
}

func (j *reusing) step(ctx context.Context, _ int) (float64, error) {
	if err := j.Restore(ctx, j.initial); err != nil {
		return 0, err
	}
	return j.trainer.step(ctx, 1, j.batch)
}

func (j *reusing) close() (tfbind.Counts, error) { return tfbind.Counts{}, j.Close() }

// W10: what each step predicts is kept as Go values.

type predicting struct {
	plain
	untrained
	*predictor
	keep    bool
	history [][]any
}

// predictor is a session that only predicts.
type predictor struct {
	tracing
	session *session.Session
	predict *session.Step
	batch   data.Batch // made-up samples
}

func newPredictor(ctx context.Context, c *cell.Child, samples int) (*predictor, error) {
	model, err := openModel(c)
	if err != nil {
		return nil, err
	}
	s, err := newSynth(model, model.Roles.Predict, c.Spec.Seed)
	if err != nil {
		return nil, err
	}
	p := &predictor{batch: s.batch(samples)}
	s.fill(p.batch, 0)
	plan, err := session.Compile(model, session.Options{ReadOnly: true, Config: c.Spec.Config})
	if err != nil {
		return nil, err
	}
	if p.session, err = session.Open(ctx, plan); err != nil {
		return nil, err
	}
	if p.predict, err = p.session.Prepare(model.Roles.Predict); err != nil {
		return nil, errors.Join(err, p.session.Close())
	}
	return p, nil
}

func (p *predictor) run(ctx context.Context, b data.Batch) error {
	if err := p.predict.Feed(b); err != nil {
		return err
	}
	return p.tracing.run(ctx, p.predict)
}

func (p *predictor) close() error { return errors.Join(p.predict.Close(), p.session.Close()) }

func newW10(ctx context.Context, c *cell.Child) (job, error) {
	keep, err := c.Choice("history", "keep", "last")
	if err != nil {
		return nil, err
	}
	p, err := newPredictor(ctx, c, c.Spec.Batch)
	if err != nil {
		return nil, err
	}
	return &predicting{predictor: p, keep: keep == "keep"}, nil
}

func (j *predicting) step(ctx context.Context, _ int) (float64, error) {
	if err := j.run(ctx, j.batch); err != nil {
		return 0, err
	}
	var outputs []any
	for _, t := range j.predict.Signature().Outputs {
		v, err := j.values(t.Name)
		if err != nil {
			return 0, err
		}
		outputs = append(outputs, v)
	}
	if !j.keep {
		j.history = j.history[:0]
	}
	j.history = append(j.history, outputs)
	return 0, nil
}

func (j *predicting) values(name string) (any, error) {
	x, err := j.predict.Output(name)
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
	return nil, fmt.Errorf("output %s: %w: %s is not kept here", name, tfbind.ErrType, x.DType())
}

func (j *predicting) close() (tfbind.Counts, error) {
	j.history = nil
	return tfbind.Counts{}, j.predictor.close()
}
