package train

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"

	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// ran trains.
func ran(t *testing.T, c Config) Result {
	t.Helper()
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	return r
}

// lora opens a model whose base is frozen, without a range of inputs in its notes.
func lora(t *testing.T) *savedmodels.Model {
	t.Helper()
	model, err := savedmodels.Open("../session/testdata/digits-lora")
	require.NoError(t, err)
	return model
}

// builtin opens a built-in model.
func builtin(t testing.TB, name string) *savedmodels.Model {
	t.Helper()
	model, err := savedmodels.Builtin(name)
	require.NoError(t, err)
	return model
}

// weights returns the bytes of the variables of a saved model.
func weights(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)
	return text
}

// A training from a path, one from data in memory, and a resumed one end with the same weights,
// and leave nothing open.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	var reported []string
	config := func(out string, epochs int) Config {
		return Config{
			Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Validation: "builtin:digits", Seed: 3, Shuffle: true,
			Prefetch: -1,
			Loop:     fit.Loop{Batch: 32, Epochs: epochs}, Out: filepath.Join(dir, out),
			Report: func(subject string, _ any) { reported = append(reported, subject) },
		}
	}
	c := config("path", 2)
	r := ran(t, c)
	assert.Equal(t, c.Out, r.Out)
	assert.True(t, r.History.Done)
	require.Len(t, r.History.Records, 2)
	_, ok := r.History.Last().Metrics.Get("val_loss")
	assert.True(t, ok)
	assert.Equal(t, []string{"resolved settings"}, reported)
	want := weights(t, c.Out)

	c = config("memory", 2)
	train, test, err := data.Builtin("digits")
	require.NoError(t, err)
	c.Data = Data{Memory: train}
	ran(t, c)
	assert.True(t, bytes.Equal(want, weights(t, c.Out)), "data in memory")
	assert.Positive(t, test.Len())

	c = config("resumed", 1)
	c.Checkpoints.Folder, c.Checkpoints.EverySteps, c.Out = filepath.Join(dir, "ckpt"), 10, ""
	ran(t, c)
	written, err := fit.Checkpoints(c.Checkpoints.Folder)
	require.NoError(t, err)
	assert.Len(t, written, 3)
	c = config("resumed", 2)
	c.Checkpoints.Folder, c.Resume = filepath.Join(dir, "ckpt"), true
	r = ran(t, c)
	assert.NotEmpty(t, r.History.ResumedFrom)
	assert.True(t, bytes.Equal(want, weights(t, c.Out)), "resumed")
	assert.Equal(t, tfbind.Counts{}, tfbind.Live())
}

// A training loads the signatures that it runs.
func TestSignaturesOfATraining(t *testing.T) {
	samples, _, err := data.Builtin("digits")
	require.NoError(t, err)
	parts := []string{"gradients", "apply"}
	for name, test := range map[string]struct {
		change func(c *Config)
		more   []string
	}{
		"plain":         {func(*Config) {}, nil},
		"validation":    {func(c *Config) { c.Loop.Validation = samples }, []string{"evaluate"}},
		"micro-batches": {func(c *Config) { c.Session.MicroBatches = 2 }, parts},
		"out of memory": {func(c *Config) { c.OnOutOfMemory = MicroBatch }, parts},
		"budget":        {func(c *Config) { c.Budget.Limit = memory.GiB }, parts},
		"several steps": {func(c *Config) { c.Session.StepsPerExecution = 4 }, []string{"train_n"}},
		"compiled":      {func(c *Config) { c.Session.Compiled = true }, []string{"train_xla", "train_n_xla"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Model: "builtin:digits", Loop: fit.Loop{Batch: 32, Epochs: 1}}
			test.change(&c)
			tr := newTraining(c, nil, nil)
			require.NoError(t, tr.openModel())
			found := slices.DeleteFunc(tr.signatures(), func(name string) bool { return name == "" })
			require.ElementsMatch(t, append([]string{"train", "set_learning_rate", "reset_metrics"}, test.more...), found)
		})
	}
}

// A training without space for its last checkpoint saves its model, and the error names it.
func TestRunWithoutLastCheckpoint(t *testing.T) {
	dir := t.TempDir()
	c := Config{
		Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Loop: fit.Loop{Batch: 256, Epochs: 1},
		Out: filepath.Join(dir, "out"), OutAdapter: filepath.Join(dir, "adapter"),
	}
	c.Checkpoints.Folder = filepath.Join(dir, "ckpt")
	c.Loop.Hook(fit.Hook{Name: "no folder", Epoch: func(context.Context, *fit.State) error {
		return errors.Join(os.RemoveAll(c.Checkpoints.Folder), os.WriteFile(c.Checkpoints.Folder, nil, 0o666))
	}})
	r, err := Run(t.Context(), c)
	require.ErrorAs(t, err, new(*fit.WriteError))
	require.ErrorContains(t, err, "; the training is complete, and the trained model is in "+c.Out)
	require.ErrorContains(t, err, "; the training is complete, and the trained adapter is in "+c.OutAdapter)
	assert.Equal(t, c.Out, r.Out)
	assert.NotEmpty(t, weights(t, c.Out))
}

// Without Report, the log has the messages for the user. Without a log, Progress has its lines.
func TestReportsGoToTheLog(t *testing.T) {
	var log, progress bytes.Buffer
	c := Config{
		Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Budget: Budget{Limit: 1 << 40}, Progress: &progress,
		Loop: fit.Loop{Batch: 1, Epochs: 1, StepsPerEpoch: 2, Log: slog.New(slog.NewTextHandler(&log, nil))},
	}
	lines := []string{`msg="resolved settings"`, "without Config.Out or Config.Checkpoints, the trained model is not saved", `msg="memory budget: batches are not split (a batch has one sample)"`}
	ran(t, c)
	c.Loop.Log = nil
	both := progress.String()
	progress.Reset()
	ran(t, c)
	for _, line := range lines {
		assert.Equal(t, 1, strings.Count(log.String(), line), line)
		assert.NotContains(t, both, line)
		assert.Equal(t, 1, strings.Count(progress.String(), line), line)
	}
}

// changedModel copies the model digits, without the record of its hash, and changes a file.
func changedModel(t *testing.T, path string, change func([]byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	m := builtin(t, "digits")
	require.NoError(t, os.CopyFS(dir, os.DirFS(m.Dir)))
	require.NoError(t, os.Remove(filepath.Join(dir, "assets.extra", "steadyfit.json")))
	text, err := os.ReadFile(filepath.Join(dir, path))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, path), change(text), 0o600))
	return dir
}

// A training that cannot work returns an error about an option or an input before it begins.
func TestRunRefuses(t *testing.T) {
	used := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(used, "ckpt-1"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(used, "ckpt-1", "history.jsonl"), nil, 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(used, "v.csv"), nil, 0o666))
	one := table(t, 64, "5")
	fixed := changedModel(t, "saved_model.pb", func(text []byte) []byte {
		return bytes.ReplaceAll(text, []byte("set_learning_rate"), []byte("put_learning_rate"))
	})
	for _, c := range []struct {
		change func(*Config)
		option string // empty for an InputError
		says   string
	}{
		{func(c *Config) { c.Model = "" }, "Config.Model", "missing; give a folder with a SavedModel"},
		{func(c *Config) { c.Model = "nowhere" }, "", "nowhere"},
		{func(c *Config) { c.Data.Path = "" }, "Data.Path", "missing"},
		{func(c *Config) { c.Data.Path = "nowhere.npz" }, "", "nowhere.npz"},
		{func(c *Config) { c.Loop.Batch = 0 }, "Loop.Batch", "expected at least 1"},
		{func(c *Config) { c.Loop.InitialEpoch = 1 }, "Loop.InitialEpoch", "nothing is left to train"},
		{func(c *Config) { c.Prefetch = -2 }, "Config.Prefetch", "expected -1 to "},
		{func(c *Config) { c.Seed = 1 << 63 }, "Config.Seed", "expected at most 9223372036854775807"},
		{func(c *Config) { c.ValidationFraction = 1 }, "Config.ValidationFraction", "between 0 and 1"},
		{func(c *Config) { c.Out, c.OutVersion = "a", "b" }, "Config.OutVersion", "leave one of them out"},
		{func(c *Config) { c.ValidationFraction, c.Validation = 0.1, "x.npz" }, "Config.ValidationFraction",
			"leave one of them out"},
		{func(c *Config) { c.Data.Path, c.Validation = one, one }, "Config.Validation",
			"this is the training data, which has no other part; give other data, or hold out a fraction with " +
				"Config.ValidationFraction 0.1"},
		{func(c *Config) { c.Data.Path, c.Profile = one, Profile{1, 2, one} }, "Config.Profile", one +
			": this is the data itself, which would be overwritten"},
		{func(c *Config) { c.Validation, c.Out = filepath.Join(used, "v.csv"), used }, "Config.Out",
			"is inside this folder, which would be replaced"},
		{func(c *Config) { c.Data.Path, c.OutVersion = used, used }, "Config.OutVersion", "the data itself"},
		{func(c *Config) { c.Data.Path, c.OutAdapter = used, filepath.Join(used, "a") }, "Config.OutAdapter",
			"this is inside the data " + used},
		{func(c *Config) { c.Data.Path, c.Checkpoints.Folder = used, used }, "Config.Checkpoints", "the data itself"},
		{func(c *Config) { c.Model, c.TensorBoard = used, used }, "Config.TensorBoard", "the model itself"},
		{func(c *Config) { c.Checkpoints.Folder = one }, "Checkpoint", one +
			": it is not a folder; name a folder for checkpoints"},
		{func(c *Config) { c.Checkpoints.Folder, c.Resume = one, true }, "Checkpoint", one +
			": it is not a folder; name a folder for checkpoints"},
		{func(c *Config) { c.OutAdapter = filepath.Join(one, "new") }, "Config.OutAdapter", "write " +
			filepath.Join(one, "new") + ": not a directory"},
		{func(c *Config) { c.Checkpoints.Folder = used }, "Checkpoint", "Checkpoint " + used +
			": it holds checkpoints of an earlier training (the newest is ckpt-1); continue it with Loop.Resume"},
		{func(c *Config) { c.Checkpoints.Best = "loss" }, "Checkpoint.Best", "needs Config.Checkpoints"},
		{func(c *Config) { c.Loop.Hook(fit.EarlyStop{Metric: "val_loss"}.Hook()) }, "EarlyStop",
			"or set Loop.Validation to have validation metrics"},
		{func(c *Config) { c.Checkpoints = fit.Checkpoint{Folder: t.TempDir(), Best: "other"} }, "Checkpoint.Best",
			"Checkpoint.Best other: there is no such metric"},
		{func(c *Config) { c.Resume = true }, "Config.Resume", "needs Config.Checkpoints"},
		{func(c *Config) { c.MetricsListen = "9090" }, "Config.MetricsListen", "expected HOST:PORT, or :PORT"},
		{func(c *Config) { c.Supervise = "supervised" }, "Config.Supervise", "expected always, budget, or nothing"},
		{func(c *Config) { c.Supervise = Always }, "Config.Supervise", "needs Config.Checkpoints"},
		{func(c *Config) { c.OnOutOfMemory = "hope" }, "Config.OnOutOfMemory", "expected microbatch, restart, or nothing"},
		{func(c *Config) { c.OnOutOfMemory = Restart }, "Config.OnOutOfMemory", "needs Config.Supervise"},
		{func(c *Config) { c.OnOutOfMemory, c.Model = MicroBatch, "builtin:dropout-200-512-256-1" }, "Config.OnOutOfMemory",
			"the update would differ from that of the whole batch"},
		{func(c *Config) { c.Reset.Depth = "deep" }, "Reset.Depth", "expected none, restore, reload or process"},
		{func(c *Config) { c.Reset.Depth = "process" }, "Reset.Depth", "needs Config.Supervise"},
		{func(c *Config) { c.Autotune = "fast" }, "Config.Autotune", "expected on, or nothing"},
		{func(c *Config) { c.ClassWeights = map[string]float64{"0": 2} }, "Config.ClassWeights", contract.InputSampleWeight},
		{func(c *Config) { c.Model, c.Loop.LearningRate = fixed, fit.Constant(0.1) }, "Loop.LearningRate",
			"Loop.LearningRate: the model has a learning rate or schedule of its own, since it has neither a signature " +
				"set_learning_rate nor an input learning_rate; leave it out, or export the model with a constant rate"},
	} {
		config := Config{Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Loop: fit.Loop{Batch: 32, Epochs: 1}}
		c.change(&config)
		r, err := Run(t.Context(), config)
		require.ErrorContains(t, err, c.says)
		var wrong *option.Error
		if c.option == "" {
			assert.ErrorAs(t, err, new(*InputError), "%v", err)
			assert.Equal(t, 2, ExitCode(err))
		} else if assert.ErrorAs(t, err, &wrong) {
			assert.Equal(t, c.option, wrong.Option)
		}
		assert.Empty(t, r.History.Records)
	}
	c := Config{Loop: fit.Loop{Batch: 32, Epochs: 1}, ValidationFraction: 2}
	assert.EqualError(t, c.check(), "Config.ValidationFraction 2: expected a fraction between 0 and 1")
}

// Each error about the model, the data or a folder is an InputError that wraps its cause.
func TestInputErrors(t *testing.T) {
	made := func(fields ...data.Field) func(*Config) {
		ds := made(t, fields...)
		return func(c *Config) { c.Data = Data{Memory: ds} }
	}
	x, y := field("x", make([]float32, 2*64), 2, 64), field("y", []int64{0, 1}, 2)
	damaged := changedModel(t, "variables/variables.data-00000-of-00001", func(text []byte) []byte {
		text[len(text)/2] ^= 1
		return text
	})
	unknown := changedModel(t, "saved_model.pb", func(text []byte) []byte {
		return bytes.ReplaceAll(text, []byte("MatMul"),
			[]byte("MatMal"))
	})
	for name, c := range map[string]struct {
		change func(*Config)
		is     error
	}{
		"a label that is no class": {made(x, field("y", []int64{0, 10}, 2)), data.ErrLabel},
		"a fractional label":       {made(x, field("y", []float64{0, 0.5}, 2)), data.ErrLabel},
		"a feature that is NaN": {made(field("x", slices.Repeat([]float32{float32(math.NaN())}, 2*64), 2, 64), y),
			data.ErrValue},
		"text":          {made(field("x", []string{"a", "b"}, 2), y), session.ErrData},
		"another shape": {made(field("x", make([]float32, 6), 2, 3), y), session.ErrData},
		"no label":      {made(x), session.ErrData},
		"another field": {made(x, y, field("z", []int64{0, 1}, 2)), session.ErrData},
		"a file for a folder": {func(c *Config) {
			c.Loop.Hook(fit.HistoryFile(filepath.Join(file(t, "f", ""),
				"h.jsonl")))
		}, syscall.ENOTDIR},
		"a damaged variable":   {func(c *Config) { c.Model = damaged }, savedmodels.ErrNotSavedModel},
		"an unknown operation": {func(c *Config) { c.Model = unknown }, savedmodels.ErrUnsafeOps},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Model: "builtin:digits", Data: Data{Path: "builtin:digits"},
				Loop: fit.Loop{Batch: 2, Epochs: 1, StepsPerEpoch: 1}}
			c.change(&config)
			r, err := Run(t.Context(), config)
			require.ErrorAs(t, err, new(*InputError))
			assert.ErrorIs(t, err, c.is)
			assert.Equal(t, 2, ExitCode(err))
			assert.Empty(t, r.History.Records)
		})
	}
	assert.Equal(t, tfbind.Counts{}, tfbind.Live())
}

// A training from an adapter in one run and a training in two runs, of which the second resumes,
// end with the same adapter. An adapter of another model is an error.
func TestRunWithAdapters(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	config := func(epochs int, start, out string) Config {
		return Config{
			Model: "../session/testdata/digits-lora", Data: Data{Path: "builtin:digits"}, Seed: 1,
			Loop: fit.Loop{Batch: 32, Epochs: epochs}, Adapter: start, OutAdapter: filepath.Join(dir, out),
		}
	}
	read := func(c Config) *session.Adapter {
		r, err := Run(ctx, c)
		require.NoError(t, err)
		require.Equal(t, c.OutAdapter, r.OutAdapter)
		base, err := savedmodels.Open(c.Model)
		require.NoError(t, err)
		a, err := session.ReadAdapter(c.OutAdapter, base)
		require.NoError(t, err)
		return a
	}
	first := read(config(1, "", "first"))
	start := filepath.Join(dir, "first")
	want := read(config(2, start, "whole"))
	assert.NotEqual(t, first, want)
	parts := config(1, start, "half")
	parts.Checkpoints.Folder = filepath.Join(dir, "ckpt")
	half := read(parts)
	assert.NotEqual(t, want, half)
	parts.Loop.Epochs, parts.Resume, parts.OutAdapter = 2, true, filepath.Join(dir, "resumed")
	assert.Equal(t, want, read(parts), "resumed")

	refused := config(1, filepath.Join(dir, "none"), "out")
	_, err := Run(ctx, refused)
	assert.ErrorAs(t, err, new(*InputError))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	refused = config(1, start, "out")
	refused.Model = "builtin:digits"
	_, err = Run(ctx, refused)
	assert.ErrorIs(t, err, session.ErrMismatch)
	assert.NoFileExists(t, filepath.Join(dir, "out", "adapter.safetensors"))
}

// Without Config.Report, warnings are logged as warnings.
func TestLevelOfReports(t *testing.T) {
	var log bytes.Buffer
	run := training{Config: Config{Loop: fit.Loop{Log: slog.New(slog.NewTextHandler(&log, nil))}}}
	run.report("warning", "w")
	run.report("note", "n")
	assert.Regexp(t, `^\S+ level=WARN msg=warning value=w\n\S+ level=INFO msg=note value=n\n$`, log.String())
}
