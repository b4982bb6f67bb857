// Package resolved describes the settings that TensorFlow uses, as session.Session reads them back,
// and finds the options that have no effect.
package resolved

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// Settings has the settings that TensorFlow uses, as read back from TensorFlow.
type Settings struct {
	// TensorFlow is the version of the library.
	TensorFlow string
	// Devices are TensorFlow's devices. MemoryBytes of a GPU is the limit of its allocator.
	Devices []tfbind.Device
}

// String returns a one-line summary, such as "CPU; TensorFlow 2.21.0".
func (r Settings) String() string { return Devices(r.Devices) + "; TensorFlow " + r.TensorFlow }

// ErrNoGPU is session.ErrNoGPU.
var ErrNoGPU = errors.New("TensorFlow has no GPU here")

// Missing returns a warning for each option that has no effect because there is no GPU.
func (r Settings) Missing(o gpuopts.Options) (list []*option.Error) {
	if len(r.Devices) == 0 || HasGPU(r.Devices) {
		return nil
	}
	_, settings := o.ForGPU()
	for _, setting := range settings {
		list = append(list, option.New(setting, fmt.Sprintf("it has no effect: %v, only %s", ErrNoGPU,
			strings.Join(ShortNames(r.Devices), ", ")), ""))
	}
	return list
}

// HasGPU reports whether one of the devices is a GPU.
func HasGPU(devices []tfbind.Device) bool {
	return slices.ContainsFunc(devices, func(d tfbind.Device) bool { return d.Type == "GPU" })
}

// Devices lists devices by ShortNames, GPUs with their memory.
func Devices(devices []tfbind.Device) string {
	names := ShortNames(devices)
	for i, d := range devices {
		if d.Type == "GPU" {
			names[i] += fmt.Sprintf(" (up to %v)", memory.Bytes(d.MemoryBytes))
		}
	}
	return strings.Join(names, ", ")
}

// ShortNames returns device names without job and task, such as "GPU:0". The only CPU is "CPU".
func ShortNames(devices []tfbind.Device) []string {
	names := make([]string, len(devices))
	cpus := 0
	for i, d := range devices {
		_, name, _ := strings.Cut(d.Name, "device:")
		names[i] = cmp.Or(name, d.Name)
		if d.Type == "CPU" {
			cpus++
		}
	}
	if i := slices.Index(names, "CPU:0"); i >= 0 && cpus == 1 {
		names[i] = "CPU"
	}
	return names
}
