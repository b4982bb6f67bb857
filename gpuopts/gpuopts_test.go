package gpuopts_test

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
)

// configs are the options whose ConfigProto is in testdata.
var configs = map[string]gpuopts.Options{
	"nothing":              {},
	"intra threads":        {IntraThreads: 2},
	"inter threads":        {InterThreads: 1},
	"threads":              {IntraThreads: 2, InterThreads: 1},
	"per session":          {PerSessionThreads: true},
	"per session threads":  {InterThreads: 3, PerSessionThreads: true},
	"executor":             {Executor: gpuopts.SingleThreaded},
	"grappler off":         {GrapplerOff: true},
	"layout":               {Grappler: gpuopts.Grappler{Layout: "off"}},
	"constant folding":     {Grappler: gpuopts.Grappler{ConstantFolding: "off"}},
	"shapes":               {Grappler: gpuopts.Grappler{Shapes: "off"}},
	"remapping":            {Grappler: gpuopts.Grappler{Remapping: "off"}},
	"common subgraphs":     {Grappler: gpuopts.Grappler{CommonSubgraphs: "off"}},
	"arithmetic":           {Grappler: gpuopts.Grappler{Arithmetic: "aggressive"}},
	"dependencies":         {Grappler: gpuopts.Grappler{Dependencies: "off"}},
	"loops":                {Grappler: gpuopts.Grappler{Loops: "off"}},
	"functions":            {Grappler: gpuopts.Grappler{Functions: "off"}},
	"implementations":      {Grappler: gpuopts.Grappler{Implementations: "off"}},
	"conditional code":     {Grappler: gpuopts.Grappler{ConditionalCode: "off"}},
	"pruning off":          {Grappler: gpuopts.Grappler{PruningOff: true}},
	"memory none":          {MemoryOptimization: "none"},
	"memory manual":        {MemoryOptimization: "manual"},
	"memory swapping":      {MemoryOptimization: "swapping"},
	"memory recomputation": {MemoryOptimization: "recomputation"},
	"memory scheduling":    {MemoryOptimization: "scheduling"},
	"memory heuristics":    {MemoryOptimization: "heuristics"},
	"bfloat16":             {Precision: gpuopts.BFloat16},
	"float16 cpu":          {Precision: gpuopts.Float16CPU},
	"float16 gpu":          {Precision: gpuopts.Float16GPU},
	"xla off":              {XLA: "off"},
	"xla on 1":             {XLA: "on-1"},
	"xla on 2":             {XLA: "on-2"},
	"memory growth":        {MemoryGrowth: true},
	"fraction":             {MemoryFraction: 0.5},
	"fraction one":         {MemoryFraction: 1},
	"growth and fraction":  {MemoryGrowth: true, MemoryFraction: 0.3},
	"visible":              {VisibleGPUs: []int{1, 0}},
	"bfc":                  {GPUAllocator: "BFC"},
	"cuda malloc async":    {GPUAllocator: "cuda_malloc_async"},
	"unified memory":       {UnifiedMemory: true},
	"more than the GPU":    {MemoryFraction: 1.5, UnifiedMemory: true},
	"virtual":              {VirtualGPUs: [][]int{{1024, 512}, {}}},
	"all": {
		IntraThreads: 2, InterThreads: 1, PerSessionThreads: true, Executor: gpuopts.SingleThreaded,
		MemoryOptimization: "none", Precision: gpuopts.BFloat16, XLA: "on-2",
		Grappler:     gpuopts.Grappler{Layout: "on", Loops: "off", ConditionalCode: "off", PruningOff: true},
		MemoryGrowth: true, VisibleGPUs: []int{0}, VirtualGPUs: [][]int{{2048}},
		GPUAllocator: "BFC", UnifiedMemory: true,
	},
}

// scripts/config_golden.py writes testdata with tf.compat.v1.ConfigProto of TensorFlow 2.21, from a table
// with the same names.
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

// Every option in a ConfigProto has a case in testdata, and every option with a variable has a case in
// environments.
func TestEveryOptionHasACase(t *testing.T) {
	assert.Empty(t, untested(configs, environments))

	// Missing cases are found, also for an option that only occurs together with others.
	all := fields(reflect.TypeFor[gpuopts.Options]())
	assert.Len(t, untested(nil, nil), len(all))
	lacking := map[string]bool{}
	for name := range configs {
		fewer := maps.Clone(configs)
		delete(fewer, name)
		for _, option := range untested(fewer, environments) {
			lacking[option] = true
		}
	}
	for i := range environments {
		for _, option := range untested(configs, slices.Delete(slices.Clone(environments), i, i+1)) {
			lacking[option] = true
		}
	}
	// Each of these options occurs in several cases.
	for _, option := range []string{"Executor", "MemoryGrowth", "PerSessionThreads", "Grappler.Layout",
		"Grappler.PruningOff", "OneDNNMath", "Deterministic"} {
		assert.True(t, lacking[option], "%s: nothing fails without its case", option)
	}
}

// untested returns the options that lack a case, sorted.
func untested(configs map[string]gpuopts.Options, environments []environment) []string {
	var missing []string
	for name, index := range fields(reflect.TypeFor[gpuopts.Options]()) {
		var values []reflect.Value // values of the option in all cases
		config, variable := false, false
		for _, o := range configs {
			if v := reflect.ValueOf(o).FieldByIndex(index); !v.IsZero() {
				values = append(values, v)
				config = config || reflect.DeepEqual(o, only(index, v))
			}
		}
		for _, c := range environments {
			if v := reflect.ValueOf(c.options).FieldByIndex(index); !v.IsZero() {
				values = append(values, v)
				without := c.options
				reflect.ValueOf(&without).Elem().FieldByIndex(index).SetZero()
				fewer, err := without.Environment()
				variable = variable || err == nil && len(fewer) < len(c.want)
			}
		}
		known := false
		for _, v := range values {
			o := only(index, v)
			bytes, err := o.ConfigProto()
			variables, same := o.Environment()
			if err != nil || same != nil {
				continue
			}
			known = len(bytes) > 0 || len(variables) > 0
			if known && (len(bytes) > 0 && !config || len(variables) > 0 && !variable) {
				known = false
				break
			}
		}
		if !known {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// only returns options with a single option set.
func only(index []int, value reflect.Value) (o gpuopts.Options) {
	reflect.ValueOf(&o).Elem().FieldByIndex(index).Set(value)
	return o
}

// fields returns the indices of a struct's fields by name, including fields of nested structs.
func fields(t reflect.Type) map[string][]int {
	all := map[string][]int{}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() != reflect.Struct {
			all[f.Name] = f.Index
			continue
		}
		for name, index := range fields(f.Type) {
			all[f.Name+"."+name] = append(slices.Clone(f.Index), index...)
		}
	}
	return all
}

func TestConfigProtoRefuses(t *testing.T) {
	for _, c := range []struct {
		options gpuopts.Options
		says    string
	}{
		{gpuopts.Options{IntraThreads: -1}, "Options.IntraThreads -1: expected 0 (one per core) to 1024"},
		{gpuopts.Options{InterThreads: -1}, "Options.InterThreads -1: expected 0 (one per core) to 1024"},
		{gpuopts.Options{Executor: "FAST"}, `Options.Executor FAST: expected one of ["SINGLE_THREADED_EXECUTOR"]`},
		{gpuopts.Options{XLA: "on"}, `Options.XLA on: expected one of ["off" "on-1" "on-2"]`},
		{gpuopts.Options{Precision: "float8"}, `Options.Precision float8: expected one of ["bfloat16" "float16" "float16-cpu" "float16-gpu"]`},
		{gpuopts.Options{MemoryOptimization: "most"}, `Options.MemoryOptimization most: expected one of ["none" "manual" "swapping" "recomputation" "scheduling" "heuristics"]`},
		{gpuopts.Options{Grappler: gpuopts.Grappler{Loops: "yes"}}, `Options.Grappler.Loops yes: expected one of ["on" "off" "aggressive"]`},
		{gpuopts.Options{MemoryFraction: -0.1}, "Options.MemoryFraction -0.1: expected a number above 0 and up to 1, or 0 " +
			"for TensorFlow's default"},
		{gpuopts.Options{MemoryFraction: 1.1}, "Options.MemoryFraction 1.1: expected a number above 0 and up to 1, or 0 " +
			"for TensorFlow's default"},
		{gpuopts.Options{MemoryFraction: math.NaN()}, "Options.MemoryFraction NaN: expected a number above 0 and up to 1, " +
			"or 0 for TensorFlow's default"},
		{gpuopts.Options{MemoryFraction: math.NaN(), UnifiedMemory: true},
			"Options.MemoryFraction NaN: expected a number above 0, or 0 for TensorFlow's default"},
		{gpuopts.Options{MemoryFraction: math.Inf(1), UnifiedMemory: true},
			"Options.MemoryFraction +Inf: expected a number above 0, or 0 for TensorFlow's default"},
		{gpuopts.Options{MemoryFraction: -1, UnifiedMemory: true},
			"Options.MemoryFraction -1: expected a number above 0, or 0 for TensorFlow's default"},
		{gpuopts.Options{VisibleGPUs: []int{-1}}, "Options.VisibleGPUs [-1]: expected indices from 0"},
		{gpuopts.Options{VisibleGPUs: []int{0, 1, 0}}, "Options.VisibleGPUs [0 1 0]: expected each index once"},
		{gpuopts.Options{GPUAllocator: "malloc"}, `Options.GPUAllocator malloc: expected one of ["BFC" "cuda_malloc_async"]`},
		{gpuopts.Options{OneDNN: "no"}, `Options.OneDNN no: expected one of ["on" "off"]`},
		{gpuopts.Options{OneDNNMath: "float8"}, `Options.OneDNNMath float8: expected one of ["bfloat16"]`},
		{gpuopts.Options{LogLevel: "loud"}, `Options.LogLevel loud: expected one of ["info" "warning" "error" "fatal"]`},
		{gpuopts.Options{VirtualGPUs: [][]int{{0}}}, "Options.VirtualGPUs [[0]]: expected sizes of 1 MiB or more"},
	} {
		_, err := c.options.ConfigProto()
		assert.ErrorContains(t, err, c.says)
		assert.ErrorContains(t, err, "expected", "%+v", c.options)
		_, same := c.options.Environment()
		assert.EqualError(t, same, err.Error())
		_, same = c.options.Check(nil)
		assert.EqualError(t, same, err.Error())
	}
}

func TestForGPU(t *testing.T) {
	for _, c := range []struct {
		options           gpuopts.Options
		required, ignored []string
	}{
		{gpuopts.Options{}, nil, nil},
		{gpuopts.Options{Precision: gpuopts.Float16GPU, IntraThreads: 1, XLA: "on-2"}, nil, nil},
		{gpuopts.Options{VisibleGPUs: []int{1, 0}}, []string{"Options.VisibleGPUs [1 0]"}, nil},
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, []string{"Options.VirtualGPUs [[512]]"}, nil},
		{gpuopts.Options{GPUAllocator: "BFC"}, []string{"Options.GPUAllocator BFC"}, nil},
		{gpuopts.Options{MemoryGrowth: true, MemoryFraction: 0.5}, nil,
			[]string{"Options.MemoryGrowth true", "Options.MemoryFraction 0.5"}},
		{
			gpuopts.Options{UnifiedMemory: true}, nil,
			[]string{"Options.UnifiedMemory true"},
		},
	} {
		required, ignored := c.options.ForGPU()
		assert.Equal(t, c.required, required)
		assert.Equal(t, c.ignored, ignored)
	}
}
