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

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

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

// duration formats nanoseconds with three significant digits.
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

// significant formats a number without an exponent.
func significant(v float64, digits int) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	before := int(math.Floor(math.Log10(math.Abs(v)))) + 1
	return strconv.FormatFloat(v, 'f', max(digits-before, 0), 64)
}

var typeset = strings.NewReplacer("-", "−", "x", "×", "inf", "∞")

// rate formats a slope per step, "+4.6 MiB/step [4.5, 4.7]".
func rate(s memory.Interval, bounds bool) string {
	var interval []float64
	if bounds {
		interval = []float64{s.Low, s.High}
	}
	return typeset.Replace(memlayer.Rate(memory.Anon, memlayer.PerStep, s.Estimate, interval...))
}

func slopeText(c *matrix.Combination, bounds bool) string {
	s, ok := slope(c)
	if !ok {
		return unknown
	}
	return rate(s, bounds)
}

// spread formats the range of slopes, "4.5 to 4.7 over 5 runs", or the interval of a single
// run, in the unit of slopeText.
func spread(c *matrix.Combination) string {
	s, ok := slope(c)
	if !ok {
		return ""
	}
	text := rate(s, true)
	i := strings.Index(text, "[")
	low, high, _ := strings.Cut(strings.Trim(text[i:], "[]"), ", ")
	// All values have the unit of the largest one; the estimate alone might have a smaller unit.
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

func times(r compare.Ratio, bounds bool) string {
	if !r.OK {
		return unknown
	}
	return typeset.Replace(r.Times(bounds))
}

// Cost describes the cost of a remedy: "step time ×1.42; peak ×0.61". If all baseline runs crashed,
// it has amounts instead of ratios: "peak 1.2 GiB; 140 ms per step".
func (v *view) Cost(c *matrix.Combination) string {
	var parts []string
	if c.Comparison != nil {
		for _, part := range []struct {
			name string
			r    compare.Ratio
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

// goalRatio returns the ratio to the baseline of the amount that the remedy should lower.
func (v *view) goalRatio(c *matrix.Combination) (name string, r compare.Ratio) {
	if c.Comparison == nil {
		return "", compare.Ratio{}
	}
	switch v.goal(c) {
	case compare.LowerPeak:
		return "peak", c.Comparison.Peak
	case compare.LowerReset:
		return "after close", c.Comparison.Reset
	case compare.LowerGPU:
		return "GPU", c.Comparison.GPU
	}
	return "slope", c.Comparison.Slope
}

// Verdict returns the verdict on a combination in a few words.
func (v *view) Verdict(c *matrix.Combination) string {
	switch {
	case c == nil:
		return unknown
	case growthOf(c) == crashes:
		return "crashes: " + v.crash(c)
	case c.Verdict == nil:
		return unknown
	}
	d := c.Verdict
	switch d.Kind {
	case memory.Leak:
		return "grows by " + strings.TrimPrefix(slopeText(c, false), "+") + known(spread(c), ", %s")
	case memory.Plateau:
		if d.Slope.Low > 0 && d.Slope.Estimate > d.NoiseFloor {
			return fmt.Sprintf("rises by %s to %s, then by %s, within its budget of %s", d.Level-d.Start, d.Level,
				strings.TrimPrefix(slopeText(c, false), "+"), strings.TrimPrefix(memlayer.Rate(d.Layer, d.Per, float64(d.Budget)),
					"+"))
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
		return "inconclusive" + known(d.Reason, ": %s")
	}
	return string(d.Kind)
}

func verdictWord(c *matrix.Combination) string {
	switch growthOf(c) {
	case crashes:
		return "crashes"
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

// crash returns the most common cause of the crashed runs, with their number.
func (v *view) crash(c *matrix.Combination) string {
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

// causes has a sentence for each value of Verdict.Cause.
var causes = map[string]string{
	memlayer.GCLag:       "unreachable native objects wait for the garbage collector, which does not see their size",
	memlayer.Unreleased:  "native objects are created and never released",
	memlayer.HostHistory: "the program itself keeps objects on the Go heap",
	memlayer.RuntimeCache: "TensorFlow's allocators hold more with each step, and the number of objects stays the " +
		"same: a cache or the graph grows",
	memlayer.NativeHeap:   "memory in use of malloc grows with each step, and no layer above explains it",
	memlayer.GoRuntime:    "the Go runtime holds more than its heap needs",
	memlayer.Retention:    "an allocator keeps freed memory; memory in use of malloc is flat",
	memlayer.Files:        "the process reads more pages of files",
	memlayer.Unattributed: "no sampled layer grows with it",
}

// release is the ID of the remedy that releases native objects explicitly.
const release = "close"

// origin has the layer that grows, and an explanation in sentences. Layer and Text are empty if
// nothing grows.
type origin struct{ Layer, Text string }

// Why explains why the workload of an answer grows.
func (v *view) Why(a answer) (o origin) {
	d := a.Base.Verdict
	if d == nil || d.Cause == "" {
		return origin{Text: notes(d)}
	}
	o.Text = cmp.Or(causes[d.Cause], d.Cause) + "."
	if d.Cause == memlayer.Unattributed || d.Carrier == d.Layer {
		o.Text = sentence(o.Text)
	} else {
		o.Layer = string(d.Carrier)
	}
	if d.Cause == memlayer.GCLag && a.growth == grows {
		o.Text += " " + v.explicitly(a) + known(sentence(matrix.Early(v.runsOf(a.Base))), " %s")
	}
	switch p := a.Base.Figures.Pool; d.Cause {
	case memlayer.RuntimeCache, memlayer.NativeHeap, memlayer.Retention, memlayer.Unattributed:
		if p != nil && a.growth == grows {
			o.Text += fmt.Sprintf(" A step takes up to %s from TensorFlow's pool.", size(p))
		}
	}
	o.Text = strings.TrimSpace(o.Text + " " + notes(d))
	return o
}

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

// explicitly explains how to release objects that wait for the garbage collector. On a runtime that
// has no remedy for this, it reports the result of the runtime go.
func (v *view) explicitly(a answer) string {
	m, ok := v.remedy[release]
	if !ok {
		m, _ = matrix.FindRemedy(release)
	}
	if len(m.Runtimes) == 0 || slices.Contains(m.Runtimes, a.Runtime) {
		return "Release them explicitly."
	}
	text := fmt.Sprintf("No remedy on %s releases them explicitly.", a.Runtime)
	other := v.combination(matrix.Go, a.Workload.ID, release)
	if a.Runtime == matrix.Go || other == nil || !measured(other) || other.Verdict == nil {
		return text
	}
	text += fmt.Sprintf(" The same workload on %s with “%s”: %s", matrix.Go, v.title(release), v.Verdict(other))
	if other.Figures.StepTime != nil && a.Base.Figures.StepTime != nil {
		text += fmt.Sprintf("; a step takes %s, %s here", duration(other.Figures.StepTime), duration(a.Base.Figures.StepTime))
	}
	return text + "."
}

// look is how an effect is shown: a symbol and a word, with a class on a page and a color on a
// terminal. Text explains the thresholds of compare.Runs.
type look struct {
	effect                    compare.Effect
	Symbol, Word, Class, Text string
	color                     string
}

// unverified is the look of a remedy without an effect that may not have been applied.
const unverified compare.Effect = "unverified"

// looks are in the order of the legend, the best effect first.
var looks = []look{
	{compare.Works, "✓", "works", "works", "a slope is at most a tenth (or less than half, and no run grows); a peak " +
		"or level is lower by at least a fifth", green},
	{compare.Partly, "◐", "partly", "partly", "lower by at least 5%, but not enough to count as works", yellow},
	{compare.NoEffect, "=", "no effect", "none", "within 10% of the amount without the remedy, or lower by less than 5%",
		""},
	{unverified, "=?", "not verified", "unclear", "no difference was seen, but nothing shows that the remedy was applied",
		""},
	{compare.Harmful, "✗", "harmful", "harm", "higher by more than 10%, or the runs crash with it", red},
	{compare.Unclear, "?", "unclear", "unclear", "the interval contains both an effect and no effect", ""},
	{compare.CouldNotApply, "!", "not applied", "absent",
		"the remedy could not be applied on this machine; the reason is beside it", faint},
	{compare.NotApplicable, "·", "n/a", "na", "the remedy changes nothing on this workload or runtime", faint},
}

func rank(e compare.Effect) int {
	return slices.IndexFunc(looks, func(l look) bool { return l.effect == e })
}

func lookOf(c *matrix.Combination) look {
	e := c.Effect
	if c.Unverified != "" && (e == compare.NoEffect || crashesToo(c)) {
		e = unverified
	}
	l := look{Word: cmp.Or(string(e), unknown)}
	if i := rank(e); i >= 0 {
		l = looks[i]
	}
	if c.Remedy == matrix.Baseline {
		l.Class = "base"
	}
	return l
}

// sentence adds a capital letter and a full stop.
func sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	first, n := utf8.DecodeRuneInString(text)
	if word, _, _ := strings.Cut(text, " "); !strings.ContainsAny(word, "_=0123456789./") {
		text = string(unicode.ToUpper(first)) + text[n:]
	}
	if !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "!") && !strings.HasSuffix(text, "?") {
		text += "."
	}
	return text
}

// oneLine replaces control characters and line breaks.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }),
		" ")
}

func lasted(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}
