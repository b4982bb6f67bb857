package fit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

// recorder is an observer that keeps what it gets.
type recorder struct {
	seen []*Observation
	// observe, if not nil, is called for each observation.
	observe func(context.Context, *Observation) error
}

func (r *recorder) Observe(ctx context.Context, o *Observation) error {
	r.seen = append(r.seen, o)
	if r.observe != nil {
		return r.observe(ctx, o)
	}
	return nil
}

func (r *recorder) at(m Moment) (found []*Observation) {
	for _, o := range r.seen {
		if o.Moment == m {
			found = append(found, o)
		}
	}
	return found
}

func TestObserversGetTheHistory(t *testing.T) {
	r, dir := &recorder{}, tempDir(t)
	now := clock{time.Unix(1_700_000_000, 0), 100 * time.Millisecond}
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 3, Validation: samples(t, 4), LearningRate: Constant(0.01),
		now: now.now}
	loop.Hook(Observers{List: []Observer{r}, Budget: memory.GiB, BudgetLayer: memory.Anon, Restarts: 2}.Hook(),
		Checkpoint{Folder: dir}.Hook())
	h := complete(t, &loop, samples(t, 14))

	require.Equal(t, AtStart, r.seen[0].Moment)
	last := r.seen[len(r.seen)-1]
	require.Equal(t, AtEnd, last.Moment)
	require.True(t, last.Done)
	require.Equal(t, int64(12), last.Step)
	require.Equal(t, int64(12), last.Steps)
	require.Equal(t, int64(3*14), last.Samples, "the last batch of a pass has 2 samples")
	require.Equal(t, int64(12), last.CheckpointStep, "Checkpoint ends before the observers")
	require.Positive(t, last.CheckpointTook)
	require.Equal(t, 2, last.Restarts)
	require.Equal(t, memory.Bytes(memory.GiB), last.Budget)
	require.Equal(t, memory.Anon, last.BudgetLayer)
	epochs := r.at(AtEpoch)
	require.Len(t, epochs, 3)
	for i, o := range epochs {
		require.Equal(t, h.Records[i], *o.Record)
		require.Equal(t, h.Records[i].Metrics, o.Metrics)
		require.Equal(t, i+1, o.EpochsDone)
		require.InDelta(t, 1/h.Records[i].StepsPerSecond, o.StepTime.Seconds(), 1e-6)
	}
	require.Equal(t, int64(8), epochs[2].CheckpointStep, "Checkpoint follows the observers")
	for _, o := range r.at(AtStep) {
		require.Positive(t, o.StepTime)
		require.Len(t, o.Metrics, 2)
	}
	require.True(t, slices.IsSortedFunc(r.seen, func(a, b *Observation) int { return int(a.Step - b.Step) }))
}

// Within an epoch there is an observation for the first step in each second.
func TestObserversDoNotGetEveryStep(t *testing.T) {
	r := &recorder{}
	now := clock{time.Unix(1_700_000_000, 0), time.Millisecond}
	loop := Loop{Session: newLinear(), Batch: 1, Epochs: 1, now: now.now}
	complete(t, &loop, samples(t, 3000), Observers{List: []Observer{r}}.Hook())
	steps := r.at(AtStep)
	spent := now.at.Sub(time.Unix(1_700_000_000, 0))
	require.InDelta(t, spent.Seconds(), float64(len(steps)), 1.5)
	for i, o := range steps[1:] {
		require.GreaterOrEqual(t, o.Time.Sub(steps[i].Time), time.Second)
	}
}

func TestObserversOfAResumedRun(t *testing.T) {
	dir := tempDir(t)
	run := func(epochs int) (*recorder, *History) {
		r := &recorder{}
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: epochs, Resume: dir}
		h := complete(t, &loop, samples(t, 8), Observers{List: []Observer{r}}.Hook(), Checkpoint{Folder: dir}.Hook())
		return r, h
	}
	first, h := run(2)
	require.False(t, first.seen[0].Resumed)
	require.Empty(t, first.seen[0].Earlier)
	second, _ := run(3)
	o := second.seen[0]
	require.True(t, o.Resumed)
	require.Equal(t, outcomeOf(t, h, newLinear()), outcomeOf(t, &History{Records: o.Earlier}, newLinear()))
	require.Equal(t, int64(4), o.Step)
	require.Equal(t, int64(4), o.CheckpointStep)
	require.WithinDuration(t, time.Now(), o.CheckpointTime, time.Minute)
	last := second.seen[len(second.seen)-1]
	require.Equal(t, int64(6), last.Step)
	require.Equal(t, int64(2), last.Steps)
	require.Equal(t, int64(8), last.Samples)
}

// A run that goes back to a snapshot does not count its steps twice.
func TestObserversOfRepeatedSteps(t *testing.T) {
	r, l := &recorder{}, newLinear()
	l.onTrain = failingOnce(3)
	loop := Loop{Session: l, Batch: 4, Epochs: 2, Recover: (&keeping{session: l}).recovery(0)}
	complete(t, &loop, samples(t, 16), Observers{List: []Observer{r}}.Hook())
	last := r.seen[len(r.seen)-1]
	require.Equal(t, int64(8), last.Steps)
	require.Equal(t, int64(32), last.Samples)
}

func TestObserversCannotStopATraining(t *testing.T) {
	// In the bubble of synctest, time passes only once an observer waits for the end of its context.
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		good := &recorder{}
		failing := &recorder{observe: func(context.Context, *Observation) error { return errors.New("the disk is on fire") }}
		slow := &recorder{observe: func(ctx context.Context, _ *Observation) error { <-ctx.Done(); return nil }}
		hanging := &recorder{observe: func(ctx context.Context, _ *Observation) error { <-ctx.Done(); return ctx.Err() }}
		now := clock{time.Unix(1_700_000_000, 0), time.Second} // each step is observed
		loop := Loop{Session: newLinear(), Batch: 1, Epochs: 2, Log: slog.New(slog.NewTextHandler(&log, nil)), now: now.now}
		loop.Hook(Observers{List: []Observer{failing, hanging, slow, good}}.Hook())
		began := time.Now()
		h := complete(t, &loop, samples(t, 20))
		require.True(t, h.Done)
		require.Equal(t, 4*observeMost, time.Since(began))
		require.Len(t, good.seen, 1+2*20+2+1)
		require.True(t, good.seen[len(good.seen)-1].Done)
		require.Equal(t, 1, strings.Count(log.String(), "the disk is on fire"), "one warning")
		require.Equal(t, 2, strings.Count(log.String(), "is too slow"), "one warning for each")
		require.Len(t, slow.seen, 2)
		require.Len(t, hanging.seen, 2)
		require.Equal(t, AtEnd, hanging.seen[1].Moment)
	})
}

func TestObserversOfAnInterruptedRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, r := newLinear(), &recorder{}
	r.observe = func(ctx context.Context, _ *Observation) error { return ctx.Err() }
	l.onTrain = before(2, cancel)
	loop := Loop{Session: l, Batch: 4, Epochs: 2}
	loop.Hook(Observers{List: []Observer{r}}.Hook())
	_, err := loop.Run(ctx, samples(t, 8))
	require.ErrorIs(t, err, context.Canceled)
	last := r.seen[len(r.seen)-1]
	require.Equal(t, AtEnd, last.Moment)
	require.False(t, last.Done)
	require.Equal(t, int64(3), last.Step)
}

func TestScalars(t *testing.T) {
	rate, wait := 0.5, 0.25
	r := Record{
		Epoch: 3, Step: 30, Metrics: Metrics{{"loss", 1}, {"accuracy", 2}, {"val_loss", 3}}, LearningRate: &rate,
		StepsPerSecond: 4, DataWait: &wait,
		Memory: memory.Usage{RSS: memory.Known(5), Peak: memory.Known(6)}, GPU: memory.Known(7),
	}
	require.Equal(t, []Scalar{
		{"train", "epoch_loss", 2, 1}, {"train", "epoch_accuracy", 2, 2}, {"validation", "epoch_loss", 2, 3},
		{"validation", "evaluation_loss_vs_iterations", 30, 3}, {"train", "epoch_learning_rate", 2, 0.5},
		{"train", "epoch_steps_per_second", 2, 4}, {"train", "time/step_seconds", 30, 0.25},
		{"train", "time/data_wait", 30, 0.25},
		{"train", "memory/rss", 30, 5}, {"train", "memory/peak", 30, 6}, {"train", "memory/gpu", 30, 7},
	}, r.Scalars())
}
