package gpuopts_test

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
)

// configs are the cases whose bytes are in testdata.
var configs = map[string]gpuopts.Options{
	"nothing":              {},
	"intra threads":        {IntraThreads: 2},
	"inter threads":        {InterThreads: 1},
	"threads":              {IntraThreads: 2, InterThreads: 1},
	"per session threads":  {InterThreads: 3, PerSessionThreads: true},
	"executor":             {Executor: gpuopts.SingleThreaded},
	"grappler off":         {GrapplerOff: true},
	"layout":               {Grappler: gpuopts.Grappler{Layout: gpuopts.Off}},
	"constant folding":     {Grappler: gpuopts.Grappler{ConstantFolding: gpuopts.Off}},
	"shapes":               {Grappler: gpuopts.Grappler{Shapes: gpuopts.Off}},
	"remapping":            {Grappler: gpuopts.Grappler{Remapping: gpuopts.Off}},
	"common subgraphs":     {Grappler: gpuopts.Grappler{CommonSubgraphs: gpuopts.Off}},
	"arithmetic":           {Grappler: gpuopts.Grappler{Arithmetic: gpuopts.Aggressive}},
	"dependencies":         {Grappler: gpuopts.Grappler{Dependencies: gpuopts.Off}},
	"loops":                {Grappler: gpuopts.Grappler{Loops: gpuopts.Off}},
	"functions":            {Grappler: gpuopts.Grappler{Functions: gpuopts.Off}},
	"implementations":      {Grappler: gpuopts.Grappler{Implementations: gpuopts.Off}},
	"conditional code":     {Grappler: gpuopts.Grappler{ConditionalCode: gpuopts.Off}},
	"debug stripper":       {Grappler: gpuopts.Grappler{DebugStripper: gpuopts.On}},
	"scoped allocator":     {Grappler: gpuopts.Grappler{ScopedAllocator: gpuopts.On}},
	"pin to host":          {Grappler: gpuopts.Grappler{PinToHost: gpuopts.On}},
	"pruning off":          {Grappler: gpuopts.Grappler{PruningOff: true}},
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
	"fraction one":         {MemoryFraction: 1},
	"growth and fraction":  {MemoryGrowth: true, MemoryFraction: 0.3},
	"visible":              {VisibleGPUs: []int{1, 0}},
	"bfc":                  {GPUAllocator: gpuopts.BFC},
	"cuda malloc async":    {GPUAllocator: gpuopts.CUDAMallocAsync},
	"unified memory":       {UnifiedMemory: true},
	"host limit":           {HostMemoryLimit: 256},
	"virtual":              {VirtualGPUs: [][]int{{1024, 512}, {}}},
	"deferred deletion":    {DeferredDeletion: 1 << 33},
	"all": {
		IntraThreads: 2, InterThreads: 1, PerSessionThreads: true, Executor: gpuopts.SingleThreaded,
		MemoryOptimization: gpuopts.MemoryNone, Precision: gpuopts.BFloat16, XLA: gpuopts.XLAOn2,
		Grappler:     gpuopts.Grappler{Layout: gpuopts.On, Loops: gpuopts.Off, ConditionalCode: gpuopts.Off, PruningOff: true},
		MemoryGrowth: true, VisibleGPUs: []int{0}, VirtualGPUs: [][]int{{2048}},
		GPUAllocator: gpuopts.BFC, UnifiedMemory: true, HostMemoryLimit: 100, DeferredDeletion: 1,
	},
}

// The bytes in testdata are those of tf.compat.v1.ConfigProto of TensorFlow 2.21;
// scripts/config_golden.py writes them, from a table with the same names.
func TestConfigProtoBytes(t *testing.T) {
	text, err := os.ReadFile("testdata/config.json")
	require.NoError(t, err)
	var want map[string]string
	require.NoError(t, json.Unmarshal(text, &want))
	for name, options := range configs {
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

// Every option changes the bytes or the environment in a case of its own tests.
func TestEveryOptionHasACase(t *testing.T) {
	set := map[string]bool{}
	for _, options := range configs {
		if config, err := options.ConfigProto(); assert.NoError(t, err) && len(config) > 0 {
			fields("", reflect.ValueOf(options), set)
		}
	}
	for _, c := range environments {
		fields("", reflect.ValueOf(c.options), set)
	}
	all := map[string]bool{}
	fields("", reflect.ValueOf(gpuopts.Options{}), all)
	for name := range all {
		assert.True(t, set[name], "no case has %s", name)
	}
}

// fields notes those of a struct by name, true if they are set.
func fields(prefix string, v reflect.Value, set map[string]bool) {
	for i := range v.NumField() {
		name, f := prefix+v.Type().Field(i).Name, v.Field(i)
		if f.Kind() == reflect.Struct {
			fields(name+".", f, set)
			continue
		}
		set[name] = set[name] || !f.IsZero()
	}
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
		{gpuopts.Options{XLAMinCluster: -1}, "got -1"},
		{gpuopts.Options{Precision: "float8"}, `precision: got "float8"`},
		{gpuopts.Options{MemoryOptimization: "most"}, `memory optimization: got "most"`},
		{gpuopts.Options{Grappler: gpuopts.Grappler{Loops: "yes"}}, `Grappler.Loops: got "yes"`},
		{gpuopts.Options{MemoryFraction: -0.1}, "fraction: got -0.1"},
		{gpuopts.Options{MemoryFraction: 1.1}, "fraction"},
		{gpuopts.Options{MemoryFraction: math.NaN()}, "fraction"},
		{gpuopts.Options{VisibleGPUs: []int{-1}}, "visible GPUs: got -1"},
		{gpuopts.Options{VisibleGPUs: []int{0, 1, 0}}, "visible GPUs: got 0 twice in [0 1 0]"},
		{gpuopts.Options{GPUAllocator: "malloc"}, `GPU allocator: got "malloc"`},
		{gpuopts.Options{GarbageCollection: gpuopts.Aggressive}, `GPU garbage collection: got "aggressive"`},
		{gpuopts.Options{HostMemoryLimit: -1}, "host memory limit: got -1 MiB"},
		{gpuopts.Options{DeferredDeletion: -1}, "deferred deletion: got -1 bytes"},
		{gpuopts.Options{OneDNN: "no"}, `oneDNN: got "no"`},
		{gpuopts.Options{OneDNNPoolLimit: -1}, "got a limit of -1 bytes"},
		{gpuopts.Options{OneDNNMath: "float8"}, `oneDNN's float32: got "float8"`},
		{gpuopts.Options{LogLevel: "loud"}, `log level: got "loud"`},
		{gpuopts.Options{VirtualGPUs: [][]int{{0}}}, "got a size of 0 MiB"},
		{gpuopts.Options{VirtualGPUs: [][]int{{1}}, VisibleGPUs: []int{0, 1}}, "lists for 1 GPUs"},
	} {
		_, err := c.options.ConfigProto()
		assert.ErrorContains(t, err, c.says)
		assert.ErrorContains(t, err, "expected", "%+v", c.options)
		_, same := c.options.Environment()
		assert.Equal(t, err, same)
		_, same = c.options.Check(nil)
		assert.Equal(t, err, same)
	}
}
