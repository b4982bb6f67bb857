package files

import (
	"io"
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

// Errors name the path that the caller gave, not a temporary file, and have a remedy.
func TestWriteErrors(t *testing.T) {
	dir := t.TempDir()
	file, folder, none := filepath.Join(dir, "file"), filepath.Join(dir, "folder"), filepath.Join(dir, "none")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	require.NoError(t, os.Mkdir(folder, 0o777))
	nothing := func(io.Writer) error { return nil }
	for _, c := range []struct {
		err  error
		path string
		says string
	}{
		{Stream(filepath.Join(none, "out"), nothing), filepath.Join(none, "out"),
			"no such file or directory; make the folder writable, or use another folder"},
		{Replace(filepath.Join(none, "out"), nil), filepath.Join(none, "out"),
			"no such file or directory; make the folder writable, or use another folder"},
		{Stream(folder, nothing), folder, "file exists; make the folder writable, or use another folder"},
		{Replace(folder, nil), folder, "file exists; make the folder writable, or use another folder"},
		{Writable(none, 0), none, "no such file or directory; make the folder writable, or use another folder"},
		{WritableDir(filepath.Join(file, "new"), 0), filepath.Join(file, "new"),
			"not a directory; make the folder writable, or use another folder"},
		{Stream(file, func(w io.Writer) error {
			require.NoError(t, w.(*Replacement).file.Close())
			_, err := w.Write([]byte("text"))
			return err
		}), file, "file already closed; make the folder writable, or use another folder"},
	} {
		var failed *WriteError
		require.ErrorAs(t, c.err, &failed)
		assert.EqualError(t, failed, "write "+c.path+": "+c.says)
		assert.NotContains(t, c.err.Error(), string(filepath.Separator)+".")
	}
}

func TestRemedy(t *testing.T) {
	for err, words := range map[error]string{
		syscall.ENOSPC: "free some space, or", syscall.EDQUOT: "quota", syscall.EROFS: "another folder",
	} {
		wrapped := &os.PathError{Op: "write", Path: "x", Err: err}
		assert.Contains(t, Remedy(wrapped), words)
		assert.Equal(t, err != syscall.EROFS, Full(wrapped))
	}
}
