package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/files"
	"steadyfit/internal/testkit"
)

// A checkpoint replaces one of the same step. After a failure, the new one is complete and hidden, and the old one has its
// name.
func TestPublish(t *testing.T) {
	for _, replaces := range []bool{false, true} {
		for at := 0; ; at++ {
			dir := t.TempDir()
			path, temporary := filepath.Join(dir, "ckpt-1"), filepath.Join(dir, ".ckpt-1.tmp")
			put := func(folder string) {
				require.NoError(t, errors.Join(os.Mkdir(folder, 0o777),
					os.WriteFile(filepath.Join(folder, stateFile), []byte(folder), 0o666)))
			}
			put(temporary)
			if replaces {
				put(path)
			}
			f := &testkit.DiskFailure{At: at, Err: syscall.EIO}
			err := publish(files.Disk{Before: f.Before}, temporary, path)
			if err != nil {
				require.ErrorIs(t, err, syscall.EIO)
				require.FileExists(t, filepath.Join(temporary, stateFile))
				if replaces {
					text, err := os.ReadFile(filepath.Join(path, stateFile))
					require.NoError(t, err)
					require.Equal(t, path, string(text))
					require.NoError(t, clean(files.Disk{}, dir))
					require.Equal(t, []string{"ckpt-1"}, testkit.FileNames(t, dir))
				}
				continue
			}
			text, err := os.ReadFile(filepath.Join(path, stateFile))
			require.NoError(t, err)
			require.Equal(t, temporary, string(text))
			require.NoError(t, clean(files.Disk{}, dir))
			require.Equal(t, []string{"ckpt-1"}, testkit.FileNames(t, dir))
			break
		}
	}
}

// A checkpoint that could not get its name back is not removed before another one has the name.
func TestPublishKeepsTheOnlyCopy(t *testing.T) {
	for at := range 3 { // rename, sync, remove
		dir := t.TempDir()
		path, temporary := filepath.Join(dir, "ckpt-1"), filepath.Join(dir, ".ckpt-1.tmp")
		for _, folder := range []string{path, temporary} {
			require.NoError(t, os.Mkdir(folder, 0o777))
			require.NoError(t, os.WriteFile(filepath.Join(folder, stateFile), []byte(folder), 0o666))
		}
		f := &testkit.DiskFailure{At: 2, Err: syscall.EIO, All: true}
		require.ErrorIs(t, publish(files.Disk{Before: f.Before}, temporary, path), syscall.EIO)
		require.NoDirExists(t, path)

		f = &testkit.DiskFailure{At: at, Err: syscall.EIO}
		err, want := publish(files.Disk{Before: f.Before}, temporary, path), path
		if at == 2 {
			require.NoError(t, err)
			want = temporary
		} else {
			require.ErrorIs(t, err, syscall.EIO)
		}
		text, err := os.ReadFile(filepath.Join(path, stateFile))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
}

// A removal that failed halfway is completed by the next one.
func TestDiscardAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "b"), 0o777))
	f := &testkit.DiskFailure{At: 2, Err: syscall.EIO} // the last of its changes
	require.ErrorIs(t, discard(files.Disk{Before: f.Before}, path), syscall.EIO)
	require.True(t, files.IsMissing(path))
	require.NoError(t, discard(files.Disk{}, path))
	require.Empty(t, testkit.FileNames(t, dir))
}

// A file that cannot be read may be intact.
func TestUnreadIsNotTorn(t *testing.T) {
	for _, c := range []struct {
		err  error
		torn bool
	}{
		{syscall.ENOENT, true},
		{syscall.ENOTDIR, true},
		{syscall.EISDIR, true},
		{syscall.EACCES, false},
		{syscall.EPERM, false},
		{syscall.EIO, false},
		{syscall.EMFILE, false},
		{syscall.ETIMEDOUT, false},
	} {
		err := readError(&fs.PathError{Op: "open", Path: "ckpt-2/state.json", Err: c.err})
		require.ErrorIs(t, err, c.err)
		require.Equal(t, c.torn, errors.Is(err, ErrTorn), "%v", c.err)
	}
}
