package session

import (
	"testing"

	"github.com/stretchr/testify/require"

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
