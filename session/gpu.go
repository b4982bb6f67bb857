package session

import (
	"steadyfit/internal/gpu"
	"steadyfit/tfbind"
)

// gpuMeter tells what this process has of its GPUs.
type gpuMeter struct {
	driver *gpu.Driver
	meter  *gpu.Meter
}

// newGPUMeter asks the driver where there are GPUs among the devices; else it is nil. What
// the driver complains of is for steadyfit doctor to say.
func newGPUMeter(devices []tfbind.Device) *gpuMeter {
	if !hasGPU(devices) {
		return nil
	}
	driver, _ := gpu.Open()
	return &gpuMeter{driver, driver.Meter(0)}
}

// Close gives the driver back.
func (m *gpuMeter) Close() error {
	if m == nil {
		return nil
	}
	return m.driver.Close()
}

// GPUBytes is the memory that this process has on GPUs, in bytes, as NVIDIA's driver tells
// it: TensorFlow's pools, CUDA's contexts, code and workspaces, those of other sessions
// included. Where the driver does not tell that of the process, as in some containers, it is
// what is in use on all GPUs that the driver shows, by whoever it is. ok is false where the
// session has no GPU, or neither is told; bytes is never 0 with it.
//
// The driver is opened with the first call, and given back by Close. Where only nvidia-smi
// can be asked, each call is a run of that program.
func (s *Session) GPUBytes() (bytes int64, ok bool) {
	if s.gpu == nil {
		devices, err := s.Devices()
		if err != nil {
			return 0, false
		}
		m := newGPUMeter(devices)
		if m == nil || s.adopt(m, func(*native) { s.gpu = m }) != nil {
			return 0, false
		}
	}
	r := s.gpu.meter.Read()
	return int64(r.Bytes), r.OK
}
