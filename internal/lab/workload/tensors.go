package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/cell"
	"steadyfit/tfbind"
)

// W8: bursts of tensors from several threads, closed out of order.

// A burst is made by all workers together, so that one worker alone does the same.
const (
	burstWorkers = 8
	burstTensors = 40 // of one of 8 workers
	// From each burst one tensor of so many lives until the next.
	burstSurvivors = 10
	burstSmall     = 64 << 10 / 4 // floats
	burstLarge     = 256 << 10 / 4
)

type bursting struct {
	plain
	untrained
	workers []*burster
}

// burster allocates on a thread of its own: malloc has an arena per thread.
type burster struct {
	rng     *rand.Rand
	count   int
	values  []float32
	kept    []*tfbind.Tensor
	work    chan []*tfbind.Tensor // what another worker kept
	results chan error
}

func newW8(_ context.Context, c *cell.Child) (job, error) {
	n, err := c.Int("goroutines", burstWorkers)
	if err != nil {
		return nil, err
	}
	if n < 1 || n > 64 {
		return nil, &cell.KnobError{Failure: cell.NotApplicable, Name: "goroutines", Value: c.Knob("goroutines", ""), Reason: "expected 1 to 64"}
	}
	j := &bursting{}
	for i := range n {
		w := &burster{
			rng:     rand.New(rand.NewPCG(uint64(c.Spec.Seed), uint64(i))),
			count:   burstWorkers * burstTensors / n,
			values:  make([]float32, burstLarge),
			work:    make(chan []*tfbind.Tensor),
			results: make(chan error),
		}
		j.workers = append(j.workers, w)
		go w.run()
	}
	return j, nil
}

func (w *burster) run() {
	// A goroutine that ends locked takes its thread with it.
	runtime.LockOSThread()
	for kept := range w.work {
		w.results <- w.burst(kept)
	}
	close(w.results)
}

// burst makes tensors, closes those that another worker kept halfway, and then most
// of its own in random order.
func (w *burster) burst(others []*tfbind.Tensor) error {
	var mine []*tfbind.Tensor
	var errs []error
	for i := range w.count {
		if i == w.count/2 {
			errs = append(errs, tensorSet(others).close())
		}
		n := burstSmall + w.rng.IntN(burstLarge-burstSmall+1)
		x, err := tfbind.NewTensor(w.values[:n], int64(n))
		if err != nil {
			errs = append(errs, err)
			break
		}
		mine = append(mine, x)
	}
	w.rng.Shuffle(len(mine), func(a, b int) { mine[a], mine[b] = mine[b], mine[a] })
	keep := len(mine) / burstSurvivors
	w.kept = append(w.kept[:0], mine[:keep]...)
	return errors.Join(append(errs, tensorSet(mine[keep:]).close())...)
}

func (j *bursting) step(context.Context, int) (float64, error) {
	last := len(j.workers) - 1
	handed := make([][]*tfbind.Tensor, len(j.workers))
	for i := range j.workers {
		// From the worker before, so that memory is freed by another thread.
		from := j.workers[(i+last)%len(j.workers)]
		handed[i] = append(handed[i], from.kept...)
	}
	for i, w := range j.workers {
		w.work <- handed[i]
	}
	var errs []error
	for _, w := range j.workers {
		errs = append(errs, <-w.results)
	}
	return 0, errors.Join(errs...)
}

func (j *bursting) close() (tfbind.Counts, error) {
	var errs []error
	for _, w := range j.workers {
		close(w.work)
		<-w.results
		errs = append(errs, tensorSet(w.kept).close())
	}
	return tfbind.Counts{}, errors.Join(errs...)
}

// W12: tensors of strings, made, passed through a graph, read and closed.

const (
	stringCount = 1000
	stringShort = 10
	stringLong  = 200
)

type texts struct {
	plain
	untrained
	session *tfbind.Session
	in, out tfbind.Output
	pool    []string // twice as many as are used at a time
}

func newW12(_ context.Context, c *cell.Child) (job, error) {
	j := &texts{}
	rng := rand.New(rand.NewPCG(uint64(c.Spec.Seed), 12))
	for range 2 * stringCount {
		n := stringShort + rng.IntN(stringLong-stringShort+1)
		j.pool = append(j.pool, strings.Repeat(string(rune('a'+rng.IntN(26))), n))
	}
	g := new(graphdef.Graph).Placeholder("x", tfbind.String).Add("y", "Identity", graphdef.Attrs{"T": graphdef.Type(tfbind.String)}, "x")
	var err error
	if j.session, err = openGraph(g, c.Spec.Config); err != nil {
		return nil, err
	}
	if err := errors.Join(find(j.session, "x", &j.in), find(j.session, "y", &j.out)); err != nil {
		return nil, errors.Join(err, closeGraph(j.session))
	}
	return j, nil
}

func (j *texts) step(ctx context.Context, n int) (float64, error) {
	from := n * 7 % stringCount
	values := j.pool[from : from+stringCount]
	x, err := tfbind.NewTensor(values, stringCount)
	if err != nil {
		return 0, err
	}
	defer x.Close()
	out, err := j.session.Run(ctx, tfbind.Feeds{j.in: x}, []tfbind.Output{j.out})
	if err != nil {
		return 0, err
	}
	defer out.Close()
	back, err := tfbind.Values[string](out[0])
	if err != nil {
		return 0, err
	}
	for i := range back {
		if back[i] != values[i] {
			return 0, fmt.Errorf("string %d came back as %q, was %q", i, back[i], values[i])
		}
	}
	return 0, nil
}

func (j *texts) close() (tfbind.Counts, error) { return tfbind.Counts{}, closeGraph(j.session) }
