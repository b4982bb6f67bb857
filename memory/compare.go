package memory

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Outcome is what one run came to, for [Compare].
type Outcome struct {
	Verdict Verdict `json:"verdict"`
	// Peak is the largest resident memory, Reset the level after the session was
	// reset or closed, StepTime what a step takes on average, in nanoseconds, with all
	// that is done now and then (collections, resets, new processes). What was not
	// measured is unknown.
	Peak     Reading `json:"peak"`
	Reset    Reading `json:"reset"`
	StepTime Reading `json:"step_time"`
	// GPU is the most GPU memory that the process held.
	GPU Reading `json:"gpu,omitzero"`
}

// Outcome is the outcome of a run that the series shows: its verdict, the
// largest value of the layer Peak (or else of RSS), the largest of GPUProcess, and
// the mean step time of the judged part. The level after a reset is not in a series; the caller sets it.
func (s *Series) Outcome(v Verdict) Outcome {
	o := Outcome{Verdict: v, Peak: s.Max(Peak), GPU: s.Max(GPUProcess), StepTime: s.stepTime(v)}
	if !o.Peak.OK {
		o.Peak = s.Max(RSS)
	}
	return o
}

// stepTime is the mean time of a step in the judged part. The layer StepTime leaves out
// what sampling takes, and with that what happened between two samples outside of steps,
// as a new process: of that, what is more than the usual counts, too.
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
	more := 0.0
	usual := median(slices.Clone(outside))
	for _, t := range outside {
		more += t - usual
	}
	return Known(Bytes((inSteps + max(more, 0)) / steps))
}

// Pair is a run without and one with a remedy, done one right after the other.
type Pair struct {
	Base   Outcome `json:"base"`
	Remedy Outcome `json:"remedy"`
}

// Goal is what a remedy is meant to lower.
type Goal string

// The goals.
const (
	LowerSlope Goal = "slope"
	LowerPeak  Goal = "peak"
	LowerReset Goal = "reset"
	LowerGPU   Goal = "gpu" // the peak of GPU memory
)

// Effect is what a remedy did.
type Effect string

// The effects. CouldNotApply is set by whoever applied the remedy.
const (
	Works         Effect = "works"
	Partly        Effect = "partly"
	NoEffect      Effect = "no effect"
	Harmful       Effect = "harmful"
	NotApplicable Effect = "not applicable"
	CouldNotApply Effect = "could not apply"
	// Unclear means that the interval holds both an effect and none.
	Unclear Effect = "unclear"
)

// The thresholds of an effect, as ratios of the amount with the remedy to that
// without. They speak of whole intervals, not of estimates.
const (
	// slopeGone: a slope works if at most a tenth of it remains; or if less than
	// half remains and no run with the remedy grows at all.
	slopeGone = 0.1
	slopeHalf = 0.5
	// amountLower: a peak or level works if it is a fifth lower.
	amountLower = 0.8
	// alike: amounts within 10% of each other are the same for practical purposes.
	alikeLow  = 0.9
	alikeHigh = 1.1
	// noticeable: a reduction below 5% is none, even if it is certain.
	noticeable = 0.95
)

// Thresholds are the ratios at which an effect on what is to be lowered becomes
// another one, in rising order.
func (g Goal) Thresholds() []float64 {
	if g == LowerSlope {
		return []float64{slopeGone, slopeHalf, alikeLow, noticeable, 1, alikeHigh}
	}
	return []float64{amountLower, alikeLow, noticeable, 1, alikeHigh}
}

// Ratio is an amount with the remedy divided by that without, and its interval.
type Ratio struct {
	Interval
	// OK is false if fewer than two pairs have the amount.
	OK bool `json:"ok"`
	// Unbounded is true if the pairs give no upper bound; High is the largest number
	// then, since JSON has no infinity.
	Unbounded bool `json:"unbounded,omitempty"`
	// Pooled is the number of remedies whose deviations the interval rests on too
	// ([Scatter]); 0 if it rests on that of its own pairs.
	Pooled int `json:"pooled,omitempty"`
	// Effect is what this amount alone would say.
	Effect Effect `json:"effect,omitempty"`
}

// Comparison is what a remedy did to a workload.
type Comparison struct {
	Effect Effect `json:"effect"`
	Goal   Goal   `json:"goal"`
	// Reason explains the effect in a sentence.
	Reason string `json:"reason"`
	// Pairs is the number of pairs; More how many more would decide, if unclear.
	Pairs int `json:"pairs"`
	More  int `json:"more,omitempty"`
	// Slope, Peak, Reset and StepTime are the ratios; a StepTime of 1.2 means a
	// fifth more time per step.
	Slope    Ratio `json:"slope"`
	Peak     Ratio `json:"peak"`
	Reset    Ratio `json:"reset"`
	StepTime Ratio `json:"step_time"`
	// GPU is the ratio of the peaks of GPU memory; not OK without a GPU.
	GPU Ratio `json:"gpu,omitzero"`
	// BaseCrashes and RemedyCrashes count the runs that ended before their time;
	// their pairs are not in the ratios.
	BaseCrashes   int     `json:"base_crashes"`
	RemedyCrashes int     `json:"remedy_crashes"`
	Confidence    float64 `json:"confidence"`
}

// compareConfidence is that of the intervals of ratios.
const compareConfidence = 0.95

// Compare says what a remedy did, from at least two pairs of runs, better five.
//
// Each ratio is that of the means over the pairs. Its interval is a multiple of
// its standard deviation by Student's t for the number of pairs less 1, on the
// logarithm for amounts that are positive. The deviation is that of a bootstrap over
// pairs, so what disturbs both runs of a pair cancels. Fewer than 5 pairs have too
// few distinct draws for that: for them it follows from the differences of the pairs
// (the delta method), and is no less than what each amount is known by: a page, or
// the noise floor of its slope. Where a workload has several remedies, [Scatter.Compare]
// knows the deviation better.
//
// Of the goal, then: the remedy works if the whole interval is below the
// threshold (0.1 for a slope, 0.8 for a peak, in memory or on the GPU, or level; a slope also if it is
// below 0.5 and no run with the remedy grew); partly if it is below 1 and the
// estimate at most 0.95; has no effect if it lies between 0.9 and 1.1, or is a
// reduction by less than 5%; is harmful if the whole interval is above 1.1. It is
// not applicable to a slope if the runs without it do not leak ([Leaks]).
// Everything else is unclear, with the number of pairs that would decide.
// Crashes come first: a remedy that most runs die with is harmful, one that saves
// a run that otherwise dies works, and one that most runs die with as they die
// without it has no effect. A lower peak or level is none that lasts where memory grows
// with the remedy and not without it. That is harmful if the runs leak with it only and the
// slope is higher beyond doubt. If it is higher, and most runs leak or may, the Reason says
// so, and the effect is unclear if one does.
func Compare(pairs []Pair, goal Goal, seed uint64) Comparison {
	return Scatter{}.Compare(pairs, goal, seed)
}

// Compare is [Compare] with deviations drawn to what the workload's remedies have in
// common.
func (s Scatter) Compare(pairs []Pair, goal Goal, seed uint64) Comparison {
	c := Comparison{Goal: goal, Pairs: len(pairs), Confidence: compareConfidence}
	var alive []Pair
	var cause string
	var without, with []Outcome
	grown, grownWithout, excused := 0, 0, 0
	var floor float64 // what the slopes with it are known by
	for _, p := range pairs {
		without, with = append(without, p.Base), append(with, p.Remedy)
		base, remedy := p.Base.Verdict.Kind == Crash, p.Remedy.Verdict.Kind == Crash
		if base {
			c.BaseCrashes++
		}
		if remedy {
			c.RemedyCrashes++
			cause = p.Remedy.Verdict.Reason
		}
		if base || remedy {
			continue
		}
		alive = append(alive, p)
		if p.Remedy.Verdict.mayGrow() {
			grown++
		}
		if p.Base.Verdict.mayGrow() {
			grownWithout++
		}
		floor = max(floor, p.Remedy.Verdict.NoiseFloor)
	}
	added := addedSlope(alive)
	random := rand.New(rand.NewPCG(seed, uint64(len(pairs))))
	amount := func(a amount, s common, pairs []Pair) Ratio { return s.interval(a.of(pairs, random)) }
	c.Peak = amount(peakAmount, s.peak, alive)
	c.Reset = amount(resetAmount, s.reset, alive)
	c.StepTime = amount(stepTimeAmount, s.stepTime, alive)
	c.GPU = amount(gpuAmount, s.gpu, alive)
	slopes := alive
	leaks, came := leaking(without)
	if !Leaks(without) {
		slopes = nil
	} else if fragmented, grows := countFragmented(alive); fragmented > 0 && grows == 0 {
		slopes, excused = lessFragments(alive), fragmented
	}
	c.Slope = amount(slopeAmount, s.slope, slopes)

	for _, r := range []*Ratio{&c.Peak, &c.Reset, &c.StepTime, &c.GPU} {
		r.Effect = r.effect(amountLower)
	}
	if c.Slope.Effect = c.Slope.effect(slopeGone); c.Slope.OK && c.Slope.High < slopeHalf && grown == excused {
		c.Slope.Effect = Works
	}

	r := map[Goal]Ratio{LowerSlope: c.Slope, LowerPeak: c.Peak, LowerReset: c.Reset, LowerGPU: c.GPU}[goal]
	what := map[Goal]string{LowerSlope: "slope", LowerPeak: "peak", LowerReset: "level after the reset", LowerGPU: "peak of GPU memory"}[goal]
	switch {
	case 2*c.RemedyCrashes >= len(pairs) && 2*c.BaseCrashes >= len(pairs) && c.RemedyCrashes > 0:
		c.Effect, c.Reason = NoEffect, fmt.Sprintf("%d of %d runs with it died, and %d without it: %s", c.RemedyCrashes, len(pairs), c.BaseCrashes, cause)
	case 2*c.RemedyCrashes >= len(pairs) && c.RemedyCrashes > c.BaseCrashes:
		c.Effect, c.Reason = Harmful, fmt.Sprintf("%d of %d runs with it died: %s", c.RemedyCrashes, len(pairs), cause)
	case 2*c.BaseCrashes >= len(pairs) && c.BaseCrashes > 0 && c.RemedyCrashes == 0:
		c.Effect, c.Reason = Works, fmt.Sprintf("%d of %d runs without it died, and none with it", c.BaseCrashes, len(pairs))
	case goal == LowerSlope && len(alive) > 0 && slopes == nil:
		c.Effect, c.Reason = NotApplicable, fmt.Sprintf("without it %d of %d runs leak, so there is no slope to lower", leaks, came)
	case goal != LowerSlope && Leaks(with) && !Leaks(without) && added.Low > 0:
		grows, of := leaking(with)
		c.Effect, c.Reason = Harmful, fmt.Sprintf("with it %d of %d runs leak, and %d of %d without it", grows, of, leaks, came)
	case !r.OK:
		c.Effect, c.Reason, c.More = Unclear, fmt.Sprintf("fewer than two pairs tell the %s", what), max(5-len(alive), 1)
	default:
		c.Effect = r.Effect
		c.Reason = fmt.Sprintf("the %s is %s of that without it", what, r.Times(true))
		if c.Effect == Unclear {
			c.More = morePairs(r, len(alive))
		}
		if goal == LowerSlope && excused > 0 {
			c.Reason += fmt.Sprintf(", not counting freed memory that malloc keeps, which grew in %d of %d runs with the remedy", excused, len(alive))
		}
		if goal != LowerSlope && (c.Effect == Works || c.Effect == Partly) && 2*grown > len(alive) && added.Estimate > floor {
			c.Reason += fmt.Sprintf(", but memory may grow in %d of %d runs with it, and in %d without it", grown, len(alive), grownWithout)
			if some, _ := leaking(with); some > 0 {
				c.Effect, c.More = Unclear, len(alive)
			}
		}
	}
	return c
}

// addedSlope is by how much slopes are higher with the remedy, on average over the pairs.
// Fewer than two pairs tell nothing.
func addedSlope(pairs []Pair) Interval {
	if len(pairs) < 2 {
		return Interval{}
	}
	more := make([]float64, len(pairs))
	for i, p := range pairs {
		more[i] = p.Remedy.Verdict.Slope.Estimate - p.Base.Verdict.Slope.Estimate
	}
	return MeanInterval(more)
}

// MeanInterval is the mean of values with its 95% interval by Student's t, for values that
// scatter about as a normal distribution does. Fewer than two tell nothing of how they
// scatter: the ends are infinite, and without any value the mean is NaN.
func MeanInterval(values []float64) Interval {
	n := float64(len(values))
	if n < 2 {
		return Interval{stat.Mean(values, nil), math.Inf(-1), math.Inf(1)}
	}
	mean, deviation := stat.MeanStdDev(values, nil)
	half := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(0.5+compareConfidence/2) * deviation / math.Sqrt(n)
	return Interval{mean, mean - half, mean + half}
}

// mayGrow is whether a run leaks, or may.
func (v Verdict) mayGrow() bool { return v.Kind == Leak || v.Kind == Inconclusive }

// fragments is whether what grows is what malloc holds free, and nothing else.
func (v Verdict) fragments() bool {
	carrier := v.Carrier.Whole()
	return v.mayGrow() && v.Cause == Retention && (carrier == MallocFree || carrier == MallocArenas) &&
		v.Net != nil && v.Net.Low <= float64(v.Budget) && v.Net.High <= v.tolerated()
}

// countFragmented counts the runs with a remedy, and those without it, that only fragment.
func countFragmented(pairs []Pair) (with, without int) {
	for _, p := range pairs {
		if p.Remedy.Verdict.fragments() {
			with++
		}
		if p.Base.Verdict.fragments() {
			without++
		}
	}
	return with, without
}

// lessFragments are the pairs with the slopes of a remedy's runs less what malloc holds
// free, where that is known. Runs without the remedy stay as they are: their growth is not
// fragmentation.
func lessFragments(pairs []Pair) []Pair {
	pairs = slices.Clone(pairs)
	for i := range pairs {
		if v := &pairs[i].Remedy.Verdict; v.Net != nil {
			v.Slope, v.NoiseFloor = *v.Net, (v.Net.High-v.Net.Low)/2
		}
	}
	return pairs
}

// Leaks is whether runs leak, as one answer for all: at least half of those that came
// to their end do. A tie counts as a leak, since a remedy that is needed half of the
// time is needed. It is what [Compare] asks of the runs without a remedy before it
// speaks of slopes; who chooses the goal should ask it of the same runs.
func Leaks(outcomes []Outcome) bool {
	leaks, came := leaking(outcomes)
	return leaks > 0 && 2*leaks >= came
}

// leaking counts the runs that leak and those that came to their end.
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

// effect is what a ratio says by itself; works is the threshold for that.
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

const (
	// bootstrapPairs is the least number of pairs that a bootstrap can draw from. Of
	// two pairs there are three different draws, so that the quartiles are often equal.
	bootstrapPairs = 5
	// clockGrain is how exactly a median time is known, in nanoseconds.
	clockGrain = 100
	// floorDeviations is how many deviations a noise floor is: that of 99% of a normal
	// distribution.
	floorDeviations = 2.576
)

// amount is what pairs are compared by.
type amount struct {
	// positive amounts are compared on the logarithm.
	positive bool
	// get returns, beside a value, the deviation that it is known by.
	get func(Outcome) (value, known float64, ok bool)
}

// The amounts of an Outcome.
var (
	slopeAmount = amount{false, func(o Outcome) (value, known float64, ok bool) {
		return o.Verdict.Slope.Estimate, o.Verdict.NoiseFloor / floorDeviations, true
	}}
	peakAmount     = reading(pageSize, func(o Outcome) Reading { return o.Peak })
	resetAmount    = reading(pageSize, func(o Outcome) Reading { return o.Reset })
	stepTimeAmount = reading(clockGrain, func(o Outcome) Reading { return o.StepTime })
	gpuAmount      = reading(pageSize, func(o Outcome) Reading { return o.GPU })
)

// reading is an amount that is known to a grain.
func reading(grain float64, get func(Outcome) Reading) amount {
	return amount{true, func(o Outcome) (value, known float64, ok bool) {
		r := get(o)
		return float64(r.Bytes), grain / math.Sqrt(12), r.OK && r.Bytes > 0
	}}
}

// deviating is the ratio of two means and its deviation, as logarithms if so.
type deviating struct {
	ratio, deviation float64
	// floor is the least deviation, by what the values are known by.
	floor     float64
	pairs     int
	logarithm bool
}

// comparable is whether the deviation may be like that of other remedies. That of a slope
// goes with what is left of it: where most is gone, so is what made it scatter.
func (d deviating) comparable() bool { return d.logarithm || d.ratio > slopeHalf }

// of is the ratio of the means over the pairs that have the amount in both runs; false if
// they are fewer than two or have no ratio.
func (a amount) of(pairs []Pair, random *rand.Rand) (d deviating, ok bool) {
	var base, remedy []float64
	var knownBase, knownRemedy float64 // sums of squares
	for _, p := range pairs {
		b, kb, okBase := a.get(p.Base)
		r, kr, okRemedy := a.get(p.Remedy)
		if okBase && okRemedy {
			base, remedy = append(base, b), append(remedy, r)
			knownBase, knownRemedy = knownBase+kb*kb, knownRemedy+kr*kr
		}
	}
	n := len(base)
	if n < 2 {
		return d, false
	}
	scale := func(v float64) float64 { return v }
	if a.positive {
		scale = math.Log
	}
	meanBase, meanRemedy := stat.Mean(base, nil), stat.Mean(remedy, nil)
	d = deviating{ratio: scale(meanRemedy / meanBase), pairs: n, logarithm: a.positive}
	if math.IsNaN(d.ratio) || math.IsInf(d.ratio, 0) {
		return d, false
	}
	if n < bootstrapPairs {
		// To first order a pair moves the ratio by its remedy less the ratio times its
		// base, over the mean of the base.
		moves := make([]float64, n)
		of := meanRemedy / meanBase
		for i := range moves {
			moves[i] = (remedy[i] - of*base[i]) / meanBase
		}
		d.deviation = stat.StdDev(moves, nil) / math.Sqrt(float64(n))
		d.floor = math.Sqrt(knownRemedy+of*of*knownBase) / float64(n) / math.Abs(meanBase)
		if a.positive {
			d.deviation, d.floor = d.deviation/of, d.floor/of
		}
	} else {
		d.deviation = bootstrap(base, remedy, random, a.positive, scale)
	}
	return d, !math.IsNaN(d.deviation)
}

// bootstrap is the deviation of a ratio of means, on its scale, by drawing pairs.
func bootstrap(base, remedy []float64, random *rand.Rand, positive bool, scale func(float64) float64) float64 {
	n := len(base)
	draws := make([]float64, 0, 2000)
	for range cap(draws) {
		var b, r float64
		for range n {
			i := random.IntN(n)
			b, r = b+base[i], r+remedy[i]
		}
		if v := scale(r / b); !math.IsNaN(v) && !math.IsInf(v, 0) {
			draws = append(draws, v)
		}
	}
	if len(draws) < 2 {
		return math.NaN()
	}
	// The quartiles would do for a normal distribution; they bear a draw whose
	// means of the base come out near 0.
	slices.Sort(draws)
	deviation := stat.StdDev(draws, nil)
	if !positive {
		deviation = (stat.Quantile(0.75, stat.Empirical, draws, nil) - stat.Quantile(0.25, stat.Empirical, draws, nil)) / 1.349
	}
	return deviation * math.Sqrt(float64(n)/float64(n-1))
}

// morePairs is how many more pairs would bring the interval away from the
// nearest threshold that it holds; its width falls with the root of their number.
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

// String is the comparison in a line: "works: the slope is x0.01 [-0.02, 0.03] of that
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
