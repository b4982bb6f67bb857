package matrix

import (
	"bytes"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFindStringsAcrossWindows(t *testing.T) {
	const name = "TF_SOME_NAME"
	for _, at := range []int{0, 1, 4<<20 - 13, 4<<20 - 12, 4<<20 - 5, 4<<20 - 1, 4 << 20, 9 << 20} {
		text := append(append(bytes.Repeat([]byte{'x'}, at), name...), 0, 'y')
		held := map[string]bool{}
		require.NoError(t, findStrings(held, bytes.NewReader(text), []string{"ABSENT", name}))
		assert.Equal(t, map[string]bool{name: true}, held, "at %d", at)
	}
	held := map[string]bool{}
	require.NoError(t, findStrings(held, bytes.NewReader([]byte("TF_SOME_NAMES\x00TF_SOME_NAME is set")), []string{name}))
	assert.Empty(t, held, "the beginning of a longer name, and a word of a message")
	assert.ErrorIs(t, findStrings(held, iotest.ErrReader(assert.AnError), []string{name}), assert.AnError)
}
