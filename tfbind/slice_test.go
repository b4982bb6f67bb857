package tfbind_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/dtype"
	"steadyfit/tfbind"
)

func TestTensorSlice(t *testing.T) {
	sliceIs(t, []int16{1, -2}, []int16{1, -2})
	sliceIs(t, []uint64{1 << 63}, []uint64{1 << 63})
	sliceIs(t, []bool{true, false}, []bool{true, false})
	sliceIs(t, []string{"a", ""}, []string{"a", ""})
	sliceIs(t, []dtype.Half{dtype.NewHalf(1.5)}, []float32{1.5})
	sliceIs(t, []dtype.BFloat{dtype.NewBFloat(-2)}, []float32{-2})
	sliceIs(t, []float32{}, []float32{})

	tensor, err := tfbind.NewTensor([]float32{1, 2}, 2)
	require.NoError(t, err)
	defer tensor.Close()
	room := make([]float32, 3)
	got, err := tensor.Slice(room[:0])
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2}, got)
	assert.Equal(t, []float32{1, 2, 0}, room)
	for _, other := range []any{nil, make([]float32, 1), make([]float64, 2), 7} {
		got, err := tensor.Slice(other)
		require.NoError(t, err)
		assert.Equal(t, []float32{1, 2}, got, "%T", other)
	}
	require.NoError(t, tensor.Close())
	_, err = tensor.Slice(nil)
	require.ErrorIs(t, err, tfbind.ErrClosed)
}

func sliceIs[T tfbind.Element](t *testing.T, values []T, want any) {
	t.Helper()
	tensor, err := tfbind.NewTensor(values, int64(len(values)))
	require.NoError(t, err)
	defer tensor.Close()
	got, err := tensor.Slice(nil)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}
