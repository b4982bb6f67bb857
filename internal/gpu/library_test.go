//go:build linux && cgo && (amd64 || arm64)

package gpu

import (
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/testkit"
	"steadyfit/memory"
)

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

// A program opens libraries of the driver, once, and reads the memory of its process.
func TestLibraries(t *testing.T) {
	size, used := memory.Known(1000<<20), memory.Known(100<<20)
	for _, c := range []struct {
		name, flag string
		gpus       []GPU
		sample     amounts
		most       float64 // allocations of a sample
	}{
		{"new", "-DNEW", []GPU{{"0", "Test GPU", size, used}},
			amounts{{memlayer.GPUUsed, 100 << 20}, {memlayer.GPUProcess, 7 << 20}}, 8},
		{"forbidden", "-DFORBIDDEN", []GPU{{"0", "Test GPU", size, used}},
			amounts{{memlayer.GPUUsed, 100 << 20}, {memlayer.GPUProcess, unknown}}, 8},
		{"two", "-DGPUS=2", []GPU{{"0", "Test GPU", size, used}, {"1", "Test GPU", size, used}},
			amounts{{memlayer.GPUUsed, 200 << 20}, {memlayer.GPUProcess, 14 << 20}}, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !testkit.NVMLChild(t, c.flag) {
				return
			}
			d, err := Open()
			require.NoError(t, err)
			again, err := Open()
			require.NoError(t, err)
			require.Same(t, d, again)
			require.Empty(t, d.Why())
			require.Equal(t, c.gpus, d.GPUs())
			s := d.Source(0)
			require.Equal(t, c.sample, sampled(s))
			require.LessOrEqual(t, testing.AllocsPerRun(100, func() { s(func(memory.Layer, memory.Reading) {}) }), c.most)
		})
	}
}
