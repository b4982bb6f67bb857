package fit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/memory"
)

// several is a linear session that can run several steps per execution. It copies its batches,
// as TensorFlow's buffers do.
type several struct {
	*linear
	calls    []int // steps of each execution
	gathered []data.Batch
	most     int // steps per execution
	fixed    int // if not 0, the required number of steps of an execution

	// These fields simulate failures.
	onStack  func(b data.Batch) error
	onTrainN func(step int64, n int) error
}

func newSeveral(most int) *several { return &several{linear: newLinear(), most: most} }

func (l *several) StepsPerExecution() int { return l.most }

func (l *several) Stackable(n, samples int) int {
	if l.fixed == 0 {
		return n
	}
	if n >= l.fixed {
		return l.fixed
	}
	return 1
}

func (l *several) Stack(i, n int, b data.Batch) error {
	if l.onStack != nil {
		if err := l.onStack(b); err != nil {
			return err
		}
	}
	if i == 0 {
		l.gathered = l.gathered[:0]
	}
	if len(l.gathered) != i || i >= n {
		return fmt.Errorf("batch %d of %d after %d", i, n, len(l.gathered))
	}
	c := data.Batch{Size: b.Size, Index: b.Index}
	for _, f := range b.Fields {
		f.Values = slices.Clone(f.Values.([]float32))
		c.Fields = append(c.Fields, f)
	}
	l.gathered = append(l.gathered, c)
	return nil
}

func (l *several) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	if len(l.gathered) != n {
		return fmt.Errorf("%d of %d batches were gathered", len(l.gathered), n)
	}
	l.calls = append(l.calls, n)
	one := make([]float64, len(out))
	clear(out)
	for i, b := range l.gathered {
		if err := l.linear.Train(ctx, step+int64(i), b, one); err != nil {
			return err
		}
		for j, v := range one {
			out[j] += v / float64(n)
		}
	}
	l.gathered = l.gathered[:0]
	if l.onTrainN != nil {
		return l.onTrainN(step, n)
	}
	return nil
}

func (l *several) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	l.calls = append(l.calls, 1)
	return l.linear.Train(ctx, step, b, out)
}

// sameRun requires that two runs have the same result except for the last digits of the means.
func sameRun(t *testing.T, want, have *History, wantOf, haveOf *linear) {
	t.Helper()
	require.Equal(t, wantOf.state(), haveOf.state(), "the weights")
	require.Equal(t, wantOf.steps, haveOf.steps, "the numbers of the steps")
	require.Len(t, have.Records, len(want.Records))
	for i, w := range want.Records {
		h := have.Records[i]
		require.Equal(t, []any{w.Epoch, w.Step, w.LearningRate, w.Events, w.Resets.Count},
			[]any{h.Epoch, h.Step, h.LearningRate, h.Events, h.Resets.Count})
		require.Equal(t, metricNamesOf(w.Metrics), metricNamesOf(h.Metrics))
		for j := range w.Metrics {
			require.InEpsilon(t, w.Metrics[j].Value, h.Metrics[j].Value, 1e-12, "epoch %d, %s", w.Epoch, w.Metrics[j].Name)
		}
	}
}

// Executions end at the expected steps, and the run equals one with single steps.
func TestCallsOfSeveralSteps(t *testing.T) {
	steps := func(rates ...float64) schedule {
		return func(step int64, _ int) float64 { return rates[min(int(step), len(rates)-1)] }
	}
	for name, c := range map[string]struct {
		together, samples, epochs, perEpoch int
		drop                                bool
		fixed                               int
		schedule                            schedule
		hooks                               func(t *testing.T) []Hook
		calls                               []int
		says                                string
	}{
		"off":                        {together: 1, samples: 40, epochs: 1, calls: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		"whole epochs":               {together: 4, samples: 40, epochs: 2, calls: []int{4, 4, 2, 4, 4, 2}},
		"more than an epoch":         {together: 50, samples: 40, epochs: 2, calls: []int{10, 10}},
		"a smaller last batch":       {together: 4, samples: 38, epochs: 2, calls: []int{4, 4, 1, 1, 4, 4, 1, 1}},
		"a last batch dropped":       {together: 4, samples: 38, epochs: 1, drop: true, calls: []int{4, 4, 1}},
		"the end of an epoch":        {together: 4, samples: 40, epochs: 3, perEpoch: 5, calls: []int{4, 1, 4, 1, 4, 1}},
		"the end of a pass":          {together: 4, samples: 40, epochs: 3, perEpoch: 7, calls: []int{4, 3, 3, 4, 4, 2, 1}},
		"of a pass, a smaller batch": {together: 4, samples: 38, epochs: 2, perEpoch: 7, calls: []int{4, 3, 2, 1, 4}},
		"a fixed number":             {together: 6, fixed: 4, samples: 40, epochs: 1, calls: []int{4, 4, 1, 1}},
		"a number that never fits": {together: 3, fixed: 4, samples: 12, epochs: 1, calls: []int{1, 1, 1},
			says: "the session cannot stack batches"},
		"no full batch": {together: 3, samples: 3, epochs: 2, calls: []int{1, 1}, says: "no batch is full"},
		"checkpoints": {together: 4, samples: 40, epochs: 1, calls: []int{3, 3, 3, 1},
			hooks: func(t *testing.T) []Hook { return []Hook{Checkpoint{Folder: tempDir(t), EverySteps: 3}.Hook()} }},
		"checkpoints and a reset": {together: 4, samples: 40, epochs: 2, calls: []int{3, 1, 2, 2, 1, 1, 2, 3, 1, 2, 2},
			hooks: func(t *testing.T) []Hook {
				return []Hook{Checkpoint{Folder: tempDir(t), EverySteps: 3}.Hook(), resets(4)}
			}},
		"hooks that take any step": {together: 4, samples: 40, epochs: 1, calls: []int{4, 4, 2},
			hooks: func(t *testing.T) []Hook {
				var bar bytes.Buffer
				return []Hook{Checkpoint{Folder: tempDir(t)}.Hook(), terminal(&bar, 80), resets(AnyStep)}
			}},
		"a hook that needs each": {together: 4, samples: 8, epochs: 2, calls: []int{1, 1, 1, 1}, says: `hook=look reason="it must be called after each step"`,
			hooks: func(t *testing.T) []Hook {
				return []Hook{{Name: "look", Step: func(context.Context, *State) error { return nil }}}
			}},
		"a constant rate": {together: 4, samples: 40, epochs: 1, schedule: Constant(0.01), calls: []int{4, 4, 2}},
		"a rate by epochs": {together: 4, samples: 20, epochs: 3, schedule: parsed("step:0.1:0.5:1"),
			calls: []int{4, 1, 4, 1, 4, 1}},
		"a rate that changes": {together: 4, samples: 40, epochs: 1,
			schedule: steps(0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3), calls: []int{2, 3, 4, 1}},
		"a rate in each step": {together: 4, samples: 16, epochs: 2, schedule: parsed("linear:0.1:100"),
			calls: []int{1, 1, 1, 1, 1, 1, 1, 1}, says: "while the learning rate changes"},
		"a warmup, then steady": {together: 4, samples: 40, epochs: 1, schedule: parsed("warmup:3:0.1"),
			calls: []int{1, 1, 4, 4}, says: "while the learning rate changes"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(s Session) (*History, string) {
				var log strings.Builder
				loop := Loop{Session: s, Batch: 4, Epochs: c.epochs, StepsPerEpoch: c.perEpoch, DropRemainder: c.drop,
					LearningRate: c.schedule, Validation: samples(t, 6), Log: slog.New(slog.NewTextHandler(&log, nil))}
				if c.hooks != nil {
					loop.Hook(c.hooks(t)...)
				}
				var alive int64
				loop.Alive = func(step int64) {
					require.GreaterOrEqual(t, step, alive)
					alive = max(alive, step)
				}
				h := complete(t, &loop, data.Prefetch(samples(t, c.samples).Shuffle(3), 2))
				require.Equal(t, h.Last().Step, alive)
				return h, log.String()
			}
			plain, l := newLinear(), newSeveral(c.together)
			l.fixed = c.fixed
			want, _ := run(plain)
			have, log := run(l)
			require.Equal(t, c.calls, l.calls)
			sameRun(t, want, have, plain, l.linear)
			if c.says == "" {
				require.NotContains(t, log, "one by one")
			} else {
				require.Equal(t, 1, strings.Count(log, "one by one"), log)
				require.Contains(t, log, c.says)
			}
		})
	}
}

// A hook is called after every execution, and at the steps of its StepEvery.
func TestHooksBetweenCalls(t *testing.T) {
	var seen []int64
	loop := Loop{Session: newSeveral(8), Batch: 4, Epochs: 2}
	loop.Hook(Hook{Name: "fives", StepEvery: 5, Step: func(_ context.Context, s *State) error {
		seen = append(seen, s.Step)
		require.Equal(t, 4, s.Samples)
		return nil
	}}, Hook{Name: "sevens", StepEvery: 7, Step: func(context.Context, *State) error { return nil }})
	complete(t, &loop, samples(t, 48))
	require.Equal(t, []int64{5, 7, 10, 12, 14, 15, 20, 21, 24}, seen)
}

// A run that is stopped at any step and resumed has the same executions as an uninterrupted
// run, and the same result bit for bit.
func TestResumeBetweenCalls(t *testing.T) {
	train := func(l *several, dir string, stop func(*State) bool) *History {
		loop := Loop{Session: l, Batch: 4, Epochs: 3, StepsPerEpoch: 7, Resume: dir, LearningRate: parsed("step:0.05:0.5:1")}
		loop.Hook(Checkpoint{Folder: dir, EverySteps: 5}.Hook(),
			Hook{Name: "stop", StepEvery: AnyStep, Step: func(_ context.Context, s *State) error {
				if stop(s) {
					s.Stop("enough")
				}
				return nil
			}})
		h := complete(t, &loop, samples(t, 38).Shuffle(1))
		return h
	}
	whole := newSeveral(4)
	want := train(whole, tempDir(t), func(*State) bool { return false })
	require.True(t, want.Done)
	for stop := range int64(len(whole.steps)) {
		dir, before := tempDir(t), newSeveral(4)
		first := train(before, dir, func(s *State) bool { return s.Step >= stop })
		if first.Done {
			continue
		}
		after := newSeveral(4)
		have := train(after, dir, func(*State) bool { return false })
		require.Equal(t, whole.calls, append(before.calls, after.calls...))
		require.Equal(t, outcomeOf(t, want, whole.linear), outcomeOf(t, have, after.linear), "stopped at step %d", stop)

		// A run with another number of steps per execution may resume.
		dir, before, after = tempDir(t), newSeveral(4), newSeveral(3)
		train(before, dir, func(s *State) bool { return s.Step >= stop })
		train(after, dir, func(*State) bool { return false })
		require.Equal(t, whole.state(), after.state())
	}
}

// The resumed run reads again the batches that were stacked when the run was interrupted.
func TestInterruptedWhileStacking(t *testing.T) {
	plain := newLinear()
	loop := Loop{Session: plain, Batch: 4, Epochs: 1}
	complete(t, &loop, samples(t, 40))

	dir := tempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	l := newSeveral(4)
	l.onStack = func(b data.Batch) error {
		if b.Index == 6 {
			cancel()
		}
		return nil
	}
	loop = Loop{Session: l, Batch: 4, Epochs: 1, Resume: dir}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	_, err := loop.Run(ctx, samples(t, 40))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []int{4}, l.calls)
	again := newSeveral(4)
	loop.Session = again
	h := complete(t, &loop, samples(t, 40))
	require.True(t, strings.HasSuffix(h.ResumedFrom, "ckpt-4"), h.ResumedFrom)
	require.Equal(t, []int{4, 2}, again.calls)
	require.Equal(t, plain.state(), again.state())
}

// Batches that cannot be stacked are trained one by one.
func TestStackingFails(t *testing.T) {
	plain, l := newLinear(), newSeveral(4)
	l.onStack = func(data.Batch) error { return errors.New("another mask") }
	loop := Loop{Session: plain, Batch: 4, Epochs: 1}
	complete(t, &loop, samples(t, 40))
	loop.Session = l
	complete(t, &loop, samples(t, 40))
	require.Equal(t, plain.steps, l.steps)
	require.Equal(t, plain.state(), l.state())
}

func TestDivergedInACall(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		l := newSeveral(4)
		l.lossAt = map[int64]float64{6: bad}
		loop := Loop{Session: l, Batch: 4, Epochs: 1}
		_, err := loop.Run(t.Context(), samples(t, 40))
		var d *divergedError
		require.ErrorAs(t, err, &d)
		require.Equal(t, []any{int64(8), 4, 7}, []any{d.Step, d.Steps, d.Batch})
		require.ErrorContains(t, err, "in steps 5 to 8, which ran in one execution (epoch 1, batches 4 to 7 of the pass, "+
			"from 0)")
	}
}

// A failed execution ends a run without Recovery, and no checkpoint has its result. With
// Recovery, its steps are repeated one by one, and the run ends as without a failure.
func TestCallsThatFail(t *testing.T) {
	plain := newLinear()
	loop := Loop{Session: plain, Batch: 4, Epochs: 2}
	want := complete(t, &loop, samples(t, 40))

	dir, l := tempDir(t), newSeveral(4)
	l.onTrainN = func(step int64, _ int) error {
		if step == 4 {
			l.w[0] = 100
			return errFull
		}
		return nil
	}
	loop = Loop{Session: l, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 40))
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "train steps 5 to 8 (epoch 1, batches 4 to 7), in one execution")
	require.NotContains(t, names(t, dir), "ckpt-8")

	for _, every := range []int{1, 6, 100} {
		l = newSeveral(4)
		l.onTrainN = func(step int64, _ int) error {
			if step == 8 {
				l.w[0] = 100
				return errFull
			}
			return nil
		}
		k := &keeping{session: l.linear, decide: func(err error) (string, error) { return "", err }}
		var seen []int64
		loop = Loop{Session: l, Batch: 4, Epochs: 2, Recover: k.recovery(every)}
		loop.Hook(Hook{Name: "see", StepEvery: AnyStep, Step: func(_ context.Context, s *State) error {
			seen = append(seen, s.Step)
			return nil
		}})
		have := complete(t, &loop, samples(t, 40))
		require.Equal(t, []string{"unstacked"}, have.Records[0].Events)
		have.Records[0].Events = nil
		l.steps = plain.steps // some steps were done twice
		sameRun(t, want, have, plain, l.linear)
		require.Equal(t, []int{4, 4, 2}, l.calls[:3])
		require.Equal(t, 1, slices.Max(l.calls[3:]), "one by one from there")
		require.Equal(t, []int64{4, 8, 9, 10, 11}, seen[:5])
		require.Zero(t, k.held)
	}

	// With single steps, Decide is called for the step that fails.
	l = newSeveral(4)
	l.onTrain = failing(6, errFull)
	k := &keeping{session: l.linear, decide: func(err error) (string, error) { return "", err }}
	loop = Loop{Session: l, Batch: 4, Epochs: 2, Recover: k.recovery(0)}
	_, err = loop.Run(t.Context(), samples(t, 40))
	require.ErrorContains(t, err, "train step 7 (epoch 1, batch 6): out of memory")
}

type constant struct {
	linear
	calls int
}

func (l *constant) TrainMetrics() []string             { return []string{"loss"} }
func (l *constant) StepsPerExecution() int             { return 2 }
func (l *constant) Stackable(n, _ int) int             { return n }
func (l *constant) Stack(_, _ int, _ data.Batch) error { return nil }
func (l *constant) TrainN(_ context.Context, _ int64, _ int, out []float64) error {
	l.calls++
	out[0] = 1
	return nil
}

// resets returns a hook that records a reset each time that this number of steps is done or, if it is
// 0, after each epoch.
func resets(every int) Hook {
	reset := func(s *State) error {
		s.ResetBy(memory.Reading{}, 0)
		return nil
	}
	return Hook{
		Name: "reset", Priority: priorityReport - 100, StepEvery: every,
		Step: func(_ context.Context, s *State) error {
			if every > 0 && s.Step%int64(every) == 0 && !s.LastStep() {
				return reset(s)
			}
			return nil
		},
		Epoch: func(_ context.Context, s *State) error {
			if every == AnyStep && !s.LastStep() {
				return reset(s)
			}
			return nil
		},
	}
}
