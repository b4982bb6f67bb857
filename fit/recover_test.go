package fit

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

var errFull = errors.New("out of memory")

// keeping is a Recovery for a linear session; it counts what is held.
type keeping struct {
	session    *linear
	held, kept int
	decide     func(failed error) (string, error)
}

func (k *keeping) recovery(every int) *Recovery {
	return &Recovery{
		Every: every,
		Keep: func(context.Context) (func(context.Context) error, func() error, error) {
			k.held++
			k.kept++
			w, v := k.session.w, k.session.v
			return func(context.Context) error { k.session.w, k.session.v = w, v; return nil },
				func() error { k.held--; return nil }, nil
		},
		Decide: func(_ context.Context, _ *State, failed error) (string, error) { return k.decide(failed) },
	}
}

// A run that goes back ends as one in which nothing failed, bit for bit: weights,
// metrics, rates; and hooks see each step once.
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
			// In the first step of all, in the middle and at the end of epochs and
			// passes, and twice in a row.
			for _, at := range []int64{0, 5, 10, 11, 12, 13, 25, 26, 43} {
				if step == at && !failed[at] {
					failed[at] = true
					l.w[1] += 3 // half of an update
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
	// The decision ends the run with an error of its own.
	enough := errors.New("cannot be split any further")
	k := &keeping{decide: func(failed error) (string, error) { return "", errors.Join(enough, failed) }}
	h, err := run(k, newLinear())
	require.ErrorIs(t, err, enough)
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "step 8")
	require.Len(t, h.Records, 1)
	require.Zero(t, k.held)

	// What cannot be kept or brought back ends it, too.
	l := newLinear()
	k = &keeping{session: l}
	r := k.recovery(1)
	r.Keep = func(context.Context) (func(context.Context) error, func() error, error) { return nil, nil, errFull }
	loop := Loop{Session: l, Batch: 8, Epochs: 1, Recover: r}
	_, err = loop.Run(t.Context(), samples(t, 20))
	require.ErrorIs(t, err, errFull)
	require.ErrorContains(t, err, "keeping the state before step 1")
}

// States are kept at the beginning of each epoch and every so many steps, and the
// one before is let go.
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
				s.Reset(memory.Known(memory.MiB), 250e6)
			}
			return nil
		},
		Epoch: func(_ context.Context, s *State) error {
			if s.Epoch == 2 {
				s.Reset(memory.Reading{}, 1e9)
			}
			return nil
		},
	})
	h, err := loop.Run(t.Context(), samples(t, 100))
	require.NoError(t, err)
	require.Equal(t, Resets{Count: 2, Returned: memory.Known(2 * memory.MiB), Seconds: 0.5}, h.Records[0].Resets)
	require.Equal(t, []string{"reset"}, h.Records[0].Events)
	require.Equal(t, Resets{Count: 1, Seconds: 1}, h.Records[1].Resets)
	require.Equal(t, Resets{}, h.Records[2].Resets)

	text, err := h.Records[0].MarshalJSON()
	require.NoError(t, err)
	require.Contains(t, string(text), `"resets":2,"reset_returned_bytes":2097152,"reset_seconds":0.5,"event":"reset"`)
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
