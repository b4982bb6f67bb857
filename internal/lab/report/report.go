// Package report shows what a matrix found, to people and to programs.
//
// [HTML] is the whole answer in one file that works offline, [Text] the same for
// a terminal, [Claims] the ledger of what people say in Markdown, [Benchmark] the
// runs in the format of Go benchmarks, and [Compare] sets two matrices against
// each other. All of them read a matrix.Result and change nothing in it; none
// measures, judges or gives advice that the result does not hold. An amount that
// was not measured is shown as a dash, never as 0.
package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/lab/measure"
	"steadyfit/matrix"
	"steadyfit/memory"
)

// unknown stands for an amount that was not measured.
const unknown = "–"

// view is a result with what is looked up all the time.
type view struct {
	*matrix.Result
	runtimes  []string
	workloads []matrix.Workload
	remedies  []matrix.Remedy
	cells     map[cellKey]*matrix.Cell
	runs      map[int]*matrix.RunResult
	remedy    map[string]matrix.Remedy
	workload  map[string]matrix.Workload
}

type cellKey struct{ runtime, workload, remedy string }

func newView(r *matrix.Result) *view {
	v := &view{Result: r, cells: map[cellKey]*matrix.Cell{}, runs: map[int]*matrix.RunResult{},
		remedy: map[string]matrix.Remedy{}, workload: map[string]matrix.Workload{}}
	for _, w := range r.Workloads {
		v.addWorkload(w)
	}
	// The baseline comes first, whether it is declared or not.
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
	for i := range r.Cells {
		c := &r.Cells[i]
		found[c.Runtime] = true
		v.cells[cellKey{c.Runtime, c.Workload, c.Remedy}] = c
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

func (v *view) cell(runtime, workload, remedy string) *matrix.Cell {
	return v.cells[cellKey{runtime, workload, remedy}]
}

func (v *view) title(remedy string) string { return cmp.Or(v.remedy[remedy].Title, remedy) }

// runsOf are the runs of a cell that the result holds.
func (v *view) runsOf(c *matrix.Cell) []*matrix.RunResult {
	var list []*matrix.RunResult
	for _, id := range c.Runs {
		if r := v.runs[id]; r != nil {
			list = append(list, r)
		}
	}
	return list
}

// phase is the median of anonymous memory at a turning point, over the runs of
// a cell that tell it.
func (v *view) phase(c *matrix.Cell, name string) memory.Reading {
	return v.phaseOf(c, name, memory.Anon)
}

// phaseOf is phase for any layer.
func (v *view) phaseOf(c *matrix.Cell, name string, layer memory.Layer) memory.Reading {
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
	return memory.Known(memory.Bytes(math.Round(measure.Median(values))))
}

// estimated is whether a cell's slope was estimated at all.
func estimated(c *matrix.Cell) bool {
	if c.Figures.Slope != (memory.Interval{}) {
		return true
	}
	return c.Verdict != nil && c.Verdict.Kind != memory.Crash && c.Verdict.NoiseFloor+float64(c.Verdict.Samples) > 0
}

// slope of a cell in bytes per step, with the range over its runs; of a single
// run, with the interval of its verdict.
func slope(c *matrix.Cell) (memory.Interval, bool) {
	if !estimated(c) {
		return memory.Interval{}, false
	}
	if len(c.Runs) < 2 && c.Verdict != nil {
		return c.Verdict.Slope, true
	}
	return c.Figures.Slope, true
}

// kinds counts the verdicts over the runs of a cell: "leak in 4 of 5 runs".
func (v *view) kinds(c *matrix.Cell) string {
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

// growth says which workloads belong together in an answer.
type growth int

const (
	grows   growth = iota // without end, as far as was seen
	dies                  // before its time
	settles               // rises, and stops
	steady
	undecided
)

func growthOf(c *matrix.Cell) growth {
	switch {
	case c == nil, c.Effect == memory.CouldNotApply, c.Effect == memory.NotApplicable && c.Comparison == nil:
		return undecided
	case c.Verdict == nil && len(c.Crashes) > 0:
		return dies
	case c.Verdict == nil:
		return undecided
	}
	switch c.Verdict.Kind {
	case memory.Leak:
		return grows
	case memory.Crash:
		return dies
	case memory.Plateau, memory.Jump:
		return settles
	case memory.Flat, memory.Sawtooth:
		return steady
	}
	return undecided
}

// answer is what there is to say about a workload on a runtime.
type answer struct {
	runtime  string
	workload matrix.Workload
	base     *matrix.Cell
	growth   growth
	// removes, lowers and harms are cells by what they do to the growth (or to
	// the crash), the cheapest first; nothing are those meant for the growth that
	// leave it as it is, and unseen those of them that may not have been in force.
	removes, lowers, nothing, unseen, harms, unclear []*matrix.Cell
	// peak are cells that work on the peak, whatever the growth.
	peak []*matrix.Cell
}

// onGrowth is what a cell did to the growth: its effect if it was meant for that,
// else what its slope alone says. A run that dies counts for every goal.
func (v *view) onGrowth(c *matrix.Cell, g growth) memory.Effect {
	goal := v.goal(c)
	switch c.Effect {
	case memory.CouldNotApply:
		return c.Effect
	case memory.NotApplicable:
		// A remedy for the slope is not applicable to what does not grow, but one
		// that makes no sense here is neither.
		return c.Effect
	}
	if goal == memory.LowerSlope || g == dies || goal == "" {
		return c.Effect
	}
	if c.Comparison != nil && c.Comparison.Slope.OK {
		return c.Comparison.Slope.Effect
	}
	return ""
}

func (v *view) goal(c *matrix.Cell) memory.Goal {
	if c.Comparison != nil && c.Comparison.Goal != "" {
		return c.Comparison.Goal
	}
	return v.remedy[c.Remedy].Goal
}

func (v *view) answer(runtime string, w matrix.Workload) answer {
	a := answer{runtime: runtime, workload: w, base: v.cell(runtime, w.ID, matrix.Baseline)}
	a.growth = growthOf(a.base)
	for _, m := range v.remedies {
		c := v.cell(runtime, w.ID, m.ID)
		if c == nil || m.ID == matrix.Baseline {
			continue
		}
		none := &a.nothing
		if c.Unverified != "" {
			none = &a.unseen
		}
		if a.growth == dies && diesToo(c) {
			*none = append(*none, c)
		} else if a.growth == grows || a.growth == dies {
			switch v.onGrowth(c, a.growth) {
			case memory.Works:
				a.removes = append(a.removes, c)
			case memory.Partly:
				a.lowers = append(a.lowers, c)
			case memory.NoEffect:
				if v.goal(c) == memory.LowerSlope || a.growth == dies {
					*none = append(*none, c)
				}
			case memory.Harmful:
				a.harms = append(a.harms, c)
			case memory.Unclear:
				if v.goal(c) == memory.LowerSlope || a.growth == dies {
					a.unclear = append(a.unclear, c)
				}
			}
		}
		if c.Comparison == nil {
			continue
		}
		if p := c.Comparison.Peak; p.OK && p.Effect == memory.Works {
			a.peak = append(a.peak, c)
		}
	}
	slices.SortStableFunc(a.removes, v.byCost)
	slices.SortStableFunc(a.lowers, func(x, y *matrix.Cell) int { return cmp.Compare(slopeLeft(x), slopeLeft(y)) })
	slices.SortStableFunc(a.peak, func(x, y *matrix.Cell) int {
		return cmp.Compare(x.Comparison.Peak.Estimate, y.Comparison.Peak.Estimate)
	})
	return a
}

// diesToo is whether the workload dies without the remedy and with it.
func diesToo(c *matrix.Cell) bool {
	d := c.Comparison
	return d != nil && d.Pairs > 0 && 2*d.BaseCrashes >= d.Pairs && 2*d.RemedyCrashes >= d.Pairs
}

// answers on a runtime, in the order of the workloads, but those that the matrix
// makes grow on purpose last.
func (v *view) answers(runtime string) []answer {
	var list, calibration []answer
	for _, w := range v.workloads {
		a := v.answer(runtime, w)
		switch {
		case a.base == nil:
		case a.onPurpose():
			calibration = append(calibration, a)
		default:
			list = append(list, a)
		}
	}
	return append(list, calibration...)
}

// onPurpose is whether the growth is built in, to test the instrument.
func (a answer) onPurpose() bool { return a.workload.Leak != nil && *a.workload.Leak > 0 }

// tally says how many workloads grow: "4 of 7 workloads grow, 1 dies; each has a
// remedy that cures it". Growth that is built in does not count.
func tally(answers []answer) string {
	n, growing, dying, removed, open := 0, 0, 0, 0, false
	for _, a := range answers {
		if a.onPurpose() {
			continue
		}
		n++
		switch a.growth {
		case grows:
			growing++
		case dies:
			dying++
		}
		if len(a.removes) > 0 {
			removed++
		}
		open = open || len(a.unclear)+len(a.unseen) > 0
	}
	verb := "grow"
	if growing == 1 {
		verb = "grows"
	}
	text := fmt.Sprintf("%d of %s %s", growing, count(n, "workload"), verb)
	if growing == 0 {
		text = "no workload grows"
		if n > 0 {
			text = fmt.Sprintf("none of %s grows", count(n, "workload"))
		}
	}
	if dying > 0 {
		text += ", " + plural(dying, "dies", "die")
	}
	switch bad := growing + dying; {
	case bad == 0:
	case removed == bad && bad == 1:
		text += "; a remedy cures it"
	case removed == bad:
		text += "; each has a remedy that cures it"
	case removed == 0 && open:
		text += "; no remedy is shown to cure that"
	case removed == 0:
		text += "; no remedy that was tried cures that"
	default:
		text += fmt.Sprintf("; %d of the %d %s a remedy that cures it", removed, bad, map[bool]string{true: "has", false: "have"}[removed == 1])
	}
	return text
}

// slopeLeft is the ratio of slopes, or more than any if it is not known.
func slopeLeft(c *matrix.Cell) float64 {
	if c.Comparison == nil || !c.Comparison.Slope.OK {
		return math.Inf(1)
	}
	return c.Comparison.Slope.Estimate
}

// byCost compares what two remedies cost: step time first, in twentieths, since
// finer differences are noise, then the peak. A remedy that makes a step do less
// comes last, since the time of its steps cannot be compared.
func (v *view) byCost(a, b *matrix.Cell) int {
	cost := func(r memory.Ratio) float64 {
		switch {
		case !r.OK:
			return math.Inf(1)
		case alike(r):
			return 1
		}
		return math.Round(20*r.Estimate) / 20
	}
	amount := func(p *int64) float64 {
		if p == nil {
			return math.Inf(1)
		}
		return float64(*p)
	}
	less := func(c *matrix.Cell) int {
		if v.lessWork(c.Remedy) {
			return 1
		}
		return 0
	}
	var none memory.Comparison
	x, y := cmp.Or(a.Comparison, &none), cmp.Or(b.Comparison, &none)
	return cmp.Or(cmp.Compare(less(a), less(b)), cmp.Compare(cost(x.StepTime), cost(y.StepTime)), cmp.Compare(cost(x.Peak), cost(y.Peak)),
		cmp.Compare(amount(a.Figures.Peak), amount(b.Figures.Peak)))
}

func alike(r memory.Ratio) bool { return r.OK && r.Low >= 0.9 && r.High <= 1.1 }

// barren are the remedies that are meant for growth and did nothing on any
// workload that grows on a runtime, though they could be applied there and nothing
// raises doubt that they were: by the workloads that say so. Growth that is built in to test the instrument says nothing
// of them.
func (v *view) barren(answers []answer) []labelled {
	var list []labelled
	for _, m := range v.remedies {
		var nothing []string
		otherwise := false
		for _, a := range answers {
			has := func(cells []*matrix.Cell) bool {
				return slices.ContainsFunc(cells, func(c *matrix.Cell) bool { return c.Remedy == m.ID })
			}
			switch {
			case a.growth != grows || a.onPurpose():
			case has(a.nothing):
				nothing = append(nothing, a.workload.ID)
			case has(a.removes), has(a.lowers), has(a.unclear), has(a.harms):
				otherwise = true
			}
		}
		if len(nothing) == 0 || otherwise {
			continue
		}
		label := and(nothing)
		i := slices.IndexFunc(list, func(l labelled) bool { return l.Label == label })
		if i < 0 {
			i = len(list)
			list = append(list, labelled{Label: label})
		}
		list[i].Items = append(list[i].Items, linked{Name: m.ID, Text: v.title(m.ID)})
	}
	// Who did nothing on many workloads says more than who did nothing on one.
	slices.SortStableFunc(list, func(x, y labelled) int {
		return cmp.Compare(strings.Count(y.Label, ","), strings.Count(x.Label, ","))
	})
	return list
}

// alarms are what a reader must know before anything else.
func (v *view) alarms() []string {
	var list []string
	for _, c := range v.Calibration {
		if !c.OK {
			list = append(list, fmt.Sprintf("Calibration failed on %s, %s: %s", c.Runtime, c.Workload, calibrationText(c)))
		}
	}
	if len(v.Calibration) == 0 {
		list = append(list, "There is no calibration: nothing shows that the instrument can be trusted.")
	}
	if !v.Complete {
		list = append(list, fmt.Sprintf("The matrix is incomplete: it ended after %s, before all of its runs were done.", count(len(v.Runs), "run")))
	}
	return list
}

// calibrated says in a sentence that the instrument holds; empty if it does not.
func (v *view) calibrated() string {
	var leaks, controls int
	off := 0.0
	for _, c := range v.Calibration {
		switch {
		case !c.OK:
			return ""
		case c.Expected == 0:
			controls++
		default:
			leaks++
			off = max(off, math.Abs(c.Slope.Estimate/c.Expected-1))
		}
	}
	var parts []string
	if leaks > 0 {
		parts = append(parts, fmt.Sprintf("a leak of known size was recovered to within %.2f%%", max(100*off, 0.01)))
	}
	if controls > 0 {
		parts = append(parts, "the control without a leak was called free of growth")
	}
	if len(parts) == 0 {
		return ""
	}
	on := ""
	if names := v.calibratedOn(); len(names) > 0 {
		on = ", on " + and(names)
	}
	return "The instrument holds: " + strings.Join(parts, ", and ") + on + "."
}

func (v *view) calibratedOn() []string {
	var names []string
	for _, c := range v.Calibration {
		if !slices.Contains(names, c.Runtime) {
			names = append(names, c.Runtime)
		}
	}
	return names
}

func calibrationText(c matrix.Calibration) string {
	if c.Text != "" {
		return sentence(c.Text)
	}
	return fmt.Sprintf("expected %s, measured %s.", rate(memory.Interval{Estimate: c.Expected, Low: c.Expected, High: c.Expected}, false), rate(c.Slope, true))
}

// machine is the environment in a line.
func (v *view) machine() string {
	e := v.Environment
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if e.CPU != "" {
		add("%s", e.CPU)
	}
	if e.Cores > 0 {
		add("%s", count(e.Cores, "core"))
	}
	if e.Memory > 0 {
		add("%s of memory", memory.Bytes(e.Memory))
	}
	if e.Limit > 0 {
		add("limited to %s", memory.Bytes(e.Limit))
	}
	if len(e.GPUs) > 0 {
		add("%s", strings.Join(e.GPUs, ", "))
	} else {
		add("no GPU")
	}
	versions := map[string]bool{}
	var names []string
	for _, name := range v.runtimes {
		if version := e.TensorFlow[name]; version != "" {
			names = append(names, version+" ("+name+")")
			versions[version] = true
		}
	}
	switch len(versions) {
	case 0:
	case 1:
		add("TensorFlow %s", strings.Fields(names[0])[0])
	default:
		add("TensorFlow %s", strings.Join(names, ", "))
	}
	if e.Keras != "" {
		add("Keras %s", e.Keras)
	}
	if e.OS != "" {
		add("%s/%s", e.OS, e.Arch)
	}
	return strings.Join(parts, " · ")
}

// when is the time and the size of the matrix in a line. Runs may have been taken over
// from an earlier matrix, so the time is that of the first of them.
func (v *view) when() string {
	var parts []string
	began, took := v.Started, 0.0
	for i := range v.Runs {
		took += v.Runs[i].Seconds
		if at := v.Runs[i].Started; !at.IsZero() && at.Before(began) {
			began = at
		}
	}
	if !began.IsZero() {
		parts = append(parts, began.UTC().Format("2 January 2006 15:04 UTC"))
	}
	remedies := len(v.remedies) - 1
	parts = append(parts, fmt.Sprintf("%s × %s", count(len(v.workloads), "workload"), plural(remedies, "remedy", "remedies")))
	if v.Settings.Pairs > 0 {
		parts = append(parts, count(v.Settings.Pairs, "pair")+" per cell")
	}
	runs := count(len(v.Runs), "run")
	if took > 0 {
		runs += " in " + lasted(time.Duration(took*float64(time.Second)))
	}
	parts = append(parts, runs)
	if v.Settings.Limit > 0 {
		parts = append(parts, "runs limited to "+memory.Bytes(v.Settings.Limit).String())
	}
	if v.Settings.Jobs > 1 {
		parts = append(parts, fmt.Sprintf("%d runs at a time", v.Settings.Jobs))
	}
	if v.Version != "" {
		parts = append(parts, "steadyfit "+v.Version)
	}
	return strings.Join(parts, " · ")
}
