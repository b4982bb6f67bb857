package inputs_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/inputs"
	"steadyfit/savedmodels"
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
		got, scale, err := inputs.ImageOptions(c.model, "train", c.height, c.width)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, c.scale, scale, c.name)
	}
	for dtype, float := range map[tfbind.DType]bool{tfbind.BFloat16: true, tfbind.Float16: true, tfbind.Float64: true, tfbind.Uint8: false, tfbind.Int32: false} {
		m := model([]int64{-1, 8, 8, 3}, nil)
		m.Signatures[0].Inputs[0].DType = dtype
		got, _, err := inputs.ImageOptions(m, "train", 0, 0)
		require.NoError(t, err)
		require.Equal(t, float, got.Float, dtype)
	}
	_, _, err := inputs.ImageOptions(model(nil, nil), "learn", 0, 0)
	require.ErrorIs(t, err, savedmodels.ErrNoSignature)
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
		o, err := inputs.CSVOptions(model, "train")
		require.NoError(t, err)
		assert.Equal(t, data.CSVOptions{Input: "x", Exact: want}, o, dtype)
	}
	model, err := savedmodels.Builtin("lstm")
	require.NoError(t, err)
	sig, err := model.Signature("train")
	require.NoError(t, err)
	x := sig.Input("x")
	x.DType, x.Shape = tfbind.String, []int64{-1, 3}
	o, err := inputs.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Input: "x", Row: true, Text: true}, o, "all columns are the text of a sample")
	x.Shape = []int64{-1, 1}
	sig.Inputs = append(sig.Inputs, savedmodels.Tensor{Name: "age", Op: "age", DType: tfbind.Float32, Shape: []int64{-1}})
	o, err = inputs.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Columns: []data.FieldSpec{{Name: "x", Type: "string"}, {Name: "age", Type: "float32"}}}, o)
	sig.Input("x").DType = tfbind.Bool
	o, err = inputs.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Columns: []data.FieldSpec{{Name: "x", Type: "bool"}, {Name: "age", Type: "float32"}}}, o)
	sig.Inputs = sig.Inputs[:len(sig.Inputs)-1]
	o, err = inputs.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Input: "x", Bool: true}, o)
	_, err = inputs.CSVOptions(model, "trian")
	assert.ErrorIs(t, err, savedmodels.ErrNoSignature)
}
