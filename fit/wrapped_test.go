package fit

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// wrapped is a session in a type of the program, which counts what the loop calls.
type wrapped struct {
	*session.Session
	executions    []int // the steps of each execution
	frozen, skips int
}

func (w *wrapped) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	w.executions = append(w.executions, 1)
	return w.Session.Train(ctx, step, b, out)
}

func (w *wrapped) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	w.executions = append(w.executions, n)
	return w.Session.TrainN(ctx, step, n, out)
}

func (w *wrapped) Freeze(ctx context.Context) (session.Frozen, error) {
	f, err := w.Session.Freeze(ctx)
	if f != nil {
		w.frozen++
	}
	return f, err
}

func (w *wrapped) Skipped() (lowered, stuck bool, scale float64) {
	if lowered, stuck, scale = w.Session.Skipped(); lowered {
		w.skips++
	}
	return lowered, stuck, scale
}

func wrap(t *testing.T, model string, o session.Options) *wrapped {
	m, err := savedmodels.Builtin(model)
	require.NoError(t, err)
	s, err := session.OpenModel(t.Context(), m, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &wrapped{Session: s}
}

// firstDigits returns the first 96 digits. If spoil is true, a value of the first one is infinite.
func firstDigits(t *testing.T, spoil bool) data.Dataset {
	digits, _, err := data.Builtin("digits")
	require.NoError(t, err)
	for b, err := range digits.Batches(data.Pass{Batch: 96}) {
		require.NoError(t, err)
		x, _ := b.Field("x")
		y, _ := b.Field("y")
		var pixels []float32
		for _, v := range x.Values.([]uint8) {
			pixels = append(pixels, float32(v))
		}
		if spoil {
			pixels[3] = float32(math.Inf(1))
		}
		ds, err := data.New("digits", data.Field{Name: "x", Array: data.Array{Shape: x.Shape, Values: pixels}},
			data.Field{Name: "y", Array: y})
		require.NoError(t, err)
		return ds
	}
	return nil
}

// A Loop calls the methods that a type with an embedded *session.Session replaces, and those that it keeps.
func TestWrappedSessionKeepsItsAbilities(t *testing.T) {
	s := wrap(t, "digits", session.Options{StepsPerExecution: 4})
	loop := Loop{Session: s, Batch: 8, Epochs: 1}
	loop.Hook(Checkpoint{Folder: tempDir(t), EverySteps: 4}.Hook())
	_, err := loop.Run(t.Context(), firstDigits(t, false))
	require.NoError(t, err)
	require.Equal(t, []int{4, 4, 4}, s.executions)
	require.Equal(t, 3, s.frozen, "checkpoints are written beside the training")

	dir := tempDir(t)
	for epochs := 1; epochs <= 2; epochs++ { // the second training resumes the first
		s := wrap(t, "digits-scaled", session.Options{})
		loop := Loop{Session: s, Batch: 8, Epochs: epochs, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir}.Hook())
		h, err := loop.Run(t.Context(), firstDigits(t, true))
		require.NoError(t, err)
		require.Equal(t, 1, s.skips)
		scale, _ := h.Last().Metrics.Get("loss_scale")
		require.Equal(t, 32768/math.Pow(2, float64(epochs)), scale)
	}
}
