//go:build !gcstress

package session_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/session"
)

// A train step allocates nothing, on batches that are converted, and on borrowed ones. A garbage collection may free
// the object that pins memory.
func TestTrainDoesNotAllocate(t *testing.T) {
	for name, ds := range map[string]data.Dataset{"digits": digits(t), "dense-100-64-1": random(t, 256, 100)} {
		s := open(t, name, session.Options{})
		out := make([]float64, len(s.TrainMetrics()))
		for b, err := range ds.Batches(data.Pass{Batch: 256}) {
			require.NoError(t, err)
			require.True(t, b.Borrowable(0))
			assert.Zero(t, testing.AllocsPerRun(20, func() {
				if err := s.Train(t.Context(), 0, b, out); err != nil {
					t.Error(err)
				}
			}), name)
			break
		}
	}
}

func TestEvaluateInMicroBatchesAllocatesOnlySlices(t *testing.T) {
	s := open(t, "dense-100-64-1", session.Options{})
	require.NoError(t, s.SetMicroBatches(2))
	b := batches(t, random(t, 64, 100), 64, 1)[0]
	out := make([]float64, len(s.EvaluateMetrics()))
	slices := testing.AllocsPerRun(20, func() { b.Slice(0, 32); b.Slice(32, 64) })
	assert.Equal(t, slices, testing.AllocsPerRun(20, func() {
		if err := s.Evaluate(t.Context(), b, out); err != nil {
			t.Error(err)
		}
	}))
}
