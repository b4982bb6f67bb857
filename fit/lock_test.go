package fit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/checkpoint"
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
		complete(t, &loop, samples(t, 8), Checkpoint{Folder: dir}.Hook())
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
			require.ErrorContains(t, err, fmt.Sprintf("in use by process %d on ", child.Process.Pid))
			require.ErrorContains(t, err, "wait until it has ended")
			require.Empty(t, l.steps)
		}
		require.Equal(t, before, names(t, dir))
		found := listed(t, dir)
		require.Len(t, found, 1, "reading needs no lock")

		require.NoError(t, child.Process.Kill())
		_ = child.Wait() // it was killed
		t.Cleanup(func() { require.NoError(t, syscall.Kill(sleeper, syscall.SIGKILL)) })
	}
	var log bytes.Buffer
	ours.Session, ours.Resume, ours.Log = newLinear(), dir, warnings(&log)
	h := complete(t, &ours, samples(t, 8))
	require.Equal(t, filepath.Join(dir, "ckpt-2"), h.ResumedFrom)
	require.Empty(t, log.String())
	requireSound(t, dir)
}

// The next run may use the folder, however the previous one ended.
func TestLockIsReleased(t *testing.T) {
	dir := tempDir(t)
	free := func() {
		t.Helper()
		lock, err := checkpoint.Acquire(dir, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.NoError(t, lock.Release())
		require.NoError(t, lock.Release())
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
