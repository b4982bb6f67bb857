package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"steadyfit/internal/texts"
)

const (
	// lineWidth is the width at which text is wrapped.
	lineWidth = 110
	// nameWidth is the width of the names of checks. The name of a variable may be longer.
	nameWidth = 22
	indent    = 2 + 8 + 1 + nameWidth + 2
)

// WriteText prints the report by group: a line per check, and the fix below it. Checks with the same
// fix share it: it is printed below the last of them. The error is that of w.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	group := ""
	for i, c := range r.Checks {
		if c.Group != group {
			group = c.Group
			fmt.Fprintf(&b, "%s%s\n", strings.Repeat("\n", min(i, 1)), group)
		}
		status := c.Status.String()
		if c.Status > Note {
			status = strings.ToUpper(status)
		}
		b.WriteString(texts.Wrap(fmt.Sprintf("  %-8s %-*s  ", status, nameWidth, c.Name), indent, c.Found, lineWidth) + "\n")
		again := slices.ContainsFunc(r.Checks[i+1:], func(later Check) bool { return later.Fix == c.Fix })
		if c.Fix != "" && !again {
			b.WriteString(texts.Wrap(strings.Repeat(" ", indent)+"-> ", indent+3, c.Fix, lineWidth) + "\n")
		}
	}
	if r.Worst() < Warning {
		b.WriteString("\nNothing is wrong.\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
