package checkpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/disk"
	"steadyfit/internal/disk/disktest"
)

// After a failed publish, everything is as before.
func TestPublishIsUndone(t *testing.T) {
	for _, replaces := range []bool{false, true} {
		for at := 0; ; at++ {
			dir := t.TempDir()
			path, temporary := filepath.Join(dir, "ckpt-1"), filepath.Join(dir, ".ckpt-1.tmp")
			put := func(folder string) {
				require.NoError(t, errors.Join(os.Mkdir(folder, 0o777), os.WriteFile(filepath.Join(folder, "x"), []byte(folder), 0o666)))
			}
			put(temporary)
			want := temporary
			if replaces {
				put(path)
			}
			f := &disktest.Failure{At: at, Err: syscall.EIO}
			err := publish(disk.Disk{Before: f.Before}, temporary, path)
			if err != nil {
				require.ErrorIs(t, err, syscall.EIO)
				require.DirExists(t, temporary)
				require.Equal(t, !replaces, disk.Missing(path), f.Ops)
				want = path
			}
			if err == nil || replaces {
				text, err := os.ReadFile(filepath.Join(path, "x"))
				require.NoError(t, err)
				require.Equal(t, want, string(text))
			}
			if err == nil && at >= f.Count {
				require.Equal(t, []string{"ckpt-1"}, disktest.Names(t, dir))
				break
			}
		}
	}
}

func TestReplaceLeavesNothingOfAFailure(t *testing.T) {
	for at := range 3 { // write, sync, rename
		dir := t.TempDir()
		path := filepath.Join(dir, "a")
		require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
		f := &disktest.Failure{At: at, Err: syscall.ENOSPC}
		require.ErrorIs(t, disk.Disk{Before: f.Before}.Replace(path, []byte("new")), syscall.ENOSPC)
		require.Equal(t, []string{"a"}, disktest.Names(t, dir))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(text))
	}
}

// A removal that failed halfway is completed by the next one.
func TestDiscardAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "b"), 0o777))
	f := &disktest.Failure{At: 2, Err: syscall.EIO} // the last of its changes
	require.ErrorIs(t, discard(disk.Disk{Before: f.Before}, path), syscall.EIO)
	require.True(t, disk.Missing(path))
	require.NoError(t, discard(disk.Disk{}, path))
	require.Empty(t, disktest.Names(t, dir))
}

// If no checkpoint is known to be good, none is removed to make space.
func TestNoRoomWithoutAGoodCheckpoint(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"ckpt-2", "ckpt-4"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o777))
	}
	f := &Folder{dir: dir, Options: Options{Keep: 1}, pointed: -1, saved: []saved{{step: 2, proven: true}, {step: 4, whole: true}}}
	require.ErrorIs(t, f.makeRoom(6, true), errNoRoom)
	require.Len(t, disktest.Names(t, dir), 2)
}

func TestRemedies(t *testing.T) {
	for err, words := range map[error]string{
		syscall.ENOSPC: "full", syscall.EDQUOT: "quota", syscall.EROFS: "read-only", syscall.EACCES: "right to write",
		syscall.EPERM: "right to write", syscall.EIO: "kernel's log", syscall.EMFILE: "ulimit -n", syscall.EFBIG: "ulimit -f",
		errors.New("anything else"): "another folder",
	} {
		require.Contains(t, remedyFor(&os.PathError{Op: "write", Path: "x", Err: err}), words)
	}
}

// A file that cannot be read may be intact.
func TestUnreadIsNotTorn(t *testing.T) {
	for _, c := range []struct {
		err  error
		torn bool
		todo string
	}{
		{syscall.ENOENT, true, ""},
		{syscall.ENOTDIR, true, ""},
		{syscall.EISDIR, true, ""},
		{syscall.EACCES, false, "right to read"},
		{syscall.EPERM, false, "right to read"},
		{syscall.EIO, false, "kernel's log"},
		{syscall.EMFILE, false, "ulimit -n"},
		{syscall.ETIMEDOUT, false, "readable"},
	} {
		err := readError(&fs.PathError{Op: "open", Path: "ckpt-2/state.json", Err: c.err})
		require.ErrorIs(t, err, c.err)
		require.Equal(t, c.torn, errors.Is(err, ErrTorn), "%v", c.err)
		if !c.torn {
			require.Contains(t, remedyUnread(err), c.todo)
		}
	}
}

// Adopt keeps checkpoints that are newer than the adopted one under another name.
func TestAdoptKeepsNewerCheckpoints(t *testing.T) {
	dir, from := t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(dir, name(3)), filepath.Join(dir, name(9)), filepath.Join(from, name(5))} {
		require.NoError(t, os.Mkdir(path, 0o777))
	}
	var log bytes.Buffer
	require.NoError(t, Adopt(dir, from, slog.New(slog.NewTextHandler(&log, nil))))
	require.NoDirExists(t, filepath.Join(dir, name(3)))
	require.DirExists(t, filepath.Join(dir, name(5)))
	require.DirExists(t, filepath.Join(dir, newerPrefix+"9"))
	require.Contains(t, log.String(), "it was renamed")
	newest, _, err := Newest(dir)
	require.NoError(t, err)
	require.EqualValues(t, 5, newest)
}
