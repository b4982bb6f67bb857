package gpuopts_test

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
)

// The bytes in testdata are those of tf.compat.v1.ConfigProto of TensorFlow 2.21;
// scripts/config_golden.py writes them, from a table with the same names.
func TestConfigProtoBytes(t *testing.T) {
	text, err := os.ReadFile("testdata/config.json")
	require.NoError(t, err)
	var want map[string]string
	require.NoError(t, json.Unmarshal(text, &want))
	for name, options := range map[string]gpuopts.Options{
		"nothing":              {},
		"threads":              {IntraThreads: 2, InterThreads: 1},
		"per session threads":  {InterThreads: 3, PerSessionThreads: true},
		"executor":             {Executor: gpuopts.SingleThreaded},
		"grappler off":         {GrapplerOff: true},
		"memory none":          {MemoryOptimization: gpuopts.MemoryNone},
		"memory manual":        {MemoryOptimization: gpuopts.MemoryManual},
		"memory swapping":      {MemoryOptimization: gpuopts.MemorySwapping},
		"memory recomputation": {MemoryOptimization: gpuopts.MemoryRecomputation},
		"memory scheduling":    {MemoryOptimization: gpuopts.MemoryScheduling},
		"memory heuristics":    {MemoryOptimization: gpuopts.MemoryHeuristics},
		"bfloat16":             {Precision: gpuopts.BFloat16},
		"float16 cpu":          {Precision: gpuopts.Float16CPU},
		"float16 gpu":          {Precision: gpuopts.Float16GPU},
		"xla off":              {XLA: gpuopts.XLAOff},
		"xla on 1":             {XLA: gpuopts.XLAOn1},
		"xla on 2":             {XLA: gpuopts.XLAOn2},
		"memory growth":        {MemoryGrowth: true},
		"fraction":             {MemoryFraction: 0.5},
		"visible":              {VisibleGPUs: []int{1, 0}},
		"bfc":                  {GPUAllocator: gpuopts.BFC},
		"cuda malloc async":    {GPUAllocator: gpuopts.CUDAMallocAsync},
		"unified memory":       {UnifiedMemory: true},
		"host limit":           {HostMemoryLimit: 256},
		"virtual":              {VirtualGPUs: [][]int{{1024, 512}, {}}},
		"all": {
			IntraThreads: 2, InterThreads: 1, PerSessionThreads: true, Executor: gpuopts.SingleThreaded,
			MemoryOptimization: gpuopts.MemoryNone, Precision: gpuopts.BFloat16, XLA: gpuopts.XLAOn2,
			MemoryGrowth: true, VisibleGPUs: []int{0}, VirtualGPUs: [][]int{{2048}},
			GPUAllocator: gpuopts.CUDAMallocAsync, UnifiedMemory: true, HostMemoryLimit: 100,
		},
	} {
		t.Run(name, func(t *testing.T) {
			golden, ok := want[name]
			require.True(t, ok, "scripts/config_golden.py lacks this case")
			got, err := options.ConfigProto()
			require.NoError(t, err)
			assert.Equal(t, golden, hex.EncodeToString(got))
		})
		delete(want, name)
	}
	assert.Empty(t, want, "cases of scripts/config_golden.py that are not tested")
}

func TestConfigProtoRefuses(t *testing.T) {
	for _, c := range []struct {
		options gpuopts.Options
		says    string
	}{
		{gpuopts.Options{IntraThreads: -1}, "threads: got -1"},
		{gpuopts.Options{InterThreads: -1}, "threads"},
		{gpuopts.Options{Executor: "FAST"}, `executor: got "FAST"; expected one of ["SINGLE_THREADED_EXECUTOR"]`},
		{gpuopts.Options{XLA: "on"}, `XLA: got "on"`},
		{gpuopts.Options{Precision: "float8"}, `precision: got "float8"`},
		{gpuopts.Options{MemoryOptimization: "most"}, `memory optimization: got "most"`},
		{gpuopts.Options{GrapplerOff: true, Precision: gpuopts.BFloat16}, "GrapplerOff"},
		{gpuopts.Options{GrapplerOff: true, MemoryOptimization: gpuopts.MemoryNone}, "GrapplerOff"},
		{gpuopts.Options{MemoryFraction: -0.1}, "fraction: got -0.1"},
		{gpuopts.Options{MemoryFraction: 1.1}, "fraction"},
		{gpuopts.Options{MemoryFraction: math.NaN()}, "fraction"},
		{gpuopts.Options{VisibleGPUs: []int{-1}}, "visible GPUs: got -1"},
		{gpuopts.Options{GPUAllocator: "malloc"}, `GPU allocator: got "malloc"`},
		{gpuopts.Options{HostMemoryLimit: -1}, "host memory limit: got -1 MiB"},
		{gpuopts.Options{VirtualGPUs: [][]int{{0}}}, "got a size of 0 MiB"},
		{gpuopts.Options{VirtualGPUs: [][]int{{1}}, MemoryFraction: 0.5}, "fraction of 0.5"},
		{gpuopts.Options{VirtualGPUs: [][]int{{1}}, VisibleGPUs: []int{0, 1}}, "lists for 1 GPUs"},
	} {
		_, err := c.options.ConfigProto()
		assert.ErrorContains(t, err, c.says)
		assert.ErrorContains(t, err, "expected", "%+v", c.options)
	}
}
