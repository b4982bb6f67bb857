package fit

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
)

// scaling is a session that halves its loss scale and skips the update at certain steps. The scale
// is not a variable, but affects the training, so a resume must restore it.
type scaling struct {
	*linear
	scale   float64
	steps   int64 // number of steps that were not skipped
	skipped bool
	skipAt  map[int64]float64 // losses of steps to skip, by step from 1
	noMore  bool              // the scale cannot be lowered
	stuck   bool
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
	s.skipped, s.stuck = skip && !s.noMore, skip && s.noMore
	if skip {
		*s.linear = before
		out[0] = loss
	}
	switch {
	case s.skipped:
		s.scale /= 2
	case s.stuck:
	default:
		if s.steps++; s.steps%3 == 0 {
			s.scale *= 2
		}
	}
	out[2] = s.scale
	return nil
}

func (s *scaling) Skipped() (lowered, stuck bool, scale float64) { return s.skipped, s.stuck, s.scale }

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

func TestSkippedStepsAreNoDivergence(t *testing.T) {
	infinite := math.Inf(1)
	s := newScaling(map[int64]float64{1: infinite, 4: math.NaN(), 6: 0.25})
	loop := Loop{Session: s, Batch: 2, Epochs: 2, StepsPerEpoch: 4}
	h := complete(t, &loop, samples(t, 8))
	// Records have the scale at the end of the epoch: halved, two good steps, halved; doubled
	// by the third good step, halved, two good steps.
	require.Equal(t, []float64{256, 256}, h.Metric("loss_scale"))
	for _, loss := range h.Metric("loss") {
		require.False(t, math.IsNaN(loss) || math.IsInf(loss, 0), loss)
	}

	s = newScaling(map[int64]float64{3: infinite})
	s.noMore = true
	loop = Loop{Session: s, Batch: 2, Epochs: 1}
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorIs(t, err, ErrDiverged)
}

// A run whose steps no longer change the weights ends, even if it was interrupted.
func TestOnlySkippedStepsAreDivergence(t *testing.T) {
	every := func(n int64) map[int64]float64 {
		at := map[int64]float64{}
		for i := range n {
			at[i+1] = 0.5
		}
		return at
	}
	var log bytes.Buffer
	run := func(s *scaling, dir string, steps, stop int) error {
		loop := Loop{Session: s, Batch: 2, Epochs: 2, StepsPerEpoch: steps, Log: slog.New(slog.NewTextHandler(&log, nil))}
		if dir != "" {
			loop.Resume = dir
			loop.Hook(Checkpoint{Folder: dir}.Hook())
		}
		_, err := interrupt(t, &loop, samples(t, 2*steps), int64(stop))
		return err
	}
	stuck := func(at map[int64]float64) *scaling {
		s := newScaling(at)
		s.noMore = true
		return s
	}
	diverged := func(err error, step, skipped int64) {
		t.Helper()
		var d *divergedError
		require.ErrorAs(t, err, &d)
		require.Equal(t, []any{step, skipped, 1024.0, "loss_scale"}, []any{d.Step, d.Skipped, d.Value, d.Metric})
		require.ErrorContains(t, err, "not finite at loss scale 1024, which cannot be lowered")
	}
	diverged(run(stuck(every(9)), "", 4, 0), 4, 4)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"))
	require.Contains(t, log.String(), "loss_scale=1024")
	diverged(run(stuck(every(200)), "", 150, 0), 100, 100)

	// One step that is not skipped suffices to continue.
	at := every(8)
	delete(at, 2)
	require.NoError(t, run(stuck(map[int64]float64{1: 0.5, 3: 0.5, 4: 0.5, 5: 0.5}), "", 4, 0))
	diverged(run(stuck(at), "", 4, 0), 8, 6)

	dir := tempDir(t)
	require.ErrorIs(t, run(stuck(every(9)), dir, 4, 3), context.Canceled)
	diverged(run(stuck(every(9)), dir, 4, 0), 4, 4)

	// A scale that can still be lowered does not end the run.
	require.NoError(t, run(newScaling(every(8)), "", 4, 0))
}

// An epoch without a finite loss has no means, but has a loss scale and a speed.
func TestEpochOfSkippedSteps(t *testing.T) {
	infinite := math.Inf(1)
	skipAt := map[int64]float64{1: infinite, 2: infinite, 3: infinite}
	var dir string
	run := func(stop int64) (*History, error) {
		loop := Loop{Session: newScaling(skipAt), Batch: 2, Epochs: 1, StepsPerEpoch: 3, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir}.Hook())
		return interrupt(t, &loop, samples(t, 6), stop)
	}
	for stop := range int64(3) {
		dir = tempDir(t)
		if stop > 0 {
			_, err := run(stop)
			require.ErrorIs(t, err, context.Canceled)
		}
		h, err := run(0)
		require.NoError(t, err)
		r := h.Last()
		require.True(t, math.IsNaN(r.Metrics[0].Value))
		require.Equal(t, []float64{128}, h.Metric("loss_scale"), stop)
		require.InDelta(t, 2*r.StepsPerSecond, r.SamplesPerSecond, 1e-6*r.SamplesPerSecond)
		require.Positive(t, r.SamplesPerSecond)
	}
}

func TestStateOfTheSessionIsResumed(t *testing.T) {
	skipAt := map[int64]float64{2: math.Inf(1), 5: math.NaN(), 9: math.Inf(-1)}
	run := func(s *scaling, dir string, stop int64) *History {
		loop := Loop{Session: s, Batch: 2, Epochs: 3, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir, EverySteps: 1}.Hook())
		h, err := interrupt(t, &loop, samples(t, 8), stop)
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
