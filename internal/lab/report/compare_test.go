package report

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

func comparison(t *testing.T, a, b *matrix.Result) (string, Agreement) {
	t.Helper()
	var out bytes.Buffer
	got, err := Compare(&out, a, b, 200)
	require.NoError(t, err)
	return out.String(), got
}

func TestCompareSame(t *testing.T) {
	out, got := comparison(t, fixture(), fixture())
	require.Equal(t, 20, got.Compared, "what was not applied is not compared")
	require.Equal(t, 20, got.Same)
	require.Zero(t, got.OnlyOne)
	require.Contains(t, out, "The same verdict in 20 of 20 (100.0%)")
	require.InDelta(t, 1, Agreement{}.Share(), 0)
}

// Each disagreement has both figures and an explanation, or contradicts.
func TestCompareDifferent(t *testing.T) {
	b := fixture()
	b.Combinations = b.Combinations[:len(b.Combinations)-2] // S3/batch-half and memory-growth of keras
	for i := range b.Combinations {
		if c := &b.Combinations[i]; c.Workload == "W4" && c.Remedy == "close" && c.Runtime == "go" {
			c.Effect, c.Comparison.Slope = compare.NoEffect, ratio(0.97, 1, 1.02, compare.NoEffect)
		}
	}
	out, got := comparison(t, fixture(), b)
	require.Equal(t, 19, got.Compared)
	require.Equal(t, 18, got.Same)
	require.Equal(t, 1, got.OnlyOne)
	require.Contains(t, out, "go W4 with close\n    A: works, slope ×0.02 [−0.01, 0.03]\n    B: no effect, slope ×1.00 [0.97, 1.02]\n")
	require.Contains(t, out, "! They contradict each other.")
	_, back := comparison(t, b, fixture())
	require.Equal(t, got.OnlyOne, back.OnlyOne)
}

func TestWhy(t *testing.T) {
	with := func(effect compare.Effect, goal compare.Goal, r compare.Ratio) *matrix.Result {
		return &matrix.Result{Combinations: []matrix.Combination{{Runtime: "go", Workload: "W4", Remedy: "trim", Effect: effect,
			Comparison: &compare.Comparison{Effect: effect, Goal: goal, Slope: r, Peak: r, Pairs: 5}}}}
	}
	slope := func(effect compare.Effect, low, estimate, high float64) *matrix.Result {
		return with(effect, compare.LowerSlope, ratio(low, estimate, high, effect))
	}
	crashed := slope(compare.Harmful, 0.9, 0.91, 0.92)
	crashed.Combinations[0].Comparison.RemedyCrashes = 3
	without := func(slope memory.Interval, kinds ...memory.Kind) *matrix.Result {
		r := &matrix.Result{}
		c := matrix.Combination{Runtime: "go", Workload: "W4", Remedy: matrix.Baseline,
			Verdict: &memory.Verdict{Kind: kinds[0], Samples: 64, Reason: "too few turns"}, Figures: matrix.Figures{Slope: slope}}
		for i, kind := range kinds {
			r.Runs = append(r.Runs, matrix.RunResult{ID: i + 1, Outcome: compare.Outcome{Verdict: memory.Verdict{Kind: kind}}})
			c.Runs = append(c.Runs, i+1)
			if kind == memlayer.Crash {
				c.Crashes = append(c.Crashes, "killed")
			}
		}
		r.Combinations = append(r.Combinations, c)
		return r
	}
	const overlaps = "the intervals overlap, and a threshold lies between the verdicts"
	for name, test := range map[string]struct {
		a, b *matrix.Result
		why  string // "" is a contradiction, "same" no disagreement
	}{
		"same":     {slope(compare.Works, 0, 0.01, 0.02), slope(compare.Works, 0, 0.09, 0.1), "same"},
		"unclear":  {slope(compare.Works, 0, 0.02, 0.05), slope(compare.Unclear, -0.5, 0.1, 0.9), "B is unclear"},
		"overlap":  {slope(compare.Works, 0.03, 0.06, 0.09), slope(compare.Partly, 0.05, 0.1, 0.15), overlaps},
		"opposite": {slope(compare.Works, 0, 0.01, 0.02), slope(compare.NoEffect, 0.98, 1, 1.02), ""},
		"crashes":  {slope(compare.Partly, 0.9, 0.91, 0.92), crashed, ""},
		"goal": {slope(compare.Works, 0, 0.01, 0.02), with(compare.NoEffect, compare.LowerPeak, ratio(1, 1, 1, compare.NoEffect)),
			"the verdicts on the workload without the remedy differ"},
		"no growth": {without(interval(0, 0, 0), memory.Flat), without(interval(0, 0, 0), memory.Plateau), "same"},
		"undecided": {without(interval(1, 2, 3), memory.Inconclusive), without(interval(1, 2, 3), memory.Leak), "A is undecided"},
		"budget": {without(interval(5, 10, 20), memory.Flat, memory.Flat), without(interval(9, 12, 22), memory.Leak, memory.Leak),
			overlaps},
		"leak": {without(interval(0, 1, 2), memory.Flat, memory.Flat), without(interval(90, 100, 110), memory.Leak, memory.Leak), ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, got := comparison(t, test.a, test.b)
			if test.why == "same" {
				require.Empty(t, got.Disagreements)
				return
			}
			require.Len(t, got.Disagreements, 1)
			require.Equal(t, test.why, got.Disagreements[0].Why)
			require.Zero(t, got.Same)
			require.Contains(t, out, map[bool]string{true: "! They contradict each other.", false: "Explained: " + test.why}[test.why == ""])
		})
	}
}
