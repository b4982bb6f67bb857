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
	init, shutdown func() status
	errorString    func(status) string
	count          func(n *uint32) status
	device         func(index uint32, into *handle) status
	name           func(d handle, text *byte, size uint32) status
	memory         func(d handle, into *memoryInfo) status
	processes      func(d handle, n *uint32, into *processInfo) status
}

// symbols returns the functions by name. Version 3 of the list of processes is not used, since
// drivers 535.43 to 535.86 write larger entries past the end of the caller's buffer (nvitop#79,
// #89).
func (f *functions) symbols() map[string]any {
	return map[string]any{
		"nvmlInit_v2":                             &f.init,
		"nvmlShutdown":                            &f.shutdown,
		"nvmlErrorString":                         &f.errorString,
		"nvmlDeviceGetCount_v2":                   &f.count,
		"nvmlDeviceGetHandleByIndex_v2":           &f.device,
		"nvmlDeviceGetName":                       &f.name,
		"nvmlDeviceGetMemoryInfo_v2":              &f.memory,
		"nvmlDeviceGetComputeRunningProcesses_v2": &f.processes,
	}
}

type nvml struct {
	*functions
	devices []handle
}

func (d *Driver) open(f *functions) error {
	n := &nvml{functions: f}
	switch s := f.init(); s {
	case success:
	case driverNotLoaded:
		d.why = "NVIDIA's driver is not loaded, or this container has no access to a GPU"
		return nil
	default:
		d.why = "NVML cannot be started: " + f.errorString(s)
		return n.failed("NVML cannot be started", s)
	}
	var count uint32
	if s := f.count(&count); s != success {
		d.why = "NVML cannot count the GPUs: " + f.errorString(s)
		return errors.Join(n.failed("NVML cannot count the GPUs", s), n.close())
	}
	var failed []error
	for i := range count {
		var device handle
		switch s := f.device(i, &device); s {
		case success:
			d.add(n, device, fmt.Sprint(i))
		case noPermission: // the control group denies access to this GPU
		default:
			failed = append(failed, n.failed(fmt.Sprintf("GPU %d does not answer", i), s))
		}
	}
	if len(d.gpus) == 0 {
		d.why = "the driver has no GPU that this process may use"
		return errors.Join(append(failed, n.close())...)
	}
	d.nvml = n
	return errors.Join(failed...)
}

func (n *nvml) failed(what string, s status) error {
	return fmt.Errorf("%s: %s (%w); check the output of nvidia-smi", what, n.errorString(s), s)
}

func (d *Driver) add(n *nvml, device handle, id string) {
	g := GPU{ID: id}
	name := make([]byte, 96) // NVML_DEVICE_NAME_V2_BUFFER_SIZE
	if n.name(device, &name[0], uint32(len(name))) == success {
		name, _, _ = bytes.Cut(name, []byte{0})
		g.Name = string(name)
	}
	var b buffers
	b.nvml = n
	if g.Used = b.used(device); g.Used.OK {
		g.Memory = amount(b.info.total)
	}
	d.gpus = append(d.gpus, g)
	n.devices = append(n.devices, device)
}

// amount converts a number of bytes. All ones mean NVML_VALUE_NOT_AVAILABLE.
func amount(bytes uint64) memory.Reading {
	if bytes > math.MaxInt64 {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(bytes))
}

// close shuts NVML down for this driver; NVML counts initializations. The library stays loaded.
func (n *nvml) close() error {
	if s := n.shutdown(); s != success {
		return fmt.Errorf("%s (%w)", n.errorString(s), s)
	}
	return nil
}

// buffers are reused, so that a sample does not allocate them.
type buffers struct {
	nvml *nvml
	info memoryInfo
	room uint32
	list []processInfo
}

// used reads the memory of a device, and returns the part in use.
func (b *buffers) used(device handle) memory.Reading {
	b.info = memoryInfo{version: 2<<24 | uint32(unsafe.Sizeof(b.info))}
	if b.nvml.memory(device, &b.info) != success {
		return memory.Reading{}
	}
	return amount(b.info.used)
}

// memory returns the memory of a process. A context takes memory, so 0 means unknown.
func (p processInfo) memory() memory.Reading {
	if p.used == 0 {
		return memory.Reading{}
	}
	return amount(p.used)
}

const most = 1 << 16

// running returns the processes on a device, in the memory of b.list if possible. ok is false if the
// device does not report them. running retries, since processes may start between two calls.
func (b *buffers) running(device handle) (all []processInfo, ok bool) {
	all = b.list[:cap(b.list)]
	if len(all) == 0 {
		all = make([]processInfo, 16)
	}
	for range 5 {
		b.room = uint32(len(all))
		switch s := b.nvml.processes(device, &b.room, &all[0]); {
		case s == success && int(b.room) <= len(all):
			return all[:b.room], true
		case s != insufficientSize || b.room > most:
			return all[:0], false
		}
		all = make([]processInfo, max(2*len(all), 2*int(b.room)))
	}
	return all[:0], false
}
