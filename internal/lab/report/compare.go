package report

import (
	"cmp"
	"fmt"
	"io"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/memory"
)

// Agreement describes how far two matrices agree. The verdict on a workload without a remedy is whether it
// grows, does not grow, crashes or is undecided. The verdict on a remedy is its effect.
type Agreement struct {
	// Compared is the number of verdicts that both matrices have, and Same the number of equal ones.
	Compared int `json:"compared"`
	Same     int `json:"same"`
	// OnlyOne is the number of verdicts that only one matrix has.
	OnlyOne       int            `json:"only_one"`
	Disagreements []Disagreement `json:"disagreements"`
}

// Share returns the fraction of equal verdicts; 1 if there is nothing to compare.
func (a Agreement) Share() float64 {
	if a.Compared == 0 {
		return 1
	}
	return float64(a.Same) / float64(a.Compared)
}

func (a Agreement) String() string {
	return fmt.Sprintf("The same verdict in %d of %d (%.1f%%)", a.Same, a.Compared, 100*a.Share())
}

// Disagreement is a combination on which two matrices differ.
type Disagreement struct {
	Runtime  string `json:"runtime"`
	Workload string `json:"workload"`
	Remedy   string `json:"remedy"`
	// A and B are the verdicts with their figures.
	A string `json:"a"`
	B string `json:"b"`
	// Why explains the difference: one side was undecided, or the figures agree and lie on both
	// sides of a threshold. It is empty if the matrices contradict each other.
	Why string `json:"why"`
}

// Compare writes the agreement of two matrices, and their figures where they differ. width is that of Text.
func Compare(w io.Writer, a, b *matrix.Result, width int) (Agreement, error) {
	x, y := newView(a), newView(b)
	agreement := agree(x, y)
	return agreement, write(w, width, "compare", struct {
		Agreement
		Sides []*view
	}{agreement, []*view{x, y}})
}

func agree(a, b *view) Agreement {
	out := Agreement{Disagreements: []Disagreement{}}
	for i := range a.Combinations {
		x := &a.Combinations[i]
		y := cmp.Or(b.cells[idOf(x)], &matrix.Combination{Effect: compare.NotApplicable})
		p, q := outcome(x), outcome(y)
		switch {
		case p == "" && q == "":
		case p == "" || q == "":
			out.OnlyOne++
		case p == q:
			out.Compared++
			out.Same++
		default:
			out.Compared++
			out.Disagreements = append(out.Disagreements, Disagreement{x.Runtime, x.Workload, x.Remedy, p + figures(x),
				q + figures(y), why(x, y)})
		}
	}
	for i := range b.Combinations {
		y := &b.Combinations[i]
		out.OnlyOne += when(a.cells[idOf(y)] == nil && outcome(y) != "", 1)
	}
	return out
}

// outcome returns the verdict on a combination; empty if it was not measured.
func outcome(c *matrix.Combination) string {
	switch {
	case c.Remedy == matrix.Baseline && c.Verdict == nil && len(c.Crashes) == 0:
		return ""
	case c.Remedy == matrix.Baseline:
		return stateOf(c).growth
	case c.Effect == compare.NotApplicable && c.Comparison == nil, c.Effect == compare.CouldNotApply:
		return ""
	}
	return string(c.Effect)
}

// figures describes what the verdict on a combination rests on.
func figures(c *matrix.Combination) string {
	if c.Remedy == matrix.Baseline {
		_, detail := verdict(c)
		return fmt.Sprintf(" (%s): %s; slope %s", stateOf(c).Word, detail, slopeText(c, true))
	}
	if name, r := goalRatio(c); r.OK {
		return fmt.Sprintf(", %s %s", name, times(r, true))
	}
	return when(c.Reason != "", ": "+c.Reason)
}

// why explains different verdicts, or returns "".
func why(x, y *matrix.Combination) string {
	for i, verdict := range []string{outcome(x), outcome(y)} {
		if verdict == "undecided" || verdict == string(compare.Unclear) {
			return string("AB"[i]) + " is " + verdict
		}
	}
	p, okP := slope(x)
	q, okQ := slope(y)
	if x.Remedy != matrix.Baseline {
		nameA, r := goalRatio(x)
		nameB, s := goalRatio(y)
		if nameA != nameB {
			return "the verdicts on the workload without the remedy differ"
		}
		p, q, okP, okQ = r.Interval, s.Interval, r.OK, s.OK
		if okP && okQ && (x.Comparison.RemedyCrashes != y.Comparison.RemedyCrashes ||
			x.Comparison.BaseCrashes != y.Comparison.BaseCrashes) {
			return ""
		}
	}
	return when(okP && okQ && overlap(p, q), "the intervals overlap, and a threshold lies between the verdicts")
}

func overlap(a, b memory.Interval) bool { return a.Low <= b.High && b.Low <= a.High }
