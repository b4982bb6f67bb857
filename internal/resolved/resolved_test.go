package resolved_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/dtype"
	"steadyfit/internal/native"
	"steadyfit/internal/resolved"
	"steadyfit/tfbind"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const cpu0, gpu0 = "/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"

func TestText(t *testing.T) {
	host := tfbind.Device{Name: cpu0, Type: "CPU", MemoryBytes: 256 << 20}
	card := tfbind.Device{Name: gpu0, Type: "GPU", MemoryBytes: 8 << 30}
	on := map[string]int{cpu0: 200}
	var text strings.Builder
	for _, e := range []resolved.Settings{
		{},
		{TensorFlow: "2.21.0", Devices: []tfbind.Device{host}},
		{TensorFlow: "2.21.0", Devices: []tfbind.Device{host}, Step: &native.Trace{}},
		{TensorFlow: "2.21.0", Devices: []tfbind.Device{host}, Step: &native.Trace{
			Devices: on, Matrix: map[dtype.DType]int{dtype.Float32: 8}, OneDNN: 8,
		}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{
			Devices: on, Matrix: map[dtype.DType]int{dtype.Float32: 2, dtype.BFloat16: 6}, Casts: 11, OneDNN: 1,
		}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{
			Devices: on, Matrix: map[dtype.DType]int{dtype.Float64: 1, dtype.Float32: 2, dtype.Float16: 3}, Casts: 1,
		}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{Devices: on}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{Devices: on, XLAClusters: 1}},
		{Devices: []tfbind.Device{host}, Step: &native.Trace{Devices: on, Matrix: map[dtype.DType]int{dtype.Float32: 1},
			XLAClusters: 4}},
		{Devices: []tfbind.Device{host, card}},
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
	bf16, fp16, compiled := gpuopts.Options{Precision: gpuopts.BFloat16}, gpuopts.Options{Precision: gpuopts.Float16CPU},
		gpuopts.Options{XLA: "on-2"}
	growth := gpuopts.Options{MemoryGrowth: true}
	matrix := map[dtype.DType]int{dtype.Float32: 8}
	for name, c := range map[string]struct {
		effects resolved.Settings
		options gpuopts.Options
		want    []string // a part of each warning
	}{
		"nothing asked": {resolved.Settings{Devices: host,
			Step: &native.Trace{Devices: on, Matrix: matrix}}, gpuopts.Options{}, nil},
		"not traced":                 {resolved.Settings{Devices: host}, bf16, nil},
		"an executor without traces": {resolved.Settings{Devices: host, Step: &native.Trace{}}, bf16, nil},
		"bfloat16": {resolved.Settings{Devices: host,
			Step: &native.Trace{Devices: on, Matrix: map[dtype.DType]int{dtype.BFloat16: 1}}}, bf16, nil},
		"no bfloat16": {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on, Matrix: matrix}}, bf16,
			[]string{"Options.Precision bfloat16: no matrix operation ran in bfloat16: "}},
		"bfloat16 inside of clusters": {resolved.Settings{Devices: host,
			Step: &native.Trace{Devices: on, XLAClusters: 1, Casts: 2}}, bf16, nil},
		"float16 in values alone": {resolved.Settings{Devices: host,
			Step: &native.Trace{Devices: on, Matrix: matrix, Casts: 20}}, fp16,
			[]string{"Options.Precision float16-cpu: no matrix operation ran in float16"}},
		"nothing to rewrite": {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on}}, fp16,
			[]string{"no matrix operation ran in float16"}},
		"compiled": {resolved.Settings{Devices: host,
			Step: &native.Trace{Devices: on, XLAClusters: 1}}, compiled, nil},
		"nothing compiled": {resolved.Settings{Devices: host, Step: &native.Trace{Devices: on}},
			compiled, []string{"Options.XLA on-2: nothing was compiled"}},
		"growth without a GPU": {resolved.Settings{Devices: host}, growth,
			[]string{"Options.MemoryGrowth true: it has no effect: TensorFlow has no GPU here, only CPU"}},
		"growth": {resolved.Settings{Devices: both,
			Step: &native.Trace{Devices: map[string]int{cpu0: 3, gpu0: 9}}}, growth, nil},
		"growth of what is not used": {resolved.Settings{Devices: both, Step: &native.Trace{Devices: on}}, growth,
			[]string{"Options.MemoryGrowth true: no operation ran on a GPU"}},
		"a GPU that nothing runs on": {resolved.Settings{Devices: both, Step: &native.Trace{Devices: on}},
			gpuopts.Options{VisibleGPUs: []int{0}}, []string{"Options.VisibleGPUs [0]: no operation ran on a GPU"}},
		"a GPU that nobody asked for": {resolved.Settings{Devices: both, Step: &native.Trace{Devices: on}},
			gpuopts.Options{}, nil},
		"a GPU of which nothing is known": {resolved.Settings{Devices: both}, growth, nil},
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
