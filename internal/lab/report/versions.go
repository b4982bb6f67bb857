package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"steadyfit/internal/lab/compare"
	"steadyfit/matrix"
)

// Version is the result of a matrix with one version of TensorFlow.
type Version struct {
	TensorFlow string         `json:"tensorflow"`
	Result     *matrix.Result `json:"-"`
	// File is the path of the result.
	File string `json:"file"`
}

// Change is a combination whose verdict differs between two versions by more than chance explains.
// A is the figure with the version in Before, and B the figure with the version in Since.
type Change struct {
	Before string `json:"before"`
	Since  string `json:"since"`
	Disagreement
}

// Changes returns the changes between consecutive versions. Versions in which a combination was
// undecided are skipped. explained is the number of differences that chance explains, and missing
// is the number of combinations that were not measured with every version.
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
	data := struct {
		Versions           []versionView
		Table              string
		Changes            []Change
		Explained, Missing int
	}{}
	data.Changes, data.Explained, data.Missing = Changes(versions)
	var rows strings.Builder
	table := tabwriter.NewWriter(&rows, 0, 0, 2, ' ', 0)
	for _, v := range versions {
		data.Versions = append(data.Versions, versionView{v.TensorFlow, newView(v.Result)})
		fmt.Fprintf(table, "\t%s", v.TensorFlow)
	}
	for _, c := range versions[0].Result.Combinations {
		name := c.Workload
		if c.Remedy != matrix.Baseline {
			name = "  " + c.Remedy
		}
		fmt.Fprintf(table, "\n%s", name)
		for _, v := range data.Versions {
			fmt.Fprintf(table, "\t%s", brief(v.combination(c.Runtime, c.Workload, c.Remedy)))
		}
	}
	fmt.Fprintln(table)
	if err := table.Flush(); err != nil {
		return err
	}
	data.Table = rows.String()
	return o.complete().write(w, "versions", data)
}

type versionView struct {
	TensorFlow string
	*view
}

// brief returns the verdict of a combination in one or two words.
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
