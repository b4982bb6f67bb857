package doctor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/tflibrary"
)

func TestVariables(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        Check
	}{
		{"TF_GPU_MEMORY_ALLOW_GROWTH", "true", Check{Status: Warning, Found: "true: not read by TensorFlow 2.21.0, so it changes nothing",
			Fix: "`unset TF_GPU_MEMORY_ALLOW_GROWTH`; alternative: TF_FORCE_GPU_ALLOW_GROWTH=true, or {Options.MemoryGrowth}"}},
		{"TF_FORCE_GPU_ALLOW_GROWTH", "true", Check{Status: Note, Found: "true: takes GPU memory as it is needed, whatever the session asks for; without effect in a build for the CPU"}},
		{"TF_FORCE_GPU_ALLOW_GROWTH", "1", Check{Status: Warning, Found: "1: TensorFlow cannot read this value",
			Fix: "set TF_FORCE_GPU_ALLOW_GROWTH to true or false, in lower case (1 and 0 are not recognized)"}},
		{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "512", Check{Status: Note, Found: "512: leaves this much of each GPU free and takes the rest, instead of --gpu-memory-fraction; without effect in a build for the CPU"}},
		{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB", "-1", Check{Status: Warning, Found: "-1: TensorFlow cannot read this value", Fix: "set TF_DEVICE_MIN_SYS_MEMORY_IN_MB to a number of MB without a unit"}},
		{"TF_FORCE_UNIFIED_MEMORY", "1", Check{Status: Warning, Found: "1: read by XLA's own clients, such as JAX, and not by a session of TensorFlow, so it changes nothing",
			Fix: "`unset TF_FORCE_UNIFIED_MEMORY`; alternative: Options.UnifiedMemory of gpuopts, in Go"}},
		{"TF_MKL_ALLOC_MAX_BYTES", "300000000", Check{Found: "300000000 (286.1 MiB): limits oneDNN's pool; a step that needs more fails"}},
		{"TF_MKL_ALLOC_MAX_BYTES", "300MB", Check{Status: Warning, Found: "300MB: TensorFlow cannot read this value", Fix: "set TF_MKL_ALLOC_MAX_BYTES to a number of bytes without a unit"}},
		{"TF_ENABLE_ONEDNN_OPTS", "off", Check{Status: Warning, Found: "off: TensorFlow cannot read this value", Fix: "set TF_ENABLE_ONEDNN_OPTS to 0, 1, true or false"}},
		{"TF_ENABLE_ONEDNN_OPTS", "0", Check{Found: "0: turns oneDNN on or off"}},
		{"TF_ENABLE_ONEDNN_OPT", "0", Check{Status: Warning, Found: "not read by TensorFlow; did you mean TF_ENABLE_ONEDNN_OPTS?", Fix: "`unset TF_ENABLE_ONEDNN_OPT; export TF_ENABLE_ONEDNN_OPTS=...`"}},
		{"TF_GRAPH_CACHING", "1", Check{Found: "read by TensorFlow 2.21.0"}},
		{"TF_VAR_password", "secret", Check{Status: Note, Found: "not read by TensorFlow 2.21.0; it may be another program's"}},
		{"OMP_NUM_THREADS", "4", Check{Status: Warning, Found: "4: not read by TensorFlow 2.21.0, so it changes nothing",
			Fix: "`unset OMP_NUM_THREADS`; alternative: TF_NUM_INTRAOP_THREADS, or {Options.IntraThreads N}"}},
		{"TF_USE_LEGACY_KERAS", "1", Check{Status: Note, Found: "1: chooses Keras 2 in Python; steadyfit does not run Python for training"}},
		{"TF_CONFIG", strings.Repeat("x ", 100), Check{Found: "x x x x x x x x x x x x x x x x x x x x x x x x x x x x x...: describes a cluster, which fit joins"}},
		{"NVIDIA_TF32_OVERRIDE", "0", Check{Status: Note, Found: "0: 0 keeps cuBLAS and cuDNN from computing float32 in TensorFloat-32; without effect in a build for the CPU"}},
		{"CUDA_VISIBLE_DEVICES", "", Check{Status: Note, Found: `"": which GPUs CUDA shows; without effect in a build for the CPU`}},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			m := box(plain, map[string]string{c.name: c.value, "PATH": "/bin"})
			tf, _ := checkTensorFlow(t.Context(), m, readProcessor(m.fs))
			c.want.Name = c.name
			assert.Equal(t, []Check{c.want}, checkVariables(m, tf))
		})
	}
}

func TestNoVariables(t *testing.T) {
	assert.Equal(t, []Check{{Name: "variables", Found: "none set that TensorFlow reads"}}, checkVariables(box(plain, map[string]string{"PATH": "/bin"}), tensorFlow{}))
}

func TestVariablesWithoutTensorFlow(t *testing.T) {
	checks := checkVariables(box(plain, map[string]string{"TF_SOMETHING_ELSE": "1", "TF_GPU_MEMORY_ALLOW_GROWTH": "1"}), tensorFlow{})
	assert.Equal(t, "not known to steadyfit", check(t, checks, "TF_SOMETHING_ELSE").Found)
	assert.Equal(t, "1: not read by this TensorFlow, so it changes nothing", check(t, checks, "TF_GPU_MEMORY_ALLOW_GROWTH").Found)
}

// The table agrees with the TensorFlow library on this machine.
func TestVariablesAgreeWithTheLibrary(t *testing.T) {
	location, err := tflibrary.Locate("")
	if err != nil {
		t.Skipf("needs TensorFlow: set %s to a folder that holds it", tflibrary.EnvLibrary)
	}
	var names []string
	for name := range variables {
		names = append(names, name)
	}
	held, err := elfContains([]string{location.Library, location.Framework}, names)
	require.NoError(t, err)
	for name, v := range variables {
		switch {
		case !searched(name):
		case v.reader == byTensorFlow:
			assert.True(t, held[name], "%s is said to be read, and the library does not contain it", name)
		case v.reader == byNobody:
			assert.False(t, held[name], "%s is said to be read by nobody, and the library contains it", name)
		}
	}
}
