package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCopyFile(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(from, []byte("hello"), 0o666))
	require.NoError(t, os.WriteFile(to, []byte("longer than that"), 0o666))
	require.NoError(t, CopyFile(from, to))
	text, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "hello", string(text))

	require.ErrorIs(t, CopyFile(filepath.Join(dir, "nothing"), to), fs.ErrNotExist)
	require.ErrorIs(t, CopyFile(from, filepath.Join(dir, "not", "there")), fs.ErrNotExist)
	require.Error(t, CopyFile(dir, to), "a folder is not a file")
}

func TestSync(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "b", "c"), []byte("hello"), 0o666))
	require.NoError(t, SyncTree(dir))
	require.NoError(t, SyncPath(filepath.Join(dir, "a")))
	require.NoError(t, SyncPath(filepath.Join(dir, "a", "b", "c")))
	require.ErrorIs(t, SyncPath(filepath.Join(dir, "nothing")), fs.ErrNotExist)
	require.ErrorIs(t, SyncTree(filepath.Join(dir, "nothing")), fs.ErrNotExist)

	// A broken link cannot be synced.
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "a", "link")))
	require.ErrorIs(t, SyncTree(dir), fs.ErrNotExist)
}

func TestSame(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	require.True(t, Same(dir, link))
	require.True(t, Same(dir, filepath.Join(dir, ".")))
	require.False(t, Same(dir, filepath.Dir(dir)))
	require.False(t, Same(filepath.Join(dir, "nothing"), filepath.Join(dir, "nothing")))
}

// After a failure, the file has its old content and no temporary file is left.
func TestReplaceThatFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	require.NoError(t, Replace(path, []byte("old")))
	for _, fails := range []string{"write", "sync", "rename"} {
		done := []string{}
		disk := Disk{Before: func(op, _ string) error {
			done = append(done, op)
			if op == fails {
				return fs.ErrPermission
			}
			return nil
		}}
		require.ErrorIs(t, disk.Replace(path, []byte("new")), fs.ErrPermission)
		assert.Equal(t, "remove", done[len(done)-1])
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "old", string(text))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Len(t, entries, 1)
	}
}

func TestReplaceLeavesNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	require.NoError(t, Replace(path, []byte("one")))
	require.NoError(t, Replace(path, []byte("two")))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "two", string(text))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o777))
	require.Error(t, Replace(filepath.Join(dir, "folder"), []byte("three")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2)
}

func TestStream(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	put := func(text string, err error) error {
		return Stream(path, func(w io.Writer) error {
			_, wrote := io.WriteString(w, text)
			return errors.Join(wrote, err)
		})
	}
	require.NoError(t, put("old", nil))
	require.NoError(t, put("new", nil))
	failed := errors.New("failed")
	require.ErrorIs(t, put("half", failed), failed)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(text))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "a temporary file is left")
	require.ErrorIs(t, Stream(filepath.Join(dir, "no", "out"), func(io.Writer) error { panic("called") }), fs.ErrNotExist)
}
