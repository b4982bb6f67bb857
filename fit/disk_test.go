package fit

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/files"
	"steadyfit/internal/testkit"
)

// requireSound requires that all checkpoints of a folder are intact, and that there are no
// other files.
func requireSound(t testing.TB, dir string) {
	t.Helper()
	found := listed(t, dir)
	require.NotEmpty(t, found)
	best := 0
	for _, c := range found {
		require.NoError(t, c.Err, c.Path)
		if c.Best {
			best++
		}
	}
	if !files.IsMissing(filepath.Join(dir, bestFile)) {
		require.Equal(t, 1, best, "best.json names a checkpoint")
	}
	for _, name := range names(t, dir) {
		require.False(t, strings.HasPrefix(name, "."), "%s is left over", name)
	}
}

// If the checkpoint of the last epoch cannot be written, the training is complete, and the session has the
// result.
func TestLastCheckpointCannotBeWritten(t *testing.T) {
	dir := tempDir(t)
	f := &testkit.DiskFailure{At: 1 << 20, Err: syscall.EIO, All: true}
	l := newLinear()
	loop := Loop{Session: l, Batch: 4, Epochs: 3}
	loop.Hook(Checkpoint{Folder: dir, Keep: 1, Best: "loss", disk: files.Disk{Before: f.Before}}.Hook())
	l.onTrain = before(5, func() { f.At = f.Count })
	h, err := loop.Run(t.Context(), samples(t, 8))
	var failed *WriteError
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, syscall.EIO)
	require.True(t, h.Done)
	require.Len(t, h.Records, 3)
	require.Equal(t, filepath.Join(dir, "ckpt-4"), failed.Good)
	require.ErrorContains(t, err, "checkpoint at end: writing "+filepath.Join(dir, "ckpt-6"))
	require.ErrorContains(t, err, "ckpt-4 is good")
	requireSound(t, dir)
}

// The best weights are restored if the last checkpoint cannot be written. A temporary folder has no last checkpoint.
func TestBestWeightsWithoutLastCheckpoint(t *testing.T) {
	for _, c := range []struct {
		losses    []float64
		temporary bool
		failsFrom int64 // the first step after which the disk fails, from 0
		restored  int   // 0 if the run ends early
		good      string
	}{
		{[]float64{5, 3, 4}, false, 2, 2, "ckpt-2"},
		{[]float64{5, 4, 3}, false, 2, 3, "ckpt-2"},
		{[]float64{5, 3, 4}, true, 2, 2, ""},
		{[]float64{5, 4, 3}, true, 1, 0, ""},
	} {
		dir := tempDir(t)
		f := &testkit.DiskFailure{At: 1 << 20, Err: syscall.EIO, All: true}
		l := scripted(c.losses)
		l.onTrain = before(c.failsFrom, func() { f.At = f.Count })
		var states [][2][3]uint64
		loop := Loop{Session: l, Batch: 4, Epochs: 3}
		loop.Hook(Checkpoint{Folder: dir, EveryEpochs: 100, Best: "loss", RestoreBest: true, Temporary: c.temporary,
			disk: files.Disk{Before: f.Before}}.Hook(), Hook{Name: "states", Epoch: func(context.Context, *State) error {
			states = append(states, l.state())
			return nil
		}})
		h, err := loop.Run(t.Context(), samples(t, 4))
		var failed *WriteError
		if c.temporary && c.restored > 0 {
			require.NoError(t, err)
			require.NotContains(t, names(t, dir), "ckpt-3")
		} else {
			require.ErrorAs(t, err, &failed)
			require.ErrorIs(t, err, syscall.EIO)
			require.NotContains(t, err.Error(), "restoring")
			require.Equal(t, c.good, strings.TrimPrefix(failed.Good, dir+"/"))
		}
		require.Equal(t, c.restored, h.Restored)
		if c.restored > 0 {
			require.True(t, h.Done)
			require.Equal(t, states[c.restored-1], l.state())
		}
	}
}

// A folder that is not a checkpoint is not replaced.
func TestForeignFolderIsNotReplaced(t *testing.T) {
	dir, loop := checkpointed(t, Checkpoint{})
	foreign := filepath.Join(dir, "ckpt-8")
	require.NoError(t, os.Mkdir(foreign, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "model.pt"), nil, 0o666))
	loop.Epochs = 4
	var log bytes.Buffer
	loop.Log = warnings(&log)
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorContains(t, err, "a folder that is not a checkpoint has this name; move it away")
	require.Contains(t, log.String(), foreign)
	require.FileExists(t, filepath.Join(foreign, "model.pt"))
}
