package fit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/checkpoint"
	"steadyfit/option"
)

// TestLockOfAnotherProcess kills processes that train in the same folder.
func TestLockOfAnotherProcess(t *testing.T) {
	if dir := os.Getenv("FIT_TEST_LOCK"); dir != "" {
		l := newLinear()
		l.onTrain = func(step int64) error {
			if step != 3 {
				return nil
			}
			// Child processes do not hold the lock.
			sleeper := exec.Command("sleep", "60")
			if err := sleeper.Start(); err != nil {
				return err
			}
			fmt.Println(sleeper.Process.Pid)
			return sleeper.Wait()
		}
		loop := Loop{Session: l, Batch: 4, Epochs: 9, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir}.Hook())
		_, err := loop.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		return
	}
	dir := tempDir(t)
	ours := Loop{Session: newLinear(), Batch: 4, Epochs: 3}
	ours.Hook(Checkpoint{Folder: dir}.Hook())
	const restarts = 5
	for i := range restarts {
		child := exec.Command(os.Args[0], "-test.run=^TestLockOfAnotherProcess$")
		child.Env = append(os.Environ(), "FIT_TEST_LOCK="+dir)
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		var sleeper int
		_, err = fmt.Fscan(bufio.NewReader(out), &sleeper)
		require.NoError(t, err, "restart %d trains on", i)

		before := names(t, dir)
		for _, resume := range []string{"", dir} {
			l := newLinear()
			ours.Session, ours.Resume = l, resume
			_, err := ours.Run(t.Context(), samples(t, 8))
			require.ErrorIs(t, err, checkpoint.ErrLocked)
			var locked *checkpoint.LockedError
			require.ErrorAs(t, err, &locked)
			require.Equal(t, child.Process.Pid, locked.Holder.PID)
			host, hostErr := os.Hostname()
			require.NoError(t, hostErr)
			require.Equal(t, host, locked.Holder.Host)
			require.WithinDuration(t, time.Now(), locked.Holder.Since, time.Minute)
			require.ErrorContains(t, err, fmt.Sprintf("in use by process %d on ", child.Process.Pid))
			require.ErrorContains(t, err, "wait until it has ended")
			require.Empty(t, l.steps)
		}
		require.Equal(t, before, names(t, dir))
		found, err := checkpoint.List(dir)
		require.NoError(t, err)
		require.Len(t, found, 1, "reading needs no lock")

		require.NoError(t, child.Process.Kill())
		_ = child.Wait() // it was killed
		t.Cleanup(func() { require.NoError(t, syscall.Kill(sleeper, syscall.SIGKILL)) })
	}
	var log bytes.Buffer
	ours.Session, ours.Resume, ours.Log = newLinear(), dir, warnings(&log)
	h, err := ours.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "ckpt-2"), h.ResumedFrom)
	require.Empty(t, log.String())
	requireSound(t, dir)
}

func TestLockWithinAProcess(t *testing.T) {
	dir := tempDir(t)
	inner := func() error {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 1}
		loop.Hook(Checkpoint{Folder: dir}.Hook())
		_, err := loop.Run(t.Context(), samples(t, 8))
		return err
	}
	l := newLinear()
	l.onTrain = func(int64) error {
		err := inner()
		require.ErrorIs(t, err, checkpoint.ErrLocked)
		require.ErrorContains(t, err, "another run of this process")
		return nil
	}
	loop := Loop{Session: l, Batch: 4, Epochs: 2}
	loop.Hook(Checkpoint{Folder: dir}.Hook())
	_, err := loop.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.NotContains(t, names(t, dir), lockName)
}

// The next run may use the folder, however the previous one ended.
func TestLockIsReleased(t *testing.T) {
	dir := tempDir(t)
	free := func() {
		t.Helper()
		lock, err := checkpoint.Acquire(dir)
		require.NoError(t, err)
		require.NoError(t, lock.Release())
		require.NoError(t, lock.Release())
		require.NotContains(t, names(t, dir), lockName)
	}
	run := func(ctx context.Context, change func(*Loop)) error {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2, Resume: dir}
		loop.Hook(Checkpoint{Folder: dir}.Hook())
		change(&loop)
		_, err := loop.Run(ctx, samples(t, 8))
		return err
	}
	broken := errors.New("out of luck")
	start := func(context.Context, *State) error { return broken }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, change := range []func(*Loop){
		func(l *Loop) { l.Session.(*linear).onTrain = func(int64) error { return broken } },
		func(l *Loop) { l.Hook(Hook{Name: "x", Priority: priorityCheckpoint + 1, Start: start}) },
		func(l *Loop) { l.Hook(Hook{Name: "x", Start: start}) },
		func(l *Loop) { l.Hook(Hook{Name: "x", Epoch: start}) },
		func(l *Loop) { l.Validation = brokenData{samples(t, 20), 3, broken} }, // an error while the data is identified
	} {
		require.ErrorIs(t, run(t.Context(), change), broken)
		free()
	}
	require.ErrorIs(t, run(ended, func(*Loop) {}), context.Canceled)
	free()
	require.NoError(t, run(t.Context(), func(*Loop) {}))
	free()
	require.Error(t, run(t.Context(), func(l *Loop) { l.Batch = 2 }))
	free()
	require.Error(t, run(t.Context(), func(l *Loop) { l.Resume = "" }))
	free()
}

// A lock of another host may be invisible on this host.
func TestLockLeftByAnotherHost(t *testing.T) {
	dir, loop := checkpointed(t, Checkpoint{})
	text, err := json.Marshal(checkpoint.Holder{PID: 7, Host: "elsewhere", Since: time.Unix(1e9, 0).UTC()})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, lockName), text, 0o666))
	var log bytes.Buffer
	loop.Log = warnings(&log)
	_, err = loop.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Contains(t, log.String(), "process 7 on elsewhere, since 2001-09-09T01:46:40Z")
	require.NotContains(t, names(t, dir), lockName)

	// The content of the lock file does not matter.
	for _, text := range []string{"", "nonsense", "{"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, lockName), []byte(text), 0o666))
		_, err = loop.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
	}
	require.Equal(t, "an unknown process", checkpoint.Holder{}.String())
}

// Between resuming and locking, another run may continue in the folder.
func TestFolderUsedWhileResuming(t *testing.T) {
	dir, loop := checkpointed(t, Checkpoint{})
	loop.Epochs = 6
	loop.Hook(Hook{Name: "other", Start: func(context.Context, *State) error {
		other := Loop{Session: newLinear(), Batch: 4, Epochs: 4, Resume: dir}
		other.Hook(Checkpoint{Folder: dir}.Hook())
		_, err := other.Run(t.Context(), samples(t, 8))
		return err
	}})
	_, err := loop.Run(t.Context(), samples(t, 8))
	var wrong *option.Error
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, "ckpt-8 was written by another run")
	require.ErrorContains(t, err, "resume again")
}
