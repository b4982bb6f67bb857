package session_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/gpu"
	"steadyfit/internal/native"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/session"
)

// A GPU with two limits appears as two devices with these limits. The first session of a
// process determines how TensorFlow uses GPUs, so this is the only test here that asks for
// GPUs.
func TestOnGPUVirtualDevices(t *testing.T) {
	driver, _ := gpu.Open()
	if driver.Why() != "" {
		t.Skipf("this needs a GPU: %s; `make test-gpu` runs it on a machine that has one", driver.Why())
	}
	if _, _, set := tfprocess.FirstSession(); set {
		t.Skip("this needs to be the first session of the process, as in `make test-gpu`")
	}
	// The limits are for one GPU. CUDA reads this variable at the first session.
	shown, _, _ := strings.Cut(os.Getenv("CUDA_VISIBLE_DEVICES"), ",")
	if shown == "" {
		shown = "0"
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", shown)

	const each = 512 * memory.MiB
	o := gpuopts.Options{VirtualGPUs: [][]int{{int(each / memory.MiB), int(each / memory.MiB)}}}
	model := builtin(t, "digits")
	s, err := session.OpenModel(context.Background(), model, session.Options{Device: o})
	if errors.Is(err, session.ErrNoGPU) {
		t.Skipf("this needs a TensorFlow that can use the GPU: %v; `make test-gpu` fetches one", err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()

	b := batches(t, digits(t), 32, 1)[0]
	e, err := s.Resolved()
	require.NoError(t, err)
	t.Log(e)
	var sizes []memory.Bytes
	for _, d := range e.Devices {
		if d.Type == "GPU" {
			sizes = append(sizes, memory.Bytes(d.MemoryBytes))
		}
	}
	assert.Equal(t, []memory.Bytes{each, each}, sizes)
	assert.Empty(t, e.Missing(o))

	metrics := make([]float64, len(s.TrainMetrics()))
	metadata, err := s.Trace(func() error { return s.Train(context.Background(), 0, b, metrics) })
	require.NoError(t, err)
	assert.Positive(t, metrics[0], "the loss")
	step, err := native.ReadTrace(metadata[0])
	require.NoError(t, err)
	peak := step.Allocators["GPU_0_bfc"].Peak
	assert.True(t, peak.OK, "operations on the first of the two: %v", step.Allocators)
	assert.Less(t, peak.Bytes, each)

	_, has := s.Usage()
	require.Equal(t, driver.Meter(0).Read().OK, has.OK)
	if has.OK {
		assert.Greater(t, has.Bytes, each, "a pool, and CUDA's context")
	}
}
