package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"steadyfit/internal/lab/matrix"
)

// Claims writes the claims in Markdown: a table with the verdicts, then each claim with the
// figures and their sources, or with what a test needs.
func Claims(w io.Writer, r *matrix.Result) error {
	if err := textTemplate.ExecuteTemplate(w, "claims", newView(r)); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Tested returns the runtimes with a verdict on a claim.
func (v *view) Tested() []string {
	return slices.DeleteFunc(slices.Clone(v.runtimes), func(name string) bool {
		return !slices.ContainsFunc(v.Claims, func(c matrix.Claim) bool {
			return slices.ContainsFunc(c.Verdicts, func(d matrix.ClaimVerdict) bool { return d.Runtime == name })
		})
	})
}

var escapeMarkdown = strings.NewReplacer("\\", "\\\\", "|", "\\|", "<", "&lt;", ">", "&gt;", "&", "&amp;",
	"*", "\\*", "`", "\\`", "[", "\\[", "]", "\\]")

// markdown escapes text and puts it on one line. Underscores within words need no escape.
func markdown(text string) string { return escapeMarkdown.Replace(oneLine(text)) }

// On returns the verdict of a runtime on a claim, with its CSS class.
func (v *view) On(c matrix.Claim, runtime string) (s struct{ Verdict, Class, Text, From string }) {
	s.Verdict = "not tested"
	for _, d := range c.Verdicts {
		if d.Runtime == runtime {
			s.Verdict, s.Text, s.From = d.Verdict, sentence(d.Text), strings.Join(d.Combinations, ", ")
		}
	}
	s.Class = map[string]string{"holds": "works", "holds in part": "partly", "does not hold": "harm",
		"undecided": "unclear"}[s.Verdict]
	return s
}

func (v *view) ClaimRuntimes() []string {
	if names := v.Tested(); len(names) > 0 {
		return names
	}
	return []string{"measured"}
}
