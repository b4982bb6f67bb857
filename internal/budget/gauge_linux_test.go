package budget

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

func TestGauge(t *testing.T) {
	const size = 64 << 20
	for _, layer := range []memory.Layer{memory.RSS, memory.Anon} {
		t.Run(string(layer), func(t *testing.T) {
			g, err := openGauge(layer)
			require.NoError(t, err)
			assert.Equal(t, layer, g.layer)
			before := g.read()
			b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			require.NoError(t, err)
			for i := 0; i < size; i += os.Getpagesize() {
				b[i] = 1
			}
			during := g.read()
			require.NoError(t, syscall.Munmap(b))
			after := g.read()
			// The race detector and the garbage collector also allocate and free memory.
			assert.InDelta(t, size, int64(during.Bytes-before.Bytes), 16<<20)
			assert.InDelta(t, size, int64(during.Bytes-after.Bytes), 16<<20)

			usage, err := memory.Read()
			require.NoError(t, err)
			exact := map[memory.Layer]memory.Reading{memory.RSS: usage.RSS, memory.Anon: usage.Anon}[layer]
			assert.InDelta(t, int64(exact.Bytes), int64(g.read().Bytes), 8<<20)

			assert.Zero(t, testing.AllocsPerRun(100, func() { g.read() }))
			require.NoError(t, g.close())
			require.NoError(t, g.close())
			assert.False(t, g.read().OK)
		})
	}
	_, err := openGauge(memory.MallocUsed)
	assert.ErrorContains(t, err, "malloc in use")
}

// The inactive file pages in memory.stat of both versions are subtracted. If the file is missing, the
// amount is unknown.
func TestGaugeOfAWorkingSet(t *testing.T) {
	const (
		v1 = "cache 646000640\nrss 536698880\ninactive_file 4096\nactive_file 8192\ntotal_cache " +
			"646262784\ntotal_inactive_anon 535920640\ntotal_inactive_file 75022336\ntotal_active_file 561958912\n"
		v2 = "anon 536698880\nfile 646262784\nkernel 1000\ninactive_anon 1\nactive_anon 2\ninactive_file " +
			"75022336\nactive_file 561958912\n"
	)
	for _, c := range []struct {
		name               string
		version            int
		used, amount, stat string
		want               memory.Reading
	}{
		{"version 2", 2, "memory.current", "1182961664\n", v2, memory.Known(1182961664 - 75022336)},
		{"version 1", 1, "memory.usage_in_bytes", "1182961664\n", v1, memory.Known(1182961664 - 75022336)},
		{"read at two moments", 2, "memory.current", "70000000\n", v2, memory.Known(0)},
		{"not told", 2, "memory.current", "1182961664\n", "anon 536698880\n", memory.Reading{}},
		{"not a number", 2, "memory.current", "1182961664\n", "anon 0\ninactive_file ?\n", memory.Reading{}},
		{"no use", 2, "memory.current", "", v2, memory.Reading{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			without, dir := t.TempDir(), t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(without, c.used), []byte("1\n"), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.used), []byte(c.amount), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "memory.stat"), []byte(c.stat), 0o600))
			g := gauge{layer: memlayer.CgroupWorkingSet}
			assert.False(t, g.read().OK)
			g.openGroup(cgroup.Controller{Version: c.version, Dirs: []string{filepath.Join(dir, "none"), without, dir}})
			assert.Equal(t, c.want, g.read())
			assert.Zero(t, testing.AllocsPerRun(100, func() { g.read() }))
			require.NoError(t, g.close())
			assert.False(t, g.read().OK)
		})
	}
	g, err := openGauge(memlayer.CgroupWorkingSet)
	if err != nil {
		require.ErrorIs(t, err, memory.ErrUnavailable)
		t.Skip("this machine tells nothing of control groups")
	}
	defer g.close()
	c := cgroup.Find(os.DirFS("/"), "self", "memory")
	used, _, _ := c.MemoryFiles()
	// Other processes of the group may take memory between two readings.
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(c.Dirs[0], used))
		n, ok := cgroup.Number(bytes.TrimSpace(text))
		return err == nil && ok && int64(g.read().Bytes) <= n
	}, time.Minute, time.Millisecond)
}

func TestGaugeUncertainty(t *testing.T) {
	g, err := openGauge(memory.RSS)
	require.NoError(t, err)
	defer g.close()
	assert.GreaterOrEqual(t, int(g.uncertainty()), runtime.NumCPU()*32*os.Getpagesize())
}

func BenchmarkGauge(b *testing.B) {
	for _, layer := range []memory.Layer{memory.Anon, memlayer.CgroupWorkingSet} {
		b.Run(string(layer), func(b *testing.B) {
			g, err := openGauge(layer)
			if err != nil {
				b.Skip(err)
			}
			defer g.close()
			for b.Loop() {
				g.read()
			}
		})
	}
}
