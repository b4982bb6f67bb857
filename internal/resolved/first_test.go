package resolved_test

import (
	"fmt"
	"testing"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

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
		{gpuopts.Options{}, gpuopts.Options{Precision: gpuopts.BFloat16, XLA: "on-2", Executor: gpuopts.SingleThreaded, GrapplerOff: false}, "", ""},
		{gpuopts.Options{}, gpuopts.Options{InterThreads: 1, PerSessionThreads: true}, "", ""},
		{gpuopts.Options{}, gpuopts.Options{InterThreads: 1}, "Options.InterThreads 1", "TensorFlow's default"},
		{gpuopts.Options{IntraThreads: 2}, gpuopts.Options{IntraThreads: 1}, "Options.IntraThreads 1", "2"},
		{gpuopts.Options{}, gpuopts.Options{MemoryGrowth: true}, "Options.MemoryGrowth true", "TensorFlow's default"},
		{gpuopts.Options{MemoryFraction: 0.5}, gpuopts.Options{MemoryFraction: 0.25}, "Options.MemoryFraction 0.25", "0.5"},
		{gpuopts.Options{VisibleGPUs: []int{0}}, gpuopts.Options{VisibleGPUs: []int{1, 0}}, "Options.VisibleGPUs 1,0", "0"},
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, gpuopts.Options{VirtualGPUs: [][]int{{512, 512}}}, "Options.VirtualGPUs [[512 512]]", "[[512]]"},
		{gpuopts.Options{GPUAllocator: "BFC"}, gpuopts.Options{GPUAllocator: "cuda_malloc_async"}, "Options.GPUAllocator cuda_malloc_async", "BFC"},
		{gpuopts.Options{}, gpuopts.Options{UnifiedMemory: true}, "Options.UnifiedMemory true", "TensorFlow's default"},
		{gpuopts.Options{HostMemoryLimit: 256}, gpuopts.Options{HostMemoryLimit: 512}, "Options.HostMemoryLimit 512", "256"},
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

	// All late settings are reported, and unknown fields are ignored.
	err := resolved.Later(nil, config(gpuopts.Options{IntraThreads: 1, InterThreads: 1}))
	assert.ErrorContains(t, err, "IntraThreads")
	assert.ErrorContains(t, err, "InterThreads")
	unknown, err := proto.Marshal(&pb.ConfigProto{GpuOptions: &pb.GPUOptions{Experimental: &pb.GPUOptions_Experimental{CollectiveRingOrder: "0"}}})
	require.NoError(t, err)
	assert.NoError(t, resolved.Later(nil, unknown))
	assert.NoError(t, resolved.Later([]byte("no message"), config(gpuopts.Options{IntraThreads: 1})), "TensorFlow says what is wrong with it")
}

// Allocators that replace BFC have no limit.
func TestUnlimited(t *testing.T) {
	for _, c := range []struct {
		first gpuopts.Options
		env   []string
		want  string
	}{
		{gpuopts.Options{}, nil, ""},
		{gpuopts.Options{GPUAllocator: "BFC"}, []string{"TF_GPU_ALLOCATOR="}, ""},
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async"}, []string{"TF_GPU_ALLOCATOR=bfc"}, "cuda_malloc_async"},
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async"}, []string{"TF_GPU_ALLOCATOR=memory_guard"}, ""},
		{gpuopts.Options{}, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, "cuda_malloc_async"},
		{gpuopts.Options{}, []string{"TF_GPU_ALLOCATOR=cuda_malloc", "TF_GPU_ALLOCATOR=cuda_malloc_async"}, "cuda_malloc"},
	} {
		config, err := c.first.ConfigProto()
		require.NoError(t, err)
		assert.Equal(t, c.want, resolved.Unlimited(config, c.env), "%+v in %v", c.first, c.env)
	}
	assert.Empty(t, resolved.Unlimited([]byte("no message"), nil))
}
