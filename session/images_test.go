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

func TestImageOptions(t *testing.T) {
	model := func(shape []int64, m *savedmodels.Metadata) *savedmodels.Model {
		return &savedmodels.Model{Metadata: m, Signatures: []savedmodels.Signature{{Name: "train", Inputs: []savedmodels.Tensor{
			{Name: "x", DType: tfbind.Float32, Shape: shape}, {Name: "y", DType: tfbind.Int64, Shape: []int64{-1}},
		}}}}
	}
	stated := func(low, high float64) *savedmodels.Metadata {
		return &savedmodels.Metadata{DataRecord: savedmodels.DataRecord{ClassNames: []string{"a", "b"}}, Inputs: map[string]savedmodels.InputMetadata{"x": {Range: &[2]float64{low, high}}}}
	}
	for _, c := range []struct {
		name          string
		model         *savedmodels.Model
		height, width int
		want          data.ImageOptions
		scale         *[2]float64
	}{
		{"images", model([]int64{-1, 224, 192, 3}, nil), 0, 0, data.ImageOptions{Height: 224, Width: 192, Channels: 3, Float: true}, nil},
		{"stated", model([]int64{-1, 28, 28, 1}, stated(0, 1)), 0, 0, data.ImageOptions{Height: 28, Width: 28, Channels: 1, Classes: []string{"a", "b"}, Float: true}, &[2]float64{0, 1}},
		{"bytes", model([]int64{-1, 28, 28, 1}, stated(0, 255)), 0, 0, data.ImageOptions{Height: 28, Width: 28, Channels: 1, Classes: []string{"a", "b"}, Float: true}, nil},
		{"any size", model([]int64{-1, -1, -1, 3}, nil), 0, 0, data.ImageOptions{Channels: 3, Float: true}, nil},
		{"any size, given", model([]int64{-1, -1, -1, 3}, nil), 96, 128, data.ImageOptions{Height: 96, Width: 128, Channels: 3, Float: true}, nil},
		{"grey in a row", model([]int64{-1, 64}, stated(0, 16)), 8, 8, data.ImageOptions{Height: 8, Width: 8, Channels: 1, Classes: []string{"a", "b"}, Float: true}, &[2]float64{0, 16}},
		{"colours in a row", model([]int64{-1, 3 * 64}, nil), 8, 8, data.ImageOptions{Height: 8, Width: 8, Channels: 3, Float: true}, nil},
		{"a row", model([]int64{-1, 64}, stated(0, 16)), 0, 0, data.ImageOptions{}, nil},
		{"another row", model([]int64{-1, 65}, nil), 8, 8, data.ImageOptions{Height: 8, Width: 8}, nil},
	} {
		got, scale, err := session.ImageOptions(c.model, "train", c.height, c.width)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, c.scale, scale, c.name)
	}
	for dtype, float := range map[tfbind.DType]bool{tfbind.BFloat16: true, tfbind.Float16: true, tfbind.Float64: true, tfbind.Uint8: false, tfbind.Int32: false} {
		m := model([]int64{-1, 8, 8, 3}, nil)
		m.Signatures[0].Inputs[0].DType = dtype
		got, _, err := session.ImageOptions(m, "train", 0, 0)
		require.NoError(t, err)
		require.Equal(t, float, got.Float, dtype)
	}
	_, _, err := session.ImageOptions(model(nil, nil), "learn", 0, 0)
	require.ErrorIs(t, err, savedmodels.ErrNoSignature)
}

// Sample weights with an open shape need a field, and the error comes before loading.
func TestWeightsWithoutASize(t *testing.T) {
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	train, test, err := data.Builtin("digits")
	require.NoError(t, err)
	sig, err := model.Signature("train")
	require.NoError(t, err)
	sig.Inputs = append(sig.Inputs, savedmodels.Tensor{Name: "sample_weight", Op: "w", DType: tfbind.Float32, Shape: []int64{-1, -1}})
	_, err = session.CheckData(model, "train", train, data.Pass{Batch: 8})
	assert.ErrorIs(t, err, session.ErrData)
	assert.ErrorContains(t, err, "takes sample_weight of shape [? ?], which has open sizes")
	sig.Inputs[len(sig.Inputs)-1].Shape = []int64{-1, 3}
	_, err = session.CheckData(model, "train", test, data.Pass{Batch: 8})
	assert.NoError(t, err, "ones of a known shape are fed")
}

// Bytes of raw tensors and one-hot labels were only reported as shapes.
func TestShapeHints(t *testing.T) {
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	pixels, oneHot := data.Array{Shape: []int{2, 64}, Values: make([]float32, 128)}, data.Array{Shape: []int{2, 3}, Values: make([]float32, 6)}
	raw, classes := data.Array{Shape: []int{2}, Values: []string{"\x00\x01", "\x02"}}, data.Array{Shape: []int{2}, Values: []int64{1, 2}}
	for _, c := range []struct {
		x, y data.Array
		says string
	}{
		{raw, classes, "field x for signature train, input x: the data does not fit the model: expected float32 of shape [? 64], got one text of bytes per sample; raw tensors in bytes are not read: write an encoded image (PNG or JPEG), or a list"},
		{pixels, oneHot, "expected shape [?], got [2 3] (the first size counts the samples); if the labels are one-hot, write the number of the class"},
		{oneHot, classes, "expected shape [? 64], got [2 3] (the first size counts the samples)"},
	} {
		ds, err := data.New("made", data.Field{Name: "x", Array: c.x}, data.Field{Name: "y", Array: c.y})
		require.NoError(t, err)
		_, err = session.CheckData(model, "train", ds, data.Pass{Batch: 2})
		assert.ErrorIs(t, err, session.ErrData)
		assert.ErrorContains(t, err, c.says)
	}
}

// Only features determine the options, since labels are always read as integers.
func TestCSVOptions(t *testing.T) {
	for dtype, want := range map[tfbind.DType]bool{tfbind.Float32: false, tfbind.BFloat16: false, tfbind.Float64: true, tfbind.Int32: true, tfbind.Uint8: true} {
		model, err := savedmodels.Builtin("lstm")
		require.NoError(t, err)
		sig, err := model.Signature("train")
		require.NoError(t, err)
		require.Equal(t, tfbind.Int64, sig.Input("y").DType)
		sig.Input("x").DType = dtype
		o, err := session.CSVOptions(model, "train")
		require.NoError(t, err)
		assert.Equal(t, data.CSVOptions{Exact: want}, o, dtype)
	}
	model, err := savedmodels.Builtin("lstm")
	require.NoError(t, err)
	sig, err := model.Signature("train")
	require.NoError(t, err)
	x := sig.Input("x")
	x.DType, x.Shape = tfbind.String, []int64{-1, 3}
	o, err := session.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Text: true}, o, "all columns are the text of a sample")
	x.Shape = []int64{-1, 1}
	sig.Inputs = append(sig.Inputs, savedmodels.Tensor{Name: "age", Op: "age", DType: tfbind.Float32, Shape: []int64{-1}})
	o, err = session.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Columns: []data.Column{{Name: "x", Text: true}, {Name: "age"}}}, o)
	sig.Input("x").DType = tfbind.Bool
	o, err = session.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Columns: []data.Column{{Name: "x", Bool: true}, {Name: "age"}}}, o)
	sig.Inputs = sig.Inputs[:len(sig.Inputs)-1]
	o, err = session.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Bool: true}, o)
	_, err = session.CSVOptions(model, "trian")
	assert.ErrorIs(t, err, savedmodels.ErrNoSignature)
}
