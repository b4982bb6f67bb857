package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// Agreement describes how far two matrices agree.
type Agreement struct {
	// Combinations is the number of combinations that are in both matrices and were measured in at
	// least one. Same is the number of these combinations with equal effects.
	Combinations int `json:"cells"`
	Same         int `json:"same"`
	// Open is the number of the Same combinations whose effect is unclear.
	Open int `json:"open"`
	// Baselines is the number of baselines with a verdict in both. SameBaselines of them have the
	// same class: they grow, do not grow, crash, or are inconclusive. SameKinds of these have the
	// same kind of verdict; noise can change the kind of a verdict without growth.
	Baselines     int `json:"baselines"`
	SameBaselines int `json:"same_baselines"`
	SameKinds     int `json:"same_kinds"`
	// OnlyA and OnlyB are the numbers of combinations that only one matrix has.
	OnlyA int `json:"only_a"`
	OnlyB int `json:"only_b"`
	// OtherKinds lists the baselines whose class is the same but whose kind of verdict differs.
	Disagreements []Disagreement `json:"disagreements"`
	OtherKinds    []Disagreement `json:"other_kinds"`
}

// Share returns the fraction of equal verdicts; 1 if there is nothing to compare.
func (a Agreement) Share() float64 {
	if a.Combinations+a.Baselines == 0 {
		return 1
	}
	return float64(a.Same+a.SameBaselines) / float64(a.Combinations+a.Baselines)
}

// Unexplained counts the disagreements without an explanation.
func (a Agreement) Unexplained() int {
	n := 0
	for _, d := range a.Disagreements {
		if d.Why == "" {
			n++
		}
	}
	return n
}

// Disagreement is a combination on which two matrices differ.
type Disagreement struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// A and B are the effects or kinds of verdict, with their figures.
	A string `json:"a"`
	B string `json:"b"`
	// Why explains the difference: one side was undecided, or the figures agree and lie on both
	// sides of a threshold. It is empty if the matrices contradict each other.
	Why string `json:"why"`
}

// With returns the remedy; empty for a workload without one.
func (d Disagreement) With() string {
	if d.Remedy == matrix.Baseline {
		return ""
	}
	return d.Remedy
}

// side is one of two compared results.
type side struct {
	Name string
	*view
}

// Compare writes the agreement of two matrices, and their figures where they differ.
// Combinations that neither has measured, or only one has, do not count.
func Compare(w io.Writer, a, b *matrix.Result, o TextOptions) (Agreement, error) {
	sides := []side{{"A", newView(a)}, {"B", newView(b)}}
	agreement := agree(sides[0].view, sides[1].view)
	return agreement, o.complete().write(w, "compare", struct {
		Agreement
		Sides []side
	}{agreement, sides})
}

func agree(a, b *view) Agreement {
	var out Agreement
	for i := range a.Combinations {
		x := &a.Combinations[i]
		y := b.combination(x.Runtime, x.Workload, x.Remedy)
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
			case growthOf(x).name != growthOf(y).name:
				d.A, d.B, d.Why = a.baselineFigures(x), b.baselineFigures(y), whyVerdict(a, b, x, y)
				out.Disagreements = append(out.Disagreements, d)
				continue
			case !sameKind:
				d.A, d.B, d.Why = string(kindOf(x)), string(kindOf(y)), "both are of the class: "+growthOf(x).name
				out.OtherKinds = append(out.OtherKinds, d)
			}
			out.SameBaselines++
		case x.Remedy == matrix.Baseline, !measured(x) && !measured(y):
		case x.Effect == y.Effect:
			out.Combinations++
			out.Same++
			if x.Effect == compare.Unclear {
				out.Open++
			}
		default:
			out.Combinations++
			d.A, d.B, d.Why = effectFigures(a, x), effectFigures(b, y), whyEffect(a, b, x, y)
			out.Disagreements = append(out.Disagreements, d)
		}
	}
	for i := range b.Combinations {
		x := &b.Combinations[i]
		if a.combination(x.Runtime, x.Workload, x.Remedy) == nil {
			out.OnlyB++
		}
	}
	return out
}

// measured reports whether the runs of a combination gave a result.
func measured(c *matrix.Combination) bool {
	return c.Comparison != nil || c.Effect != compare.NotApplicable && c.Effect != compare.CouldNotApply
}

func kindOf(c *matrix.Combination) memory.Kind {
	if c.Verdict == nil {
		return ""
	}
	return c.Verdict.Kind
}

func (v *view) baselineFigures(c *matrix.Combination) string {
	text := growthOf(c).name
	if kind := string(kindOf(c)); kind != "" && kind != text {
		text += " (" + kind + ")"
	}
	if growthOf(c) == crashes {
		return text + ": " + v.crash(c)
	}
	if estimated(c) {
		text += ", " + slopeText(c, false) + known(spread(c), ", %s")
	}
	text += known(v.kinds(c), ", %s")
	if growthOf(c) == undecided && c.Verdict != nil {
		text += known(oneLine(c.Verdict.Reason), ": %s")
	}
	return text
}

func effectFigures(v *view, c *matrix.Combination) string {
	text := cmp.Or(string(c.Effect), "no effect known")
	if name, r := v.goalRatio(c); r.OK {
		return fmt.Sprintf("%s, %s %s", text, name, times(r, true))
	}
	return text + known(oneLine(c.Reason), ": %s")
}

func which(a, b bool) string {
	switch {
	case a && b:
		return "both were"
	case a:
		return "A was"
	}
	return "B was"
}

// whyVerdict explains different verdicts on two baselines, or returns "".
func whyVerdict(a, b *view, x, y *matrix.Combination) string {
	if i, j := growthOf(x) == undecided, growthOf(y) == undecided; i || j {
		return which(i, j) + " inconclusive"
	}
	// If some runs of one matrix have the verdict of the other matrix, the difference may be
	// chance.
	other := func(v *view, c, than *matrix.Combination) (n, all int) {
		for _, r := range v.runsOf(c) {
			all++
			if growthOf(&matrix.Combination{Verdict: &r.Outcome.Verdict}).name == growthOf(than).name {
				n++
			}
		}
		return n, all
	}
	i, n := other(a, x, y)
	j, m := other(b, y, x)
	if i+j > 0 {
		return fmt.Sprintf("it is near a threshold: %d of %d runs of A have the verdict of B, and %d of %d runs of B have "+
			"that of A", i, n, j, m)
	}
	s, okS := slope(x)
	t, okT := slope(y)
	if okS && okT && overlap(s, t) {
		text := "the slopes agree, and a threshold lies between their verdicts"
		if budget := a.workload[x.Workload].Budget; budget > 0 {
			text += fmt.Sprintf(": the budget is %s/step", memory.Bytes(budget))
		}
		return text
	}
	return ""
}

// nearly is the maximum difference of two ratios that count as equal.
const nearly = 0.05

// whyEffect explains different effects of a remedy, or returns "".
func whyEffect(a, b *view, x, y *matrix.Combination) string {
	if i, j := x.Effect == compare.Unclear, y.Effect == compare.Unclear; i || j {
		return which(i, j) + " unclear"
	}
	baseA, baseB := a.combination(x.Runtime, x.Workload, matrix.Baseline),
		b.combination(x.Runtime, x.Workload, matrix.Baseline)
	if a.goal(x) != b.goal(y) && baseA != nil && baseB != nil && kindOf(baseA) != kindOf(baseB) {
		// The goal of a remedy depends on whether the workload grows.
		if because := whyVerdict(a, b, baseA, baseB); because != "" {
			return "the verdict on the workload without the remedy differs: " + because
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
		return text + "; they differ in whether single runs with the remedy grow"
	case 1:
		return text + "; the threshold " + between[0] + " lies within"
	}
	return text + "; the thresholds " + texts.List(between, "and") + " lie within"
}

func thresholdsWithin(goal compare.Goal, r, s compare.Ratio) (between []string) {
	for _, t := range goal.Thresholds() {
		if t > min(r.Low, s.Low) && t <= max(r.High, s.High) {
			between = append(between, strconv.FormatFloat(t, 'f', -1, 64))
		}
	}
	return between
}

// howClose describes how close two ratios are, or returns "".
func howClose(r, s compare.Ratio) string {
	apart, overlaps := math.Abs(r.Estimate-s.Estimate), overlap(r.Interval, s.Interval)
	switch {
	case apart <= nearly && overlaps:
		return fmt.Sprintf("the intervals overlap, and the estimates differ by only %.2f", apart)
	case apart <= nearly:
		return fmt.Sprintf("the intervals do not overlap, but the estimates differ by only %.2f", apart)
	case overlaps:
		return fmt.Sprintf("the intervals overlap, and the estimates differ by %.2f", apart)
	}
	return ""
}

func overlap(a, b memory.Interval) bool { return a.Low <= b.High && b.Low <= a.High }
