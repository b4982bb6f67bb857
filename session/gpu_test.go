package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/gpu"
	"steadyfit/internal/testkit"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// The driver is queried only if there is a GPU, and not after Close.
func TestGPUUsage(t *testing.T) {
	if !testkit.NVMLChild(t, "-DNEW") {
		return
	}
	cpu, card := tfbind.Device{Type: "CPU"}, tfbind.Device{Type: "GPU"}
	s := &Session{}
	s.meterGPU([]tfbind.Device{cpu})
	require.Nil(t, s.gpu)
	s.meterGPU([]tfbind.Device{cpu, card})
	_, used := s.Usage()
	require.Equal(t, memory.Known(7<<20), used)
	require.NoError(t, s.Close())
}

// Without a driver, the GPU memory is unknown.
func TestUsageWithoutDriver(t *testing.T) {
	driver, _ := gpu.Open()
	if driver.Why() == "" {
		t.Skip("this machine has a driver of NVIDIA; the test is of one without")
	}
	s := &Session{}
	s.meterGPU([]tfbind.Device{{Type: "GPU"}})
	_, used := s.Usage()
	require.False(t, used.OK)
	require.NoError(t, s.Close())
}
