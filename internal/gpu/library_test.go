//go:build linux && cgo && (amd64 || arm64)

package gpu

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/testkit"
	"steadyfit/memory"
)

// reportTo names the file in which a child with a library of package testkit writes its report.
const reportTo = "STEADYFIT_TEST_GPU_REPORT"

type found struct {
	Why         string
	GPUs        []GPU
	Sample      map[memory.Layer]memory.Bytes // known readings
	Allocations float64
}

func known(s memory.Source) map[memory.Layer]memory.Bytes {
	m := map[memory.Layer]memory.Bytes{}
	s(func(l memory.Layer, r memory.Reading) {
		if r.OK {
			m[l] = r.Bytes
		}
	})
	return m
}

// The structs of NVML have the same layout in C and Go.
func TestLayout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "layout.so")
	testkit.CompileNVML(t, file, "-DNEW")
	library, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	defer func() { require.NoError(t, purego.Dlclose(library)) }()
	var ask func(into *uint64, room uint32) uint32
	purego.RegisterLibFunc(&ask, library, "layout")
	c := make([]uint64, 64)
	c = c[:ask(&c[0], uint32(len(c)))]
	var (
		m2 memoryInfo
		p1 processInfo
	)
	require.Equal(t, []uint64{
		uint64(unsafe.Sizeof(m2)), uint64(unsafe.Offsetof(m2.version)), uint64(unsafe.Offsetof(m2.total)),
		uint64(unsafe.Offsetof(m2.reserved)), uint64(unsafe.Offsetof(m2.free)), uint64(unsafe.Offsetof(m2.used)),
		uint64(unsafe.Sizeof(p1)), uint64(unsafe.Offsetof(p1.pid)), uint64(unsafe.Offsetof(p1.used)),
		uint64(unsafe.Offsetof(p1.gpuInstance)), uint64(unsafe.Offsetof(p1.computeInstance)),
	}, c)
}

// The loader looks up a library once per process, so each library needs a process.
func TestLibraries(t *testing.T) {
	if file := os.Getenv(reportTo); file != "" {
		report(t, file)
		return
	}
	gib, used := memory.Known(1000<<20), memory.Known(100<<20)
	for _, c := range []struct {
		name, flag string
		gpus       []GPU
		sample     map[memory.Layer]memory.Bytes
		most       float64
	}{
		{"new", "-DNEW", []GPU{{"0", "Test GPU", gib, used}},
			map[memory.Layer]memory.Bytes{memlayer.GPUUsed: 100 << 20, memlayer.GPUProcess: 7 << 20}, 8},
		{"forbidden", "-DFORBIDDEN", []GPU{{"0", "Test GPU", gib, used}},
			map[memory.Layer]memory.Bytes{memlayer.GPUUsed: 100 << 20}, 8},
		{"two", "-DGPUS=2", []GPU{{"0", "Test GPU", gib, used}, {"1", "Test GPU", gib, used}},
			map[memory.Layer]memory.Bytes{memlayer.GPUUsed: 200 << 20, memlayer.GPUProcess: 14 << 20}, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			testkit.CompileNVML(t, filepath.Join(dir, "libnvidia-ml.so.1"), c.flag)
			program, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestLibraries$", "-test.count=1")
			file := filepath.Join(dir, "report.json")
			cmd.Env = append(os.Environ(), reportTo+"="+file, "LD_LIBRARY_PATH="+dir)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var got found
			require.NoError(t, json.Unmarshal(text, &got))
			require.Empty(t, got.Why)
			require.Equal(t, c.gpus, got.GPUs)
			require.Equal(t, c.sample, got.Sample)
			t.Logf("%v allocations per sample", got.Allocations)
			require.LessOrEqual(t, got.Allocations, c.most)
		})
	}
}

func report(t *testing.T, file string) {
	var f found
	d, err := Open()
	require.NoError(t, err)
	f.Why, f.GPUs = d.Why(), d.GPUs()
	s := d.Source(0)
	require.NotNil(t, s)
	f.Sample = known(s)
	add := func(memory.Layer, memory.Reading) {}
	f.Allocations = testing.AllocsPerRun(100, func() { s(add) })
	text, err := json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o644))
}
