package session

import (
	"errors"
	"fmt"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/contract"
	"steadyfit/internal/gpu"
	"steadyfit/internal/resolved"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// Usage returns the number of native tensors in this process and the memory of this process on GPUs,
// as reported by NVIDIA's driver: TensorFlow's pools, CUDA contexts, code,
// workspaces, and other sessions. Some containers hide processes from the driver. The result is then the
// memory in use on all visible GPUs. It is unknown if there is no GPU or the driver reports nothing.
func (s *Session) Usage() (tensors *int64, used memory.Reading) {
	live := tfbind.Live().Tensors
	tensors = &live
	if s.gpu == nil {
		devices, err := s.tf.Devices()
		if s.meterGPU(devices); err != nil || s.gpu == nil {
			return tensors, memory.Reading{}
		}
	}
	return tensors, s.gpu.Read()
}

// meterGPU opens the driver if there is a GPU. steadyfit doctor reports problems of the driver.
func (s *Session) meterGPU(devices []tfbind.Device) {
	if resolved.HasGPU(devices) {
		driver, _ := gpu.Open()
		s.gpu = driver.Meter(0)
	}
}

// Resolved returns the settings that TensorFlow uses, as read back from TensorFlow. The result prints as one line,
// and its method Missing returns a warning for each option without effect.
func (s *Session) Resolved() (r resolved.Settings, err error) {
	if r.Devices, err = s.tf.Devices(); err != nil {
		return r, err
	}
	info, err := tfbind.Load("")
	r.TensorFlow = info.Version
	return r, err
}

// ResolvePrecision replaces gpuopts.Float16 by Float16GPU or Float16CPU, depending on
// TensorFlow's devices, which it therefore sets up. warning reports that there is no GPU, so
// that float16 is slow. ResolvePrecision ignores all other precisions.
func ResolvePrecision(o *gpuopts.Options) (warning *option.Error, err error) {
	if o.Precision != gpuopts.Float16 {
		return nil, nil
	}
	plain := *o
	plain.Precision = ""
	devices, err := devicesOf(plain)
	switch {
	case err != nil:
		return nil, option.Errorf("{Options.Precision %s}: looking for a GPU: %w", gpuopts.Float16, err)
	case resolved.HasGPU(devices):
		o.Precision = gpuopts.Float16GPU
		return nil, nil
	}
	o.Precision = gpuopts.Float16CPU
	return &option.Error{Option: "Options.Precision", Value: gpuopts.Float16,
		Reason: fmt.Sprintf("%v, only %s, and emulates float16 there with float32, which is slow", ErrNoGPU,
			strings.Join(resolved.ShortNames(devices), ", ")),
		Fix: "use {Options.Precision bfloat16}"}, nil
}

// devicesOf returns TensorFlow's devices.
func devicesOf(o gpuopts.Options) ([]tfbind.Device, error) {
	config, err := o.ConfigProto()
	if err != nil {
		return nil, err
	}
	if err := settle(o, config); err != nil {
		return nil, err
	}
	s, err := tfbind.NewSession(nil, config)
	if err != nil {
		return nil, gpuError(o, err)
	}
	devices, err := s.Devices()
	return devices, errors.Join(err, s.Close())
}

// gpuError explains TensorFlow's error for a new session: with options that ask for a GPU, it is ErrNoGPU.
func gpuError(o gpuopts.Options, err error) error {
	asks, _ := o.ForGPU()
	if err == nil || len(asks) == 0 || errors.Is(err, ErrOutOfMemory) {
		return err
	}
	return contract.Mark(option.Errorf("{"+asks[0]+"} asks for a GPU that TensorFlow cannot use: %w", err), ErrNoGPU)
}
