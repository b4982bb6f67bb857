package data

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNPYWriterInParts(t *testing.T) {
	whole := Array{Shape: []int{3, 2}, Values: []float32{1, 2, 3, 4, 5, 6}}
	var want, got bytes.Buffer
	require.NoError(t, writeNPY(&want, whole))
	w, err := NewWriter(&got, ".npy", 3)
	require.NoError(t, err)
	require.NoError(t, w.Write(Field{"p", Array{Shape: []int{2, 2}, Values: []float32{1, 2, 3, 4}}}))
	assert.ErrorIs(t, w.Flush(), ErrFormat, "a sample is missing")
	assert.ErrorIs(t, w.Write(Field{"p", Array{Shape: []int{1, 2}, Values: []int32{5, 6}}}), ErrField)
	assert.ErrorIs(t, w.Write(Field{"p", Array{Shape: []int{2, 1}, Values: []float32{5, 6}}}), ErrField)
	assert.ErrorIs(t, w.Write(), ErrUnsupported)
	require.NoError(t, w.Write(Field{"p", Array{Shape: []int{1, 2}, Values: []float32{5, 6}}}))
	require.NoError(t, w.Flush())
	assert.Equal(t, want.Bytes(), got.Bytes())
}
