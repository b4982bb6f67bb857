package main

import (
	"bytes"
	"fmt"
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
)

// serviceEnv makes the test binary run the program.
const serviceEnv = "STEADYFIT_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(serviceEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func serve(t *testing.T, dir string, args ...string) (cmd *exec.Cmd, output *bytes.Buffer) {
	t.Helper()
	cmd, output = exec.Command(os.Args[0], append([]string{"-dir", dir}, args...)...), &bytes.Buffer{}
	cmd.Env = append(os.Environ(), serviceEnv+"=1", "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	cmd.Stdout, cmd.Stderr = output, output
	require.NoError(t, cmd.Start())
	return cmd, output
}

func enqueue(t *testing.T, dir, name, config string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "queue"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "queue", name+".json"), []byte(config), 0o666))
}

// demo puts n jobs on built-in models into the queue.
func demo(t *testing.T, dir string, n int) {
	t.Helper()
	for i := range n {
		enqueue(t, dir, fmt.Sprintf("demo-%04d", i), fmt.Sprintf(`{"Model": %q, "Data": {"Path": "builtin:digits"}, "Seed": %d, "Loop": {"Epochs": 2, "Batch": 32}}`, []string{"builtin:digits", "builtin:digits-cnn"}[i%2], i))
	}
}

// weights returns the weights of the trained models by job.
func weights(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(dir, "models", "*", "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		found[filepath.Base(filepath.Dir(filepath.Dir(path)))] = string(text)
	}
	return found
}

// If a worker is killed during a job, the models are those of an undisturbed service, bit for
// bit. A job that cannot work fails, and the exit code reports that.
//
//lane:skip race (ends processes)
func TestServiceSurvivesItsWorker(t *testing.T) {
	jobs := func(dir string) {
		demo(t, dir, 3)
		// The job is so long that its worker can be killed during the training, even on a busy machine.
		enqueue(t, dir, "demo-0001", `{"Model":"builtin:digits-cnn","Data":{"Path":"builtin:digits"},"Seed":1,"Loop":{"Epochs":10,"Batch":32}}`)
	}
	undisturbed := t.TempDir()
	jobs(undisturbed)
	cmd, output := serve(t, undisturbed)
	require.NoError(t, cmd.Wait(), "%s", output)
	assert.Contains(t, output.String(), "jobs done: 3, failed: 0")
	want := weights(t, undisturbed)
	require.Len(t, want, 3)

	dir := t.TempDir()
	enqueue(t, dir, "bad", `{"Model":"nowhere","Data":{"Path":"builtin:digits"},"Loop":{"Epochs":1,"Batch":32}}`)
	jobs(dir)
	// The remains of a worker that crashed while it saved a model.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "models", ".demo-0000.tmp-1", "new"), 0o777))
	cmd, output = serve(t, dir)
	running := filepath.Join(dir, "running", "demo-0001")
	require.Eventually(t, func() bool {
		found, err := fit.Checkpoints(running)
		return err == nil && len(found) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, syscall.Kill(workerOf(t, cmd.Process.Pid), syscall.SIGKILL))
	require.Error(t, cmd.Wait(), "a job failed")
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	assert.Contains(t, output.String(), "restarting it")
	assert.Contains(t, output.String(), "job bad failed: ")
	assert.Contains(t, output.String(), "jobs done: 3, failed: 1")
	have := weights(t, dir)
	require.Len(t, have, 3)
	for name := range want {
		assert.True(t, want[name] == have[name], "%s differs", name)
	}
	for folder, count := range map[string]int{"queue": 0, "done": 3, "failed": 1} {
		assert.Len(t, service{dir: dir}.jobs(folder), count, folder)
	}
	left, err := os.ReadDir(filepath.Dir(running))
	require.NoError(t, err)
	assert.Empty(t, left)
	parts, err := filepath.Glob(filepath.Join(dir, "models", ".*.tmp-*"))
	require.NoError(t, err)
	assert.Empty(t, parts)
}

// A job is a train.Config, including its budget. A job that cannot keep its budget fails, and
// later jobs are trained.
func TestJobsAreConfigs(t *testing.T) {
	free, other := t.TempDir(), t.TempDir()
	demo(t, free, 2)
	cmd, output := serve(t, free)
	require.NoError(t, cmd.Wait(), "%s", output)
	demo(t, other, 2)
	enqueue(t, other, "a", `{"Model":"builtin:digits","Data":{"Path":"builtin:digits"},"Loop":{"Epochs":2,"Batch":32},"Budget":{"Limit":1048576}}`)
	enqueue(t, other, "b", `{"Model":"builtin:digits","Data":{"Path":"builtin:digits"},"Loop":{"Epochs":2,"Batch":32},"Autotune":{"Mode":"on"}}`)
	enqueue(t, other, "c", `{"Model":"builtin:digits","Data":{"Path":"builtin:digits"},"Loop":{"Epochs":0,"Batch":32}}`)
	enqueue(t, other, "d", `{"Model":`)
	cmd, output = serve(t, other)
	require.Error(t, cmd.Wait(), "%s", output)
	assert.Contains(t, output.String(), "jobs done: 3, failed: 3")
	assert.Contains(t, output.String(), "job a failed: ")
	assert.Contains(t, output.String(), "the limit of 1.0 MiB of rss cannot be kept")
	assert.Contains(t, output.String(), "plain: a memory budget leaves no room for trials")
	assert.Contains(t, output.String(), "job c failed: Loop.Epochs 0: expected at least 1")
	assert.Contains(t, output.String(), "job d failed: unexpected end of JSON input")
	want, have := weights(t, free), weights(t, other)
	require.Len(t, want, 2)
	require.Len(t, have, 3)
	assert.Equal(t, have["b"], have["demo-0000"])
	for name := range want {
		assert.True(t, want[name] == have[name], "%s differs", name)
	}
}

func workerOf(t *testing.T, pid int) int {
	t.Helper()
	child, ok := findWorker(pid)
	require.True(t, ok, "there is no worker")
	return child
}

// findWorker returns the child of a process.
func findWorker(pid int) (child int, ok bool) {
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if err != nil {
		return 0, false
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, word := range bytes.Fields(text) {
			child, err := strconv.Atoi(string(word))
			return child, err == nil
		}
	}
	return 0, false
}

// Ctrl-C ends the worker after its step and a checkpoint. The service exits with 130, and the
// job stays in the queue.
func TestCtrlC(t *testing.T) {
	dir := t.TempDir()
	enqueue(t, dir, "long", `{"Model":"builtin:digits","Data":{"Path":"builtin:digits"},"Loop":{"Epochs":1000000,"Batch":32}}`)
	cmd, output := serve(t, dir)
	require.Eventually(t, func() bool {
		found, err := fit.Checkpoints(filepath.Join(dir, "running", "long"))
		return err == nil && len(found) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	assert.Equal(t, 130, cmd.ProcessState.ExitCode(), "%s", output)
	assert.Equal(t, []string{"long"}, service{dir: dir}.jobs("queue"))
}

// A job leaves the queue after everything else of it was removed. Otherwise, if the worker
// ended before that, another job of the same name would resume its checkpoints.
func TestAJobLeavesTheQueueLast(t *testing.T) {
	s := service{dir: t.TempDir()}
	demo(t, s.dir, 1)
	checkpoints := filepath.Join(s.dir, "running", "demo-0000")
	require.NoError(t, os.MkdirAll(checkpoints, 0o777))
	require.Error(t, s.finish("demo-0000", nil), "there is no folder to move it to")
	assert.NoDirExists(t, checkpoints)
	assert.FileExists(t, filepath.Join(s.dir, "queue", "demo-0000.json"))
}

// A job whose workers are killed before there is a checkpoint fails, and its file has the
// reason.
func TestJobThatKillsIsPutAside(t *testing.T) {
	dir := t.TempDir()
	enqueue(t, dir, "long", `{"Model":"builtin:digits","Data":{"Path":"builtin:digits"},"Loop":{"Epochs":1000000,"Batch":32},"Checkpoints":{"EverySteps":1000000}}`)
	cmd, output := serve(t, dir)
	killed := map[int]bool{}
	require.Eventually(t, func() bool {
		if pid, ok := findWorker(cmd.Process.Pid); ok && !killed[pid] && len(service{dir: dir}.jobs("queue")) > 0 {
			killed[pid] = syscall.Kill(pid, syscall.SIGKILL) == nil
		}
		return len(service{dir: dir}.jobs("failed")) > 0
	}, time.Minute, time.Millisecond)
	require.Error(t, cmd.Wait())
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	text, err := os.ReadFile(filepath.Join(dir, "failed", "long.txt"))
	require.NoError(t, err, "%s", output)
	assert.Contains(t, string(text), "gave up; attempts without progress: 3")
	assert.Contains(t, string(text), "killed by SIGKILL")
}

// Only memory that grows from job to job is an error.
func TestServiceJudgesItsMemory(t *testing.T) {
	for _, c := range []struct {
		growth memory.Bytes
		leaks  bool
	}{{memory.MiB, true}, {0, false}} {
		s, series := service{dir: t.TempDir()}, memory.Series{}
		for i := range 60 {
			at := 100*memory.MiB + memory.Bytes(i)*c.growth + memory.Bytes(i*7%5)*4*memory.KiB
			series.Append(&memory.Sample{Step: i, Values: []memory.Value{{Layer: memory.Anon, Reading: memory.Known(at)}}})
		}
		err := s.outcome(&series)
		assert.Equal(t, c.leaks, err != nil, "%v", err)
	}
}
