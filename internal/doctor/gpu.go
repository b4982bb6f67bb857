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
)

// driverLibrary and managementLibrary come with the driver, all other libraries with CUDA.
const (
	driverLibrary     = "libcuda.so.1"
	managementLibrary = "libnvidia-ml.so.1"
)

// cudaPart is a file of CUDA that a GPU build of TensorFlow opens at run time.
type cudaPart struct {
	// file is the path in a folder of CUDA. The last element is the name of the check.
	file string
	// without describes the features that need the part; empty means that TensorFlow uses no
	// GPU at all without it (tsl/platform/default/dlopen_checker.cc).
	without string
	// wheel is the Python package with the part, if TensorFlow can run without it.
	wheel string
}

// cudaParts are the parts that the wheels of TensorFlow 2.16 and later need, built for CUDA 12.
var cudaParts = []cudaPart{
	{file: "lib/libcudart.so.12"},
	{file: "lib/libcublas.so.12"},
	{file: "lib/libcublasLt.so.12"},
	{file: "lib/libcudnn.so.9"},
	{file: "lib/libcufft.so.11"},
	{file: "lib/libcusolver.so.11"},
	{file: "lib/libcusparse.so.12"},
	{file: "lib/libnvJitLink.so.12"},
	{"lib/libnccl.so.2", "several GPUs in one process", "nvidia-nccl-cu12"},
	{"lib/libcupti.so.12", "profiles of GPU work", "nvidia-cuda-cupti-cu12"},
	{"lib/libnvshmem_host.so.3", "several GPUs in one XLA program", "nvidia-nvshmem-cu12"},
	{"bin/ptxas", "code that XLA compiles for a GPU", "nvidia-cuda-nvcc-cu12"},
	{"nvvm/libdevice/libdevice.10.bc", "code that XLA compiles for a GPU", "nvidia-cuda-nvcc-cu12"},
}

// oldestDriver is the oldest driver branch that runs CUDA 12.
const oldestDriver = 525

var (
	gpuNode      = regexp.MustCompile(`^/dev/nvidia\d+$`)
	driverNumber = regexp.MustCompile(`Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)`)
)

// gpuList is the list of GPUs from NVML or, without it, from the kernel.
type gpuList struct {
	gpus []gpu.GPU
	why  string // reason why NVML is unavailable
	err  error
}

// listGPUs asks NVML for the GPUs of this machine.
func listGPUs() gpuList {
	driver, err := gpu.Open()
	return gpuList{gpus: driver.GPUs(), why: driver.Why(), err: err}
}

const (
	giveGPU = "start the container with the GPU: `docker run --gpus all` " +
		"(needs nvidia-container-toolkit on the host), or `podman run --device nvidia.com/gpu=all`"
	installDriver = "install NVIDIA's driver (`sudo apt install nvidia-driver` on Debian, " +
		"`sudo ubuntu-drivers install` on Ubuntu), restart, and check with `nvidia-smi`"
)

// gpuExam holds the facts that decide how serious a missing part is.
type gpuExam struct {
	m      machine
	tf     tensorFlow
	kernel string // version of the kernel's driver; empty if there is none
	nodes  []string
}

func newGPUExam(m machine, t tensorFlow) gpuExam {
	e := gpuExam{m: m, tf: t}
	text := m.readText("/proc/driver/nvidia/version")
	if found := driverNumber.FindStringSubmatch(text); found != nil {
		e.kernel = found[1]
	}
	e.nodes = slices.DeleteFunc(m.glob("/dev/nvidia*"), func(n string) bool { return !gpuNode.MatchString(n) })
	return e
}

// present reports whether the machine seems to have a GPU.
func (e gpuExam) present() bool { return e.kernel != "" || len(e.nodes) > 0 }

// wanted reports whether something is to be computed on a GPU.
func (e gpuExam) wanted() bool {
	return e.tf.hasGPU || e.m.needGPU || e.present() && e.tf.gpu
}

// missing returns the check of a missing part. A missing part is harmless if TensorFlow uses a GPU
// without it, or if no GPU was requested and none is usable.
func (e gpuExam) missing(name, found, fix string) Check {
	switch {
	case e.tf.hasGPU:
		return note(name, found+"; TensorFlow uses a GPU nevertheless", "")
	case e.m.needGPU:
		return problem(name, found, fix)
	case e.wanted():
		return warning(name, found, fix)
	}
	return note(name, found+"; not needed for the CPU", "")
}

func checkGPU(m machine, t tensorFlow, gpus gpuList) []Check {
	e := newGPUExam(m, t)
	checks := []Check{e.build(), e.driver()}
	checks = append(checks, e.gpus(gpus)...)
	if shown, set := m.env["CUDA_VISIBLE_DEVICES"]; set && (shown == "" || strings.HasPrefix(shown, "-")) {
		checks = append(checks, e.missing("CUDA_VISIBLE_DEVICES",
			fmt.Sprintf("%q hides all GPUs from CUDA", shown), "`unset CUDA_VISIBLE_DEVICES`"))
	}
	if !e.wanted() {
		return append(checks, note("libraries", "not examined; not needed for the CPU", ""))
	}
	checks = append(checks, e.driverLibrary())
	for _, p := range cudaParts {
		checks = append(checks, e.part(p))
	}
	return checks
}

func (e gpuExam) build() Check {
	const name = "TensorFlow"
	const unused = "built for the CPU only: a GPU stays unused"
	fix := fmt.Sprintf("`pip install '%s'` in a virtual environment, "+
		"and name its site-packages/tensorflow with --tensorflow", e.wheel())
	switch {
	case !e.tf.found:
		return note(name, "not found, so its GPU support is not known", "")
	case e.tf.gpu:
		return ok(name, "built with GPU support")
	case e.m.needGPU:
		return problem(name, unused, fix)
	case e.present():
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

// driver examines the driver of the kernel, and this process's access to it.
func (e gpuExam) driver() Check {
	const name = "driver"
	branch, _, _ := strings.Cut(e.kernel, ".")
	n, err := strconv.Atoi(branch)
	switch {
	case e.kernel == "":
		return e.missing(name, "none loaded (/proc/driver/nvidia/version)", installDriver)
	case err == nil && n < oldestDriver:
		found := fmt.Sprintf("%s is too old for CUDA 12, which needs %d or later", e.kernel, oldestDriver)
		return e.missing(name, found, installDriver)
	case len(e.nodes) == 0:
		return e.missing(name, e.kernel+", but no /dev/nvidia0: this container has no access to the GPU", giveGPU)
	}
	return ok(name, e.kernel+", "+strings.Join(e.nodes, ", "))
}

// gpus returns a check for each GPU.
func (e gpuExam) gpus(l gpuList) (checks []Check) {
	for _, g := range l.gpus {
		c := ok("GPU "+g.ID, g.String())
		if g.Used.OK {
			c.Found += fmt.Sprintf("; %v in use", g.Used.Bytes)
		}
		switch {
		case l.why != "":
			c = note(c.Name, c.Found+"; reports will not show its memory: "+l.why, "")
		case !g.Memory.OK:
			c = note(c.Name, c.Found+"; its memory is not known", "")
		}
		checks = append(checks, c)
	}
	if l.err != nil {
		checks = append(checks, e.missing(managementLibrary, oneLine(l.err.Error()),
			"follow this message, and check with `nvidia-smi`"))
	}
	return checks
}

func (e gpuExam) driverLibrary() Check {
	if c, found := e.located(driverLibrary, "lib/"+driverLibrary); found {
		return c
	}
	return e.missing(driverLibrary, "not found", installDriver+
		"; in a container: `docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility`")
}

func (e gpuExam) part(p cudaPart) Check {
	name := path.Base(p.file)
	c, found := e.located(name, p.file)
	switch {
	case found:
		return c
	case p.without != "":
		return note(name, "not found; needed only for "+p.without, "`pip install "+p.wheel+"`")
	}
	return e.missing(name, "not found", fmt.Sprintf("`pip install '%s'`, and keep the folders tensorflow and nvidia "+
		"side by side, as site-packages has them; or add the folder of an installed CUDA to LD_LIBRARY_PATH", e.wheel()))
}

// place is a file that may be a part of CUDA. by names the rule that leads TensorFlow there.
type place struct{ by, file string }

// places returns where the loader, or XLA for its own parts, finds a part, in that order. file is the path in
// a folder of CUDA.
func (e gpuExam) places(name, file string) (all []place) {
	variable := "LD_LIBRARY_PATH"
	if strings.HasPrefix(file, "bin/") {
		variable = "PATH"
	}
	for _, dir := range filepath.SplitList(e.m.env[variable]) {
		if dir != "" {
			all = append(all, place{variable, path.Join(dir, name)})
		}
	}
	for _, at := range e.m.glob(path.Join(e.tf.folder, "../nvidia/*", file)) {
		all = append(all, place{"beside TensorFlow", at})
	}
	if !strings.HasPrefix(file, "lib/") {
		return append(all, place{"CUDA", path.Join("/usr/local/cuda", file)})
	}
	// Paths in the loader's cache end with a zero byte in every version of the format.
	cache := e.m.readText("/etc/ld.so.cache")
	if end := strings.Index(cache, "/"+name+"\x00"); end >= 0 {
		all = append(all, place{"ldconfig", path.Join(cache[strings.LastIndexByte(cache[:end], 0)+1:end], name)})
	}
	return all
}

// located returns the check of the first place that exists.
func (e gpuExam) located(name, file string) (c Check, found bool) {
	for _, p := range e.places(name, file) {
		if e.m.exists(p.file) {
			return ok(name, p.file+" ("+p.by+")"), true
		}
	}
	return Check{}, false
}
