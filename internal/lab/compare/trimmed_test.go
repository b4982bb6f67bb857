package compare

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

func TestTrimmed(t *testing.T) {
	held := func(b memory.Bytes) *memory.Sample {
		return &memory.Sample{Values: []memory.Value{{Layer: memory.Anon, Reading: memory.Known(b)}}}
	}
	grown := memory.Verdict{Kind: memory.Plateau, Layer: memory.Anon, Start: 100 * memory.MiB, Level: 300 * memory.MiB,
		Slope: memory.Interval{Estimate: 1, Low: 0.5, High: 2}}
	for _, c := range []struct {
		name            string
		kind            memory.Kind
		cause, want     string
		closed, trimmed memory.Bytes
		note            string
	}{
		{"kept by the allocator", memory.Jump, memlayer.Unattributed, memlayer.Retention, 300 * memory.MiB, 120 * memory.MiB,
			"after closing everything, 200.0 MiB of the growth of 200.0 MiB remained, and a trim returned 180.0 MiB: malloc " +
				"had retained freed memory"},
		{"kept, after a leak", memory.Leak, memlayer.Retention, memlayer.Retention, 280 * memory.MiB, 120 * memory.MiB,
			"malloc had retained freed memory"},
		{"in use until it was closed", memory.Leak, memlayer.NativeHeap, memlayer.NativeHeap, 300 * memory.MiB,
			120 * memory.MiB, "malloc had retained freed memory"},
		{"in a pool", memory.Plateau, memlayer.NativeHeap, memlayer.NativeHeap, 290 * memory.MiB, 280 * memory.MiB,
			"a trim returned only 10.0 MiB: the rest is in pools"},
		{"in a pool, and the trim took", memory.Inconclusive, memlayer.Unattributed, memlayer.Unattributed, 290 * memory.MiB,
			291 * memory.MiB, "a trim returned only 0 B"},
		{"given back", memory.Plateau, memlayer.RuntimeCache, memlayer.RuntimeCache, 150 * memory.MiB, 150 * memory.MiB,
			"closing everything released most of the growth of 200.0 MiB: 50.0 MiB remained"},
		{"all given back", memory.Plateau, memlayer.RuntimeCache, memlayer.RuntimeCache, 90 * memory.MiB, 40 * memory.MiB,
			"0 B remained above the start"},
	} {
		v := grown
		v.Kind, v.Cause = c.kind, c.cause
		got := Trimmed(v, held(c.closed), held(c.trimmed))
		require.Equal(t, c.want, got.Cause, c.name)
		require.Equal(t, &memory.Kept{Closed: c.closed - v.Start, Trimmed: c.trimmed - v.Start}, got.Kept, c.name)
		require.Contains(t, got.Notes[0], c.note, c.name)
		require.Empty(t, v.Notes, "the verdict that was asked is left alone")
	}
	require.Equal(t, grown, Trimmed(grown, &memory.Sample{}, &memory.Sample{}), "nothing is known")
	flat := grown
	flat.Kind = memory.Flat
	require.Equal(t, flat, Trimmed(flat, held(300*memory.MiB), held(0)), "nothing grew")
	fell := grown
	fell.Kind, fell.Start, fell.Level = memory.Jump, 300*memory.MiB, 100*memory.MiB
	require.Equal(t, fell, Trimmed(fell, held(300*memory.MiB), held(0)), "nothing grew")
}
