package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// The first run of a signature returns the memory with which TensorFlow has rewritten its graph, so malloc has little
// left to return.
//
//lane:skip race gcstress (measures malloc)
func TestFirstStepReturnsMemory(t *testing.T) {
	s := open(t, "digits-cnn", session.Options{})
	tfbind.TrimMalloc()
	losses(t, s, batches(t, digits(t), 32, 1), 0)
	before, err := memory.Read()
	require.NoError(t, err)
	require.True(t, tfbind.TrimMalloc())
	after, err := memory.Read()
	require.NoError(t, err)
	require.Less(t, before.Anon.Bytes-after.Anon.Bytes, memory.MiB)
}
