package resolved_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/resolved"
	"steadyfit/tfbind"
)

const cpu0, gpu0 = "/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"

func TestText(t *testing.T) {
	host := tfbind.Device{Name: cpu0, Type: "CPU", MemoryBytes: 256 << 20}
	card := tfbind.Device{Name: gpu0, Type: "GPU", MemoryBytes: 8 << 30}
	for want, devices := range map[string][]tfbind.Device{
		"CPU; TensorFlow 2.21.0":                        {host},
		"CPU, GPU:0 (up to 8.0 GiB); TensorFlow 2.21.0": {host, card},
	} {
		assert.Equal(t, want, resolved.Settings{TensorFlow: "2.21.0", Devices: devices}.String())
	}
}

func TestMissing(t *testing.T) {
	host := []tfbind.Device{{Name: cpu0, Type: "CPU"}}
	both := []tfbind.Device{host[0], {Name: gpu0, Type: "GPU"}}
	growth := gpuopts.Options{MemoryGrowth: true}
	assert.Empty(t, resolved.Settings{Devices: host}.Missing(gpuopts.Options{}))
	assert.Empty(t, resolved.Settings{Devices: both}.Missing(growth))
	got := resolved.Settings{Devices: host}.Missing(growth)
	require.Len(t, got, 1)
	assert.Contains(t, got[0].Error(), "Options.MemoryGrowth true: it has no effect: TensorFlow has no GPU here, only CPU")
}
