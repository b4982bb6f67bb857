package resolved_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/resolved"
	"steadyfit/option"
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
		setting      string // "" for no error
		had          string
	}{
		{gpuopts.Options{}, gpuopts.Options{}, "", ""},
		{gpuopts.Options{IntraThreads: 2, MemoryGrowth: true}, gpuopts.Options{}, "", ""},
		{gpuopts.Options{IntraThreads: 2, MemoryGrowth: true}, gpuopts.Options{IntraThreads: 2, MemoryGrowth: true}, "", ""},
		{gpuopts.Options{}, gpuopts.Options{Precision: gpuopts.BFloat16, XLA: "on-2", Executor: gpuopts.SingleThreaded,
			GrapplerOff: false}, "", ""},
		{gpuopts.Options{}, gpuopts.Options{InterThreads: 1, PerSessionThreads: true}, "", ""},
		{gpuopts.Options{}, gpuopts.Options{InterThreads: 1}, "Options.InterThreads 1", "TensorFlow's default"},
		{gpuopts.Options{IntraThreads: 2}, gpuopts.Options{IntraThreads: 1}, "Options.IntraThreads 1", "2"},
		{gpuopts.Options{}, gpuopts.Options{MemoryGrowth: true}, "Options.MemoryGrowth true", "TensorFlow's default"},
		{gpuopts.Options{MemoryFraction: 0.5}, gpuopts.Options{MemoryFraction: 0.25}, "Options.MemoryFraction 0.25", "0.5"},
		{gpuopts.Options{VisibleGPUs: []int{0}}, gpuopts.Options{VisibleGPUs: []int{1, 0}}, "Options.VisibleGPUs 1,0", "0"},
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, gpuopts.Options{VirtualGPUs: [][]int{{512, 512}}},
			"Options.VirtualGPUs [[512 512]]", "[[512]]"},
		{gpuopts.Options{GPUAllocator: "BFC"}, gpuopts.Options{GPUAllocator: "cuda_malloc_async"},
			"Options.GPUAllocator cuda_malloc_async", "BFC"},
		{gpuopts.Options{}, gpuopts.Options{UnifiedMemory: true}, "Options.UnifiedMemory true", "TensorFlow's default"},
	} {
		err := resolved.Later(config(c.first), config(c.later))
		if c.setting == "" {
			assert.NoError(t, err, "%+v", c.later)
			continue
		}
		assert.ErrorIs(t, err, gpuopts.ErrTooLate)
		var late *option.Error
		if assert.ErrorAs(t, err, &late, "%+v", c.later) {
			assert.Equal(t, c.setting, fmt.Sprint(late.Option, " ", late.Value))
			assert.Contains(t, late.Reason, "the first session did so with "+c.had)
			assert.Contains(t, late.Fix, "another process")
		}
	}

	// All late settings are reported.
	err := resolved.Later(nil, config(gpuopts.Options{IntraThreads: 1, InterThreads: 1}))
	assert.ErrorContains(t, err, "IntraThreads")
	assert.ErrorContains(t, err, "InterThreads")
	assert.NoError(t, resolved.Later([]byte("no message"), config(gpuopts.Options{IntraThreads: 1})),
		"TensorFlow says what is wrong with it")
}
