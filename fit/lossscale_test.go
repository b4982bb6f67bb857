package fit

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
)

// scaling is a session that halves its scale, and skips, at certain steps. The scale is
// in no variable, and takes part in the training so that a resume has to bring it back.
type scaling struct {
	*linear
	scale   float64
	steps   int64 // not skipped
	skipped bool
	skipAt  map[int64]float64 // the loss of steps to skip, by their number from 1
	noMore  bool              // the scale cannot be lowered
}

func newScaling(skipAt map[int64]float64) *scaling {
	return &scaling{linear: newLinear(), scale: 1024, skipAt: skipAt}
}

func (s *scaling) TrainMetrics() []string { return []string{"loss", "mae", "loss_scale"} }

func (s *scaling) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	before := *s.linear
	if err := s.linear.Train(ctx, step, b, out[:2]); err != nil {
		return err
	}
	loss, skip := s.skipAt[step+1]
	if s.skipped = skip && !s.noMore; skip {
		*s.linear = before
		out[0] = loss
		s.scale /= 2
	} else if s.steps++; s.steps%3 == 0 {
		s.scale *= 2
	}
	out[2] = s.scale
	return nil
}

func (s *scaling) Skipped() bool { return s.skipped }

func (s *scaling) State() (json.RawMessage, error) {
	return json.Marshal([2]float64{s.scale, float64(s.steps)})
}

func (s *scaling) SetState(text json.RawMessage) error {
	var state [2]float64
	if err := json.Unmarshal(text, &state); err != nil {
		return err
	}
	s.scale, s.steps = state[0], int64(state[1])
	return nil
}

var _, _ = Skipper(&scaling{}), Stateful(&scaling{})

func TestSkippedStepsAreNoDivergence(t *testing.T) {
	infinite := math.Inf(1)
	s := newScaling(map[int64]float64{1: infinite, 4: math.NaN(), 6: 0.25})
	loop := Loop{Session: s, Batch: 2, Epochs: 2, StepsPerEpoch: 4}
	h, err := loop.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	// Records have the scale of the end of the epoch: halved, two good steps, halved;
	// doubled by the third good one, halved, two good ones.
	require.Equal(t, []float64{256, 256}, h.Metric("loss_scale"))
	for _, loss := range h.Metric("loss") {
		require.False(t, math.IsNaN(loss) || math.IsInf(loss, 0), loss)
	}

	s = newScaling(map[int64]float64{3: infinite})
	s.noMore = true
	loop = Loop{Session: s, Batch: 2, Epochs: 1}
	_, err = loop.Run(t.Context(), samples(t, 8))
	require.ErrorIs(t, err, ErrDiverged)
}

func TestStateOfTheSessionIsResumed(t *testing.T) {
	skipAt := map[int64]float64{2: math.Inf(1), 5: math.NaN(), 9: math.Inf(-1)}
	run := func(s *scaling, dir string, stop int64) *History {
		loop := Loop{Session: s, Batch: 2, Epochs: 3, Resume: dir}
		loop.Hook(Checkpoint(dir, EverySteps(1)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		loop.Hook(Hook{Name: "stop", Step: func(_ context.Context, state *State) error {
			if state.Step == stop {
				cancel()
			}
			return nil
		}})
		h, err := loop.Run(ctx, samples(t, 8))
		if stop > 0 {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.NoError(t, err)
		}
		return h
	}
	whole := newScaling(skipAt)
	h := run(whole, tempDir(t), 0)
	want := outcomeOf(t, h, whole.linear)
	for stop := int64(1); stop < 12; stop++ {
		dir := tempDir(t)
		run(newScaling(skipAt), dir, stop)
		again := newScaling(skipAt)
		require.Equal(t, want, outcomeOf(t, run(again, dir, 0), again.linear), "stopped after step %d", stop)
		require.Equal(t, whole.scale, again.scale)
	}
	require.False(t, bytes.Contains([]byte(want.History), []byte("NaN")))
}
