package fit

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/disk"
	"steadyfit/memory"
)

var errFull = errors.New("out of memory")

// keeping makes a Recovery for a linear session and counts the snapshots.
type keeping struct {
	session    *linear
	held, kept int
	decide     func(failed error) (string, error)
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
		Decide: func(_ context.Context, _ *State, failed error) (string, error) { return k.decide(failed) },
	}
}

// A run that returns to a snapshot ends like one without a failure, bit for bit, with the same
// weights, metrics and rates. Hooks see each step once.
func TestGoingBackChangesNothing(t *testing.T) {
	schedule := func(step int64, _ int) float64 { return 0.05 / float64(1+step/7) }
	train := func(l *linear, r *Recovery) (*History, []int64) {
		var seen []int64
		loop := Loop{Session: l, Batch: 8, Epochs: 4, StepsPerEpoch: 11, LearningRate: schedule, Validation: samples(t, 16), Recover: r}
		loop.Hook(Hook{Name: "see", Step: func(_ context.Context, s *State) error {
			seen = append(seen, s.Step)
			return nil
		}})
		h, err := loop.Run(t.Context(), samples(t, 100).Shuffle(1))
		require.NoError(t, err)
		return h, seen
	}
	plain := newLinear()
	want, steps := train(plain, nil)

	for _, every := range []int{0, 1, 3, 5} {
		l := newLinear()
		failed := map[int64]bool{}
		l.onTrain = func(step int64) error {
			// Failures in the first step, in the middle and at the end of epochs and passes,
			// and twice in a row.
			for _, at := range []int64{0, 5, 10, 11, 12, 13, 25, 26, 43} {
				if step == at && !failed[at] {
					failed[at] = true
					l.w[1] += 3 // an incomplete update
					return errFull
				}
			}
			return nil
		}
		k := &keeping{session: l, decide: func(err error) (string, error) {
			require.ErrorIs(t, err, errFull)
			return "oom", nil
		}}
		have, seen := train(l, k.recovery(every))
		require.Len(t, failed, 9)
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
		l.onTrain = func(step int64) error {
			if step == 7 {
				return errFull
			}
			return nil
		}
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
	_, err := loop.Run(t.Context(), samples(t, 100))
	require.NoError(t, err)
	require.Equal(t, 9, k.kept) // steps 0, 4, 8 of each epoch
	require.Equal(t, 1, most)
	require.Zero(t, k.held)
}

func TestResetsAreRecorded(t *testing.T) {
	loop := Loop{Session: newLinear(), Batch: 8, Epochs: 3, StepsPerEpoch: 4}
	loop.Hook(Hook{Name: "reset",
		Step: func(_ context.Context, s *State) error {
			if s.Step == 2 || s.Step == 3 {
				s.ResetBy("reload", memory.Known(memory.MiB), 250e6)
			}
			return nil
		},
		Epoch: func(_ context.Context, s *State) error {
			if s.Epoch == 2 {
				s.ResetBy("restore", memory.Reading{}, 1e9)
			}
			return nil
		},
	})
	h, err := loop.Run(t.Context(), samples(t, 100))
	require.NoError(t, err)
	returned := int64(memory.MiB)
	one := Reset{Step: 2, Depth: "reload", Returned: &returned, Seconds: 0.25}
	two := one
	two.Step = 3
	require.Equal(t, Resets{Count: 2, Returned: memory.Known(2 * memory.MiB), Seconds: 0.5, Each: []Reset{one, two}}, h.Records[0].Resets)
	require.Equal(t, []string{"reset"}, h.Records[0].Events)
	require.Equal(t, Resets{Count: 1, Seconds: 1, Each: []Reset{{Step: 8, Depth: "restore", Seconds: 1}}}, h.Records[1].Resets)
	require.Equal(t, Resets{}, h.Records[2].Resets)

	text, err := h.Records[0].MarshalJSON()
	require.NoError(t, err)
	require.Contains(t, string(text), `"resets":2,"reset_returned_bytes":2097152,"reset_seconds":0.5,"event":"reset",`+
		`"reset_list":[{"step":2,"depth":"reload","returned_bytes":1048576,"seconds":0.25},{"step":3,"depth":"reload","returned_bytes":1048576,"seconds":0.25}]}`)
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

// If an epoch has many resets, only the first ones are listed, but the sums include all resets.
func TestManyResets(t *testing.T) {
	var r Resets
	one := int64(1)
	for i := range 100 {
		r.add(Reset{Step: int64(i), Returned: &one, Seconds: 1})
	}
	require.Equal(t, 100, r.Count)
	require.Equal(t, memory.Known(100), r.Returned)
	require.Equal(t, 100.0, r.Seconds)
	require.Len(t, r.Each, eachReset)
	require.Equal(t, int64(eachReset-1), r.Each[eachReset-1].Step)
}

// A reset by another process is recorded once, in the epoch that the process resumes, with its
// time and the memory that it returned.
func TestResetByProcessIsRecorded(t *testing.T) {
	dir := tempDir(t)
	at := &clock{at: time.Unix(1_000_000, 0)}
	run := func(stopAt int64, atEpoch int) *History {
		loop := Loop{Session: newLinear(), Batch: 8, Epochs: 3, StepsPerEpoch: 4, Resume: dir, now: at.now}
		again := func(s *State) error {
			s.ResetBy("process", memory.Reading{}, 0)
			s.Stop("another process goes on")
			return nil
		}
		loop.Hook(Checkpoint{Folder: dir}.Hook(), Hook{
			Name: "reset",
			Step: func(_ context.Context, s *State) error {
				if s.Step == stopAt {
					return again(s)
				}
				return nil
			},
			Epoch: func(_ context.Context, s *State) error {
				if s.Epoch == atEpoch {
					return again(s)
				}
				return nil
			},
		})
		h, err := loop.Run(t.Context(), samples(t, 100))
		require.NoError(t, err)
		at.at = at.at.Add(7 * time.Second) // the time between two processes
		return h
	}
	require.False(t, run(2, 0).Done)
	h := run(0, 1)
	require.False(t, h.Done)
	require.Len(t, h.Records, 1)
	have := h.Records[0].Resets
	require.Equal(t, 1, have.Count)
	require.Len(t, have.Each, 1)
	require.Equal(t, int64(2), have.Each[0].Step)
	require.Equal(t, "process", have.Each[0].Depth)
	require.Equal(t, 7.0, have.Seconds)
	require.Equal(t, h.Records[0].Memory.Anon.OK, have.Returned.OK)
	require.Equal(t, []string{"reset"}, h.Records[0].Events)

	h = run(0, 0)
	require.True(t, h.Done)
	require.Equal(t, have, h.Records[0].Resets, "the epoch before the reset keeps its own")
	require.Equal(t, 1, h.Records[1].Resets.Count)
	require.Equal(t, int64(4), h.Records[1].Resets.Each[0].Step)
	require.Equal(t, Resets{}, h.Records[2].Resets)
}

// A failed batch of a validation is evaluated again if Decide returns no error. No snapshot is
// restored.
func TestValidationGoesOn(t *testing.T) {
	run := func(l *linear, r *Recovery) (*History, error) {
		loop := Loop{Session: l, Batch: 8, Epochs: 2, StepsPerEpoch: 4, Validation: samples(t, 20), Recover: r}
		return loop.Run(t.Context(), samples(t, 100))
	}
	plain := newLinear()
	want, err := run(plain, nil)
	require.NoError(t, err)

	fails := func(l *linear, calls ...int) {
		l.onEvaluate = func() error {
			if slices.Contains(calls, l.validated) {
				return errFull
			}
			return nil
		}
	}
	l := newLinear()
	fails(l, 2, 3, 6)
	asked := 0
	k := &keeping{session: l, decide: func(failed error) (string, error) {
		asked++
		require.ErrorIs(t, failed, errFull)
		require.ErrorContains(t, failed, "validation of epoch")
		return "oom", nil
	}}
	have, err := run(l, k.recovery(0))
	require.NoError(t, err)
	require.Equal(t, 3, asked)
	require.Equal(t, plain.state(), l.state())
	require.Equal(t, plain.validated+3, l.validated)
	for i := range want.Records {
		require.Equal(t, want.Records[i].Metrics, have.Records[i].Metrics)
	}
	require.Equal(t, []string{"oom", "oom"}, have.Records[0].Events)
	require.Equal(t, []string{"oom"}, have.Records[1].Events)

	// The run ends with the error of Decide. The checkpoint is from before the validation.
	dir := tempDir(t)
	enough := errors.New("cannot be split any further")
	l = newLinear()
	fails(l, 5)
	k = &keeping{session: l, decide: func(failed error) (string, error) { return "", errors.Join(enough, failed) }}
	loop := Loop{Session: l, Batch: 8, Epochs: 2, StepsPerEpoch: 4, Validation: samples(t, 20), Recover: k.recovery(0), Resume: dir}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	_, err = loop.Run(t.Context(), samples(t, 100))
	require.ErrorIs(t, err, enough)
	require.ErrorContains(t, err, "validation of epoch 2, after step 8: batch 1")
	l.onEvaluate = nil
	have, err = loop.Run(t.Context(), samples(t, 100))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "ckpt-8"), have.ResumedFrom)
	require.Equal(t, want.Records[1].Metrics, have.Records[1].Metrics)
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
// while it repeats steps. A hook scales the rate at steps 6 and 8.
func interruptedReplay(t *testing.T, dir string, resume bool, every int, seen *[]int64) (*linear, *History, error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := newLinear()
	k := &keeping{session: l, decide: func(error) (string, error) { return "oom", nil }}
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
	loop := Loop{Session: l, Batch: 8, Epochs: 1, StepsPerEpoch: 12, LearningRate: Constant(0.05), Recover: k.recovery(5), Resume: dir}
	loop.Hook(Checkpoint{Folder: dir, EverySteps: every}.Hook(), Hook{Name: "scale", Step: func(_ context.Context, s *State) error {
		*seen = append(*seen, s.Step)
		if s.Step == 6 || s.Step == 8 {
			s.ScaleLearningRate(0.5)
		}
		return nil
	}})
	h, err := loop.Run(ctx, samples(t, 100))
	return l, h, err
}

// A run that is interrupted while it repeats steps keeps its newest checkpoint, or writes one
// from which steps are trained as before. Hooks see each step once.
func TestInterruptedReplay(t *testing.T) {
	var all []int64
	plain := newLinear()
	loop := Loop{Session: plain, Batch: 8, Epochs: 1, StepsPerEpoch: 12, LearningRate: Constant(0.05)}
	loop.Hook(Hook{Name: "scale", Step: func(_ context.Context, s *State) error {
		all = append(all, s.Step)
		if s.Step == 6 || s.Step == 8 {
			s.ScaleLearningRate(0.5)
		}
		return nil
	}})
	_, err := loop.Run(t.Context(), samples(t, 100))
	require.NoError(t, err)

	for every, newest := range map[int]string{9: "ckpt-9", 8: "ckpt-8", 5: "ckpt-7", 100: "ckpt-7"} {
		dir := tempDir(t)
		var seen []int64
		_, h, err := interruptedReplay(t, dir, false, every, &seen)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, filepath.Join(dir, newest), h.Checkpoint)
		require.Equal(t, newest == "ckpt-7", !disk.Missing(filepath.Join(dir, "ckpt-7")))
		l, h, err := interruptedReplay(t, dir, true, every, &seen)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, newest), h.ResumedFrom)
		require.Equal(t, plain.state(), l.state(), "every %d", every)
		if newest == "ckpt-7" {
			require.Equal(t, all, seen)
		}
	}
}

// Repeated steps have the scaled rates of the first time, and hooks with Replays see these
// steps.
func TestReplays(t *testing.T) {
	train := func(l *linear, r *Recovery) (seen, replayed []int64) {
		loop := Loop{Session: l, Batch: 8, Epochs: 2, StepsPerEpoch: 12, LearningRate: Constant(0.05), Recover: r}
		see := func(to *[]int64, scales bool) func(context.Context, *State) error {
			return func(_ context.Context, s *State) error {
				*to = append(*to, s.Step)
				if scales && s.Step%3 == 0 {
					s.ScaleLearningRate(0.9)
				}
				return nil
			}
		}
		loop.Hook(Hook{Name: "scale", Step: see(&seen, true)}, Hook{Name: "look", Step: see(&replayed, false), Replays: true})
		_, err := loop.Run(t.Context(), samples(t, 100).Shuffle(1))
		require.NoError(t, err)
		return seen, replayed
	}
	plain := newLinear()
	want, _ := train(plain, nil)
	l := newLinear()
	failed := map[int64]bool{}
	l.onTrain = func(step int64) error {
		for _, at := range []int64{4, 10, 11, 17} {
			if step == at && !failed[at] {
				failed[at] = true
				return errFull
			}
		}
		return nil
	}
	k := &keeping{session: l, decide: func(error) (string, error) { return "oom", nil }}
	seen, replayed := train(l, k.recovery(0))
	require.Equal(t, plain.state(), l.state())
	require.Equal(t, want, seen)
	require.Len(t, replayed, 24+4+10+11+5)
}

// A run calls Alive with each step, each batch of a validation, and each batch that is read
// before the first step.
func TestAlive(t *testing.T) {
	dir := tempDir(t)
	var told []int64
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2, Validation: samples(t, 8), Alive: func(step int64) { told = append(told, step) }}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	_, err := loop.Run(t.Context(), data.Prefetch(samples(t, 12), 1))
	require.NoError(t, err)
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
