package native

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The second profile has one stack more, one that grew, and one that shrank.
func TestProfiles(t *testing.T) {
	text := func(stacks string) []byte {
		return []byte("heap_v2/16384\n  t*: 3: 9 [0: 0]\n  t0: 3: 9 [0: 0]\n" + stacks +
			"\nMAPPED_LIBRARIES:\n7f00-7f10 r-xp 00000000 08:01 1 /no/such/library\n")
	}
	before, err := parseHeapProfile(text("@ 0x1 0x2\n  t*: 1: 1000000 [0: 0]\n  t0: 1: 1000000 [0: 0]\n@ 0x3\n  t*: " +
		"10: 160 [0: 0]\n"))
	require.NoError(t, err)
	after, err := parseHeapProfile(text("@ 0x1 0x2\n  t*: 3: 3000000 [0: 0]\n@ 0x4\n  t*: 100: 1600 [0: 0]\n"))
	require.NoError(t, err)
	got := after.Growth(before, 100)
	require.Len(t, got, 2)
	assert.InDelta(t, 20000, got[0].BytesPerStep, 1)
	assert.InDelta(t, 16384, got[1].BytesPerStep, 16) // a sampled block of 16 bytes stands for 1024
	for _, bad := range []string{"", "heap_v1/2\n", "heap_v2/16384\n@ 0x1\n  t*: x\n\nMAPPED_LIBRARIES:\n",
		"heap_v2/16384\n@ 0x1\n"} {
		_, err := parseHeapProfile([]byte(bad))
		assert.Error(t, err, bad)
	}
}
