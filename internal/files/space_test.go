package files

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWritable(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Writable(dir, 0))
	require.NoError(t, Writable(dir, 1<<20))
	if _, ok := FreeSpace(dir); ok {
		require.ErrorIs(t, Writable(dir, 1<<60), syscall.ENOSPC)
	}
	require.ErrorIs(t, Writable(filepath.Join(dir, "nowhere"), 0), fs.ErrNotExist)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	_, ok := FreeSpace(filepath.Join(dir, "nowhere"))
	require.False(t, ok)
}

func TestRemedy(t *testing.T) {
	for err, words := range map[error]string{
		syscall.ENOSPC: "free some space (remove a.bin), or", syscall.EDQUOT: "quota", syscall.EROFS: "read-only",
		syscall.EACCES: "right to write", syscall.EPERM: "right to write", syscall.EIO: "kernel's log", syscall.EMFILE: "ulimit -n",
		syscall.EFBIG: "ulimit -f", syscall.ENOENT: "create the folder", fs.ErrInvalid: "another folder",
	} {
		wrapped := &os.PathError{Op: "write", Path: "x", Err: err}
		assert.Contains(t, Remedy(wrapped, "remove a.bin"), words)
		assert.Equal(t, err == syscall.ENOSPC || err == syscall.EDQUOT, Full(wrapped))
	}
	assert.Contains(t, Remedy(syscall.ENOSPC, ""), "free some space, or")
}
