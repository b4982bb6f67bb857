package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/session"
)

// smallDisk mounts a file system that is soon full.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("steadyfit-test", dir, "tmpfs", 0, "size=4m")
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("this needs the right to mount a file system, as root has: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// fill leaves no room in a folder's file system.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	require.NoError(t, err)
	for size := 1 << 16; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			size /= 2
		}
	}
	require.NoError(t, f.Close())
}

// fillsUp runs a training with process resets, fills the disk once the history has its
// first line, and returns the exit code.
func fillsUp(t *testing.T, cmd *exec.Cmd, disk, history string) (code int, output string) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		info, err := os.Stat(history)
		return err == nil && info.Size() > 0
	}, time.Minute, time.Millisecond)
	fill(t, disk)
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// A history that is tolerated to be short of lines does not end a training that goes on
// in other processes; that is said at its end, and the model is there.
func TestProcessResetsOnAFullHistoryDisk(t *testing.T) {
	r := trial{t.TempDir()}
	disk := smallDisk(t)
	history := filepath.Join(disk, "history.jsonl")
	flags := []string{"--epochs", "5", "--every", "1epochs"}
	out, err := r.fit(t, "whole", flags...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	want, err := os.ReadFile(filepath.Join(r.dir, "whole", "model", "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)

	cmd := r.fit(t, "run", append(flags, "--history", history, "--supervise", "--reset", "process", "--on-write-error", "continue")...)
	code, output := fillsUp(t, cmd, disk, history)
	assert.Equal(t, exitFailed, code, "%s", output)
	assert.Contains(t, output, "log file "+history)
	assert.Contains(t, output, "no space left on device (0 B free); it lacks the last epoch")
	assert.Equal(t, 4, strings.Count(output, "goes on in another process"), "%s", output)
	have, err := os.ReadFile(filepath.Join(r.dir, "run", "model", "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, have), "the weights differ")
}

// Without a checkpoint to go on from, there is no other process, and what is half trained
// does not take the place of a model.
func TestProcessResetsOnAFullCheckpointDisk(t *testing.T) {
	r := trial{t.TempDir()}
	disk := smallDisk(t)
	cmd := r.fit(t, "run", "--checkpoints", filepath.Join(disk, "ckpt"), "--every", "1epochs", "--keep", "0",
		"--supervise", "--reset", "process", "--on-write-error", "continue")
	code, output := fillsUp(t, cmd, disk, filepath.Join(r.dir, "run", "history.jsonl"))
	assert.Equal(t, exitFailed, code, "%s", output)
	assert.Contains(t, output, "checkpoint "+filepath.Join(disk, "ckpt"))
	assert.Contains(t, output, "no space left on device")
	assert.NoDirExists(t, filepath.Join(r.dir, "run", "model"))
}

// What a process has left that died while it saved the model is tidied up; what is of
// another time stays.
func TestTidyOut(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	death := session.Death{Time: at, Lasted: time.Minute}
	leave := func(dir, name string, when time.Time, folders ...string) string {
		left := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(left, 0o777))
		for _, f := range folders {
			require.NoError(t, os.MkdirAll(filepath.Join(left, f), 0o777))
			require.NoError(t, os.WriteFile(filepath.Join(left, f, "saved_model.pb"), []byte(f), 0o666))
		}
		require.NoError(t, os.Chtimes(left, when, when))
		return left
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "model")
	during := leave(dir, ".model.tmp-1", at.Add(-time.Second), "new", "old")
	before := leave(dir, ".model.tmp-2", at.Add(-time.Hour), "new")
	other := leave(dir, ".models.tmp-3", at.Add(-time.Second), "new")
	require.NoError(t, tidyOut(out+"/", death))
	assert.NoDirExists(t, during)
	assert.DirExists(t, before)
	assert.DirExists(t, other)
	text, err := os.ReadFile(filepath.Join(out, "saved_model.pb"))
	require.NoError(t, err)
	assert.Equal(t, "old", string(text), "the model before has its name back")

	during = leave(dir, ".model.tmp-4", at.Add(-time.Second), "new")
	require.NoError(t, tidyOut(out, death))
	assert.NoDirExists(t, during)
	text, err = os.ReadFile(filepath.Join(out, "saved_model.pb"))
	require.NoError(t, err)
	assert.Equal(t, "old", string(text))
}

func TestWhatAnErrorLeaves(t *testing.T) {
	hook := func(err error) error { return &fit.HookError{Hook: "h", Phase: "end", Err: err} }
	other := errors.New("other")
	for _, c := range []struct {
		err             error
		unlogged, final bool
	}{
		{nil, true, true},
		{hook(&fit.LogError{}), true, false},
		{hook(&fit.LogError{Final: true}), true, true},
		{hook(&fit.CheckpointError{Final: true}), false, true},
		{errors.Join(hook(&fit.LogError{Final: true}), hook(&fit.CheckpointError{Final: true})), false, true},
		{errors.Join(hook(&fit.LogError{Final: true}), hook(other)), false, false},
		{errors.Join(hook(&fit.LogError{}), hook(&fit.LogError{})), true, false},
		{other, false, false},
	} {
		assert.Equal(t, c.unlogged, every(c.err, unlogged), "%v", c.err)
		assert.Equal(t, c.final, every(c.err, final), "%v", c.err)
	}
	full := &fit.LogError{Err: syscall.ENOSPC}
	assert.True(t, notBegun(&fit.HookError{Phase: "start", Err: full}))
	assert.False(t, notBegun(&fit.HookError{Phase: "end", Err: full}))
	assert.False(t, notBegun(&fit.HookError{Phase: "start", Err: other}))
}
