package compare

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// Kinds has the kinds of verdicts, the worst first.
var Kinds = []memory.Kind{memlayer.Crash, memory.Leak, memory.Inconclusive, memory.Sawtooth, memory.Jump, memory.Plateau, memory.Flat}

// Middle returns the run that represents several: of those with the most frequent kind of
// verdict, the one with the middle slope. Of equally frequent kinds it takes the worst. It takes
// a leak only if Leaks agrees. Of crashed runs, it takes the one with the most samples.
// It needs at least one run.
func Middle[R any](runs []R, of func(R) Outcome, samples func(R) int) R {
	outcomes := make([]Outcome, len(runs))
	for i, run := range runs {
		outcomes[i] = of(run)
	}
	leaks := Leaks(outcomes)
	var most []R
	var kind memory.Kind
	for _, k := range Kinds {
		if k == memory.Leak && !leaks {
			continue
		}
		alike := slices.DeleteFunc(slices.Clone(runs), func(r R) bool { return of(r).Verdict.Kind != k })
		if len(alike) > len(most) {
			most, kind = alike, k
		}
	}
	if len(most) == 0 {
		return runs[0]
	}
	if kind == memlayer.Crash {
		return slices.MaxFunc(most, func(a, b R) int { return cmp.Compare(samples(a), samples(b)) })
	}
	slices.SortStableFunc(most, func(a, b R) int {
		return cmp.Compare(of(a).Verdict.Slope.Estimate, of(b).Verdict.Slope.Estimate)
	})
	return most[(len(most)-1)/2]
}

// gcPeriod is the longest time between two collections in Go (forcegcperiod in runtime/proc.go).
const gcPeriod = 2 * time.Minute

// Early returns a note that runs ended before Go's collector had to run, so that garbage looks
// like endless growth. It is empty for longer runs, and if inGo is false.
func Early[R any](inGo bool, runs []R, seconds func(R) float64) string {
	longest := 0.0
	for _, run := range runs {
		longest = max(longest, seconds(run))
	}
	if !inGo || longest == 0 || longest >= gcPeriod.Seconds() {
		return ""
	}
	return fmt.Sprintf("the runs took at most %.0f s, and Go may wait %.0f s for a collection", max(longest, 1), gcPeriod.Seconds())
}
