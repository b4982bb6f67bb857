package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
