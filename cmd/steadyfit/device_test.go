package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// parseDevice parses and applies device flags, and returns the printed text. None of the flags
// may need a variable that is not set, since the process would restart itself.
func parseDevice(t *testing.T, line string) (o gpuopts.Options, printed string, err error) {
	t.Helper()
	s := newSettings()
	cmd := newEvaluate(s)
	s.register(cmd)
	if err := cmd.ParseFlags(strings.Fields(line)); err != nil {
		return o, "", usagef("%w", err)
	}
	s.given = cmd.Flags().Changed
	var out strings.Builder
	err = s.prepareProcess(&out)
	return s.Session.Device, out.String(), err
}

func TestDeviceFlags(t *testing.T) {
	// bf16 contradicts a variable that turns oneDNN off.
	t.Setenv("TF_ENABLE_ONEDNN_OPTS", "1")
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	t.Setenv("TF_DETERMINISTIC_OPS", "true")
	for line, want := range map[string]gpuopts.Options{
		"":                                        {},
		"--intra-threads 2 --inter-threads 1":     {IntraThreads: 2, InterThreads: 1},
		"--precision fp32":                        {},
		"--precision bf16":                        {Precision: gpuopts.BFloat16},
		"--precision fp16":                        {Precision: gpuopts.Float16},
		"--xla":                                   {XLA: "on-2"},
		"--xla=false":                             {XLA: "off"},
		"--memory-growth":                         {MemoryGrowth: true},
		"--memory-growth=true":                    {MemoryGrowth: true},
		"--memory-growth=false":                   {},
		"--gpu-memory-fraction 0.5":               {MemoryFraction: 0.5},
		"--gpu-memory-limit 2GiB":                 {VirtualGPUs: [][]int{{2048}}},
		"--gpu-memory-limit 2GiB,512MiB":          {VirtualGPUs: [][]int{{2048}, {512}}},
		"--gpu-allocator bfc":                     {GPUAllocator: "BFC"},
		"--gpu-allocator cuda_malloc_async":       {GPUAllocator: "cuda_malloc_async"},
		"--visible-gpus 1,0":                      {VisibleGPUs: []int{1, 0}},
		"--deterministic":                         {Deterministic: true},
		"--memory-growth --gpu-memory-limit 1GiB": {MemoryGrowth: true, VirtualGPUs: [][]int{{1024}}},
	} {
		got, _, err := parseDevice(t, line)
		require.NoError(t, err, line)
		assert.Equal(t, want, got, line)
	}
}

// If a requested GPU is missing and others exist, that is also an error of the environment.
func TestMissingGPU(t *testing.T) {
	said := &tfbind.Error{Op: "load", Code: "INVALID_ARGUMENT",
		Message: "'visible_device_list' listed an invalid Device id '3' but visible device count is 1"}
	err := fmt.Errorf("%w: %w", session.ErrNoGPU, said)
	assert.Equal(t, exitEnvironment, exitCode(err))
	assert.Contains(t, message(err), "steadyfit doctor --gpu")
}
