package train

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Values out of the range of an integer input are found before the first step.
func TestIntegersAreChecked(t *testing.T) {
	m, err := savedmodels.Builtin("lstm")
	require.NoError(t, err)
	unlimited := *m.Metadata
	unlimited.Labels = map[string]savedmodels.InputMetadata{"y": {DType: "int64"}}
	m.Metadata = &unlimited
	require.Empty(t, m.Metadata.ClassNames, "the labels are integers of any size")
	for _, c := range []struct {
		values any
		want   string // empty if the data is valid
	}{
		{[]int64{0, -1}, ""},
		{[]int8{0, -1}, ""},
		{[]uint32{0, math.MaxUint32}, ""},
		{[]float64{0, -1}, ""},
		{[]bool{false, true}, ""},
		{[]float64{0, 0.5}, "input y of signature train takes int64: made: sample 1, column y: found 0.5, expected a signed integer of 64 bits (of floats, below 2^53); correct the value, or leave the sample out"},
		{[]uint64{0, math.MaxUint64}, "input y of signature train takes int64: made: sample 1, column y: found 18446744073709551615, expected a signed integer of 64 bits; correct the value, or leave the sample out"},
	} {
		ds, err := data.New("made",
			data.Field{Name: "x", Array: data.Array{Shape: []int{2, 20, 16}, Values: make([]float32, 2*20*16)}},
			data.Field{Name: "y", Array: data.Array{Shape: []int{2}, Values: c.values}})
		require.NoError(t, err)
		err = checkData(ds, m, "train", data.Pass{Batch: 1})
		if c.want == "" {
			assert.NoError(t, err, "%T", c.values)
		} else {
			assert.EqualError(t, err, c.want)
		}
	}
}

// The exporter read the number of classes from the shape of the output. A float64 may exceed
// the range of a float32 input.
func TestLabelsAndMagnitudesAreChecked(t *testing.T) {
	m, err := savedmodels.Builtin("lstm")
	require.NoError(t, err)
	noted := *m.Metadata
	noted.Labels = map[string]savedmodels.InputMetadata{"y": {DType: "int64", Classes: 3}}
	m.Metadata = &noted
	require.Empty(t, m.Metadata.ClassNames)
	made := func(label int64, value float64) error {
		x := make([]float64, 2*20*16)
		x[20*16+5] = value
		ds, err := data.New("made",
			data.Field{Name: "x", Array: data.Array{Shape: []int{2, 20, 16}, Values: x}},
			data.Field{Name: "y", Array: data.Array{Shape: []int{2}, Values: []int64{0, label}}})
		require.NoError(t, err)
		return checkData(ds, m, "train", data.Pass{Batch: 1})
	}
	assert.NoError(t, made(2, 1))
	for _, label := range []int64{3, -1} {
		err := made(label, 1)
		require.ErrorIs(t, err, data.ErrLabel)
		assert.ErrorContains(t, err, "sample 1")
	}
	err = made(2, 1e39)
	require.Error(t, err)
	assert.ErrorContains(t, err, "input x of signature train takes float32")
	assert.ErrorContains(t, err, "sample 1")
}

func TestMayExceed(t *testing.T) {
	for _, c := range []struct {
		field     string
		input     tfbind.DType
		rows      int64
		low, high int64
		may       bool
	}{
		{"int64", tfbind.Int32, 0, math.MinInt32, math.MaxInt32, true},
		{"uint32", tfbind.Int32, 0, math.MinInt32, math.MaxInt32, true},
		{"uint64", tfbind.Int64, 0, math.MinInt64, math.MaxInt64, true},
		{"int8", tfbind.Uint64, 0, 0, math.MaxInt64, true},
		{"float32", tfbind.Uint8, 0, 0, math.MaxUint8, true},
		{"int32", tfbind.Int32, 500, -500, 499, true},
		{"float32", tfbind.Int32, 500, -500, 499, true},
		{"uint16", tfbind.Uint16, 500, 0, 499, true},
		{"bool", tfbind.Int32, 1, -1, 0, true},
		{"uint8", tfbind.Int32, 500, 0, 0, false},
		{"uint16", tfbind.Int32, 0, 0, 0, false},
		{"uint64", tfbind.Uint64, 0, 0, 0, false},
		{"bool", tfbind.Int8, 0, 0, 0, false},
		{"float64", tfbind.Float32, 500, 0, 0, false},
	} {
		low, high, may := mayExceed(c.field, c.input, c.rows)
		assert.Equal(t, c.may, may, c)
		if may {
			assert.Equal(t, []int64{c.low, c.high}, []int64{low, high}, c)
		}
	}
}
