package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"steadyfit/memory"
)

type handle uintptr

type status uint32

const (
	success          status = 0
	noPermission     status = 4
	insufficientSize status = 7
	driverNotLoaded  status = 9
)

func (s status) Error() string { return fmt.Sprintf("NVML status %d", uint32(s)) }

// Structs that NVML fills in, in C's layout on 64-bit machines (internal/testkit/testdata/nvml.c).
type (
	// memoryInfo is nvmlMemory_v2_t. The caller sets version to 2<<24 plus the size.
	memoryInfo struct {
		version                     uint32
		total, reserved, free, used uint64
	}
	// processInfo is nvmlProcessInfo_v2_t.
	processInfo struct {
		pid                          uint32
		used                         uint64
		gpuInstance, computeInstance uint32
	}
)

// functions has the functions of NVML. Drivers have them since version 510.
type functions struct {
	init        func() status
	errorString func(status) string
	count       func(n *uint32) status
	device      func(index uint32, into *handle) status
	name        func(d handle, text *byte, size uint32) status
	memory      func(d handle, into *memoryInfo) status
	processes   func(d handle, n *uint32, into *processInfo) status
}

// symbols returns the functions by name. Version 3 of the list of processes is not used, since
// drivers 535.43 to 535.86 write larger entries past the end of the caller's buffer (nvitop#79,
// #89).
func (f *functions) symbols() map[string]any {
	return map[string]any{
		"nvmlInit_v2":                             &f.init,
		"nvmlErrorString":                         &f.errorString,
		"nvmlDeviceGetCount_v2":                   &f.count,
		"nvmlDeviceGetHandleByIndex_v2":           &f.device,
		"nvmlDeviceGetName":                       &f.name,
		"nvmlDeviceGetMemoryInfo_v2":              &f.memory,
		"nvmlDeviceGetComputeRunningProcesses_v2": &f.processes,
	}
}

func (d *Driver) open(f *functions) error {
	d.functions = f
	switch s := f.init(); s {
	case success:
	case driverNotLoaded:
		d.why = "NVIDIA's driver is not loaded, or this container has no access to a GPU"
		return nil
	default:
		d.why = "NVML cannot be started: " + f.errorString(s)
		return f.failed("NVML cannot be started", s)
	}
	var count uint32
	if s := f.count(&count); s != success {
		d.why = "NVML cannot count the GPUs: " + f.errorString(s)
		return f.failed("NVML cannot count the GPUs", s)
	}
	var failed []error
	for i := range count {
		var device handle
		switch s := f.device(i, &device); s {
		case success:
			d.add(device, fmt.Sprint(i))
		case noPermission: // the control group denies access to this GPU
		default:
			failed = append(failed, f.failed(fmt.Sprintf("GPU %d does not answer", i), s))
		}
	}
	if len(d.gpus) == 0 {
		d.why = "the driver has no GPU that this process may use"
	}
	return errors.Join(failed...)
}

func (f *functions) failed(what string, s status) error {
	return fmt.Errorf("%s: %s (%w); check the output of nvidia-smi", what, f.errorString(s), s)
}

func (d *Driver) add(device handle, id string) {
	g := GPU{ID: id}
	name := make([]byte, 96) // NVML_DEVICE_NAME_V2_BUFFER_SIZE
	if d.name(device, &name[0], uint32(len(name))) == success {
		name, _, _ = bytes.Cut(name, []byte{0})
		g.Name = string(name)
	}
	s := source{driver: d}
	if g.Used = s.used(device); g.Used.OK {
		g.Memory = amount(s.info.total)
	}
	d.gpus, d.devices = append(d.gpus, g), append(d.devices, device)
}

// amount converts a number of bytes. All ones mean NVML_VALUE_NOT_AVAILABLE.
func amount(bytes uint64) memory.Reading {
	if bytes > math.MaxInt64 {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(bytes))
}

// used reads the memory of a device, and returns the part in use.
func (s *source) used(device handle) memory.Reading {
	s.info = memoryInfo{version: 2<<24 | uint32(unsafe.Sizeof(s.info))}
	if s.driver.memory(device, &s.info) != success {
		return memory.Reading{}
	}
	return amount(s.info.used)
}

// memory returns the memory of a process. A context takes memory, so 0 means unknown.
func (p processInfo) memory() memory.Reading {
	if p.used == 0 {
		return memory.Reading{}
	}
	return amount(p.used)
}

const most = 1 << 16

// running returns the processes on a device, in the memory of s.list if possible. ok is false if the
// device does not report them. running retries, since processes may start between two calls.
func (s *source) running(device handle) (all []processInfo, ok bool) {
	all = s.list[:cap(s.list)]
	if len(all) == 0 {
		all = make([]processInfo, 16)
	}
	for range 5 {
		s.room = uint32(len(all))
		switch answer := s.driver.processes(device, &s.room, &all[0]); {
		case answer == success && int(s.room) <= len(all):
			return all[:s.room], true
		case answer != insufficientSize || s.room > most:
			return all[:0], false
		}
		all = make([]processInfo, max(2*len(all), 2*int(s.room)))
	}
	return all[:0], false
}
