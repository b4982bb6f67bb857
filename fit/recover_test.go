package fit

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/memory"
)

var errFull = errors.New("out of memory")

// keeping makes a Recovery for a linear session and counts the snapshots.
type keeping struct {
	session    *linear
	held, kept int
	decide     func(failed error) (string, error) // nil continues with the event oom
}

func (k *keeping) recovery(every int) *Recovery {
	return &Recovery{
		Every: every,
		Snapshot: func(context.Context) (func(context.Context) error, func() error, error) {
			k.held++
			k.kept++
			w, v := k.session.w, k.session.v
			return func(context.Context) error { k.session.w, k.session.v = w, v; return nil },
				func() error { k.held--; return nil }, nil
		},
		Decide: func(_ context.Context, _ *State, failed error) (string, error) {
			if k.decide == nil {
				return "oom", nil
			}
			return k.decide(failed)
		},
	}
}

// failingOnce returns a function linear.onTrain that returns errFull when it is first called for each of the steps.
func failingOnce(steps ...int64) func(int64) error {
	return func(step int64) error {
		i := slices.Index(steps, step)
		if i < 0 {
			return nil
		}
		steps = slices.Delete(steps, i, i+1)
		return errFull
	}
}

// A run that returns to a snapshot ends like one without a failure, bit for bit, with the same
// weights, metrics and rates. Hooks see each step once.
func TestGoingBackChangesNothing(t *testing.T) {
	schedule := func(step int64, _ int) float64 { return 0.05 / float64(1+step/7) }
	train := func(l *linear, r *Recovery) (*History, []int64) {
		var seen []int64
		loop := Loop{Session: l, Batch: 8, Epochs: 4, StepsPerEpoch: 11, LearningRate: schedule, Validation: samples(t, 16),
			Recover: r}
		loop.Hook(Hook{Name: "see", Step: func(_ context.Context, s *State) error {
			seen = append(seen, s.Step)
			return nil
		}})
		h := complete(t, &loop, samples(t, 100).Shuffle(1))
		return h, seen
	}
	plain := newLinear()
	want, steps := train(plain, nil)

	for _, every := range []int{0, 1, 3, 5} {
		l := newLinear()
		// Failures in the first step, in the middle and at the end of epochs and passes, and twice in a row.
		fail, failures := failingOnce(0, 5, 10, 11, 12, 13, 25, 26, 43), 0
		l.onTrain = func(step int64) error {
			err := fail(step)
			if err != nil {
				failures++
				l.w[1] += 3 // an incomplete update
			}
			return err
		}
		k := &keeping{session: l, decide: func(err error) (string, error) {
			require.ErrorIs(t, err, errFull)
			return "oom", nil
		}}
		have, seen := train(l, k.recovery(every))
		require.Equal(t, 9, failures)
		require.Equal(t, plain.state(), l.state(), "every %d", every)
		require.Equal(t, steps, seen)
		require.Zero(t, k.held)
		for i := range want.Records {
			require.Equal(t, want.Records[i].Metrics, have.Records[i].Metrics)
			require.Equal(t, want.Records[i].Step, have.Records[i].Step)
			require.Equal(t, want.Records[i].LearningRate, have.Records[i].LearningRate)
		}
		require.Contains(t, have.Records[0].Events, "oom")
	}
}

func TestGoingBackIsDecided(t *testing.T) {
	run := func(k *keeping, l *linear) (*History, error) {
		l.onTrain = failing(7, errFull)
		k.session = l
		loop := Loop{Session: l, Batch: 8, Epochs: 2, StepsPerEpoch: 5, Recover: k.recovery(2)}
		return loop.Run(t.Context(), samples(t, 100))
	}
	// The run ends with the error of Decide.
	enough := errors.New("cannot be split any further")
	k := &keeping{decide: func(failed error) (string, error) { return "", errors.Join(enough, failed) }}
	h, err := run(k, newLinear())
	require.ErrorIs(t, err, enough)
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "step 8")
	require.Len(t, h.Records, 1)
	require.Zero(t, k.held)

	// A snapshot that cannot be taken or restored ends the run.
	l := newLinear()
	k = &keeping{session: l}
	r := k.recovery(1)
	r.Snapshot = func(context.Context) (func(context.Context) error, func() error, error) { return nil, nil, errFull }
	loop := Loop{Session: l, Batch: 8, Epochs: 1, Recover: r}
	_, err = loop.Run(t.Context(), samples(t, 20))
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "taking a snapshot before step 1")
}

// A snapshot is taken at the beginning of each epoch and at fixed intervals, and the previous
// one is released.
func TestStatesAreKept(t *testing.T) {
	l := newLinear()
	k := &keeping{session: l}
	most := 0
	loop := Loop{Session: l, Batch: 8, Epochs: 3, StepsPerEpoch: 10, Recover: k.recovery(4)}
	loop.Hook(Hook{Name: "count", Step: func(context.Context, *State) error {
		most = max(most, k.held)
		return nil
	}})
	complete(t, &loop, samples(t, 100))
	require.Equal(t, 9, k.kept) // steps 0, 4, 8 of each epoch
	require.Equal(t, 1, most)
	require.Zero(t, k.held)
}

func TestResetsAreRecorded(t *testing.T) {
	loop := Loop{Session: newLinear(), Batch: 8, Epochs: 3, StepsPerEpoch: 4}
	loop.Hook(Hook{Name: "reset",
		Step: func(_ context.Context, s *State) error {
			if s.Step == 2 || s.Step == 3 {
				s.ResetBy(memory.Known(memory.MiB), 250e6)
			}
			return nil
		},
		Epoch: func(_ context.Context, s *State) error {
			if s.Epoch == 2 {
				s.ResetBy(memory.Reading{}, 1e9)
			}
			return nil
		},
	})
	h := complete(t, &loop, samples(t, 100))
	require.Equal(t, Resets{Count: 2, Returned: memory.Known(2 * memory.MiB), Seconds: 0.5}, h.Records[0].Resets)
	require.Equal(t, []string{"reset"}, h.Records[0].Events)
	require.Equal(t, Resets{Count: 1, Seconds: 1}, h.Records[1].Resets)
	require.Equal(t, Resets{}, h.Records[2].Resets)

	text, err := h.Records[0].MarshalJSON()
	require.NoError(t, err)
	require.Contains(t, string(text), `"resets":2,"reset_returned_bytes":2097152,"reset_seconds":0.5,"event":"reset"}`)
	var back Record
	require.NoError(t, back.UnmarshalJSON(text))
	require.Equal(t, h.Records[0].Resets, back.Resets)
	text, err = h.Records[1].MarshalJSON()
	require.NoError(t, err)
	require.NotContains(t, string(text), "reset_returned_bytes")
	text, err = h.Records[2].MarshalJSON()
	require.NoError(t, err)
	require.NotContains(t, string(text), "reset")
}

// Checkpoints store the state of a Recovery.
func TestRecoveryIsResumed(t *testing.T) {
	dir := tempDir(t)
	run := func(epochs int, parts *int) error {
		l := newLinear()
		k := &keeping{session: l}
		r := k.recovery(0)
		r.Save = func() (json.RawMessage, error) {
			if *parts == 0 {
				return nil, nil
			}
			return json.Marshal(*parts)
		}
		r.Load = func(state json.RawMessage) error { return json.Unmarshal(state, parts) }
		loop := Loop{Session: l, Batch: 8, Epochs: epochs, StepsPerEpoch: 4, Recover: r, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir}.Hook())
		_, err := loop.Run(t.Context(), samples(t, 100))
		return err
	}
	parts := 0
	require.NoError(t, run(1, &parts))
	require.NoError(t, run(2, &parts), "nothing to load")
	require.Zero(t, parts)
	parts = 8
	require.NoError(t, run(3, &parts))
	parts = 0
	require.NoError(t, run(4, &parts))
	require.Equal(t, 8, parts)

	loop := Loop{Session: newLinear(), Batch: 8, Epochs: 5, StepsPerEpoch: 4, Resume: dir, Recover: &Recovery{
		Load: func(json.RawMessage) error { return errFull },
	}}
	_, err := loop.Run(t.Context(), samples(t, 100))
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "state of Loop.Recover")
}

// interruptedReplay trains in a run that returns from step 9 to 5, and is interrupted at step 7
// while it repeats steps.
func interruptedReplay(t *testing.T, dir string, resume bool, every int) (*linear, *History, error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := newLinear()
	k := &keeping{session: l}
	failed := resume
	l.onTrain = func(step int64) error {
		if step == 9 && !failed {
			failed = true
			return errFull
		}
		if step == 6 && failed && !resume {
			cancel()
		}
		return nil
	}
	loop := Loop{Session: l, Batch: 8, Epochs: 1, StepsPerEpoch: 12, Recover: k.recovery(5), Resume: dir}
	loop.Hook(Checkpoint{Folder: dir, EverySteps: every}.Hook())
	h, err := loop.Run(ctx, samples(t, 100))
	return l, h, err
}

// A run that is interrupted while it repeats steps keeps its newest checkpoint and writes none.
func TestInterruptedReplay(t *testing.T) {
	plain := newLinear()
	complete(t, &Loop{Session: plain, Batch: 8, Epochs: 1, StepsPerEpoch: 12}, samples(t, 100))

	for every, newest := range map[int]string{9: "ckpt-9", 8: "ckpt-8", 5: "ckpt-5", 100: ""} {
		dir := tempDir(t)
		_, h, err := interruptedReplay(t, dir, false, every)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, newest, strings.TrimPrefix(h.Checkpoint, dir+"/"))
		l, h, err := interruptedReplay(t, dir, true, every)
		require.NoError(t, err)
		require.Equal(t, newest, strings.TrimPrefix(h.ResumedFrom, dir+"/"))
		require.Equal(t, plain.state(), l.state(), "every %d", every)
	}
}

// Hooks with Replays see repeated steps.
func TestReplays(t *testing.T) {
	l := newLinear()
	l.onTrain = failingOnce(4, 10, 11, 17)
	k := &keeping{session: l}
	seen, replayed := 0, 0
	loop := Loop{Session: l, Batch: 8, Epochs: 2, StepsPerEpoch: 12, Recover: k.recovery(0)}
	loop.Hook(Hook{Name: "see", Step: func(context.Context, *State) error { seen++; return nil }},
		Hook{Name: "look", Step: func(context.Context, *State) error { replayed++; return nil }, Replays: true})
	complete(t, &loop, samples(t, 100).Shuffle(1))
	require.Equal(t, 24, seen)
	require.Equal(t, 24+4+10+11+5, replayed)
}

// A run calls Alive with each step, each batch of a validation, and each batch that is read
// before the first step.
func TestAlive(t *testing.T) {
	dir := tempDir(t)
	var told []int64
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2, Validation: samples(t, 8),
		Alive: func(step int64) { told = append(told, step) }}
	complete(t, &loop, data.Prefetch(samples(t, 12), 1), Checkpoint{Folder: dir}.Hook())
	require.Equal(t, []int64{0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 6, 6}, told)
}

// Before its first step, a run calls Alive with 0 even after a resume, since the start may take
// longer than a step.
func TestAliveAfterAResume(t *testing.T) {
	for name, c := range map[string]struct {
		together, epochs int
		last             int64 // last step of the first run; 0 if it ends in the validation
		want             []int64
	}{
		"steps one by one":      {epochs: 1, last: 3, want: []int64{4, 5, 6, 6, 6}},
		"steps in calls of two": {together: 2, epochs: 1, last: 4, want: []int64{0, 6, 6, 6}},
		"in the validation":     {epochs: 2, want: []int64{0, 0, 7, 8, 9, 10, 11, 12, 12, 12}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			run := func(ctx context.Context, l *several, alive func(step int64)) error {
				loop := Loop{Session: l, Batch: 4, Epochs: c.epochs, Validation: samples(t, 8), Resume: dir, Alive: alive}
				loop.Hook(Checkpoint{Folder: dir}.Hook())
				_, err := loop.Run(ctx, samples(t, 24))
				return err
			}
			ctx, cancel := context.WithCancel(t.Context())
			first := newSeveral(c.together)
			first.onTrain = func(step int64) error {
				if step+1 == c.last {
					cancel()
				}
				return nil
			}
			first.onEvaluate = func() error { cancel(); return nil }
			require.ErrorIs(t, run(ctx, first, nil), context.Canceled)
			var told []int64
			require.NoError(t, run(t.Context(), newSeveral(c.together), func(step int64) { told = append(told, step) }))
			for len(told) > len(c.want) && told[0] == 0 { // batches that were read to identify the data
				told = told[1:]
			}
			require.Equal(t, c.want, told)
		})
	}
}
