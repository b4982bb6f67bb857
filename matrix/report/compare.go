package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"steadyfit/matrix"
	"steadyfit/memory"
)

// Agreement is how far two matrices say the same.
type Agreement struct {
	// Cells are in both and were measured in at least one; of Same of them the
	// effect is the same.
	Cells int `json:"cells"`
	Same  int `json:"same"`
	// Baselines were judged in both; SameBaselines have the same kind of verdict.
	Baselines     int `json:"baselines"`
	SameBaselines int `json:"same_baselines"`
	// OnlyA and OnlyB count cells that the other matrix lacks.
	OnlyA int `json:"only_a"`
	OnlyB int `json:"only_b"`
	// Disagreements in the order of the first matrix.
	Disagreements []Disagreement `json:"disagreements"`
}

// Share of all verdicts, of cells and of baselines, that are the same, from 0 to 1;
// 1 if there is nothing to compare.
func (a Agreement) Share() float64 {
	if a.Cells+a.Baselines == 0 {
		return 1
	}
	return float64(a.Same+a.SameBaselines) / float64(a.Cells+a.Baselines)
}

// Unexplained counts disagreements that are neither of an inconclusive verdict nor
// near a threshold.
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
	// A and B are the effects, or the kinds of verdict of a baseline, with the
	// figures that they rest on.
	A string `json:"a"`
	B string `json:"b"`
	// Why says that one side was undecided, or that the figures agree and lie on
	// both sides of a threshold. If it is empty, the matrices contradict each other.
	Why string `json:"why"`
}

// Compare writes what two matrices agree on, and where they do not both figures and
// whether that is more than chance. Cells that were measured in neither, and those
// that only one of them has, do not count.
func Compare(w io.Writer, a, b *matrix.Result, o TextOptions) (Agreement, error) {
	agreement := agree(newView(a), newView(b))
	if o.Width == 0 {
		o.Width = 80
	}
	t := &text{view: newView(a), out: bufio.NewWriter(w), width: max(o.Width, 40), color: o.Color}
	t.wrap("A: ", t.when())
	t.wrap("   ", t.machine())
	other := newView(b)
	t.wrap("B: ", other.when())
	t.wrap("   ", other.machine())
	for _, side := range []struct {
		name string
		view *view
	}{{"A", t.view}, {"B", other}} {
		for _, alarm := range side.view.alarms() {
			t.paragraph("! ", "in "+side.name+": "+alarm, red)
		}
	}
	t.line("")
	share := func(same, all int) string {
		if all == 0 {
			return "none to compare"
		}
		return fmt.Sprintf("%d of %d (%.1f%%)", same, all, 100*float64(same)/float64(all))
	}
	t.wrap("", "Remedies with the same effect: "+share(agreement.Same, agreement.Cells)+".")
	t.wrap("", "Workloads with the same verdict: "+share(agreement.SameBaselines, agreement.Baselines)+".")
	if agreement.OnlyA+agreement.OnlyB > 0 {
		t.wrap("", fmt.Sprintf("Not compared: %s only in A, %d only in B.", count(agreement.OnlyA, "cell"), agreement.OnlyB))
	}
	if n := len(agreement.Disagreements); n > 0 {
		t.heading(fmt.Sprintf("%s, %d of them not explained by chance", count(n, "disagreement"), agreement.Unexplained()))
	}
	for _, d := range agreement.Disagreements {
		t.line("")
		t.wrap("  ", d.Runtime+" "+d.Workload+orEmptyIf(d.Remedy != matrix.Baseline, " with "+d.Remedy))
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
		switch {
		case y == nil:
			out.OnlyA++
		case x.Remedy == matrix.Baseline:
			if x.Verdict == nil && y.Verdict == nil {
				continue
			}
			out.Baselines++
			if kindOf(x) == kindOf(y) {
				out.SameBaselines++
				continue
			}
			out.Disagreements = append(out.Disagreements, Disagreement{x.Runtime, x.Workload, x.Remedy,
				a.baselineFigures(x), b.baselineFigures(y), whyVerdict(a, b, x, y)})
		case !measured(x) && !measured(y):
		default:
			out.Cells++
			if x.Effect == y.Effect {
				out.Same++
				continue
			}
			why := whyEffect(x, y)
			baseA, baseB := a.cell(x.Runtime, x.Workload, matrix.Baseline), b.cell(x.Runtime, x.Workload, matrix.Baseline)
			if why == "" && a.goal(x) != b.goal(y) && baseA != nil && baseB != nil && kindOf(baseA) != kindOf(baseB) {
				// What a remedy is judged by depends on whether the workload grows.
				if because := whyVerdict(a, b, baseA, baseB); because != "" {
					why = "the workload without it was judged differently: " + because
				}
			}
			out.Disagreements = append(out.Disagreements, Disagreement{x.Runtime, x.Workload, x.Remedy,
				effectFigures(a, x), effectFigures(b, y), why})
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

// measured is whether runs say something of the cell.
func measured(c *matrix.Cell) bool {
	return c.Comparison != nil || c.Effect != memory.NotApplicable && c.Effect != memory.CouldNotApply
}

func kindOf(c *matrix.Cell) memory.Kind {
	if c.Verdict == nil {
		return ""
	}
	return c.Verdict.Kind
}

func (v *view) baselineFigures(c *matrix.Cell) string {
	text := cmp.Or(string(kindOf(c)), "no verdict")
	if estimated(c) {
		text += ", " + slopeText(c, true)
	}
	return text + orEmpty(", ", v.kinds(c))
}

func effectFigures(v *view, c *matrix.Cell) string {
	text := cmp.Or(string(c.Effect), "no effect known")
	if name, r := v.goalRatio(c); r.OK {
		return fmt.Sprintf("%s, %s %s", text, name, times(r, true))
	}
	return text + orEmpty(": ", oneLine(c.Reason))
}

// whyVerdict explains why two baselines were judged differently; empty if nothing
// does.
func whyVerdict(a, b *view, x, y *matrix.Cell) string {
	if kindOf(x) == memory.Inconclusive || kindOf(y) == memory.Inconclusive {
		return "one of them was inconclusive"
	}
	mixed := func(v *view, c *matrix.Cell) bool {
		return slices.ContainsFunc(v.runsOf(c), func(r *matrix.RunResult) bool { return r.Outcome.Verdict.Kind != kindOf(c) })
	}
	if mixed(a, x) || mixed(b, y) {
		return "runs of the same matrix differ as well, so it is near a threshold"
	}
	s, okS := slope(x)
	t, okT := slope(y)
	if okS && okT && overlap(s, t) {
		return "the slopes agree, and a threshold lies between their verdicts"
	}
	return ""
}

// nearly is how far two ratios may lie apart and still be the same measurement.
const nearly = 0.05

// whyEffect explains why a remedy was judged differently; empty if nothing does.
func whyEffect(x, y *matrix.Cell) string {
	if x.Effect == memory.Unclear || y.Effect == memory.Unclear {
		return "one of them was unclear"
	}
	if x.Comparison == nil || y.Comparison == nil || x.Comparison.Goal != y.Comparison.Goal {
		return ""
	}
	r, s := goalOf(x.Comparison), goalOf(y.Comparison)
	if !r.OK || !s.OK {
		return ""
	}
	// A verdict by deaths does not rest on the ratio.
	if x.Comparison.RemedyCrashes != y.Comparison.RemedyCrashes || x.Comparison.BaseCrashes != y.Comparison.BaseCrashes {
		return ""
	}
	switch {
	case overlap(r.Interval, s.Interval):
		return fmt.Sprintf("the intervals overlap, and a threshold lies at their bounds (estimates differ by %.2f)", math.Abs(r.Estimate-s.Estimate))
	case math.Abs(r.Estimate-s.Estimate) <= nearly:
		return fmt.Sprintf("the estimates differ by %.2f only, and a threshold lies between", math.Abs(r.Estimate-s.Estimate))
	}
	return ""
}

func goalOf(c *memory.Comparison) memory.Ratio {
	switch c.Goal {
	case memory.LowerPeak:
		return c.Peak
	case memory.LowerReset:
		return c.Reset
	}
	return c.Slope
}

func overlap(a, b memory.Interval) bool { return a.Low <= b.High && b.Low <= a.High }
