// Package report renders the result of a matrix for people and for programs. A view has the rows, words
// and figures of the report; page.tmpl and text.tmpl render it. An amount that was not measured is a
// dash, never 0.
package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/memory"
)

// view is what a report says about a result.
type view struct {
	// Alarms are reasons to distrust the result. Calibrated is empty if there are alarms.
	Alarms     []string
	Calibrated string
	Runtimes   []*onRuntime
	Workloads  []workload
	Effects    []look
	// Machine and Size are a part of the Conditions.
	Conditions, Machine, Size []fact

	*matrix.Result
	names []string // of the runtimes, in the order of the result
	cells map[combinationID]*matrix.Combination
	runs  map[int]*matrix.RunResult
}

type combinationID struct{ runtime, workload, remedy string }

func idOf(c *matrix.Combination) combinationID { return combinationID{c.Runtime, c.Workload, c.Remedy} }

// onRuntime has the loops on a runtime in the order of the workloads.
type onRuntime struct {
	Index       int
	Name, Tally string
	Loops       []*loop
	Table       []tableRow
}

// workload has the loops of a workload by runtime; nil where it did not run.
type workload struct {
	matrix.Workload
	Loops []*loop
}

// loop is a workload on a runtime, with its remedies.
type loop struct {
	matrix.Workload
	Runtime int
	On      string // name of the runtime
	Anchor  string
	state
	// Figure is the amount behind the state, and Detail the same with intervals and causes of crashes.
	Figure, Detail string
	Facts, Cause   string
	Kept           string // memory after close
	Columns        []string
	// Rows has the baseline, then the remedies, the best first.
	Rows []*row
}

// row has the figures of a workload with a remedy.
type row struct {
	*matrix.Combination
	look
	Title, Anchor string
	// Figure is the ratio of the amount that the remedy should lower. Cost has the other ratios.
	Figure, Time, Cost string
	Figures            []figure
	Remark             string
	Curve              string // "step KiB step KiB ..." of the middle run
	Crashed            bool
	order              []float64 // among the rows with the same look
}

// figure is an amount with its ratio to the baseline.
type figure struct{ Value, Ratio string }

// tableRow is a remedy with a row for each loop; nil where it was not tried. Group is empty if it is
// that of the row above.
type tableRow struct {
	Group, Title string
	Cells        []*row
}

// column is an amount with its ratio to the baseline, and the goal of the remedies that should lower it.
type column struct {
	name  string
	goal  compare.Goal
	value func(*matrix.Combination) string
	ratio func(*compare.Comparison) compare.Ratio
}

// columns has the columns of a table of figures. The last ones are shown if a row has a value.
var columns = []column{
	{"slope", compare.LowerSlope, func(c *matrix.Combination) string { return slopeText(c, true) },
		func(c *compare.Comparison) compare.Ratio { return c.Slope }},
	{"step time", "", func(c *matrix.Combination) string { return duration(c.Figures.StepTime) },
		func(c *compare.Comparison) compare.Ratio { return c.StepTime }},
	{"peak", compare.LowerPeak, func(c *matrix.Combination) string { return size(c.Figures.Peak) },
		func(c *compare.Comparison) compare.Ratio { return c.Peak }},
	{"after close", compare.LowerReset, func(c *matrix.Combination) string { return size(c.Figures.Closed) },
		func(c *compare.Comparison) compare.Ratio { return c.Reset }},
	{"after trim", "", func(c *matrix.Combination) string { return size(c.Figures.Trimmed) }, nil},
	{"GPU memory", compare.LowerGPU, func(c *matrix.Combination) string { return size(c.Figures.GPU) },
		func(c *compare.Comparison) compare.Ratio { return c.GPU }},
	{"TensorFlow's pool", "", func(c *matrix.Combination) string { return size(c.Figures.Pool) }, nil},
	{"TensorFlow's GPU pool", "", func(c *matrix.Combination) string { return size(c.Figures.GPUPool) }, nil},
}

const always = 4 // number of columns that are always shown

// of returns the ratio of the amount, or an unknown one.
func (a column) of(c *matrix.Combination) compare.Ratio {
	if a.ratio == nil || c.Comparison == nil {
		return compare.Ratio{}
	}
	return a.ratio(c.Comparison)
}

func newView(r *matrix.Result) *view {
	v := &view{Result: r, Effects: looks[1:], cells: map[combinationID]*matrix.Combination{},
		runs: map[int]*matrix.RunResult{}}
	for i := range r.Combinations {
		c := &r.Combinations[i]
		v.cells[idOf(c)] = c
		if !slices.Contains(v.names, c.Runtime) {
			v.names = append(v.names, c.Runtime)
		}
	}
	for i := range r.Runs {
		v.runs[r.Runs[i].ID] = &r.Runs[i]
	}
	for _, w := range r.Workloads {
		v.Workloads = append(v.Workloads, workload{Workload: w})
	}
	for i, name := range v.names {
		rt := &onRuntime{Index: i, Name: name}
		for j := range v.Workloads {
			w := &v.Workloads[j]
			var l *loop
			if base := v.cells[combinationID{name, w.ID, matrix.Baseline}]; base != nil {
				l = v.loop(i, fmt.Sprintf("w%d-%d", j, i), w.Workload, base)
				rt.Loops = append(rt.Loops, l)
			}
			w.Loops = append(w.Loops, l)
		}
		rt.Tally, rt.Table = tally(rt.Loops), table(rt.Loops, r.Remedies)
		v.Runtimes = append(v.Runtimes, rt)
	}
	v.trust()
	v.Conditions = conditions(r)
	v.Machine, v.Size = v.Conditions[:6], v.Conditions[6:9]
	return v
}

func (v *view) loop(runtime int, anchor string, w matrix.Workload, base *matrix.Combination) *loop {
	w = w.For(base.Runtime)
	l := &loop{Workload: w, Runtime: runtime, On: base.Runtime, Anchor: anchor, state: stateOf(base),
		Facts: workloadFacts(w), Cause: v.cause(base), Kept: unknown}
	l.Figure, l.Detail = verdict(base)
	if base.Figures.Closed != nil {
		l.Kept = size(base.Figures.Closed) + when(base.Figures.Level != nil, " of "+size(base.Figures.Level))
	}
	for _, m := range v.Remedies {
		if c := v.cells[combinationID{base.Runtime, w.ID, m.ID}]; c != nil {
			l.Rows = append(l.Rows, v.row(c, m))
		}
	}
	slices.SortStableFunc(l.Rows, func(a, b *row) int {
		return cmp.Or(cmp.Compare(rank(a.effect), rank(b.effect)), slices.Compare(a.order, b.order))
	})
	for i, r := range l.Rows {
		r.Anchor = fmt.Sprintf("%s-%d", anchor, i)
	}
	for i, column := range columns {
		has := func(r *row) bool { return column.value(r.Combination) != unknown }
		if i >= always && !slices.ContainsFunc(l.Rows, has) {
			continue
		}
		l.Columns = append(l.Columns, column.name)
		for _, r := range l.Rows {
			ratio := column.of(r.Combination)
			r.Figures = append(r.Figures, figure{column.value(r.Combination), when(ratio.OK, times(ratio, true))})
		}
	}
	return l
}

func (v *view) row(c *matrix.Combination, m matrix.Remedy) *row {
	r := &row{Combination: c, look: lookOf(c), Title: cmp.Or(m.Title, m.ID), Remark: remark(c, m)}
	r.Curve, r.Crashed = v.curve(c), 2*len(c.Crashes) > len(c.Runs)
	if c.Remedy == matrix.Baseline {
		figure, _ := verdict(c)
		r.Word, r.Figure, r.Time = stateOf(c).Word, figure, when(c.Figures.StepTime != nil, duration(c.Figures.StepTime))
		return r
	}
	r.Cost = cost(c)
	name, goal := goalRatio(c)
	d := cmp.Or(c.Comparison, &compare.Comparison{})
	switch {
	case crashesToo(c):
		r.Figure = "crashes too"
	case c.Effect == compare.Harmful && d.RemedyCrashes > 0 && 2*d.RemedyCrashes >= d.Pairs:
		r.Figure = "crashes"
	case c.Effect == compare.Works && d.BaseCrashes > 0:
		r.Figure = "survives"
	case goal.OK:
		r.Figure = name + " " + times(goal, false)
	}
	if d.StepTime.OK {
		r.Time = "time " + times(d.StepTime, false)
	}
	switch c.Effect {
	case compare.Works: // the cheapest first; a smaller step cannot be compared
		r.order = []float64{when(lessWork(m), 1.0), nearest(d.StepTime), nearest(d.Peak)}
	case compare.Partly:
		r.order = []float64{goal.Estimate}
	}
	return r
}

// Worst returns the loops that grow or crash, then the others. Those that grow on purpose come last.
func (r *onRuntime) Worst() []*loop {
	rank := func(l *loop) int {
		return when(!l.Bad(), 1) + when(l.OnPurpose(), 2) - when(l.ID == matrix.User, 2)
	}
	list := slices.Clone(r.Loops)
	slices.SortStableFunc(list, func(a, b *loop) int { return cmp.Compare(rank(a), rank(b)) })
	return list
}

// Bad reports whether the loop grows or crashes, and OnPurpose whether it is a calibration that does.
func (l *loop) Bad() bool       { return l.state.Class == "harm" }
func (l *loop) OnPurpose() bool { return l.Leak != nil && *l.Leak > 0 }

// Best returns the cheapest remedy that works, or the best one that works in part; nil if there is none.
func (l *loop) Best() *row {
	if len(l.Rows) > 1 && (l.Rows[1].effect == compare.Works || l.Rows[1].effect == compare.Partly) {
		return l.Rows[1]
	}
	return nil
}

// HasCurves reports whether the loop has a chart.
func (l *loop) HasCurves() bool {
	return slices.ContainsFunc(l.Rows, func(r *row) bool { return r.Curve != "" })
}

// tally counts the loops that grow or crash, and those of them that a remedy cures. Calibrations do not
// count.
func tally(loops []*loop) string {
	count, all, cured := map[string]int{}, 0, 0
	for _, l := range loops {
		if best := l.Best(); !l.OnPurpose() {
			all++
			count[l.growth]++
			cured += when(l.Bad() && best != nil && best.effect == compare.Works, 1)
		}
	}
	bad := count["grows"] + count["crashes"]
	text := fmt.Sprintf("%d of %d grow, %d crash", count["grows"], all, count["crashes"])
	if bad > 0 {
		text += fmt.Sprintf("; a remedy works for %d of these %d", cured, bad)
	}
	return text
}

// table returns the remedies that were tried.
func table(loops []*loop, remedies []matrix.Remedy) (list []tableRow) {
	for _, m := range remedies {
		line, tried := tableRow{m.Group, cmp.Or(m.Title, m.ID), make([]*row, len(loops))}, false
		for i, l := range loops {
			if at := slices.IndexFunc(l.Rows, func(r *row) bool { return r.Remedy == m.ID }); at >= 0 {
				line.Cells[i], tried = l.Rows[at], true
			}
		}
		if tried {
			list = append(list, line)
		}
	}
	for i := len(list) - 1; i > 0; i-- {
		if list[i].Group == list[i-1].Group {
			list[i].Group = ""
		}
	}
	return list
}

func (v *view) runsOf(c *matrix.Combination) (list []*matrix.RunResult) {
	for _, id := range c.Runs {
		if r := v.runs[id]; r != nil {
			list = append(list, r)
		}
	}
	return list
}

// sampled returns the run that represents a combination, or the one that a thinned result has the series of; else nil.
func (v *view) sampled(c *matrix.Combination) *matrix.RunResult {
	runs := v.runsOf(c)
	if len(runs) > 0 {
		runs = append([]*matrix.RunResult{matrix.Middle(runs)}, runs...)
	}
	for _, r := range runs {
		if r.Samples() > 0 {
			return r
		}
	}
	return nil
}

// curve returns the anonymous memory of the run that represents a combination.
func (v *view) curve(c *matrix.Combination) string {
	var points []string
	if r := v.sampled(c); r != nil {
		for _, s := range r.Series.Samples() {
			if held := s.Get(memory.Anon); held.OK {
				points = append(points, fmt.Sprint(s.Step, int64(held.Bytes/memory.KiB)))
			}
		}
	}
	return when(len(points) > 1, strings.Join(points, " "))
}
