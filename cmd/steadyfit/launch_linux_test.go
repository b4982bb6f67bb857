package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/session"
	"steadyfit/train"
)

// launchDigits trains builtin:digits on two ranks, into a folder.
func launchDigits(t *testing.T, dir string, flags ...string) *exec.Cmd {
	t.Helper()
	cmd := program(t, append(append([]string{"launch", "--workers", "2", "--"}, digitsFit(dir)...), flags...)...)
	cmd.Env = append(cmd.Env, launchMark+"="+dir)
	return cmd
}

// digitsFit trains builtin:digits into a folder.
func digitsFit(dir string) []string {
	return []string{"fit", "--model", "builtin:digits", "--data", "builtin:digits", "--batch", "64", "--seed", "1",
		"--checkpoints", filepath.Join(dir, "ckpt"), "--every", "3steps", "--history", filepath.Join(dir, "history.jsonl"),
		"--out", filepath.Join(dir, "model")}
}

// launchMark is in the environment of all processes of a launched training.
const launchMark = "STEADYFIT_TEST_LAUNCH"

// launched returns the processes of the launched training in a folder.
func launched(t *testing.T, dir string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(environ, []byte("\x00"+launchMark+"="+dir+"\x00")) {
			continue // the process of another user, or one that has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

func launchedWeights(t *testing.T, dir string) []byte {
	return weightsOf(t, filepath.Join(dir, "model"))
}

// Two ranks end with the weights of one process that splits each batch in two, bit for bit. Only
// rank 0 writes files and prints the result.
func TestLaunchedRanksAreOneTraining(t *testing.T) {
	const epochs = 3
	dir, alone := t.TempDir(), t.TempDir()
	cmd := launchDigits(t, dir, "--epochs", strconv.Itoa(epochs))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s", &stderr)
	assert.Equal(t, 1, strings.Count(stdout.String(), "trained 3 epochs"), "%s", &stdout)
	for _, line := range []string{"[rank 1] cluster: rank 1 of 2, from launch", "cluster: rank 0 of 2, from launch"} {
		assert.Contains(t, "\n"+stderr.String(), "\n"+line+"\n")
	}
	history, err := os.ReadFile(filepath.Join(dir, "history.jsonl"))
	require.NoError(t, err)
	assert.Equal(t, epochs, bytes.Count(history, []byte{'\n'}), "%s", history)
	assert.Empty(t, launched(t, dir))

	trainAlone(t, alone, "builtin:digits", epochs, 2)
	assert.True(t, bytes.Equal(launchedWeights(t, alone), launchedWeights(t, dir)), "the weights differ")
}

// batchHash is a model for builtin:digits. One of its variables is an exact hash of all batches in
// their order.
const batchHash = "../../savedmodels/testdata/batchhash"

// trainAlone trains as launchDigits in this process, in micro-batches.
func trainAlone(t *testing.T, dir, name string, epochs, parts int) {
	t.Helper()
	model, err := train.OpenModel(&train.Config{Model: name})
	require.NoError(t, err)
	s, err := session.OpenModel(t.Context(), model, session.Options{Seed: 1})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.SetMicroBatches(parts))
	samples, _, err := data.Builtin("digits")
	require.NoError(t, err)
	loop := fit.Loop{Session: s, Batch: 64, Epochs: epochs}
	_, err = loop.Run(t.Context(), samples.Shuffle(1))
	require.NoError(t, err)
	require.NoError(t, s.SaveModel(t.Context(), filepath.Join(dir, "model")))
}

// sameAsAlone asserts that a launched training has the weights of a training in one process, up to
// rounding. For the model batchHash, that means the same batches in the same order.
func sameAsAlone(t *testing.T, dir, model string, epochs int) {
	t.Helper()
	alone := t.TempDir()
	trainAlone(t, alone, model, epochs, 1)
	got, want := launchedWeights(t, dir), launchedWeights(t, alone)
	require.Len(t, got, len(want))
	for i := 0; i+4 <= len(want); i += 4 {
		require.InDelta(t, floatOf(want[i:]), floatOf(got[i:]), 1e-6)
	}
}

// newestCheckpoint returns the step of the newest checkpoint of a launched training; 0 if there is none.
func newestCheckpoint(dir string) (newest int) {
	paths, _ := filepath.Glob(filepath.Join(dir, "ckpt", "ckpt-*")) // the pattern is valid
	for _, path := range paths {
		if step, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "ckpt-")); err == nil {
			newest = max(newest, step)
		}
	}
	return newest
}

// A training that begins with four ranks continues with two and then in one process, with the same
// batches. The training with four ranks ends in a crash, and the one with two ranks in an interrupt
// at any step.
//
//lane:skip race (ends processes)
func TestLaunchedRanksChange(t *testing.T) {
	const epochs = 8
	dir := t.TempDir()
	fit := append(digitsFit(dir), "--model", batchHash, "--epochs", strconv.Itoa(epochs), "--resume")
	for _, c := range []struct {
		ranks string
		end   syscall.Signal
	}{{"4", syscall.SIGKILL}, {"2", syscall.SIGTERM}} {
		before := newestCheckpoint(dir)
		cmd := program(t, append([]string{"launch", "--workers", c.ranks, "--"}, fit...)...)
		cmd.Env = append(cmd.Env, launchMark+"="+dir)
		output := start(t, cmd)
		require.Eventually(t, func() bool { return newestCheckpoint(dir) > before }, time.Minute, 5*time.Millisecond)
		require.NoError(t, cmd.Process.Signal(c.end))
		require.Error(t, cmd.Wait())
		require.Eventually(t, func() bool { return len(launched(t, dir)) == 0 }, time.Minute, 10*time.Millisecond)
		assert.Contains(t, output.String(), "cluster: rank 0 of "+c.ranks)
	}
	step := newestCheckpoint(dir)
	out, err := program(t, fit...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), fmt.Sprintf("done, step %d\n", step))
	sameAsAlone(t, dir, batchHash, epochs)
}

// One process, two and four ranks train on the records in the order of the same data in memory.
func TestRanksReadRecordsInOneOrder(t *testing.T) {
	const epochs = 2
	records := t.TempDir()
	require.NoError(t, digitsRecords(records))
	for _, ranks := range []int{1, 2, 4} {
		dir := t.TempDir()
		args := append(digitsFit(dir), "--model", batchHash, "--data", filepath.Join(records, "pixels-*"), "--epochs",
			strconv.Itoa(epochs))
		if ranks > 1 {
			args = append([]string{"launch", "--workers", strconv.Itoa(ranks), "--"}, args...)
		}
		out, err := program(t, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		sameAsAlone(t, dir, batchHash, epochs)
	}
}

// rankOf returns the process of a rank of launch; 0 if there is none.
func rankOf(t *testing.T, launch, rank int) int {
	t.Helper()
	for _, pid := range childrenOf(launch) {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && bytes.Contains(environ, fmt.Appendf(nil, `"Rank":%d,`, rank)) {
			return pid
		}
	}
	return 0
}

// Without checkpoints, a rank that dies ends the training, and the error says why.
func TestLaunchWithoutCheckpoints(t *testing.T) {
	dir := t.TempDir()
	history := filepath.Join(dir, "history.jsonl")
	cmd := program(t, "launch", "--workers", "2", "--", "fit", "--model", "builtin:digits", "--data", "builtin:digits",
		"--epochs", "1000000", "--history", history)
	cmd.Env = append(cmd.Env, launchMark+"="+dir)
	output := start(t, cmd)
	waitForHistory(t, history)
	require.NoError(t, syscall.Kill(rankOf(t, cmd.Process.Pid, 1), syscall.SIGKILL))
	require.Error(t, cmd.Wait())
	assert.Equal(t, exitFailed, cmd.ProcessState.ExitCode(), "%s", output)
	assert.Contains(t, output.String(), "rank 1 of 2: ")
	assert.Contains(t, output.String(), "killed by SIGKILL")
	assert.Empty(t, launched(t, dir))
}

func floatOf(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

// A training whose ranks are killed at random has the result of an undisturbed one,
// bit for bit.
//
//lane:skip race (ends processes)
//lane:run soak
func TestLaunchedRanksAreKilled(t *testing.T) {
	kills := killsOr(t, 1)
	flags := []string{"--epochs", "40", "--every", "20steps"}
	whole := t.TempDir()
	started := time.Now()
	out, err := launchDigits(t, whole, flags...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	took := time.Since(started)

	d := newDisturbance(t, kills, took)
	for d.killed < kills {
		dir := t.TempDir()
		cmd := launchDigits(t, dir, flags...)
		d.run(t, cmd, func() (int, syscall.Signal) {
			// The ranks take turns. A rank that waits for the other one is left alone: without a step,
			// launch waits longer after each crash, and the two might never meet.
			if ranks := childrenOf(cmd.Process.Pid); len(ranks) == 2 {
				return ranks[d.killed%2], syscall.SIGKILL
			}
			return 0, 0
		})
		assert.True(t, bytes.Equal(launchedWeights(t, whole), launchedWeights(t, dir)), "%d kills so far: the weights differ",
			d.killed)
		assert.Empty(t, launched(t, dir))
		t.Logf("%d of %d kills", d.killed, kills)
	}
}

// childrenOf returns the children of a process in the order of their start. Each thread of the
// process has a list of the children that it started.
func childrenOf(pid int) (children []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is valid
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for word := range bytes.FieldsSeq(text) {
			if child, err := strconv.Atoi(string(word)); err == nil {
				children = append(children, child)
			}
		}
	}
	slices.Sort(children)
	return children
}

// Signals reach all ranks, and no process outlives launch.
//
//lane:skip race (ends processes)
func TestLaunchEnds(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		flags  []string
	}{
		{syscall.SIGTERM, nil},
		{syscall.SIGINT, []string{"--supervise"}},
		{syscall.SIGKILL, nil},
		{syscall.SIGKILL, []string{"--supervise"}},
	} {
		t.Run(fmt.Sprint(c.signal, c.flags), func(t *testing.T) {
			dir := t.TempDir()
			cmd := launchDigits(t, dir, append(c.flags, "--epochs", "1000000", "--every", "1epoch")...)
			output := start(t, cmd)
			waitForHistory(t, filepath.Join(dir, "history.jsonl"))
			require.NoError(t, cmd.Process.Signal(c.signal))
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			if c.signal != syscall.SIGKILL {
				assert.Equal(t, exitInterrupted, exit.ExitCode(), "%s", output)
				assert.Equal(t, 1, strings.Count(output.String(), "continue with --resume"), "%s", output)
				assert.NotContains(t, output.String(), "there is no checkpoint")
				assert.Empty(t, launched(t, dir))
				return
			}
			require.Eventually(t, func() bool { return len(launched(t, dir)) == 0 }, time.Minute, 10*time.Millisecond,
				"a process remains")
			assert.NoDirExists(t, filepath.Join(dir, "model"))
		})
	}
}
