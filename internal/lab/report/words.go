package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

const unknown = "–"

// state is what a workload does without a remedy: a word with the class of its color. Noise may change
// the word, but not the growth.
type state struct{ Word, Class, growth string }

var states = map[memory.Kind]state{
	memory.Leak:         {"grows", "harm", "grows"},
	memlayer.Crash:      {"crashes", "harm", "crashes"},
	memory.Plateau:      {"levels off", "partly", "does not grow"},
	memory.Jump:         {"jumps once", "partly", "does not grow"},
	memory.Flat:         {"flat", "works", "does not grow"},
	memory.Sawtooth:     {"sawtooth", "works", "does not grow"},
	memory.Inconclusive: {"undecided", "unclear", "undecided"},
}

func kindOf(c *matrix.Combination) memory.Kind {
	switch {
	case c.Verdict != nil:
		return c.Verdict.Kind
	case len(c.Crashes) > 0:
		return memlayer.Crash
	}
	return memory.Inconclusive
}

func stateOf(c *matrix.Combination) state { return states[kindOf(c)] }

// verdict returns the amount behind the state of a workload, and the same in detail.
func verdict(c *matrix.Combination) (figure, detail string) {
	d := cmp.Or(c.Verdict, &memory.Verdict{})
	rise := "+" + (d.Level - d.Start).String()
	switch kindOf(c) {
	case memory.Leak:
		return slopeText(c, false), fmt.Sprintf("%s over %s", slopeText(c, true), texts.Count(len(c.Runs), "run"))
	case memlayer.Crash:
		return "", crash(c)
	case memory.Plateau, memory.Jump:
		if d.Slope.Low > 0 && d.Slope.Estimate > d.NoiseFloor {
			return rise, fmt.Sprintf("%s to %s, then %s, within its budget of %s/step", rise, d.Level, slopeText(c, false),
				d.Budget)
		}
		return rise, fmt.Sprintf("%s, then level at %s", rise, d.Level)
	case memory.Flat:
		return "at " + d.Level.String(), "at " + d.Level.String()
	case memory.Sawtooth:
		return d.Depth.String() + " deep", d.Depth.String() + " deep, no growth"
	}
	return "", cmp.Or(d.Reason, "no run gave a verdict")
}

// crash returns the causes of the crashed runs, with their number.
func crash(c *matrix.Combination) string {
	if len(c.Crashes) == 0 {
		return cmp.Or(c.Reason, "cause unknown")
	}
	causes := slices.Compact(slices.Sorted(slices.Values(c.Crashes)))
	return fmt.Sprintf("%s (%d of %s)", strings.Join(causes, "; "), len(c.Crashes), texts.Count(len(c.Runs), "run"))
}

// causes has a sentence for each value of Verdict.Cause.
var causes = map[string]string{
	memlayer.GCLag:        "Unreachable native objects wait for the garbage collector, which does not see their size.",
	memlayer.Unreleased:   "Native objects are created and never released.",
	memlayer.HostHistory:  "The program itself keeps objects on the Go heap.",
	memlayer.RuntimeCache: "TensorFlow's allocators hold more with each step: a cache or the graph grows.",
	memlayer.NativeHeap:   "Memory in use of malloc grows with each step, and no layer above explains it.",
	memlayer.GoRuntime:    "The Go runtime holds more than its heap needs.",
	memlayer.Retention:    "An allocator keeps freed memory; memory in use of malloc is flat.",
	memlayer.Files:        "The process reads more pages of files.",
	memlayer.Unattributed: "No sampled layer grows with it.",
}

// cause explains the verdict on a baseline: the layer that grows and the notes of the verdict.
func (v *view) cause(c *matrix.Combination) string {
	d := c.Verdict
	if d == nil || d.Kind == memlayer.Crash {
		return ""
	}
	var list []string
	if d.Cause != "" {
		carried := d.Cause != memlayer.Unattributed && d.Carrier != d.Layer
		list = append(list, when(carried, fmt.Sprintf("Carried by %s.", d.Carrier)),
			cmp.Or(causes[d.Cause], sentence(d.Cause)))
	}
	for _, note := range d.Notes {
		list = append(list, sentence(note))
	}
	return strings.Join(present(list...), " ")
}

// look is how an effect is shown. Text explains the thresholds of compare.Runs.
type look struct {
	effect                    compare.Effect
	Symbol, Word, Class, Text string
}

// unverified is the look of a remedy without an effect that may not have been applied.
const unverified compare.Effect = "unverified"

// looks are in the order of the rows, the best effect first. The first one is that of a baseline.
var looks = []look{
	{"", "", "", "base", ""},
	{compare.Works, "✓", "works", "works", "a slope is at most a tenth (or less than half, and no run grows); a peak " +
		"or level is lower by at least a fifth"},
	{compare.Partly, "◐", "partly", "partly", "lower by at least 5%, but not enough to count as works"},
	{compare.NoEffect, "=", "no effect", "none", "within 10% of the amount without the remedy, or lower by less than 5%"},
	{unverified, "=?", "not verified", "unclear", "no difference was seen, but nothing shows that the remedy was applied"},
	{compare.Harmful, "✗", "harmful", "harm", "higher by more than 10%, or the runs crash with it"},
	{compare.Unclear, "?", "unclear", "unclear", "the interval contains both an effect and no effect"},
	{compare.CouldNotApply, "!", "not applied", "absent", "the remedy could not be applied on this machine"},
	{compare.NotApplicable, "·", "n/a", "absent", "the remedy changes nothing on this workload or runtime"},
}

func rank(e compare.Effect) int {
	return slices.IndexFunc(looks, func(l look) bool { return l.effect == e })
}

func lookOf(c *matrix.Combination) look {
	e := c.Effect
	switch {
	case c.Remedy == matrix.Baseline:
		e = ""
	case c.Unverified != "" && e == compare.NoEffect:
		e = unverified
	}
	return looks[max(rank(e), 0)]
}

// crashesToo reports whether most runs crash without the remedy and with it.
func crashesToo(c *matrix.Combination) bool {
	d := c.Comparison
	return d != nil && d.Pairs > 0 && 2*d.BaseCrashes >= d.Pairs && 2*d.RemedyCrashes >= d.Pairs
}

// goalRatio returns the ratio to the baseline of the amount that the remedy should lower.
func goalRatio(c *matrix.Combination) (name string, r compare.Ratio) {
	for _, column := range columns {
		if c.Comparison != nil && column.goal != "" && column.goal == c.Comparison.Goal {
			return column.name, column.of(c)
		}
	}
	return "", compare.Ratio{}
}

// cost describes the cost of a remedy: "step time ×1.42, peak ×0.61". An interval is shown if it
// contains 1. If nothing could be compared, the text has amounts.
func cost(c *matrix.Combination) string {
	var parts []string
	goal, _ := goalRatio(c)
	for _, column := range columns {
		r := column.of(c)
		if r.OK && column.name != goal && column.goal != compare.LowerSlope && column.goal != compare.LowerReset {
			parts = append(parts, column.name+" "+times(r, r.Low < 1 && r.High > 1))
		}
	}
	if len(parts) == 0 && c.Figures.Peak != nil && c.Figures.StepTime != nil {
		return fmt.Sprintf("peak %s, %s per step", size(c.Figures.Peak), duration(c.Figures.StepTime))
	}
	return join(parts)
}

// nearest rounds a ratio, because small differences are noise; infinite if unknown.
func nearest(r compare.Ratio) float64 {
	if !r.OK {
		return math.Inf(1)
	}
	return math.Round(10*r.Estimate) / 10
}

// lessWork reports whether a step does less work with a remedy.
func lessWork(m matrix.Remedy) bool { return m.Params["batch_divide"] != "" || m.Params["batch"] != "" }

// remark returns what the figures of a remedy do not say.
func remark(c *matrix.Combination, m matrix.Remedy) string {
	if c.Remedy == matrix.Baseline {
		return ""
	}
	text, d := c.Reason, cmp.Or(c.Comparison, &compare.Comparison{})
	_, r := goalRatio(c)
	if r.OK { // the reason repeats it
		if _, rest, ok := strings.Cut(text, "of that without it"); ok {
			text = strings.TrimLeft(rest, ", ")
		}
	}
	return strings.Join(present(sentence(text),
		when(r.OK && len(c.Crashes) > 0, "Crashes: "+crash(c)+"."),
		when(c.Unverified != "", sentence("not verified: "+c.Unverified)),
		when(d.Pairs > 0 && lessWork(m), "Its steps do less work.")), " ")
}

// slopeSamples is the number of samples that a slope needs (memory.Verdict).
const slopeSamples = 16

// slope returns the slope in bytes per step with the range over runs, or with the interval of a single
// run.
func slope(c *matrix.Combination) (memory.Interval, bool) {
	d := c.Verdict
	judged := d != nil && d.Kind != memlayer.Crash
	if len(c.Runs) < 2 && judged {
		return d.Slope, d.Samples >= slopeSamples || d.Slope != memory.Interval{}
	}
	return c.Figures.Slope, judged && d.Samples >= slopeSamples || c.Figures.Slope != memory.Interval{}
}

func slopeText(c *matrix.Combination, bounds bool) string {
	s, ok := slope(c)
	if !ok {
		return unknown
	}
	return rate(s, bounds)
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

func times(r compare.Ratio, bounds bool) string { return typeset.Replace(r.Times(bounds)) }

func size(b *int64) string {
	if b == nil {
		return unknown
	}
	return memory.Bytes(*b).String()
}

func duration(ns *int64) string {
	if ns == nil {
		return unknown
	}
	return texts.Duration(time.Duration(*ns))
}

// when returns v if a condition holds, otherwise the zero value.
func when[T any](condition bool, v T) T {
	if condition {
		return v
	}
	return *new(T)
}

// sentence adds a capital letter and a full stop.
func sentence(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	first, n := utf8.DecodeRuneInString(text)
	if word, _, _ := strings.Cut(text, " "); !strings.ContainsAny(word, "_=0123456789./") {
		text = string(unicode.ToUpper(first)) + text[n:]
	}
	return strings.TrimSuffix(text, ".") + "."
}

// oneLine replaces control characters and line breaks.
func oneLine(text string) string {
	blank := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
	return strings.Join(strings.FieldsFunc(text, blank), " ")
}

func join(list []string) string { return strings.Join(list, ", ") }
