package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"steadyfit/internal/english"
	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
)

// Version is the result of a matrix with one version of TensorFlow.
type Version struct {
	TensorFlow string         `json:"tensorflow"`
	Result     *matrix.Result `json:"-"`
	// File is the path of the result.
	File string `json:"file"`
}

// Change is a combination whose verdict differs between two versions by more than chance explains.
// A is the figure with version Before, and B the figure with version Since.
type Change struct {
	Before string `json:"before"`
	Since  string `json:"since"`
	Disagreement
}

// Changes returns the changes between consecutive versions. If the combination was undecided in
// some of them, the versions before and after these are compared. explained is the number of
// differences that chance explains, and missing that of combinations that were not measured with
// each version.
func Changes(versions []Version) (changes []Change, explained, missing int) {
	all := make(map[combinationID]bool)
	for _, v := range versions {
		for i := range v.Result.Combinations {
			c := &v.Result.Combinations[i]
			all[combinationID{c.Runtime, c.Workload, c.Remedy}] = true
		}
	}
	incomplete := make(map[combinationID]bool)
	for i, b := range versions {
		later := newView(b.Result)
		for id := range all {
			incomplete[id] = incomplete[id] || later.combination(id.runtime, id.workload, id.remedy) == nil
		}
		for j := i - 1; j >= 0; j-- {
			for _, d := range agree(newView(versions[j].Result), later).Disagreements {
				id := combinationID{d.Runtime, d.Workload, d.Remedy}
				switch {
				case d.Why == "" && decidedIn(versions[j+1:i], id) == 0:
					changes = append(changes, Change{versions[j].TensorFlow, b.TensorFlow, d})
				case d.Why != "" && j == i-1:
					explained++
				}
			}
		}
	}
	for _, is := range incomplete {
		if is {
			missing++
		}
	}
	return changes, explained, missing
}

// decidedIn returns the number of versions with a decided verdict on a combination.
func decidedIn(versions []Version, id combinationID) (n int) {
	for _, v := range versions {
		c := newView(v.Result).combination(id.runtime, id.workload, id.remedy)
		if c != nil && (id.remedy == matrix.Baseline && growthOf(c) != undecided || id.remedy != matrix.Baseline && measured(c) && c.Effect != compare.Unclear) {
			n++
		}
	}
	return n
}

// Versions writes what grows with each version of TensorFlow, which remedies help, and in which
// version a combination changes.
func Versions(w io.Writer, versions []Version, o TextOptions) error {
	t := newText(w, versions[0].Result, o)
	t.heading("By version of TensorFlow: growth per step, or effect of the remedy")
	table := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	views := make([]*view, len(versions))
	for i, v := range versions {
		views[i] = newView(v.Result)
		fmt.Fprintf(table, "\t%s", v.TensorFlow)
		for _, alarm := range views[i].Alarms() {
			t.paragraph("! ", v.TensorFlow+": "+alarm, red)
		}
	}
	for i := range t.Combinations {
		c := &t.Combinations[i]
		name := c.Workload
		if c.Remedy != matrix.Baseline {
			name = "  " + c.Remedy
		}
		fmt.Fprintf(table, "\n%s", name)
		for _, v := range views {
			fmt.Fprintf(table, "\t%s", brief(v.combination(c.Runtime, c.Workload, c.Remedy)))
		}
	}
	fmt.Fprintln(table)
	if err := table.Flush(); err != nil {
		return err
	}
	changes, explained, missing := Changes(versions)
	t.line("")
	if len(changes) == 0 {
		t.wrap("", "No change between these versions was shown.")
	}
	if missing > 0 {
		t.wrap("", fmt.Sprintf("%s not measured with each version.", english.Count(missing, "combination")))
	}
	for _, c := range changes {
		t.wrap("", fmt.Sprintf("%s changes in %s:", strings.TrimSuffix(c.Workload+" with "+c.Remedy, " with "+matrix.Baseline), c.Since))
		t.wrap("  "+c.Before+"  ", c.A)
		t.wrap("  "+c.Since+"  ", c.B)
	}
	if explained > 0 {
		t.wrap("", fmt.Sprintf("%s may be chance: a run was undecided, or the intervals overlap.", english.Count(explained, "other difference")))
	}
	return t.out.Flush()
}

// brief is the verdict of a combination in one or two words.
func brief(c *matrix.Combination) string {
	switch {
	case c == nil:
		return unknown
	case c.Remedy != matrix.Baseline:
		return string(c.Effect)
	case growthOf(c) == grows:
		return slopeText(c, false)
	case growthOf(c) == crashes:
		return "crashes"
	case c.Effect == compare.CouldNotApply, growthOf(c) == undecided:
		return "undecided"
	}
	return string(kindOf(c))
}
