package memory

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGauge(t *testing.T) {
	const size = 64 << 20
	for _, layer := range []Layer{RSS, Anon} {
		t.Run(string(layer), func(t *testing.T) {
			g, err := NewGauge(layer)
			require.NoError(t, err)
			assert.Equal(t, layer, g.Layer())
			before := g.Read()
			b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			require.NoError(t, err)
			for i := 0; i < size; i += os.Getpagesize() {
				b[i] = 1
			}
			during := g.Read()
			require.NoError(t, syscall.Munmap(b))
			after := g.Read()
			// The race detector and the collector take and give memory meanwhile.
			assert.InDelta(t, size, int64(during.Bytes-before.Bytes), 16<<20)
			assert.InDelta(t, size, int64(during.Bytes-after.Bytes), 16<<20)

			usage, err := Read()
			require.NoError(t, err)
			exact := map[Layer]Reading{RSS: usage.RSS, Anon: usage.Anon}[layer]
			assert.InDelta(t, int64(exact.Bytes), int64(g.Read().Bytes), 8<<20)

			assert.Zero(t, testing.AllocsPerRun(100, func() { g.Read() }))
			require.NoError(t, g.Close())
			require.NoError(t, g.Close())
			assert.False(t, g.Read().OK)
		})
	}
	_, err := NewGauge(MallocUsed)
	assert.ErrorContains(t, err, "malloc in use")
}

func BenchmarkGauge(b *testing.B) {
	g, err := NewGauge(Anon)
	require.NoError(b, err)
	defer g.Close()
	for b.Loop() {
		g.Read()
	}
}
