package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/gpu"
	"steadyfit/internal/gpu/gputest"
	"steadyfit/tfbind"
)

// The driver is queried only if there is a GPU, and not after Close.
func TestGPUBytes(t *testing.T) {
	if !gputest.Child(t, "-DNEW") {
		return
	}
	cpu, card := tfbind.Device{Type: "CPU"}, tfbind.Device{Type: "GPU"}
	require.Nil(t, newGPUMeter([]tfbind.Device{cpu}))
	s := &Session{gpu: newGPUMeter([]tfbind.Device{cpu, card})}
	bytes, ok := s.GPUBytes()
	require.True(t, ok)
	require.EqualValues(t, 7<<20, bytes)

	require.NoError(t, s.Close())
	bytes, ok = s.GPUBytes()
	require.False(t, ok)
	require.Zero(t, bytes)
}

// Without a driver, GPUBytes reports false.
func TestGPUBytesNotTold(t *testing.T) {
	driver, _ := gpu.Open()
	require.NoError(t, driver.Close())
	if driver.Why() == "" {
		t.Skip("this machine has a driver of NVIDIA; the test is of one without")
	}
	s := &Session{gpu: newGPUMeter([]tfbind.Device{{Type: "GPU"}})}
	_, ok := s.GPUBytes()
	require.False(t, ok)
	require.NoError(t, s.Close())
}
