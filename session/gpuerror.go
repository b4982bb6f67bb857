package session

import (
	"errors"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/mark"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// gpuError explains TensorFlow's error for a new session. It returns ErrNoGPU if a requested
// GPU is missing, an *option.Error if VirtualGPUs has the wrong length, and all other errors
// unchanged.
func gpuError(o gpuopts.Options, err error) error {
	var failed *tfbind.Error
	asks, _ := o.ForGPU()
	if len(asks) == 0 || !errors.As(err, &failed) {
		return err
	}
	// The texts are from TensorFlow 2.21: xla/tsl/framework/device_id_utils.cc and
	// tensorflow/core/common_runtime/gpu/gpu_device.cc.
	says := func(text string) bool { return strings.Contains(failed.Message, text) }
	switch {
	case says("'visible_device_list' listed an invalid Device id"), says("Not enough GPUs to create virtual devices"):
		return mark.As(option.Errorf("{"+asks[0]+"} asks for a GPU that TensorFlow does not have: %w", err), ErrNoGPU)
	case len(o.VirtualGPUs) > 0 && says("The number of valid GPUs doesn't match"):
		return &option.Error{
			Option: "Options.VirtualGPUs", Value: o.VirtualGPUs, Err: err,
			Reason: "each visible GPU has its own limit: " + failed.Message,
			Fix:    "give a limit for each, or choose among the GPUs with {Options.VisibleGPUs}",
		}
	}
	return err
}
