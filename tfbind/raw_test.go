package tfbind_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

func TestRaw(t *testing.T) {
	raw := []byte{0, 0, 128, 63, 0, 0, 0, 192} // 1 and -2
	x, err := tfbind.NewRaw(tfbind.Float32, raw, 2, 1)
	require.NoError(t, err)
	defer x.Close()
	values, err := tfbind.Values[float32](x)
	require.NoError(t, err)
	assert.Equal(t, []float32{1, -2}, values)
	assert.Equal(t, []int64{2, 1}, x.Shape())
	back, err := x.Raw()
	require.NoError(t, err)
	assert.Equal(t, raw, back)

	empty, err := tfbind.NewRaw(tfbind.BFloat16, nil, 0, 3)
	require.NoError(t, err)
	defer empty.Close()
	back, err = empty.Raw()
	require.NoError(t, err)
	assert.Empty(t, back)

	_, err = tfbind.NewRaw(tfbind.Float32, raw, 3)
	assert.ErrorIs(t, err, tfbind.ErrShape)
	_, err = tfbind.NewRaw(tfbind.Float32, raw[:7], 1)
	assert.ErrorIs(t, err, tfbind.ErrShape, "not a whole number of elements")
	_, err = tfbind.NewRaw(tfbind.String, raw, 1)
	assert.ErrorIs(t, err, tfbind.ErrType)
	text, err := tfbind.NewTensor([]string{"a"})
	require.NoError(t, err)
	defer text.Close()
	_, err = text.Raw()
	assert.ErrorIs(t, err, tfbind.ErrType)
	require.NoError(t, x.Close())
	_, err = x.Raw()
	assert.ErrorIs(t, err, tfbind.ErrClosed)
}
