package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/option"
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

func TestDeviceFlagsRefuse(t *testing.T) {
	for _, c := range []struct {
		line string
		env  [2]string
		says []string
	}{
		{line: "--precision fp8", says: []string{"--precision", "expected fp32, bf16 or fp16"}},
		{line: "--gpu-allocator malloc", says: []string{"--gpu-allocator", "expected bfc or cuda_malloc_async"}},
		{line: "--gpu-memory-limit much", says: []string{"--gpu-memory-limit", "expected a size"}},
		{line: "--gpu-memory-limit 1000", says: []string{"--gpu-memory-limit", "in MiB"}},
		{line: "--memory-growth=some", says: []string{"--memory-growth", "invalid syntax"}},
		{line: "--gpu-memory-fraction 2", says: []string{"--gpu-memory-fraction 2: expected"}},
		{line: "--visible-gpus 0,0", says: []string{"--visible-gpus: expected each index once"}},
		{line: "--visible-gpus 0,1 --gpu-memory-limit 1GiB", says: []string{"one limit for each of the 2 visible GPUs"}},
		{line: "--memory-growth --gpu-memory-fraction 1",
			says: []string{"--memory-growth: conflicts with --gpu-memory-fraction 1: ", "remove one of them"}},
		{line: "--gpu-memory-limit 1GiB --gpu-memory-fraction 0.5",
			says: []string{"--gpu-memory-limit: conflicts with --gpu-memory-fraction 0.5"}},
		{line: "--gpu-memory-limit 1GiB --gpu-allocator cuda_malloc_async",
			says: []string{"--gpu-allocator cuda_malloc_async: conflicts with --gpu-memory-limit: only BFC has a limit"}},
		{line: "--gpu-memory-limit 1GiB", env: [2]string{"TF_GPU_ALLOCATOR", "cuda_malloc_async"}, says: []string{`--gpu-memory-limit: TF_GPU_ALLOCATOR is "cuda_malloc_async"`, "unset it"}},
		{line: "--memory-growth", env: [2]string{"TF_FORCE_GPU_ALLOW_GROWTH", "false"}, says: []string{`--memory-growth: TF_FORCE_GPU_ALLOW_GROWTH is "false" in the environment`, "unset it"}},
		{line: "--gpu-allocator bfc", env: [2]string{"TF_GPU_ALLOCATOR", "cuda_malloc_async"}, says: []string{`--gpu-allocator bfc: TF_GPU_ALLOCATOR is "cuda_malloc_async"`}},
		{line: "--precision bf16", env: [2]string{"TF_ENABLE_ONEDNN_OPTS", "0"}, says: []string{`--precision bf16: TF_ENABLE_ONEDNN_OPTS is "0"`}},
		{line: "--xla", env: [2]string{"TF_XLA_FLAGS", "--tf_xla_auto_jit=-1"}, says: []string{"--xla: TF_XLA_FLAGS is"}},
		{line: "--visible-gpus 0", env: [2]string{"CUDA_DEVICE_ORDER", "FASTEST_FIRST"}, says: []string{`--visible-gpus: CUDA_DEVICE_ORDER is "FASTEST_FIRST"`}},
		{line: "--deterministic", env: [2]string{"TF_DETERMINISTIC_OPS", "0"}, says: []string{`--deterministic: TF_DETERMINISTIC_OPS is "0"`}},
	} {
		t.Run(c.line, func(t *testing.T) {
			t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
			if c.env[0] != "" {
				t.Setenv(c.env[0], c.env[1])
			}
			_, _, err := parseDevice(t, c.line)
			require.Error(t, err)
			assert.Equal(t, exitUsage, exitCode(err))
			for _, text := range c.says {
				assert.Contains(t, option.Text(err, flagName), text)
			}
		})
	}
}

func TestDeviceWarnings(t *testing.T) {
	t.Setenv("TF_NUM_INTRAOP_THREADS", "4")
	_, printed, err := parseDevice(t, "--intra-threads 1")
	require.NoError(t, err)
	assert.Equal(t, `steadyfit: warning: TF_NUM_INTRAOP_THREADS: 4 is not used: --intra-threads 1 overrides it (process_util.cc, local_device.cc)
`, printed)
}

// If a requested GPU is missing and others exist, that is also an error of the environment.
func TestMissingGPU(t *testing.T) {
	said := &tfbind.Error{Op: "load", Code: "INVALID_ARGUMENT",
		Message: "'visible_device_list' listed an invalid Device id '3' but visible device count is 1"}
	err := fmt.Errorf("%w: %w", session.ErrNoGPU, said)
	assert.Equal(t, exitEnvironment, exitCode(err))
	assert.Contains(t, message(err), "steadyfit doctor --gpu")
}
