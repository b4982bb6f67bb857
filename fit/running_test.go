package fit

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// counting is a Session that counts how often its weights were finalized.
type counting struct {
	*linear
	finalized int
}

func (c *counting) Finalize(context.Context) error {
	c.finalized++
	c.w[0] = 42
	return nil
}

// The weights get their final values when the training is complete, after the last checkpoint.
// Weights from RestoreBest stay.
func TestWeightsAreFinalized(t *testing.T) {
	dir := tempDir(t)
	c := &counting{linear: newLinear()}
	loop := Loop{Session: c, Batch: 4, Epochs: 2}
	complete(t, &loop, samples(t, 10), Checkpoint{Folder: dir}.Hook())
	require.Equal(t, 1, c.finalized)
	require.Equal(t, 42.0, c.w[0])
	found := listed(t, dir)
	require.NoError(t, c.Restore(t.Context(), found[0].Variables))
	require.NotEqual(t, 42.0, c.w[0], "a training that goes on goes on from the weights before that")

	// A complete training that is resumed has the same final weights.
	complete(t, &Loop{Session: c, Batch: 4, Epochs: 2, Resume: dir}, samples(t, 10))
	require.Equal(t, 42.0, c.w[0])

	best := &counting{linear: newLinear()}
	loop = Loop{Session: best, Batch: 4, Epochs: 2}
	complete(t, &loop, samples(t, 10), Checkpoint{Folder: tempDir(t), Best: "loss", RestoreBest: true}.Hook())
	require.Zero(t, best.finalized)

	stopped := &counting{linear: newLinear()}
	complete(t, &Loop{Session: stopped, Batch: 4, Epochs: 2}, samples(t, 10), stopAt(4))
	require.Zero(t, stopped.finalized)
}
