package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Models that Keras fit has trained are trained again from the same weights, with the same data and
// order. They must give the same values in every epoch, and the same weights at the end. The cases are
// those of scripts/conformance.py: its first group, or all of them if STEADYFIT_TEST_CONFORMANCE names
// the page with the table.
//
//lane:skip onednn (compares with Keras, which has the same setting)
func TestTrainsAsKerasFit(t *testing.T) {
	const script = "../../scripts/conformance.py"
	dir := t.TempDir()
	least, options := 9, []string{}
	page := os.Getenv("STEADYFIT_TEST_CONFORMANCE")
	if page != "" {
		least, options = 100, []string{"--all"}
	}
	runPython(t, append([]string{script, "make", dir}, options...)...)
	folders, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(folders), least)
	for _, folder := range folders {
		at := func(name string) string { return filepath.Join(dir, folder.Name(), name) }
		text, err := os.ReadFile(at("arguments.json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a case without an export; compare checks whether it should have one
		}
		require.NoError(t, err)
		var arguments []string
		require.NoError(t, json.Unmarshal(text, &arguments))
		out, err := program(t, append([]string{"fit", "--model", at("model"), "--history", at("history.jsonl"), "--out",
			at("out")}, arguments...)...).CombinedOutput()
		assert.NoError(t, err, "%s: %s", folder.Name(), out)
	}
	trainsOnTexts(t, filepath.Join(dir, "text_classifier"))

	if page != "" {
		options = append(options, "--table", page)
	}
	var rows []struct{ Case, Problem string }
	require.NoError(t, json.Unmarshal([]byte(runPython(t, append([]string{script, "compare", dir}, options...)...)),
		&rows))
	require.Len(t, rows, len(folders))
	for _, row := range rows {
		assert.Empty(t, row.Problem, row.Case)
	}
}

// trainsOnTexts trains a case whose data is a table of texts on the same texts as arrays and as JSON lines, and
// requires the same losses.
func trainsOnTexts(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	table, err := os.Open(at("train.csv"))
	require.NoError(t, err)
	defer table.Close()
	rows, err := csv.NewReader(table).ReadAll()
	require.NoError(t, err)
	var lines bytes.Buffer
	for _, row := range rows[1:] {
		y, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		require.NoError(t, json.NewEncoder(&lines).Encode(map[string]any{"x": row[0], "y": y}))
	}
	require.NoError(t, os.WriteFile(at("train.jsonl"), lines.Bytes(), 0o600))
	losses := func(history string) (found []float64) {
		text, err := os.ReadFile(at(history))
		require.NoError(t, err)
		for line := range bytes.Lines(text) {
			var record struct{ Loss float64 }
			require.NoError(t, json.Unmarshal(line, &record))
			found = append(found, record.Loss)
		}
		return found
	}
	for _, name := range []string{"train.npz", "train.jsonl"} {
		out, err := program(t, "fit", "--model", at("model"), "--data", at(name), "--label", "y", "--history",
			at(name+".history"), "--shuffle=false", "--batch", "16", "--epochs", "3").CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
	}
	require.Len(t, losses("history.jsonl"), 3)
	assert.Equal(t, losses("history.jsonl"), losses("train.npz.history"))
	assert.Equal(t, losses("history.jsonl"), losses("train.jsonl.history"))
}
