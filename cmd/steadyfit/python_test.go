package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// python returns the path of an interpreter that has TensorFlow.
func python(t *testing.T) string {
	t.Helper()
	if raceDetector() {
		t.Skip("most of the time goes to Python, which has no race detector; the tests without it have this one")
	}
	path := os.Getenv("STEADYFIT_PYTHON")
	if path == "" {
		var err error
		path, err = filepath.Abs("../../.runtime/venv/bin/python")
		require.NoError(t, err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no Python with TensorFlow at %s: run `make venv`, or set STEADYFIT_PYTHON", path)
	}
	return path
}

func runPython(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(python(t), args...)
	cmd.Env = append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=2", "CUDA_VISIBLE_DEVICES=-1")
	out, err := cmd.Output()
	if err != nil {
		var stderr []byte
		if e, ok := err.(*exec.ExitError); ok {
			stderr = e.Stderr
		}
		require.NoError(t, err, "%s", stderr)
	}
	return string(out)
}

func steadyfit(t *testing.T, args ...string) string {
	t.Helper()
	out, err := program(t, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// Python loads a model that was trained here, predicts the same within 1e-5, and continues with
// the next train step from the same state.
//
//lane:run onednn
func TestPythonPredictsTheSame(t *testing.T) {
	python(t)
	dir := t.TempDir()
	predictions := filepath.Join(dir, "p.npy")
	data, err := filepath.Abs("../../data/builtin/digits-test.npz")
	require.NoError(t, err)
	steadyfit(t, "fit", "--model", "builtin:digits-cnn", "--data", "builtin:digits", "--epochs", "2", "--out-version", dir)
	model := filepath.Join(dir, "1")
	steadyfit(t, "verify", model)
	steadyfit(t, "predict", "--model", model, "--data", data, "--out", predictions, "--output", "probabilities")
	evaluated := steadyfit(t, "evaluate", "--model", model, "--data", data, "--batch", "359")
	// TensorFlow's own tools can run the default signature.
	runPython(t, "-m", "tensorflow.python.tools.saved_model_cli", "run", "--dir", model, "--tag_set", "serve",
		"--signature_def", "serving_default", "--inputs", "x="+data+"[x]", "--outdir", dir)
	out := runPython(t, "-c", `
import json, sys
import keras
import numpy as np
import tensorflow as tf
m = tf.saved_model.load(sys.argv[1])
d = np.load(sys.argv[3])
x, y = tf.constant(d["x"], tf.float32), tf.constant(d["y"], tf.int64)
p = m.signatures["predict"](x=x)["probabilities"].numpy()
e = m.signatures["evaluate"](x=x, y=y)
before = float(e["loss"])
layer = keras.layers.TFSMLayer(sys.argv[1], call_endpoint="serving_default")
served = layer(x)["probabilities"].numpy()
m.signatures["train"](x=x[:32], y=y[:32])
ours = np.load(sys.argv[2])
differences = [float(np.abs(q - ours).max()) for q in (p, served, np.load(sys.argv[4]))]
print(json.dumps({"difference": max(differences), "samples": len(p), "loss": before}))
`, model, predictions, data, filepath.Join(dir, "probabilities.npy"))
	var got struct {
		Difference, Loss float64
		Samples          int
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	t.Logf("largest difference of %d x 10 probabilities: %g", got.Samples, got.Difference)
	assert.Equal(t, 359, got.Samples)
	assert.LessOrEqual(t, got.Difference, 1e-5)
	loss := regexp.MustCompile(`loss ([0-9.]+)`).FindStringSubmatch(evaluated)
	require.NotNil(t, loss, evaluated)
	ours, err := strconv.ParseFloat(loss[1], 64)
	require.NoError(t, err)
	assert.InDelta(t, got.Loss, ours, 1e-5)
}

// Models from scripts of other people train without a change to Go code, with oneDNN on and off:
// other names, two inputs, an LSTM, an attention block.
//
//lane:skip onednn (sets oneDNN itself)
func TestModelsOfOthersTrain(t *testing.T) {
	scripts, err := filepath.Glob("../../examples/export/*.py")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) {
			dir := t.TempDir()
			runPython(t, script, dir)
			models, err := filepath.Glob(filepath.Join(dir, "*", "saved_model.pb"))
			require.NoError(t, err)
			datasets, err := filepath.Glob(filepath.Join(dir, "*.npz"))
			require.NoError(t, err)
			require.Len(t, models, 1)
			require.Len(t, datasets, 1)
			steadyfit(t, "inspect", filepath.Dir(models[0]))
			for _, oneDNN := range []string{"0", "1"} {
				t.Setenv("TF_ENABLE_ONEDNN_OPTS", oneDNN)
				history := filepath.Join(dir, "history"+oneDNN+".jsonl")
				args := []string{"fit", "--model", filepath.Dir(models[0]), "--data", datasets[0], "--epochs", "4", "--history",
					history, "--out", filepath.Join(dir, "out"+oneDNN)}
				if filepath.Base(script) == "two_inputs.py" {
					args = append(args, "--learning-rate", "0.5") // its train signature takes the learning rate as an input
				}
				steadyfit(t, args...)
				records := recordsOf(t, history)
				require.Len(t, records, 4)
				first, last := records[0]["loss"].(float64), records[3]["loss"].(float64)
				t.Logf("oneDNN %s: loss %v -> %v in 4 epochs", oneDNN, first, last)
				assert.Less(t, last, 0.9*first)
			}
		})
	}
}

// Vocabularies in files are assets of the model. The trained model has copies of them and trains, too.
//
//lane:run onednn
func TestVocabulariesInFilesTrain(t *testing.T) {
	dir := t.TempDir()
	scripts, err := filepath.Abs("../../scripts")
	require.NoError(t, err)
	runPython(t, "-c", `
import os, pathlib, sys
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[2])
import keras, tensorflow as tf
import steadyfit_export as export
pathlib.Path("words.txt").write_text("cat\ndog\n")
pathlib.Path("colors.txt").write_text("red\ngreen\n")
pathlib.Path("codes.txt").write_text("5\n6\n")
words = keras.Input((), dtype="string", name="words")
color = keras.Input((1,), dtype="string", name="color")
code = keras.Input((1,), dtype="int64", name="code")
parts = [
    keras.layers.TextVectorization(vocabulary="words.txt", output_mode="count")(words),
    keras.layers.StringLookup(vocabulary="colors.txt", output_mode="one_hot")(color),
    keras.layers.IntegerLookup(vocabulary="codes.txt", output_mode="one_hot")(code),
]
x = keras.layers.Concatenate()([keras.ops.cast(p, "float32") for p in parts])
model = keras.Model([words, color, code], keras.layers.Dense(2)(x))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
export.export(model, "model", optimizer=keras.optimizers.SGD(0.5), loss=loss)
for name in ("words", "colors", "codes"):
    os.remove(name + ".txt")
`, dir, scripts)
	table := filepath.Join(dir, "train.csv")
	require.NoError(t, os.WriteFile(table, []byte("words,color,code,y\na cat,red,5,0\nDog dog,green,6,1\n"), 0o644))
	model, losses := filepath.Join(dir, "model"), []float64{math.Inf(1)}
	for _, out := range []string{"once", "twice"} {
		history := filepath.Join(dir, out+".jsonl")
		steadyfit(t, "fit", "--model", model, "--data", table, "--label", "y", "--batch", "2", "--epochs", "3", "--history",
			history, "--out", filepath.Join(dir, out))
		for _, name := range []string{"words.txt", "colors.txt", "codes.txt"} {
			assert.FileExists(t, filepath.Join(dir, out, "assets", name))
		}
		for _, r := range recordsOf(t, history) {
			loss := r["loss"].(float64)
			assert.Less(t, loss, losses[len(losses)-1], "the words tell the two samples apart")
			losses = append(losses, loss)
		}
		model = filepath.Join(dir, out)
	}
	require.Len(t, losses, 1+3+3)
}
