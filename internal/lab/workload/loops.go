package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/mustcompile"
	"steadyfit/internal/lab/synth"
	"steadyfit/internal/lab/worker"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func (b *builder) inMemory(ctx context.Context, samples int) (*trainer, *loop.Loop, error) {
	prefetch := b.Int("prefetch", 0)
	t, err := b.trainer(ctx)
	if err != nil {
		return nil, nil, err
	}
	ds, err := t.samples(samples)
	if err != nil {
		return nil, nil, err
	}
	return t, t.loop(b.passes(data.Prefetch(ds, prefetch), b.Spec.Batch, b.Spec.From)), nil
}

// newInMemory is W0, S2 and S2l.
func newInMemory(ctx context.Context, b *builder) (*loop.Loop, error) {
	_, l, err := b.inMemory(ctx, b.Spec.SetSize())
	return l, err
}

// almost returns the samples of an epoch whose last batch is a quarter full, like that of 1000
// samples in batches of 32.
func almost(s worker.Spec) int { return max(1, s.SetSize()-s.WholeBatch()*3/4) }

const validationBatch = 64

// newValidated is S1 and S1d: training with a validation after each epoch.
func newValidated(ctx context.Context, b *builder) (*loop.Loop, error) {
	t, l, err := b.inMemory(ctx, almost(b.Spec))
	if err != nil {
		return nil, err
	}
	s, err := t.synth()
	if err != nil {
		return nil, err
	}
	validation, err := s.InMemory(almost(b.Spec)/5, 1)
	if err != nil {
		return nil, err
	}
	out := make([]float64, len(t.EvaluateMetrics()))
	l.Epoch = func(ctx context.Context, n int) error {
		for batch, err := range validation.Batches(data.Pass{Batch: validationBatch}) {
			if err == nil {
				err = t.Evaluate(ctx, batch, out)
			}
			if err != nil {
				return err
			}
		}
		return t.endEpoch(ctx, n)
	}
	return l, nil
}

// newS0 trains on a large dataset in memory, streamed from files, or in the graph.
func newS0(ctx context.Context, b *builder) (*loop.Loop, error) {
	where, rows := b.Choice("data", "memory", "disk", "graph"), b.Int("rows", 1_000_000)
	if where == "memory" {
		_, l, err := b.inMemory(ctx, rows)
		return l, err
	}
	prefetch := b.Int("prefetch", 0)
	t, err := b.trainer(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.synth()
	if err != nil {
		return nil, err
	}
	if where == "graph" {
		p, err := b.pipeline(ctx, s, rows, 0, prefetch)
		if err != nil {
			return nil, err
		}
		return t.loop(p.take), nil
	}
	ds, err := synth.Stream(s, rows, b.Spec.Scratch)
	if err != nil {
		return nil, err
	}
	b.onClose(ds.Close)
	return t.loop(b.passes(data.Prefetch(ds, prefetch), b.Spec.Batch, b.Spec.From)), nil
}

// newW11 trains from a shuffling pipeline in the graph.
func newW11(ctx context.Context, b *builder) (*loop.Loop, error) {
	shuffle, prefetch := b.Int("shuffle", 1000), b.Int("prefetch", 0)
	t, err := b.trainer(ctx)
	if err != nil {
		return nil, err
	}
	s, err := t.synth()
	if err != nil {
		return nil, err
	}
	p, err := b.pipeline(ctx, s, b.Spec.SetSize(), shuffle, prefetch)
	if err != nil {
		return nil, err
	}
	return t.loop(p.take), nil
}

// newS4 keeps the metrics of each step by name, like a logging callback.
func newS4(ctx context.Context, b *builder) (*loop.Loop, error) {
	keep := b.Choice("history", "keep", "last") == "keep"
	t, l, err := b.inMemory(ctx, min(b.Spec.Epoch, 200)*b.Spec.WholeBatch())
	if err != nil {
		return nil, err
	}
	var history []map[string]float64
	train := l.Step
	l.Step = func(ctx context.Context, n int) (float64, error) {
		loss, err := train(ctx, n)
		if err != nil {
			return 0, err
		}
		if !keep {
			history = history[:0]
		}
		entry := make(map[string]float64, len(t.values))
		for i, name := range t.TrainMetrics() {
			entry[name] = t.values[i]
		}
		history = append(history, entry)
		return loss, nil
	}
	return l, nil
}

// sizes draws the number of samples of a step from 1 to most, which is twice the batch.
type sizes struct {
	most  int
	rng   *rand.Rand
	order []int // the remaining sizes if none may repeat, otherwise nil
	round func(n int) int
}

func (b *builder) sizes() *sizes {
	most := 2 * b.Spec.Batch
	return &sizes{most: most, rng: rand.New(rand.NewPCG(uint64(b.Spec.Seed), 3)), round: loop.Rounding(b.Child, most)}
}

func (z *sizes) once() {
	z.order = z.rng.Perm(z.most)
	for i := range z.order {
		z.order[i]++
	}
}

func (z *sizes) next() int {
	if z.order == nil {
		return z.round(1 + z.rng.IntN(z.most))
	}
	last := len(z.order) - 1
	n := z.order[last]
	z.order = slices.Insert(z.order[:last], 0, n)
	return z.round(n)
}

// newW3 predicts for a random number of samples in each step.
func newW3(ctx context.Context, b *builder) (*loop.Loop, error) {
	z := b.sizes()
	p, err := b.predictor(ctx, z.most)
	if err != nil {
		return nil, err
	}
	return &loop.Loop{
		Step:  func(ctx context.Context, _ int) (float64, error) { return 0, p.run(ctx, z.next()) },
		Trace: func(into *[]byte) { p.traced = into },
	}, nil
}

// newW9 trains on a random number of samples in each step, with XLA.
func newW9(ctx context.Context, b *builder) (*loop.Loop, error) {
	jit, z := b.Choice("jit", "on", "cluster", "off"), b.sizes()
	z.once() // XLA compiles each size
	model, err := loop.Model(b.Child)
	if err != nil {
		return nil, err
	}
	var device gpuopts.Options
	switch jit {
	case "on":
		if model, err = mustcompile.Copy(model, filepath.Join(b.Spec.Scratch, "compiled")); err != nil {
			return nil, err
		}
	case "cluster":
		device.XLA = "on-2"
	}
	t, err := b.trainerOf(ctx, model, device)
	if err != nil {
		return nil, err
	}
	s, err := t.synth()
	if err != nil {
		return nil, err
	}
	all := s.Batch(z.most)
	s.Fill(all, 0)
	l := t.loop(func(context.Context) (data.Batch, error) { return all.Slice(0, z.next()), nil })
	l.Epoch = nil
	return l, nil
}

// userSamples is the number of generated samples without a dataset of the user.
const userSamples = 1024

// newUser trains the user's model with package fit.
func newUser(ctx context.Context, b *builder) (*loop.Loop, error) {
	prefetch := b.Int("prefetch", 0)
	t, err := b.trainer(ctx)
	if err != nil {
		return nil, err
	}
	spec, whole := b.Spec, b.Spec.WholeBatch()
	var memory *data.InMemory
	if spec.Data != "" {
		memory, err = openData(spec.Data, t.model)
	} else {
		memory, err = t.samples(max(userSamples, whole))
	}
	if err != nil {
		return nil, err
	}
	ds := data.Prefetch(memory, prefetch)
	// Another process continues at the next epoch of the fit.Loop. So an epoch of the loop is
	// an epoch of the Spec, or a shorter pass of whole batches.
	epoch := min(spec.Epoch, max(1, (ds.Len()+whole-1)/whole))
	l := t.loop(func(context.Context) (data.Batch, error) { // for the traced step
		for batch, err := range ds.Batches(data.Pass{Batch: spec.Batch}) {
			return batch, err
		}
		return data.Batch{}, fmt.Errorf("%s has fewer samples than a batch of %d", ds.Name(), spec.Batch)
	})
	l.Steps = func(ctx context.Context, after func(context.Context, int, float64) error) error {
		first := spec.From / epoch
		f := &fit.Loop{Session: t, Batch: spec.Batch, InitialEpoch: first, Epochs: first + spec.Steps/epoch + 1, StepsPerEpoch: epoch}
		n := spec.From
		f.Hook(fit.Hook{Name: "sample", Step: func(ctx context.Context, s *fit.State) error {
			n++
			if err := after(ctx, n, s.Values[0]); err != nil {
				return err
			}
			if n >= spec.Steps {
				s.Stop("the last step is done")
			}
			return nil
		}})
		_, err := f.Run(ctx, ds)
		return err
	}
	return l, nil
}

// openData reads the user's data, with images and tables converted for the model.
func openData(path string, model *savedmodels.Model) (*data.InMemory, error) {
	images, scale, err := session.ImageOptions(model, model.Roles.Train, 0, 0)
	if err != nil {
		return nil, err
	}
	csv, err := session.CSVOptions(model, model.Roles.Train)
	if err != nil {
		return nil, err
	}
	ds, err := data.Open(path, data.Options{Images: images, CSV: csv})
	if err != nil || scale == nil || ds.ImageFields() == nil {
		return ds, err
	}
	return ds.Scale("x", float32(scale[0]), float32(scale[1]))
}
