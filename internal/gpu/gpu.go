// Package gpu says which GPUs of NVIDIA a machine has, and how much of their
// memory is in use, as layers for package memory. It asks NVML, the library of
// the driver that nvidia-smi is made of (libnvidia-ml.so.1), and where that cannot
// be loaded the program nvidia-smi. It is for the memory of a device, of one process
// of it, and for names; temperatures and load are for other programs.
//
// A value flows like this: [Open] loads NVML and lists the GPUs. [Driver.Source]
// gives a [memory.Source] for one process, here or elsewhere, whose layers are
// absent without a driver. What is not told is an unknown reading, never zero.
//
// The layers are [memory.GPUUsed], all that is in use on the device by whoever it
// is, and [memory.GPUProcess], what the process has on it. With one GPU these are
// all. With several, they are sums, unknown if a part of them is, and each GPU has
// two more, named after its ID: GPUUsed.Of("0"), GPUProcess.Of("0").
//
// What the process has is harder to know than it seems:
//
//   - Only a process with a CUDA context is listed. Before it has one its memory is
//     unknown rather than 0, since a process that is not listed may also be one
//     that the driver knows by another ID (below) or a client of MPS. Once
//     it was listed on a GPU the IDs are known to fit: then it is 0 where it is not.
//   - In a container with process IDs of its own, older drivers list those of the
//     host, or nothing (nvidia-docker#1483, and #179 for the way out, docker run
//     --pid=host). The open kernel modules translate them; versions of these that
//     do so only for the list give 0 as the memory (open-gpu-kernel-modules#614).
//     A context takes memory, so 0 for a listed process is unknown, too.
//   - NVML says that it does not know the amount (NVML_VALUE_NOT_AVAILABLE) on
//     Windows' driver model, which is also below WSL.
//   - A user without permission is told less: the memory of the device without the
//     processes, or on a divided GPU neither.
//   - Child processes are not counted in.
//
// NVML does not read CUDA_VISIBLE_DEVICES: GPUs are listed and summed that the
// process cannot use, in the order of the PCI bus. CUDA's own order is another
// (fastest first) unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set, so "gpu used (1)"
// need not be TensorFlow's GPU:1. What TensorFlow holds of a GPU it takes in large
// blocks, by default nearly all at the start: both layers then show its pool and
// not what is in use inside of it.
//
// A GPU that is divided into instances (MIG) is listed as its instances.
//
// # How NVML is called
//
// The dozen functions that it takes are looked up by name in a library that is
// opened at run time, each in the newest form that all drivers agree on, by
// github.com/ebitengine/purego. NVIDIA's own go-nvml refers to NVML's 400 functions
// in the program itself: where the loader binds all at the start (LD_BIND_NOW=1, or
// a linker that does so by default) the program does not start without a driver
// (go-nvml#131). cgo of our own would need a function that calls any C function at
// any address, exported by tfbind for all to see, or a second package with cgo;
// purego (Apache-2.0, tested on Linux for amd64 and arm64) leaves this package
// Go only. What C knows about it, how NVML lays out what it fills in, is written
// down twice, here and in testdata/nvml.c, and compared by a test.
//
// It is used in programs that are built with cgo, which can train. Without cgo
// purego would bind the program to glibc, and those that cannot train are worth
// having because they run anywhere; they ask nvidia-smi.
package gpu

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"steadyfit/memory"
)

// GPU is a device that programs can use: a GPU, or an instance of a divided one.
type GPU struct {
	// ID is the number that the driver gives, in the order of the PCI bus: "0", and
	// "0:1" for the MIG instance 1 of GPU 0. nvidia-smi shows the same.
	ID string
	// UUID begins with "GPU-" or "MIG-"; CUDA_VISIBLE_DEVICES takes it. It is empty
	// if it is not known.
	UUID string
	// Name is that of the product: "NVIDIA H200".
	Name string
	// Memory is that of the device, with what the driver reserves for itself.
	Memory memory.Reading
	// MIG is whether the GPU is divided: this is an instance or, if there is none
	// that could be used, the GPU.
	MIG bool
}

// String is the name, and the memory if it is known: "NVIDIA H200, 139.8 GiB".
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

// Driver is what NVIDIA's driver says. It may be used by several goroutines.
// Close it at the end.
type Driver struct {
	gpus    []GPU
	version string
	why     string

	mu sync.RWMutex // held for reading during each sample, so that Close waits for it
	// backend answers for the GPUs; nil if nothing does, and after Close.
	backend backend
}

// backend is a way to ask the driver.
type backend interface {
	// asker is for one source at a time, with buffers of its own.
	asker() asker
	close() error
}

// asker says what is in use.
type asker interface {
	// ask fills in an answer for each GPU of the driver, in their order.
	ask(pid uint32, into []answer)
}

// answer is what one GPU says. The zero value is that it does not answer.
type answer struct {
	used, process memory.Reading
	// listed is whether the GPU has the process, if answered says that it told.
	listed, answered bool
}

// Open asks the driver for its GPUs. A machine without a driver is no error: there
// are no GPUs then, and Why says so.
//
// The error is that of a driver that is there and does not answer, or of single
// GPUs, with what to do. The Driver can be used nevertheless: it has the other
// GPUs, or those that the kernel shows, without layers.
//
// The first Open of a machine takes up to seconds if nothing else uses the GPUs
// and the driver's persistence mode is off, since it wakes them up.
func Open() (*Driver, error) {
	d := &Driver{}
	f, err := load()
	if err == nil {
		err = d.openNVML(f)
	} else {
		d.why = err.Error()
		err = d.openSMI()
	}
	if len(d.gpus) == 0 {
		d.gpus = Kernel(os.DirFS("/"))
	}
	return d, err
}

// GPUs lists the GPUs as they were when the driver was opened, in its order.
func (d *Driver) GPUs() []GPU { return append([]GPU(nil), d.gpus...) }

// Version is that of the driver, such as "570.133.20"; empty if it is not known.
func (d *Driver) Version() string { return d.version }

// Why says why there are no layers; it is empty if there are.
func (d *Driver) Why() string { return d.why }

// Close gives the driver back; sources say from then on that nothing is known. It
// may be called again.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.backend
	d.backend = nil
	if b == nil {
		return nil
	}
	if err := b.close(); err != nil {
		return fmt.Errorf("close NVML: %w", err)
	}
	return nil
}

// Kernel lists the GPUs that the kernel's driver shows below a root folder, for
// where NVML is missing, as in containers that were given the driver without its
// part "utility". Their memory is not known, nor whether they are divided. Each
// must have its device node: the kernel shows its driver in every container, also
// where the GPU is out of reach.
func Kernel(root fs.FS) []GPU {
	const folder = "proc/driver/nvidia/gpus"
	// The folders are named by bus location, so they come in the order of NVML. A
	// folder that is missing is a driver that is.
	entries, _ := fs.ReadDir(root, folder)
	var gpus []GPU
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
