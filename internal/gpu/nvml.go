//go:build linux && cgo && !nonvml

package gpu

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"steadyfit/memory"
)

// loading is held while NVML is opened or closed, since go-nvml then writes the
// variables that it calls NVML by, and for reading during each sample.
var loading sync.RWMutex

// library is NVML and the handles of its devices.
type library struct {
	nvml  nvml.Interface // nil if it is not open
	units []unit
}

// unit is the device of the GPU at the same place.
type unit struct {
	device nvml.Device
	// split is whether the driver tells what it reserves for itself apart from what
	// is in use. nvmlDeviceGetMemoryInfo_v2 does, since 510; before, it was counted
	// as in use: some hundred MiB that do not change.
	split bool
}

func (d *Driver) open() error { return d.openWith(nvml.New()) }

func (d *Driver) openWith(lib nvml.Interface) error {
	loading.Lock()
	defer loading.Unlock()
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		d.why = "libnvidia-ml.so.1 was not found: there is no driver of NVIDIA, or this container was given it without the part \"utility\""
		return nil
	case nvml.ERROR_DRIVER_NOT_LOADED:
		d.why = "NVIDIA's driver is not loaded, or this container was not given a GPU"
		return nil
	default:
		d.why = "NVML does not start: " + ret.Error()
		return fmt.Errorf("NVML does not start: %w; %s", ret, remedy(ret))
	}
	d.library.nvml = lib
	// Nothing else depends on the version, which the driver has if it has anything.
	d.version, _ = lib.SystemGetDriverVersion()
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		d.why = "NVML does not count the GPUs: " + ret.Error()
		return errors.Join(fmt.Errorf("NVML does not count the GPUs: %w; %s", ret, remedy(ret)), d.shut())
	}
	var failed []error
	for i := range count {
		device, ret := lib.DeviceGetHandleByIndex(i)
		switch ret {
		case nvml.SUCCESS:
			d.add(device, i)
		case nvml.ERROR_NO_PERMISSION: // another's, by the rules of the control group
		default:
			failed = append(failed, fmt.Errorf("GPU %d does not answer: %w; %s", i, ret, remedy(ret)))
		}
	}
	if len(d.gpus) == 0 {
		d.why = "the driver has no GPU that this process may use"
		failed = append(failed, d.shut())
	}
	return errors.Join(failed...)
}

func remedy(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the driver was updated while it ran: restart the machine, or the container"
	case nvml.ERROR_NO_PERMISSION:
		return "this user may not open /dev/nvidiactl: see its owner and mode"
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		return "the GPU is out of order: see the kernel's log for NVRM, and restart the machine"
	}
	return "see whether nvidia-smi says more"
}

// add takes up a GPU or, if it is divided, its instances.
func (d *Driver) add(device nvml.Device, index int) {
	id := fmt.Sprint(index)
	divided := d.divided(device)
	before := len(d.gpus)
	if divided {
		// Gaps are possible: instances keep their numbers when others are removed.
		most, ret := device.GetMaxMigDeviceCount()
		for i := 0; ret == nvml.SUCCESS && i < most; i++ {
			if instance, ret := device.GetMigDeviceHandleByIndex(i); ret == nvml.SUCCESS {
				d.addUnit(instance, fmt.Sprintf("%s:%d", id, i), true)
			}
		}
	}
	if len(d.gpus) == before {
		d.addUnit(device, id, divided)
	}
}

// divided is whether MIG is on. The functions of MIG came with 450. A function
// that the library lacks must not be called: that ends the process.
func (d *Driver) divided(device nvml.Device) bool {
	for _, name := range []string{"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		if d.library.nvml.Extensions().LookupSymbol(name) != nil {
			return false
		}
	}
	mode, _, ret := device.GetMigMode()
	return ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
}

func (d *Driver) addUnit(device nvml.Device, id string, mig bool) {
	u := unit{device: device}
	g := GPU{ID: id, MIG: mig}
	// What a device does not tell stays empty.
	g.Name, _ = device.GetName()
	g.UUID, _ = device.GetUUID()
	if d.library.nvml.Extensions().LookupSymbol("nvmlDeviceGetMemoryInfo_v2") == nil {
		if m, ret := device.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			u.split, g.Memory = true, amount(m.Total)
		}
	}
	if !u.split {
		if m, ret := device.GetMemoryInfo(); ret == nvml.SUCCESS {
			g.Memory = amount(m.Total)
		}
	}
	d.gpus = append(d.gpus, g)
	d.library.units = append(d.library.units, u)
}

// amount is a number of bytes; all ones is NVML_VALUE_NOT_AVAILABLE.
func amount(bytes uint64) memory.Reading {
	if bytes > math.MaxInt64 {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(bytes))
}

func (u unit) used() memory.Reading {
	if u.split {
		if m, ret := u.device.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return amount(m.Used)
		}
	} else if m, ret := u.device.GetMemoryInfo(); ret == nvml.SUCCESS {
		return amount(m.Used)
	}
	return memory.Reading{}
}

// usedBy is what a process has on the device. listed is false if the device says
// that it has no such process, or does not answer; it says so if answered is true.
// go-nvml takes the newest form of the question that the driver has.
func (u unit) usedBy(pid uint32) (r memory.Reading, listed, answered bool) {
	processes, ret := u.device.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return memory.Reading{}, false, false
	}
	for _, p := range processes {
		if p.Pid != pid {
			continue
		}
		part := amount(p.UsedGpuMemory)
		if part.Bytes == 0 {
			part.OK = false
		}
		if !listed {
			r = part
		} else {
			r = plus(r, part)
		}
		listed = true
	}
	return r, listed, true
}

// plus is unknown if one of the two is.
func plus(a, b memory.Reading) memory.Reading {
	if !a.OK || !b.OK {
		return memory.Reading{}
	}
	return memory.Known(a.Bytes + b.Bytes)
}

// source is the Source of one process.
type source struct {
	driver *Driver
	pid    uint32
	// fits is whether the process was listed once, so that not to be listed means
	// that it has nothing.
	fits  bool
	parts []part // of each GPU
}

type part struct {
	usedLayer, processLayer memory.Layer
	used, process           memory.Reading
	absent                  bool // the GPU answered, and does not list the process
}

func (d *Driver) source(pid int) memory.Source {
	loading.RLock()
	defer loading.RUnlock()
	if d.library.nvml == nil {
		return nil
	}
	s := &source{driver: d, pid: uint32(pid), parts: make([]part, len(d.gpus))}
	for i, g := range d.gpus {
		s.parts[i].usedLayer, s.parts[i].processLayer = memory.GPUUsed.Of(g.ID), memory.GPUProcess.Of(g.ID)
	}
	return s
}

// Sample is that of memory.Source.
func (s *source) Sample(add func(memory.Layer, memory.Reading)) {
	s.read()
	used, process := memory.Known(0), memory.Known(0)
	for _, p := range s.parts {
		used, process = plus(used, p.used), plus(process, p.process)
	}
	add(memory.GPUUsed, used)
	add(memory.GPUProcess, process)
	if len(s.parts) == 1 {
		return
	}
	for i := range s.parts {
		p := &s.parts[i]
		add(p.usedLayer, p.used)
		add(p.processLayer, p.process)
	}
}

func (s *source) read() {
	loading.RLock()
	defer loading.RUnlock()
	open := s.driver.library.nvml != nil
	for i := range s.parts {
		p := &s.parts[i]
		p.used, p.process, p.absent = memory.Reading{}, memory.Reading{}, false
		if !open {
			continue
		}
		u := s.driver.library.units[i]
		p.used = u.used()
		process, listed, answered := u.usedBy(s.pid)
		p.process, p.absent = process, answered && !listed
		s.fits = s.fits || listed
	}
	if !s.fits {
		return
	}
	for i := range s.parts {
		if p := &s.parts[i]; p.absent {
			p.process = memory.Known(0)
		}
	}
}

func (d *Driver) close() error {
	loading.Lock()
	defer loading.Unlock()
	return d.shut()
}

// shut ends NVML. It stays mapped: what is bound to it lazily stays bound.
func (d *Driver) shut() error {
	lib := d.library.nvml
	if lib == nil {
		return nil
	}
	d.library = library{}
	if ret := lib.Shutdown(); ret != nvml.SUCCESS {
		return ret
	}
	return nil
}
