package matrix

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

func ruled(kind memory.Kind, slope float64, peak int64) *Result {
	v := memory.Verdict{Kind: kind, NoiseFloor: 10, Slope: memory.Interval{Estimate: slope, Low: slope - 10, High: slope + 10}}
	return &Result{
		Workloads: []Workload{{ID: "user", Epoch: 100}},
		Combinations: []Combination{{Runtime: Go, Workload: "user", Remedy: Baseline, Verdict: &v,
			Figures: Figures{Peak: &peak}}},
	}
}

func (r Rule) broken(result, baseline *Result) []string {
	broken, _ := r.Check(result, baseline)
	return broken
}

func (r Rule) undecided(result, baseline *Result) []string {
	_, undecided := r.Check(result, baseline)
	return undecided
}

func TestRules(t *testing.T) {
	grown, flat := ruled(memory.Leak, 1000, 2<<30), ruled(memory.Flat, 0, 1<<30)
	for text, broken := range map[string]bool{
		"leak": true, "slope>64KiB/epoch": true, "slope>100KiB/epoch": false, "slope>512B/step": true,
		"slope>995B/step": false, "peak>1GiB": true, "peak>3GiB": false,
	} {
		r, err := ParseRule(text)
		require.NoError(t, err, text)
		assert.Equal(t, broken, len(r.broken(grown, nil)) == 1, text)
		assert.Empty(t, r.broken(flat, nil), text)
		assert.Empty(t, r.broken(grown, grown), "%s: nothing was added since", text)
		assert.Len(t, r.broken(ruled(memlayer.Crash, 0, 0), nil), 1, "%s: a crash breaks every rule", text)
	}
	r, err := ParseRule("peak>512MiB")
	require.NoError(t, err)
	require.Len(t, r.broken(grown, flat), 1)
	assert.Contains(t, r.broken(grown, flat)[0], "peak of 1.0 GiB is above 512.0 MiB more than in the baseline")
}

func TestRulesThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"", "slope", "slope>64KiB", "slope>64KiB/minute", "peak>1GiB/step", "height>1GiB",
		"peak>much"} {
		_, err := ParseRule(text)
		require.ErrorIs(t, err, errRule, text)
	}
}

// Each runtime has its own number of steps per epoch.
func TestRulesPerEpochOfARuntime(t *testing.T) {
	r, err := ParseRule("slope>64KiB/epoch")
	require.NoError(t, err)
	result := ruled(memory.Leak, 1000, 1)
	assert.Len(t, r.broken(result, nil), 1)
	require.NoError(t, json.Unmarshal([]byte(`{"on": {"go": {"epoch": 10}}}`), &result.Workloads[0]))
	assert.Empty(t, r.broken(result, nil))
}

func TestRulesOnRunsThatDied(t *testing.T) {
	for _, text := range []string{"leak", "slope>1MiB/step", "peak>1TiB"} {
		r, err := ParseRule(text)
		require.NoError(t, err)
		result := ruled(memory.Flat, 0, 1)
		result.Combinations[0].Runs, result.Combinations[0].Crashes = []int{1, 2, 3}, []string{"failed: killed"}
		assert.Equal(t, []string{"go user: 1 of 3 runs crashed: failed: killed"}, r.broken(result, nil), text)
	}
}

func TestWhatARuleCannotTell(t *testing.T) {
	leak, err := ParseRule("leak")
	require.NoError(t, err)
	peak, err := ParseRule("peak>1GiB")
	require.NoError(t, err)
	unsure := ruled(memory.Inconclusive, 0, 1)
	assert.Empty(t, leak.broken(unsure, nil))
	require.Len(t, leak.undecided(unsure, nil), 1)
	assert.Contains(t, leak.undecided(unsure, nil)[0], "go user: whether it leaks is not known")
	assert.Empty(t, peak.undecided(unsure, nil))
	assert.Empty(t, leak.undecided(ruled(memory.Flat, 0, 1), nil))
	unsure.Combinations[0].Figures.Peak = nil
	assert.Contains(t, peak.undecided(unsure, nil)[0], "its peak was not measured")
	unsure.Combinations = nil
	assert.Equal(t, []string{"no workload was measured that the rule applies to"}, leak.undecided(unsure, nil))
}

// If some runs of a workload leak and others do not, the rule is undecided.
func TestLeakInSomeRuns(t *testing.T) {
	leak, err := ParseRule("leak")
	require.NoError(t, err)
	result := ruled(memory.Flat, 0, 1)
	for id, kind := range []memory.Kind{memory.Leak, memory.Flat, memory.Leak, memory.Flat, memory.Flat} {
		run := RunResult{ID: id}
		run.Outcome.Verdict.Kind = kind
		result.Runs = append(result.Runs, run)
	}
	result.Combinations[0].Runs = []int{1, 3, 4}
	assert.Empty(t, leak.undecided(result, nil), "the others are of another combination")
	result.Combinations[0].Runs = []int{0, 1, 2, 3, 4}
	assert.Empty(t, leak.broken(result, nil))
	require.Len(t, leak.undecided(result, nil), 1)
	assert.Contains(t, leak.undecided(result, nil)[0], "go user: 2 of 5 runs leak, although most do not: flat")
}

func TestSlopesAroundTheLimit(t *testing.T) {
	slope, err := ParseRule("slope>100KiB/epoch")
	require.NoError(t, err)
	around := ruled(memory.Inconclusive, 1024, 1)
	assert.Empty(t, slope.broken(around, nil))
	require.Len(t, slope.undecided(around, nil), 1)
	assert.Contains(t, slope.undecided(around, nil)[0],
		"its slope is between 99.0 KiB and 101.0 KiB per epoch, which may be above 100.0 KiB")
	below := ruled(memory.Flat, 0, 1)
	assert.Empty(t, slope.undecided(below, nil))
	assert.Contains(t, slope.undecided(around, below)[0], "per epoch", "of the difference to the baseline")
	few := ruled(memory.Inconclusive, 0, 1)
	few.Combinations[0].Verdict.NoiseFloor = 0
	assert.Contains(t, slope.undecided(few, nil)[0], "its slope was not measured", "of too few samples")

	peak, err := ParseRule("peak>1B")
	require.NoError(t, err)
	silent := ruled(memory.Flat, 0, 1)
	silent.Combinations[0].Figures.Peak = nil
	now := ruled(memory.Flat, 0, 1<<30)
	assert.Empty(t, peak.broken(now, silent), "it is on a difference")
	assert.Contains(t, peak.undecided(now, silent)[0], "the baseline has no peak")
}

// A rule applies to the control workload only if there are no other workloads.
func TestNoRuleOnCalibration(t *testing.T) {
	r, err := ParseRule("peak>1GiB")
	require.NoError(t, err)
	result := ruled(memory.Flat, 0, 1<<30)
	control := ruled(memory.Flat, 0, 2<<30)
	none := int64(0)
	control.Workloads[0].ID, control.Workloads[0].Leak, control.Combinations[0].Workload = "W0", &none, "W0"
	assert.Len(t, r.broken(control, nil), 1)
	result.Workloads, result.Combinations = append(result.Workloads, control.Workloads...),
		append(result.Combinations, control.Combinations...)
	assert.Empty(t, r.broken(result, nil))
	assert.Empty(t, r.undecided(result, nil))
}
