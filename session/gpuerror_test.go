package session

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/gpuopts"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// gpuError recognizes the errors for missing GPUs. The texts are from device_id_utils.cc and
// gpu_device.cc of TensorFlow 2.21.
func TestGPUError(t *testing.T) {
	visible, limits := gpuopts.Options{VisibleGPUs: []int{3}}, gpuopts.Options{VirtualGPUs: [][]int{{512}, {512}}}
	const noSuch = "'visible_device_list' listed an invalid Device id '3' but visible device count is 1"
	const notEnough = "Not enough GPUs to create virtual devices. num_gpus_to_use: 1 #virtual_devices: 2"
	for _, c := range []struct {
		options  gpuopts.Options
		code     string
		text     string
		missing  bool
		conflict bool
		says     string
	}{
		{visible, "INVALID_ARGUMENT", noSuch, true, false,
			"Options.VisibleGPUs [3] asks for a GPU that TensorFlow does not have: load: INVALID_ARGUMENT: " + noSuch},
		{limits, "UNKNOWN", notEnough, true, false, "Options.VirtualGPUs [[512] [512]] asks for a GPU that TensorFlow " +
			"does not have"},
		{visible, "INVALID_ARGUMENT", "visible_device_list contained a duplicate entry: 0,0", false, false, "duplicate"},
		{visible, "NOT_FOUND", "Could not find SavedModel .pb", false, false, "Could not find"},
		{gpuopts.Options{MemoryGrowth: true}, "INVALID_ARGUMENT", noSuch, false, false, noSuch}, // set through Options.Config
	} {
		err := error(&tfbind.Error{Op: "load", Code: c.code, Message: c.text})
		got := gpuError(c.options, fmt.Errorf("open: %w", err))
		assert.Equal(t, c.missing, errors.Is(got, ErrNoGPU), c.text)
		assert.Equal(t, c.conflict, errors.As(got, new(*option.Error)), c.text)
		assert.ErrorContains(t, got, c.text)
		assert.ErrorContains(t, gpuError(c.options, err), c.says)
		if !c.conflict {
			assert.ErrorIs(t, got, err)
		}
	}
	assert.NoError(t, gpuError(visible, nil))
	assert.Equal(t, ErrNoGPU, gpuError(visible, ErrNoGPU))
}
