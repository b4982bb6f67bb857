package matrix

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

func ruled(kind memory.Kind, slope float64, peak int64) *Result {
	v := memory.Verdict{Kind: kind, Slope: memory.Interval{Estimate: slope, Low: slope - 10, High: slope + 10}}
	return &Result{
		Workloads:    []Workload{{ID: "user", Epoch: 100}},
		Combinations: []Combination{{Runtime: Go, Workload: "user", Remedy: Baseline, Verdict: &v, Figures: Figures{Peak: &peak}}},
	}
}

func TestRules(t *testing.T) {
	grown, flat := ruled(memory.Leak, 1000, 2<<30), ruled(memory.Flat, 0, 1<<30)
	for text, broken := range map[string]bool{
		"leak": true, "slope>64KiB/epoch": true, "slope>100KiB/epoch": false, "slope>512B/step": true,
		"slope>995B/step": false, "peak>1GiB": true, "peak>3GiB": false, "level>1MiB": false,
	} {
		r, err := ParseRule(text)
		require.NoError(t, err, text)
		assert.Equal(t, broken, len(r.Check(grown, nil)) == 1, text)
		assert.Empty(t, r.Check(flat, nil), text)
		assert.Empty(t, r.Check(grown, grown), "%s: nothing was added since", text)
		assert.Len(t, r.Check(ruled(memory.Crash, 0, 0), nil), 1, "%s: a crash breaks every rule", text)
	}
	r, err := ParseRule("peak>512MiB")
	require.NoError(t, err)
	require.Len(t, r.Check(grown, flat), 1)
	assert.Contains(t, r.Check(grown, flat)[0], "peak of 1.0 GiB is above 512.0 MiB more than in the baseline")
}

func TestRulesThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"", "slope", "slope>64KiB", "slope>64KiB/minute", "peak>1GiB/step", "height>1GiB", "peak>much"} {
		_, err := ParseRule(text)
		require.ErrorIs(t, err, ErrRule, text)
	}
}

// Each runtime has its own epochs.
func TestRulesPerEpochOfARuntime(t *testing.T) {
	r, err := ParseRule("slope>64KiB/epoch")
	require.NoError(t, err)
	result := ruled(memory.Leak, 1000, 1)
	assert.Len(t, r.Check(result, nil), 1)
	result.Workloads[0].On = map[string]Variant{Go: {Epoch: 10}}
	assert.Empty(t, r.Check(result, nil))
}

func TestRulesOnRunsThatDied(t *testing.T) {
	for _, text := range []string{"leak", "slope>1MiB/step", "peak>1TiB"} {
		r, err := ParseRule(text)
		require.NoError(t, err)
		result := ruled(memory.Flat, 0, 1)
		result.Combinations[0].Runs, result.Combinations[0].Crashes = []int{1, 2, 3}, []string{"failed: killed"}
		assert.Equal(t, []string{"go user: 1 of 3 runs crashed: failed: killed"}, r.Check(result, nil), text)
	}
}

func TestWhatARuleCannotTell(t *testing.T) {
	leak, err := ParseRule("leak")
	require.NoError(t, err)
	peak, err := ParseRule("peak>1GiB")
	require.NoError(t, err)
	unsure := ruled(memory.Inconclusive, 0, 1)
	assert.Empty(t, leak.Check(unsure, nil))
	require.Len(t, leak.Undecided(unsure, nil), 1)
	assert.Contains(t, leak.Undecided(unsure, nil)[0], "go user: whether it leaks is not known")
	assert.Empty(t, peak.Undecided(unsure, nil))
	assert.Empty(t, leak.Undecided(ruled(memory.Flat, 0, 1), nil))
	unsure.Combinations[0].Figures.Peak = nil
	assert.Contains(t, peak.Undecided(unsure, nil)[0], "its peak was not measured")
	unsure.Combinations = nil
	assert.Equal(t, []string{"no workload was measured that the rule applies to"}, leak.Undecided(unsure, nil))
}

func TestSlopesAroundTheLimit(t *testing.T) {
	slope, err := ParseRule("slope>100KiB/epoch")
	require.NoError(t, err)
	around := ruled(memory.Inconclusive, 1024, 1)
	around.Combinations[0].Verdict.NoiseFloor = 10
	assert.Empty(t, slope.Check(around, nil))
	require.Len(t, slope.Undecided(around, nil), 1)
	assert.Contains(t, slope.Undecided(around, nil)[0], "its slope is between 99.0 KiB and 101.0 KiB per epoch, which may be above 100.0 KiB")
	below := ruled(memory.Flat, 0, 1)
	below.Combinations[0].Verdict.NoiseFloor = 10
	assert.Empty(t, slope.Undecided(below, nil))
	assert.Contains(t, slope.Undecided(around, below)[0], "per epoch", "of the difference to the baseline")
	assert.Contains(t, slope.Undecided(ruled(memory.Inconclusive, 0, 1), nil)[0], "its slope was not measured", "of too few samples")

	peak, err := ParseRule("peak>1B")
	require.NoError(t, err)
	silent := ruled(memory.Flat, 0, 1)
	silent.Combinations[0].Figures.Peak = nil
	now := ruled(memory.Flat, 0, 1<<30)
	assert.Empty(t, peak.Check(now, silent), "it is on a difference")
	assert.Contains(t, peak.Undecided(now, silent)[0], "the baseline has no peak")
}

// A rule applies to the user's workloads, and to the control only if there are no others.
func TestNoRuleOnCalibration(t *testing.T) {
	r, err := ParseRule("peak>1GiB")
	require.NoError(t, err)
	result := ruled(memory.Flat, 0, 1<<30)
	control := ruled(memory.Flat, 0, 2<<30)
	none := int64(0)
	control.Workloads[0].ID, control.Workloads[0].Leak, control.Combinations[0].Workload = "W0", &none, "W0"
	assert.Len(t, r.Check(control, nil), 1)
	result.Workloads, result.Combinations = append(result.Workloads, control.Workloads...), append(result.Combinations, control.Combinations...)
	assert.Empty(t, r.Check(result, nil))
	assert.Empty(t, r.Undecided(result, nil))
}
