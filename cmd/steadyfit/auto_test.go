package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
)

// won changes a measurement in a cache folder so that it is far better than all others, independent of
// the speed of the machine.
func won(t *testing.T, cache string, winner autotune.Configuration) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(cache, "steadyfit", "tune", "*.json"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	text, err := os.ReadFile(found[0])
	require.NoError(t, err)
	var stored map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(text, &stored))
	var measured []autotune.Measurement
	require.NoError(t, json.Unmarshal(stored["measurements"], &measured))
	measured = slices.DeleteFunc(measured, func(m autotune.Measurement) bool { return m.Configuration == winner })
	for i := range measured {
		measured[i].Out, measured[i].Ratio, measured[i].Low, measured[i].High = "", 1, 1, 1
	}
	// Settings are added to bases, so the base of the winner wins before its settings do.
	base := autotune.Configuration{StepsPerExecution: winner.StepsPerExecution, Compiled: winner.Compiled}
	for i, c := range []autotune.Configuration{base, winner} {
		ratio := 0.1 / float64(1+9*i)
		m := autotune.Measurement{Configuration: c, Step: ratio, Ratio: ratio, Low: ratio, High: ratio, Rounds: 9, Confirmed: true}
		measured = append([]autotune.Measurement{m}, measured...)
	}
	stored["measurements"], err = json.Marshal(measured)
	require.NoError(t, err)
	text, err = json.Marshal(stored)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(found[0], text, 0o666))
}

// TestMeasuredChoice makes fit use a choice that an earlier training has stored. A run that resumes from a
// checkpoint, with any change of the cache, ends with the bytes of an undisturbed run.
//
//lane:skip race (sets oneDNN itself)
func TestMeasuredChoice(t *testing.T) {
	dir := t.TempDir()
	cache := filepath.Join(dir, "cache")
	// The loss falls, so this training ends soon after the measurements of a long one.
	long := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--auto", "on", "--epochs", "1000000",
		"--early-stop", "loss:1:max")
	long.Env = append(long.Env, "XDG_CACHE_HOME="+cache)
	out, err := long.CombinedOutput()
	require.NoError(t, err, "%s", out)
	won(t, cache, autotune.Configuration{StepsPerExecution: 16, Compiled: true})

	trained := func(name, cache string, flags ...string) *exec.Cmd {
		cmd := program(t, append([]string{"fit", "--model", "builtin:digits", "--data", "builtin:digits", "--seed", "3",
			"--auto", "on", "--checkpoints", filepath.Join(dir, name), "--out", filepath.Join(dir, name+"-model")},
			flags...)...)
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+filepath.Join(dir, cache))
		return cmd
	}
	run := func(name, cache string, flags ...string) string {
		t.Helper()
		out, err := trained(name, cache, flags...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	weights := func(name string) []byte { return weightsOf(t, filepath.Join(dir, name+"-model")) }
	const measured = "auto: 16 steps per execution, XLA-compiled: "
	said := run("whole", "cache", "--epochs", "30")
	assert.Contains(t, said, measured)
	assert.Contains(t, said, "(measured before)")
	want := weights("whole")
	found, err := fit.Checkpoints(filepath.Join(dir, "whole"))
	require.NoError(t, err)
	require.NotEmpty(t, found)
	assert.Equal(t, "train_xla, train_n_xla with up to 16 steps per call", found[0].Identity["session.compiled"])
	run("plain", "cache", "--epochs", "30", "--auto", "off")
	require.False(t, bytes.Equal(want, weights("plain")), "the choice makes no difference that could be lost")

	run("parts", "cache", "--epochs", "10")
	assert.Contains(t, run("parts", "none", "--epochs", "30", "--resume"),
		"auto: 16 steps per execution, XLA-compiled, as in the checkpoint")
	assert.True(t, bytes.Equal(want, weights("parts")), "resumed")
	assert.NoDirExists(t, filepath.Join(dir, "none", "steadyfit", "tune"))

	run("processes", "cache", "--epochs", "30", "--supervise", "--reset", "process", "--reset-every", "10epochs")
	assert.True(t, bytes.Equal(want, weights("processes")), "in three processes")

	// Several steps per execution, and the choice of a thread during the training, give the
	// same bits as plain steps.
	won(t, cache, autotune.Configuration{StepsPerExecution: 30})
	assert.Contains(t, run("stacked", "cache", "--epochs", "2", "--every", "30steps", "--keep", "0"),
		"auto: 30 steps per execution: ")
	assert.Contains(t, run("stacked", "none", "--epochs", "3", "--resume"),
		"auto: 30 steps per execution, as in the checkpoint")
	run("stacked", "none", "--epochs", "4", "--resume", "--auto", "off")
	run("unstacked", "none", "--epochs", "4", "--auto", "off")
	assert.True(t, bytes.Equal(weights("stacked"), weights("unstacked")))
}

// TestChoiceThatRounds resumes trainings with the single-threaded executor, which rounds
// differently with several steps per execution, and with another number of threads.
//
//lane:skip race (sets oneDNN itself)
func TestChoiceThatRounds(t *testing.T) {
	const n = 340 // ten batches, and a smaller one
	dir, samples := t.TempDir(), writeArrays(t,
		data.Field{Name: "x", Array: data.Array{Shape: []int{n, 100}, Values: ramp(n * 100)}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{n, 1}, Values: ramp(n)}})
	run := func(name, epochs string, choice *autotune.Configuration, env string, flags ...string) (string, error) {
		t.Helper()
		cmd := program(t, append([]string{"fit", "--model", "builtin:dense-100-64-1", "--data", samples, "--epochs", epochs,
			"--seed", "3", "--resume", "--auto", "on",
			"--checkpoints", filepath.Join(dir, name), "--out", filepath.Join(dir, name+"-model")}, flags...)...)
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+filepath.Join(dir, "none"))
		if choice != nil {
			text, err := json.Marshal(choice)
			require.NoError(t, err)
			cmd.Env = append(cmd.Env, chosenEnv+"="+string(text))
		}
		// without oneDNN, several steps per execution give the same bits
		cmd.Env = append(cmd.Env, "TF_ENABLE_ONEDNN_OPTS=1", env)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	good := func(name, epochs string, choice *autotune.Configuration, flags ...string) string {
		t.Helper()
		out, err := run(name, epochs, choice, "", flags...)
		require.NoError(t, err, out)
		return out
	}
	refused := func(name, env string, flags ...string) string {
		t.Helper()
		out, err := run(name, "5", nil, env, flags...)
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, out)
		assert.Equal(t, exitUsage, exit.ExitCode(), out)
		return out
	}
	weights := func(name string) string { return string(weightsOf(t, filepath.Join(dir, name+"-model"))) }
	identity := func(name string) string {
		t.Helper()
		found, err := fit.Checkpoints(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NotEmpty(t, found)
		return found[0].Identity["session.stacked"]
	}
	single := autotune.Configuration{Executor: gpuopts.SingleThreaded, IntraThreads: 1, InterThreads: 1}
	stacked := single
	stacked.StepsPerExecution = 4

	good("whole", "4", &stacked)
	assert.Equal(t, "up to 4 steps per call in the single-threaded executor", identity("whole"))
	good("plain", "4", nil, "--auto", "off")
	assert.Equal(t, "as single steps", identity("plain"))
	good("parts", "2", &stacked)
	assert.Contains(t, good("parts", "3", nil), "auto: 4 steps per execution, single-threaded executor, intra threads "+
		"1, as in the checkpoint")
	assert.Contains(t, good("parts", "4", nil),
		"auto: 4 steps per execution, single-threaded executor, intra threads 1, as in the checkpoint")
	assert.True(t, weights("whole") == weights("parts"))

	for _, c := range []struct {
		env   string
		flags []string
	}{
		{flags: []string{"--auto", "off"}},
		{flags: []string{"--steps-per-execution", "5"}},
		{flags: []string{"--intra-threads", "1"}},
		{flags: []string{"--inter-threads", "1"}},
		{flags: []string{"--deterministic"}},
		{env: "TF_NUM_INTEROP_THREADS=1"},
	} {
		assert.Contains(t, refused("parts", c.env, c.flags...),
			"--auto: it chose 4 steps per execution, single-threaded executor, intra threads 1 for the training of the "+
				"checkpoint; the options and variables of this run allow only ", c)
	}
	assert.Contains(t, good("parts", "5", nil, "--auto", "off", "--resume=anyway"), "session.stacked")

	// One step per execution gives the same bits as plain steps, unless the number of threads
	// differs.
	good("single", "2", &single)
	assert.Equal(t, "as single steps", identity("single"))
	assert.Contains(t, refused("single", "", "--auto", "off"),
		"--auto: it chose single-threaded executor, intra threads 1 for the training of the checkpoint")
	good("single", "3", nil, "--intra-threads", "1")
	good("single", "4", nil, "--auto", "off", "--intra-threads", "1")
	good("plain-threads", "4", nil, "--auto", "off", "--intra-threads", "1")
	assert.True(t, weights("single") == weights("plain-threads"))
	good("executor", "2", &autotune.Configuration{Executor: gpuopts.SingleThreaded, InterThreads: 1})
	good("executor", "4", nil, "--auto", "off")
	assert.True(t, weights("executor") == weights("plain"))

	// A training without oneDNN resumes in a process that turns oneDNN off again.
	noOneDNN := "TF_ENABLE_ONEDNN_OPTS=0"
	out, err := run("onednn", "2", &autotune.Configuration{OneDNN: "off"}, noOneDNN)
	require.NoError(t, err, out)
	for _, flags := range [][]string{{"--auto", "off"}, {"--supervise"}, {"--deterministic"}} {
		assert.Contains(t, refused("onednn", "", flags...),
			"--auto: it chose oneDNN off for the training of the checkpoint; the options and variables of this run allow only "+
				"plain, and")
	}
	out, err = run("onednn", "4", nil, "TF_ENABLE_ONEDNN_OPTS=")
	require.NoError(t, err, out)
	assert.Contains(t, out, "auto: oneDNN off, as in the checkpoint")
	out, err = run("onednn-whole", "4", nil, noOneDNN, "--auto", "off")
	require.NoError(t, err, out)
	assert.True(t, weights("onednn") == weights("onednn-whole"))

	// If no choice is stored in the cache, a resume takes the settings from the checkpoint.
	good("more", "2", &single)
	out, err = run("more", "3", nil, "", "--steps-per-execution", "4")
	require.Error(t, err)
	assert.Contains(t, out, "session.stacked: as single steps in the checkpoint, up to 4 steps per call in the "+
		"single-threaded executor now; in that executor, executions of several steps round differently")
}
