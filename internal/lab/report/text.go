package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/english"
	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/stats"
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
	t := newText(w, r, o)
	t.wrap("", t.When())
	t.wrap("", t.Machine())
	t.line("")
	for _, alarm := range t.Alarms() {
		t.paragraph("! ", alarm, red)
	}
	if text := t.Calibrated(); text != "" {
		t.wrap("", text)
	}
	for _, name := range t.runtimes {
		t.onRuntime(name)
	}
	for _, name := range t.runtimes {
		t.table(name)
	}
	t.reasons("Could not be applied", func(c *matrix.Combination) string {
		if c.Effect != compare.CouldNotApply {
			return ""
		}
		return cmp.Or(oneLine(c.Reason), "no reason given")
	})
	t.reasons("Applied, but not verified", func(c *matrix.Combination) string { return c.Unverified })
	t.ledger()
	return t.out.Flush()
}

type text struct {
	*view
	out   *bufio.Writer
	width int
	color bool
}

func newText(w io.Writer, r *matrix.Result, o TextOptions) *text {
	return &text{view: newView(r), out: bufio.NewWriter(w), width: max(cmp.Or(o.Width, 80), 40), color: o.Color}
}

const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

func (t *text) paint(text, color string) string {
	if !t.color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (t *text) line(text string) { fmt.Fprintln(t.out, strings.TrimRight(text, " ")) }

func (t *text) heading(text string) {
	t.line("")
	t.line(t.paint(clip(oneLine(text), t.width), bold))
}

// wrap writes a paragraph. Its lines are indented by the length of first.
func (t *text) wrap(first, text string) { t.paragraph(first, text, "") }

func (t *text) paragraph(first, text, color string) {
	for line := range strings.Lines(english.Wrap(first, columns(first), oneLine(text), t.width)) {
		t.line(t.paint(strings.TrimSuffix(line, "\n"), color))
	}
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

func (t *text) onRuntime(runtime string) {
	all := t.answers(runtime)
	t.heading(fmt.Sprintf("On %s: %s", runtime, tally(all)))
	for _, a := range all {
		if a.Grows() || a.Crashes() {
			t.finding(a)
		}
	}
	for _, l := range settled(all) {
		var parts []string
		for _, a := range l.answers {
			parts = append(parts, fmt.Sprintf("%s (%s)", a.Workload.ID, t.Verdict(a.Base)))
		}
		t.wrap("  ", l.Label+": "+strings.Join(parts, ", ")+".")
	}
	for _, k := range t.keeps(all) {
		t.wrap("  ", fmt.Sprintf("%s keeps its memory: %s", k.Workload.ID, k.Course()))
		t.wrap("      ", t.Keeper(k))
		t.lines(t.KeptLines(k), k.compared > 0)
	}
	for _, l := range t.barren(all) {
		var parts []string
		for _, m := range l.Items {
			parts = append(parts, m.ID)
		}
		t.wrap("  ", fmt.Sprintf("Did nothing against the growth of %s: %s.", l.Label, strings.Join(parts, ", ")))
	}
	for _, a := range all {
		if len(a.Peak) > 0 && !a.Grows() {
			c := a.Peak[0]
			t.wrap("  ", fmt.Sprintf("Lowest peak of %s: %s with %s; %s.", a.Workload.ID, size(c.Figures.Peak), c.Remedy, t.Cost(c)))
		}
	}
}

func (t *text) finding(a answer) {
	purpose := "."
	if a.OnPurpose() {
		purpose = ", on purpose."
	}
	t.wrap("  ", a.Workload.ID+orEmpty(" ", a.Workload.Title)+": "+t.Verdict(a.Base)+purpose)
	if a.Grows() {
		why := t.Why(a)
		if why.Layer != "" {
			why.Text = "Carried by " + why.Layer + ": " + why.Text
		}
		t.wrap("      ", why.Text)
	}
	if without := t.Unlimited(a); without != "" {
		t.wrap("      ", without)
	}
	t.lines(t.Lines(a), a.tried())
}

// lines writes the lines of an answer. Lines without remedies are written if notes is set.
func (t *text) lines(lines []line, notes bool) {
	for _, l := range lines {
		if len(l.Items) == 0 {
			if notes {
				t.paragraph("      ", l.Note, l.color)
			}
			continue
		}
		var parts []string
		for _, it := range l.Items {
			part := it.ID
			if it.Before != "" {
				part = it.Before + " " + part
			}
			if it.After != "" {
				part += " (" + it.After + ")"
			}
			parts = append(parts, part)
		}
		if l.More > 0 {
			parts = append(parts, fmt.Sprintf("and %d more", l.More))
		}
		t.paragraph("      ", l.text+strings.Join(parts, ", ")+".", l.color)
	}
}

// table writes a row per remedy and a column per workload, in blocks that fit the width.
func (t *text) table(runtime string) {
	without := func(of func(*matrix.Combination) bool) bool {
		return !slices.ContainsFunc(t.Combinations, func(c matrix.Combination) bool {
			return c.Runtime == runtime && c.Remedy != matrix.Baseline && c.Effect != compare.NotApplicable && c.Effect != compare.CouldNotApply && of(&c)
		})
	}
	remedies := slices.DeleteFunc(slices.Clone(t.remedies), func(m matrix.Remedy) bool {
		return without(func(c *matrix.Combination) bool { return c.Remedy == m.ID })
	})
	workloads := slices.DeleteFunc(slices.Clone(t.workloads), func(w matrix.Workload) bool {
		return without(func(c *matrix.Combination) bool { return c.Workload == w.ID })
	})
	if len(remedies) == 0 {
		return
	}
	name := 6
	for _, m := range remedies {
		name = max(name, columns(oneLine(m.ID)))
	}
	name = min(name, t.width/3)
	const column, last = 9, 7
	t.heading("Remedies on " + runtime)
	t.wrap("", "Ratio of the amount with the remedy to that without it: s slope, p peak, c after close, g GPU memory. "+
		"✓ works, ◐ partly, = no effect, =? no effect, but perhaps not applied, ✗ harmful, ? unclear, ! could not apply, · not applicable. "+
		"time: median ratio of step times over all workloads, with ? if most are unclear.")
	per := max((t.width-name-last)/column, 1)
	for block := range slices.Chunk(workloads, per) {
		t.line("")
		head := pad("", name) + "   time"
		for _, w := range block {
			head += " " + pad(clip(oneLine(w.ID), column-1), column-1)
		}
		t.line(t.paint(strings.TrimRight(head, " "), faint))
		for _, m := range remedies {
			row := pad(clip(oneLine(m.ID), name), name) + "  " + pad(t.usualTime(runtime, m.ID), last-2)
			for _, w := range block {
				c := t.combination(runtime, w.ID, m.ID)
				if c == nil {
					row += strings.Repeat(" ", column)
					continue
				}
				row += " " + t.paint(pad(t.mark(c), column-1), lookOf(c).color)
			}
			t.line(row)
		}
	}
}

// mark describes the effect of a remedy in eight columns.
func (t *text) mark(c *matrix.Combination) string {
	text := cmp.Or(lookOf(c).Symbol, "?")
	if c.Effect == compare.NotApplicable || c.Effect == compare.CouldNotApply {
		return text
	}
	name, r := t.goalRatio(c)
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
	return text + map[string]string{"slope": "s", "peak": "p", "after close": "c", "GPU": "g"}[name] + strings.TrimPrefix(times(r, false), "×")
}

// usualTime returns the median ratio of step times.
func (t *text) usualTime(runtime, remedy string) string {
	var all []float64
	unclear := 0
	for _, w := range t.workloads {
		if c := t.combination(runtime, w.ID, remedy); c != nil && c.Comparison != nil && c.Comparison.StepTime.OK {
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

// reasons lists the remedies for which a function returns a reason.
func (t *text) reasons(heading string, of func(*matrix.Combination) string) {
	var reasons []string
	cells := map[string][]string{}
	for i := range t.Combinations {
		c := &t.Combinations[i]
		reason := oneLine(of(c))
		if reason == "" {
			continue
		}
		if _, ok := cells[reason]; !ok {
			reasons = append(reasons, reason)
		}
		if name := c.Remedy + " on " + c.Runtime; !slices.Contains(cells[reason], name) {
			cells[reason] = append(cells[reason], name)
		}
	}
	if len(reasons) > 0 {
		t.heading(heading)
	}
	for _, reason := range reasons {
		t.wrap("  ", strings.Join(cells[reason], ", ")+": "+reason)
	}
}

func (t *text) ledger() {
	if len(t.Claims) == 0 {
		return
	}
	t.heading("What people say")
	var untested []string
	for _, c := range t.Claims {
		var parts []string
		for _, d := range c.Verdicts {
			parts = append(parts, d.Verdict+" on "+d.Runtime)
		}
		if len(parts) == 0 {
			untested = append(untested, c.ID)
			continue
		}
		t.wrap("  "+pad(c.ID, 4), c.Text+": "+strings.Join(parts, ", ")+".")
	}
	if len(untested) > 0 {
		t.wrap("  ", "Not tested here: "+strings.Join(untested, ", ")+"; claims.md has what a test needs.")
	}
}
