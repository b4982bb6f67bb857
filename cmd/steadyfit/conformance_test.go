package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// kerasRun is what Keras fit made of a case of scripts/conformance.py.
type kerasRun struct {
	Batch, Epochs int
	Validates     bool
	Table         bool
	Arguments     []string
	History       map[string][]float64
}

// Models that Keras fit has trained, trained again with the same weights, data and order, give
// the same values epoch by epoch, and the same weights: metrics with a state, with weights and
// with masks, averaged weights, and steps that users wrote.
func TestTrainsAsKerasFit(t *testing.T) {
	const script = "../../scripts/conformance.py"
	dir := t.TempDir()
	runPython(t, script, "make", dir)
	folders, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(folders), 26)
	for _, folder := range folders {
		t.Run(folder.Name(), func(t *testing.T) {
			at := func(name string) string { return filepath.Join(dir, folder.Name(), name) }
			text, err := os.ReadFile(at("keras.json"))
			require.NoError(t, err)
			var keras kerasRun
			require.NoError(t, json.Unmarshal(text, &keras))
			kind := ".npz"
			if keras.Table {
				kind = ".csv"
			}
			args := []string{"fit", "--model", at("model"), "--data", at("train" + kind), "--shuffle=false", "--batch", "16", "--epochs", "3", "--history", at("history.jsonl"), "--out", at("out")}
			if keras.Validates {
				args = append(args, "--validation", at("validation"+kind))
			}
			steadyfit(t, append(args, keras.Arguments...)...)
			worst := 0.0
			for name, want := range keras.History {
				have := column(t, at("history.jsonl"), name)
				require.Len(t, have, len(want), name)
				for epoch := range want {
					if outputLoss(name) {
						continue // a mean over samples, and over batches in Keras: the last batch is smaller
					}
					difference := math.Abs(want[epoch]-have[epoch]) / math.Max(1e-3, math.Abs(want[epoch]))
					assert.LessOrEqual(t, difference, 1e-6, "%s of epoch %d: %v, in Keras %v", name, epoch+1, have[epoch], want[epoch])
					worst = math.Max(worst, difference)
				}
			}
			t.Logf("%d metrics, which differ by at most %.1e of their value", len(keras.History), worst)
		})
	}
	// Its evaluation draws random numbers, and so changes a seed, but no weight.
	out, err := program(t, "fit", "--model", filepath.Join(dir, "add_loss", "model"), "--data", filepath.Join(dir, "add_loss", "train.npz"), "--train-signature", "evaluate").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "signature evaluate changes no weight")

	var differences map[string]float64
	require.NoError(t, json.Unmarshal([]byte(runPython(t, script, "compare", dir)), &differences))
	require.Len(t, differences, len(folders))
	for name, difference := range differences {
		t.Logf("%s: weights differ by %g of what moved", name, difference)
		assert.LessOrEqual(t, difference, 1e-6, name)
	}
}

// outputLoss tells the loss of one output of several.
func outputLoss(name string) bool {
	name = strings.TrimPrefix(name, "val_")
	return name == "kind_loss" || name == "size_loss" || name == "far_loss"
}

// column is a metric of a history, by epoch.
func column(t *testing.T, path, name string) []float64 {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var values []float64
	for line := range strings.Lines(string(text)) {
		var record map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &record))
		if v, ok := record[name].(float64); ok {
			values = append(values, v)
		}
	}
	return values
}
