package session_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// If the shape of the sample weights has unknown dimensions, the data needs a field for them. The
// error comes before loading.
func TestWeightsWithoutASize(t *testing.T) {
	model := builtin(t, "digits")
	train, test, err := data.Builtin("digits")
	require.NoError(t, err)
	sig, err := model.Signature("train")
	require.NoError(t, err)
	sig.Inputs = append(sig.Inputs, savedmodels.Tensor{Name: "sample_weight", Op: "w", DType: tfbind.Float32,
		Shape: []int64{-1, -1}})
	_, err = session.CheckData(model, "train", train, data.Pass{Batch: 8})
	assert.ErrorIs(t, err, session.ErrData)
	assert.ErrorContains(t, err, "takes sample_weight with samples of shape [?], whose size is open")
	sig.Inputs[len(sig.Inputs)-1].Shape = []int64{-1, 3}
	_, err = session.CheckData(model, "train", test, data.Pass{Batch: 8})
	assert.NoError(t, err, "ones of a known shape are fed")
}

// The error for bytes of raw tensors or one-hot labels says what to do, not only which shape was
// expected.
func TestShapeHints(t *testing.T) {
	model := builtin(t, "digits")
	pixels, oneHot := data.Array{Shape: []int{2, 64}, Values: make([]float32, 128)},
		data.Array{Shape: []int{2, 3}, Values: make([]float32, 6)}
	classes := data.Array{Shape: []int{2}, Values: []int64{1, 2}}
	for _, c := range []struct {
		x, y data.Array
		says string
	}{
		{pixels, oneHot, "expected one value per sample, got samples of shape [3]; if the labels are one-hot, write the " +
			"number of the class"},
		{oneHot, classes, "expected samples of shape [64], got samples of shape [3]"},
	} {
		ds, err := data.New("made", data.Field{Name: "x", Array: c.x}, data.Field{Name: "y", Array: c.y})
		require.NoError(t, err)
		_, err = session.CheckData(model, "train", ds, data.Pass{Batch: 2})
		assert.ErrorIs(t, err, session.ErrData)
		assert.ErrorContains(t, err, c.says)
	}
}
