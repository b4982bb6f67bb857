package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/session"
)

// serviceEnv has the test binary be the program.
const serviceEnv = "STEADYFIT_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// serve starts the service on a folder.
func serve(t *testing.T, dir string, args ...string) (cmd *exec.Cmd, output *bytes.Buffer) {
	t.Helper()
	cmd, output = exec.Command(os.Args[0], append([]string{"-dir", dir}, args...)...), &bytes.Buffer{}
	cmd.Env = append(os.Environ(), serviceEnv+"=1")
	cmd.Stdout, cmd.Stderr = output, output
	require.NoError(t, cmd.Start())
	return cmd, output
}

// weights are those of the trained models, by job.
func weights(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(dir, models, "*", "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		found[filepath.Base(filepath.Dir(filepath.Dir(path)))] = string(text)
	}
	return found
}

// A worker that is killed in the middle of a job costs nothing but time: the models are
// those of a service that nothing happened to, bit for bit. A job that cannot work is put
// aside, and the exit code says so.
func TestServiceSurvivesItsWorker(t *testing.T) {
	undisturbed := t.TempDir()
	cmd, output := serve(t, undisturbed, "-demo", "3")
	require.NoError(t, cmd.Wait(), "%s", output)
	assert.Contains(t, output.String(), "3 jobs, 0 of them failed")
	want := weights(t, undisturbed)
	require.Len(t, want, 3)

	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, queue), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, queue, "bad.json"), []byte(`{"model":"nowhere","data":"builtin:digits","epochs":1,"batch":32}`), 0o666))
	// Left by workers that died while they saved a model.
	for _, left := range []string{".demo-0000.tmp-1/new", ".before.tmp-2/old/assets"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, models, filepath.FromSlash(left)), 0o777))
	}
	cmd, output = serve(t, dir, "-demo", "3")
	running := filepath.Join(dir, running, "demo-0001")
	require.Eventually(t, func() bool {
		found, err := fit.Checkpoints(running)
		return err == nil && len(found) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, syscall.Kill(workerOf(t, cmd.Process.Pid), syscall.SIGKILL))
	require.Error(t, cmd.Wait(), "a job failed")
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	assert.Contains(t, output.String(), "is started anew")
	assert.Contains(t, output.String(), "job bad failed: ")
	assert.Contains(t, output.String(), "4 jobs, 1 of them failed")
	have := weights(t, dir)
	require.Len(t, have, 3)
	for name := range want {
		assert.True(t, want[name] == have[name], "%s differs", name)
	}
	for folder, count := range map[string]int{queue: 0, done: 3, failed: 1} {
		names, err := jobs(filepath.Join(dir, folder))
		require.NoError(t, err)
		assert.Len(t, names, count, folder)
	}
	left, err := os.ReadDir(filepath.Dir(running))
	require.NoError(t, err)
	assert.Empty(t, left)
	parts, err := filepath.Glob(filepath.Join(dir, models, ".*.tmp-*"))
	require.NoError(t, err)
	assert.Empty(t, parts)
	assert.DirExists(t, filepath.Join(dir, models, "before", "assets"))
}

// A limit that no job can keep to has models loaded anew and jobs done by one worker after
// the other; the models are the same. What failed before this service is not its failure.
func TestLimit(t *testing.T) {
	free, limited := t.TempDir(), t.TempDir()
	cmd, output := serve(t, free, "-demo", "2")
	require.NoError(t, cmd.Wait(), "%s", output)
	require.NoError(t, os.MkdirAll(filepath.Join(limited, failed), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(limited, failed, "old.json"), []byte("{}"), 0o666))
	cmd, output = serve(t, limited, "-demo", "2", "-limit", "1MiB")
	require.NoError(t, cmd.Wait(), "%s", output)
	assert.Contains(t, output.String(), "2 jobs, 0 of them failed")
	assert.Contains(t, output.String(), "in use after job demo-0000")
	want, have := weights(t, free), weights(t, limited)
	require.Len(t, want, 2)
	require.Len(t, have, 2)
	for name := range want {
		assert.True(t, want[name] == have[name], "%s differs", name)
	}
}

func workerOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	require.NoError(t, err)
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, word := range bytes.Fields(text) {
			child, err := strconv.Atoi(string(word))
			require.NoError(t, err)
			return child
		}
	}
	require.Fail(t, "there is no worker")
	return 0
}

// Ctrl-C ends the worker after its step and a checkpoint, and the service with 130; the job
// stays in the queue.
func TestCtrlC(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, queue), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, queue, "long.json"), []byte(`{"model":"builtin:digits","data":"builtin:digits","epochs":1000000,"batch":32}`), 0o666))
	cmd, output := serve(t, dir)
	require.Eventually(t, func() bool {
		found, err := fit.Checkpoints(filepath.Join(dir, running, "long"))
		return err == nil && len(found) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	assert.Equal(t, 130, cmd.ProcessState.ExitCode(), "%s", output)
	names, err := jobs(filepath.Join(dir, queue))
	require.NoError(t, err)
	assert.Equal(t, []string{"long"}, names)
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{session.ErrAgain, 0},
		{errors.New("other"), 1},
		{fmt.Errorf("job a: %w", context.Canceled), 130},
		{&session.ChildError{Code: 130}, 130},
		{&session.ChildError{Code: 1}, 1},
	} {
		assert.Equal(t, c.want, exitCode(c.err), "%v", c.err)
	}
}

// A job leaves the queue only when nothing else is left of it, whatever ends the worker in
// between: the next job of that name would take its checkpoints for its own.
func TestAJobLeavesTheQueueLast(t *testing.T) {
	w := &worker{dir: t.TempDir(), out: io.Discard}
	require.NoError(t, w.prepare(1))
	require.NoError(t, os.Remove(filepath.Join(w.dir, done)))
	checkpoints := filepath.Join(w.dir, running, "demo-0000")
	require.NoError(t, os.Mkdir(checkpoints, 0o777))
	require.Error(t, w.finish("demo-0000", nil), "there is no folder to move it to")
	assert.NoDirExists(t, checkpoints)
	assert.FileExists(t, filepath.Join(w.dir, queue, "demo-0000.json"))
}

// A job of which three workers have died is put aside with the reason.
func TestJobThatKillsIsPutAside(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, queue), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, queue, "long.json"), []byte(`{"model":"builtin:digits","data":"builtin:digits","epochs":1000000,"batch":32}`), 0o666))
	cmd, output := serve(t, dir)
	step := int64(0)
	for range mostDeaths {
		require.Eventually(t, func() bool {
			found, err := fit.Checkpoints(filepath.Join(dir, running, "long"))
			if err != nil || len(found) == 0 || found[0].Step <= step {
				return false
			}
			step = found[0].Step
			return true
		}, time.Minute, time.Millisecond)
		require.NoError(t, syscall.Kill(workerOf(t, cmd.Process.Pid), syscall.SIGKILL))
	}
	require.Error(t, cmd.Wait())
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	text, err := os.ReadFile(filepath.Join(dir, failed, "long.txt"))
	require.NoError(t, err, "%s", output)
	assert.Contains(t, string(text), "3 workers died of it; the last one: killed by SIGKILL")
}

// Memory that grows from job to job is an error, and memory that does not is none.
func TestServiceJudgesItsMemory(t *testing.T) {
	for _, c := range []struct {
		growth memory.Bytes
		leaks  bool
	}{{memory.MiB, true}, {0, false}} {
		var out bytes.Buffer
		w := &worker{out: &out}
		for i := range 60 {
			at := 100*memory.MiB + memory.Bytes(i)*c.growth + memory.Bytes(i*7%5)*4*memory.KiB
			w.series.Append(&memory.Sample{Step: i, Values: []memory.Value{{Layer: memory.Anon, Reading: memory.Known(at)}}})
		}
		err := w.outcome()
		assert.Equal(t, c.leaks, err != nil, "%s", &out)
	}
}
