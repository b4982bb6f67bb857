package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// lineWidth is where text is wrapped.
const lineWidth = 110

// WriteText prints the report for a person: a line per check, by group, then
// what is wrong and what to do about it, then the sum. Harmless checks
// in a row that found the same are printed as one. The error is that of w.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	rows := merge(r.Checks)
	// A long name, such as a variable's, does not push all others to the right.
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
		indent := 2 + 8 + 1 + column + 2
		lead := fmt.Sprintf("  %-8s %s", mark(c.Status), c.Name)
		if pad := indent - utf8.RuneCountInString(lead); pad >= 2 {
			lead += strings.Repeat(" ", pad)
		} else {
			lead += "  "
		}
		text := c.Found
		// What is wrong is repeated below, with its fix.
		if c.Status == Note && c.Fix != "" {
			text += " (" + c.Fix + ")"
		}
		wrap(&b, lead, indent, text)
	}
	writeFixes(&b, rows)
	b.WriteString("\n" + r.sum() + "\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func mark(s Status) string {
	if s == Warning || s == Problem {
		return strings.ToUpper(s.String())
	}
	return s.String()
}

// writeFixes lists what is wrong, the worst first; checks in a row that one fix
// mends share it.
func writeFixes(b *strings.Builder, rows []Check) {
	n := 0
	for _, status := range []Status{Problem, Warning} {
		fix := ""
		for _, c := range rows {
			if c.Status != status {
				continue
			}
			if n == 0 {
				b.WriteString("\nWhat to do\n")
			}
			if fix != c.Fix {
				writeFix(b, fix)
			}
			fix = c.Fix
			n++
			lead := fmt.Sprintf("  %d. ", n)
			wrap(b, lead, len(lead), fmt.Sprintf("%s, %s: %s", c.Group, c.Name, c.Found))
		}
		writeFix(b, fix)
	}
}

func writeFix(b *strings.Builder, fix string) {
	if fix != "" {
		wrap(b, "     -> ", 8, fix)
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
		switch n := counts[s]; n {
		case 0:
		case 1:
			parts = append(parts, "1 "+s.String())
		default:
			parts = append(parts, fmt.Sprintf("%d %ss", n, s))
		}
	}
	return strings.Join(parts, ", ") + "."
}

// merge joins harmless checks in a row that differ in nothing but the name; what
// is wrong keeps its name.
func merge(checks []Check) []Check {
	var rows []Check
	for i := 0; i < len(checks); {
		c := checks[i]
		n := 1
		for c.Status <= Note && i+n < len(checks) && same(c, checks[i+n]) {
			n++
		}
		if n > 1 {
			c.Name = fmt.Sprintf("%s and %d more", c.Name, n-1)
		}
		rows = append(rows, c)
		i += n
	}
	return rows
}

func same(a, b Check) bool {
	a.Name = b.Name
	return a == b
}

// wrap writes a text after a lead, with the lines that follow indented.
func wrap(b *strings.Builder, lead string, indent int, text string) {
	b.WriteString(lead)
	at, first := utf8.RuneCountInString(lead), true
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case first:
		case at+1+n > lineWidth:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
		first = false
	}
	b.WriteByte('\n')
}
