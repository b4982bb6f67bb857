package doctor

import (
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
	r := examine(box(plain, map[string]string{"TF_FORCE_GPU_ALLOW_GROWTH": "1"}))
	var b strings.Builder
	require.NoError(t, r.WriteText(&b))
	golden(t, "plain.txt", b.String())
	assert.Equal(t, Warning, r.Worst())
}

func TestTextOfAGPUMachine(t *testing.T) {
	var b strings.Builder
	m := gpuBuild(box(gpuMachine, nil))
	m.needGPU = true
	require.NoError(t, examine(m).WriteText(&b))
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
	assert.Equal(t, `A
  WARNING  one                     slow
                                   -> hurry
  PROBLEM  two                     gone
  PROBLEM  three                   lost
                                   -> install it

B
  PROBLEM  four                    x
`, b.String())
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
	for _, c := range examine(box(gpuMachine,
		map[string]string{"TF_XLA_FLAGS": "", "XLA_FLAGS": ""})).Checks {
		key := c.Group + "/" + c.Name
		assert.False(t, seen[key], key)
		seen[key] = true
		assert.NotEmpty(t, c.Found, key)
		assert.False(t, c.Status > Note && c.Fix == "", "%s has no fix", key)
	}
}

func TestTensorFlowMissing(t *testing.T) {
	m := box(plain, nil)
	m.locate = func(string) (tflibrary.Location, error) {
		return tflibrary.Location{}, &tflibrary.LoadError{Problem: "none was found", Fix: "run `make runtime`", Tried: []tflibrary.Attempt{
			{Source: "project .runtime", Reason: "no folder"},
			{Source: "python3", Path: "/usr/lib/x", Reason: "does not exist"}}}
	}
	m.load = func(string) (tfbind.Info, error) {
		t.Error("opened what was not found")
		return tfbind.Info{}, nil
	}
	r := examine(m)
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
		{"built without cgo", tfbind.Info{}, &tflibrary.LoadError{Problem: "this program was built without cgo",
			Fix: "build with CGO_ENABLED=1 and a C compiler"},
			"this program was built without cgo", "build with CGO_ENABLED=1 and a C compiler"},
		{"half a file", tfbind.Info{}, &tflibrary.LoadError{Problem: "/x cannot be opened", Fix: "again",
			Tried: []tflibrary.Attempt{{Source: "python3", Path: "/x", Reason: "file\ntoo short"}}},
			"/x cannot be opened; tried python3 /x: file too short", "again"},
		{"too old", tfbind.Info{Version: "2.4.0"}, &tflibrary.LoadError{Problem: "/x is TensorFlow 2.4.0; supported are " +
			"2.16 to 2.21", Fix: "newer"},
			"/x is TensorFlow 2.4.0; supported are 2.16 to 2.21", "newer"},
		{"another error", tfbind.Info{}, errors.New("odd"), "odd", "run `make runtime` in the steadyfit checkout, which fetches TensorFlow " + tflibrary.MaxVersion},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := box(plain, nil)
			m.load = func(string) (tfbind.Info, error) { return c.info, c.err }
			m.try = nil
			_, checks := checkTensorFlow(m)
			assert.Equal(t, OK, check(t, checks, "library").Status)
			assert.Equal(t, Check{Name: "version", Status: Problem, Found: c.found, Fix: c.fix}, check(t, checks, "version"))
			assert.Equal(t, OK, check(t, checks, "oneDNN").Status)
		})
	}
}

func TestASessionThatFails(t *testing.T) {
	m := box(plain, nil)
	m.try = func() ([]tfbind.Device, error) { return nil, errors.New("run: CUDA\nerror") }
	_, checks := checkTensorFlow(m)
	assert.Equal(t, Check{Name: "session", Status: Problem, Found: "failed: run: CUDA error",
		Fix: "install that TensorFlow again (`make runtime`); if it names a GPU, hide the GPUs: CUDA_VISIBLE_DEVICES=-1"}, check(t, checks, "session"))
}

func TestASessionWithAGPU(t *testing.T) {
	m := gpuBuild(box(gpuMachine, nil))
	m.needGPU = true
	m.try = func() ([]tfbind.Device, error) {
		return []tfbind.Device{{Name: "/job:localhost/replica:0/task:0/device:CPU:0", Type: "CPU"},
			{Name: "/job:localhost/replica:0/task:0/device:GPU:0", Type: "GPU", MemoryBytes: 8 << 30}}, nil
	}
	tf, checks := checkTensorFlow(m)
	assert.True(t, tf.gpu && tf.hasGPU)
	assert.Equal(t, Check{Name: "session", Found: "opened; devices: CPU, GPU:0 (up to 8.0 GiB)"},
		check(t, checks, "session"))
	assert.Equal(t, "/opt/site-packages/tensorflow/libtensorflow_cc.so.2, for the CPU and GPU, found by python3",
		check(t, checks, "library").Found)

	// A library that TensorFlow found is not reported as missing.
	checks = checkGPU(m, tf, gpuList{})
	assert.Equal(t, Check{Name: "libcusolver.so.11", Status: Note, Found: "not found; TensorFlow uses a GPU nevertheless"},
		check(t, checks, "libcusolver.so.11"))
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
	r := examine(m)
	assert.Equal(t, "not opened: it needs a CPU with AVX", check(t, r.Checks, "version").Found)
	assert.Equal(t, "no AVX: TensorFlow's wheels crash on this CPU", check(t, r.Checks, "instructions").Found)
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
		{"default on a new CPU", newCPU, nil, "on, by default on this CPU",
			"oneDNN's pool, which holds its memory until the process ends", OK},
		{"default on an older CPU", zen2, nil, "off, by default on a CPU without AVX512_VNNI, AVX_VNNI, AVX512_BF16 and " +
			"AMX: convolutions were measured 2.3 times slower than with oneDNN (AMD EPYC with AVX2), and small dense models " +
			"as fast", "malloc", Warning},
		{"asked for", zen2, on, "on (TF_ENABLE_ONEDNN_OPTS)", "oneDNN's pool, which holds its memory until the process ends",
			OK},
		{"switched off", newCPU, off, "off (TF_ENABLE_ONEDNN_OPTS): convolutions were measured 4 times slower; memory " +
			"comes from malloc", "malloc", Warning},
		{"system allocator", newCPU, map[string]string{"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "true"},
			"on, by default on this CPU",
			"malloc (TF_ONEDNN_USE_SYSTEM_ALLOCATOR): memory can be returned to the system; steps of an image model were " +
				"measured 1.8 times slower", OK},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := box(tree{"/proc/cpuinfo": c.cpu}, c.env)
			got := oneDNN(m)
			assert.Equal(t, c.oneDNN, got.Found)
			assert.Equal(t, c.status, got.Status)
			assert.Equal(t, c.alloc, poolAllocator(m).Found)
		})
	}
}

func TestInstructions(t *testing.T) {
	for _, c := range []struct {
		name, cpu, want string
		status          Status
	}{
		{"AMX", "flags : sse2 avx avx2 fma avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16\n",
			"AVX, AVX2, FMA, AVX-512, AVX512_BF16, AVX512_FP16, AMX_BF16", OK},
		{"AVX2", zen2, "AVX, AVX2, FMA", OK},
		{"AVX", "flags : sse2 avx\n", "AVX; without AVX2 and FMA, matrix products run at a fraction of the speed", Warning},
		{"unknown", "", "unknown", Note},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := instructions(box(tree{"/proc/cpuinfo": c.cpu}, nil).cpu)
			assert.Equal(t, c.want, got.Found)
			assert.Equal(t, c.status, got.Status)
		})
	}
}

func TestExamineThisMachine(t *testing.T) {
	if _, err := tfbind.Load(""); err != nil {
		t.Skipf("needs TensorFlow: set %s to a folder that holds it, and build with cgo", tflibrary.EnvLibrary)
	}
	r := Examine(Options{})
	session := check(t, r.Checks, "session")
	assert.Equal(t, OK, session.Status, session.Found)
	assert.Contains(t, session.Found, "CPU")
	live := tfbind.Live()
	assert.Zero(t, live.Tensors+live.Graphs+live.Sessions, "%+v", live)
}
