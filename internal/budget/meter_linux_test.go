package budget

import (
	"os"
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

// A meter reads the level and, of RSS, the peak since the last reading. The peak of the process stays known.
func TestLevel(t *testing.T) {
	const size = 64 << 20
	for _, layer := range []memory.Layer{memory.RSS, memory.Anon} {
		t.Run(string(layer), func(t *testing.T) {
			m, err := openMeter(layer)
			if err != nil {
				t.Skip("this machine cannot measure the peak of a process: ", err)
			}
			level := func() int64 {
				level, err := m.level()
				require.NoError(t, err)
				return int64(level)
			}
			before := level()
			b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			require.NoError(t, err)
			for i := 0; i < size; i += os.Getpagesize() {
				b[i] = 1
			}
			during := level()
			require.NoError(t, syscall.Munmap(b))
			// The race detector and the garbage collector also allocate and free memory.
			assert.InDelta(t, size, during-before, 16<<20)
			assert.InDelta(t, size, during-level(), 16<<20)
			for _, want := range []float64{size, 0} {
				beyond, err := m.beyond()
				require.NoError(t, err)
				assert.InDelta(t, want, int64(beyond), 16<<20)
			}

			usage, err := memory.Read()
			require.NoError(t, err)
			exact := map[memory.Layer]memory.Reading{memory.RSS: usage.RSS, memory.Anon: usage.Anon}[layer]
			assert.InDelta(t, int64(exact.Bytes), level(), 8<<20)
			assert.Greater(t, usage.Peak.Bytes-usage.RSS.Bytes, 40*mib)
			assert.GreaterOrEqual(t, int(m.uncertainty()), runtime.NumCPU()*32*os.Getpagesize())
			require.NoError(t, m.close())
		})
	}
}

func TestLevelOfAControlGroup(t *testing.T) {
	m, err := openMeter(memlayer.CgroupWorkingSet)
	if err != nil {
		require.ErrorIs(t, err, memory.ErrUnavailable)
		t.Skip("this machine reports no control groups")
	}
	defer m.close()
	// Other processes of the group may take memory between two readings.
	require.Eventually(t, func() bool {
		level, err := m.level()
		used := cgroup.Find(os.DirFS("/"), "self", "memory").WorkingSet(os.DirFS("/"))
		return err == nil && used.Known() && max(level-memory.Bytes(used.Bytes), memory.Bytes(used.Bytes)-level) < 8*mib
	}, time.Minute, time.Millisecond)
}
