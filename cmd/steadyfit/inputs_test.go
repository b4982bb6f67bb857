package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/savedmodels"
)

// What an input of integers does not take is found before the first step.
func TestIntegersAreChecked(t *testing.T) {
	m, err := savedmodels.Builtin("lstm")
	require.NoError(t, err)
	require.Empty(t, m.Metadata.ClassNames, "the labels are integers of any size")
	for _, c := range []struct {
		values any
		want   string // empty: sound
	}{
		{[]int64{0, -1}, ""},
		{[]int8{0, -1}, ""},
		{[]uint32{0, math.MaxUint32}, ""},
		{[]float64{0, -1}, ""},
		{[]bool{false, true}, ""},
		{[]float64{0, 0.5}, "input y of signature train is of int64: made: sample 1, column y: found 0.5, expected an integer; correct the value, or leave the sample out"},
		{[]uint64{0, math.MaxUint64}, "input y of signature train is of int64: made: sample 1, column y: found 18446744073709551615, expected an integer; correct the value, or leave the sample out"},
	} {
		ds, err := data.New("made",
			data.Field{Name: "x", Array: data.Array{Shape: []int{2, 20, 16}, Values: make([]float32, 2*20*16)}},
			data.Field{Name: "y", Array: data.Array{Shape: []int{2}, Values: c.values}})
		require.NoError(t, err)
		err = check(ds, m, "train", data.Pass{Batch: 1})
		if c.want == "" {
			assert.NoError(t, err, "%T", c.values)
		} else {
			assert.EqualError(t, err, c.want)
		}
	}
}
