package inputs_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/inputs"
	"steadyfit/savedmodels"
)

func TestImageOptions(t *testing.T) {
	model := func(shape []int64, m *savedmodels.Metadata) *savedmodels.Model {
		return &savedmodels.Model{Metadata: m, Signatures: []savedmodels.Signature{{Name: "train",
			Inputs: []savedmodels.Tensor{
				{Name: "x", DType: dtype.Float32, Shape: shape}, {Name: "y", DType: dtype.Int64, Shape: []int64{-1}},
			}}}}
	}
	stated := func(low, high float64) *savedmodels.Metadata {
		return &savedmodels.Metadata{DataRecord: savedmodels.DataRecord{ClassNames: []string{"a", "b"}},
			Inputs: map[string]savedmodels.InputMetadata{"x": {Range: &[2]float64{low, high}}}}
	}
	for _, c := range []struct {
		name          string
		model         *savedmodels.Model
		height, width int
		want          data.ImageOptions
		scale         *[2]float64
	}{
		{"images", model([]int64{-1, 224, 192, 3}, nil), 0, 0,
			data.ImageOptions{Height: 224, Width: 192, Channels: 3, Float: true}, nil},
		{"stated", model([]int64{-1, 28, 28, 1}, stated(0, 1)), 0, 0,
			data.ImageOptions{Height: 28, Width: 28, Channels: 1, Classes: []string{"a", "b"}, Float: true}, &[2]float64{0, 1}},
		{"bytes", model([]int64{-1, 28, 28, 1}, stated(0, 255)), 0, 0,
			data.ImageOptions{Height: 28, Width: 28, Channels: 1, Classes: []string{"a", "b"}, Float: true}, nil},
		{"any size", model([]int64{-1, -1, -1, 3}, nil), 0, 0, data.ImageOptions{Channels: 3, Float: true}, nil},
		{"any size, given", model([]int64{-1, -1, -1, 3}, nil), 96, 128,
			data.ImageOptions{Height: 96, Width: 128, Channels: 3, Float: true}, nil},
		{"grey in a row", model([]int64{-1, 64}, stated(0, 16)), 8, 8,
			data.ImageOptions{Height: 8, Width: 8, Channels: 1, Classes: []string{"a", "b"}, Float: true}, &[2]float64{0, 16}},
		{"colours in a row", model([]int64{-1, 3 * 64}, nil), 8, 8,
			data.ImageOptions{Height: 8, Width: 8, Channels: 3, Float: true}, nil},
		{"a row", model([]int64{-1, 64}, stated(0, 16)), 0, 0, data.ImageOptions{}, nil},
		{"another row", model([]int64{-1, 65}, nil), 8, 8, data.ImageOptions{Height: 8, Width: 8}, nil},
	} {
		got, scale, err := inputs.ImageOptions(c.model, "train", c.height, c.width)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, c.scale, scale, c.name)
	}
	for dtype, float := range map[dtype.DType]bool{dtype.BFloat16: true, dtype.Float16: true, dtype.Float64: true,
		dtype.Uint8: false, dtype.Int32: false} {
		m := model([]int64{-1, 8, 8, 3}, nil)
		m.Signatures[0].Inputs[0].DType = dtype
		got, _, err := inputs.ImageOptions(m, "train", 0, 0)
		require.NoError(t, err)
		require.Equal(t, float, got.Float, dtype)
	}
	_, _, err := inputs.ImageOptions(model(nil, nil), "learn", 0, 0)
	require.ErrorIs(t, err, savedmodels.ErrNoSignature)
}

// The inputs without the labels determine how a table is read.
func TestCSVOptions(t *testing.T) {
	model, err := savedmodels.Builtin("lstm")
	require.NoError(t, err)
	sig, err := model.Signature("train")
	require.NoError(t, err)
	sig.Inputs = slices.DeleteFunc(sig.Inputs, func(in savedmodels.Tensor) bool { return in.Name == "x" })
	for _, in := range []savedmodels.Tensor{
		{Name: "row", DType: dtype.Float64, Shape: []int64{-1, 3}},
		{Name: "text", DType: dtype.String, Shape: []int64{-1, 1}},
		{Name: "flag", DType: dtype.Bool, Shape: []int64{-1}}, {Name: "any", DType: dtype.Int32, UnknownRank: true},
	} {
		in.Op = in.Name
		sig.Inputs = append(sig.Inputs, in)
	}
	o, err := inputs.CSVOptions(model, "train")
	require.NoError(t, err)
	assert.Equal(t, data.CSVOptions{Inputs: []data.FieldSpec{
		{Name: "row", Type: "float64", Shape: []int{3}}, {Name: "text", Type: "string"}, {Name: "flag", Type: "bool"},
		{Name: "any", Type: "int32", Shape: []int{-1, -1}},
	}}, o)
	_, err = inputs.CSVOptions(model, "trian")
	assert.ErrorIs(t, err, savedmodels.ErrNoSignature)
}
