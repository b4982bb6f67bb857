package matrix

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWorkloads(t *testing.T) {
	var ids []string
	for _, w := range Workloads() {
		ids = append(ids, w.ID)
		for _, text := range []string{w.Title, w.What, w.Expected} {
			assert.NotEmpty(t, text, w.ID)
			assert.NotContains(t, text, "\n", w.ID)
		}
		if w.ID == Program {
			continue
		}
		samples := w.Steps / w.Every
		assert.GreaterOrEqual(t, samples, 24, "%s: too few samples for a verdict", w.ID)
		assert.LessOrEqual(t, samples, 160, w.ID)
		assert.GreaterOrEqual(t, w.Steps/w.Epoch, 4, "%s: remedies work at the end of epochs", w.ID)
		assert.Positive(t, w.Batch, w.ID)
		assert.Positive(t, w.Budget, w.ID)
		for runtime, params := range w.Takes {
			sorted := slices.Sorted(slices.Values(params))
			assert.Equal(t, sorted, slices.Compact(slices.Clone(sorted)), "%s on %s: a param is there twice", w.ID, runtime)
			for _, name := range common {
				assert.NotContains(t, params, name, "%s on %s: every workload has it", w.ID, runtime)
			}
		}
		for name := range w.Params {
			for runtime, params := range w.Takes {
				assert.Contains(t, params, name, "%s on %s", w.ID, runtime)
			}
		}
	}
	assert.Equal(t, []string{"W0", "W1", "W2", "W3", "W4", "W4s", "W5", "W6", "W8", "W9", "W10", "W11", "W12",
		"S0", "S1", "S1d", "S2", "S2l", "S3", "S3a", "S3v", "S3m", "S4", "S5", "S5b", "S5h", "S5s", "S6", "S6b", "S6h",
		"user", "program"}, ids)
}

// A leak must exceed the budget, and a control must have none.
func TestCalibrationWorkloads(t *testing.T) {
	for id, leak := range map[string]int64{"W0": 0, "W1": 65536} {
		w, err := FindWorkload(id)
		require.NoError(t, err)
		require.NotNil(t, w.Leak)
		assert.Equal(t, leak, *w.Leak)
		assert.Less(t, w.Budget, int64(65536/10))
	}
	for _, w := range Workloads() {
		assert.Equal(t, w.ID == "W0" || w.ID == "W1", w.Leak != nil, w.ID)
	}
}

func TestFindWorkload(t *testing.T) {
	w, err := FindWorkload("S1d")
	require.NoError(t, err)
	assert.Equal(t, "dropout-200-512-256-1", w.Model)
	_, err = FindWorkload("s1D")
	require.ErrorIs(t, err, ErrUnknown)
	assert.ErrorContains(t, err, `workload "s1D"; the help of matrix lists them`)
}

// The embedded tables have only fields of their types.
func TestCatalog(t *testing.T) {
	_, err := catalog()
	require.NoError(t, err)
	assert.Equal(t, Baseline, Remedies()[0].ID)
	assert.Len(t, Workloads(), len(workloadIDs(Workloads())))
}

func workloadIDs(all []Workload) map[string]bool {
	ids := make(map[string]bool)
	for _, w := range all {
		ids[w.ID] = true
	}
	return ids
}
