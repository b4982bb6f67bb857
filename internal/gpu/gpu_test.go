package gpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// The assertions are for machines without a driver.
func TestOpenThisMachine(t *testing.T) {
	d, err := Open()
	_, absent := os.Stat("/dev/nvidiactl")
	libraries, _ := filepath.Glob("/usr/lib*/**/libnvidia-ml.so.1")
	if absent == nil || len(libraries) > 0 {
		t.Logf("%v (%v): %s", d.GPUs(), err, d.Why())
		t.Skip("this machine has a driver of NVIDIA; the test is of one without")
	}
	require.NoError(t, err)
	require.Empty(t, d.GPUs())
	require.NotEmpty(t, d.Why())
	require.Nil(t, d.Source(0))
	require.Nil(t, d.Source(1))
}

// A program that refers to NVML functions by name does not start if all functions are bound at the start
// (go-nvml#131).
func TestStartsWithAllFunctionsBound(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestKernel$")
	cmd.Env = append(os.Environ(), "LD_BIND_NOW=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "PASS")
}

const information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 181\nGPU UUID: \t GPU-1\nBus Location: \t " +
	"0000:19:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n"

func TestKernel(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	root := fstest.MapFS{
		"proc/driver/nvidia/gpus/0000:19:00.0/information": file(information),
		"proc/driver/nvidia/gpus/0000:3b:00.0/information": file("Model: Tesla T4\nDevice Minor: 7\n"),
		"proc/driver/nvidia/gpus/0000:5d:00.0/information": file("nothing known"),
		"proc/driver/nvidia/gpus/0000:5d:00.0/registry":    file(""),
		"proc/driver/nvidia/gpus/0000:9b:00.0/registry":    file(""),
		"dev/nvidia0": file(""),
	}
	require.Empty(t, Kernel(root), "a container that was given no GPU shows the host's")
	root["dev/nvidia7"] = file("")
	require.Equal(t, []GPU{{ID: "0", Name: "Tesla T4"}}, Kernel(root))
	root["dev/nvidia3"] = file("")
	require.Equal(t, []GPU{{ID: "0", Name: "NVIDIA H200"}, {ID: "1", Name: "Tesla T4"}}, Kernel(root))
	require.Empty(t, Kernel(fstest.MapFS{}))
	require.Equal(t, "GPU 4", GPU{ID: "4"}.String())
}
