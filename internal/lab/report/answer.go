package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/texts"
)

// answer has the remedies for a workload on a runtime.
type answer struct {
	Runtime  string
	Workload matrix.Workload
	Base     *matrix.Combination
	growth   growth
	// Removes, lowers, nothing, harms and unclear are the remedies by their effect on the growth or
	// the crash; Removes has the cheapest first. unseen are the remedies without an effect that may
	// not have been applied.
	Removes, lowers, nothing, unseen, harms, unclear []*matrix.Combination
	// Peak are remedies that lower the peak, whether the workload grows or not.
	Peak []*matrix.Combination
}

// Answer returns a. Templates call it on types that embed answer.
func (a answer) Answer() answer { return a }

// Best returns the cheapest remedy that removes the growth, or nil.
func (a answer) Best() *matrix.Combination {
	if len(a.Removes) == 0 {
		return nil
	}
	return a.Removes[0]
}

// Crashes and Grows report what the workload does without a remedy. OnPurpose reports whether the
// workload is a calibration, which grows on purpose.
func (a answer) Crashes() bool   { return a.growth == crashes }
func (a answer) Grows() bool     { return a.growth == grows }
func (a answer) OnPurpose() bool { return a.Workload.Leak != nil && *a.Workload.Leak > 0 }

// line is a fact of an answer: a term with a description on a page, or a sentence on a
// terminal.
type line struct {
	Class, Label string // on a page
	text, color  string // on a terminal
	Items        []item
	More         int    // number of items that are left out
	Note         string // text in place of items
	After        string // text after the items on a page
}

// item is a remedy with the text before and after its name.
type item struct{ ID, Title, Before, After string }

// mostNames is the maximum number of remedies on a page in a line without costs.
const mostNames = 16

func (v *view) line(class, label, text, color string, cells []*matrix.Combination, most int,
	describe func(*matrix.Combination) (before, after string)) line {
	l := line{Class: class, Label: label, text: text, color: color}
	for i, c := range cells {
		if i == most {
			l.More = len(cells) - i
			break
		}
		it := item{ID: c.Remedy, Title: v.title(c.Remedy)}
		if describe != nil {
			it.Before, it.After = describe(c)
		}
		l.Items = append(l.Items, it)
	}
	return l
}

func (v *view) names(class, label, text, color string, cells []*matrix.Combination) line {
	return v.line(class, label, text, color, cells, len(cells), nil)
}

// Names returns the remedies of a line without costs, or nil.
func (l line) Names() []item {
	if len(l.Items) == 0 || l.Items[0].After != "" {
		return nil
	}
	return l.Items[:min(len(l.Items), mostNames)]
}

// Rest returns the number of remedies that a page leaves out.
func (l line) Rest() int {
	if names := l.Names(); names != nil {
		return len(l.Items) - len(names)
	}
	return l.More
}

// Lines returns the remedies of an answer by their effect.
func (v *view) Lines(a answer) []line {
	removed, text, nothing, did, most := "Removed by", "No remedy that was tried removes it.", "= Does nothing",
		"Did nothing: ", 3
	if a.Crashes() {
		removed, text, nothing, did, most = "Survives with", "It survives with no remedy that was tried.",
			"= Crashes too with", "It crashes too with ", 8
	}
	if len(a.unclear)+len(a.unseen) > 0 {
		text = "No remedy is shown to " + map[bool]string{false: "remove", true: "save"}[a.Crashes()] + " it."
	}
	first := v.line("works", "✓ "+removed, removed+" ", green, a.Removes, most,
		func(c *matrix.Combination) (string, string) { return "", v.Cost(c) })
	first.After = v.Unlimited(a)
	if len(a.Removes) == 0 {
		first.Label, first.Note, first.color = removed, text, yellow
	}
	lines := []line{first,
		v.line("partly", "◐ Lowered by", "Lowered by ", "", a.lowers, 2, func(c *matrix.Combination) (string, string) {
			left := ""
			if c.Effect == compare.Partly && c.Comparison != nil && c.Comparison.Slope.OK {
				left = "slope " + times(c.Comparison.Slope, false) + "; "
			}
			return "", left + v.Cost(c)
		}),
		v.names("none", nothing, did, "", a.nothing),
		v.unseenLine(a.unseen),
		v.names("harm", "✗ Worse with", "Worse: ", red, a.harms),
		v.names("unclear", "? Unclear", "Unclear: ", "", a.unclear),
	}
	return slices.DeleteFunc(lines, line.empty)
}

// best returns the line with the best remedy and its cost, or the line that there is none.
func best(lines []line) line {
	for _, l := range lines {
		if len(l.Items) > 0 && l.Items[0].After != "" {
			return l
		}
	}
	return lines[0]
}

func (l line) empty() bool { return len(l.Items) == 0 && l.Note == "" }

// Sentence returns the line for a terminal, and Color its colour.
func (l line) Sentence() string {
	if len(l.Items) == 0 {
		return l.Note
	}
	var parts []string
	for _, it := range l.Items {
		part := strings.TrimLeft(it.Before+" "+it.ID, " ")
		if it.After != "" {
			part += " (" + it.After + ")"
		}
		parts = append(parts, part)
	}
	if l.More > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", l.More))
	}
	return l.text + strings.Join(parts, ", ") + "."
}

func (l line) Color() string { return mark(l.color) }

func (v *view) unseenLine(cells []*matrix.Combination) line {
	return v.names("unclear", "=? Not verified, no difference seen", "Not verified, no difference seen: ", "", cells)
}

// Tried reports whether a remedy was tried.
func (a answer) Tried() bool {
	return len(a.Removes)+len(a.lowers)+len(a.nothing)+len(a.unseen)+len(a.harms)+len(a.unclear) > 0
}

// onGrowth returns the effect of a remedy on the growth. If the remedy has another goal, it is the
// effect on the slope. A crash counts for every goal.
func (v *view) onGrowth(c *matrix.Combination, g growth) compare.Effect {
	switch goal := v.goal(c); {
	case c.Effect == compare.CouldNotApply, c.Effect == compare.NotApplicable, goal == compare.LowerSlope, goal == "",
		g == crashes:
		return c.Effect
	case c.Comparison != nil && c.Comparison.Slope.OK:
		return c.Comparison.Slope.Effect
	}
	return ""
}

func (v *view) goal(c *matrix.Combination) compare.Goal {
	if c.Comparison != nil && c.Comparison.Goal != "" {
		return c.Comparison.Goal
	}
	return v.remedy[c.Remedy].Goal
}

func (v *view) answer(runtime string, w matrix.Workload) answer {
	a := answer{Runtime: runtime, Workload: w, Base: v.combination(runtime, w.ID, matrix.Baseline)}
	a.growth = growthOf(a.Base)
	for _, m := range v.remedies {
		c := v.combination(runtime, w.ID, m.ID)
		if c == nil || m.ID == matrix.Baseline {
			continue
		}
		if c.Comparison != nil && c.Comparison.Peak.OK && c.Comparison.Peak.Effect == compare.Works {
			a.Peak = append(a.Peak, c)
		}
		if a.growth != grows && !a.Crashes() {
			continue
		}
		none := &a.nothing
		if c.Unverified != "" {
			none = &a.unseen
		}
		effect, meant := v.onGrowth(c, a.growth), v.goal(c) == compare.LowerSlope || a.Crashes()
		switch {
		case a.Crashes() && crashesToo(c), effect == compare.NoEffect && meant:
			*none = append(*none, c)
		case effect == compare.Works:
			a.Removes = append(a.Removes, c)
		case effect == compare.Partly:
			a.lowers = append(a.lowers, c)
		case effect == compare.Harmful:
			a.harms = append(a.harms, c)
		case effect == compare.Unclear && meant:
			a.unclear = append(a.unclear, c)
		}
	}
	slices.SortStableFunc(a.Removes, v.byCost)
	slices.SortStableFunc(a.lowers, func(x, y *matrix.Combination) int { return cmp.Compare(slopeLeft(x), slopeLeft(y)) })
	slices.SortStableFunc(a.Peak, func(x, y *matrix.Combination) int {
		return cmp.Compare(x.Comparison.Peak.Estimate, y.Comparison.Peak.Estimate)
	})
	return a
}

// crashesToo reports whether the workload crashes without the remedy and with it.
func crashesToo(c *matrix.Combination) bool {
	d := c.Comparison
	return d != nil && d.Pairs > 0 && 2*d.BaseCrashes >= d.Pairs && 2*d.RemedyCrashes >= d.Pairs
}

// answers returns the answers on a runtime. Calibrations come last.
func (v *view) answers(runtime string) []answer {
	var list, calibration []answer
	for _, w := range v.workloads {
		a := v.answer(runtime, w)
		switch {
		case a.Base == nil:
		case a.OnPurpose():
			calibration = append(calibration, a)
		default:
			list = append(list, a)
		}
	}
	return append(list, calibration...)
}

// labelled is a list with a heading.
type labelled struct {
	Label   string
	Answers []answer
	Items   []matrix.Remedy
}

func addTo(list []labelled, label string, m matrix.Remedy) []labelled {
	i := slices.IndexFunc(list, func(l labelled) bool { return l.Label == label })
	if i < 0 {
		i = len(list)
		list = append(list, labelled{Label: label})
	}
	list[i].Items = append(list[i].Items, m)
	return list
}

// Tally counts the workloads that grow, as "4 of 7 workloads grow, 1 crashes; each has a remedy
// that cures it". Calibrations do not count.
func (r onRuntime) Tally() (string, error) {
	var n struct {
		All, Growing, Crashing, Removed int
		Open                            bool
	}
	for _, a := range r.of(func(a answer) bool { return !a.OnPurpose() }) {
		n.All++
		if a.Grows() {
			n.Growing++
		}
		if a.Crashes() {
			n.Crashing++
		}
		if len(a.Removes) > 0 {
			n.Removed++
		}
		n.Open = n.Open || len(a.unclear)+len(a.unseen) > 0
	}
	return phrase("tally", n)
}

// slopeLeft returns the ratio of the slope with a remedy to the slope without it; it is infinite if
// unknown.
func slopeLeft(c *matrix.Combination) float64 {
	if c.Comparison == nil || !c.Comparison.Slope.OK {
		return math.Inf(1)
	}
	return c.Comparison.Slope.Estimate
}

// byCost compares the step times of two remedies, then their peaks. Differences below 5% are noise.
// A remedy whose steps do less work comes last, because its step time cannot be compared.
func (v *view) byCost(a, b *matrix.Combination) int {
	cost := func(r compare.Ratio) float64 {
		switch {
		case !r.OK:
			return math.Inf(1)
		case alike(r):
			return 1
		}
		return math.Round(20*r.Estimate) / 20
	}
	rank := func(c *matrix.Combination) []float64 {
		d, less, peak := cmp.Or(c.Comparison, &compare.Comparison{}), 0.0, math.Inf(1)
		if v.lessWork(c.Remedy) {
			less = 1
		}
		if c.Figures.Peak != nil {
			peak = float64(*c.Figures.Peak)
		}
		return []float64{less, cost(d.StepTime), cost(d.Peak), peak}
	}
	return slices.Compare(rank(a), rank(b))
}

func alike(r compare.Ratio) bool { return r.OK && r.Low >= 0.9 && r.High <= 1.1 }

// lessWork reports whether a step does less work with a remedy.
func (v *view) lessWork(remedy string) bool {
	params := v.remedy[remedy].Params
	return params["batch_divide"] != "" || params["batch"] != ""
}

// barren lists the remedies that changed nothing on any growing workload, with the workloads.
func (v *view) barren(answers []answer) []labelled {
	var list []labelled
	for _, m := range v.remedies {
		var nothing []string
		otherwise := false
		for _, a := range answers {
			has := func(cells []*matrix.Combination) bool {
				return slices.ContainsFunc(cells, func(c *matrix.Combination) bool { return c.Remedy == m.ID })
			}
			switch {
			case a.growth != grows || a.OnPurpose():
			case has(a.nothing):
				nothing = append(nothing, a.Workload.ID)
			case has(a.Removes), has(a.lowers), has(a.unclear), has(a.harms):
				otherwise = true
			}
		}
		if len(nothing) == 0 || otherwise {
			continue
		}
		list = addTo(list, texts.List(nothing, "and"), m)
	}
	slices.SortStableFunc(list, func(x, y labelled) int { // most workloads first
		return cmp.Compare(strings.Count(y.Label, ","), strings.Count(x.Label, ","))
	})
	return list
}

// Unlimited describes the memory and time of a workload that crashes at its memory limit, from
// the same workload without the limit.
func (v *view) Unlimited(a answer) string {
	like, ok := v.workload[a.Workload.Like]
	if !a.Crashes() || !ok || like.For(a.Runtime).Limit > 0 || v.Settings.Limit > 0 {
		return ""
	}
	c := v.combination(a.Runtime, like.ID, matrix.Baseline)
	if c == nil || c.Figures.Peak == nil || c.Figures.StepTime == nil {
		return ""
	}
	return fmt.Sprintf("Without the limit (%s): peak %s; %s per step.", like.ID, size(c.Figures.Peak),
		duration(c.Figures.StepTime))
}
