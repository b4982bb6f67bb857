package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
)

// smallDisk mounts a small file system that is soon full.
func smallDisk(t *testing.T) string { return smallDiskAt(t, t.TempDir()) }

// smallDiskAt mounts a small file system on a folder.
func smallDiskAt(t *testing.T, dir string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o777))
	err := syscall.Mount("steadyfit-test", dir, "tmpfs", 0, "size=4m")
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		t.Skipf("this needs the right to mount a file system, as root has: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// fill writes a file until the folder's file system has no free space.
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

// waitForHistory waits until a history has its first line.
func waitForHistory(t *testing.T, history string) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := os.Stat(history)
		return err == nil && info.Size() > 0
	}, time.Minute, time.Millisecond)
}

// fillsUp runs a training with process resets, fills the disk once the history has its first
// line, and returns the exit code.
func fillsUp(t *testing.T, cmd *exec.Cmd, disk, history string) (code int, output string) {
	t.Helper()
	out := start(t, cmd)
	waitForHistory(t, history)
	fill(t, disk)
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// Without a checkpoint to resume from, no other process starts, and a half-trained model does
// not replace an earlier one.
//
//lane:skip race (ends processes)
func TestProcessResetsOnAFullCheckpointDisk(t *testing.T) {
	r := trial{dir: t.TempDir()}
	disk := smallDisk(t)
	cmd := r.fit(t, "run", "--checkpoints", filepath.Join(disk, "ckpt"), "--every", "1epochs", "--keep", "0",
		"--supervise", "--reset", "process")
	code, output := fillsUp(t, cmd, disk, filepath.Join(r.dir, "run", "history.jsonl"))
	assert.Equal(t, exitFailed, code, "%s", output)
	assert.Contains(t, output, "writing "+filepath.Join(disk, "ckpt"))
	assert.Contains(t, output, "no space left on device")
	assert.NoDirExists(t, filepath.Join(r.dir, "run", "model"))
}

// A training without its data or the folder for its model is retried after a pause, and still
// has its checkpoints after the last retry.
//
//lane:skip race (ends processes)
func TestProcessResetsWithoutWhatTheyNeed(t *testing.T) {
	for _, c := range []struct {
		name string
		// away removes something that a running training needs; root is its folder.
		away func(t *testing.T, root string)
		want string
	}{
		{"data", func(t *testing.T, root string) {
			require.NoError(t, os.Rename(filepath.Join(root, "data"), filepath.Join(root, "away")))
		}, "no such file"},
		{"out", func(t *testing.T, root string) {
			require.NoError(t, syscall.Mount("", filepath.Join(root, "disk"), "", syscall.MS_REMOUNT|syscall.MS_RDONLY,
				"size=4m"))
		}, "read-only file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // the test mostly waits
			root := t.TempDir()
			disk := smallDiskAt(t, filepath.Join(root, "disk"))
			train, _, err := data.Builtin("digits")
			require.NoError(t, err)
			for b, err := range train.Batches(data.Pass{Batch: train.Len()}) {
				require.NoError(t, err)
				require.NoError(t, os.Rename(writeArrays(t, b.Fields...), filepath.Join(root, "data")))
			}
			history, ckpt := filepath.Join(root, "history.jsonl"), filepath.Join(root, "ckpt")
			cmd := program(t, "fit", "--model", "builtin:digits", "--data", filepath.Join(root, "data"), "--epochs", "1000",
				"--checkpoints", ckpt,
				"--history", history, "--out", filepath.Join(disk, "model"), "--supervise", "--reset", "process")
			out := start(t, cmd)
			waitForHistory(t, history)
			c.away(t, root)
			require.Error(t, cmd.Wait())
			assert.Equal(t, exitFailed, cmd.ProcessState.ExitCode(), "%s", out)
			assert.Contains(t, out.String(), "restarting it")
			assert.Contains(t, out.String(), "gave up; attempts without progress: 6")
			assert.Contains(t, out.String(), c.want)
		})
	}
}

// The parent of a training never loads TensorFlow, even if it has read the model to see whether
// its batches can be split, and starts several children.
//
//lane:skip race (ends processes)
func TestParentIsSmall(t *testing.T) {
	dir := t.TempDir()
	history := filepath.Join(dir, "history.jsonl")
	cmd := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--epochs", "1000000",
		"--history", history, "--checkpoints", filepath.Join(dir, "ckpt"), "--supervise", "--reset", "process", "--on-oom",
		"microbatch")
	out := start(t, cmd)
	defer func() {
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.Error(t, cmd.Wait())
		assert.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), "%s", out)
	}()
	waitForHistory(t, history)
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	require.NoError(t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	require.NoError(t, err)
	assert.NotContains(t, string(maps), "libtensorflow")
	if !raceDetector() { // the race detector keeps memory itself
		anonymous := 0
		_, rest, _ := strings.Cut(string(status), "RssAnon:")
		_, err := fmt.Sscan(rest, &anonymous)
		require.NoError(t, err)
		assert.Less(t, anonymous, 16<<10, "KiB; the kernel decides how many pages of the file are resident")
	}
}
