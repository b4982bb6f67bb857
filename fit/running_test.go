package fit

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/checkpoint"
)

// counting is a Session with the running metric mae, whose value is the number of batches since
// ResetMetrics.
type counting struct {
	*linear
	batches   float64
	resets    int
	finalized int
}

func (c *counting) RunningMetrics() []string { return []string{"mae"} }

func (c *counting) ResetMetrics(context.Context) error {
	c.batches = 0
	c.resets++
	return nil
}

func (c *counting) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	err := c.linear.Train(ctx, step, b, out)
	c.batches++
	out[1] = c.batches
	return err
}

func (c *counting) Evaluate(ctx context.Context, b data.Batch, out []float64) error {
	c.batches++
	err := c.linear.Evaluate(ctx, b, out)
	out[1] = 100 + c.batches
	return err
}

func (c *counting) Finalize(context.Context) error {
	c.finalized++
	c.w[0] = 42
	return nil
}

// Running metrics are reset when an epoch or a validation begins. Records have their last
// values, and means of other metrics.
func TestRunningMetrics(t *testing.T) {
	c := &counting{linear: newLinear()}
	c.lossAt = map[int64]float64{1: 1, 2: 2, 3: 6}
	loop := Loop{Session: c, Batch: 4, Epochs: 2, Validation: samples(t, 20)}
	h := complete(t, &loop, samples(t, 10))
	require.Equal(t, []float64{3, 3}, h.Metric("mae"))
	require.Equal(t, []float64{105, 105}, h.Metric("val_mae"))
	require.InDelta(t, (4*1+4*2+2*6)/10.0, h.Metric("loss")[0], 1e-12)
	require.Equal(t, 4, c.resets)

	m, err := Evaluate(t.Context(), c, samples(t, 10), 4)
	require.NoError(t, err)
	mae, _ := m.Get("mae")
	require.Equal(t, 103.0, mae)
}

// A resumed epoch continues with its running metrics.
func TestRunningMetricsAreNotResetInMidEpoch(t *testing.T) {
	dir := tempDir(t)
	c := &counting{linear: newLinear()}
	stop := stopAt(4)
	loop := Loop{Session: c, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint{Folder: dir}.Hook(), stop)
	h := complete(t, &loop, samples(t, 10))
	require.False(t, h.Done)
	require.Zero(t, c.finalized, "it is not over")

	resumed := &counting{linear: newLinear(), batches: c.batches} // a model has batches in a variable
	loop = Loop{Session: resumed, Batch: 4, Epochs: 2, Resume: dir}
	h = complete(t, &loop, samples(t, 10))
	require.Equal(t, []float64{3, 3}, h.Metric("mae"))
	require.Zero(t, resumed.resets)
}

// The weights get their final values when the training is complete, after the last checkpoint.
// Weights from RestoreBest stay.
func TestWeightsAreFinalized(t *testing.T) {
	dir := tempDir(t)
	c := &counting{linear: newLinear()}
	loop := Loop{Session: c, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	complete(t, &loop, samples(t, 10))
	require.Equal(t, 1, c.finalized)
	require.Equal(t, 42.0, c.w[0])
	found, err := checkpoint.List(dir)
	require.NoError(t, err)
	require.NoError(t, c.Restore(t.Context(), found[0].Variables))
	require.NotEqual(t, 42.0, c.w[0], "a training that goes on goes on from the weights before that")

	// A complete training that is resumed has the same final weights.
	loop = Loop{Session: c, Batch: 4, Epochs: 2, Resume: dir}
	complete(t, &loop, samples(t, 10))
	require.Equal(t, 42.0, c.w[0])

	best := &counting{linear: newLinear()}
	loop = Loop{Session: best, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint{Folder: tempDir(t), Best: "loss", RestoreBest: true}.Hook())
	complete(t, &loop, samples(t, 10))
	require.Zero(t, best.finalized)

	failing := &counting{linear: newLinear()}
	failing.onTrain = func(int64) error { return errors.New("no") }
	loop = Loop{Session: failing, Batch: 4, Epochs: 2}
	_, err = loop.Run(t.Context(), samples(t, 10))
	require.Error(t, err)
	require.Zero(t, failing.finalized)
}
