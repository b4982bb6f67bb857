package session

import (
	"errors"
	"fmt"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/tfbind"
)

// GPUError returns err, with which TensorFlow did not make a session with these options, as
// what it says of them: ErrNoGPU if a GPU that they ask for is not there while others are,
// and a *gpuopts.ConflictError if VirtualGPUs does not list as many as there are. All else,
// and nil, it returns as it is. Open does this by itself.
func GPUError(o gpuopts.Options, err error) error {
	var failed *tfbind.Error
	asks := o.AsksForGPU()
	if asks == "" || !errors.As(err, &failed) {
		return err
	}
	// The texts are those of xla/tsl/framework/device_id_utils.cc and of
	// tensorflow/core/common_runtime/gpu/gpu_device.cc.
	says := func(text string) bool { return strings.Contains(failed.Message, text) }
	switch {
	case says("'visible_device_list' listed an invalid Device id"), says("Not enough GPUs to create virtual devices"):
		return &missingGPU{asks, err}
	case len(o.VirtualGPUs) > 0 && says("The number of valid GPUs doesn't match"):
		return &gpuopts.ConflictError{
			One: fmt.Sprintf("Options.VirtualGPUs %v", o.VirtualGPUs), Other: "another number of GPUs",
			Why: "each visible GPU has its own limit: " + failed.Message, Fix: "give one for each, or choose among the GPUs with Options.VisibleGPUs",
		}
	}
	return err
}

// missingGPU is an ErrNoGPU where there are other GPUs.
type missingGPU struct {
	asks string // an option with its value
	err  error  // TensorFlow's
}

func (e *missingGPU) Error() string {
	return fmt.Sprintf("%s asks for a GPU that TensorFlow does not have: %v", e.asks, e.err)
}

func (e *missingGPU) Is(target error) bool { return target == ErrNoGPU }

func (e *missingGPU) Unwrap() error { return e.err }
