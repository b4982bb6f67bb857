package session_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/session"
)

// Micro-batches, several steps per execution and a resume in mid-epoch do not change a running
// metric.
func TestRunningMetrics(t *testing.T) {
	all, _, err := data.Builtin("digits")
	require.NoError(t, err)
	held, ds, err := all.Split(0.1, 1)
	require.NoError(t, err)
	const batch, steps = 32, 10
	train := func(o session.Options, parts int, change func(*fit.Loop)) *fit.History {
		t.Helper()
		s := open(t, "digits", o)
		require.Equal(t, []string{"accuracy"}, s.RunningMetrics())
		require.NoError(t, s.SetMicroBatches(parts))
		loop := &fit.Loop{Session: s, Batch: batch, Epochs: 2, StepsPerEpoch: steps, Validation: held}
		if change != nil {
			change(loop)
		}
		h, err := loop.Run(t.Context(), ds)
		require.NoError(t, err)
		return h
	}
	whole := train(session.Options{}, 1, nil)
	compare := func(h *fit.History, tolerance float64) {
		t.Helper()
		for _, name := range []string{"accuracy", "val_accuracy"} {
			require.Len(t, h.Metric(name), 2)
			assert.InDeltaSlice(t, whole.Metric(name), h.Metric(name), tolerance, name)
		}
	}
	// The metric covers all samples of the epoch, not only the last batch.
	right := whole.Metric("accuracy")[0] * batch * steps
	assert.InDelta(t, float64(int(right+0.5)), right, 1e-3)
	assert.Greater(t, whole.Metric("accuracy")[1], whole.Metric("accuracy")[0])

	compare(train(session.Options{}, 4, nil), 2.0/(batch*steps))
	compare(train(session.Options{StepsPerExecution: 5}, 1, nil), 0)

	checkpoints := t.TempDir()
	stop := fit.Hook{Name: "stop", Step: func(_ context.Context, s *fit.State) error {
		if s.Step == steps+4 {
			s.Stop("in mid-epoch")
		}
		return nil
	}}
	stopped := train(session.Options{}, 1, func(l *fit.Loop) { l.Hook(fit.Checkpoint{Folder: checkpoints}.Hook(), stop) })
	require.False(t, stopped.Done)
	resumed := train(session.Options{}, 1, func(l *fit.Loop) { l.Resume = checkpoints })
	require.True(t, resumed.Done)
	compare(resumed, 0)
}
