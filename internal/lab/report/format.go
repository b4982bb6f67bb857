package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"steadyfit/internal/lab/worker"
	"steadyfit/matrix"
	"steadyfit/memory"
)

// size formats an amount of memory; an unknown amount is a dash.
func size(b *int64) string {
	if b == nil {
		return unknown
	}
	return memory.Bytes(*b).String()
}

func reading(r memory.Reading) string {
	if !r.OK {
		return unknown
	}
	return r.Bytes.String()
}

// duration formats the time of a step in nanoseconds, with three significant digits.
func duration(ns *int64) string {
	if ns == nil {
		return unknown
	}
	v := float64(*ns)
	for _, u := range []struct {
		name string
		size float64
	}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
		if math.Abs(v) >= u.size {
			return significant(v/u.size, 3) + " " + u.name
		}
	}
	return significant(v, 3) + " ns"
}

// significant formats a number with that many significant digits, and without an exponent.
func significant(v float64, digits int) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	before := int(math.Floor(math.Log10(math.Abs(v)))) + 1
	return strconv.FormatFloat(v, 'f', max(digits-before, 0), 64)
}

// typeset replaces the signs for terminals by typographic ones.
var typeset = strings.NewReplacer("-", "−", "x", "×", "inf", "∞")

// rate formats a slope per step, "+4.6 MiB/step", or with its bounds, "+4.6 MiB/step [4.5,
// 4.7]".
func rate(s memory.Interval, bounds bool) string {
	return typeset.Replace(memory.Rate(memory.Anon, s, memory.PerStep, bounds))
}

// slopeText formats the slope of a cell with its range.
func slopeText(c *matrix.Cell, bounds bool) string {
	s, ok := slope(c)
	if !ok {
		return unknown
	}
	return rate(s, bounds)
}

// spread formats the range of the slopes of the runs of a cell, "4.5 to 4.7 over 5 runs", or the
// interval of a single run, in the unit of slopeText.
func spread(c *matrix.Cell) string {
	s, ok := slope(c)
	if !ok {
		return ""
	}
	text := rate(s, true)
	i := strings.Index(text, "[")
	low, high, _ := strings.Cut(strings.Trim(text[i:], "[]"), ", ")
	// The unit is that of the largest of the three values; the estimate alone may have a smaller
	// unit.
	if unit := strings.Fields(text)[1]; !strings.HasSuffix(rate(s, false), " "+unit) {
		high += " " + unit
	}
	switch n := len(c.Runs); {
	case n > 1 && low == high:
		return fmt.Sprintf("%s in each of %d runs", low, n)
	case n > 1:
		return fmt.Sprintf("%s to %s over %d runs", low, high, n)
	case c.Verdict != nil && c.Verdict.Confidence > 0:
		return fmt.Sprintf("%s%% interval %s to %s", significant(100*c.Verdict.Confidence, 2), low, high)
	}
	return fmt.Sprintf("interval %s to %s", low, high)
}

// times formats a ratio: "×0.61", with its interval if bounds is set.
func times(r memory.Ratio, bounds bool) string {
	if !r.OK {
		return unknown
	}
	return typeset.Replace(r.Times(bounds))
}

// Cost describes the cost of a remedy: "step time ×1.42; peak ×0.61". If the workload crashes
// without the remedy, there is nothing to compare with, and Cost has absolute amounts: "peak 1.2
// GiB; 140 ms per step".
func (v *view) Cost(c *matrix.Cell) string {
	var parts []string
	if c.Comparison != nil {
		for _, part := range []struct {
			name string
			r    memory.Ratio
		}{{"step time", c.Comparison.StepTime}, {"peak", c.Comparison.Peak}, {"GPU memory", c.Comparison.GPU}} {
			name := part.name
			if name == "step time" && v.lessWork(c.Remedy) {
				name = "time of a smaller step"
			}
			switch {
			case !part.r.OK:
			case alike(part.r):
				parts = append(parts, name+" as before ("+times(part.r, false)+")")
			case part.r.Low <= 1 && part.r.High >= 1:
				parts = append(parts, name+" unclear ("+times(part.r, true)+")")
			default:
				parts = append(parts, name+" "+times(part.r, false))
			}
		}
	}
	if len(parts) == 0 {
		if c.Figures.Peak != nil {
			parts = append(parts, "peak "+size(c.Figures.Peak))
		}
		if c.Figures.StepTime != nil {
			per := " per step"
			if v.lessWork(c.Remedy) {
				per = " per smaller step"
			}
			parts = append(parts, duration(c.Figures.StepTime)+per)
		}
	}
	if len(parts) == 0 {
		return "cost not measured"
	}
	return strings.Join(parts, "; ")
}

// goalRatio returns the ratio of the amount that the remedy is meant to lower.
func (v *view) goalRatio(c *matrix.Cell) (name string, r memory.Ratio) {
	if c.Comparison == nil {
		return "", memory.Ratio{}
	}
	switch v.goal(c) {
	case memory.LowerPeak:
		return "peak", c.Comparison.Peak
	case memory.LowerReset:
		return "after close", c.Comparison.Reset
	case memory.LowerGPU:
		return "GPU", c.Comparison.GPU
	}
	return "slope", c.Comparison.Slope
}

// Verdict is the verdict on a cell in a few words.
func (v *view) Verdict(c *matrix.Cell) string {
	switch {
	case c == nil:
		return unknown
	case growthOf(c) == dies:
		return "dies: " + v.death(c)
	case c.Verdict == nil:
		return unknown
	}
	d := c.Verdict
	switch d.Kind {
	case memory.Leak:
		return "grows by " + strings.TrimPrefix(slopeText(c, false), "+") + orEmpty(", ", spread(c))
	case memory.Plateau:
		if d.Slope.Low > 0 && d.Slope.Estimate > d.NoiseFloor {
			return fmt.Sprintf("rises by %s to %s, then by %s, within its budget of %s", d.Level-d.Start, d.Level,
				strings.TrimPrefix(slopeText(c, false), "+"), strings.TrimPrefix(memory.Rate(d.Layer, memory.Interval{Estimate: float64(d.Budget)}, d.Per, false), "+"))
		}
		return fmt.Sprintf("rises by %s, then level at %s", d.Level-d.Start, d.Level)
	case memory.Jump:
		change := d.Level - d.Start
		if len(d.Jumps) > 0 {
			change = d.Jumps[0].Amount
		}
		return fmt.Sprintf("jumps by %s, then level at %s", change, d.Level)
	case memory.Flat:
		return fmt.Sprintf("flat at %s", d.Level)
	case memory.Sawtooth:
		return fmt.Sprintf("saw-tooth, %s deep, no growth", d.Depth)
	case memory.Inconclusive:
		return "inconclusive" + orEmpty(": ", d.Reason)
	}
	return string(d.Kind)
}

// verdictWord returns a word for the kind of a verdict.
func verdictWord(c *matrix.Cell) string {
	switch growthOf(c) {
	case dies:
		return "dies"
	case grows:
		return "grows"
	case steady:
		if c.Verdict.Kind == memory.Sawtooth {
			return "saw-tooth"
		}
		return "flat"
	case settles:
		if c.Verdict.Kind == memory.Jump {
			return "jump"
		}
		return "plateau"
	}
	if c == nil || c.Verdict == nil {
		return unknown
	}
	return string(c.Verdict.Kind)
}

// death returns the number of crashed runs of a cell and their most common cause.
func (v *view) death(c *matrix.Cell) string {
	counts, best := map[string]int{}, ""
	for _, cause := range c.Crashes {
		counts[cause]++
		if best == "" || counts[cause] > counts[best] {
			best = cause
		}
	}
	if best == "" && c.Verdict != nil {
		best = c.Verdict.Reason
	}
	best = cmp.Or(strings.TrimSuffix(strings.TrimPrefix(best, string(worker.Failed)+": "), "."), "cause unknown")
	if n := len(c.Runs); n > 1 && len(c.Crashes) > 0 {
		return fmt.Sprintf("%s (%d of %d runs)", best, len(c.Crashes), n)
	}
	return best
}

// causes explain the layers that carry a growth, in words for readers who do not know package
// memory.
var causes = map[memory.Cause]string{
	memory.GCLag:        "native objects that nothing refers to any more wait for the garbage collector, which does not see how large they are",
	memory.Unreleased:   "native objects are made and never released",
	memory.HostHistory:  "the program itself keeps what it makes, on the Go heap",
	memory.RuntimeCache: "TensorFlow's allocators hold more with each step while the number of objects is the same: a cache or the graph grows",
	memory.NativeHeap:   "malloc has handed out more with each step, and no layer above says to whom",
	memory.GoRuntime:    "the Go runtime holds more than its heap needs",
	memory.Retention:    "memory is freed and kept by its allocator; malloc in use is flat",
	memory.Files:        "pages of files came in",
	memory.Unattributed: "no layer that was sampled goes along with it",
}

// cause returns the layer that carries the growth and its explanation; both are empty if nothing
// grew.
func cause(d *memory.Verdict) (layer, text string) {
	if d == nil || d.Cause == "" {
		return "", ""
	}
	text = cmp.Or(causes[d.Cause], string(d.Cause))
	if d.Cause == memory.Unattributed || d.Carrier == d.Layer {
		return "", text
	}
	return string(d.Carrier), text
}

// release is the remedy that releases native objects explicitly.
const release = "close"

// why explains the cause of growth for the workload of an answer, in sentences. It adds the
// remedy for objects that wait for the garbage collector and whether a collection was due, the
// memory in TensorFlow's pool, and the notes of the verdict.
func (v *view) why(a answer) (layer, text string) {
	d := a.Base.Verdict
	layer, text = cause(d)
	if text == "" {
		return "", notes(d)
	}
	if layer == "" {
		text = sentence(text)
	} else {
		text += "."
	}
	if d.Cause == memory.GCLag && a.growth == grows {
		text += " " + v.explicitly(a) + orEmpty(" ", sentence(matrix.Early(a.Runtime, v.runsOf(a.Base))))
	}
	switch p := a.Base.Figures.Pool; d.Cause {
	case memory.RuntimeCache, memory.NativeHeap, memory.Retention, memory.Unattributed:
		if p != nil && a.growth == grows {
			text += fmt.Sprintf(" A step takes up to %s from TensorFlow's pool.", size(p))
		}
	}
	return layer, strings.TrimSpace(text + " " + notes(d))
}

// notes returns the notes of a verdict as sentences.
func notes(d *memory.Verdict) string {
	if d == nil {
		return ""
	}
	var list []string
	for _, n := range d.Notes {
		list = append(list, sentence(n))
	}
	return strings.Join(list, " ")
}

// explicitly says how to release objects that wait for the garbage collector: by the remedy for
// it or, on a runtime without one, by the same workload on the runtime that has one.
func (v *view) explicitly(a answer) string {
	m, ok := v.remedy[release]
	if !ok {
		// The remedy was not part of the matrix, but the runtimes that have it are known.
		m, _ = matrix.FindRemedy(release)
	}
	if len(m.Runtimes) == 0 || slices.Contains(m.Runtimes, a.Runtime) {
		return "Release them explicitly."
	}
	text := fmt.Sprintf("There is nothing on %s that releases them explicitly.", a.Runtime)
	other := v.cell(matrix.Go, a.Workload.ID, release)
	if a.Runtime == matrix.Go || other == nil || !measured(other) || other.Verdict == nil {
		return text
	}
	text += fmt.Sprintf(" The same workload on %s with “%s”: %s", matrix.Go, v.title(release), v.Verdict(other))
	if other.Figures.StepTime != nil && a.Base.Figures.StepTime != nil {
		text += fmt.Sprintf("; a step takes %s, %s here", duration(other.Figures.StepTime), duration(a.Base.Figures.StepTime))
	}
	return text + "."
}

// symbols stand for effects where space is short.
var symbols = map[memory.Effect]string{
	memory.Works: "✓", memory.Partly: "◐", memory.NoEffect: "=", memory.Harmful: "✗",
	memory.Unclear: "?", memory.NotApplicable: "·", memory.CouldNotApply: "!",
}

// unseenSymbol and unseenWord stand for a remedy without an effect that may not have been
// applied, so that its effect is not known.
const unseenSymbol, unseenWord = "=?", "not verified"

// unseen reports whether a remedy made no difference and it is not known whether it was applied.
func unseen(c *matrix.Cell) bool {
	return c.Unverified != "" && (c.Effect == memory.NoEffect || diesToo(c))
}

func symbol(c *matrix.Cell) string {
	if unseen(c) {
		return unseenSymbol
	}
	return symbols[c.Effect]
}

func effectWord(e memory.Effect) string {
	switch e {
	case memory.NotApplicable:
		return "n/a"
	case memory.CouldNotApply:
		return "not applied"
	case "":
		return unknown
	}
	return string(e)
}

// word is the word for a cell in a table.
func word(c *matrix.Cell) string {
	if unseen(c) {
		return unseenWord
	}
	return effectWord(c.Effect)
}

// effects are in the order of a legend, the best first.
var effects = []memory.Effect{memory.Works, memory.Partly, memory.NoEffect, memory.Harmful,
	memory.Unclear, memory.CouldNotApply, memory.NotApplicable}

func count(n int, word string) string { return plural(n, word, word+"s") }

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// and joins names as in a sentence.
func and(names []string) string {
	switch n := len(names); n {
	case 0:
		return ""
	case 1:
		return names[0]
	default:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
}

func orEmpty(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// sentence adds a capital letter at the beginning and a full stop at the end.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	first, n := utf8.DecodeRuneInString(text)
	// A name such as "malloc_trim" or "x86" keeps its case.
	if word, _, _ := strings.Cut(text, " "); !strings.ContainsAny(word, "_=0123456789./") {
		text = string(unicode.ToUpper(first)) + text[n:]
	}
	if !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "!") && !strings.HasSuffix(text, "?") {
		text += "."
	}
	return text
}

// oneLine replaces characters that would break a line of text or a terminal.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// lasted formats a length of time to the second.
func lasted(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}
