package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/matrix"
)

func TestSelection(t *testing.T) {
	s, err := parseSelection([]string{"trim", "jemalloc", "W4/none", "W4/reuse", "W4/close-all", "keras:none", "keras:clear-session", "keras:W3/all", "W9/none", "W2/close-all"})
	require.NoError(t, err)
	for _, test := range []struct {
		runtime, workload string
		applied           []string
	}{
		{"go", "W0", []string{"trim", "jemalloc"}},
		{"galeone", "W3", []string{"trim", "jemalloc"}},
		{"go", "W2", []string{"trim", "jemalloc", "close-all"}}, // more remedies than elsewhere
		{"go", "W4", []string{"reuse", "close-all"}},            // other remedies than elsewhere
		{"keras", "W4", []string{"reuse", "close-all"}},         // a workload is narrower than a runtime
		{"keras", "W0", []string{"clear-session"}},
		{"go", "W9", nil},
	} {
		var applied []string
		for _, r := range []string{"trim", "jemalloc", "reuse", "close-all", "clear-session"} {
			if s.selects(test.runtime, test.workload, r) {
				applied = append(applied, r)
			}
		}
		assert.ElementsMatch(t, test.applied, applied, "%s %s", test.runtime, test.workload)
	}
	assert.True(t, s.selects("keras", "W3", "bf16"))
	assert.True(t, s.names("reuse"))
	some, err := parseSelection([]string{"W4/reuse"})
	require.NoError(t, err)
	assert.False(t, some.names("trim"))
	assert.False(t, some.selects("go", "W0", "reuse"))

	for entry, says := range map[string]string{
		"jemaloc":          "jemalloc",
		"W44/trim":         "W4",
		"pytorch:trim":     "keras",
		"keras:W4/rebuild": "reuse",
	} {
		_, err := parseSelection([]string{entry})
		assert.ErrorIs(t, err, matrix.ErrUnknown)
		assert.ErrorContains(t, err, says)
		assert.ErrorContains(t, err, entry)
	}
}

// The plans in the folder of the results name existing workloads and remedies, and only workloads that are
// in the results.
func TestPlansOfTheDocuments(t *testing.T) {
	plans, err := filepath.Glob("../../docs/results/*.yaml")
	require.NoError(t, err)
	require.Len(t, plans, 3)
	for _, path := range plans {
		values, err := readConfig(path)
		require.NoError(t, err)
		workloads := strings.Split(values["workloads"], ",")
		remedies := strings.Split(values["remedies"], ",")
		_, err = parseSelection(remedies)
		require.NoError(t, err, path)
		for _, entry := range remedies {
			_, rest, ok := strings.Cut(entry, ":")
			if !ok {
				rest = entry
			}
			if workload, _, ok := strings.Cut(rest, "/"); ok {
				assert.Contains(t, workloads, workload, "%s: %s", path, entry)
			}
		}
		seen := slices.Compact(slices.Sorted(slices.Values(remedies)))
		assert.Len(t, seen, len(remedies), "%s names a remedy twice", path)
	}
}
