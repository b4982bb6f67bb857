package report

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"
	"unicode/utf8"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/stats"
	"steadyfit/internal/texts"
)

// TextOptions are the options of Text and Compare.
type TextOptions struct {
	// Width in columns, at least 40; 0 means 80.
	Width int
	// Color uses the colours of a terminal.
	Color bool
}

// Text writes the answer for a terminal: the calibration, the growing workloads with their
// remedies, a table of remedies, and those that could not be applied.
func Text(w io.Writer, r *matrix.Result, o TextOptions) error {
	t := o.complete()
	return t.write(w, "text", &text{newView(r), t})
}

// text is the data of the template text.
type text struct {
	*view
	TextOptions
}

func (o TextOptions) complete() TextOptions {
	return TextOptions{Width: max(cmp.Or(o.Width, 80), 40), Color: o.Color}
}

const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

// The marks of paragraphs in text.tmpl. They are random, so that no text of a result has them.
var (
	nonce                           = rand.Text()
	paragraphEnd, leadEnd, verbatim = nonce + "p", nonce + "l", nonce + "v"
	colorBegin, colorEnd            = nonce + "c", nonce + "e"
)

func mark(color string) string { return colorBegin + color + colorEnd }

//go:embed text.tmpl
var textFile embed.FS

var textTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"p": func() string { return paragraphEnd }, "tab": func() string { return leadEnd },
	"raw":  func() string { return verbatim },
	"bold": func() string { return mark(bold) }, "red": func() string { return mark(red) },
	"size": size, "count": texts.Count[int], "share": share, "add": func(a, b int) int { return a + b },
	"md": markdown, "sentence": sentence, "stopped": func(s string) string { return strings.TrimSuffix(s, ".") + "." },
}).ParseFS(textFile, "text.tmpl"))

// phrase executes a template for a sentence.
func phrase(name string, data any) (string, error) {
	var b strings.Builder
	err := textTemplate.ExecuteTemplate(&b, name, data)
	return b.String(), err
}

// write executes a template and writes its paragraphs.
func (o TextOptions) write(w io.Writer, name string, data any) error {
	var all strings.Builder
	if err := textTemplate.ExecuteTemplate(&all, name, data); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	out := bufio.NewWriter(w)
	for rest := all.String(); ; {
		paragraph, next, ok := strings.Cut(rest, paragraphEnd)
		if !ok {
			return out.Flush()
		}
		o.paragraph(out, strings.TrimLeft(paragraph, "\n"))
		rest = next
	}
}

func (o TextOptions) paragraph(out io.Writer, text string) {
	if lines, ok := strings.CutPrefix(text, verbatim); ok {
		fmt.Fprint(out, lines)
		return
	}
	color := ""
	if marked, ok := strings.CutPrefix(text, colorBegin); ok {
		color, text, _ = strings.Cut(marked, colorEnd)
	}
	if color == bold {
		fmt.Fprintf(out, "\n%s\n", o.paint(clip(oneLine(text), o.Width), bold))
		return
	}
	lead, text, ok := strings.Cut(text, leadEnd)
	if !ok {
		text = strings.TrimLeft(lead, " ")
		lead = lead[:len(lead)-len(text)]
	}
	for line := range strings.Lines(texts.Wrap(lead, columns(lead), oneLine(text), o.Width) + "\n") {
		fmt.Fprintln(out, strings.TrimRight(o.paint(strings.TrimSuffix(line, "\n"), color), " "))
	}
}

func (o TextOptions) paint(text, color string) string {
	if !o.Color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func columns(text string) int { return utf8.RuneCountInString(text) }

// clip shortens a text and marks it as shortened.
func clip(text string, width int) string {
	if columns(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width-1, 1)]) + "…"
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-columns(text), 0))
}

func share(same, all int) string {
	if all == 0 {
		return "none to compare"
	}
	return fmt.Sprintf("%d of %d (%.1f%%)", same, all, 100*float64(same)/float64(all))
}

// Table returns a row per remedy and a column per workload, in blocks that fit the width.
func (t *text) Table(runtime string) string {
	without := func(of func(*matrix.Combination) bool) bool {
		return !slices.ContainsFunc(t.Combinations, func(c matrix.Combination) bool {
			return c.Runtime == runtime && c.Remedy != matrix.Baseline && c.Effect != compare.NotApplicable &&
				c.Effect != compare.CouldNotApply && of(&c)
		})
	}
	remedies := slices.DeleteFunc(slices.Clone(t.remedies), func(m matrix.Remedy) bool {
		return without(func(c *matrix.Combination) bool { return c.Remedy == m.ID })
	})
	workloads := slices.DeleteFunc(slices.Clone(t.workloads), func(w matrix.Workload) bool {
		return without(func(c *matrix.Combination) bool { return c.Workload == w.ID })
	})
	if len(remedies) == 0 {
		return ""
	}
	name := 6
	for _, m := range remedies {
		name = max(name, columns(oneLine(m.ID)))
	}
	name = min(name, t.Width/3)
	const column, last = 9, 7
	var b strings.Builder
	line := func(text string) { fmt.Fprintln(&b, strings.TrimRight(text, " ")) }
	per := max((t.Width-name-last)/column, 1)
	for block := range slices.Chunk(workloads, per) {
		line("")
		head := pad("", name) + "   time"
		for _, w := range block {
			head += " " + pad(clip(oneLine(w.ID), column-1), column-1)
		}
		line(t.paint(strings.TrimRight(head, " "), faint))
		for _, m := range remedies {
			row := pad(clip(oneLine(m.ID), name), name) + "  " + pad(t.usualTime(runtime, m.ID), last-2)
			for _, w := range block {
				c := t.combination(runtime, w.ID, m.ID)
				if c == nil {
					row += strings.Repeat(" ", column)
					continue
				}
				row += " " + t.paint(pad(t.cell(c), column-1), lookOf(c).color)
			}
			line(row)
		}
	}
	return b.String()
}

// cell describes the effect of a remedy in eight columns.
func (v *view) cell(c *matrix.Combination) string {
	text := cmp.Or(lookOf(c).Symbol, "?")
	if c.Effect == compare.NotApplicable || c.Effect == compare.CouldNotApply {
		return text
	}
	name, r := v.goalRatio(c)
	switch {
	case crashesToo(c):
		return text + " crash"
	case c.Comparison != nil && c.Comparison.RemedyCrashes > 0 && c.Effect == compare.Harmful:
		return text + " crash"
	case c.Comparison != nil && c.Comparison.BaseCrashes > 0 && c.Effect == compare.Works:
		return text + " lives"
	case !r.OK:
		return text
	case math.Abs(r.Estimate) >= 99.95:
		return text + " >99"
	}
	return text + map[string]string{"slope": "s", "peak": "p", "after close": "c", "GPU": "g"}[name] +
		strings.TrimPrefix(times(r, false), "×")
}

// usualTime returns the median ratio of step times.
func (v *view) usualTime(runtime, remedy string) string {
	var all []float64
	unclear := 0
	for _, w := range v.workloads {
		if c := v.combination(runtime, w.ID, remedy); c != nil && c.Comparison != nil && c.Comparison.StepTime.OK {
			all = append(all, c.Comparison.StepTime.Estimate)
			if c.Comparison.StepTime.Effect == compare.Unclear {
				unclear++
			}
		}
	}
	if len(all) == 0 {
		return unknown
	}
	text := fmt.Sprintf("×%.2f", stats.Median(all))
	if 2*unclear > len(all) {
		text += "?"
	}
	return text
}

// reason is a reason with the remedies that it applies to, as "trim on go".
type reason struct {
	Reason   string
	Remedies []string
}

func (v *view) reasons(of func(*matrix.Combination) string) (list []reason) {
	for i := range v.Combinations {
		c := &v.Combinations[i]
		text := oneLine(of(c))
		if text == "" {
			continue
		}
		k := slices.IndexFunc(list, func(r reason) bool { return r.Reason == text })
		if k < 0 {
			k = len(list)
			list = append(list, reason{Reason: text})
		}
		if name := c.Remedy + " on " + c.Runtime; !slices.Contains(list[k].Remedies, name) {
			list[k].Remedies = append(list[k].Remedies, name)
		}
	}
	return list
}

func (v *view) Unverified() []reason {
	return v.reasons(func(c *matrix.Combination) string { return c.Unverified })
}

func (v *view) Unapplied() []reason {
	return v.reasons(func(c *matrix.Combination) string {
		if c.Effect != compare.CouldNotApply {
			return ""
		}
		return cmp.Or(oneLine(c.Reason), "no reason given")
	})
}
