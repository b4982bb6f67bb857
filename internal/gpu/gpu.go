// Package gpu reports the NVIDIA GPUs of a machine and the memory in use on them, as layers for package
// memory. It uses NVML (libnvidia-ml.so.1, a library of the driver).
//
// [Open] loads NVML, which stays open, and lists the GPUs. [Driver.Source] is a [memory.Source] for one process.
// An amount that the driver does not report is unknown, never zero. [Driver.Why] is the reason if there are no
// amounts at all.
//
// The layers are memlayer.GPUUsed, the memory in use by all processes, and memlayer.GPUProcess, the
// memory of one process. With several GPUs they are sums. A sum is unknown if a part is unknown. A GPU
// divided into instances (MIG) is listed as a whole.
//
// The amount of a process has these limits:
//
//   - Only a process with a CUDA context is listed. An unlisted process is unknown, since the driver
//     may know it by another ID or as a client of MPS. After it was listed once, unlisted means 0.
//   - In a container with a PID namespace, older drivers list the host's process IDs, or none
//     (nvidia-docker#1483; #179 suggests docker run --pid=host). Some open kernel modules report 0
//     bytes (open-gpu-kernel-modules#614), which counts as unknown, since a context takes memory.
//   - With Windows' driver model and under WSL the amount is unknown.
//   - Users without permission get only the memory of the device, or nothing on a divided GPU.
//   - Child processes are not counted.
//
// NVML ignores CUDA_VISIBLE_DEVICES. It lists GPUs in the order of the PCI bus, which is CUDA's order
// only with CUDA_DEVICE_ORDER=PCI_BUS_ID. TensorFlow allocates GPU memory in large blocks, by default
// nearly all at the start, so the layers show the size of its pool.
//
// # Loading NVML
//
// github.com/ebitengine/purego opens the library and looks up functions by name. go-nvml would need 400
// functions, so a program that binds all symbols at the start (LD_BIND_NOW=1) would not start without a
// driver (go-nvml#131). internal/testkit/testdata/nvml.c repeats the layout of NVML's structs for a test.
// Without cgo, purego would bind the program to glibc, so such programs do not load NVML.
package gpu

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"steadyfit/memory"
)

// GPU is a GPU of the machine.
type GPU struct {
	// ID is the number shown by nvidia-smi, in the order of the PCI bus.
	ID string
	// Name is the product, such as "NVIDIA H200".
	Name string
	// Memory is the size of the device, including memory reserved by the driver.
	Memory memory.Reading
	// Used is the memory that all processes used at Open.
	Used memory.Reading
}

// String returns the name and, if known, the memory: "NVIDIA H200, 139.8 GiB".
func (g GPU) String() string {
	name := g.Name
	if name == "" {
		name = "GPU " + g.ID
	}
	if !g.Memory.OK {
		return name
	}
	return name + ", " + g.Memory.String()
}

// Driver is an open NVIDIA driver. It is safe for concurrent use.
type Driver struct {
	*functions
	gpus    []GPU
	why     string
	devices []handle // none if there are no layers
}

// Open opens the driver, once in a process, and lists its GPUs. Without a driver there are no GPUs, and Why
// returns the reason. Open may take seconds if it wakes the GPUs.
//
// After an error, the driver or some GPUs do not answer. The Driver is usable nevertheless: it lists the
// other GPUs, or the GPUs known to the kernel, without layers.
func Open() (*Driver, error) { return once() }

var once = sync.OnceValues(func() (*Driver, error) {
	d := &Driver{}
	f, err := load()
	if err == nil {
		err = d.open(f)
	} else {
		d.why, err = err.Error(), nil
	}
	if len(d.gpus) == 0 {
		d.gpus = Kernel(os.DirFS("/"))
	}
	return d, err
})

// GPUs returns the GPUs that existed at Open, in the driver's order.
func (d *Driver) GPUs() []GPU { return slices.Clone(d.gpus) }

// Why returns the reason why there are no layers, or "" if there are layers.
func (d *Driver) Why() string { return d.why }

// Kernel returns the GPUs that the kernel's driver shows below a root folder, for use without NVML.
// Their memory and whether they are divided are unknown. The kernel shows all GPUs in every
// container, so GPUs without a device node, which are not accessible, are left out.
func Kernel(root fs.FS) (gpus []GPU) {
	const folder = "proc/driver/nvidia/gpus"
	// Folder names are bus locations, so they have the order of NVML.
	entries, _ := fs.ReadDir(root, folder)
	for _, e := range entries {
		text, err := fs.ReadFile(root, folder+"/"+e.Name()+"/information")
		if err != nil {
			continue
		}
		about := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			about[name] = strings.TrimSpace(value)
		}
		if _, err := fs.Stat(root, "dev/nvidia"+about["Device Minor"]); err != nil || about["Device Minor"] == "" {
			continue
		}
		gpus = append(gpus, GPU{ID: fmt.Sprint(len(gpus)), Name: about["Model"]})
	}
	return gpus
}
