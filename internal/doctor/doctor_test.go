package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/tflibrary"
	"steadyfit/tfbind"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with testdata/name. If they differ, it writes got to a file beside it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if !assert.Equal(t, string(want), got, "if the new text is right: go test ./internal/doctor -update") {
		require.NoError(t, os.WriteFile(file+".got", []byte(got), 0o644))
	}
}

func TestTextOfAPlainMachine(t *testing.T) {
	r := examine(t.Context(), box(plain, map[string]string{"TF_GPU_MEMORY_ALLOW_GROWTH": "true"}))
	var b strings.Builder
	require.NoError(t, r.WriteText(&b))
	golden(t, "plain.txt", b.String())
	assert.Equal(t, Warning, r.Worst())
}

func TestTextOfAGPUMachine(t *testing.T) {
	var b strings.Builder
	m := gpuBuild(box(gpuMachine, nil))
	m.needGPU = true
	require.NoError(t, examine(t.Context(), m).WriteText(&b))
	golden(t, "gpu.txt", b.String())
}

func TestTextSharesAFix(t *testing.T) {
	r := Report{[]Check{
		{"A", "one", Warning, "slow", "hurry"},
		{"A", "two", Problem, "gone", "install it"},
		{"A", "three", Problem, "lost", "install it"},
		{"B", "four", Problem, "x", ""},
	}}
	var b strings.Builder
	require.NoError(t, r.WriteText(&b))
	_, tail, _ := strings.Cut(b.String(), "What to do\n")
	assert.Equal(t, `  1. A, two: gone
  2. A, three: lost
     -> install it
  3. B, four: x
  4. A, one: slow
     -> hurry

3 problems, 1 warning.
`, tail)
}

func TestTextErrors(t *testing.T) {
	assert.ErrorIs(t, Report{}.WriteText(failing{}), assert.AnError)
	var b strings.Builder
	require.NoError(t, Report{}.WriteText(&b))
	assert.Equal(t, "\nNothing is wrong.\n", b.String())
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, assert.AnError }

func TestJSON(t *testing.T) {
	r := Report{[]Check{{"CPU", "cores", Warning, "64", "fewer"}, {"CPU", "model", OK, "x", ""}}}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.Equal(t, `{"checks":[{"group":"CPU","name":"cores","status":"warning","found":"64","fix":"fewer"},{"group":"CPU","name":"model","status":"ok","found":"x"}]}`, string(text))
	assert.Equal(t, OK, Report{}.Worst())
}

func TestTheOrderAndNamesAreStable(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range examine(t.Context(), box(gpuMachine, map[string]string{"TF_XLA_FLAGS": "", "XLA_FLAGS": ""})).Checks {
		key := c.Group + "/" + c.Name
		assert.False(t, seen[key], key)
		seen[key] = true
		assert.NotEmpty(t, c.Found, key)
		assert.False(t, c.Status > Note && c.Fix == "", "%s has no fix", key)
	}
}

func TestTensorFlowMissing(t *testing.T) {
	m := box(plain, map[string]string{"TF_MKL_ALLOC_MAX_BYTES": "1"})
	m.locate = func(string) (tflibrary.Location, error) {
		return tflibrary.Location{}, &tflibrary.LoadError{Problem: "none was found", Fix: "run `make runtime`", Tried: []tflibrary.Attempt{
			{Source: "project .runtime", Reason: "no folder"}, {Source: "python3", Path: "/usr/lib/x", Reason: "does not exist"}}}
	}
	m.load = func(string) (tfbind.Info, error) {
		t.Error("opened what was not found")
		return tfbind.Info{}, nil
	}
	r := examine(t.Context(), m)
	assert.Equal(t, Problem, r.Worst())
	assert.Equal(t, Check{Group: "TensorFlow", Name: "library", Status: Problem,
		Found: "none was found; tried project .runtime: no folder; python3 /usr/lib/x: does not exist", Fix: "run `make runtime`"}, r.Checks[0])
	assert.Equal(t, "Environment", r.Checks[len(r.Checks)-1].Group, "the examination goes on")
}

func TestTensorFlowThatDoesNotOpen(t *testing.T) {
	for _, c := range []struct {
		name  string
		info  tfbind.Info
		err   error
		found string
		fix   string
	}{
		{"built without cgo", tfbind.Info{}, &tflibrary.LoadError{Problem: "this program was built without cgo", Fix: "build with CGO_ENABLED=1 and a C compiler"},
			"this program was built without cgo", "build with CGO_ENABLED=1 and a C compiler"},
		{"half a file", tfbind.Info{}, &tflibrary.LoadError{Problem: "/x cannot be opened", Fix: "again", Tried: []tflibrary.Attempt{{Source: "python3", Path: "/x", Reason: "file\ntoo short"}}},
			"/x cannot be opened: file too short", "again"},
		{"too old", tfbind.Info{Version: "2.4.0"}, &tflibrary.LoadError{Problem: "/x is TensorFlow 2.4.0; supported are 2.16 to 2.21", Fix: "newer"},
			"/x is TensorFlow 2.4.0; supported are 2.16 to 2.21", "newer"},
		{"another error", tfbind.Info{}, errors.New("odd"), "odd", "run `make runtime` in the steadyfit checkout, which fetches TensorFlow " + tflibrary.MaxVersion},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := box(plain, nil)
			m.load = func(string) (tfbind.Info, error) { return c.info, c.err }
			m.try = nil
			_, checks := checkTensorFlow(t.Context(), m, readProcessor(m.fs))
			assert.Equal(t, OK, check(t, checks, "library").Status)
			assert.Equal(t, Check{Name: "version", Status: Problem, Found: c.found, Fix: c.fix}, check(t, checks, "version"))
			assert.Equal(t, OK, check(t, checks, "oneDNN").Status)
		})
	}
}

func TestASessionThatFails(t *testing.T) {
	m := box(plain, nil)
	m.try = func(context.Context) ([]tfbind.Device, error) { return nil, errors.New("run: CUDA\nerror") }
	_, checks := checkTensorFlow(t.Context(), m, readProcessor(m.fs))
	assert.Equal(t, Check{Name: "session", Status: Problem, Found: "failed: run: CUDA error",
		Fix: "install that TensorFlow again (`make runtime`); if it names a GPU, hide the GPUs: CUDA_VISIBLE_DEVICES=-1"}, check(t, checks, "session"))
}

func TestASessionWithAGPU(t *testing.T) {
	m := gpuBuild(box(gpuMachine, nil))
	m.needGPU = true
	m.try = func(context.Context) ([]tfbind.Device, error) {
		return []tfbind.Device{{Name: "/job:localhost/replica:0/task:0/device:CPU:0", Type: "CPU"},
			{Name: "/job:localhost/replica:0/task:0/device:GPU:0", Type: "GPU", MemoryBytes: 8 << 30}}, nil
	}
	tf, checks := checkTensorFlow(t.Context(), m, readProcessor(m.fs))
	assert.True(t, tf.gpu && tf.hasGPU)
	assert.Equal(t, Check{Name: "session", Found: "ran an addition; devices: CPU:0, GPU:0 (up to 8.0 GiB)"}, check(t, checks, "session"))
	assert.Equal(t, "/opt/site-packages/tensorflow/libtensorflow_cc.so.2, for the CPU and GPU, found by python3", check(t, checks, "library").Found)

	// A library that TensorFlow found is not reported as missing.
	checks = checkGPU(m, tf)
	assert.Equal(t, Check{Name: "libcusolver.so.11", Status: Note, Found: "not found; TensorFlow uses a GPU nevertheless"}, check(t, checks, "libcusolver.so.11"))
	assert.Equal(t, "not found; needed only for several GPUs in one process", check(t, checks, "libnccl.so.2").Found)
}

// The library of a TensorFlow wheel ends the process that opens it on a CPU without AVX, so it must
// not be opened.
func TestCPUTooOldForTensorFlow(t *testing.T) {
	m := box(plain.with(tree{"/proc/cpuinfo": "model name : Celeron\nflags : sse2 ssse3\n"}), nil)
	m.load = func(string) (tfbind.Info, error) {
		t.Error("opened on a CPU without AVX")
		return tfbind.Info{}, nil
	}
	r := examine(t.Context(), m)
	assert.Equal(t, "not opened: it needs a CPU with AVX", check(t, r.Checks, "version").Found)
	assert.Equal(t, "no AVX: TensorFlow's wheels crash on this CPU", check(t, r.Checks, "instructions").Found)
}

func TestExamineStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(assert.AnError)
	assert.Equal(t, Report{[]Check{{"TensorFlow", "examination", Problem, "stopped before this part: " + assert.AnError.Error(), "run `steadyfit doctor` again"}}},
		examine(ctx, box(plain, nil)))
}

func TestOneDNN(t *testing.T) {
	on := map[string]string{"TF_ENABLE_ONEDNN_OPTS": "1"}
	off := map[string]string{"TF_ENABLE_ONEDNN_OPTS": "False"}
	for _, c := range []struct {
		name, cpu     string
		env           map[string]string
		oneDNN, alloc string
		status        Status
	}{
		{"default on a new CPU", newCPU, nil, "on, by default on this CPU", "oneDNN's pool, which holds its memory until the process ends", OK},
		{"default on an older CPU", zen2, nil, "off, by default on a CPU without AVX512_VNNI, AVX_VNNI, AVX512_BF16 and AMX: convolutions were measured 2.3 times slower than with oneDNN (AMD EPYC with AVX2), and small dense models as fast", "malloc", Warning},
		{"default on Neoverse V1", "Features : asimd\nCPU implementer : 0x41\nCPU part : 0xd40\n", nil, "on, by default on this CPU", "oneDNN's pool, which holds its memory until the process ends", OK},
		{"asked for", zen2, on, "on (TF_ENABLE_ONEDNN_OPTS)", "oneDNN's pool, which holds its memory until the process ends", OK},
		{"switched off", newCPU, off, "off (TF_ENABLE_ONEDNN_OPTS): convolutions were measured 4 times slower; memory comes from malloc", "malloc", Warning},
		{"system allocator", newCPU, map[string]string{"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "true"}, "on, by default on this CPU",
			"malloc (TF_ONEDNN_USE_SYSTEM_ALLOCATOR): memory can be returned to the system; steps of an image model were measured 1.8 times slower", OK},
		{"limited", newCPU, map[string]string{"TF_MKL_ALLOC_MAX_BYTES": "1073741824"}, "on, by default on this CPU",
			"oneDNN's pool, which holds its memory until the process ends; at most 1.0 GiB (TF_MKL_ALLOC_MAX_BYTES)", OK},
		{"unknown CPU", "", nil, "unknown: it depends on the CPU's instructions", "unknown: it depends on oneDNN", Note},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := box(tree{"/proc/cpuinfo": c.cpu}, c.env)
			p := readProcessor(m.fs)
			got := oneDNN(m, p)
			assert.Equal(t, c.oneDNN, got.Found)
			assert.Equal(t, c.status, got.Status)
			assert.Equal(t, c.alloc, poolAllocator(m, p).Found)
		})
	}
}

func TestCPU(t *testing.T) {
	for _, c := range []struct {
		name, cpu          string
		instructions, half string
		worst              Status
	}{
		{"AMX", "flags : sse2 avx avx2 fma avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16\n", "AVX, AVX2, FMA, AVX-512, AVX512_BF16, AVX512_FP16, AMX, AMX_BF16",
			"bfloat16 in hardware (AMX_BF16): models exported in mixed_bfloat16 save memory and time; float16 is in hardware, too", OK},
		{"AVX-512", "flags : sse2 avx avx2 fma avx512f\n", "AVX, AVX2, FMA, AVX-512", "bfloat16 is emulated with AVX-512: it saves memory, not time", Note},
		{"AVX2", zen2, "AVX, AVX2, FMA", "no bfloat16 in hardware: measure models exported with it before relying on it", Note},
		{"AVX", "flags : sse2 avx\n", "AVX; without AVX2 and FMA, matrix products run at a fraction of the speed", "no bfloat16 in hardware: measure models exported with it before relying on it", Warning},
		{"ARM", "Features : asimd sve bf16 i8mm\n", "NEON, SVE, BF16, I8MM", "bfloat16 in hardware (BF16): measure models exported with it before relying on it", Note},
		{"unknown", "", "unknown: this system has no /proc/cpuinfo", "unknown", Note},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := readProcessor(tree{"/proc/cpuinfo": c.cpu}.fs())
			i, h := instructions(p), halfPrecision(p)
			assert.Equal(t, c.instructions, i.Found)
			assert.Equal(t, c.half, h.Found)
			assert.Equal(t, c.worst, max(i.Status, h.Status))
		})
	}
}

func TestExamineThisMachine(t *testing.T) {
	if _, err := tfbind.Load(""); err != nil {
		t.Skipf("needs TensorFlow: set %s to a folder that holds it, and build with cgo", tflibrary.EnvLibrary)
	}
	r := Examine(t.Context(), Options{})
	session := check(t, r.Checks, "session")
	assert.Equal(t, OK, session.Status, session.Found)
	assert.Contains(t, session.Found, "CPU:0")
	live := tfbind.Live()
	assert.Zero(t, live.Tensors+live.Graphs+live.Sessions, "%+v", live)
}
