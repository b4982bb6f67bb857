package programs

import (
	"context"
	"math/rand/v2"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/lab/program"
	"steadyfit/train"
)

func (b *run) inMemory(ctx context.Context, samples int) (*trainer, *program.Loop) {
	prefetch := b.Int("prefetch", 0)
	t := b.trainer(ctx)
	return t, t.loop(b.passes(data.Prefetch(t.samples(samples), prefetch), b.Batch, b.From))
}

// newInMemory opens W0, S2 and S2l: training on a dataset in memory.
func newInMemory(ctx context.Context, b *run) *program.Loop {
	_, l := b.inMemory(ctx, b.Samples)
	return l
}

// almost returns the samples of an epoch whose last batch is a quarter full, like that of 1000
// samples in batches of 32.
func (b *run) almost() int { return max(1, b.Samples-b.WholeBatch()*3/4) }

const validationBatch = 64

// newValidated opens S1 and S1d: training with a validation after each epoch.
func newValidated(ctx context.Context, b *run) *program.Loop {
	t, l := b.inMemory(ctx, b.almost())
	validation := program.Must(t.synth().InMemory(b.almost()/5, 1))
	out := make([]float64, len(t.EvaluateMetrics()))
	l.Epoch = func(ctx context.Context, n int) {
		for batch, err := range validation.Batches(data.Pass{Batch: validationBatch}) {
			program.Check(err)
			program.Check(t.Evaluate(ctx, batch, out))
		}
		t.endEpoch(ctx, n)
	}
	return l
}

// newS0 trains on a large dataset in memory, or streamed from files.
func newS0(ctx context.Context, b *run) *program.Loop {
	where, rows := b.Choice("data", "memory", "disk"), b.Int("rows", 1_000_000)
	if where == "memory" {
		_, l := b.inMemory(ctx, rows)
		return l
	}
	prefetch := b.Int("prefetch", 0)
	t := b.trainer(ctx)
	ds := program.Must(t.synth().Stream(rows, b.Scratch))
	b.OnClose(ds.Close)
	return t.loop(b.passes(data.Prefetch(ds, prefetch), b.Batch, b.From))
}

// newS4 keeps the metrics of each step by name, like a logging callback.
func newS4(ctx context.Context, b *run) *program.Loop {
	keep := b.Choice("history", "keep", "last") == "keep"
	t, l := b.inMemory(ctx, min(b.Epoch, 200)*b.WholeBatch())
	var history []map[string]float64
	train := l.Step
	l.Step = func(ctx context.Context, n int) float64 {
		loss := train(ctx, n)
		if !keep {
			history = history[:0]
		}
		entry := make(map[string]float64, len(t.values))
		for i, name := range t.TrainMetrics() {
			entry[name] = t.values[i]
		}
		history = append(history, entry)
		return loss
	}
	return l
}

// newW3 predicts for a random number of samples in each step.
func newW3(ctx context.Context, b *run) *program.Loop {
	most, rng := 2*b.Batch, rand.New(rand.NewPCG(uint64(b.Seed), 3))
	round := b.Rounding(most)
	p := b.predictor(ctx, most)
	return &program.Loop{
		Untrained: true,
		Step: func(ctx context.Context, _ int) float64 {
			p.run(ctx, round(1+rng.IntN(most)))
			return 0
		},
		Trace: func(into *[]byte) { p.traced = into },
	}
}

// newW9 trains with XLA, which compiles each number of samples. Every number comes once before one
// repeats.
func newW9(ctx context.Context, b *run) *program.Loop {
	jit, most := b.Choice("jit", "on", "off"), 2*b.Batch
	round := b.Rounding(most)
	order := rand.New(rand.NewPCG(uint64(b.Seed), 3)).Perm(most)
	slices.Reverse(order)
	model := b.OpenModel()
	if jit == "on" {
		model = b.compiled(model)
	}
	t := b.trainerOf(ctx, model)
	s := t.synth()
	all := s.Batch(most)
	s.Fill(all, 0)
	n := 0
	l := t.loop(func(context.Context) data.Batch {
		n++
		return all.Slice(0, round(1+order[(n-1)%most]))
	})
	l.Epoch = nil
	return l
}

// userSamples is the number of generated samples without a dataset of the user.
const userSamples = 1024

// newUser trains the user's model.
func newUser(ctx context.Context, b *run) *program.Loop {
	prefetch := b.Int("prefetch", 0)
	t := b.trainer(ctx)
	memory := t.samples(max(userSamples, b.WholeBatch()))
	if b.Data != "" {
		memory = program.Must(train.OpenData(t.model, t.model.Roles.Train, train.Data{Path: b.Data}, "train",
			data.Pass{Batch: b.Batch}))
	}
	return t.loop(b.passes(data.Prefetch(memory, prefetch), b.Batch, b.From))
}
