package doctor

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/gpu"
	"steadyfit/internal/testkit"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

const openDriver = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  " +
	"(dvs-builder)\nGCC version:  gcc\n"

// gpuMachine has a driver, its nodes and half of the libraries of the wheel.
var gpuMachine = plain.with(tree{
	"/proc/driver/nvidia/version": openDriver,
	"/dev/nvidia0":                "", "/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/dev/nvidia-caps": "",
	"/etc/ld.so.cache":                                           "glibc-ld.so.cache1.1\x00\x01libcuda.so.1\x00/usr/lib/x86_64-linux-gnu/libcuda.so.1\x00libz.so\x00",
	"/usr/lib/x86_64-linux-gnu/libcuda.so.1":                     "",
	"/opt/site-packages/nvidia/cublas/lib/libcublas.so.12":       "",
	"/opt/site-packages/nvidia/cublas/lib/libcublasLt.so.12":     "",
	"/opt/site-packages/nvidia/cudnn/lib/libcudnn.so.9":          "",
	"/opt/site-packages/nvidia/nvjitlink/lib/libnvJitLink.so.12": "",
	"/custom/libcufft.so.11":                                     "",
	"/opt/site-packages/nvidia/cuda_nvcc/bin/ptxas":              "",
})

func gpuChecks(m machine) []Check {
	t := tensorFlow{found: true, info: tfbind.Info{Version: "2.21.0",
		Library: "/opt/site-packages/tensorflow/libtensorflow_cc.so.2"},
		folder: m.realFolder(""), gpu: m.builtForGPU("")}
	return checkGPU(m, t, m.gpus())
}

const wheelFix = "`pip install 'tensorflow[and-cuda]==2.21.0'`, and keep the folders tensorflow and nvidia side by side, " +
	"as site-packages has them; or add the folder of an installed CUDA to LD_LIBRARY_PATH"

func TestGPULibrariesPartlyMissing(t *testing.T) {
	m := gpuBuild(box(gpuMachine, map[string]string{"LD_LIBRARY_PATH": "/nowhere::/custom"}))
	assert.Equal(t, []Check{
		{Name: "TensorFlow", Found: "built with GPU support"},
		{Name: "driver", Found: "570.133.20, /dev/nvidia0"},
		{Name: "libcuda.so.1", Found: "/usr/lib/x86_64-linux-gnu/libcuda.so.1 (ldconfig)"},
		{Name: "libcudart.so.12", Status: Warning, Found: "not found", Fix: wheelFix},
		{Name: "libcublas.so.12", Found: "/opt/site-packages/nvidia/cublas/lib/libcublas.so.12 (beside TensorFlow)"},
		{Name: "libcublasLt.so.12", Found: "/opt/site-packages/nvidia/cublas/lib/libcublasLt.so.12 (beside TensorFlow)"},
		{Name: "libcudnn.so.9", Found: "/opt/site-packages/nvidia/cudnn/lib/libcudnn.so.9 (beside TensorFlow)"},
		{Name: "libcufft.so.11", Found: "/custom/libcufft.so.11 (LD_LIBRARY_PATH)"},
		{Name: "libcusolver.so.11", Status: Warning, Found: "not found", Fix: wheelFix},
		{Name: "libcusparse.so.12", Status: Warning, Found: "not found", Fix: wheelFix},
		{Name: "libnvJitLink.so.12", Found: "/opt/site-packages/nvidia/nvjitlink/lib/libnvJitLink.so.12 (beside TensorFlow)"},
		{Name: "libnccl.so.2", Status: Note, Found: "not found; needed only for several GPUs in one process", Fix: "`pip install nvidia-nccl-cu12`"},
		{Name: "libcupti.so.12", Status: Note, Found: "not found; needed only for profiles of GPU work", Fix: "`pip install nvidia-cuda-cupti-cu12`"},
		{Name: "libnvshmem_host.so.3", Status: Note, Found: "not found; needed only for several GPUs in one XLA program", Fix: "`pip install nvidia-nvshmem-cu12`"},
		{Name: "ptxas", Found: "/opt/site-packages/nvidia/cuda_nvcc/bin/ptxas (beside TensorFlow)"},
		{Name: "libdevice.10.bc", Status: Note, Found: "not found; needed only for code that XLA compiles for a GPU", Fix: "`pip install nvidia-cuda-nvcc-cu12`"},
	}, gpuChecks(m))
}

func TestPartsOfXLA(t *testing.T) {
	const libdevice = "nvvm/libdevice/libdevice.10.bc"
	for _, c := range []struct {
		files            tree
		path             string
		ptxas, libdevice string
	}{
		{tree{"/usr/bin/ptxas": "", "/usr/local/cuda/" + libdevice: ""}, "/nowhere:/usr/bin",
			"/usr/bin/ptxas (PATH)", "/usr/local/cuda/" + libdevice + " (CUDA)"},
		{tree{"/opt/site-packages/nvidia/cuda_nvcc/" + libdevice: ""}, "/usr/bin",
			"/opt/site-packages/nvidia/cuda_nvcc/bin/ptxas (beside TensorFlow)",
			"/opt/site-packages/nvidia/cuda_nvcc/" + libdevice + " (beside TensorFlow)"},
	} {
		checks := gpuChecks(gpuBuild(box(gpuMachine.with(c.files), map[string]string{"PATH": c.path})))
		assert.Equal(t, Check{Name: "ptxas", Found: c.ptxas}, check(t, checks, "ptxas"))
		assert.Equal(t, Check{Name: "libdevice.10.bc", Found: c.libdevice}, check(t, checks, "libdevice.10.bc"))
	}
}

func TestNoGPU(t *testing.T) {
	for _, c := range gpuChecks(box(plain, nil)) {
		assert.LessOrEqual(t, c.Status, Note, c.Name)
		assert.Empty(t, c.Fix, c.Name)
		if c.Name != "TensorFlow" {
			assert.Contains(t, c.Found, "; not needed for the CPU", c.Name)
		}
	}
	assert.Equal(t, Check{Name: "libraries", Status: Note, Found: "not examined; not needed for the CPU"},
		check(t, gpuChecks(gpuBuild(box(plain, nil))), "libraries"), "the GPU wheel on a machine without a GPU")
}

func TestGPUAskedFor(t *testing.T) {
	m := box(plain, nil)
	m.needGPU = true
	checks := gpuChecks(m)
	assert.Equal(t, Check{Name: "TensorFlow", Status: Problem, Found: "built for the CPU only: a GPU stays unused",
		Fix: "`pip install 'tensorflow[and-cuda]==2.21.0'` in a virtual environment, and name its site-packages/tensorflow with --tensorflow"}, check(t, checks, "TensorFlow"))
	assert.Equal(t, Check{Name: "driver", Status: Problem, Found: "none loaded (/proc/driver/nvidia/version)",
		Fix: installDriver}, check(t, checks, "driver"))
	assert.Equal(t, Check{Name: "libcudnn.so.9", Status: Problem, Found: "not found", Fix: wheelFix},
		check(t, checks, "libcudnn.so.9"))
	assert.Equal(t, Note, check(t, checks, "libcupti.so.12").Status)

	_, checks = checkTensorFlow(m)
	session := check(t, checks, "session")
	assert.Equal(t, Problem, session.Status)
	assert.Equal(t, "opened; devices: CPU; a GPU was asked for", session.Found)
}

func TestGPUParts(t *testing.T) {
	without := func(names ...string) tree {
		rest := gpuMachine.with(nil)
		for _, n := range names {
			delete(rest, n)
		}
		return rest
	}
	for _, c := range []struct {
		name  string
		files tree
		want  Check
	}{
		{"driver mounted, no nodes", without("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"),
			Check{Name: "driver", Status: Warning, Found: "570.133.20, but no /dev/nvidia0: this container has no access to the GPU", Fix: giveGPU}},
		{"the driver's user part is missing", without("/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
			Check{Name: "libcuda.so.1", Status: Warning, Found: "not found",
				Fix: installDriver + "; in a container: `docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility`"}},
		{"old driver", gpuMachine.with(tree{"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel " +
			"Module  470.57.02  Tue Jul 13\n"}),
			Check{Name: "driver", Status: Warning, Found: "470.57.02 is too old for CUDA 12, which needs 525 or later",
				Fix: installDriver}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, check(t, gpuChecks(gpuBuild(box(c.files, nil))), c.want.Name))
		})
	}
}

func TestBuildForTheCPUOnAGPUMachine(t *testing.T) {
	checks := gpuChecks(box(gpuMachine, nil))
	assert.Equal(t, Note, check(t, checks, "TensorFlow").Status)
	assert.Equal(t, "not examined; not needed for the CPU", check(t, checks, "libraries").Found)
}

func TestGPUsOneByOne(t *testing.T) {
	h200 := gpu.GPU{ID: "0", Name: "NVIDIA H200", Memory: memory.Known(140 * memory.GiB),
		Used: memory.Known(1536 * memory.MiB)}
	unknown := gpu.GPU{ID: "1", Name: "NVIDIA GB10"}
	m := gpuBuild(box(gpuMachine, nil))
	m.gpus = func() gpuList {
		return gpuList{gpus: []gpu.GPU{h200, unknown}, err: errors.New("GPU 3 does\nnot answer")}
	}
	checks := gpuChecks(m)
	assert.Equal(t, Check{Name: "GPU 0", Found: "NVIDIA H200, 140.0 GiB; 1.5 GiB in use"}, check(t, checks, "GPU 0"))
	assert.Equal(t, Check{Name: "GPU 1", Status: Note, Found: "NVIDIA GB10; its memory is not known"},
		check(t, checks, "GPU 1"))
	assert.Equal(t, Check{Name: "libnvidia-ml.so.1", Status: Warning, Found: "GPU 3 does not answer", Fix: "follow this message, and check with `nvidia-smi`"}, check(t, checks, "libnvidia-ml.so.1"))

	h200.Memory, h200.Used = memory.Reading{}, memory.Reading{}
	m.gpus = func() gpuList { return gpuList{gpus: []gpu.GPU{h200}, why: "no cgo"} }
	assert.Equal(t, Check{Name: "GPU 0", Status: Note, Found: "NVIDIA H200; reports will not show its memory: no cgo"},
		check(t, gpuChecks(m), "GPU 0"))
}

// The memory in use is reported for each GPU of this machine, if it has any.
func TestSeveralGPUsInUse(t *testing.T) {
	if !testkit.NVMLChild(t, "-DGPUS=2", "-DSILENT=1") {
		return
	}
	gpus := listGPUs().gpus
	require.Len(t, gpus, 2)
	assert.Equal(t, memory.Known(100*memory.MiB), gpus[0].Used)
	assert.False(t, gpus[1].Used.OK)
}

// The reported memory in use does not include that of the examination itself.
func TestGPUsAreAskedBeforeTensorFlowOpens(t *testing.T) {
	m := box(gpuMachine, nil)
	try, opened, times := m.try, false, 0
	m.try = func() ([]tfbind.Device, error) { opened = true; return try() }
	m.gpus = func() gpuList { times++; assert.False(t, opened); return gpuList{} }
	examine(m)
	assert.True(t, opened)
	assert.Equal(t, 1, times)
}
