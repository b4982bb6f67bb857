package session_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// spoiled returns the batch with an infinite pixel, which makes its gradients infinite.
func spoiled(t testing.TB, b data.Batch) data.Batch {
	t.Helper()
	x, ok := b.Field("x")
	require.True(t, ok)
	pixels := make([]float32, b.Size*64)
	for i, v := range x.Values.([]uint8) {
		pixels[i] = float32(v)
	}
	pixels[3] = float32(math.Inf(1))
	y, ok := b.Field("y")
	require.True(t, ok)
	return data.Batch{Size: b.Size, Fields: []data.Field{
		{Name: "x", Array: data.Array{Shape: x.Shape, Values: pixels}}, {Name: "y", Array: y},
	}}
}

// scaled has the results of a train step that concern the loss scale.
type scaled struct {
	scale, skippedSteps float64
	skipped             bool
}

// lowered reports whether the last step was skipped and the scale was lowered.
func lowered(s *session.Session) bool {
	skipped, _, _ := s.Capabilities().Skipped()
	return skipped
}

func trainScaled(t testing.TB, s *session.Session, b data.Batch) scaled {
	t.Helper()
	names := s.TrainMetrics()
	out := make([]float64, len(names))
	require.NoError(t, s.Train(context.Background(), 0, b, out))
	n := len(names)
	require.Equal(t, []string{"loss_scale", "skipped_steps"}, names[n-2:])
	return scaled{out[n-2], out[n-1], lowered(s)}
}

func TestLossScaleIsDynamic(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	bad := spoiled(t, good)
	for _, parts := range []int{1, 2} {
		s := open(t, "digits-scaled", session.Options{LossScale: session.LossScale{Initial: 4, GrowthInterval: 2}})
		require.NoError(t, s.SetMicroBatches(parts))
		before := evaluated(t, s, good)
		var seen []scaled
		for _, b := range []data.Batch{bad, bad, bad} {
			seen = append(seen, trainScaled(t, s, b))
		}
		// The smallest scale cannot be lowered.
		assert.Equal(t, []scaled{{2, 1, true}, {1, 2, true}, {1, 3, false}}, seen, parts)
		assert.Equal(t, before, evaluated(t, s, good), "a skipped step changes no weight")

		seen = nil
		for _, b := range []data.Batch{good, good, good, bad, good, good, good} {
			seen = append(seen, trainScaled(t, s, b))
		}
		assert.Equal(t, []scaled{{1, 3, false}, {2, 3, false}, {2, 3, false}, {1, 4, true}, {1, 4, false}, {2, 4, false}, {2, 4, false}}, seen, parts)
		assert.NotEqual(t, before, evaluated(t, s, good))
	}
}

// evaluated returns the loss of a batch, which changes with the weights.
func evaluated(t testing.TB, s *session.Session, b data.Batch) float64 {
	t.Helper()
	out := make([]float64, len(s.EvaluateMetrics()))
	require.NoError(t, s.Evaluate(context.Background(), b, out))
	return out[0]
}

func TestLossScaleTooHighIsLoweredUntilStepsCount(t *testing.T) {
	b := batches(t, digits(t), 32, 1)[0]
	s := open(t, "digits-scaled", session.Options{LossScale: session.LossScale{Initial: 1 << 40}})
	var last scaled
	for range 40 {
		if last = trainScaled(t, s, b); !last.skipped {
			break
		}
	}
	assert.False(t, last.skipped)
	assert.Positive(t, last.skippedSteps)
	assert.Equal(t, math.Ldexp(1, 40-int(last.skippedSteps)), last.scale)
}

func TestLossScaleFixed(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	s := open(t, "digits-scaled", session.Options{LossScale: session.LossScale{Fixed: 128}})
	assert.Equal(t, scaled{128, 0, false}, trainScaled(t, s, good))
	assert.Equal(t, scaled{128, 1, false}, trainScaled(t, s, spoiled(t, good)))
	assert.Equal(t, "128", s.Identity()["loss_scale"])
	_, stuck, scale := s.Capabilities().Skipped()
	assert.True(t, stuck)
	assert.Equal(t, 128.0, scale)
	trainScaled(t, s, good)
	_, stuck, _ = s.Capabilities().Skipped()
	assert.False(t, stuck)

	// Neither a checkpoint nor a snapshot changes a fixed scale.
	other := open(t, "digits-scaled", session.Options{LossScale: session.LossScale{Initial: 64}})
	trainScaled(t, other, spoiled(t, good))
	trainScaled(t, other, spoiled(t, good))
	state, err := other.Capabilities().State()
	require.NoError(t, err)
	snapshot, err := other.Snapshot(context.Background())
	require.NoError(t, err)
	defer snapshot.Close()
	require.NoError(t, s.Capabilities().SetState(state))
	assert.Equal(t, scaled{128, 2, false}, trainScaled(t, s, good))
	require.NoError(t, s.Revert(context.Background(), snapshot))
	assert.Equal(t, scaled{128, 2, false}, trainScaled(t, s, good))
}

// A fixed scale that is far too high ends the training with an error.
func TestLossScaleFixedTooHighDiverges(t *testing.T) {
	s := open(t, "digits-scaled", session.Options{LossScale: session.LossScale{Fixed: 1e30}})
	loop := fit.Loop{Session: s, Batch: 32, Epochs: 2, StepsPerEpoch: 3}
	_, err := loop.Run(context.Background(), digits(t))
	require.ErrorIs(t, err, fit.ErrDiverged)
	require.ErrorContains(t, err, "the gradients are not finite at loss scale 1e+30, which cannot be lowered, and the last 3 train steps")
}

// A resume also restores the number of applied steps, which determines when the scale grows.
func TestLossScaleIsResumed(t *testing.T) {
	run := func(dir string, stop int64) []float64 {
		s := open(t, "digits-scaled", session.Options{LossScale: session.LossScale{Initial: 4, GrowthInterval: 4}})
		loop := fit.Loop{Session: s, Batch: 32, Epochs: 3, StepsPerEpoch: 3, Resume: dir}
		loop.Hook(fit.Checkpoint{Folder: dir}.Hook())
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		loop.Hook(fit.Hook{Name: "stop", Step: func(_ context.Context, state *fit.State) error {
			if state.Step == stop {
				cancel()
			}
			return nil
		}})
		h, err := loop.Run(ctx, digits(t))
		if stop > 0 {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.NoError(t, err)
		}
		return h.Metric("loss_scale")
	}
	want := []float64{4, 8, 16}
	assert.Equal(t, want, run(t.TempDir(), 0))
	for _, stop := range []int64{3, 5} {
		dir := t.TempDir()
		run(dir, stop)
		assert.Equal(t, want, run(dir, 0), stop)
	}
}

func TestLossScaleIsPartOfSnapshotsAndState(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	options := session.Options{LossScale: session.LossScale{GrowthInterval: 2}}
	s := open(t, "digits-scaled", options)
	trainScaled(t, s, good)
	state, err := s.Capabilities().State()
	require.NoError(t, err)
	snapshot, err := s.Snapshot(context.Background())
	require.NoError(t, err)
	defer snapshot.Close()
	want := []scaled{{65536, 0, false}, {32768, 1, true}}
	next := func(s *session.Session) []scaled {
		return []scaled{trainScaled(t, s, good), trainScaled(t, s, spoiled(t, good))}
	}
	assert.Equal(t, want, next(s))
	require.NoError(t, s.Revert(context.Background(), snapshot))
	assert.Equal(t, want, next(s))

	other := open(t, "digits-scaled", options)
	require.NoError(t, other.Capabilities().SetState(state))
	assert.Equal(t, want, next(other))
	require.NoError(t, other.Capabilities().SetState(nil))
	assert.Equal(t, scaled{32768, 0, false}, trainScaled(t, other, good))
	require.Error(t, other.Capabilities().SetState([]byte(`{"loss_scale":-1}`)))
}

func TestLossScaleInTheGraphIsTold(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	s := open(t, "digits-fp16", session.Options{})
	names := s.TrainMetrics()
	out := make([]float64, len(names))
	require.NoError(t, s.Train(context.Background(), 0, good, out))
	require.Equal(t, []string{"loss", "accuracy", "loss_scale", "skipped_steps"}, names)
	require.Equal(t, []float64{32768, 0}, out[2:])
	require.False(t, lowered(s))
	require.NoError(t, s.Train(context.Background(), 1, spoiled(t, good), out))
	require.Equal(t, []float64{16384, 1}, out[2:])
	require.True(t, lowered(s))
	state, err := s.Capabilities().State()
	require.NoError(t, err)
	require.Nil(t, state, "it is in the variables")
}

// With micro-batches, apply reports the scale.
func TestLossScaleInTheGraphInParts(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	s := open(t, "digits-fp16", session.Options{})
	require.NoError(t, s.SetMicroBatches(2))
	out := make([]float64, 4)
	require.NoError(t, s.Train(context.Background(), 0, spoiled(t, good), out))
	require.Equal(t, []float64{16384, 1}, out[2:])
	require.True(t, lowered(s))
	require.NoError(t, s.Train(context.Background(), 1, good, out))
	require.Equal(t, []float64{16384, 1}, out[2:])
	require.False(t, lowered(s))
}

// The identity of a model that takes a loss scale has the scale, even if it is 1.
func TestLossScaleOfOneIsIdentity(t *testing.T) {
	model := altered(t, "digits-scaled", untold("train"))
	for _, scale := range []session.LossScale{{}, {Fixed: 1}} {
		assert.Equal(t, "1", openModel(t, model, session.Options{LossScale: scale}).Identity()["loss_scale"])
	}
	assert.NotContains(t, open(t, "digits", session.Options{}).Identity(), "loss_scale")
}

func TestLossScaleOptions(t *testing.T) {
	for name, c := range map[string]struct {
		model string
		scale session.LossScale
		says  string
	}{
		"no input":  {"digits", session.LossScale{Fixed: 8}, "no input loss_scale"},
		"in graph":  {"digits-fp16", session.LossScale{Initial: 8}, "no input loss_scale: it scales the loss inside the graph"},
		"factor":    {"digits-scaled", session.LossScale{Factor: 1}, "Factor is 1"},
		"negative":  {"digits-scaled", session.LossScale{Fixed: -1}, "Fixed is -1"},
		"too large": {"digits-scaled", session.LossScale{Initial: 1e39}, "Initial is 1e+39"},
		"NaN":       {"digits-scaled", session.LossScale{Min: math.NaN()}, "Min is NaN"},
	} {
		t.Run(name, func(t *testing.T) {
			model, err := savedmodels.Builtin(c.model)
			require.NoError(t, err)
			_, err = session.Compile(model, session.Options{LossScale: c.scale})
			require.ErrorContains(t, err, "Options.LossScale: ")
			require.ErrorContains(t, err, c.says)
		})
	}
}

// Several steps per execution are not possible with a dynamic scale, which changes after each
// step.
func TestLossScaleIsNotFused(t *testing.T) {
	model, err := savedmodels.Builtin("digits-scaled")
	require.NoError(t, err)
	_, err = session.Compile(model, session.Options{StepsPerExecution: 4})
	require.ErrorIs(t, err, session.ErrStack)

	// A scale inside the graph allows several steps per execution.
	good := batches(t, digits(t), 32, 1)[0]
	bad := spoiled(t, good)
	s := open(t, "digits-fp16", session.Options{StepsPerExecution: 3})
	plain := open(t, "digits-fp16", session.Options{})
	out, one := make([]float64, 4), make([]float64, 4)
	for i, b := range []data.Batch{bad, bad, good} {
		require.NoError(t, s.Capabilities().Stack(i, 3, b))
		require.NoError(t, plain.Train(context.Background(), int64(i), b, one))
	}
	require.NoError(t, s.Capabilities().TrainN(context.Background(), 0, 3, out))
	assert.Equal(t, []float64{8192, 2}, out[2:])
	assert.Equal(t, one[2:], out[2:])
	assert.True(t, lowered(s), "one of its steps was")
}
