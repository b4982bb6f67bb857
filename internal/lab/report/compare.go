package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"steadyfit/matrix"
	"steadyfit/memory"
)

// Agreement describes how far two matrices agree.
type Agreement struct {
	// Cells are in both matrices and were measured in at least one. Same of them have the same
	// effect.
	Cells int `json:"cells"`
	Same  int `json:"same"`
	// Open of the Same cells are unclear in both.
	Open int `json:"open"`
	// Baselines were judged in both. SameBaselines of them are of the same class: they grow, do
	// not grow, crash, or are inconclusive. SameKinds of these also have the same kind of
	// verdict; the kinds of memory that does not grow differ by noise.
	Baselines     int `json:"baselines"`
	SameBaselines int `json:"same_baselines"`
	SameKinds     int `json:"same_kinds"`
	// OnlyA and OnlyB count cells that the other matrix lacks.
	OnlyA int `json:"only_a"`
	OnlyB int `json:"only_b"`
	// Disagreements are in the order of the first matrix. OtherKinds are workloads of the same
	// class whose kinds differ.
	Disagreements []Disagreement `json:"disagreements"`
	OtherKinds    []Disagreement `json:"other_kinds"`
}

// Share returns the fraction of equal verdicts, of cells and of baselines, from 0 to 1; 1 if
// there is nothing to compare.
func (a Agreement) Share() float64 {
	if a.Cells+a.Baselines == 0 {
		return 1
	}
	return float64(a.Same+a.SameBaselines) / float64(a.Cells+a.Baselines)
}

// Unexplained counts disagreements without an inconclusive verdict that are not near a
// threshold.
func (a Agreement) Unexplained() int {
	n := 0
	for _, d := range a.Disagreements {
		if d.Why == "" {
			n++
		}
	}
	return n
}

// Disagreement is a cell on which two matrices differ.
type Disagreement struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// A and B are the effects, or the kinds of verdict of a baseline, with the figures behind
	// them.
	A string `json:"a"`
	B string `json:"b"`
	// Why says that one side was undecided, or that the figures agree and lie on both sides of a
	// threshold. If it is empty, the matrices contradict each other.
	Why string `json:"why"`
}

// Compare writes the agreement of two matrices. Where they differ, it writes both figures and
// whether the difference is more than chance. Cells that neither matrix has measured, and those
// that only one of them has, do not count.
func Compare(w io.Writer, a, b *matrix.Result, o TextOptions) (Agreement, error) {
	agreement := agree(newView(a), newView(b))
	if o.Width == 0 {
		o.Width = 80
	}
	t := &text{view: newView(a), out: bufio.NewWriter(w), width: max(o.Width, 40), color: o.Color}
	sides := map[string]*view{"A": t.view, "B": newView(b)}
	for _, name := range []string{"A", "B"} {
		t.wrap(name+": ", sides[name].When())
		t.wrap("   ", sides[name].Machine())
	}
	for _, name := range []string{"A", "B"} {
		for _, alarm := range sides[name].Alarms() {
			t.paragraph("! ", "in "+name+": "+alarm, red)
		}
	}
	t.line("")
	share := func(same, all int) string {
		if all == 0 {
			return "none to compare"
		}
		return fmt.Sprintf("%d of %d (%.1f%%)", same, all, 100*float64(same)/float64(all))
	}
	open := ""
	if agreement.Open > 0 {
		open = fmt.Sprintf("; %d of them unclear in both", agreement.Open)
	}
	t.wrap("", "Remedies with the same effect: "+share(agreement.Same, agreement.Cells)+open+".")
	t.wrap("", "Workloads as they are, of the same class (grows, does not grow, dies, inconclusive): "+share(agreement.SameBaselines, agreement.Baselines)+
		fmt.Sprintf("; %d of them with the same kind of verdict.", agreement.SameKinds))
	t.wrap("", "In sum: "+share(agreement.Same+agreement.SameBaselines, agreement.Cells+agreement.Baselines)+".")
	if agreement.OnlyA+agreement.OnlyB > 0 {
		t.wrap("", fmt.Sprintf("Not compared: %s only in A, %d only in B.", count(agreement.OnlyA, "cell"), agreement.OnlyB))
	}
	if len(agreement.OtherKinds) > 0 {
		var list []string
		for _, d := range agreement.OtherKinds {
			list = append(list, fmt.Sprintf("%s %s (%s, %s)", d.Runtime, d.Workload, d.A, d.B))
		}
		t.wrap("", "Of the same class, but another kind in A and in B: "+strings.Join(list, "; ")+".")
	}
	if n := len(agreement.Disagreements); n > 0 {
		t.heading(fmt.Sprintf("%s, %d of them not explained by chance", count(n, "disagreement"), agreement.Unexplained()))
	}
	for _, d := range agreement.Disagreements {
		t.line("")
		with := ""
		if d.Remedy != matrix.Baseline {
			with = " with " + d.Remedy
		}
		t.wrap("  ", d.Runtime+" "+d.Workload+with)
		t.wrap("    A  ", d.A)
		t.wrap("    B  ", d.B)
		if d.Why != "" {
			t.wrap("    ", "Explained: "+d.Why+".")
		} else {
			t.paragraph("    ", "They contradict each other.", red)
		}
	}
	return agreement, t.out.Flush()
}

func agree(a, b *view) Agreement {
	var out Agreement
	for i := range a.Cells {
		x := &a.Cells[i]
		y := b.cell(x.Runtime, x.Workload, x.Remedy)
		d := Disagreement{Runtime: x.Runtime, Workload: x.Workload, Remedy: x.Remedy}
		switch {
		case y == nil:
			out.OnlyA++
		case x.Remedy == matrix.Baseline && (x.Verdict != nil || y.Verdict != nil):
			out.Baselines++
			sameKind := kindOf(x) == kindOf(y)
			if sameKind {
				out.SameKinds++
			}
			switch {
			case classOf(x) != classOf(y):
				d.A, d.B, d.Why = a.baselineFigures(x), b.baselineFigures(y), whyVerdict(a, b, x, y)
				out.Disagreements = append(out.Disagreements, d)
				continue
			case !sameKind:
				d.A, d.B, d.Why = string(kindOf(x)), string(kindOf(y)), "both are of the class: "+classOf(x)
				out.OtherKinds = append(out.OtherKinds, d)
			}
			out.SameBaselines++
		case x.Remedy == matrix.Baseline, !measured(x) && !measured(y):
		case x.Effect == y.Effect:
			out.Cells++
			out.Same++
			if x.Effect == memory.Unclear {
				out.Open++
			}
		default:
			out.Cells++
			d.A, d.B, d.Why = effectFigures(a, x), effectFigures(b, y), whyEffect(a, b, x, y)
			out.Disagreements = append(out.Disagreements, d)
		}
	}
	for i := range b.Cells {
		x := &b.Cells[i]
		if a.cell(x.Runtime, x.Workload, x.Remedy) == nil {
			out.OnlyB++
		}
	}
	return out
}

// measured reports whether the cell has a result of runs.
func measured(c *matrix.Cell) bool {
	return c.Comparison != nil || c.Effect != memory.NotApplicable && c.Effect != memory.CouldNotApply
}

func kindOf(c *matrix.Cell) memory.Kind {
	if c.Verdict == nil {
		return ""
	}
	return c.Verdict.Kind
}

// classOf returns the class of a verdict, which does not depend on noise.
func classOf(c *matrix.Cell) string {
	switch growthOf(c) {
	case grows:
		return "grows"
	case dies:
		return "dies"
	case settles, steady:
		return "does not grow"
	}
	return "inconclusive"
}

func (v *view) baselineFigures(c *matrix.Cell) string {
	text := classOf(c)
	if kind := string(kindOf(c)); kind != "" && kind != text {
		text += " (" + kind + ")"
	}
	if growthOf(c) == dies {
		return text + ": " + v.death(c)
	}
	if estimated(c) {
		text += ", " + slopeText(c, false) + orEmpty(", ", spread(c))
	}
	text += orEmpty(", ", v.kinds(c))
	if growthOf(c) == undecided && c.Verdict != nil {
		text += orEmpty(": ", oneLine(c.Verdict.Reason))
	}
	return text
}

func effectFigures(v *view, c *matrix.Cell) string {
	text := cmp.Or(string(c.Effect), "no effect known")
	if name, r := v.goalRatio(c); r.OK {
		return fmt.Sprintf("%s, %s %s", text, name, times(r, true))
	}
	return text + orEmpty(": ", oneLine(c.Reason))
}

// which names the matrices for which a condition is true.
func which(a, b bool) string {
	switch {
	case a && b:
		return "both were"
	case a:
		return "A was"
	}
	return "B was"
}

// whyVerdict explains why two baselines were judged differently; empty if it finds no reason.
func whyVerdict(a, b *view, x, y *matrix.Cell) string {
	if i, j := growthOf(x) == undecided, growthOf(y) == undecided; i || j {
		return which(i, j) + " inconclusive"
	}
	// So many runs are of the other class that the next matrix may well have the other majority.
	other := func(v *view, c, than *matrix.Cell) (n, all int) {
		for _, r := range v.runsOf(c) {
			all++
			if classOf(&matrix.Cell{Verdict: &r.Outcome.Verdict}) == classOf(than) {
				n++
			}
		}
		return n, all
	}
	i, n := other(a, x, y)
	j, m := other(b, y, x)
	if i+j > 0 {
		return fmt.Sprintf("it is near a threshold: %d of %d runs of A were judged as B was, and %d of %d of B as A was", i, n, j, m)
	}
	s, okS := slope(x)
	t, okT := slope(y)
	if okS && okT && overlap(s, t) {
		text := "the slopes agree, and a threshold lies between their verdicts"
		if budget := a.workload[x.Workload].Budget; budget > 0 {
			text += fmt.Sprintf(": what may grow is %s/step", memory.Bytes(budget))
		}
		return text
	}
	return ""
}

// nearly is the largest difference of two ratios from the same measurement.
const nearly = 0.05

// whyEffect explains why a remedy was judged differently; empty if it finds no reason.
func whyEffect(a, b *view, x, y *matrix.Cell) string {
	if i, j := x.Effect == memory.Unclear, y.Effect == memory.Unclear; i || j {
		return which(i, j) + " unclear"
	}
	baseA, baseB := a.cell(x.Runtime, x.Workload, matrix.Baseline), b.cell(x.Runtime, x.Workload, matrix.Baseline)
	if a.goal(x) != b.goal(y) && baseA != nil && baseB != nil && kindOf(baseA) != kindOf(baseB) {
		// The goal of a remedy depends on whether the workload grows.
		if because := whyVerdict(a, b, baseA, baseB); because != "" {
			return "the workload without it was judged differently: " + because
		}
	}
	if x.Comparison == nil || y.Comparison == nil || x.Comparison.Goal != y.Comparison.Goal {
		return ""
	}
	_, r := a.goalRatio(x)
	_, s := b.goalRatio(y)
	if !r.OK || !s.OK {
		return ""
	}
	// A verdict on crashes does not depend on the ratio.
	if x.Comparison.RemedyCrashes != y.Comparison.RemedyCrashes || x.Comparison.BaseCrashes != y.Comparison.BaseCrashes {
		return ""
	}
	text := howClose(r, s)
	if text == "" {
		return ""
	}
	between := thresholdsWithin(x.Comparison.Goal, r, s)
	switch len(between) {
	case 0:
		return text + "; whether single runs with it grow differs"
	case 1:
		return text + "; the threshold " + between[0] + " lies within"
	}
	return text + "; the thresholds " + and(between) + " lie within"
}

// thresholdsWithin returns the thresholds of a goal between the ends of two intervals.
func thresholdsWithin(goal memory.Goal, r, s memory.Ratio) (between []string) {
	for _, t := range goal.Thresholds() {
		if t > min(r.Low, s.Low) && t <= max(r.High, s.High) {
			between = append(between, strconv.FormatFloat(t, 'f', -1, 64))
		}
	}
	return between
}

// howClose says how close two ratios are; empty if they are apart.
func howClose(r, s memory.Ratio) string {
	apart, overlaps := math.Abs(r.Estimate-s.Estimate), overlap(r.Interval, s.Interval)
	switch {
	case apart <= nearly && overlaps:
		return fmt.Sprintf("the intervals overlap, and the estimates differ by %.2f only", apart)
	case apart <= nearly:
		return fmt.Sprintf("the intervals do not overlap, but they are close, and the estimates differ by %.2f only", apart)
	case overlaps:
		return fmt.Sprintf("the intervals overlap, and the estimates differ by %.2f", apart)
	}
	return ""
}

func overlap(a, b memory.Interval) bool { return a.Low <= b.High && b.Low <= a.High }
