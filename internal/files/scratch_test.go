package files

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Scratch removes the folders of processes that have ended, and no others.
func TestScratch(t *testing.T) {
	parent := t.TempDir()
	left := filepath.Join(parent, "a-left")
	other := filepath.Join(parent, "b-other")
	for _, dir := range []string{left, other} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "x"), 0o777))
	}
	probe, err := lockDir(other)
	if err != nil {
		t.Skipf("needs a file system with locks: %v", err)
	}
	require.NoError(t, probe.Close())

	one, removeOne, err := ScratchIn(parent, "a-")
	require.NoError(t, err)
	require.NoDirExists(t, left)
	require.DirExists(t, other)
	two, removeTwo, err := ScratchIn(parent, "a-")
	require.NoError(t, err)
	require.DirExists(t, one, "its process lives")
	require.NotEqual(t, one, two)
	require.NoError(t, removeOne())
	require.NoDirExists(t, one)
	require.NoError(t, removeTwo())
	entries, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	_, _, err = ScratchIn(filepath.Join(parent, "nowhere"), "a-")
	require.Error(t, err)
}
