package doctor

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/gpu"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// gpuLibrary is a library that a GPU build of TensorFlow opens at run time.
type gpuLibrary struct {
	name string
	// without describes the features that need the library; empty means that TensorFlow uses no
	// GPU at all without it (tsl/platform/default/dlopen_checker.cc).
	without string
	// wheel is the Python package with the library, if TensorFlow can run without it.
	wheel string
}

// jitLink is opened by cuSPARSE rather than by TensorFlow, and is in the same folder.
const jitLink = "libnvJitLink.so.12"

// forXLA are the parts of CUDA that only XLA needs, with their paths in a CUDA folder.
var forXLA = []struct{ name, file string }{
	{"ptxas", "bin/ptxas"},
	{"libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"},
}

// driverLibrary and managementLibrary come with the driver, all other libraries with CUDA.
const (
	driverLibrary     = "libcuda.so.1"
	managementLibrary = "libnvidia-ml.so.1"
)

// gpuLibraries are the libraries that the wheels of TensorFlow 2.16 and later need, built for
// CUDA 12.
var gpuLibraries = []gpuLibrary{
	{name: "libcudart.so.12"}, {name: "libcublas.so.12"}, {name: "libcublasLt.so.12"}, {name: "libcudnn.so.9"},
	{name: "libcufft.so.11"}, {name: "libcusolver.so.11"}, {name: "libcusparse.so.12"}, {name: jitLink},
	{"libnccl.so.2", "several GPUs in one process", "nvidia-nccl-cu12"},
	{"libcupti.so.12", "profiles of GPU work", "nvidia-cuda-cupti-cu12"},
	{"libnvshmem_host.so.3", "several GPUs in one XLA program", "nvidia-nvshmem-cu12"},
}

// oldestDriver is the oldest driver branch that runs CUDA 12.
const oldestDriver = 525

// gpuBox is the evidence of a GPU on the machine.
type gpuBox struct {
	driver string // version of the kernel's driver; empty if there is none
	nodes  []string
}

var (
	gpuNode      = regexp.MustCompile(`^/dev/nvidia(\d+|ctl|-uvm)$`)
	driverNumber = regexp.MustCompile(`Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)`)
)

func readGPU(m machine) (g gpuBox) {
	text, _ := m.readText("/proc/driver/nvidia/version")
	if found := driverNumber.FindStringSubmatch(text); found != nil {
		g.driver = found[1]
	}
	g.nodes = slices.DeleteFunc(m.glob("/dev/nvidia*"), func(n string) bool { return !gpuNode.MatchString(n) })
	if m.exists(wsl) {
		g.nodes = append(g.nodes, wsl)
	}
	return g
}

// wsl is the device through which WSL exposes the driver of Windows.
const wsl = "/dev/dxg"

// gpuList is the list of GPUs from NVML or, without it, from the kernel.
type gpuList struct {
	gpus []gpu.GPU
	used map[string]memory.Reading // in use on each GPU, by its ID
	why  string                    // reason why NVML is unavailable
	err  error
}

// listGPUs asks NVML for the GPUs of this machine.
func listGPUs() gpuList {
	driver, err := gpu.Open()
	l := gpuList{gpus: driver.GPUs(), used: usedMemory(driver), why: driver.Why(), err: err}
	if err := driver.Close(); l.err == nil {
		l.err = err
	}
	return l
}

// usedMemory returns the memory in use on each GPU by all processes, by the GPU's ID.
func usedMemory(driver *gpu.Driver) map[string]memory.Reading {
	source := driver.Source(0)
	if source == nil {
		return nil
	}
	sample := map[memory.Layer]memory.Reading{}
	source(func(l memory.Layer, r memory.Reading) { sample[l] = r })
	gpus := driver.GPUs()
	if len(gpus) == 1 {
		return map[string]memory.Reading{gpus[0].ID: sample[memlayer.GPUUsed]}
	}
	used := map[string]memory.Reading{}
	for _, g := range gpus {
		used[g.ID] = sample[memlayer.Of[memory.Layer](memlayer.GPUUsed, g.ID)]
	}
	return used
}

func (g gpuBox) present() bool { return g.driver != "" || len(g.nodes) > 0 }

const (
	giveGPU       = "start the container with the GPU: `docker run --gpus all` (needs nvidia-container-toolkit on the host), or `podman run --device nvidia.com/gpu=all`"
	installDriver = "install NVIDIA's driver (`sudo apt install nvidia-driver` on Debian, `sudo ubuntu-drivers install` on Ubuntu), restart, and check with `nvidia-smi`"
)

// gpuExam holds the facts that decide how serious a missing part is.
type gpuExam struct {
	m   machine
	tf  tensorFlow
	box gpuBox
}

// lacking returns the status of a missing part. A missing part is harmless if TensorFlow uses a GPU
// without it, or if no GPU was requested and none is usable.
func (e gpuExam) lacking() Status {
	switch {
	case e.tf.hasGPU:
		return Note
	case e.m.needGPU:
		return Problem
	case e.box.present() && e.tf.gpu:
		return Warning
	default:
		return Note
	}
}

// missing returns the check of a missing part.
func (e gpuExam) missing(name, found, fix string) Check {
	status := e.lacking()
	switch {
	case e.tf.hasGPU:
		return note(name, found+"; TensorFlow uses a GPU nevertheless", "")
	case status == Note:
		return note(name, found+"; not needed for the CPU", "")
	}
	return Check{Name: name, Status: status, Found: found, Fix: fix}
}

func checkGPU(m machine, t tensorFlow) []Check {
	e := gpuExam{m, t, readGPU(m)}
	checks := []Check{e.build(), e.driver(), e.nodes()}
	checks = append(checks, e.gpus()...)
	if shown, set := m.env["CUDA_VISIBLE_DEVICES"]; set && (shown == "" || strings.HasPrefix(shown, "-")) {
		checks = append(checks, e.missing("CUDA_VISIBLE_DEVICES", fmt.Sprintf("%q hides all GPUs from CUDA", shown), "`unset CUDA_VISIBLE_DEVICES`"))
	}
	checks = append(checks, e.driverLibrary())
	for _, l := range gpuLibraries {
		checks = append(checks, e.library(l))
	}
	for _, part := range forXLA {
		checks = append(checks, e.partOfXLA(part.name, part.file))
	}
	return checks
}

func (e gpuExam) build() Check {
	const name = "TensorFlow"
	fix := fmt.Sprintf("`pip install '%s'` in a virtual environment, and name its site-packages/tensorflow with --tensorflow", e.wheel())
	const unused = "built for the CPU only: a GPU stays unused"
	switch {
	case !e.tf.found:
		return note(name, "not found, so its GPU support is not known", "")
	case e.tf.gpu:
		return ok(name, "built with GPU support")
	case e.m.needGPU:
		return problem(name, unused, fix)
	case e.box.present():
		return note(name, unused, fix)
	}
	return ok(name, "built for the CPU only")
}

// wheel returns the package with TensorFlow and its GPU libraries.
func (e gpuExam) wheel() string {
	version := e.tf.info.Version
	if version == "" {
		return "tensorflow[and-cuda]"
	}
	return "tensorflow[and-cuda]==" + version
}

func (e gpuExam) driver() Check {
	const name = "driver"
	version := e.box.driver
	branch, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(branch)
	switch {
	case version == "" && slices.Contains(e.box.nodes, wsl):
		return ok(name, "the driver of Windows (WSL)")
	case version == "":
		return e.missing(name, "none loaded (/proc/driver/nvidia/version)", installDriver)
	case err == nil && n < oldestDriver:
		return e.missing(name, fmt.Sprintf("%s is too old for CUDA 12, which needs %d or later", version, oldestDriver), installDriver)
	}
	return ok(name, version)
}

func (e gpuExam) nodes() Check {
	const name = "device nodes"
	numbered := slices.ContainsFunc(e.box.nodes, func(n string) bool { return n == wsl || strings.ContainsAny(n[len(n)-1:], "0123456789") })
	found := strings.Join(e.box.nodes, ", ")
	switch {
	case !numbered && e.box.driver != "":
		return e.missing(name, "no /dev/nvidia0, though the kernel has the driver: this container has no access to the GPU", giveGPU)
	case !numbered:
		return e.missing(name, "no /dev/nvidia0", installDriver)
	case slices.Contains(e.box.nodes, wsl):
		return ok(name, found)
	}
	for _, node := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} {
		if !slices.Contains(e.box.nodes, node) {
			return e.missing(name, found+", but no "+node, "on the host: `sudo nvidia-modprobe -u -c=0`; in a container: "+giveGPU)
		}
	}
	return ok(name, found)
}

// gpus returns a check for each GPU.
func (e gpuExam) gpus() []Check {
	l := e.m.gpus()
	var checks []Check
	for _, g := range l.gpus {
		c := Check{Name: "GPU " + g.ID, Found: g.String()}
		if used := l.used[g.ID]; used.OK {
			c.Found += fmt.Sprintf("; %v in use", used.Bytes)
		}
		switch {
		case g.MIG && !strings.Contains(g.ID, ":"):
			c = e.missing(c.Name, g.Name+" is divided (MIG), and has no instance that could be used", "make one: `sudo nvidia-smi mig -i "+g.ID+" -cgi PROFILE -C`, with a profile of `nvidia-smi mig -lgip`")
		case l.why != "":
			c.Status, c.Found = Note, c.Found+"; reports will not show its memory: "+l.why
		case !g.Memory.OK:
			c.Status, c.Found = Note, c.Found+"; its memory is not known"
		}
		checks = append(checks, c)
	}
	if l.err != nil {
		checks = append(checks, e.missing(managementLibrary, oneLine(l.err.Error()), "follow this message, and check with `nvidia-smi`"))
	}
	return checks
}

func (e gpuExam) driverLibrary() Check {
	c, found := e.located(driverLibrary)
	switch {
	case found:
		return c
	case e.box.present():
		return e.missing(driverLibrary, "not found, though the kernel has the driver",
			"in a container: `docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility`; else install the driver's user part (`sudo apt install libcuda1`)")
	}
	return e.missing(driverLibrary, "not found", installDriver)
}

func (e gpuExam) library(l gpuLibrary) Check {
	c, found := e.located(l.name)
	switch {
	case found:
		return c
	case l.without == "":
		return e.missing(l.name, "not found", fmt.Sprintf(
			"`pip install '%s'`, and keep the folders tensorflow and nvidia side by side, as site-packages has them", e.wheel()))
	}
	return e.dispensable(l.name, l.without, l.wheel)
}

// dispensable returns the check of a missing part that TensorFlow can run without.
func (e gpuExam) dispensable(name, without, wheel string) Check {
	if e.tf.hasGPU || e.lacking() > Note {
		return note(name, "not found; needed only for "+without, "`pip install "+wheel+"`")
	}
	return e.missing(name, "not found", "")
}

// place is a file that may hold a library. by names the rule that leads the loader there.
type place struct{ by, file string }

// in returns the places of a file in folders; an empty folder does not count.
func in(by, file string, folders ...string) (places []place) {
	for _, dir := range folders {
		if dir != "" {
			places = append(places, place{by, path.Join(dir, file)})
		}
	}
	return places
}

// first returns the check of the first place that exists.
func (e gpuExam) first(name string, places ...[]place) (c Check, found bool) {
	for _, p := range slices.Concat(places...) {
		if e.m.exists(p.file) {
			return ok(name, p.file+" ("+p.by+")"), true
		}
	}
	return Check{}, false
}

// partOfXLA searches in XLA's order (FindCudaExecutable of subprocess_compilation.cc,
// CandidateCudaRoots of cuda_root_path.cc).
func (e gpuExam) partOfXLA(name, file string) Check {
	var flagged, onPath, beside []place
	for _, f := range strings.Fields(e.m.env["XLA_FLAGS"]) {
		if dir, ok := strings.CutPrefix(f, "--xla_gpu_cuda_data_dir="); ok {
			flagged = append(flagged, place{"XLA_FLAGS", path.Join(dir, file)})
		}
	}
	if strings.HasPrefix(file, "bin/") {
		onPath = in("PATH", name, filepath.SplitList(e.m.env["PATH"])...)
	}
	if e.tf.found {
		own := path.Dir(e.tf.info.Library)
		beside = in("beside TensorFlow", file, own+"/../nvidia/cuda_nvcc", own+"/../../nvidia/cuda_nvcc", own+"/cuda")
	}
	if c, found := e.first(name, flagged, onPath, in("system folder", file, "/usr/local/cuda", "/opt/cuda"), beside); found {
		return c
	}
	return e.dispensable(name, "code that XLA compiles for a GPU", "nvidia-cuda-nvcc-cu12")
}

// located searches for a library in the loader's order, and then in folders that the loader
// does not search. The latter is the usual reason why an installed library is not found.
func (e gpuExam) located(name string) (c Check, found bool) {
	beside := slices.Clone(e.tf.runPath)
	if name == jitLink {
		for i, dir := range beside {
			beside[i] = strings.Replace(dir, "/cusparse/", "/nvjitlink/", 1)
		}
	}
	var cached []place
	cache, _ := e.m.readText("/etc/ld.so.cache")
	// Paths in the loader's cache end with a zero byte in every version of the format.
	if end := strings.Index(cache, "/"+name+"\x00"); end >= 0 {
		cached = in("ldconfig", name, cache[strings.LastIndexByte(cache[:end], 0)+1:end])
	}
	c, found = e.first(name,
		in("LD_LIBRARY_PATH", name, filepath.SplitList(e.m.env["LD_LIBRARY_PATH"])...),
		in("beside TensorFlow", name, beside...), cached,
		in("system folder", name, "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"))
	if found {
		return c, true
	}
	for _, dir := range []string{"/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/opt/cuda/lib64"} {
		if file := path.Join(dir, name); e.m.exists(file) {
			return e.missing(name, file+" is there, but the loader does not look there",
				"`export LD_LIBRARY_PATH="+dir+"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}`"), true
		}
	}
	return Check{}, false
}
