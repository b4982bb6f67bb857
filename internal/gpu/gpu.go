// Package gpu reports the NVIDIA GPUs of a machine and the memory in use on them, as layers for
// package memory. It uses NVML (libnvidia-ml.so.1, the library of the driver). It does not
// report temperatures or load.
//
// [Open] loads NVML and lists the GPUs. [Driver.Source] is a [memory.Source] for
// one process. An amount that the driver does not report is unknown, never zero;
// [Driver.Why] gives the reason if no amount is available at all.
//
// The layers are [memory.GPUUsed], the memory in use on the device by all processes, and
// [memory.GPUProcess], the memory of one process. With several GPUs these are sums, which are
// unknown if a part is unknown. Each GPU then has two more layers, named after its ID:
// GPUUsed.Of("0"), GPUProcess.Of("0"). A GPU divided into instances (MIG) is listed as its
// instances.
//
// The amount of a process has these limits:
//
//   - Only a process with a CUDA context is listed. Before that its memory is
//     unknown, since an unlisted process may also be one that the driver knows by
//     another ID, or a client of MPS. Once it was listed on a GPU, unlisted means 0.
//   - In a container with its own process IDs, older drivers list those of the
//     host, or nothing (nvidia-docker#1483; #179 suggests docker run --pid=host).
//     Some open kernel modules then report 0 (open-gpu-kernel-modules#614); a
//     context takes memory, so 0 for a listed process is unknown, too.
//   - On Windows' driver model and under WSL the amount is not available.
//   - A user without permission sees the memory of the device without the
//     processes, or neither on a divided GPU.
//   - Child processes are not counted.
//
// NVML ignores CUDA_VISIBLE_DEVICES. It lists all GPUs in the order of the PCI bus, which is
// CUDA's order only with CUDA_DEVICE_ORDER=PCI_BUS_ID. TensorFlow takes GPU memory in large
// blocks, by default nearly all at the start. Both layers show its pool, not the memory in use
// inside the pool.
// its pool, not what is in use inside.
//
// # How NVML is called
//
// github.com/ebitengine/purego opens the library and looks up a dozen functions by name, each
// in the newest version that all drivers agree on. go-nvml refers to 400 functions by name, so
// a program that binds all symbols at the start (LD_BIND_NOW=1) does not start without a driver
// (go-nvml#131). gputest/testdata/nvml.c repeats the layout of NVML's structs, and a test
// compares them. Without cgo, purego would bind the program to glibc; such programs cannot
// train and do not load NVML.
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

// GPU is a device that programs can use: a whole GPU, or an instance of a divided one.
type GPU struct {
	// ID is the driver's number, in the order of the PCI bus: "0", or "0:1" for the MIG
	// instance 1 of GPU 0. nvidia-smi shows the same ID.
	ID string
	// UUID begins with "GPU-" or "MIG-". CUDA_VISIBLE_DEVICES accepts it. It is empty if
	// unknown.
	UUID string
	// Name is the name of the product: "NVIDIA H200".
	Name string
	// Memory is the size of the device, including memory that the driver reserves.
	Memory memory.Reading
	// MIG marks an instance, or a divided GPU without a usable instance.
	MIG bool
}

// String returns the name, and the memory if known: "NVIDIA H200, 139.8 GiB".
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

// Driver is an open driver. It is safe for concurrent use and must be closed.
type Driver struct {
	gpus    []GPU
	version string
	why     string

	mu   sync.RWMutex // held for reading during each sample, so that Close waits
	nvml *nvml        // nil if unavailable or closed
}

// Open opens the driver and lists its GPUs. A machine without a driver is not an error: it has
// no GPUs, and Why returns the reason.
//
// An error means that the driver or single GPUs do not answer. The Driver is usable
// nevertheless: it has the other GPUs, or those that the kernel shows, without layers. Open
// takes up to seconds if it has to wake the GPUs.
func Open() (*Driver, error) {
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
}

// GPUs lists the GPUs that existed when the driver was opened, in the driver's order.
func (d *Driver) GPUs() []GPU { return slices.Clone(d.gpus) }

// Version returns the version of the driver, such as "570.133.20"; empty if unknown.
func (d *Driver) Version() string { return d.version }

// Why returns the reason why there are no layers; empty if there are.
func (d *Driver) Why() string { return d.why }

// Close closes NVML. All readings of its sources are unknown afterwards. It can be called
// again.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nvml
	d.nvml = nil
	if n == nil {
		return nil
	}
	if err := n.close(); err != nil {
		return fmt.Errorf("close NVML: %w", err)
	}
	return nil
}

// Kernel lists the GPUs that the kernel's driver shows below a root folder, for machines and
// containers without NVML. It does not know their memory, or whether they are divided. It
// leaves out a GPU without a device node, since the kernel shows its driver in every container,
// even if the GPU is not accessible.
func Kernel(root fs.FS) (gpus []GPU) {
	const folder = "proc/driver/nvidia/gpus"
	// The folders are named by bus location, so their order is that of NVML.
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
		gpus = append(gpus, GPU{ID: fmt.Sprint(len(gpus)), UUID: about["GPU UUID"], Name: about["Model"]})
	}
	return gpus
}
