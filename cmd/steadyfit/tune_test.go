package main

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/internal/autotune"
	"steadyfit/savedmodels"
)

// The trials run without cached features, so the file turns the cache off, whatever --config says.
func TestTunedCacheOfFeatures(t *testing.T) {
	dir := t.TempDir()
	s := newSettings()
	s.configFile, s.Out = filepath.Join(dir, "mine.yaml"), filepath.Join(dir, "tuned.yaml")
	require.NoError(t, os.WriteFile(s.configFile, []byte("cache-features: on\nseed: 7\n"), 0o666))
	cmd, _, err := newRoot(s, io.Discard, io.Discard).Find([]string{"tune"})
	require.NoError(t, err)
	require.NoError(t, s.writeTuned(cmd, &autotune.Point{}))
	written, err := readConfig(s.Out)
	require.NoError(t, err)
	assert.Equal(t, "off", written["cache-features"])
	assert.Equal(t, "7", written["seed"])
}

// The direction and the least change of --early-stop also decide which checkpoint is best by its metric.
func TestBestFollowsEarlyStop(t *testing.T) {
	for flags, want := range map[string]fit.Checkpoint{
		"--early-stop loss:3:max:0.5 --keep-best loss --restore-best": {Best: "loss", BestMode: "max", MinDelta: 0.5},
		"--early-stop loss:3:max:0.5 --keep-best loss":                {Best: "loss", BestMode: "max", MinDelta: 0.5},
		"--early-stop loss:3:max:0.5 --restore-best":                  {Best: "loss", BestMode: "max", MinDelta: 0.5},
		"--early-stop loss:3:max:0.5 --keep-best val_loss":            {Best: "val_loss"},
		"--early-stop loss:3:max:0.5":                                 {},
		"--early-stop val_loss:3:max:0.5 --validation 0.1":            {BestMode: "max", MinDelta: 0.5},
	} {
		args := "fit --model builtin:digits --data builtin:digits --checkpoints ck " + flags
		s, err := fitSpec{Args: strings.Fields(args)}.configure(io.Discard, io.Discard)
		require.NoError(t, err)
		c := s.Checkpoints
		assert.Equal(t, want, fit.Checkpoint{Best: c.Best, BestMode: c.BestMode, MinDelta: c.MinDelta}, flags)
	}
}

// An interrupted search continues later if its trials are stored.
//
//lane:skip race (ends processes)
func TestInterruptedTune(t *testing.T) {
	model, err := savedmodels.Open("builtin:digits")
	require.NoError(t, err)
	for _, cache := range []string{t.TempDir(), "/proc/nope"} {
		cmd := program(t, "tune", "--model", model.Dir, "--data", "builtin:digits")
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache)
		stderr, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var output strings.Builder
		trials := 0
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			output.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "tune: ") {
				if trials++; trials == 1 {
					require.NoError(t, cmd.Process.Signal(os.Interrupt))
				}
			}
		}
		require.Error(t, cmd.Wait())
		assert.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), &output)
		assert.Contains(t, output.String(), "interrupted; the same command continues with the trials in the user's cache folder")
	}
}
