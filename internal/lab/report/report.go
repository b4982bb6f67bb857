// Package report renders the result of a matrix for people and for programs. No function
// changes the result. An amount that was not measured is a dash, never 0.
package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// unknown stands for an amount that was not measured.
const unknown = "–"

// view is a result with indexes, and with methods for page.tmpl.
type view struct {
	*matrix.Result
	runtimes     []string
	workloads    []matrix.Workload
	remedies     []matrix.Remedy
	combinations map[combinationID]*matrix.Combination
	runs         map[int]*matrix.RunResult
	remedy       map[string]matrix.Remedy
	workload     map[string]matrix.Workload
	answered     []onRuntime // by Runtimes
}

type combinationID struct{ runtime, workload, remedy string }

func newView(r *matrix.Result) *view {
	v := &view{Result: r, combinations: map[combinationID]*matrix.Combination{}, runs: map[int]*matrix.RunResult{},
		remedy: map[string]matrix.Remedy{}, workload: map[string]matrix.Workload{}}
	for _, w := range r.Workloads {
		v.addWorkload(w)
	}
	// The baseline comes first, even if the result does not list it.
	baseline := matrix.Remedy{ID: matrix.Baseline, Title: "as it is"}
	for _, m := range r.Remedies {
		if m.ID == matrix.Baseline && m.Title != "" {
			baseline = m
		}
	}
	v.addRemedy(baseline)
	for _, m := range r.Remedies {
		v.addRemedy(m)
	}
	found := map[string]bool{}
	for i := range r.Combinations {
		c := &r.Combinations[i]
		found[c.Runtime] = true
		v.combinations[combinationID{c.Runtime, c.Workload, c.Remedy}] = c
		v.addWorkload(matrix.Workload{ID: c.Workload})
		v.addRemedy(matrix.Remedy{ID: c.Remedy})
	}
	for i := range r.Runs {
		v.runs[r.Runs[i].ID] = &r.Runs[i]
		found[r.Runs[i].Runtime] = true
	}
	for name := range found {
		v.runtimes = append(v.runtimes, name)
	}
	order := map[string]int{matrix.Go: -3, matrix.Galeone: -2, matrix.Keras: -1}
	slices.SortFunc(v.runtimes, func(a, b string) int {
		return cmp.Or(cmp.Compare(order[a], order[b]), cmp.Compare(a, b))
	})
	return v
}

func (v *view) addWorkload(w matrix.Workload) {
	if _, ok := v.workload[w.ID]; !ok {
		v.workload[w.ID] = w
		v.workloads = append(v.workloads, w)
	}
}

func (v *view) addRemedy(m matrix.Remedy) {
	if _, ok := v.remedy[m.ID]; !ok {
		if m.Title == "" {
			m.Title = m.ID
		}
		v.remedy[m.ID] = m
		v.remedies = append(v.remedies, m)
	}
}

func (v *view) combination(runtime, workload, remedy string) *matrix.Combination {
	return v.combinations[combinationID{runtime, workload, remedy}]
}

func (v *view) title(remedy string) string { return cmp.Or(v.remedy[remedy].Title, remedy) }

func (v *view) runsOf(c *matrix.Combination) []*matrix.RunResult {
	var list []*matrix.RunResult
	for _, id := range c.Runs {
		if r := v.runs[id]; r != nil {
			list = append(list, r)
		}
	}
	return list
}

// middle returns the run that represents the runs of a combination, or nil. In a thinned result,
// only this run has figures and a series.
func (v *view) middle(c *matrix.Combination) *matrix.RunResult {
	runs := v.runsOf(c)
	if len(runs) == 0 {
		return nil
	}
	run := matrix.Middle(runs)
	if run.Samples() == 0 {
		if sampled := slices.DeleteFunc(runs, func(r *matrix.RunResult) bool { return r.Samples() == 0 }); len(sampled) > 0 {
			run = matrix.Middle(sampled)
		}
	}
	return run
}

// phase returns the median of a layer between two phases.
func (v *view) phase(c *matrix.Combination, name string, layer memory.Layer) memory.Reading {
	var values []float64
	for _, r := range v.runsOf(c) {
		s := r.Phases[name]
		if a := s.Get(layer); a.OK {
			values = append(values, float64(a.Bytes))
		}
	}
	if len(values) == 0 {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(math.Round(stats.Median(values))))
}

func estimated(c *matrix.Combination) bool {
	if c.Figures.Slope != (memory.Interval{}) {
		return true
	}
	return c.Verdict != nil && c.Verdict.Kind != memlayer.Crash && c.Verdict.NoiseFloor+float64(c.Verdict.Samples) > 0
}

// slope returns the slope in bytes per step with the range over runs, or with the interval of a
// single run.
func slope(c *matrix.Combination) (memory.Interval, bool) {
	if !estimated(c) {
		return memory.Interval{}, false
	}
	if len(c.Runs) < 2 && c.Verdict != nil {
		return c.Verdict.Slope, true
	}
	return c.Figures.Slope, true
}

// kinds returns how many runs have the combination's verdict, as in "in 4 of 5 runs".
func (v *view) kinds(c *matrix.Combination) string {
	if c.Verdict == nil {
		return ""
	}
	runs, same := v.runsOf(c), 0
	for _, r := range runs {
		if r.Outcome.Verdict.Kind == c.Verdict.Kind {
			same++
		}
	}
	switch {
	case len(runs) < 2:
		return ""
	case same == len(runs):
		return fmt.Sprintf("in all %d runs", same)
	}
	return fmt.Sprintf("in %d of %d runs", same, len(runs))
}

// growth is the class of a workload by its verdict, with a CSS class and a heading. Noise may
// change the kind of a verdict, but not the name of its growth.
type growth struct{ name, class, heading string }

var (
	grows     = growth{"grows", "harm", ""}
	crashes   = growth{"crashes", "harm", ""}
	settles   = growth{"does not grow", "partly", "Rises, then levels off"} // a jump or a plateau
	steady    = growth{"does not grow", "works", "Does not grow"}
	undecided = growth{"inconclusive", "unclear", "Undecided"}
)

func growthOf(c *matrix.Combination) growth {
	switch {
	case c == nil, c.Effect == compare.CouldNotApply, c.Effect == compare.NotApplicable && c.Comparison == nil:
		return undecided
	case c.Verdict == nil && len(c.Crashes) > 0:
		return crashes
	case c.Verdict == nil:
		return undecided
	}
	switch c.Verdict.Kind {
	case memory.Leak:
		return grows
	case memlayer.Crash:
		return crashes
	case memory.Plateau, memory.Jump:
		return settles
	case memory.Flat, memory.Sawtooth:
		return steady
	}
	return undecided
}
