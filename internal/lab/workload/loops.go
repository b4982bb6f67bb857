package workload

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/lab/cell"
	"steadyfit/internal/lab/mustcompile"
	"steadyfit/tfbind"
)

// validationBatch is the samples of a step of a validation.
const validationBatch = 64

// loop trains on one batch after the other, as people write it by hand.
type loop struct {
	*trainer
	source batches
	// validation is evaluated at the end of each epoch; nil for none.
	validation data.Dataset
	evaluated  []float64
}

func (l *loop) step(ctx context.Context, n int) (float64, error) {
	b, err := l.source.take(ctx)
	if err != nil {
		return 0, err
	}
	return l.trainer.step(ctx, n, b)
}

func (l *loop) epoch(ctx context.Context, _ int) error {
	if err := l.validate(ctx); err != nil {
		return err
	}
	return l.endEpoch(ctx)
}

func (l *loop) validate(ctx context.Context) error {
	if l.validation == nil {
		return nil
	}
	for b, err := range l.validation.Batches(data.Pass{Batch: validationBatch}) {
		if err == nil {
			err = l.Evaluate(ctx, b, l.evaluated)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loop) close() (tfbind.Counts, error) {
	return tfbind.Counts{}, errors.Join(l.source.close(), l.Close())
}

// newLoop is a loop over that many samples in memory.
func newLoop(ctx context.Context, c *cell.Child, samples int) (*loop, error) {
	prefetch, err := c.Int("prefetch", 0)
	if err != nil {
		return nil, err
	}
	t, err := newTrainer(ctx, c)
	if err != nil {
		return nil, err
	}
	ds, err := t.samples(samples)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return &loop{trainer: t, source: newPasses(data.Prefetch(ds, prefetch), c.Spec.Batch, c.Spec.From)}, nil
}

// synth makes up data for the train signature.
func (t *trainer) synth() (*synth, error) {
	return newSynth(t.model, t.Roles().Train, t.options.Seed)
}

// samples are made up, in memory.
func (t *trainer) samples(n int) (*data.InMemory, error) {
	s, err := t.synth()
	if err != nil {
		return nil, err
	}
	return s.memory(n, 0)
}

// withValidation adds a validation on other samples; where that fails the loop is
// closed.
func (l *loop) withValidation(samples int) (job, error) {
	s, err := l.synth()
	if err == nil {
		l.validation, err = s.memory(samples, 1)
	}
	if err != nil {
		return nil, errors.Join(err, closeErr(l))
	}
	l.evaluated = make([]float64, len(l.EvaluateMetrics()))
	return l, nil
}

// newW0 is the control: everything is closed. An epoch of whole batches is a pass.
func newW0(ctx context.Context, c *cell.Child) (job, error) {
	return newLoop(ctx, c, c.Spec.SetSize())
}

// newS1 trains on as many samples as an epoch has, all but the last batch full.
func newS1(ctx context.Context, c *cell.Child) (job, error) {
	l, err := newLoop(ctx, c, almost(c.Spec))
	if err != nil {
		return nil, err
	}
	return l.withValidation(almost(c.Spec) / 5)
}

func newS1d(ctx context.Context, c *cell.Child) (job, error) { return newS1(ctx, c) }

// almost is the samples of an epoch whose last whole batch is a quarter full, as that
// of 1000 samples in batches of 32 is.
func almost(s cell.Spec) int { return max(1, s.SetSize()-s.WholeBatch()*3/4) }

func newS2(ctx context.Context, c *cell.Child) (job, error) {
	return newLoop(ctx, c, c.Spec.SetSize())
}

func newS2l(ctx context.Context, c *cell.Child) (job, error) { return newS2(ctx, c) }

// newS0 trains on a large set: in memory, streamed, or inside the graph.
func newS0(ctx context.Context, c *cell.Child) (job, error) {
	where, err := c.Choice("data", "memory", "disk", "graph")
	if err != nil {
		return nil, err
	}
	rows, err := c.Int("rows", 1_000_000)
	if err != nil {
		return nil, err
	}
	if where == "memory" {
		return newLoop(ctx, c, rows)
	}
	prefetch, err := c.Int("prefetch", 0)
	if err != nil {
		return nil, err
	}
	t, err := newTrainer(ctx, c)
	if err != nil {
		return nil, err
	}
	l := &loop{trainer: t}
	s, err := t.synth()
	if err == nil && where == "disk" {
		var ds *streamed
		if ds, err = stream(s, rows, c.Spec.Scratch); err == nil {
			p := newPasses(data.Prefetch(ds, prefetch), c.Spec.Batch, c.Spec.From)
			p.owned = ds
			l.source = p
		}
	} else if err == nil {
		l.source, err = newPipeline(ctx, c, s, rows, pipelineOptions{prefetch: prefetch})
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return l, nil
}

// sizes draws the number of samples of each step.
type sizes struct {
	most  int
	rng   *rand.Rand
	order []int // sizes that are to come, without one twice; nil to draw freely
	round func(n, most int) int
}

// The words of the knob shapes of W3 and W9, but for fixed.
var roundings = map[string]func(n, most int) int{
	"varying": func(n, _ int) int { return n },
	"pad":     func(_, most int) int { return most },
	"bucket":  func(n, most int) int { return min(1<<bits.Len(uint(n-1)), most) },
}

// newSizes draws from 1 to twice the Spec's batch, which is the mean.
func newSizes(c *cell.Child) (*sizes, error) {
	shapes, err := c.Choice("shapes", "varying", "fixed", "pad", "bucket")
	if err != nil {
		return nil, err
	}
	z := &sizes{most: 2 * c.Spec.Batch, round: roundings[shapes], rng: rand.New(rand.NewPCG(uint64(c.Spec.Seed), 3))}
	if shapes == "fixed" {
		z.round = func(int, int) int { return c.Spec.Batch }
	}
	return z, nil
}

// once has no size drawn twice before all have been.
func (z *sizes) once() {
	z.order = z.rng.Perm(z.most)
	for i := range z.order {
		z.order[i]++
	}
}

// next is the number of samples of the next step.
func (z *sizes) next() int {
	if z.order == nil {
		return z.round(1+z.rng.IntN(z.most), z.most)
	}
	last := len(z.order) - 1
	n := z.order[last]
	z.order = slices.Insert(z.order[:last], 0, n)
	return z.round(n, z.most)
}

// W3 predicts for a number of samples that is drawn for each step.
type varyingPredict struct {
	plain
	untrained
	*sizes
	*predictor
}

func newW3(ctx context.Context, c *cell.Child) (job, error) {
	z, err := newSizes(c)
	if err != nil {
		return nil, err
	}
	p, err := newPredictor(ctx, c, z.most)
	if err != nil {
		return nil, err
	}
	return &varyingPredict{sizes: z, predictor: p}, nil
}

func (j *varyingPredict) step(ctx context.Context, _ int) (float64, error) {
	return 0, j.run(ctx, j.batch.Slice(0, j.next()))
}

func (j *varyingPredict) close() (tfbind.Counts, error) { return tfbind.Counts{}, j.predictor.close() }

// W9 trains with a number of samples that is drawn for each step.
type varyingTrain struct {
	plain
	*sizes
	*trainer
	all data.Batch
}

func newW9(ctx context.Context, c *cell.Child) (job, error) {
	jit, err := c.Choice("jit", "on", "cluster", "off")
	if err != nil {
		return nil, err
	}
	z, err := newSizes(c)
	if err != nil {
		return nil, err
	}
	z.once() // a program is compiled for each size
	model, err := openModel(c)
	if err != nil {
		return nil, err
	}
	var device gpuopts.Options
	switch jit {
	case "on":
		if model, err = mustcompile.Copy(model, filepath.Join(c.Spec.Scratch, "compiled")); err != nil {
			return nil, err
		}
	case "cluster":
		device.XLA = gpuopts.XLAOn2
	}
	t, err := newTrainerOf(ctx, c, model, device)
	if err != nil {
		return nil, err
	}
	s, err := t.synth()
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	j := &varyingTrain{sizes: z, trainer: t, all: s.batch(z.most)}
	s.fill(j.all, 0)
	return j, nil
}

func (j *varyingTrain) step(ctx context.Context, n int) (float64, error) {
	return j.trainer.step(ctx, n, j.all.Slice(0, j.next()))
}

func (j *varyingTrain) close() (tfbind.Counts, error) { return tfbind.Counts{}, j.Close() }

// newS4 keeps what each step reported.
func newS4(ctx context.Context, c *cell.Child) (job, error) {
	keep, err := c.Choice("history", "keep", "last")
	if err != nil {
		return nil, err
	}
	l, err := newLoop(ctx, c, min(c.Spec.Epoch, 200)*c.Spec.WholeBatch())
	if err != nil {
		return nil, err
	}
	return &recorded{loop: l, keep: keep == "keep"}, nil
}

// recorded keeps the metrics of each step by name, as a logging callback does.
type recorded struct {
	*loop
	keep    bool
	history []map[string]float64
}

func (r *recorded) step(ctx context.Context, n int) (float64, error) {
	loss, err := r.loop.step(ctx, n)
	if err != nil {
		return 0, err
	}
	if !r.keep {
		r.history = r.history[:0]
	}
	entry := make(map[string]float64, len(r.values))
	for i, name := range r.TrainMetrics() {
		entry[name] = r.values[i]
	}
	r.history = append(r.history, entry)
	return loss, nil
}

func (r *recorded) close() (tfbind.Counts, error) {
	r.history = nil
	return r.loop.close()
}
