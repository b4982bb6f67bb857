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

	"steadyfit/option"
)

// failure makes one change to files fail, or all from there on, and notes what
// is changed.
type failure struct {
	at    int
	err   error
	all   bool
	count int
	ops   []string
}

func (f *failure) before(op, path string) error {
	at := f.count
	f.count++
	f.ops = append(f.ops, op+" "+path)
	if at == f.at || (f.all && at > f.at) {
		return f.err
	}
	return nil
}

// requireSound looks whether all checkpoints of a folder can be used, and
// whether anything is left over.
func requireSound(t testing.TB, dir string) {
	t.Helper()
	found, err := Checkpoints(dir)
	require.NoError(t, err)
	require.NotEmpty(t, found)
	best := 0
	for _, c := range found {
		require.NoError(t, c.Err, c.Path)
		if c.Best {
			best++
		}
	}
	if !missing(filepath.Join(dir, bestFile)) {
		require.Equal(t, 1, best, "best.json names a checkpoint")
	}
	for _, name := range names(t, dir) {
		require.False(t, strings.HasPrefix(name, "."), "%s is left over", name)
	}
}

// Every single change to files fails once. With Continue, the run trains to the
// end as if nothing had happened, but for the event.
func TestContinueAfterAnyFailure(t *testing.T) {
	want := wanted(t)
	events := 0
	for at := 0; ; at++ {
		dir := tempDir(t)
		f := &failure{at: at, err: syscall.EIO}
		l := newLinear()
		loop := fullLoop(t, l, dir, withDisk(disk{before: f.before}), OnError(Continue))
		h, err := loop.Run(t.Context(), trainingData(t))
		if len(l.steps) == 0 {
			require.ErrorIs(t, err, syscall.EIO, "before the training, a failure ends the run")
			continue
		}
		require.NoError(t, err, f.ops[min(at, len(f.ops)-1)])
		if at < f.count {
			// Whoever failed to sync may not try that again; it is written anew.
			if strings.HasPrefix(f.ops[at], "sync ") && at+1 < len(f.ops) {
				require.NotEqual(t, f.ops[at], f.ops[at+1])
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
		found, err := Checkpoints(dir)
		require.NoError(t, err)
		for _, c := range found {
			require.NoError(t, c.Err)
		}
		if at >= f.count {
			require.Greater(t, at, 100, "the run changes files often")
			require.Greater(t, events, 50, "failures are in the history")
			requireSound(t, dir)
			return
		}
	}
}

// With Stop, what was there is there, and the run goes on when the disk does.
func TestStopAfterAnyFailure(t *testing.T) {
	want := wanted(t)
	for at := 0; ; at += 3 {
		dir := tempDir(t)
		f := &failure{at: at, err: syscall.EDQUOT, all: true}
		loop := fullLoop(t, newLinear(), dir, withDisk(disk{before: f.before}))
		_, err := loop.Run(t.Context(), trainingData(t))
		if at >= f.count {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, syscall.EDQUOT)
		var failed *CheckpointError
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

// A disk that never recovers costs the checkpoints, not the training, and the
// error at the end says that the result is not on disk.
func TestContinueToTheEndWithoutCheckpoints(t *testing.T) {
	dir := tempDir(t)
	f := &failure{at: 1 << 20, err: syscall.EIO, all: true}
	l := newLinear()
	loop := Loop{Session: l, Batch: 4, Epochs: 6}
	var log bytes.Buffer
	loop.Log = warnings(&log)
	loop.Hook(Checkpoint(dir, Keep(1), Best("loss"), OnError(Continue), withDisk(disk{before: f.before})))
	l.onTrain = func(step int64) error {
		if step == 5 {
			f.at = f.count
		}
		return nil
	}
	h, err := loop.Run(t.Context(), samples(t, 8))
	var failed *CheckpointError
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
	resumed.Hook(Checkpoint(dir, Keep(1), Best("loss")))
	h, err = resumed.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, failed.Good, h.ResumedFrom)
	require.Equal(t, whole.state(), again.state())
	requireSound(t, dir)
}

// The next try does not wait for the next checkpoint that is due.
func TestFailedCheckpointIsOwed(t *testing.T) {
	dir := tempDir(t)
	f := &failure{at: 1 << 20, err: syscall.ENOSPC}
	l := newLinear()
	loop := Loop{Session: l, Batch: 4, Epochs: 7}
	loop.Hook(Checkpoint(dir, EveryEpochs(3), Keep(0), OnError(Continue), withDisk(disk{before: f.before})))
	l.onTrain = func(step int64) error {
		if step == 5 {
			f.at = f.count
		}
		return nil
	}
	h, err := loop.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, []string{"ckpt-12", "ckpt-14", "ckpt-8"}, names(t, dir))
	require.Equal(t, []string{failedEvent}, h.Records[3].Events)
	require.Empty(t, h.Records[4].Events)
}

// The best checkpoint is the best of those that are on disk.
func TestBestThatCouldNotBeWritten(t *testing.T) {
	dir := tempDir(t)
	f := &failure{at: 1 << 20, err: syscall.ENOSPC, all: true}
	l := scripted([]float64{5, 4, 1, 3, 6, 7})
	l.onTrain = func(step int64) error {
		switch step {
		case 2:
			f.at = f.count
		case 3:
			f.at = 1 << 20
		}
		return nil
	}
	loop := Loop{Session: l, Batch: 4, Epochs: 6}
	loop.Hook(Checkpoint(dir, Keep(1), Best("loss"), OnError(Continue), withDisk(disk{before: f.before})))
	_, err := loop.Run(t.Context(), samples(t, 4))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, bestFile))
	require.NoError(t, err)
	require.JSONEq(t, `{"checkpoint":"ckpt-4","step":4,"metric":"loss","value":3}`, string(text))
	require.Contains(t, names(t, dir), "ckpt-4")
	requireSound(t, dir)
}

// What no later try gets over ends the run whatever the policy is.
func TestContinueDoesNotHideWhatLasts(t *testing.T) {
	loop := Loop{Session: forgetful{newLinear()}, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint(tempDir(t), OnError(Continue)))
	h, err := loop.Run(t.Context(), samples(t, 8))
	require.ErrorContains(t, err, "the session wrote no file variables")
	require.Len(t, h.Records, 1)

	loop = Loop{Session: newLinear(), Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint(tempDir(t), OnError(7)))
	_, err = loop.Run(t.Context(), samples(t, 8))
	var wrong *option.Error
	require.ErrorAs(t, err, &wrong)
}

// A name is given to a folder, or everything is as it was.
func TestPublishIsUndone(t *testing.T) {
	for _, replaces := range []bool{false, true} {
		for at := 0; ; at++ {
			dir := tempDir(t)
			path, temporary := filepath.Join(dir, "ckpt-1"), filepath.Join(dir, ".ckpt-1.tmp")
			put := func(folder string) {
				require.NoError(t, errors.Join(os.Mkdir(folder, 0o777), os.WriteFile(filepath.Join(folder, "x"), []byte(folder), 0o666)))
			}
			put(temporary)
			want := temporary
			if replaces {
				put(path)
			}
			f := &failure{at: at, err: syscall.EIO}
			err := disk{before: f.before}.publish(temporary, path)
			if err != nil {
				require.ErrorIs(t, err, syscall.EIO)
				require.DirExists(t, temporary)
				require.Equal(t, !replaces, missing(path), f.ops)
				want = path
			}
			if err == nil || replaces {
				text, err := os.ReadFile(filepath.Join(path, "x"))
				require.NoError(t, err)
				require.Equal(t, want, string(text))
			}
			if err == nil && at >= f.count {
				require.Equal(t, []string{"ckpt-1"}, names(t, dir))
				break
			}
		}
	}
}

func TestReplaceLeavesNothingOfAFailure(t *testing.T) {
	for at := range 3 { // write, sync, rename
		dir := tempDir(t)
		path := filepath.Join(dir, "a")
		require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
		f := &failure{at: at, err: syscall.ENOSPC}
		require.ErrorIs(t, disk{before: f.before}.replace(path, []byte("new")), syscall.ENOSPC)
		require.Equal(t, []string{"a"}, names(t, dir))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(text))
	}
}

// A removal that failed half-way is done by the next.
func TestDiscardAgain(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "a")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "b"), 0o777))
	f := &failure{at: 2, err: syscall.EIO} // the last of its changes
	require.ErrorIs(t, disk{before: f.before}.discard(path), syscall.EIO)
	require.True(t, missing(path))
	require.NoError(t, disk{}.discard(path))
	require.Empty(t, names(t, dir))
}

// Of checkpoints none of which is known to be good, none is removed for another.
func TestNoRoomWithoutAGoodCheckpoint(t *testing.T) {
	dir := tempDir(t)
	for _, name := range []string{"ckpt-2", "ckpt-4"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o777))
	}
	c := &checkpointer{dir: dir, keep: 1, bestStep: -1, pointed: -1, kept: []keptCheckpoint{{step: 2, proven: true}, {step: 4, whole: true}}}
	s := &State{Position: Position{Step: 6, FiniteLoss: true}, run: &run{}}
	require.ErrorIs(t, c.makeRoom(s), errNoRoom)
	require.Len(t, names(t, dir), 2)
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
