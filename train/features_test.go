package train

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/option"
)

// frozenModels makes models with testdata/features.py in a new folder.
func frozenModels(t *testing.T, kinds ...string) string {
	t.Helper()
	python := os.Getenv("STEADYFIT_PYTHON")
	if python == "" {
		python = "../.runtime/venv/bin/python"
	}
	if _, err := os.Stat(python); err != nil {
		t.Skipf("no Python with TensorFlow at %s: run `make venv`, or set STEADYFIT_PYTHON", python)
	}
	dir := t.TempDir()
	cmd := exec.Command(python, append([]string{"testdata/features.py", dir}, kinds...)...)
	cmd.Env = append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=2", "CUDA_VISIBLE_DEVICES=-1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// chosenByParent makes trainFrozen train as in a child process for this configuration.
var chosenByParent *autotune.Configuration

// trainFrozen trains a model of frozenModels. It returns the weights and what was reported about
// features.
func trainFrozen(dir, kind string, cache Choice, change func(*Config)) (weights []byte, report string, err error) {
	c := Config{
		Model: filepath.Join(dir, kind), Data: Data{Path: filepath.Join(dir, "data.npz")}, ValidationFraction: 0.25,
		Seed: 1, Shuffle: true, CacheFeatures: cache, Out: filepath.Join(dir, "out"),
		Report: func(subject string, value any) {
			if subject == "features" {
				report += fmt.Sprint(value)
			}
		},
	}
	c.Loop.Batch, c.Loop.Epochs = 32, 3
	if change != nil {
		change(&c)
	}
	if chosenByParent != nil {
		_, err = newTraining(c, nil, chosenByParent).here(context.Background())
	} else {
		_, err = Run(context.Background(), c)
	}
	if err == nil {
		weights, err = os.ReadFile(filepath.Join(c.Out, "variables", "variables.data-00000-of-00001"))
	}
	return weights, report, err
}

// frozenCases lists the kinds of models, with the end of their frozen part or the reason why there
// is none.
var frozenCases = []struct {
	kind string
	want string // in the report
	no   string // in the error
}{
	{kind: "plain", want: "4 operations, up to matmul_2 (MatMul)"},
	{kind: "nested function", want: "6 operations, up to matmul_2 (MatMul)"},
	{kind: "tensor product", want: "up to matmul_2 (MatMul)"},
	{kind: "half", want: "up to matmul_4 (MatMul)"},
	{kind: "dropout between", want: "2 operations, up to " +
		"stateless_dropout/stateless_random_uniform/StatelessRandomUniformV2 (StatelessRandomUniformV2)"},
	{kind: "batch mean", want: "2 operations, up to Mean (Mean)"},
	{kind: "batch product", no: "of a sample changes by"},
	{kind: "condition", want: "up to Any (Any)"},
	{kind: "assigned variable", want: "2 operations, up to Mean (Mean)"},
	{kind: "batch normalization", want: "(FusedBatchNormV3)"},
	{kind: "dropout before", no: "no matrix product or convolution depends only on the data"},
	{kind: "trained first layer", no: "no matrix product or convolution depends only on the data"},
	{kind: "stateful random", no: "(RandomUniform) draws random numbers, and checkpoints do not include this state"},
	{kind: "batch softmax", no: "of a sample changes by"},
	{kind: "first sample", no: "of a sample changes by"},
	{kind: "shift", no: "of a sample changes by"},
	{kind: "position", want: "up to range (Range)"},
	{kind: "batch size", want: "up to Cast (Cast)"},
	{kind: "gated position", want: "2 operations, up to "},
	{kind: "gated size", want: "2 operations, up to "},
	{kind: "gated mask", want: "up to ones (Fill)"},
	{kind: "gated columns", want: "2 operations, up to "},
	{kind: "gated sum of shapes", want: "2 operations, up to "},
	{kind: "dynamic shapes", want: "up to matmul_2 (MatMul)"},
	{kind: "batch maximum", no: "of a sample changes by"},
	{kind: "negative axis", no: "of a sample changes by"},
	{kind: "trained elsewhere", no: "depends only on the data and on frozen variables"},
	{kind: "label diamond", want: "up to matmul_2 (MatMul)"},
	{kind: "max pooling", want: "up to "},
}

//lane:skip race (a larger model)
//lane:skip check (long)
func TestCachedFeatures(t *testing.T) {
	kinds := []string{"rate"}
	for _, c := range frozenCases {
		kinds = append(kinds, c.kind)
	}
	dir := frozenModels(t, kinds...)
	for _, c := range []struct {
		name string
		test func(*testing.T, string)
	}{
		{"kinds", frozenKinds}, {"rate", rateAsInput}, {"shuffled", shuffledData},
		{"resume", resumeCached},
		{"large", largeFeatures}, {"autotune", resumeChosen},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, dir) })
	}
}

// The frozen part of a model ends before an operation whose result for a sample may differ between
// steps. Training on its cached results gives the same weights, bit for bit.
func frozenKinds(t *testing.T, dir string) {
	for _, c := range frozenCases {
		t.Run(c.kind, func(t *testing.T) {
			with, report, err := trainFrozen(dir, c.kind, On, nil)
			if c.no != "" {
				var refused *option.Error
				require.ErrorAs(t, err, &refused)
				assert.Equal(t, "Config.CacheFeatures", refused.Option)
				assert.Contains(t, refused.Reason, c.no)
				with, _, err = trainFrozen(dir, c.kind, Auto, nil)
			} else {
				assert.Contains(t, report, "computed once for 150 samples")
				assert.Contains(t, report, c.want)
			}
			require.NoError(t, err)
			without, _, err := trainFrozen(dir, c.kind, "", nil)
			require.NoError(t, err)
			assert.Equal(t, without, with)
		})
	}
}

// A shuffled dataset is trained in another order in each epoch, with cached features, too.
func shuffledData(t *testing.T, dir string) {
	ds, err := data.Open(filepath.Join(dir, "data.npz"), data.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ds.Close()) })
	for _, again := range []bool{false, true} {
		shuffled := func(o *Config) { o.Data, o.Shuffle = Data{Memory: ds.Shuffle(1)}, again }
		want, _, err := trainFrozen(dir, "plain", "", shuffled)
		require.NoError(t, err)
		got, report, err := trainFrozen(dir, "plain", Auto, shuffled)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		assert.Contains(t, report, "another order")
		_, _, err = trainFrozen(dir, "plain", On, shuffled)
		assert.ErrorContains(t, err, "another order")
	}
}

// A training continues from a checkpoint with or without cached features, and ends with the same weights.
func resumeCached(t *testing.T, dir string) {
	want, _, err := trainFrozen(dir, "plain", "", nil)
	require.NoError(t, err)
	for _, c := range []struct{ first, then Choice }{{On, ""}, {"", On}, {On, On}} {
		folder := t.TempDir()
		_, _, err := trainFrozen(dir, "plain", c.first, func(o *Config) { o.Checkpoints.Folder, o.Loop.Epochs = folder, 2 })
		require.NoError(t, err)
		got, _, err := trainFrozen(dir, "plain", c.then,
			func(o *Config) { o.Checkpoints.Folder, o.Resume = folder, true })
		require.NoError(t, err)
		assert.Equal(t, want, got, "%+v", c)
	}
}

// Features that take too much memory are not cached.
func largeFeatures(t *testing.T, dir string) {
	before := maxCached
	maxCached = 1
	t.Cleanup(func() { maxCached = before })
	_, _, err := trainFrozen(dir, "plain", On, nil)
	assert.ErrorContains(t, err, "the features of 150 samples take")
}

// Training for comparison uses the learning rate of the schedule.
func rateAsInput(t *testing.T, dir string) {
	rising := func(o *Config) {
		o.Loop.LearningRate = func(step int64, _ int) float64 { return 0.1 * float64(step) }
	}
	want, _, err := trainFrozen(dir, "rate", "", rising)
	require.NoError(t, err)
	got, report, err := trainFrozen(dir, "rate", On, rising)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.Contains(t, report, "computed once")
}

// A training that autotune configured resumes in the same configuration, without cached features.
func resumeChosen(t *testing.T, dir string) {
	folder := t.TempDir()
	first := func(o *Config) { o.Checkpoints.Folder, o.Loop.Epochs, o.Autotune = folder, 2, On }
	for _, cache := range []Choice{"", Auto} {
		chosenByParent = &autotune.Configuration{Executor: gpuopts.SingleThreaded}
		folder = t.TempDir()
		_, report, err := trainFrozen(dir, "plain", cache, first)
		chosenByParent = nil
		require.NoError(t, err)
		assert.Empty(t, report, "the parent has reported it")
	}
	resume := func(o *Config) { first(o); o.Resume, o.Loop.Epochs = true, 3 }
	_, _, err := trainFrozen(dir, "plain", On, resume)
	require.ErrorContains(t, err, "single-threaded executor")
	_, report, err := trainFrozen(dir, "plain", Auto, resume)
	require.NoError(t, err)
	assert.Contains(t, report, "not cached: the checkpoint was trained with single-threaded executor")
	_, report, err = trainFrozen(dir, "plain", On, func(o *Config) {
		resume(o)
		o.Loop.ResumeAnyway, o.Loop.Epochs = true,
			4
	})
	require.NoError(t, err)
	assert.Contains(t, report, "computed once")
}
