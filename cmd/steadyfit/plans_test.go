package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/matrix"
)

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
		_, err = matrix.ParseSelection(remedies)
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
