package session_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
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
	skipped, _, _ := s.Skipped()
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

// openScaled opens a model whose loss scale is at some value after a number of applied steps.
func openScaled(t testing.TB, scale float64, good int) *session.Session {
	t.Helper()
	s := open(t, "digits-scaled", session.Options{AllowInexactSplit: true})
	setScale(t, s, scale, good)
	return s
}

func setScale(t testing.TB, s *session.Session, scale float64, good int) {
	t.Helper()
	require.NoError(t, s.SetState(fmt.Appendf(nil, `{"loss_scale":%v,"good_steps":%d}`, scale, good)))
}

func TestLossScaleIsDynamic(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	bad := spoiled(t, good)
	for _, parts := range []int{1, 2} {
		s := openScaled(t, 4, 1998) // the scale grows after 2000 applied steps
		require.NoError(t, s.SetMicroBatches(parts))
		before := evaluated(t, s, good)
		var seen []scaled
		for _, b := range []data.Batch{bad, bad, bad} {
			seen = append(seen, trainScaled(t, s, b))
		}
		// The smallest scale cannot be lowered.
		assert.Equal(t, []scaled{{2, 1, true}, {1, 2, true}, {1, 3, false}}, seen, parts)
		assert.Equal(t, before, evaluated(t, s, good), "a skipped step changes no weight")

		setScale(t, s, 1, 1999)
		seen = nil
		for _, b := range []data.Batch{good, good, bad, good} {
			seen = append(seen, trainScaled(t, s, b))
		}
		assert.Equal(t, []scaled{{2, 0, false}, {2, 0, false}, {1, 1, true}, {1, 1, false}}, seen, parts)
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
	s := openScaled(t, 1<<40, 0)
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

func TestLossScaleIsPartOfSnapshotsAndState(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	s := openScaled(t, 32768, 1998)
	trainScaled(t, s, good)
	state, err := s.State()
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

	other := openScaled(t, 8, 0)
	require.NoError(t, other.SetState(state))
	assert.Equal(t, want, next(other))
	require.NoError(t, other.SetState(nil))
	assert.Equal(t, scaled{32768, 0, false}, trainScaled(t, other, good))
	require.Error(t, other.SetState([]byte(`{"loss_scale":-1}`)))
}

// A scale in the graph is a result of the signature train or, with micro-batches, of apply.
func TestLossScaleInTheGraphIsTold(t *testing.T) {
	good := batches(t, digits(t), 32, 1)[0]
	for _, parts := range []int{1, 2} {
		s := open(t, "digits-fp16", session.Options{AllowInexactSplit: true, MicroBatches: parts})
		require.Equal(t, []string{"loss", "accuracy", "loss_scale", "skipped_steps"}, s.TrainMetrics())
		out := make([]float64, 4)
		for i, c := range []struct {
			b    data.Batch
			want []float64
		}{{good, []float64{32768, 0}}, {spoiled(t, good), []float64{16384, 1}}, {good, []float64{16384, 1}}} {
			require.NoError(t, s.Train(context.Background(), int64(i), c.b, out))
			require.Equal(t, c.want, out[2:], parts)
			require.Equal(t, i == 1, lowered(s))
		}
		state, err := s.State()
		require.NoError(t, err)
		require.Nil(t, state, "it is in the variables")
	}
}

// The identity of a model that takes a loss scale has the scale, even if it is 1.
func TestLossScaleIsIdentity(t *testing.T) {
	model := altered(t, "digits-scaled", untold("train"))
	assert.Equal(t, "1", openModel(t, model, session.Options{}).Identity()["loss_scale"])
	assert.Equal(t, "dynamic from 32768, 2 per 2000 steps, at least 1",
		open(t, "digits-scaled", session.Options{}).Identity()["loss_scale"])
	assert.NotContains(t, open(t, "digits", session.Options{}).Identity(), "loss_scale")
}

// Several steps per execution are not possible with a dynamic scale, which changes after each
// step.
func TestLossScaleIsNotFused(t *testing.T) {
	model := builtin(t, "digits-scaled")
	_, err := session.Compile(model, session.Options{StepsPerExecution: 4})
	require.ErrorIs(t, err, session.ErrStack)

	// A scale inside the graph allows several steps per execution.
	good := batches(t, digits(t), 32, 1)[0]
	bad := spoiled(t, good)
	s := open(t, "digits-fp16", session.Options{StepsPerExecution: 3})
	plain := open(t, "digits-fp16", session.Options{})
	out, one := make([]float64, 4), make([]float64, 4)
	for i, b := range []data.Batch{bad, bad, good} {
		require.NoError(t, s.Stack(i, 3, b))
		require.NoError(t, plain.Train(context.Background(), int64(i), b, one))
	}
	require.NoError(t, s.TrainN(context.Background(), 0, 3, out))
	assert.Equal(t, []float64{8192, 2}, out[2:])
	assert.Equal(t, one[2:], out[2:])
	assert.True(t, lowered(s), "one of its steps was")
}
