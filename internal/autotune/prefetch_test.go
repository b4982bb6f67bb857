package autotune

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
)

func TestPrefetch(t *testing.T) {
	of := func(width int) data.Dataset {
		ds, err := data.New("wide", data.Field{Name: "x",
			Array: data.Array{Shape: []int{64, width}, Values: make([]float32, 64*width)}})
		require.NoError(t, err)
		return ds
	}
	assert.Equal(t, 64, Prefetch(of(100), 32, false), "12.5 KiB each")
	assert.Equal(t, 32, Prefetch(of(1024), 32, false), "128 KiB each")
	assert.Equal(t, 2, Prefetch(of(1<<16), 32, false), "8 MiB each")
	assert.Equal(t, 16, Prefetch(of(1024), 1000, false), "no more than there are samples")
	assert.Equal(t, 2, Prefetch(of(100), 32, true))
}
