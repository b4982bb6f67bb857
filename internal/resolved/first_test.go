package resolved_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/resolved"
)

// Settings of the first session cannot be changed later.
func TestLater(t *testing.T) {
	config := func(o gpuopts.Options) []byte {
		bytes, err := o.ConfigProto()
		require.NoError(t, err)
		return bytes
	}
	for _, c := range []struct {
		first, later gpuopts.Options
		late         bool
	}{
		{gpuopts.Options{}, gpuopts.Options{}, false},
		{gpuopts.Options{IntraThreads: 2, MemoryGrowth: true}, gpuopts.Options{}, false},
		{gpuopts.Options{IntraThreads: 2, MemoryGrowth: true}, gpuopts.Options{IntraThreads: 2, MemoryGrowth: true}, false},
		{gpuopts.Options{}, gpuopts.Options{Precision: gpuopts.BFloat16, XLA: "on-2", Executor: gpuopts.SingleThreaded}, false},
		{gpuopts.Options{}, gpuopts.Options{InterThreads: 1, PerSessionThreads: true}, false},
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, gpuopts.Options{VirtualGPUs: [][]int{{512}}}, false},
		{gpuopts.Options{}, gpuopts.Options{InterThreads: 1}, true},
		{gpuopts.Options{IntraThreads: 2}, gpuopts.Options{IntraThreads: 1}, true},
		{gpuopts.Options{}, gpuopts.Options{MemoryGrowth: true}, true},
		{gpuopts.Options{MemoryFraction: 0.5}, gpuopts.Options{MemoryFraction: 0.25}, true},
		{gpuopts.Options{VisibleGPUs: []int{0}}, gpuopts.Options{VisibleGPUs: []int{1, 0}}, true},
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, gpuopts.Options{VirtualGPUs: [][]int{{512, 512}}}, true},
		{gpuopts.Options{GPUAllocator: "BFC"}, gpuopts.Options{GPUAllocator: "cuda_malloc_async"}, true},
		{gpuopts.Options{}, gpuopts.Options{UnifiedMemory: true}, true},
	} {
		err := resolved.Later(config(c.first), config(c.later))
		assert.Equal(t, c.late, errors.Is(err, gpuopts.ErrTooLate), "%+v %v", c.later, err)
		assert.Equal(t, c.late, err != nil)
	}
	err := resolved.Later(config(gpuopts.Options{IntraThreads: 2}), config(gpuopts.Options{IntraThreads: 1}))
	assert.ErrorContains(t, err, "another process")
	assert.NoError(t, resolved.Later([]byte("no message"), config(gpuopts.Options{IntraThreads: 1})),
		"TensorFlow says what is wrong with it")
}
