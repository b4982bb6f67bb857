package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"steadyfit/internal/lab/matrix"
)

// Claims writes the claims in Markdown: a table with the verdicts, then each claim with the
// figures and their sources, or with what a test needs.
func Claims(w io.Writer, r *matrix.Result) error {
	out := bufio.NewWriter(w)
	v := newView(r)
	fmt.Fprint(out, "# What people say, and what was measured\n\n")
	fmt.Fprintf(out, "%s.\n%s.\n\n", markdown(v.When()), markdown(v.Machine()))
	for _, alarm := range v.Alarms() {
		fmt.Fprintf(out, "> **%s**\n\n", markdown(alarm))
	}
	if text := v.Calibrated(); text != "" {
		fmt.Fprintf(out, "%s\n\n", markdown(text))
	}
	if len(r.Claims) == 0 {
		fmt.Fprint(out, "This matrix tested no claims.\n")
		return out.Flush()
	}
	runtimes := v.claimRuntimes()
	fmt.Fprint(out, "| | claim | literature |")
	for _, name := range runtimes {
		fmt.Fprintf(out, " %s |", markdown(name))
	}
	fmt.Fprintf(out, "\n|---|---|---|%s\n", strings.Repeat("---|", len(runtimes)))
	for _, c := range r.Claims {
		fmt.Fprintf(out, "| %s | %s | %s |", markdown(c.ID), markdown(c.Text), markdown(c.Says))
		for _, name := range runtimes {
			fmt.Fprintf(out, " %s |", markdown(claimVerdict(c, name)))
		}
		fmt.Fprintln(out)
	}
	for _, c := range r.Claims {
		fmt.Fprintf(out, "\n## %s: %s\n\n", markdown(c.ID), markdown(c.Text))
		if c.Says != "" {
			fmt.Fprintf(out, "Literature: %s\n\n", markdown(sentence(c.Says)))
		}
		for _, d := range c.Verdicts {
			fmt.Fprintf(out, "- **%s: %s.** %s", markdown(d.Runtime), markdown(d.Verdict), markdown(sentence(d.Text)))
			if len(d.Combinations) > 0 {
				fmt.Fprintf(out, " (from %s)", markdown(strings.Join(d.Combinations, ", ")))
			}
			fmt.Fprintln(out)
		}
		switch needs := markdown(strings.TrimSuffix(c.Needs, ".") + "."); {
		case c.Needs != "" && len(c.Verdicts) > 0:
			fmt.Fprintf(out, "- For a further test: %s\n", needs)
		case c.Needs != "":
			fmt.Fprintf(out, "- Not tested here. Needed: %s\n", needs)
		case len(c.Verdicts) == 0:
			fmt.Fprint(out, "- Not tested: this matrix has no test of it.\n")
		}
	}
	return out.Flush()
}

// claimRuntimes returns the runtimes that tested a claim.
func (v *view) claimRuntimes() []string {
	var list []string
	for _, c := range v.Claims {
		for _, d := range c.Verdicts {
			if !slices.Contains(list, d.Runtime) {
				list = append(list, d.Runtime)
			}
		}
	}
	order := func(name string) int {
		if i := slices.Index(v.runtimes, name); i >= 0 {
			return i
		}
		return len(v.runtimes)
	}
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	return list
}

func claimVerdict(c matrix.Claim, runtime string) string {
	for _, d := range c.Verdicts {
		if d.Runtime == runtime {
			return d.Verdict
		}
	}
	return "not tested"
}

var escapeMarkdown = strings.NewReplacer("\\", "\\\\", "|", "\\|", "<", "&lt;", ">", "&gt;", "&", "&amp;",
	"*", "\\*", "`", "\\`", "[", "\\[", "]", "\\]")

// markdown escapes text and puts it on one line. Underscores within words need no escape.
func markdown(text string) string { return escapeMarkdown.Replace(oneLine(text)) }

// On returns the verdict of a runtime, with the class of the page.
func (v *view) On(c matrix.Claim, runtime string) (s struct{ Verdict, Class, Text, From string }) {
	s.Verdict = claimVerdict(c, runtime)
	s.Class = map[string]string{"holds": "works", "holds in part": "partly", "does not hold": "harm", "undecided": "unclear"}[s.Verdict]
	for _, d := range c.Verdicts {
		if d.Runtime == runtime {
			s.Text, s.From = sentence(d.Text), strings.Join(d.Combinations, ", ")
		}
	}
	return s
}

func (v *view) ClaimRuntimes() []string {
	if names := v.claimRuntimes(); len(names) > 0 {
		return names
	}
	return []string{"measured"}
}
