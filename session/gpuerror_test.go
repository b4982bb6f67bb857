package session

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/gpuopts"
	"steadyfit/tfbind"
)

// An error of a new session is about a missing GPU only if the options ask for one.
func TestGPUError(t *testing.T) {
	visible := gpuopts.Options{VisibleGPUs: []int{3}}
	missing := error(&tfbind.Error{Op: "session", Code: "INVALID_ARGUMENT",
		Message: "'visible_device_list' listed an invalid Device id '3' but visible device count is 1"})
	err := gpuError(visible, missing)
	assert.ErrorIs(t, err, ErrNoGPU)
	assert.ErrorIs(t, err, missing)
	assert.EqualError(t, err, "Options.VisibleGPUs [3] asks for a GPU that TensorFlow cannot use: "+missing.Error())
	assert.Equal(t, missing, gpuError(gpuopts.Options{MemoryGrowth: true}, missing), "set through Options.Config")
	assert.Equal(t, ErrOutOfMemory, gpuError(visible, ErrOutOfMemory))
	assert.NoError(t, gpuError(visible, nil))
}
