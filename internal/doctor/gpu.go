package doctor

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/gpu"
	"steadyfit/memory"
)

// gpuLibrary is a library that a GPU build opens at run time.
type gpuLibrary struct {
	name string
	// without says what is lost without it. If it is empty, TensorFlow uses no
	// GPU at all (tsl/platform/default/dlopen_checker.cc).
	without string
	// wheel is the Python package that brings it, if TensorFlow can do without.
	wheel string
}

// jitLink is opened by cuSPARSE rather than by TensorFlow; it lies beside it.
const jitLink = "libnvJitLink.so.12"

// forXLA are the parts of CUDA that XLA opens, or runs, as files: by name, where they
// are in a folder of CUDA. Other parts of TensorFlow do without.
var forXLA = []struct{ name, file string }{
	{"ptxas", "bin/ptxas"},
	{"libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"},
}

// driverLibrary and managementLibrary come with the driver, all others with CUDA.
const (
	driverLibrary     = "libcuda.so.1"
	managementLibrary = "libnvidia-ml.so.1"
)

// gpuLibraries are those of the wheels of TensorFlow 2.16 and later, which are
// built for CUDA 12.
var gpuLibraries = []gpuLibrary{
	{name: "libcudart.so.12"}, {name: "libcublas.so.12"}, {name: "libcublasLt.so.12"}, {name: "libcudnn.so.9"},
	{name: "libcufft.so.11"}, {name: "libcusolver.so.11"}, {name: "libcusparse.so.12"}, {name: jitLink},
	{"libnccl.so.2", "several GPUs in one process", "nvidia-nccl-cu12"},
	{"libcupti.so.12", "profiles of GPU work", "nvidia-cuda-cupti-cu12"},
	{"libnvshmem_host.so.3", "several GPUs in one XLA program", "nvidia-nvshmem-cu12"},
}

// oldestDriver is the oldest branch that runs CUDA 12.
const oldestDriver = 525

// gpuBox is what the machine shows of a GPU.
type gpuBox struct {
	// driver is the version of the kernel's driver; empty if there is none.
	driver string
	nodes  []string
}

func readGPU(m machine) gpuBox {
	var g gpuBox
	text, _ := m.readText("/proc/driver/nvidia/version")
	g.driver = driverVersion(text)
	nodes, _ := m.glob("/dev/nvidia*")
	for _, n := range nodes {
		if gpuNode.MatchString(n) {
			g.nodes = append(g.nodes, n)
		}
	}
	// Windows' own driver shows itself to WSL as this.
	if m.exists("/dev/dxg") {
		g.nodes = append(g.nodes, "/dev/dxg")
	}
	return g
}

// gpuList is what NVML says, or the kernel in its place.
type gpuList struct {
	gpus []gpu.GPU
	// used is what is in use on each GPU, by its ID, where that is told.
	used map[string]memory.Reading
	// why NVML was not there to ask; else empty.
	why string
	err error
}

// listGPUs asks NVML for the GPUs of this machine; of one that was recorded below
// another root only files are left.
func listGPUs(root string) gpuList {
	if root != "/" {
		return gpuList{gpus: gpu.Kernel(os.DirFS(root))}
	}
	driver, err := gpu.Open()
	l := gpuList{gpus: driver.GPUs(), used: usedMemory(driver), why: driver.Why(), err: err}
	if err := driver.Close(); l.err == nil {
		l.err = err
	}
	return l
}

// usedMemory is what is in use on each GPU, by its ID and by whoever it is.
func usedMemory(driver *gpu.Driver) map[string]memory.Reading {
	source := driver.Source(0)
	if source == nil {
		return nil
	}
	sample := map[memory.Layer]memory.Reading{}
	source.Sample(func(l memory.Layer, r memory.Reading) { sample[l] = r })
	gpus := driver.GPUs()
	if len(gpus) == 1 {
		return map[string]memory.Reading{gpus[0].ID: sample[memory.GPUUsed]}
	}
	used := map[string]memory.Reading{}
	for _, g := range gpus {
		used[g.ID] = sample[memory.GPUUsed.Of(g.ID)]
	}
	return used
}

var (
	gpuNode      = regexp.MustCompile(`^/dev/nvidia(\d+|ctl|-uvm)$`)
	driverNumber = regexp.MustCompile(`Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)`)
)

func driverVersion(text string) string {
	if found := driverNumber.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}

func (g gpuBox) present() bool { return g.driver != "" || len(g.nodes) > 0 }

const (
	giveGPU       = "start the container with the GPU: `docker run --gpus all` (needs nvidia-container-toolkit on the host), or `podman run --device nvidia.com/gpu=all`"
	installDriver = "install NVIDIA's driver (`sudo apt install nvidia-driver` on Debian, `sudo ubuntu-drivers install` on Ubuntu), restart, and check with `nvidia-smi`"
	notNeeded     = "not needed for the CPU"
)

// gpuExam carries what decides how much a missing part matters.
type gpuExam struct {
	m   machine
	tf  tensorFlow
	box gpuBox
}

// lacking is the status of a missing part: it is harmless where nobody asked
// for a GPU and none could be used, and where TensorFlow found it all the same.
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

// missing is a check for something that is not there.
func (e gpuExam) missing(name, found, fix string) Check {
	c := Check{Name: name, Status: e.lacking(), Found: found, Fix: fix}
	switch {
	case e.tf.hasGPU:
		c.Found, c.Fix = found+"; TensorFlow uses a GPU all the same", ""
	case c.Status == Note:
		c.Found, c.Fix = found+"; "+notNeeded, ""
	}
	return c
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
	c := Check{Name: "TensorFlow"}
	switch {
	case !e.tf.found:
		c.Status, c.Found = Note, "not found, so what it needs of a GPU is not known"
	case e.tf.gpu:
		c.Found = "built with GPU support"
	case e.m.needGPU || e.box.present():
		c.Status = Note
		if e.m.needGPU {
			c.Status = Problem
		}
		c.Found = "built for the CPU only: a GPU stays unused"
		c.Fix = fmt.Sprintf("`pip install '%s'` in a virtual environment, and name its site-packages/tensorflow with --tensorflow", e.wheel())
	default:
		c.Found = "built for the CPU only"
	}
	return c
}

// wheel is the package that brings TensorFlow and its GPU libraries.
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
	if version == "" {
		if slices.Contains(e.box.nodes, "/dev/dxg") {
			return Check{Name: name, Found: "that of Windows (WSL)"}
		}
		return e.missing(name, "none loaded (/proc/driver/nvidia/version)", installDriver)
	}
	branch, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(branch); err == nil && n < oldestDriver {
		return e.missing(name, fmt.Sprintf("%s is too old for CUDA 12, which needs %d or later", version, oldestDriver), installDriver)
	}
	return Check{Name: name, Found: version}
}

func (e gpuExam) nodes() Check {
	const name = "device nodes"
	numbered := slices.ContainsFunc(e.box.nodes, func(n string) bool { return n == "/dev/dxg" || n[len(n)-1] >= '0' && n[len(n)-1] <= '9' })
	found := strings.Join(e.box.nodes, ", ")
	switch {
	case !numbered && e.box.driver != "":
		// The kernel shows its driver in every container, the devices only where
		// they were given.
		return e.missing(name, "no /dev/nvidia0, though the kernel has the driver: this container was not given the GPU", giveGPU)
	case !numbered:
		return e.missing(name, "no /dev/nvidia0", installDriver)
	case slices.Contains(e.box.nodes, "/dev/dxg"):
		return Check{Name: name, Found: found}
	}
	for _, node := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} {
		if !slices.Contains(e.box.nodes, node) {
			return e.missing(name, found+", but no "+node, "on the host: `sudo nvidia-modprobe -u -c=0`; in a container: "+giveGPU)
		}
	}
	return Check{Name: name, Found: found}
}

// gpus has a check for each GPU; that there is none is said by those of the driver.
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
		checks = append(checks, e.missing(managementLibrary, oneLine(l.err.Error()), "do what that says, and check with `nvidia-smi`"))
	}
	return checks
}

func (e gpuExam) driverLibrary() Check {
	if file, by := e.find(driverLibrary); file != "" {
		return Check{Name: driverLibrary, Found: file + " (" + by + ")"}
	}
	if c, ok := e.elsewhere(driverLibrary); ok {
		return c
	}
	if e.box.present() {
		return e.missing(driverLibrary, "not found, though the kernel has the driver",
			"in a container: `docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility`; else install the driver's user part (`sudo apt install libcuda1`)")
	}
	return e.missing(driverLibrary, "not found", installDriver)
}

func (e gpuExam) library(l gpuLibrary) Check {
	if file, by := e.find(l.name); file != "" {
		return Check{Name: l.name, Found: file + " (" + by + ")"}
	}
	if c, ok := e.elsewhere(l.name); ok {
		return c
	}
	if l.without == "" {
		return e.missing(l.name, "not found", fmt.Sprintf(
			"`pip install '%s'`, and keep the folders tensorflow and nvidia side by side, as site-packages has them", e.wheel()))
	}
	return e.dispensable(l.name, l.without, l.wheel)
}

// dispensable is a check for a missing part that TensorFlow can do without.
func (e gpuExam) dispensable(name, without, wheel string) Check {
	if e.tf.hasGPU || e.lacking() > Note {
		return Check{Name: name, Status: Note, Found: "not found; needed only for " + without, Fix: "`pip install " + wheel + "`"}
	}
	return e.missing(name, "not found", "")
}

// partOfXLA looks where XLA does, in its order (FindCudaExecutable of
// subprocess_compilation.cc, CandidateCudaRoots of cuda_root_path.cc).
func (e gpuExam) partOfXLA(name, file string) Check {
	const flag = "--xla_gpu_cuda_data_dir="
	type place struct{ by, file string }
	var places []place
	for _, f := range strings.Fields(e.m.env["XLA_FLAGS"]) {
		if dir, ok := strings.CutPrefix(f, flag); ok {
			places = append(places, place{"XLA_FLAGS", path.Join(dir, file)})
		}
	}
	if strings.HasPrefix(file, "bin/") {
		for _, dir := range filepath.SplitList(e.m.env["PATH"]) {
			places = append(places, place{"PATH", path.Join(dir, name)})
		}
	}
	for _, dir := range []string{"/usr/local/cuda", "/opt/cuda"} {
		places = append(places, place{"system folder", path.Join(dir, file)})
	}
	if e.tf.found {
		own := path.Dir(e.tf.info.Library)
		for _, dir := range []string{"../nvidia/cuda_nvcc", "../../nvidia/cuda_nvcc", "cuda"} {
			places = append(places, place{"beside TensorFlow", path.Join(own, dir, file)})
		}
	}
	for _, p := range places {
		if e.m.exists(p.file) {
			return Check{Name: name, Found: p.file + " (" + p.by + ")"}
		}
	}
	return e.dispensable(name, "code that XLA compiles for a GPU", "nvidia-cuda-nvcc-cu12")
}

// find looks for a library where the loader would, in its order.
func (e gpuExam) find(name string) (file, by string) {
	beside := e.tf.runPath
	if name == jitLink {
		beside = nil
		for _, dir := range e.tf.runPath {
			beside = append(beside, strings.Replace(dir, "/cusparse/", "/nvjitlink/", 1))
		}
	}
	for _, place := range []struct {
		by      string
		folders []string
	}{
		{"LD_LIBRARY_PATH", filepath.SplitList(e.m.env["LD_LIBRARY_PATH"])},
		{"beside TensorFlow", beside},
	} {
		for _, dir := range place.folders {
			if file := path.Join(dir, name); dir != "" && e.m.exists(file) {
				return file, place.by
			}
		}
	}
	cache, _ := e.m.readText("/etc/ld.so.cache")
	if file := cached(cache, name); file != "" && e.m.exists(file) {
		return file, "ldconfig"
	}
	for _, dir := range []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		if file := path.Join(dir, name); e.m.exists(file) {
			return file, "system folder"
		}
	}
	return "", ""
}

// cached finds a library in the loader's cache. Its entries point at paths that
// end with a zero, in every version of the format.
func cached(cache, name string) string {
	end := strings.Index(cache, "/"+name+"\x00")
	if end < 0 {
		return ""
	}
	start := strings.LastIndexByte(cache[:end], 0) + 1
	return cache[start : end+1+len(name)]
}

// elsewhere finds a library where the loader does not look, which is the usual
// reason for one that is installed and yet missing.
func (e gpuExam) elsewhere(name string) (Check, bool) {
	for _, dir := range []string{"/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/opt/cuda/lib64"} {
		file := path.Join(dir, name)
		if e.m.exists(file) {
			return e.missing(name, file+" is there, but the loader does not look there",
				"`export LD_LIBRARY_PATH="+dir+"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}`"), true
		}
	}
	return Check{}, false
}
