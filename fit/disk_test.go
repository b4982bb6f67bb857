package fit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/checkpoint"
	"steadyfit/internal/disk"
	"steadyfit/internal/disk/disktest"
)

// requireSound requires that all checkpoints of a folder are intact, and that there are no
// other files.
func requireSound(t testing.TB, dir string) {
	t.Helper()
	found, err := checkpoint.List(dir)
	require.NoError(t, err)
	require.NotEmpty(t, found)
	best := 0
	for _, c := range found {
		require.NoError(t, c.Err, c.Path)
		if c.Best {
			best++
		}
	}
	if !disk.Missing(filepath.Join(dir, bestFile)) {
		require.Equal(t, 1, best, "best.json names a checkpoint")
	}
	for _, name := range names(t, dir) {
		require.False(t, strings.HasPrefix(name, "."), "%s is left over", name)
	}
}

// Each change to files fails once. With ContinueOnError, the run completes, and only its events
// differ.
func TestContinueAfterAnyFailure(t *testing.T) {
	want := wanted(t)
	events := 0
	for at := 0; ; at++ {
		dir := tempDir(t)
		f := &disktest.Failure{At: at, Err: syscall.EIO}
		l := eachWay[at%2]()
		loop := fullLoop(t, l, dir, Checkpoint{disk: disk.Disk{Before: f.Before}, ContinueOnError: true})
		h, err := loop.Run(t.Context(), trainingData(t))
		if len(l.steps) == 0 {
			require.ErrorIs(t, err, syscall.EIO, "before the training, a failure ends the run")
			continue
		}
		require.NoError(t, err, f.Ops[min(at, len(f.Ops)-1)])
		if at < f.Count {
			// After a failed sync, the file is written again.
			if strings.HasPrefix(f.Ops[at], "sync ") && at+1 < len(f.Ops) {
				require.NotEqual(t, f.Ops[at], f.Ops[at+1])
			}
		}
		for i := range h.Records {
			kept := slices.DeleteFunc(slices.Clone(h.Records[i].Events), func(e string) bool { return e == failedEvent })
			events += len(h.Records[i].Events) - len(kept)
			if h.Records[i].Events = kept; len(kept) == 0 {
				h.Records[i].Events = nil
			}
		}
		require.Equal(t, want, outcomeOf(t, h, l))
		require.Equal(t, filepath.Join(dir, "ckpt-16"), h.Checkpoint)
		found, err := checkpoint.List(dir)
		require.NoError(t, err)
		for _, c := range found {
			require.NoError(t, c.Err)
		}
		if at >= f.Count {
			require.Greater(t, at, 100, "the run changes files often")
			require.Greater(t, events, 50, "failures are in the history")
			requireSound(t, dir)
			return
		}
	}
}

// Without ContinueOnError, a failure leaves earlier checkpoints, and the run can resume when the
// disk works again.
func TestStopAfterAnyFailure(t *testing.T) {
	want := wanted(t)
	for at := 0; ; at += 3 {
		dir := tempDir(t)
		f := &disktest.Failure{At: at, Err: syscall.EDQUOT, All: true}
		loop := fullLoop(t, eachWay[at%2](), dir, Checkpoint{disk: disk.Disk{Before: f.Before}})
		_, err := loop.Run(t.Context(), trainingData(t))
		if at >= f.Count {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, syscall.EDQUOT)
		var failed *checkpoint.Error
		if errors.As(err, &failed) {
			require.Contains(t, failed.Remedy, "free some space")
			require.False(t, failed.Final)
			if failed.Good != "" {
				_, err := verify(failed.Good)
				require.NoError(t, err)
			}
		}
		requireResumes(t, dir, want)
	}
}

// If the disk never recovers, training completes without checkpoints, and the error states that
// the result is not on disk.
func TestContinueToTheEndWithoutCheckpoints(t *testing.T) {
	dir := tempDir(t)
	f := &disktest.Failure{At: 1 << 20, Err: syscall.EIO, All: true}
	l := newLinear()
	loop := Loop{Session: l, Batch: 4, Epochs: 6}
	var log bytes.Buffer
	loop.Log = warnings(&log)
	loop.Hook(Checkpoint{Folder: dir, Keep: 1, Best: "loss", ContinueOnError: true, disk: disk.Disk{Before: f.Before}}.Hook())
	l.onTrain = func(step int64) error {
		if step == 5 {
			f.At = f.Count
		}
		return nil
	}
	h, err := loop.Run(t.Context(), samples(t, 8))
	var failed *checkpoint.Error
	require.ErrorAs(t, err, &failed)
	require.ErrorIs(t, err, syscall.EIO)
	require.True(t, failed.Final)
	require.Equal(t, filepath.Join(dir, "ckpt-4"), failed.Good)
	require.ErrorContains(t, err, "checkpoint at end")
	require.ErrorContains(t, err, "ckpt-4 is good")
	require.ErrorContains(t, err, "kernel's log")
	require.Len(t, h.Records, 6)
	require.Equal(t, 4, strings.Count(log.String(), "training continues without a checkpoint"))
	require.Empty(t, h.Records[2].Events)
	require.Equal(t, []string{failedEvent}, h.Records[3].Events)

	whole := newLinear()
	_, err = (&Loop{Session: whole, Batch: 4, Epochs: 6}).Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, whole.state(), l.state(), "the session has the result")

	again := newLinear()
	resumed := Loop{Session: again, Batch: 4, Epochs: 6, Resume: dir}
	resumed.Hook(Checkpoint{Folder: dir, Keep: 1, Best: "loss"}.Hook())
	h, err = resumed.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, failed.Good, h.ResumedFrom)
	require.Equal(t, whole.state(), again.state())
	requireSound(t, dir)
}

// A checkpoint that failed is written after the next epoch, even if no checkpoint is due then.
func TestFailedCheckpointIsOwed(t *testing.T) {
	dir := tempDir(t)
	f := &disktest.Failure{At: 1 << 20, Err: syscall.ENOSPC}
	l := newLinear()
	loop := Loop{Session: l, Batch: 4, Epochs: 7}
	loop.Hook(Checkpoint{Folder: dir, EveryEpochs: 3, Keep: -1, ContinueOnError: true, disk: disk.Disk{Before: f.Before}}.Hook())
	l.onTrain = func(step int64) error {
		if step == 5 {
			f.At = f.Count
		}
		return nil
	}
	h, err := loop.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, []string{"ckpt-12", "ckpt-14", "ckpt-8"}, names(t, dir))
	require.Equal(t, []string{failedEvent}, h.Records[3].Events)
	require.Empty(t, h.Records[4].Events)
}

// The best checkpoint is the best one that could be written.
func TestBestThatCouldNotBeWritten(t *testing.T) {
	dir := tempDir(t)
	f := &disktest.Failure{At: 1 << 20, Err: syscall.ENOSPC, All: true}
	l := scripted([]float64{5, 4, 1, 3, 6, 7})
	l.onTrain = func(step int64) error {
		switch step {
		case 2:
			f.At = f.Count
		case 3:
			f.At = 1 << 20
		}
		return nil
	}
	loop := Loop{Session: l, Batch: 4, Epochs: 6}
	loop.Hook(Checkpoint{Folder: dir, Keep: 1, Best: "loss", ContinueOnError: true, disk: disk.Disk{Before: f.Before}}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 4))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, bestFile))
	require.NoError(t, err)
	require.JSONEq(t, `{"checkpoint":"ckpt-4","step":4,"metric":"loss","value":3}`, string(text))
	require.Contains(t, names(t, dir), "ckpt-4")
	requireSound(t, dir)
}

// An error that every attempt would repeat ends the run, even with ContinueOnError.
func TestContinueDoesNotHideWhatLasts(t *testing.T) {
	loop := Loop{Session: forgetful{newLinear()}, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint{Folder: tempDir(t), ContinueOnError: true}.Hook())
	h, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorContains(t, err, "the session wrote no file variables")
	require.Len(t, h.Records, 1)
}
