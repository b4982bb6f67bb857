package session_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
	"steadyfit/session"
)

// page is the unit in which a tmpfs allocates.
const page = 4 << 10

// smallDisk mounts a file system of 1 MiB. The variables of the model digits take 39 pages for
// values and two for an index.
func smallDisk(t *testing.T) string {
	root := t.TempDir()
	err := syscall.Mount("steadyfit-test", root, "tmpfs", 0, "size=1m")
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("this needs the right to mount a file system, as root has: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(root, syscall.MNT_DETACH)) })
	return root
}

// leave fills a disk so that the given number of bytes stays free.
func leave(t *testing.T, root string, bytes int64) (empty func()) {
	t.Helper()
	var s syscall.Statfs_t
	require.NoError(t, syscall.Statfs(root, &s))
	filler := filepath.Join(root, "filler")
	require.NoError(t, os.WriteFile(filler, make([]byte, int64(s.Bavail)*s.Bsize-bytes), 0o666))
	return func() { require.NoError(t, os.Remove(filler)) }
}

// requireFull checks the error of a full disk.
func requireFull(t *testing.T, err error, path string) {
	t.Helper()
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotErrorIs(t, err, session.ErrOutOfMemory, "a full disk is not memory")
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "are free")
	require.LessOrEqual(t, strings.Count(err.Error(), "free some space"), 1, err)
	require.NotContains(t, err.Error(), "OOM")
}

func TestSaveOnAFullDisk(t *testing.T) {
	ctx := context.Background()
	root := smallDisk(t)
	s := open(t, "digits", session.Options{})
	fresh, old := filepath.Join(root, "fresh"), filepath.Join(root, "old")
	require.NoError(t, errors.Join(os.Mkdir(fresh, 0o777), os.Mkdir(old, 0o777)))
	require.NoError(t, s.Save(ctx, filepath.Join(old, "v")))
	before := contents(t, old)
	b := batches(t, digits(t), 32, 1)[0]
	out := make([]float64, len(s.TrainMetrics()))
	require.NoError(t, s.Train(ctx, 0, b, out))

	// There is free space for nothing, for some of the values, or for all values but not the
	// index. In the last case TensorFlow does not remove the values.
	for _, room := range []int64{0, 8 * page, 38 * page, 39 * page} {
		empty := leave(t, root, room)
		for _, dir := range []string{fresh, old} {
			prefix := filepath.Join(dir, "v")
			err := s.Save(ctx, prefix)
			requireFull(t, err, prefix)
			var refused *session.SaveError
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, prefix, refused.Path)
			assert.True(t, refused.Free.OK)
			assert.EqualValues(t, room, refused.Free.Bytes, "what it left is removed")
			assert.Greater(t, int64(refused.Needs), int64(39*page))
			assert.Less(t, int64(refused.Needs), int64(50*page))
		}
		require.Empty(t, contents(t, fresh))
		require.Equal(t, before, contents(t, old))
		empty()
	}

	// A failed save leaves the model unchanged, and the model can be saved once there is free
	// space.
	want := make([]float64, len(out))
	require.NoError(t, s.Save(ctx, filepath.Join(fresh, "v")))
	require.NoError(t, s.Evaluate(ctx, b, want))
	again := open(t, "digits", session.Options{})
	require.NoError(t, again.Restore(ctx, filepath.Join(fresh, "v")))
	require.NoError(t, again.Evaluate(ctx, b, out))
	require.Equal(t, want, out)
}

func TestSaveModelOnAFullDisk(t *testing.T) {
	ctx := context.Background()
	root := smallDisk(t)
	s := open(t, "digits", session.Options{})
	dir := filepath.Join(root, "model")
	require.NoError(t, s.SaveModel(ctx, dir))
	before := contents(t, dir)
	b := batches(t, digits(t), 32, 1)[0]
	require.NoError(t, s.Train(ctx, 0, b, make([]float64, len(s.TrainMetrics()))))

	// There is no free space for the graph, or for the graph but not the values.
	for _, room := range []int64{page, int64(len(before["saved_model.pb"])) + 12*page} {
		empty := leave(t, root, room)
		err := s.SaveModel(ctx, dir)
		requireFull(t, err, dir)
		require.ErrorContains(t, err, "save model to "+dir)
		var refused *session.SaveError
		require.ErrorAs(t, err, &refused)
		require.Greater(t, refused.Needs, refused.Free.Bytes)
		require.Equal(t, before, contents(t, dir), "the model that is there stays")
		empty()
		entries, err := os.ReadDir(root)
		require.NoError(t, err)
		require.Len(t, entries, 1, "half a model is not left")
	}
	require.NoError(t, s.SaveModel(ctx, dir))
	_, err := savedmodels.Open(dir)
	require.NoError(t, err)
	require.NotEqual(t, before, contents(t, dir))
}

// CheckOutput reports a disk that is too small for the model before the training.
func TestCheckOutputOnAFullDisk(t *testing.T) {
	root := smallDisk(t)
	model := builtin(t, "digits")
	dir := filepath.Join(root, "made", "model")
	require.NoError(t, session.CheckOutput(dir, model))
	empty := leave(t, root, 8*page)
	err := session.CheckOutput(dir, model)
	requireFull(t, err, dir)
	var refused *session.SaveError
	require.ErrorAs(t, err, &refused)
	require.Greater(t, refused.Needs, refused.Free.Bytes)
	empty()
	require.NoError(t, session.CheckOutput(dir, model))
	entries, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is left of the look")
}

func TestSaveOnADiskThatCannotBeWritten(t *testing.T) {
	ctx := context.Background()
	root := smallDisk(t)
	s := open(t, "digits", session.Options{})

	err := s.Save(ctx, filepath.Join(root, "nowhere", "v"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o666))
	require.Error(t, s.Save(ctx, filepath.Join(root, "file", "v")), "a file is not a folder")

	require.NoError(t, syscall.Mount("", root, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=1m"))
	for _, err := range []error{s.Save(ctx, filepath.Join(root, "v")), s.SaveModel(ctx, filepath.Join(root, "model")),
		session.CheckOutput(filepath.Join(root, "model"), s.Model())} {
		var refused *session.SaveError
		require.ErrorAs(t, err, &refused)
		require.ErrorIs(t, err, syscall.EROFS)
		require.ErrorContains(t, err, root)
	}
}

// contents returns the content of the files in a folder by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		var text []byte
		if !d.IsDir() {
			text, err = os.ReadFile(path)
		}
		found[strings.TrimPrefix(path, dir+"/")] = string(text)
		return err
	}))
	return found
}
