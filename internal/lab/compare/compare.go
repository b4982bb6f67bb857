// Package compare compares runs of a workload with and without a remedy: [Runs] returns the effect of
// a remedy on the growth or amount of memory, with an interval.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// Outcome is the result of a run for [Runs]. Amounts that were not measured are unknown.
type Outcome struct {
	Verdict memory.Verdict `json:"verdict"`
	// Peak is the largest resident memory. Reset is the resident memory after the session was
	// reset or closed. StepTime is the mean nanoseconds per step, including resets and collections.
	Peak     memory.Reading `json:"peak"`
	Reset    memory.Reading `json:"reset"`
	StepTime memory.Reading `json:"step_time"`
	// GPU is the largest GPU memory of the process.
	GPU memory.Reading `json:"gpu,omitzero"`
}

// Of returns the outcome of a run from its series: the verdict, the maxima of the layers Peak (or RSS) and GPUProcess,
// and the mean step time of the judged part. The caller sets Outcome.Reset.
func Of(s *memory.Series, v memory.Verdict) Outcome {
	o := Outcome{Verdict: v, Peak: s.Max(memlayer.Peak), GPU: s.Max(memlayer.GPUProcess), StepTime: stepTime(s, v)}
	if !o.Peak.OK {
		o.Peak = s.Max(memory.RSS)
	}
	return o
}

// stepTime returns the mean time of a step in the judged part, with what happens between steps.
func stepTime(s *memory.Series, v memory.Verdict) memory.Reading {
	samples := s.Samples()
	from, _ := slices.BinarySearchFunc(samples, v.From,
		func(a memory.Sample, from float64) int { return cmp.Compare(float64(a.Step), from) })
	if v.Per == memlayer.PerMinute || len(samples)-from < 2 {
		return memory.Reading{}
	}
	first, last := samples[from], samples[len(samples)-1]
	if last.Step <= first.Step {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(float64(last.At.Sub(first.At)) / float64(last.Step-first.Step)))
}

// Crashed returns the verdict of a run that ended early.
func Crashed(reason string) memory.Verdict {
	return memory.Verdict{Kind: memlayer.Crash, Per: memlayer.PerStep, Reason: reason}
}

// Pair is a run without a remedy and a run with it, made one right after the other.
type Pair struct {
	Base   Outcome `json:"base"`
	Remedy Outcome `json:"remedy"`
}

// Goal is the amount that a remedy is meant to lower.
type Goal string

// Goals of remedies.
const (
	LowerSlope Goal = "slope"
	LowerPeak  Goal = "peak"
	LowerReset Goal = "reset"
	LowerGPU   Goal = "gpu" // peak GPU memory
)

// Effect is what a remedy did to its goal.
type Effect string

// Effects. Runs does not return CouldNotApply; a caller that fails to apply a remedy sets it.
const (
	Works         Effect = "works"
	Partly        Effect = "partly"
	NoEffect      Effect = "no effect"
	Harmful       Effect = "harmful"
	NotApplicable Effect = "not applicable"
	CouldNotApply Effect = "could not apply"
	// Unclear means that the interval allows both an effect and no effect.
	Unclear Effect = "unclear"
)

// Thresholds for the interval of the ratio of an amount with the remedy to the amount without it.
const (
	// slopeGone: for a slope, a remedy works below this ratio, or below slopeHalf if no run
	// with the remedy grows.
	slopeGone = 0.1
	slopeHalf = 0.5
	// amountLower: for a peak or level, a remedy works below this ratio.
	amountLower = 0.8
	// alikeLow and alikeHigh bound the ratios that count as no effect.
	alikeLow  = 0.9
	alikeHigh = 1.1
	// noticeable: a certain reduction of less than 5% counts as no effect.
	noticeable = 0.95
)

// Ratio is the amount with the remedy divided by the amount without it, with its interval.
type Ratio struct {
	memory.Interval
	// OK is false if fewer than two pairs measured the amount.
	OK bool `json:"ok"`
	// Unbounded means that there is no upper bound. High is then the largest float64, since JSON
	// has no infinity.
	Unbounded bool `json:"unbounded,omitempty"`
	// Effect is the effect on this amount, whatever the goal.
	Effect Effect `json:"effect,omitempty"`
}

// Comparison is the effect of a remedy on one workload.
type Comparison struct {
	Effect Effect `json:"effect"`
	Goal   Goal   `json:"goal"`
	// Reason explains the effect in a sentence.
	Reason string `json:"reason"`
	Pairs  int    `json:"pairs"`
	// Slope, Peak, Reset, StepTime and GPU are the ratios. A StepTime of 1.2 is 20% more time per
	// step.
	Slope    Ratio `json:"slope"`
	Peak     Ratio `json:"peak"`
	Reset    Ratio `json:"reset"`
	StepTime Ratio `json:"step_time"`
	GPU      Ratio `json:"gpu,omitzero"`
	// BaseCrashes and RemedyCrashes count crashed runs, whose pairs are not part of the ratios.
	BaseCrashes   int     `json:"base_crashes"`
	RemedyCrashes int     `json:"remedy_crashes"`
	Confidence    float64 `json:"confidence"`
}

const compareConfidence = 0.95

// Runs returns the effect of a remedy from at least two pairs of runs; five are better.
//
// Each ratio is a ratio of means over the pairs. Its interval uses Student's t, on the logarithm for
// positive amounts, with a deviation from a bootstrap over pairs. Fewer than 5 pairs have too few
// distinct draws, so the delta method is used, with the precision of the amounts as a lower bound.
//
// The whole interval decides the effect. A remedy works if it is below 0.8, and for a slope below
// 0.1, or below 0.5 if no run with the remedy grew. It works partly below 1 with an estimate of at
// most 0.95. It has no effect between 0.9 and 1.1, or if the reduction is below 5%. It is harmful
// above 1.1. Otherwise the effect is unclear. A slope is only compared if the runs without the
// remedy leak ([Leaks]).
//
// Crashes decide first: a remedy works if it prevents most crashes, and is harmful if most runs
// crash only with it. A remedy that lowers an amount is harmful if only runs with it leak and
// the slope is certainly higher, and unclear if that is possible.
func Runs(pairs []Pair, goal Goal, seed uint64) Comparison {
	c := comparing{Comparison: Comparison{Goal: goal, Pairs: len(pairs), Confidence: compareConfidence}}
	for _, p := range pairs {
		c.without, c.with = append(c.without, p.Base), append(c.with, p.Remedy)
		base, remedy := p.Base.Verdict.Kind == memlayer.Crash, p.Remedy.Verdict.Kind == memlayer.Crash
		if base {
			c.BaseCrashes++
		}
		if remedy {
			c.RemedyCrashes++
			c.cause = p.Remedy.Verdict.Reason
		}
		if !base && !remedy {
			c.alive = append(c.alive, p)
		}
	}
	random := rand.New(rand.NewPCG(seed, uint64(len(pairs))))
	for _, a := range amounts {
		from, works := c.alive, amountLower
		if a.goal == LowerSlope {
			from, works = c.slopes(), slopeGone
		}
		r := a.ratio(&c.Comparison)
		*r = a.of(from, random)
		r.Effect = r.effect(works)
	}
	if c.Slope.OK && c.Slope.High < slopeHalf && count(c.alive, true, mayGrow) == c.excused {
		c.Slope.Effect = Works
	}
	c.decide()
	return c.Comparison
}

type comparing struct {
	Comparison
	with, without []Outcome
	alive         []Pair // pairs without a crash
	cause         string // reason of a crash with the remedy
	// excused counts runs with the remedy in which only malloc's free memory grows. The slopes of
	// these runs exclude the free memory.
	excused int
}

// slopes returns the pairs whose slopes are compared; nil if the runs without the remedy do not
// leak ([Leaks]).
func (c *comparing) slopes() []Pair {
	if !Leaks(c.without) {
		return nil
	}
	fragmented := count(c.alive, true, fragments)
	if fragmented == 0 || count(c.alive, false, fragments) > 0 {
		return c.alive
	}
	c.excused = fragmented
	pairs := slices.Clone(c.alive)
	for i := range pairs {
		if v := &pairs[i].Remedy.Verdict; v.Net != nil {
			v.Slope, v.NoiseFloor = *v.Net, (v.Net.High-v.Net.Low)/2
		}
	}
	return pairs
}

func (c *comparing) decide() {
	alive := len(c.alive)
	var r Ratio
	what := string(c.Goal)
	for _, a := range amounts {
		if a.goal == c.Goal {
			r, what = *a.ratio(&c.Comparison), a.name
		}
	}
	leaks, came := leaking(c.without)
	grows, of := leaking(c.with)
	set := func(e Effect, reason string, args ...any) { c.Effect, c.Reason = e, fmt.Sprintf(reason, args...) }
	switch {
	case c.decideByCrashes():
	case c.Goal == LowerSlope && alive > 0 && !Leaks(c.without):
		set(NotApplicable, "without it %d of %d runs leak, so there is no slope to lower", leaks, came)
	case c.Goal != LowerSlope && Leaks(c.with) && !Leaks(c.without) && c.addedSlope().Low > 0:
		set(Harmful, "with it %d of %d runs leak, and %d of %d without it", grows, of, leaks, came)
	case !r.OK:
		set(Unclear, "fewer than two pairs have the %s", what)
	default:
		set(r.Effect, "the %s is %s of that without it", what, r.Times(true))
		if c.Goal == LowerSlope && c.excused > 0 {
			c.Reason += fmt.Sprintf(", not counting freed memory that malloc keeps, which grew in %d of %d runs with the remedy",
				c.excused, alive)
		}
		if c.Goal != LowerSlope && (c.Effect == Works || c.Effect == Partly) {
			c.qualify(grows)
		}
	}
}

// decideByCrashes sets the effect if at least half of the runs with or without the remedy crashed,
// and reports whether it did.
func (c *comparing) decideByCrashes() bool {
	n, with, without := len(c.with), c.RemedyCrashes, c.BaseCrashes
	switch {
	case 2*with >= n && 2*without >= n && with > 0:
		c.Effect, c.Reason = NoEffect, fmt.Sprintf("%d of %d runs with it crashed, and %d without it: %s", with, n, without,
			c.cause)
	case 2*with >= n && with > without:
		c.Effect, c.Reason = Harmful, fmt.Sprintf("%d of %d runs with it crashed: %s", with, n, c.cause)
	case 2*without >= n && without > 0 && with == 0:
		c.Effect, c.Reason = Works, fmt.Sprintf("%d of %d runs without it crashed, and none with it", without, n)
	default:
		return false
	}
	return true
}

// qualify adds to the reason that memory may grow with the remedy.
func (c *comparing) qualify(grows int) {
	grown, grownWithout := count(c.alive, true, mayGrow), count(c.alive, false, mayGrow)
	if 2*grown <= len(c.alive) || c.addedSlope().Estimate <= 0 {
		return
	}
	c.Reason += fmt.Sprintf(", but memory may grow in %d of %d runs with it, and in %d without it", grown, len(c.alive),
		grownWithout)
	if grows > 0 {
		c.Effect = Unclear
	}
}

// addedSlope returns the mean increase of the slope by the remedy. It is unknown for fewer than two
// pairs.
func (c *comparing) addedSlope() memory.Interval {
	if len(c.alive) < 2 {
		return memory.Interval{}
	}
	more := make([]float64, len(c.alive))
	for i, p := range c.alive {
		more[i] = p.Remedy.Verdict.Slope.Estimate - p.Base.Verdict.Slope.Estimate
	}
	mean, low, high := stats.Mean(more, compareConfidence)
	return memory.Interval{Estimate: mean, Low: low, High: high}
}

// count returns the number of runs, with or without the remedy, for whose verdict is returns true.
func count(pairs []Pair, remedy bool, is func(memory.Verdict) bool) (n int) {
	for _, p := range pairs {
		if remedy && is(p.Remedy.Verdict) || !remedy && is(p.Base.Verdict) {
			n++
		}
	}
	return n
}

func mayGrow(v memory.Verdict) bool { return v.Kind == memory.Leak || v.Kind == memory.Inconclusive }

// fragments reports whether only malloc's free memory grows.
func fragments(v memory.Verdict) bool {
	tolerated := float64(v.Budget)
	if v.Budget == 0 && v.To > v.From {
		tolerated = float64(memory.MiB) / (v.To - v.From)
	}
	return mayGrow(v) && v.Cause == memlayer.Retention &&
		(v.Carrier == memory.MallocFree || v.Carrier == memlayer.MallocArenas) &&
		v.Net != nil && v.Net.Low <= float64(v.Budget) && v.Net.High <= tolerated
}

// Leaks reports whether at least half of the runs that did not crash leak. Half counts as a leak,
// since a remedy is then needed half of the time. Runs applies Leaks to the runs without the
// remedy before it compares slopes.
func Leaks(outcomes []Outcome) bool {
	leaks, came := leaking(outcomes)
	return leaks > 0 && 2*leaks >= came
}

// leaking returns the number of runs that leak and the number of runs that did not crash.
func leaking(outcomes []Outcome) (leaks, came int) {
	for i := range outcomes {
		switch outcomes[i].Verdict.Kind {
		case memory.Leak:
			leaks++
			came++
		case memlayer.Crash:
		default:
			came++
		}
	}
	return leaks, came
}

// effect returns the effect of a ratio. works is the threshold of Works.
func (r Ratio) effect(works float64) Effect {
	switch {
	case !r.OK:
		return ""
	case r.High <= works:
		return Works
	case r.High < 1 && r.Estimate <= noticeable:
		return Partly
	case r.High < 1, r.Low >= alikeLow && r.High <= alikeHigh:
		return NoEffect
	case r.Low > alikeHigh:
		return Harmful
	}
	return Unclear
}

// Times formats the ratio as "x0.52", or with bounds as "x0.52 [0.49, 0.55]". A missing upper bound is
// "inf". A ratio that is not OK is "unknown".
func (r Ratio) Times(bounds bool) string {
	if !r.OK {
		return memory.Reading{}.String()
	}
	number := func(v float64) string {
		text := stats.Decimal(v, 2)
		switch {
		case math.Abs(v) >= 1e4:
			return strconv.FormatFloat(v, 'g', 2, 64)
		case math.Abs(v) >= 10:
			return stats.Decimal(v, 1)
		case v < 0.01 && r.Low > 0: // a slope may be 0, and its lower bound is then below 0
			text = stats.Decimal(v, 3)
		}
		if strings.Trim(text, "0.") == "" {
			return "0"
		}
		return text
	}
	text := "x" + number(r.Estimate)
	if !bounds {
		return text
	}
	high := number(r.High)
	if r.Unbounded {
		high = "inf"
	}
	return fmt.Sprintf("%s [%s, %s]", text, number(r.Low), high)
}
