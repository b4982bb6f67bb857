package gpuopts_test

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/testkit"
	"steadyfit/option"
)

// environment is a case: options and the variables that they need.
type environment struct {
	options gpuopts.Options
	want    []string
}

// environments has a case for every option with a variable.
var environments = []environment{
	{gpuopts.Options{}, nil},
	{gpuopts.Options{MemoryGrowth: true, IntraThreads: 2, XLA: "on-2"}, nil},
	{gpuopts.Options{VisibleGPUs: []int{0}}, []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}},
	{gpuopts.Options{OneDNN: "on"}, []string{"TF_ENABLE_ONEDNN_OPTS=1"}},
	{gpuopts.Options{OneDNN: "off"}, []string{"TF_ENABLE_ONEDNN_OPTS=0"}},
	{gpuopts.Options{OneDNNSystemAllocator: true}, []string{"TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1"}},
	{gpuopts.Options{OneDNNMath: "bfloat16"}, []string{"TF_SET_ONEDNN_FPMATH_MODE=BF16"}},
	{gpuopts.Options{Deterministic: true}, []string{"TF_DETERMINISTIC_OPS=1"}},
	{gpuopts.Options{LogLevel: "info"}, []string{"TF_CPP_MIN_LOG_LEVEL=0"}},
	{gpuopts.Options{LogLevel: "warning"}, []string{"TF_CPP_MIN_LOG_LEVEL=1"}},
	{gpuopts.Options{LogLevel: "error"}, []string{"TF_CPP_MIN_LOG_LEVEL=2"}},
	{gpuopts.Options{LogLevel: "fatal"}, []string{"TF_CPP_MIN_LOG_LEVEL=3"}},
	{gpuopts.Options{OneDNN: "on", VisibleGPUs: []int{1}},
		[]string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "TF_ENABLE_ONEDNN_OPTS=1"}},
}

func TestEnvironment(t *testing.T) {
	for _, c := range environments {
		variables, err := c.options.Environment()
		require.NoError(t, err, "%+v", c.options)
		var got []string
		for _, v := range variables {
			got = append(got, v.String())
			assert.Regexp(t, `^Options\.\w+ .+`, v.For)
		}
		assert.Equal(t, c.want, got, "%+v", c.options)
		// An environment that already has the variables stays unchanged.
		with, missing, err := gpuopts.With([]string{"HOME=/h"}, variables)
		require.NoError(t, err)
		assert.Len(t, missing, len(variables))
		assert.Equal(t, append([]string{"HOME=/h"}, c.want...), with)
		again, missing, err := gpuopts.With(with, variables)
		require.NoError(t, err)
		assert.Empty(t, missing)
		assert.Equal(t, with, again)
		warnings, err := c.options.Check(with)
		assert.NoError(t, err, "%+v", c.options)
		assert.Empty(t, warnings, "%+v", c.options)
	}
}

func TestWith(t *testing.T) {
	truth := gpuopts.Variable{Name: "B", Value: "1", For: "it", Bool: true}
	plain := gpuopts.Variable{Name: "V", Value: "x", For: "it"}
	for _, c := range []struct {
		have string
		want gpuopts.Variable
		with string // the resulting entry; "" for a conflict
	}{
		{"A=1", plain, "V=x"},
		{"V=x", plain, "V=x"},
		{"V=y", plain, ""},
		{"V=", plain, ""},
		{"VV=y", plain, "V=x"},
		{"B=true", truth, "B=true"},
		{"B=TRUE", truth, "B=TRUE"},
		{"B=0", truth, ""},
		{"B=yes", truth, ""},
	} {
		env := []string{c.have}
		with, missing, err := gpuopts.With(env, []gpuopts.Variable{c.want})
		if c.with == "" {
			var conflict *option.Error
			if assert.ErrorAs(t, err, &conflict, c.have) {
				assert.Equal(t, "it", conflict.Option)
				assert.Contains(t, conflict.Reason, c.want.Name)
				assert.Contains(t, conflict.Reason, "the option needs")
			}
			continue
		}
		require.NoError(t, err, c.have)
		assert.Contains(t, with, c.with)
		if c.with != c.have {
			require.Len(t, missing, 1)
			assert.Equal(t, c.with, missing[0].String())
		}
		assert.Equal(t, []string{c.have}, env, "it is the caller's")
	}
}

// contradiction is a case of options that contradict each other or an environment. The error must
// contain the texts one and other.
type contradiction struct {
	options    gpuopts.Options
	env        []string
	one, other string
}

// conflicts has one or more cases for each row of docs/reference/devices.md, identified by its first two
// cells.
var conflicts = []struct {
	setting, and string
	cases        []contradiction
}{
	{"`--memory-growth`", "`--gpu-memory-fraction 1`", []contradiction{
		{gpuopts.Options{MemoryGrowth: true, MemoryFraction: 1}, nil, "Options.MemoryGrowth true",
			"Options.MemoryFraction 1"},
	}},
	{"`--memory-growth`", "`TF_FORCE_GPU_ALLOW_GROWTH=false`", []contradiction{
		{gpuopts.Options{MemoryGrowth: true}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=false"}, "Options.MemoryGrowth true", `TF_FORCE_GPU_ALLOW_GROWTH is "false"`},
	}},
	{"`--gpu-memory-fraction 1`", "`TF_FORCE_GPU_ALLOW_GROWTH=true`", []contradiction{
		{gpuopts.Options{MemoryFraction: 1}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=true"}, "Options.MemoryFraction 1", `TF_FORCE_GPU_ALLOW_GROWTH is "true"`},
	}},
	{"`--gpu-memory-fraction`", "`TF_DEVICE_MIN_SYS_MEMORY_IN_MB`", []contradiction{
		{gpuopts.Options{MemoryFraction: 0.5}, []string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB=512"}, "Options.MemoryFraction 0.5", `TF_DEVICE_MIN_SYS_MEMORY_IN_MB is "512"`},
		{gpuopts.Options{MemoryFraction: 1}, []string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB= 0"}, "Options.MemoryFraction 1", `TF_DEVICE_MIN_SYS_MEMORY_IN_MB is " 0"`},
	}},
	{"`--gpu-memory-limit`", "`--gpu-memory-fraction`", []contradiction{
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}, MemoryFraction: 0.5}, nil, "Options.VirtualGPUs [[512]]",
			"Options.MemoryFraction 0.5"},
	}},
	{"`--gpu-memory-limit`", "a different number of GPUs in `--visible-gpus`", []contradiction{
		{gpuopts.Options{VirtualGPUs: [][]int{{1024}}, VisibleGPUs: []int{0, 1}}, nil, "Options.VirtualGPUs [[1024]]",
			"Options.VisibleGPUs [0 1]"},
		{gpuopts.Options{VirtualGPUs: [][]int{{1024}, {}}, VisibleGPUs: []int{1}}, nil, "Options.VirtualGPUs [[1024] []]",
			"Options.VisibleGPUs [1]"},
	}},
	{"`--gpu-allocator`", "another one in `TF_GPU_ALLOCATOR`", []contradiction{
		{gpuopts.Options{GPUAllocator: "BFC"}, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, "Options.GPUAllocator BFC", `TF_GPU_ALLOCATOR is "cuda_malloc_async"`},
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async"}, []string{"TF_GPU_ALLOCATOR=cuda_malloc"}, "Options.GPUAllocator cuda_malloc_async", `TF_GPU_ALLOCATOR is "cuda_malloc"`},
	}},
	{"cuda_malloc_async, also in `TF_GPU_ALLOCATOR`, and cuda_malloc there", "`--gpu-memory-limit`, `--gpu-memory-fraction`", []contradiction{
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async", VirtualGPUs: [][]int{{}, {512}}}, nil,
			"Options.GPUAllocator cuda_malloc_async", "Options.VirtualGPUs [[] [512]]"},
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async", MemoryFraction: 0.5}, nil,
			"Options.GPUAllocator cuda_malloc_async", "Options.MemoryFraction 0.5"},
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, "Options.VirtualGPUs [[512]]", `TF_GPU_ALLOCATOR is "cuda_malloc_async"`},
		{gpuopts.Options{MemoryFraction: 0.5}, []string{"TF_GPU_ALLOCATOR=cuda_malloc"}, "Options.MemoryFraction 0.5", `TF_GPU_ALLOCATOR is "cuda_malloc"`},
	}},
	{"cuda_malloc_async, also in `TF_GPU_ALLOCATOR`, and cuda_malloc there", "`UnifiedMemory`", []contradiction{
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async", UnifiedMemory: true}, nil,
			"Options.GPUAllocator cuda_malloc_async", "Options.UnifiedMemory true"},
		{gpuopts.Options{UnifiedMemory: true}, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, "Options.UnifiedMemory true",
			"TF_GPU_ALLOCATOR"},
		{gpuopts.Options{UnifiedMemory: true}, []string{"TF_GPU_ALLOCATOR=cuda_malloc"}, "Options.UnifiedMemory true", `TF_GPU_ALLOCATOR is "cuda_malloc"`},
	}},
	{"`--visible-gpus`", "`CUDA_DEVICE_ORDER=FASTEST_FIRST`", []contradiction{
		{gpuopts.Options{VisibleGPUs: []int{1}}, []string{"CUDA_DEVICE_ORDER=FASTEST_FIRST"}, "Options.VisibleGPUs [1]", `CUDA_DEVICE_ORDER is "FASTEST_FIRST"`},
	}},
	{"`--xla`", "another level in `TF_XLA_FLAGS`", []contradiction{
		{gpuopts.Options{XLA: "off"}, []string{"TF_XLA_FLAGS=--tf_xla_auto_jit=2"}, "Options.XLA off", "TF_XLA_FLAGS"},
		{gpuopts.Options{XLA: "on-2"}, []string{"TF_XLA_FLAGS=--x --tf_xla_auto_jit=fusible"}, "Options.XLA on-2",
			"TF_XLA_FLAGS"},
	}},
	{"`--precision bf16`, `OneDNNSystemAllocator`, `OneDNNMath`", "`TF_ENABLE_ONEDNN_OPTS=0`", []contradiction{
		{gpuopts.Options{Precision: gpuopts.BFloat16}, []string{"TF_ENABLE_ONEDNN_OPTS=0"}, "Options.Precision bfloat16", `TF_ENABLE_ONEDNN_OPTS is "0"`},
		{gpuopts.Options{OneDNNSystemAllocator: true}, []string{"TF_ENABLE_ONEDNN_OPTS=false"}, "Options.OneDNNSystemAllocator true", `TF_ENABLE_ONEDNN_OPTS is "false"`},
		{gpuopts.Options{OneDNNMath: "bfloat16"}, []string{"TF_ENABLE_ONEDNN_OPTS=0"}, "Options.OneDNNMath bfloat16", `TF_ENABLE_ONEDNN_OPTS is "0"`},
	}},
	{"`GrapplerOff`", "`Precision`, `MemoryOptimization`, `Grappler`", []contradiction{
		{gpuopts.Options{GrapplerOff: true, Precision: gpuopts.BFloat16}, nil, "Options.GrapplerOff true",
			"Options.Precision bfloat16"},
		{gpuopts.Options{GrapplerOff: true, MemoryOptimization: "none"}, nil, "Options.GrapplerOff true",
			"Options.MemoryOptimization none"},
		{gpuopts.Options{GrapplerOff: true, Grappler: gpuopts.Grappler{Loops: "off"}}, nil, "Options.GrapplerOff true",
			"Options.Grappler.Loops off"},
		{gpuopts.Options{GrapplerOff: true, Grappler: gpuopts.Grappler{PruningOff: true}}, nil, "Options.GrapplerOff true",
			"Options.Grappler.PruningOff true"},
	}},
	{"`OneDNN: \"off\"`", "`BFloat16`, `OneDNNSystemAllocator`, `OneDNNMath`", []contradiction{
		{gpuopts.Options{OneDNN: "off", Precision: gpuopts.BFloat16}, nil, "Options.OneDNN off",
			"Options.Precision bfloat16"},
		{gpuopts.Options{OneDNN: "off", OneDNNSystemAllocator: true}, nil, "Options.OneDNN off",
			"Options.OneDNNSystemAllocator true"},
		{gpuopts.Options{OneDNN: "off", OneDNNMath: "bfloat16"}, nil, "Options.OneDNN off", "Options.OneDNNMath bfloat16"},
	}},
	{"any option that is a variable", "the variable with another value", []contradiction{
		{gpuopts.Options{OneDNN: "off"}, []string{"TF_ENABLE_ONEDNN_OPTS=1"}, "Options.OneDNN off", `TF_ENABLE_ONEDNN_OPTS is "1"`},
		{gpuopts.Options{OneDNNSystemAllocator: true}, []string{"TF_ONEDNN_USE_SYSTEM_ALLOCATOR=0"}, "Options.OneDNNSystemAllocator true", `TF_ONEDNN_USE_SYSTEM_ALLOCATOR is "0"`},
		{gpuopts.Options{OneDNNMath: "bfloat16"}, []string{"TF_SET_ONEDNN_FPMATH_MODE=F32"}, "Options.OneDNNMath bfloat16", `TF_SET_ONEDNN_FPMATH_MODE is "F32"`},
		{gpuopts.Options{Deterministic: true}, []string{"TF_DETERMINISTIC_OPS=0"}, "Options.Deterministic true", `TF_DETERMINISTIC_OPS is "0"`},
		{gpuopts.Options{LogLevel: "info"}, []string{"TF_CPP_MIN_LOG_LEVEL=2"}, "Options.LogLevel info", `TF_CPP_MIN_LOG_LEVEL is "2"`},
	}},
}

func TestConflicts(t *testing.T) {
	var rows [][]string
	for _, row := range conflicts {
		rows = append(rows, []string{row.setting, row.and})
		var said strings.Builder
		for _, c := range row.cases {
			_, err := c.options.Check(c.env)
			var conflict *option.Error
			if !assert.ErrorAs(t, err, &conflict, "%+v in %v", c.options, c.env) {
				continue
			}
			said.WriteString(err.Error())
			assert.ErrorContains(t, err, c.one)
			assert.ErrorContains(t, err, c.other)
			assert.NotEmpty(t, conflict.Fix)
			_, err = c.options.ConfigProto()
			assert.Equal(t, c.env == nil, err != nil, "%+v: options that exclude each other make no ConfigProto, the "+
				"environment is not looked at", c.options)
		}
		for _, name := range named.FindAllStringSubmatch(row.setting+row.and, -1) {
			assert.True(t, strings.Contains(strings.ToLower(said.String()), strings.ToLower(name[1])),
				"no case of %s and %s has %s", row.setting, row.and, name[1])
		}
	}
	assert.Equal(t, firstTwo(table(t, "setting", "and", "because")), rows,
		"rows of docs/reference/devices.md, and those that are tried")

	// Errors about several variables are joined.
	_, err := gpuopts.Options{MemoryGrowth: true, GPUAllocator: "BFC"}.Check([]string{"TF_FORCE_GPU_ALLOW_GROWTH=false",
		"TF_GPU_ALLOCATOR=cuda_malloc"})
	assert.ErrorContains(t, err, "TF_FORCE_GPU_ALLOW_GROWTH")
	assert.ErrorContains(t, err, "TF_GPU_ALLOCATOR")
}

// warned is a case of settings without effect.
type warned struct {
	options gpuopts.Options
	env     []string
	want    []string // the beginning of each warning
}

// warnings has one or more cases for each row of docs/reference/devices.md, identified by its first two
// cells.
var warnings = []struct {
	setting, with string
	cases         []warned
}{
	{"", "", []warned{ // no warnings
		{gpuopts.Options{MemoryGrowth: true}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=true", "TF_GPU_ALLOCATOR="}, nil},
		{gpuopts.Options{}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=true", "TF_GPU_ALLOCATOR=cuda_malloc_async",
			"TF_ENABLE_ONEDNN_OPTS=0"}, nil},
		{gpuopts.Options{MemoryFraction: 0.5}, []string{"TF_GPU_ALLOCATOR=memory_guard", "TF_DEVICE_MIN_SYS_MEMORY_IN_MB="},
			nil},
		{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, []string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB=512"}, nil},
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async", VirtualGPUs: [][]int{{}}}, nil, nil},
		{gpuopts.Options{XLA: "on-2"}, []string{"TF_XLA_FLAGS=--tf_xla_auto_jit=2"}, nil},
		{gpuopts.Options{XLA: "on-2"}, []string{"TF_XLA_FLAGS=--tf_xla_auto_jit=0"}, nil},
		{gpuopts.Options{IntraThreads: 4}, []string{"TF_NUM_INTRAOP_THREADS=4", "OMP_NUM_THREADS=4", "TF_VAR_secret=x"}, nil},
	}},
	{"`--memory-growth`", "cuda_malloc_async, also in `TF_GPU_ALLOCATOR`", []warned{
		{gpuopts.Options{GPUAllocator: "cuda_malloc_async", MemoryGrowth: true}, nil,
			[]string{"Options.MemoryGrowth true: cuda_malloc_async always takes memory as needed"}},
		{gpuopts.Options{MemoryGrowth: true}, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"},
			[]string{"Options.MemoryGrowth true: cuda_malloc_async"}},
	}},
	{"`TF_NUM_INTRAOP_THREADS`, `TF_NUM_INTEROP_THREADS`", "another number in `--intra-threads`, `--inter-threads`", []warned{
		{gpuopts.Options{IntraThreads: 4, InterThreads: 2}, []string{"TF_NUM_INTRAOP_THREADS=1", "TF_NUM_INTEROP_THREADS=1"},
			[]string{"TF_NUM_INTRAOP_THREADS: 1 is not used: Options.IntraThreads 4", "TF_NUM_INTEROP_THREADS: 1 is not used"}},
	}},
	{"`--visible-gpus`", "`CUDA_VISIBLE_DEVICES`", []warned{
		{gpuopts.Options{VisibleGPUs: []int{1}}, []string{"CUDA_VISIBLE_DEVICES=2,3"}, []string{`Options.VisibleGPUs [1]: CUDA_VISIBLE_DEVICES is "2,3"`}},
	}},
	{"`TF_FORCE_GPU_ALLOW_GROWTH`", "a value other than `true` and `false`, such as 1", []warned{
		{gpuopts.Options{}, []string{"TF_FORCE_GPU_ALLOW_GROWTH=1"},
			[]string{"TF_FORCE_GPU_ALLOW_GROWTH: TensorFlow accepts only true and false"}},
	}},
	{"`TF_GPU_ALLOCATOR`", "an unknown value", []warned{
		{gpuopts.Options{GPUAllocator: "BFC"}, []string{"TF_GPU_ALLOCATOR=bfc"},
			[]string{"TF_GPU_ALLOCATOR: TensorFlow accepts only cuda_malloc_async, cuda_malloc, memory_guard"}},
	}},
	{"`TF_DEVICE_MIN_SYS_MEMORY_IN_MB`", "a value that is not a whole number of at least 0", []warned{
		{gpuopts.Options{MemoryFraction: 0.5}, []string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB=1GiB"},
			[]string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB: TensorFlow accepts only a whole number of MiB"}},
		{gpuopts.Options{}, []string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB=-1"}, []string{`ignores "-1"`}},
	}},
}

func TestWarnings(t *testing.T) {
	var rows [][]string
	for _, row := range warnings {
		if row.setting != "" {
			rows = append(rows, []string{row.setting, row.with})
		}
		for _, c := range row.cases {
			got, err := c.options.Check(c.env)
			require.NoError(t, err, "%+v in %v", c.options, c.env)
			if assert.Len(t, got, len(c.want), "%+v in %v: %v", c.options, c.env, got) {
				for i, w := range got {
					assert.Contains(t, w.Error(), c.want[i])
				}
			}
		}
	}
	assert.Equal(t, firstTwo(table(t, "setting", "with", "what happens")), rows,
		"rows of docs/reference/devices.md, and those that are tried")
}

// named matches Go options and variables in a cell of docs/reference/devices.md.
var named = regexp.MustCompile("`([A-Z]\\w+)")

// table returns the table of docs/reference/devices.md with this header.
func table(t *testing.T, header ...string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/devices.md")
	require.NoError(t, err)
	for _, found := range testkit.Tables(string(text)) {
		if slices.Equal(found.Header, header) {
			return found.Rows
		}
	}
	t.Fatalf("docs/reference/devices.md has no table of %q", header)
	return nil
}

func firstTwo(rows [][]string) (two [][]string) {
	for _, row := range rows {
		two = append(two, row[:2])
	}
	return two
}

// getenv returns the first of two entries for a variable.
func TestCheckTakesTheFirst(t *testing.T) {
	_, err := gpuopts.Options{MemoryGrowth: true}.Check([]string{"TF_FORCE_GPU_ALLOW_GROWTH=true", "TF_FORCE_GPU_ALLOW_GROWTH=false"})
	assert.NoError(t, err)
}

// docs/reference/devices.md mentions every option and every variable.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/devices.md")
	require.NoError(t, err)
	document := string(text)
	for name := range fields(reflect.TypeFor[gpuopts.Options]()) {
		name, _, _ = strings.Cut(name, ".") // all switches of Grappler share a line
		assert.Regexp(t, "`"+name+"[:`]", document)
	}
	for _, c := range environments {
		variables, err := c.options.Environment()
		require.NoError(t, err)
		for _, v := range variables {
			assert.Contains(t, document, "`"+v.Name)
		}
	}
}

// Check depends only on its arguments.
func TestCheckIsPure(t *testing.T) {
	t.Setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
	t.Setenv("TF_ENABLE_ONEDNN_OPTS", "1")
	o := gpuopts.Options{MemoryGrowth: true, OneDNN: "off"}
	_, err := o.Check(nil)
	assert.NoError(t, err)
	assert.Equal(t, "1", os.Getenv("TF_ENABLE_ONEDNN_OPTS"))
}
