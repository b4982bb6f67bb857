package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRead(t *testing.T) {
	u, err := Read()
	require.NoError(t, err)
	require.True(t, u.RSS.OK)
	require.Greater(t, u.RSS.Bytes, 100*KiB)
	if u.Peak.OK {
		require.GreaterOrEqual(t, u.Peak.Bytes, u.RSS.Bytes)
	}
	if u.Anon.OK {
		require.LessOrEqual(t, u.Anon.Bytes, u.RSS.Bytes)
	}
}

func TestReadSeesMemoryComeIn(t *testing.T) {
	before, err := Read()
	require.NoError(t, err)
	if !before.Anon.OK {
		t.Skip("this kernel does not tell anonymous memory apart (RssAnon in /proc/self/status)")
	}
	block := make([]byte, 64*MiB)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	after, err := Read()
	require.NoError(t, err)
	require.Greater(t, after.Anon.Bytes-before.Anon.Bytes, 32*MiB)
	require.Equal(t, byte(1), block[4096])
}

func TestReadHardlyAllocates(t *testing.T) {
	allocs := testing.AllocsPerRun(20, func() {
		if _, err := Read(); err != nil {
			t.Error(err)
		}
	})
	require.LessOrEqual(t, allocs, 2.0, "the path, as the system call wants it, and room for instrumentation")
}

func TestParseStatus(t *testing.T) {
	u, err := parseStatus([]byte("Name:\tx\nVmHWM:\t    1700 kB\nVmRSS:\t    1696 kB\nRssAnon:\t     112 kB\nRssFile:\t    1584 kB\nThreads:\t1\n"))
	require.NoError(t, err)
	require.Equal(t, Usage{RSS: Known(1696 * KiB), Anon: Known(112 * KiB), File: Known(1584 * KiB), Peak: Known(1700 * KiB)}, u)

	u, err = parseStatus([]byte("VmRSS:\t 12 kB\nRssAnon:\t what\nVmHWM: kB"))
	require.NoError(t, err)
	require.Equal(t, Usage{RSS: Known(12 * KiB)}, u, "what cannot be read is absent")

	_, err = parseStatus([]byte("Name:\tx\n"))
	require.ErrorIs(t, err, ErrUnavailable)
}
