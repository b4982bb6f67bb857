//go:build !gcstress

package session_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/session"
)

// To pin memory takes a piece of Go's that a garbage collection may have taken away.
func TestTrainOnLentBatchDoesNotAllocate(t *testing.T) {
	s := open(t, "dense-100-64-1", session.Options{})
	out := make([]float64, len(s.TrainMetrics()))
	for b, err := range random(t, 256, 100).Batches(data.Pass{Batch: 256}) {
		require.NoError(t, err)
		require.True(t, b.Borrowable(0))
		assert.Zero(t, testing.AllocsPerRun(20, func() {
			if err := s.Train(t.Context(), 0, b, out); err != nil {
				t.Error(err)
			}
		}))
	}
}
