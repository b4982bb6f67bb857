package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/english"
)

// lineWidth is the width at which text is wrapped.
const lineWidth = 110

// WriteText prints the report: a line per check, by group, then the problems with their fixes,
// then a summary. Consecutive harmless checks with the same finding are printed as one. The
// error is that of w.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	rows := merge(r.Checks)
	// One long name, such as a variable's, must not move all other columns to the right.
	const widest = 24
	column := 0
	for _, c := range rows {
		if n := utf8.RuneCountInString(c.Name); n <= widest {
			column = max(column, n)
		}
	}
	group := ""
	for _, c := range rows {
		if c.Group != group {
			if group != "" {
				b.WriteByte('\n')
			}
			group = c.Group
			b.WriteString(group + "\n")
		}
		status, text := c.Status.String(), c.Found
		switch {
		case c.Status > Note:
			status = strings.ToUpper(status) // the fix follows below
		case c.Status == Note && c.Fix != "":
			text += " (" + c.Fix + ")"
		}
		lead := fmt.Sprintf("  %-8s %-*s  ", status, column, c.Name)
		wrap(&b, lead, 2+8+1+column+2, text)
	}
	writeFixes(&b, rows)
	b.WriteString("\n" + r.sum() + "\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// writeFixes lists the problems, the worst first. Consecutive checks with the same fix share
// it.
func writeFixes(b *strings.Builder, rows []Check) {
	n := 0
	for _, status := range []Status{Problem, Warning} {
		fix := ""
		writeFix := func() {
			if fix != "" {
				wrap(b, "     -> ", 8, fix)
			}
		}
		for _, c := range rows {
			if c.Status != status {
				continue
			}
			if n == 0 {
				b.WriteString("\nWhat to do\n")
			}
			if fix != c.Fix {
				writeFix()
			}
			fix = c.Fix
			n++
			lead := fmt.Sprintf("  %d. ", n)
			wrap(b, lead, len(lead), fmt.Sprintf("%s, %s: %s", c.Group, c.Name, c.Found))
		}
		writeFix()
	}
}

func (r Report) sum() string {
	counts := map[Status]int{}
	for _, c := range r.Checks {
		counts[c.Status]++
	}
	if counts[Problem]+counts[Warning] == 0 {
		return "Nothing is wrong."
	}
	var parts []string
	for _, s := range []Status{Problem, Warning} {
		if n := counts[s]; n > 0 {
			parts = append(parts, english.Count(n, s.String()))
		}
	}
	return strings.Join(parts, ", ") + "."
}

// merge joins consecutive harmless checks that differ only in their names.
func merge(checks []Check) (rows []Check) {
	for i := 0; i < len(checks); {
		c, n := checks[i], 1
		for same := c; c.Status <= Note && i+n < len(checks); n++ {
			if same.Name = checks[i+n].Name; same != checks[i+n] {
				break
			}
		}
		if n > 1 {
			c.Name = fmt.Sprintf("%s and %d more", c.Name, n-1)
		}
		rows = append(rows, c)
		i += n
	}
	return rows
}

func wrap(b *strings.Builder, lead string, indent int, text string) {
	b.WriteString(english.Wrap(lead, indent, text, lineWidth) + "\n")
}
