package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/gpu"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/testkit"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// besidePool is more than the GPU memory of a process outside TensorFlow's pool: CUDA's context, the
// code of the kernels, the workspaces of cuBLAS and cuDNN.
const besidePool = 2 * memory.GiB

// requireGPU skips a test if TensorFlow has no GPU to use, with the reason.
func requireGPU(t *testing.T) *gpu.Driver {
	t.Helper()
	driver, err := gpu.Open()
	if driver.Why() != "" {
		t.Skipf("this needs a GPU: %s; `make test-gpu` runs it on a machine that has one", driver.Why())
	}
	require.NoError(t, err)
	out, err := program(t, "doctor", "--gpu", "--json").Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
		return driver
	}
	var report doctorReport
	require.NoError(t, json.Unmarshal(out, &report), "%s%s", out, exit.Stderr)
	var reasons []string
	for _, c := range report.Checks {
		if c.Status == "problem" {
			reasons = append(reasons, c.Name+": "+c.Found)
		}
	}
	t.Skipf("this needs a TensorFlow that can use the GPU: %s; `make test-gpu` fetches one", strings.Join(reasons, "; "))
	return nil
}

// doctorReport is the output of doctor --json.
type doctorReport struct{ Checks []doctorCheck }

type doctorCheck struct{ Name, Status, Found string }

// inUse returns the memory in use on all GPUs.
func inUse(driver *gpu.Driver) (used memory.Reading) {
	driver.Source(0)(func(l memory.Layer, r memory.Reading) {
		if l == memlayer.GPUUsed {
			used = r
		}
	})
	return used
}

// mostOnGPU runs a program to its end and returns the peak of its GPU memory. If the driver does
// not report that for the process (in a container with its own process IDs), it returns the
// increase in use of all GPUs.
func mostOnGPU(t *testing.T, driver *gpu.Driver, cmd *exec.Cmd) memory.Bytes {
	t.Helper()
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	before := inUse(driver)
	var used, own memory.Reading
	require.NoError(t, cmd.Start())
	source := driver.Source(cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	larger := func(most *memory.Reading, r memory.Reading) {
		if r.OK && (!most.OK || r.Bytes > most.Bytes) {
			*most = r
		}
	}
	for {
		select {
		case err := <-ended:
			require.NoError(t, err, "%s", &output)
			switch {
			case own.OK:
				return own.Bytes
			case used.OK && before.OK:
				t.Log("the driver does not list this process and reports only the memory of the whole device")
				return used.Bytes - before.Bytes
			}
			t.Skip("the driver tells neither the memory of a process nor that of the device")
		case <-tick.C:
			source(func(l memory.Layer, r memory.Reading) {
				switch l {
				case memlayer.GPUProcess:
					larger(&own, r)
				case memlayer.GPUUsed:
					larger(&used, r)
				}
			})
		}
	}
}

// shortFit trains for several seconds.
func shortFit(t *testing.T, flags ...string) *exec.Cmd {
	t.Helper()
	return program(t, append([]string{"fit", "--model", "builtin:digits-cnn", "--data", "builtin:digits", "--validation",
		"builtin:digits",
		"--epochs", "5", "--seed", "1"}, flags...)...)
}

func TestOnGPUMemory(t *testing.T) {
	driver := requireGPU(t)
	total := driver.GPUs()[0].Memory
	if !total.OK || total.Bytes < 8*memory.GiB {
		t.Skipf("this needs a first GPU with 8 GiB, to tell the limits from what CUDA itself takes; it has %v", total)
	}
	for _, c := range []struct {
		name  string
		flags []string
		most  memory.Bytes
	}{
		{"growth", []string{"--memory-growth"}, besidePool + memory.GiB},
		{"fraction", []string{"--gpu-memory-fraction", "0.2"}, total.Bytes/5 + besidePool},
		{"limit", []string{"--gpu-memory-limit", "1GiB"}, memory.GiB +
			besidePool},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := mostOnGPU(t, driver, shortFit(t, append(c.flags, "--visible-gpus", "0")...))
			t.Logf("%v of %v", got, total)
			assert.Less(t, got, c.most)
			assert.Positive(t, got)
		})
	}
	t.Run("as TensorFlow would", func(t *testing.T) {
		got := mostOnGPU(t, driver, shortFit(t, "--visible-gpus", "0"))
		t.Logf("%v of %v", got, total)
		assert.Greater(t, got, total.Bytes/2, "TensorFlow takes nearly all that is free; is something else on this GPU?")
	})
}

// TensorFlow reports the settings of a run on a GPU that were requested.
func TestOnGPUInForce(t *testing.T) {
	total := requireGPU(t).GPUs()[0].Memory
	inForce := func(t *testing.T, flags ...string) string {
		t.Helper()
		cmd := shortFit(t, append(flags, "--visible-gpus", "0", "--epochs", "1", "--steps-per-epoch", "3")...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		line := regexp.MustCompile(`(?m)^resolved settings: .*$`).FindString(string(out))
		t.Log(line)
		require.Contains(t, line, "GPU:0", "%s", out)
		require.NotContains(t, string(out), "level=WARN", "%s", out)
		return line
	}
	t.Run("limit", func(t *testing.T) {
		line := inForce(t, "--gpu-memory-limit", "1GiB")
		assert.Contains(t, line, "GPU:0 (up to 1.0 GiB)")
	})
	t.Run("fraction", func(t *testing.T) {
		if !total.OK {
			t.Skip("the driver does not tell how much memory the GPU has")
		}
		line := inForce(t, "--gpu-memory-fraction", "0.2")
		found := regexp.MustCompile(`GPU:0 \(up to (.*?)\)`).FindStringSubmatch(line)
		require.NotNil(t, found, line)
		limit, err := texts.ParseBytes[memory.Bytes](found[1])
		require.NoError(t, err)
		assert.InEpsilon(t, float64(total.Bytes)/5, float64(limit), 0.1,
			"CUDA counts less than NVML, which has what the driver reserves")
	})
	t.Run("cuda_malloc_async", func(t *testing.T) { inForce(t, "--gpu-allocator", "cuda_malloc_async") })
	// The validation has two convolutions in a row. If TensorFlow rewrites them as for
	// a CPU, it aborts.
	t.Run("float16", func(t *testing.T) {
		trace := filepath.Join(t.TempDir(), "trace.json")
		inForce(t, "--memory-growth", "--precision", "fp16", "--profile", "steps=2:2,file="+trace)
		text, err := os.ReadFile(trace)
		require.NoError(t, err)
		assert.Contains(t, string(text), "AutoMixedPrecision", "rewriting takes a GPU of compute capability 7.0")
	})
}

// The history has the GPU memory of the process, which is more than TensorFlow's pool.
func TestOnGPUHistoryHasItsMemory(t *testing.T) {
	driver := requireGPU(t)
	if !inUse(driver).OK {
		t.Skip("the driver does not tell how much memory is in use")
	}
	var all memory.Bytes
	for _, g := range driver.GPUs() {
		all += g.Memory.Bytes
	}
	path := filepath.Join(t.TempDir(), "history.jsonl")
	out, err := shortFit(t, "--visible-gpus", "0", "--gpu-memory-limit", "1GiB", "--history", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	records := recordsOf(t, path)
	require.Len(t, records, 5)
	for _, r := range records {
		has := memory.Bytes(r["gpu_bytes"].(float64))
		t.Logf("%v of %v", has, all)
		assert.Greater(t, has, memory.GiB, "the pool, CUDA's context and code")
		assert.Less(t, has, all)
	}
}

func TestOnGPUDoctorSaysWhatIsInUse(t *testing.T) {
	driver := requireGPU(t)
	if len(driver.GPUs()) > 1 || !inUse(driver).OK {
		t.Skip("this needs a single GPU whose driver tells how much of its memory is in use")
	}
	out, err := program(t, "doctor", "--gpu", "--json").Output()
	require.NoError(t, err)
	var report doctorReport
	require.NoError(t, json.Unmarshal(out, &report), "%s", out)
	i := slices.IndexFunc(report.Checks, func(c doctorCheck) bool { return c.Name == "GPU "+driver.GPUs()[0].ID })
	require.NotEqual(t, -1, i, "%s", out)
	assert.Regexp(t, `; [0-9.]+ [KMGT]?i?B in use$`, report.Checks[i].Found)
}

// A missing GPU is an error of the environment, and nothing is trained.
func TestOnGPUMissingIndex(t *testing.T) {
	requireGPU(t)
	out, err := shortFit(t, "--visible-gpus", "63").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	assert.Equal(t, exitEnvironment, exit.ExitCode(), "%s", out)
	assert.Contains(t, string(out), "63")
	assert.NotContains(t, string(out), "epoch 1/")
}

// A GPU adds in another order, so the numbers differ, but the accuracy is similar.
func TestOnGPULearnsTheSame(t *testing.T) {
	requireGPU(t)
	accuracy := func(env ...string) float64 {
		history := filepath.Join(t.TempDir(), "history.jsonl")
		cmd := shortFit(t, "--memory-growth", "--history", history)
		cmd.Env = append(cmd.Env, env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		records := recordsOf(t, history)
		return records[len(records)-1]["val_accuracy"].(float64)
	}
	onCPU, onGPU := accuracy("CUDA_VISIBLE_DEVICES=-1"), accuracy()
	t.Logf("val_accuracy on the CPU %v, on the GPU %v", onCPU, onGPU)
	assert.Greater(t, onGPU, 0.8)
	assert.InDelta(t, onCPU, onGPU, 0.03)
}

// The driver stays open while the matrix runs.
//
//lane:skip race (its children run alone)
func TestMatrixSamplesTheGPU(t *testing.T) {
	dir := t.TempDir()
	testkit.CompileNVML(t, filepath.Join(dir, "libnvidia-ml.so.1"), "-DNEW")
	cmd := program(t, "matrix", "--workloads", "W0", "--remedies", "W0/gc-epoch", "--pairs", "1", "--out",
		filepath.Join(dir, "results"))
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitCheck { // the calibration may fail on a busy machine
		require.NoError(t, err, "%s", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "results", "runs.jsonl"))
	require.NoError(t, err)
	runs := 0
	for line := range strings.Lines(string(text)) {
		var run struct {
			Series struct {
				Max map[memory.Layer]int64
			}
		}
		require.NoError(t, json.Unmarshal([]byte(line), &run))
		assert.EqualValues(t, 100*memory.MiB, run.Series.Max[memlayer.GPUUsed], "what the driver of the test reports")
		runs++
	}
	assert.Equal(t, 3, runs)
}
