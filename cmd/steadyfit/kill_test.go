package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHelperMain is not a test: children of this file run the program in it.
func TestHelperMain(t *testing.T) {
	if args := os.Getenv("STEADYFIT_TEST_ARGS"); args != "" {
		var list []string
		require.NoError(t, json.Unmarshal([]byte(args), &list))
		os.Args = append(os.Args[:1], list...)
		main()
	}
}

// program is the command with these arguments, as a child process.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(args)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperMain$")
	cmd.Env = append(os.Environ(), "STEADYFIT_TEST_ARGS="+string(text))
	return cmd
}

// TestInterruptExitsWith130 asserts the exit code, which the scripts of
// testdata/script cannot see of a program in the background.
func TestInterruptExitsWith130(t *testing.T) {
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		dir := t.TempDir()
		cmd := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--epochs", "1000000",
			"--history", filepath.Join(dir, "history.jsonl"), "--checkpoints", filepath.Join(dir, "ckpt"))
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			info, err := os.Stat(filepath.Join(dir, "history.jsonl"))
			return err == nil && info.Size() > 0
		}, time.Minute, 5*time.Millisecond)
		require.NoError(t, cmd.Process.Signal(signal))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		assert.Equal(t, 130, exit.ExitCode(), "%s", &output)
		assert.Contains(t, output.String(), "continue with --resume")
	}
}

// TestKilledRunsResumeBitForBit kills runs with SIGKILL at random moments, from
// before TensorFlow is open to the middle of a checkpoint, and resumes them
// until they are done: model and losses must be those of a run that was never
// killed, bit for bit.
func TestKilledRunsResumeBitForBit(t *testing.T) {
	const kills = 20
	dir := t.TempDir()
	fit := func(name string) *exec.Cmd {
		return program(t, "fit", "--model", "builtin:digits-cnn", "--data", "builtin:digits", "--validation", "0.2",
			"--epochs", "12", "--seed", "7", "--every", "3steps", "--resume",
			"--checkpoints", filepath.Join(dir, name, "ckpt"), "--history", filepath.Join(dir, name, "history.jsonl"),
			"--out", filepath.Join(dir, name, "model"))
	}
	// What a run leaves behind that must not depend on when it was killed.
	traces := func(name string) (weights []byte, losses []string) {
		weights, err := os.ReadFile(filepath.Join(dir, name, "model", "variables", "variables.data-00000-of-00001"))
		require.NoError(t, err)
		history, err := os.ReadFile(filepath.Join(dir, name, "history.jsonl"))
		require.NoError(t, err)
		for line := range bytes.Lines(history) {
			var r map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(line, &r))
			losses = append(losses, string(r["epoch"])+" "+string(r["step"])+" "+string(r["loss"])+" "+string(r["accuracy"])+" "+string(r["val_loss"]))
		}
		return weights, losses
	}

	require.NoError(t, os.Mkdir(filepath.Join(dir, "whole"), 0o777))
	started := time.Now()
	out, err := fit("whole").CombinedOutput()
	require.NoError(t, err, "%s", out)
	took := time.Since(started)
	wantWeights, wantLosses := traces("whole")
	require.Len(t, wantLosses, 12)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d; an undisturbed run takes %v", seed, took.Round(time.Millisecond))
	random := rand.New(rand.NewPCG(seed, 0))
	for run, killed := 0, 0; killed < kills; run++ {
		name := "run" + strconv.Itoa(run)
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o777))
		for {
			cmd := fit(name)
			var output bytes.Buffer
			cmd.Stdout, cmd.Stderr = &output, &output
			require.NoError(t, cmd.Start())
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			var stop <-chan time.Time
			if killed < kills {
				stop = time.After(time.Duration(random.Float64() * float64(took) * 0.6))
			}
			var err error
			select {
			case err = <-done:
			case <-stop:
				// It may have ended in the meantime, which is no failure.
				if err := cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
					require.NoError(t, err)
				}
				err = <-done
			}
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
				killed++
				continue
			}
			require.NoError(t, err, "after %d kills: %s", killed, &output)
			break
		}
		weights, losses := traces(name)
		assert.Equal(t, wantLosses, losses, "%s, %d kills so far", name, killed)
		assert.True(t, bytes.Equal(wantWeights, weights), "%s: the weights differ", name)
	}
}
