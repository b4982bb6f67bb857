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

	"steadyfit/internal/lab/measure"
	"steadyfit/matrix"
	"steadyfit/memory"
)

// TextOptions say how Text writes. The zero value is 80 columns without colour.
type TextOptions struct {
	// Width in columns, at least 40; 0 means 80.
	Width int
	// Color marks effects with the colours of a terminal.
	Color bool
}

// Text writes the answer for a terminal: whether the instrument can be trusted,
// what grows on which runtime and what removes that, a table of remedies, and what
// could not be applied and why.
func Text(w io.Writer, r *matrix.Result, o TextOptions) error {
	if o.Width == 0 {
		o.Width = 80
	}
	t := &text{view: newView(r), out: bufio.NewWriter(w), width: max(o.Width, 40), color: o.Color}
	t.wrap("", t.when())
	t.wrap("", t.machine())
	t.line("")
	for _, alarm := range t.alarms() {
		t.paragraph("! ", alarm, red)
	}
	if text := t.calibrated(); text != "" {
		t.wrap("", text)
	}
	for _, name := range t.runtimes {
		t.onRuntime(name)
	}
	for _, name := range t.runtimes {
		t.table(name)
	}
	t.absent()
	t.unverified()
	t.ledger()
	return t.out.Flush()
}

type text struct {
	*view
	out   *bufio.Writer
	width int
	color bool
}

const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	faint  = "2"
)

var effectColor = map[memory.Effect]string{memory.Works: green, memory.Partly: yellow, memory.Harmful: red,
	memory.NotApplicable: faint, memory.CouldNotApply: faint}

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

// wrap writes a paragraph whose lines after the first are indented as far as the
// first one's beginning is long.
func (t *text) wrap(first, text string) { t.paragraph(first, text, "") }

func (t *text) paragraph(first, text, color string) {
	indent := strings.Repeat(" ", columns(first))
	line, empty := first, true
	flush := func() { t.line(t.paint(line, color)) }
	for _, word := range strings.Fields(oneLine(text)) {
		for {
			room := t.width - columns(line)
			if !empty {
				room--
			}
			if columns(word) <= room {
				break
			}
			if !empty {
				flush()
				line, empty = indent, true
				continue
			}
			head := clip2(word, room)
			line += head
			flush()
			line, word = indent, word[len(head):]
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	flush()
}

func columns(text string) int { return utf8.RuneCountInString(text) }

// clip2 is the beginning of a text, so many columns wide, at least one.
func clip2(text string, width int) string {
	n := 0
	for i := range text {
		if n == max(width, 1) {
			return text[:i]
		}
		n++
	}
	return text
}

// clip shortens a text to so many columns and shows that it did.
func clip(text string, width int) string {
	if columns(text) <= width {
		return text
	}
	return clip2(text, width-1) + "…"
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-columns(text), 0))
}

func (t *text) onRuntime(runtime string) {
	all := t.answers(runtime)
	t.heading(fmt.Sprintf("On %s: %s", runtime, tally(all)))
	settled := map[growth][]string{}
	for _, a := range all {
		switch a.growth {
		case grows, dies:
			t.finding(a)
		default:
			settled[a.growth] = append(settled[a.growth], fmt.Sprintf("%s (%s)", a.workload.ID, t.verdict(a.base)))
		}
	}
	for _, g := range []struct {
		growth growth
		text   string
	}{{settles, "Rises, then levels off: "}, {steady, "Does not grow: "}, {undecided, "Undecided: "}} {
		if list := settled[g.growth]; len(list) > 0 {
			t.wrap("  ", g.text+strings.Join(list, ", ")+".")
		}
	}
	for _, k := range t.keeps(all) {
		t.kept(k)
	}
	for _, l := range t.barren(all) {
		var names []string
		for _, m := range l.Items {
			names = append(names, m.Name)
		}
		t.wrap("  ", fmt.Sprintf("Did nothing against the growth of %s: %s.", l.Label, strings.Join(names, ", ")))
	}
	for _, a := range all {
		if len(a.peak) > 0 && a.growth != grows {
			c := a.peak[0]
			t.wrap("  ", fmt.Sprintf("Lowest peak of %s: %s with %s; %s.", a.workload.ID, size(c.Figures.Peak), c.Remedy, t.cost(c)))
		}
	}
}

func (t *text) finding(a answer) {
	t.wrap("  ", fmt.Sprintf("%s: %s%s.", a.workload.ID+orEmpty(" ", a.workload.Title), t.verdict(a.base), orEmptyIf(a.onPurpose(), ", on purpose")))
	if a.growth == grows {
		layer, why := t.why(a)
		t.wrap("      ", orEmptyIf(layer != "", "Carried by "+layer+": ")+why)
	}
	list := func(cells []*matrix.Cell, most int) string {
		var parts []string
		for i, c := range cells {
			if i == most {
				parts = append(parts, fmt.Sprintf("and %d more", len(cells)-most))
				break
			}
			left := ""
			if c.Effect == memory.Partly && c.Comparison != nil && c.Comparison.Slope.OK {
				left = "slope " + times(c.Comparison.Slope, false) + "; "
			}
			parts = append(parts, fmt.Sprintf("%s (%s%s)", c.Remedy, left, t.cost(c)))
		}
		return strings.Join(parts, ", ")
	}
	removed, most, none := "Removed by ", 3, "No remedy that was tried removes it."
	if a.growth == dies {
		removed, most, none = "Survives with ", 8, "It survives with no remedy that was tried."
		if text := t.unlimited(a); text != "" {
			t.wrap("      ", text)
		}
	}
	if len(a.unclear)+len(a.unseen) > 0 {
		none = "No remedy is shown to " + map[bool]string{false: "remove", true: "save"}[a.growth == dies] + " it."
	}
	tried := len(a.lowers) + len(a.nothing) + len(a.unseen) + len(a.harms) + len(a.unclear)
	switch {
	case len(a.removes) > 0:
		t.paragraph("      ", removed+list(a.removes, most)+".", green)
	case tried > 0:
		t.paragraph("      ", none, yellow)
	}
	if len(a.lowers) > 0 {
		t.wrap("      ", "Lowered by "+list(a.lowers, 2)+".")
	}
	if len(a.nothing) > 0 {
		if a.growth == dies {
			t.wrap("      ", "Dies all the same with "+ids(a.nothing)+".")
		} else {
			t.wrap("      ", "Did nothing: "+ids(a.nothing)+".")
		}
	}
	if len(a.unseen) > 0 {
		t.wrap("      ", "Not verified, no difference seen: "+ids(a.unseen)+".")
	}
	if len(a.harms) > 0 {
		t.paragraph("      ", "Worse: "+ids(a.harms)+".", red)
	}
	if len(a.unclear) > 0 {
		t.wrap("      ", "Unclear: "+ids(a.unclear)+".")
	}
}

// ids are the remedies of cells.
func ids(cells []*matrix.Cell) string {
	var parts []string
	for _, c := range cells {
		parts = append(parts, c.Remedy)
	}
	return strings.Join(parts, ", ")
}

// kept is what stays of a workload after everything was closed.
func (t *text) kept(k kept) {
	t.wrap("  ", fmt.Sprintf("%s keeps its memory: %s", k.workload.ID, k.course()))
	t.wrap("      ", t.keeper(k))
	list := func(cells []*matrix.Cell) string {
		var parts []string
		for i, c := range cells {
			if i == mostReturns {
				parts = append(parts, fmt.Sprintf("and %d more", len(cells)-i))
				break
			}
			parts = append(parts, fmt.Sprintf("%s with %s (%s)", size(c.Figures.Closed), c.Remedy, t.afterClose(c)))
		}
		return strings.Join(parts, ", ")
	}
	switch {
	case len(k.back) > 0:
		t.paragraph("      ", "It comes back to "+list(k.back)+".", green)
	case k.compared > 0:
		t.paragraph("      ", "No setting that was tried brings it back.", yellow)
	}
	if len(k.fewer) > 0 {
		t.wrap("      ", "Less is taken to begin with: "+list(k.fewer)+".")
	}
	if len(k.alittle) > 0 {
		t.wrap("      ", "A little less with "+ids(k.alittle)+".")
	}
	if len(k.same) > 0 {
		t.wrap("      ", "As much with "+ids(k.same)+".")
	}
	if len(k.unseen) > 0 {
		t.wrap("      ", "Not verified, no difference seen: "+ids(k.unseen)+".")
	}
}

func orEmptyIf(ok bool, text string) string {
	if ok {
		return text
	}
	return ""
}

// table has a row per remedy and a column per workload, in as many blocks as the
// width takes.
func (t *text) table(runtime string) {
	var remedies []matrix.Remedy
	var workloads []matrix.Workload
	told := func(c *matrix.Cell) bool {
		return c != nil && c.Remedy != matrix.Baseline && c.Effect != memory.NotApplicable && c.Effect != memory.CouldNotApply
	}
	for _, m := range t.remedies {
		if slices.ContainsFunc(t.workloads, func(w matrix.Workload) bool { return told(t.cell(runtime, w.ID, m.ID)) }) {
			remedies = append(remedies, m)
		}
	}
	for _, w := range t.workloads {
		if slices.ContainsFunc(remedies, func(m matrix.Remedy) bool { return told(t.cell(runtime, w.ID, m.ID)) }) {
			workloads = append(workloads, w)
		}
	}
	if len(remedies) == 0 {
		return
	}
	name := 6
	for _, m := range remedies {
		name = max(name, columns(oneLine(m.ID)))
	}
	name = min(name, t.width/3)
	const column, last = 8, 7
	t.heading("Remedies on " + runtime)
	t.wrap("", "Amount with the remedy over that without: s slope, p peak, c after close, g GPU memory. "+
		"✓ works, ◐ partly, = no effect, =? the same, but not verified to be in force, ✗ harmful, ? unclear, ! could not apply, · not applicable. "+
		"time: middle ratio of step times over all workloads; with ? where most of them are unclear.")
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
				c := t.cell(runtime, w.ID, m.ID)
				if c == nil {
					row += strings.Repeat(" ", column)
					continue
				}
				row += " " + t.paint(pad(t.mark(c), column-1), effectColor[c.Effect])
			}
			t.line(row)
		}
	}
}

// mark is a cell in seven columns.
func (t *text) mark(c *matrix.Cell) string {
	text := cmp.Or(symbol(c), "?")
	if c.Effect == memory.NotApplicable || c.Effect == memory.CouldNotApply {
		return text
	}
	name, r := t.goalRatio(c)
	switch {
	case diesToo(c):
		return text + " dies"
	case c.Comparison != nil && c.Comparison.RemedyCrashes > 0 && c.Effect == memory.Harmful:
		return text + " dies"
	case c.Comparison != nil && c.Comparison.BaseCrashes > 0 && c.Effect == memory.Works:
		return text + " lives"
	case !r.OK:
		return text
	case math.Abs(r.Estimate) >= 99.95:
		return text + " >99"
	}
	return text + map[string]string{"slope": "s", "peak": "p", "after close": "c", "GPU": "g"}[name] + strings.TrimPrefix(times(r, false), "×")
}

// usualTime is the middle ratio of step times of a remedy.
func (t *text) usualTime(runtime, remedy string) string {
	var all []float64
	unclear := 0
	for _, w := range t.workloads {
		if c := t.cell(runtime, w.ID, remedy); c != nil && c.Comparison != nil && c.Comparison.StepTime.OK {
			all = append(all, c.Comparison.StepTime.Estimate)
			if c.Comparison.StepTime.Effect == memory.Unclear {
				unclear++
			}
		}
	}
	if len(all) == 0 {
		return unknown
	}
	return fmt.Sprintf("×%.2f%s", measure.Median(all), orEmptyIf(2*unclear > len(all), "?"))
}

// absent lists what could not be applied, by reason.
func (t *text) absent() {
	var reasons []string
	remedies := map[string][]string{}
	for i := range t.Cells {
		c := &t.Cells[i]
		if c.Effect != memory.CouldNotApply {
			continue
		}
		reason := cmp.Or(oneLine(c.Reason), "no reason given")
		if _, ok := remedies[reason]; !ok {
			reasons = append(reasons, reason)
		}
		if name := c.Remedy + " on " + c.Runtime; !slices.Contains(remedies[reason], name) {
			remedies[reason] = append(remedies[reason], name)
		}
	}
	if len(reasons) == 0 {
		return
	}
	t.heading("Could not be applied")
	for _, reason := range reasons {
		t.wrap("  ", strings.Join(remedies[reason], ", ")+": "+reason)
	}
}

// unverified lists what was applied and could not be seen to take, by reason.
func (t *text) unverified() {
	var reasons []string
	cells := map[string][]string{}
	for i := range t.Cells {
		c := &t.Cells[i]
		reason := oneLine(c.Unverified)
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
	if len(reasons) == 0 {
		return
	}
	t.heading("Applied, but not verified")
	for _, reason := range reasons {
		t.wrap("  ", strings.Join(cells[reason], ", ")+": "+reason)
	}
}

// ledger counts the claims by verdict.
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
		t.wrap("  ", "Not tested here: "+strings.Join(untested, ", ")+"; claims.md says what would test them.")
	}
}
