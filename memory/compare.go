package memory

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"steadyfit/internal/stats"
)

// Outcome is the result of one run for [Compare]. Values that were not measured are unknown.
type Outcome struct {
	Verdict Verdict `json:"verdict"`
	// Peak is the largest resident memory. Reset is the level after the session was reset or
	// closed. StepTime is the mean time of a step in nanoseconds, including occasional work
	// (collections, resets, new processes).
	Peak     Reading `json:"peak"`
	Reset    Reading `json:"reset"`
	StepTime Reading `json:"step_time"`
	// GPU is the largest GPU memory that the process held.
	GPU Reading `json:"gpu,omitzero"`
}

// Outcome returns the outcome of the run of the series: its verdict, the maximum of the layer
// Peak (or of RSS without it), the maximum of GPUProcess, and the mean step time of the judged
// part. The caller sets the level after a reset.
func (s *Series) Outcome(v Verdict) Outcome {
	o := Outcome{Verdict: v, Peak: s.Max(Peak), GPU: s.Max(GPUProcess), StepTime: s.stepTime(v)}
	if !o.Peak.OK {
		o.Peak = s.Max(RSS)
	}
	return o
}

// stepTime returns the mean time of a step in the judged part. The layer StepTime leaves out
// the time between samples that was not spent in steps, as for sampling or a new process. Time
// beyond the usual amount of that is added.
func (s *Series) stepTime(v Verdict) Reading {
	samples := s.Samples()
	if v.Per != PerMinute {
		from, _ := slices.BinarySearchFunc(samples, v.From, func(a Sample, from float64) int { return cmp.Compare(float64(a.Step), from) })
		samples = samples[from:]
	}
	var inSteps, steps float64
	var outside []float64
	for i := 1; i < len(samples); i++ {
		n, took := float64(samples[i].Step-samples[i-1].Step), samples[i].Get(StepTime)
		if n <= 0 {
			continue
		}
		elapsed := float64(samples[i].At.Sub(samples[i-1].At))
		if !took.OK { // the first of a process
			inSteps, steps = inSteps+elapsed, steps+n
			continue
		}
		inSteps, steps = inSteps+n*float64(took.Bytes), steps+n
		outside = append(outside, elapsed-n*float64(took.Bytes))
	}
	if len(outside) == 0 {
		return Reading{}
	}
	more, usual := 0.0, stats.Median(outside)
	for _, t := range outside {
		more += t - usual
	}
	return Known(Bytes((inSteps + max(more, 0)) / steps))
}

// Pair is a run without a remedy and a run with it, one right after the other.
type Pair struct {
	Base   Outcome `json:"base"`
	Remedy Outcome `json:"remedy"`
}

// Goal is the amount that a remedy should lower.
type Goal string

// The goals.
const (
	LowerSlope Goal = "slope"
	LowerPeak  Goal = "peak"
	LowerReset Goal = "reset"
	LowerGPU   Goal = "gpu" // the peak of GPU memory
)

// Effect is the effect of a remedy.
type Effect string

// The values of Effect. Only the caller, which applies the remedy, sets CouldNotApply.
const (
	Works         Effect = "works"
	Partly        Effect = "partly"
	NoEffect      Effect = "no effect"
	Harmful       Effect = "harmful"
	NotApplicable Effect = "not applicable"
	CouldNotApply Effect = "could not apply"
	// Unclear means that the interval includes both an effect and no effect.
	Unclear Effect = "unclear"
)

// The thresholds of an effect, as ratios of the amount with the remedy to the amount without
// it. They apply to whole intervals, not to estimates.
const (
	// slopeGone: a remedy works if at most a tenth of a slope remains, or if less than half
	// remains and no run with the remedy grows (slopeHalf).
	slopeGone = 0.1
	slopeHalf = 0.5
	// amountLower: a remedy works if a peak or level is at least a fifth lower.
	amountLower = 0.8
	// alike: amounts within 10% of each other count as equal.
	alikeLow  = 0.9
	alikeHigh = 1.1
	// noticeable: a reduction of less than 5% does not count, even if it is certain.
	noticeable = 0.95
)

// Thresholds returns the ratios, in ascending order, between which the effect on a goal is the
// same.
func (g Goal) Thresholds() []float64 {
	if g == LowerSlope {
		return []float64{slopeGone, slopeHalf, alikeLow, noticeable, 1, alikeHigh}
	}
	return []float64{amountLower, alikeLow, noticeable, 1, alikeHigh}
}

// Ratio is the amount with the remedy divided by the amount without it, and its interval.
type Ratio struct {
	Interval
	// OK is false if fewer than two pairs have the amount.
	OK bool `json:"ok"`
	// Unbounded means that the pairs give no upper bound. High is then the largest float64,
	// since JSON has no infinity.
	Unbounded bool `json:"unbounded,omitempty"`
	// Pooled is the number of remedies whose deviations determine the interval ([Scatter]); 0
	// if only its own pairs do.
	Pooled int `json:"pooled,omitempty"`
	// Effect is the effect on this amount alone.
	Effect Effect `json:"effect,omitempty"`
}

// Comparison is the effect of a remedy on a workload.
type Comparison struct {
	Effect Effect `json:"effect"`
	Goal   Goal   `json:"goal"`
	// Reason explains the effect in a sentence.
	Reason string `json:"reason"`
	// Pairs is the number of pairs. More is the number of further pairs that would decide an
	// unclear effect.
	Pairs int `json:"pairs"`
	More  int `json:"more,omitempty"`
	// Slope, Peak, Reset, StepTime and GPU are the ratios. A StepTime of 1.2 means a fifth more
	// time per step.
	Slope    Ratio `json:"slope"`
	Peak     Ratio `json:"peak"`
	Reset    Ratio `json:"reset"`
	StepTime Ratio `json:"step_time"`
	GPU      Ratio `json:"gpu,omitzero"`
	// BaseCrashes and RemedyCrashes count the crashed runs. Their pairs are not part of the
	// ratios.
	BaseCrashes   int     `json:"base_crashes"`
	RemedyCrashes int     `json:"remedy_crashes"`
	Confidence    float64 `json:"confidence"`
}

// compareConfidence is the confidence of the intervals of ratios.
const compareConfidence = 0.95

// Compare returns the effect of a remedy, from at least two pairs of runs; five are better.
//
// Each ratio is that of the means over the pairs, with an interval by Student's t, on the
// logarithm for positive amounts. Its deviation comes from a bootstrap over pairs, so
// disturbances of both runs of a pair cancel. Fewer than 5 pairs have too few distinct draws.
// Their deviation follows from the differences of the pairs (the delta method), and is at least
// the precision of each amount: a page, or the noise floor of its slope. [Scatter.Compare]
// estimates the deviation better if a workload has several remedies.
//
// The remedy works if the whole interval of the goal is below a threshold: 0.1 for a
// slope, or 0.5 if no run with the remedy grew, and 0.8 for other amounts. Partly is
// below 1 with an estimate of at most 0.95; no effect is between 0.9 and 1.1, or a
// reduction by less than 5%; harmful is above 1.1. All else is unclear, with the number
// of pairs that would decide. A slope is not applicable unless the runs without the
// remedy leak ([Leaks]).
//
// Crashes are decided first. A remedy with which most runs crash is harmful, or without effect
// if as many crash without it. A remedy that prevents most crashes works. A lower peak or level
// does not last if memory grows with the remedy: the effect is harmful if the runs leak only
// with the remedy and the slope is certainly higher, and unclear if one run leaks and most may.
func Compare(pairs []Pair, goal Goal, seed uint64) Comparison {
	return Scatter{}.Compare(pairs, goal, seed)
}

// Compare is [Compare] with the deviations that the remedies of a workload share.
func (s Scatter) Compare(pairs []Pair, goal Goal, seed uint64) Comparison {
	c := comparing{Comparison: Comparison{Goal: goal, Pairs: len(pairs), Confidence: compareConfidence}}
	for _, p := range pairs {
		c.without, c.with = append(c.without, p.Base), append(c.with, p.Remedy)
		base, remedy := p.Base.Verdict.Kind == Crash, p.Remedy.Verdict.Kind == Crash
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
	for i, a := range amounts {
		from, works := c.alive, amountLower
		if a.goal == LowerSlope {
			from, works = c.slopes(), slopeGone
		}
		r := a.ratio(&c.Comparison)
		*r = s.common[i].interval(a.of(from, random))
		r.Effect = r.effect(works)
	}
	if c.Slope.OK && c.Slope.High < slopeHalf && count(c.alive, true, Verdict.mayGrow) == c.excused {
		c.Slope.Effect = Works
	}
	c.decide()
	return c.Comparison
}

// comparing is the state of one comparison.
type comparing struct {
	Comparison
	with, without []Outcome
	alive         []Pair // without crashes
	cause         string // cause of a crash with the remedy
	// excused counts the runs with the remedy whose growth is only memory that malloc holds
	// free. Their slopes leave it out.
	excused int
}

// slopes returns the pairs whose slopes are compared; none if no run leaks.
func (c *comparing) slopes() []Pair {
	if !Leaks(c.without) {
		return nil
	}
	fragmented := count(c.alive, true, Verdict.fragments)
	if fragmented == 0 || count(c.alive, false, Verdict.fragments) > 0 {
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

// decide sets the effect on the goal, and its reason.
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
		c.More = max(5-alive, 1)
	default:
		set(r.Effect, "the %s is %s of that without it", what, r.Times(true))
		if c.Effect == Unclear {
			c.More = morePairs(r, alive)
		}
		if c.Goal == LowerSlope && c.excused > 0 {
			c.Reason += fmt.Sprintf(", not counting freed memory that malloc keeps, which grew in %d of %d runs with the remedy", c.excused, alive)
		}
		if c.Goal != LowerSlope && (c.Effect == Works || c.Effect == Partly) {
			c.qualify(grows)
		}
	}
}

// decideByCrashes sets the effect if at least half of the runs crashed, with or without the
// remedy. It reports whether it did.
func (c *comparing) decideByCrashes() bool {
	n, with, without := len(c.with), c.RemedyCrashes, c.BaseCrashes
	switch {
	case 2*with >= n && 2*without >= n && with > 0:
		c.Effect, c.Reason = NoEffect, fmt.Sprintf("%d of %d runs with it crashed, and %d without it: %s", with, n, without, c.cause)
	case 2*with >= n && with > without:
		c.Effect, c.Reason = Harmful, fmt.Sprintf("%d of %d runs with it crashed: %s", with, n, c.cause)
	case 2*without >= n && without > 0 && with == 0:
		c.Effect, c.Reason = Works, fmt.Sprintf("%d of %d runs without it crashed, and none with it", without, n)
	default:
		return false
	}
	return true
}

// qualify adds to the reason of a lower amount that memory may grow with the remedy.
func (c *comparing) qualify(grows int) {
	grown, grownWithout := count(c.alive, true, Verdict.mayGrow), count(c.alive, false, Verdict.mayGrow)
	floor := 0.0 // of the slopes with the remedy
	for _, p := range c.alive {
		floor = max(floor, p.Remedy.Verdict.NoiseFloor)
	}
	if 2*grown <= len(c.alive) || c.addedSlope().Estimate <= floor {
		return
	}
	c.Reason += fmt.Sprintf(", but memory may grow in %d of %d runs with it, and in %d without it", grown, len(c.alive), grownWithout)
	if grows > 0 {
		c.Effect, c.More = Unclear, len(c.alive)
	}
}

// addedSlope returns the mean increase of the slope with the remedy over the pairs. It is
// unknown with fewer than two pairs.
func (c *comparing) addedSlope() Interval {
	if len(c.alive) < 2 {
		return Interval{}
	}
	more := make([]float64, len(c.alive))
	for i, p := range c.alive {
		more[i] = p.Remedy.Verdict.Slope.Estimate - p.Base.Verdict.Slope.Estimate
	}
	mean, low, high := stats.Mean(more, compareConfidence)
	return Interval{mean, low, high}
}

// count counts the verdicts, with or without the remedy, for which is holds.
func count(pairs []Pair, remedy bool, is func(Verdict) bool) (n int) {
	for _, p := range pairs {
		if remedy && is(p.Remedy.Verdict) || !remedy && is(p.Base.Verdict) {
			n++
		}
	}
	return n
}

// mayGrow reports whether a run leaks or may leak.
func (v Verdict) mayGrow() bool { return v.Kind == Leak || v.Kind == Inconclusive }

// fragments reports whether only malloc's free memory grows.
func (v Verdict) fragments() bool {
	carrier := v.Carrier.Whole()
	return v.mayGrow() && v.Cause == Retention && (carrier == MallocFree || carrier == MallocArenas) &&
		v.Net != nil && v.Net.Low <= float64(v.Budget) && v.Net.High <= v.tolerated()
}

// Leaks reports, as one answer for all runs, whether they leak: at least half of the runs that
// did not crash do. A tie counts as a leak, since a remedy that is needed half of the time is
// needed. [Compare] applies it to the runs without the remedy before it compares slopes. A
// caller that chooses the goal should apply it to the same runs.
func Leaks(outcomes []Outcome) bool {
	leaks, came := leaking(outcomes)
	return leaks > 0 && 2*leaks >= came
}

// leaking counts the runs that leak and those that did not crash.
func leaking(outcomes []Outcome) (leaks, came int) {
	for i := range outcomes {
		switch outcomes[i].Verdict.Kind {
		case Leak:
			leaks++
			came++
		case Crash:
		default:
			came++
		}
	}
	return leaks, came
}

// effect returns the effect of a ratio on its own. works is the threshold of Works.
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

// morePairs returns the number of additional pairs that would move the nearest threshold out of
// the interval. The interval's width falls with the square root of their number.
func morePairs(r Ratio, pairs int) int {
	distance := math.Inf(1)
	for _, threshold := range []float64{alikeLow, 1, alikeHigh} {
		if threshold > r.Low && threshold < r.High {
			distance = min(distance, math.Abs(r.Estimate-threshold))
		}
	}
	half := (r.High - r.Low) / 2
	factor := min(math.Pow(half/max(distance, half/5), 2), 10)
	return max(int(math.Ceil(float64(pairs)*(factor-1))), 1)
}

// String formats the comparison in a line: "works: the slope is x0.01 [-0.02, 0.03] of that
// without it; step time x1.42 [1.39, 1.45]; 5 pairs".
func (c Comparison) String() string {
	text := string(c.Effect)
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	if c.StepTime.OK {
		text += "; step time " + c.StepTime.Times(true)
	}
	if c.More > 0 {
		text += fmt.Sprintf("; about %d more pairs would decide", c.More)
	}
	return fmt.Sprintf("%s; %d pairs", text, c.Pairs)
}
