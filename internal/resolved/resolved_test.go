package resolved_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/native"
	"steadyfit/internal/resolved"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const cpu0, gpu0 = "/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"

func TestText(t *testing.T) {
	host := tfbind.Device{Name: cpu0, Type: "CPU", MemoryBytes: 256 << 20}
	card := tfbind.Device{Name: gpu0, Type: "GPU", MemoryBytes: 8 << 30}
	pool := map[string]native.Use{"mklcpu": {Peak: memory.Known(1572864)}}
	on := map[string]int{cpu0: 200}
	var text strings.Builder
	for _, e := range []resolved.Settings{
		{},
		{TensorFlow: "2.21.0", Devices: []tfbind.Device{host}},
		{TensorFlow: "2.21.0", Devices: []tfbind.Device{host}, Untraced: "training has state in\nno variable"},
		{TensorFlow: "2.21.0", Devices: []tfbind.Device{host}, Step: &native.Trace{}},
		{TensorFlow: "2.21.0", Devices: []tfbind.Device{host}, Step: &native.Trace{
			Devices: on, Matrix: map[tfbind.DType]int{tfbind.Float32: 8}, OneDNN: 8, Allocators: map[string]native.Use{"cpu": {}},
		}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{
			Devices: on, Matrix: map[tfbind.DType]int{tfbind.Float32: 2, tfbind.BFloat16: 6}, Casts: 11, OneDNN: 1, Allocators: pool,
		}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{
			Devices: on, Matrix: map[tfbind.DType]int{tfbind.Float64: 1, tfbind.Float32: 2, tfbind.Float16: 3}, Casts: 1,
		}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{Devices: on, Floating: map[tfbind.DType]int{tfbind.Float32: 5}}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{Devices: on, XLAClusters: 1}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{Devices: on, Matrix: map[tfbind.DType]int{tfbind.Float32: 1}, XLAClusters: 4}},
		{Devices: []tfbind.Device{host}, StepsPerExecution: 50, StepsSignature: "train_n", Step: &native.Trace{Devices: on, Matrix: map[tfbind.DType]int{tfbind.Float32: 8}}},
		{Devices: []tfbind.Device{host, card}},
		{Devices: []tfbind.Device{host, card}, Unlimited: "cuda_malloc_async"},
		{Devices: []tfbind.Device{host, card}, Step: &native.Trace{
			Devices: map[string]int{cpu0: 1, gpu0: 250}, Matrix: map[tfbind.DType]int{tfbind.Float16: 3},
			Allocators: map[string]native.Use{"GPU_0_bfc": {Peak: memory.Known(1 << 30)}, "gpu_host_bfc": {}},
		}},
	} {
		text.WriteString("resolved settings: " + e.String() + "\n")
	}
	golden(t, "testdata/resolved.txt", text.String())
}

// golden compares a text with a file. If they differ, it writes the text to a file beside it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to make the file")
	if string(want) != got {
		require.NoError(t, os.WriteFile(path+".got", []byte(got), 0o644))
	}
	require.Equal(t, string(want), got, "see %s.got", path)
}

func TestMissing(t *testing.T) {
	host := []tfbind.Device{{Name: cpu0, Type: "CPU"}}
	both := []tfbind.Device{host[0], {Name: gpu0, Type: "GPU"}}
	on := map[string]int{cpu0: 200}
	bf16, fp16, compiled := gpuopts.Options{Precision: gpuopts.BFloat16}, gpuopts.Options{Precision: gpuopts.Float16CPU}, gpuopts.Options{XLA: "on-2"}
	growth := gpuopts.Options{MemoryGrowth: true}
	matrix := map[tfbind.DType]int{tfbind.Float32: 8}
	for name, c := range map[string]struct {
		effects resolved.Settings
		options gpuopts.Options
		want    []string // a part of each warning
	}{
		"nothing asked":                         {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, Matrix: matrix}}, gpuopts.Options{}, nil},
		"not traced":                            {resolved.Settings{Devices: host}, bf16, nil},
		"an executor without traces":            {resolved.Settings{Devices: host, Step: &native.Trace{}}, bf16, nil},
		"bfloat16":                              {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, Matrix: map[tfbind.DType]int{tfbind.BFloat16: 1}}}, bf16, nil},
		"no bfloat16, and no oneDNN":            {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, Matrix: matrix}}, bf16, []string{"Options.Precision bfloat16: nothing ran in bfloat16: only oneDNN computes in it"}},
		"no bfloat16":                           {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, Matrix: matrix, OneDNN: 8}}, bf16, []string{"nothing ran in bfloat16: "}},
		"bfloat16 inside of clusters":           {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, XLAClusters: 1, Casts: 2}}, bf16, nil},
		"float16 in values alone":               {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, Matrix: matrix, Casts: 20}}, fp16, []string{"Options.Precision float16-cpu: no matrix operation returned float16"}},
		"nothing to rewrite":                    {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on}}, fp16, []string{"has no matrix operations"}},
		"compiled, several steps per execution": {resolved.Settings{Devices: host, StepsPerExecution: 4, StepsSignature: "train_n", Step: &native.Trace{Devices: on}}, compiled, nil},
		"bfloat16, several steps per execution": {resolved.Settings{Devices: host, StepsPerExecution: 4, StepsSignature: "train_n", Step: &native.Trace{Devices: on, Matrix: matrix}}, bf16, nil},
		"compiled":                              {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, XLAClusters: 1}}, compiled, nil},
		"nothing compiled":                      {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on}}, compiled, []string{"Options.XLA on-2: nothing was compiled"}},
		"growth without a GPU":                  {resolved.Settings{Devices: host}, growth, []string{"Options.MemoryGrowth true: it has no effect: TensorFlow has no GPU here, only CPU"}},
		"growth":                                {resolved.Settings{Devices: both, Step: &native.Trace{Devices: map[string]int{cpu0: 3, gpu0: 9}}}, growth, nil},
		"growth of what is not used":            {resolved.Settings{Devices: both, Step: &native.Trace{Devices: on}}, growth, []string{"Options.MemoryGrowth true: no operation ran on a GPU"}},
		"a GPU that nothing runs on":            {resolved.Settings{Devices: both, Step: &native.Trace{Devices: on}}, gpuopts.Options{VisibleGPUs: []int{0}}, []string{"Options.VisibleGPUs [0]: no operation ran on a GPU"}},
		"a GPU that nobody asked for":           {resolved.Settings{Devices: both, Step: &native.Trace{Devices: on}}, gpuopts.Options{}, nil},
		"a GPU of which nothing is known":       {resolved.Settings{Devices: both}, growth, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.effects.Missing(c.options)
			require.Len(t, got, len(c.want), "%v", got)
			for i, text := range c.want {
				assert.Contains(t, got[i].Error(), text)
			}
		})
	}
}
