package report

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/matrix"
	"steadyfit/memory"
)

func TestVersions(t *testing.T) {
	result := func(kind memory.Kind, slope float64) *matrix.Result {
		s := memory.Interval{Estimate: slope, Low: slope, High: slope}
		return &matrix.Result{Complete: true, Workloads: []matrix.Workload{{ID: "W6", Budget: 2048}}, Calibration: []matrix.Calibration{{OK: true}},
			Combinations: []matrix.Combination{{Runtime: "go", Workload: "W6", Remedy: matrix.Baseline, Figures: matrix.Figures{Slope: s},
				Verdict: &memory.Verdict{Kind: kind, Slope: s, Samples: 64}}}}
	}
	versions := []Version{
		{TensorFlow: "2.16.2", Result: result(memory.Flat, 10)},
		{TensorFlow: "2.18.1", Result: result(memory.Jump, 20)},
		{TensorFlow: "2.20.0", Result: result(memory.Leak, 40960)},
		{TensorFlow: "2.21.0", Result: result(memory.Inconclusive, 40960)},
	}
	changes, explained, missing := Changes(versions)
	require.Len(t, changes, 1)
	assert.Equal(t, "2.18.1", changes[0].Before)
	assert.Equal(t, "2.20.0", changes[0].Since)
	assert.Equal(t, 1, explained, "an inconclusive verdict is no change")
	assert.Zero(t, missing)

	changes, _, _ = Changes([]Version{versions[2], versions[3], {TensorFlow: "2.22.0", Result: versions[0].Result}})
	require.Len(t, changes, 1, "an undecided version between two")
	assert.Equal(t, "2.20.0", changes[0].Before)
	assert.Equal(t, "2.22.0", changes[0].Since)
	_, _, missing = Changes([]Version{versions[0], {TensorFlow: "2.22.0", Result: &matrix.Result{}}})
	assert.Equal(t, 1, missing)

	var page bytes.Buffer
	require.NoError(t, Versions(&page, versions, TextOptions{Width: 100}))
	assert.Regexp(t, `W6 +flat +jump +\+40\.0 KiB/step +undecided`, page.String())
	assert.Contains(t, page.String(), "W6 changes in 2.20.0:")
	assert.Contains(t, page.String(), "1 other difference may be chance")
	assert.NotContains(t, page.String(), "! ")

	page.Reset()
	require.NoError(t, Versions(&page, versions[:2], TextOptions{Width: 100}))
	assert.Contains(t, page.String(), "No change between these versions was shown.")
}
