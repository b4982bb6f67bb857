package matrix

import (
	"cmp"
	"slices"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// kinds has the kinds of verdicts, the worst first.
var kinds = []memory.Kind{memlayer.Crash, memory.Leak, memory.Inconclusive, memory.Sawtooth, memory.Jump,
	memory.Plateau, memory.Flat}

// ofKind returns the runs with a kind of verdict.
func ofKind(runs []*RunResult, kind memory.Kind) []*RunResult {
	return slices.DeleteFunc(slices.Clone(runs), func(run *RunResult) bool { return run.kind() != kind })
}

// Samples returns the number of samples that were taken between steps.
func (run *RunResult) Samples() int {
	if run.Series == nil {
		return 0
	}
	return run.Series.Total()
}

func (run *RunResult) kind() memory.Kind { return run.Outcome.Verdict.Kind }

// Middle returns the run that represents several: of those with the most frequent kind of verdict,
// the one with the middle slope. Among equally frequent kinds, Middle takes the worst. It takes a
// leak only if compare.Leaks agrees. Among crashed runs, it takes the one with the most samples.
// runs must not be empty.
func Middle(runs []*RunResult) *RunResult {
	leaks := compare.Leaks(outcomes(runs))
	var most []*RunResult
	for _, kind := range kinds {
		if alike := ofKind(runs, kind); len(alike) > len(most) && (kind != memory.Leak || leaks) {
			most = alike
		}
	}
	switch {
	case len(most) == 0:
		return runs[0]
	case most[0].kind() == memlayer.Crash:
		return slices.MaxFunc(most, func(a, b *RunResult) int { return cmp.Compare(a.Samples(), b.Samples()) })
	}
	slices.SortStableFunc(most, func(a, b *RunResult) int {
		return cmp.Compare(a.Outcome.Verdict.Slope.Estimate, b.Outcome.Verdict.Slope.Estimate)
	})
	return most[(len(most)-1)/2]
}

func outcomes(runs []*RunResult) []compare.Outcome {
	list := make([]compare.Outcome, len(runs))
	for i, run := range runs {
		list[i] = run.Outcome
	}
	return list
}
