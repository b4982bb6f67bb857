package memory

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Per is what a slope is counted by.
type Per string

// The units of slopes. The zero value of Per means PerStep.
const (
	PerStep   Per = "step"
	PerMinute Per = "minute"
)

// DefaultConfidence is the level of the intervals. At 99% one of 200 runs
// without a leak has an interval that lies above 0 by chance.
const DefaultConfidence = 0.99

// Criteria say what to judge and by which measure. The zero value judges
// anonymous memory by step, and any growth that can be told from noise is a leak.
type Criteria struct {
	// Layer to judge; "" means Anon, or RSS where the system does not tell that.
	Layer Layer
	// Per is PerStep if empty. PerMinute suits a watch that knows of no steps.
	Per Per
	// Budget is the growth in bytes per step (or minute) that is no leak. With a
	// budget above 0, flat means: not above the budget, beyond doubt. With 0 it
	// means: no growth seen, and what may hide over the judged part is below 1% of
	// the level, a MiB, or what the amount goes up and down by anyway.
	Budget Bytes
	// Confidence is that of the interval, DefaultConfidence if 0.
	Confidence float64
	// Seed of the bootstrap. Equal samples and equal seeds give equal verdicts.
	Seed uint64
}

// Kind is the kind of a verdict.
type Kind string

// The kinds. Crash is never found by [Series.Judge]: a run that ended otherwise
// is judged by whoever started it.
const (
	Leak         Kind = "leak"         // grows on, above the budget, without slowing down
	Plateau      Kind = "plateau"      // has grown, and has stopped
	Jump         Kind = "jump"         // has changed once, at once
	Flat         Kind = "flat"         // has not grown
	Sawtooth     Kind = "sawtooth"     // grows and falls back, again and again
	Inconclusive Kind = "inconclusive" // cannot be told yet
	Crash        Kind = "crash"        // the run ended before its time
)

// minimumSamples is the least that is judged at all.
const minimumSamples = 16

// Verdict is what a series shows. Slopes and spans are in the unit that Per
// names; sizes are in bytes (or in the unit of the layer, if another was judged).
type Verdict struct {
	Kind  Kind  `json:"kind"`
	Layer Layer `json:"layer"`
	Per   Per   `json:"per"`
	// Slope of the judged part, and its interval at the Confidence. It has not been
	// estimated (all 0) with fewer than 16 samples.
	Slope      Interval `json:"slope"`
	Confidence float64  `json:"confidence"`
	Budget     Bytes    `json:"budget"`
	// NoiseFloor is the smallest slope that this series could tell from none: half
	// the interval. A leak of 4 times as much is found in 99 of 100 series.
	NoiseFloor float64 `json:"noise_floor"`
	// Noise is the standard deviation of one sample around the trend, estimated
	// robustly; Quantum the smallest difference of two samples, a page mostly.
	Noise   Bytes `json:"noise"`
	Quantum Bytes `json:"quantum"`
	// Start is the level at the beginning, Level that at the end: of a plateau, its
	// height.
	Start Bytes `json:"start"`
	Level Bytes `json:"level"`
	// Jumps are the steps in level that were cut off, in the order of time.
	Jumps []Change `json:"jumps,omitempty"`
	// Depth of a tooth and number of falls, for a saw-tooth or a leak that has teeth.
	Depth Bytes `json:"depth,omitempty"`
	Falls int   `json:"falls,omitempty"`
	// From is the step (or minute) where the judged part begins: what was before is
	// warm-up. To is where it ends.
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// Model is the shape that fits the judged part best, by AICc.
	Model Model `json:"model,omitempty"`
	// Samples is the number of samples in the judged part.
	Samples int `json:"samples"`
	// More is how many more steps (or minutes) would decide; only of an
	// inconclusive verdict. It supposes that the noise stays as it is.
	More float64 `json:"more,omitempty"`
	// Reason says why a verdict is inconclusive, or what a crash was.
	Reason string `json:"reason,omitempty"`
	// Cause and Carrier say which layer goes along with the growth and what that
	// means; empty if nothing grew.
	Cause   Cause `json:"cause,omitempty"`
	Carrier Layer `json:"carrier,omitempty"`
	// Net is the slope less what malloc holds free; nil unless malloc tells, and hands out
	// no more as time goes on.
	Net *Interval `json:"net,omitempty"`
	// Kept is what was left of the growth when everything was closed; only of a
	// verdict that [Verdict.Trimmed] was asked of.
	Kept *Kept `json:"kept,omitempty"`
	// Trends are the slopes of all layers in the judged part.
	Trends []Trend `json:"trends,omitempty"`
	// Notes are remarks for the reader, each a sentence.
	Notes []string `json:"notes,omitempty"`
}

// Interval is an estimate and the bounds of its interval.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
}

// Change is a change of level at one moment, given in steps or minutes.
type Change struct {
	At     float64 `json:"at"`
	Amount Bytes   `json:"amount"`
}

// Crashed is the verdict on a run that ended before its time.
func Crashed(reason string) Verdict { return Verdict{Kind: Crash, Per: PerStep, Reason: reason} }

// Judge says what the series shows. Its cost does not depend on the length of
// the run: some milliseconds, and as much again for each layer that changes.
//
// The warm-up is cut off first: of the models (constant, one step, saturating,
// linear, quadratic; step and curve also with a slope) AICc chooses one, which
// tells whether there was a step or a curve that levels off, and where it ended;
// the rest is looked at again, a few times at most. The slope of what remains is
// that of Theil and Sen, with a moving-block bootstrap interval, widened by one
// quantum over the span. It is a leak only if the lower bound exceeds the budget,
// the last third is not less steep, and neither a saturating curve nor a single
// step explains the growth better, nor two or three stairs after the last of which
// it stood still. What falls near the end is no growth that may go on, so only a late
// rise is inconclusive. So is growth of the Go heap that no collection has confirmed, and
// memory that stands still while native objects fill it. The test of Mann and Kendall is not used: on data of this
// kind it raises false alarms (Machida, Andrzejak, Matias and Vicente 2013).
func (s *Series) Judge(c Criteria) Verdict {
	c = c.complete(s)
	x, y := s.points(c.Layer, c.Per)
	v := s.retained(judge(x, y, c), c)
	s.attribute(&v, c)
	return v
}

func (c Criteria) complete(s *Series) Criteria {
	if c.Layer == "" {
		if c.Layer = Anon; !s.Max(Anon).OK {
			c.Layer = RSS
		}
	}
	if c.Per == "" {
		c.Per = PerStep
	}
	if c.Confidence <= 0 || c.Confidence >= 1 {
		c.Confidence = DefaultConfidence
	}
	c.Budget = max(c.Budget, 0)
	return c
}

// trial is the state of one judgement.
type trial struct {
	Criteria
	x, y    []float64 // the whole series
	from    int       // where the judged part begins
	quantum float64
	models  models // of the judged part
	// ramp is the last curve that was cut off, if its model is not empty.
	ramp   fitted
	cuts   int
	jumps  []Change
	late   bool // a step so near the end that it cannot be judged, if it goes up
	result Verdict
}

func judge(x, y []float64, c Criteria) Verdict {
	t := trial{Criteria: c, x: x, y: y, quantum: c.grain(y)}
	t.result = Verdict{Layer: c.Layer, Per: c.Per, Confidence: c.Confidence, Budget: c.Budget, Samples: len(y)}
	v := &t.result
	if len(y) == 0 {
		v.Kind, v.Reason = Inconclusive, fmt.Sprintf("no sample tells %s", c.Layer)
		return *v
	}
	v.Quantum = Bytes(quantum(y))
	v.Start, v.Level = Bytes(y[0]), Bytes(y[len(y)-1])
	v.From, v.To = x[0], x[len(x)-1]
	if len(y) < minimumSamples {
		v.Kind, v.Reason = Inconclusive, fmt.Sprintf("%d samples are too few", len(y))
		v.More = 1
		if len(y) > 1 {
			v.More = (v.To - v.From) / float64(len(y)-1) * float64(2*minimumSamples-len(y))
		}
		v.More = t.whole(v.More)
		return *v
	}
	// A warm-up hides teeth, so look after it as well.
	for _, from := range []int{0, len(y) / 4, len(y) / 2} {
		// A fall of a page or two is one that came and went, not a tooth.
		if s, ok := findSaw(x[from:], y[from:]); ok && s.depth > 2*t.grainOf(y[from:]) {
			t.from = from
			t.judgeSaw(s)
			return *v
		}
	}
	t.cutWarmUp()
	t.judgeTail()
	if v.Kind == Leak || v.Kind == Inconclusive {
		t.judgeStairs()
	}
	return *v
}

// quantum is the smallest difference between two values that are not equal.
func quantum(y []float64) float64 {
	sorted := slices.Clone(y)
	slices.Sort(sorted)
	least := math.Inf(1)
	for i := 1; i < len(sorted); i++ {
		if d := sorted[i] - sorted[i-1]; d > 0 {
			least = min(least, d)
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// pageSize is the least that a kernel hands out, on most machines.
const pageSize = 4096

// grain is the difference between two values that rounding alone can make: the
// quantum, but no more than a page, since without noise the smallest difference
// of a series can be the very jump that it shows.
func (c Criteria) grain(y []float64) float64 {
	grain := 1.0
	if c.Layer.Unit() == InBytes {
		grain = pageSize
	}
	if q := quantum(y); q > 0 {
		grain = min(q, grain)
	}
	return grain
}

func (t *trial) span() float64  { return t.x[len(t.x)-1] - t.x[t.from] }
func (t *trial) total() float64 { return t.x[len(t.x)-1] - t.x[0] }

const (
	// rounds of cutting off warm-up, one model each.
	warmUpRounds = 4
	// leastTail is what must remain after a curve was cut off, as a part of the
	// whole; leastAfterStep the same after a step, which ends more clearly, and
	// leastAfterStairs after several, since there may be one more.
	leastTail        = 1.0 / 3
	leastAfterStep   = 0.1
	leastAfterStairs = 0.4
	// fewTail is how many samples must remain.
	fewTail = 12
)

// cutWarmUp moves from to where the warm-up ends.
func (t *trial) cutWarmUp() {
	for range warmUpRounds {
		x, y := t.x[t.from:], t.y[t.from:]
		t.models = choose(x, y, t.quantum)
		best := t.models.best
		var end float64
		least := leastTail
		switch best.model {
		case Step, StepLinear:
			end, least = best.at, leastAfterStep
		case Saturating, SaturatingLinear:
			end = t.settled(best)
		case Quadratic:
			end = t.bend(best)
		default:
			return
		}
		from := t.from + sortSearch(x, end)
		if best.model == Step || best.model == StepLinear {
			from = t.edge(from, best.change)
		}
		if len(t.x)-from < fewTail || t.x[len(t.x)-1]-t.x[min(from, len(t.x)-1)] < least*t.total() {
			// A step with a slope counts if the slope does not dwarf it.
			t.late = best.model == Step || best.model == StepLinear && math.Abs(best.change) > math.Abs(best.slope)*t.span()/2
			return
		}
		if t.cuts == 0 {
			t.result.Start = Bytes(best.value(x[0]))
		}
		switch best.model {
		case Step, StepLinear:
			t.jumps = append(t.jumps, Change{At: t.x[from], Amount: Bytes(t.height(best, from))})
		case Saturating, SaturatingLinear:
			t.ramp = best
		}
		t.from = from
		t.cuts++
	}
	t.models = choose(t.x[t.from:], t.y[t.from:], t.quantum)
}

// sortSearch is the index of the first value above limit.
func sortSearch(x []float64, limit float64) int {
	i, found := slices.BinarySearch(x, limit)
	if found {
		i++
	}
	return i
}

// edge is the sample after the largest change in the direction of a step, near
// the sample where a model of bins saw it.
func (t *trial) edge(from int, change float64) int {
	reach := 2 * ((len(t.x)-t.from)/modelPoints + 1)
	edge, most := from, 0.0
	for i := max(from-reach, t.from+1); i <= min(from+reach, len(t.y)-1); i++ {
		if d := (t.y[i] - t.y[i-1]) * math.Copysign(1, change); d > most {
			edge, most = i, d
		}
	}
	return edge
}

// height is that of a step: between the medians of both sides, unless they have
// a slope.
func (t *trial) height(f fitted, from int) float64 {
	if f.model != Step || from == t.from {
		return f.change
	}
	return median(slices.Clone(t.y[from:])) - median(slices.Clone(t.y[t.from:from]))
}

// settled is where a saturating curve has come as near to its end as the noise
// lets see; never if it takes more than half of the series to get two thirds up.
func (t *trial) settled(f fitted) float64 {
	if f.at > t.span()/2 {
		return math.Inf(1)
	}
	noise := max(t.around(f)/2, t.quantum)
	constants := min(max(math.Log(math.Abs(f.change)/noise), 1), 6)
	return min(f.origin+f.at*constants, t.x[len(t.x)-1]-leastTail*t.total()*1.01)
}

// around is the standard deviation of the judged part around a model.
func (t *trial) around(f fitted) float64 {
	return math.Sqrt(f.squares / float64(min(len(t.x)-t.from, modelPoints)))
}

// bend is where a parabola should be cut: at its vertex, or, if it flattens
// without reaching it, after a third.
func (t *trial) bend(f fitted) float64 {
	begin := t.x[t.from]
	if f.curve != 0 {
		vertex := f.q/2 - f.change/(2*f.curve)
		if vertex > begin+t.span()/10 && vertex < begin+t.span()*2/3 {
			return vertex
		}
	}
	if f.curve*(f.value(t.x[len(t.x)-1])-f.value(begin)) < 0 {
		return begin + t.span()/3
	}
	return math.Inf(1)
}

// grainOf is what rounding can move a value of the judged part by: its own
// quantum, since memory may be taken in large pieces, or that of the series.
func (t *trial) grainOf(tail []float64) float64 { return max(quantum(tail), t.quantum) }

// tolerance is the slope that passes as none; swing is what the amount goes up
// and down by.
func (t *trial) tolerance(level, swing float64) float64 {
	if t.Budget > 0 {
		return float64(t.Budget)
	}
	least := 0.0
	if t.Layer.Unit() == InBytes {
		least = float64(MiB)
	}
	return max(least, 0.01*math.Abs(level), swing, 4*t.quantum) / t.span()
}

// measured writes the trend to the verdict.
func (t *trial) measured(f trend, noise float64) {
	v := &t.result
	half := f.half + t.grainOf(t.y[t.from:])/t.span()
	v.Slope = Interval{f.slope, f.slope - half, f.slope + half}
	v.NoiseFloor = half
	v.Noise = Bytes(noise)
	v.From, v.Samples = t.x[t.from], len(t.x)-t.from
	v.Level = Bytes(f.intercept + f.slope*t.x[len(t.x)-1])
	if t.cuts == 0 {
		v.Start = Bytes(f.intercept + f.slope*t.x[t.from])
	}
	v.Jumps = t.jumps
}

func (t *trial) judgeSaw(s saw) {
	x, y := t.x[t.from:], t.y[t.from:]
	f := s.trend(x, y, t.quantum, t.Confidence, t.Seed)
	if t.from > 0 {
		t.cuts = 1
	}
	t.measured(f, 0)
	v := &t.result
	v.Depth, v.Falls = Bytes(s.depth), len(s.falls)
	switch tolerance := t.tolerance(float64(v.Level), 2*s.depth); {
	case v.Slope.Low > float64(t.Budget) && f.bends:
		t.rising("it still climbs, but less and less")
	case v.Slope.Low > float64(t.Budget):
		v.Kind = Leak
	case v.Slope.High <= tolerance:
		v.Kind = Sawtooth
	default:
		t.undecided("it goes up and down, and whether it climbs cannot be told from so few turns", tolerance)
	}
}

func (t *trial) judgeTail() {
	x, y := t.x[t.from:], t.y[t.from:]
	f := estimate(x, y, t.grainOf(y), t.Confidence, t.Seed)
	rest := make([]float64, len(x))
	for i := range x {
		rest[i] = y[i] - f.intercept - f.slope*x[i]
	}
	slices.Sort(rest)
	// Two deviations of normal noise, but more if it comes in rare lumps.
	swing := (stat.Quantile(0.95, stat.Empirical, rest, nil) - stat.Quantile(0.05, stat.Empirical, rest, nil)) / 1.645
	for i := range rest {
		rest[i] = math.Abs(rest[i])
	}
	noise := 1.4826 * median(rest)
	t.measured(f, noise)
	v := &t.result
	v.Model = t.models.best.model
	tolerance := t.tolerance(float64(v.Level), swing)
	grows := v.Slope.Low > float64(t.Budget)

	curve := t.models.get(Saturating)
	line, level, both := t.models.get(Linear), t.models.get(Constant), t.models.get(SaturatingLinear)
	levelsOff := curve.change > 0 && (v.Model == Saturating || curve.score+evidence <= line.score) &&
		t.models.apart(line, curve) > t.grainOf(y)/2 && (both.slope <= 0 || both.score+evidence > curve.score)
	// Growth within the noise counts only if the line is the better model, too.
	slight := v.Slope.Estimate*t.span() < 2*noise
	switch {
	case t.late && t.models.best.change > 0 && !t.grewBefore() && !t.within(t.models.best.at, t.models.best.change):
		step := t.models.best
		v.Jumps = append(v.Jumps, Change{At: step.at, Amount: Bytes(step.change)})
		v.Kind, v.Reason = Inconclusive, fmt.Sprintf("it changed by %s near the end, and whether that goes on cannot be told",
			v.Layer.amount(step.change))
		v.More = t.whole(t.total() / 2)
	case t.Budget > 0 && v.Slope.High <= tolerance:
		t.settle(noise)
	case levelsOff:
		t.judgeCurve(curve, tolerance, noise)
	case v.Slope.High <= tolerance && (!grows || slight && line.score+evidence > level.score):
		t.settle(noise)
	case !grows:
		t.undecided("the growth may be none or too much: the interval holds both", tolerance)
	case f.bends:
		t.rising("it still rises, but less and less")
	case t.unexplained():
		v.Kind = Leak
	default:
		t.rising("it rises no more than the rest of the warm-up would")
	}
}

// grewBefore is whether the growth was there before the step that came late.
func (t *trial) grewBefore() bool {
	end := sortSearch(t.x, t.models.best.at)
	x, y := t.x[t.from:end], t.y[t.from:end]
	if len(x) < fewTail {
		return false
	}
	grain := t.grainOf(y)
	f := estimate(x, y, grain, t.Confidence, t.Seed)
	return !f.bends && f.slope-f.half-grain/(x[len(x)-1]-x[0]) > float64(t.Budget)
}

// unexplained is whether the tail grows by more than the curve that was cut off
// still would.
func (t *trial) unexplained() bool {
	if t.ramp.model == "" {
		return true
	}
	rest := t.ramp.rise(t.x[len(t.x)-1]) - t.ramp.rise(t.x[t.from])
	return t.result.Slope.Low-max(rest, 0)/t.span() > float64(t.Budget)
}

// within is whether a change, if it were the beginning of growth, would be growth
// within the budget: a leak would have added more by the end.
func (t *trial) within(at, change float64) bool {
	return math.Abs(change) < float64(t.Budget)*(t.x[len(t.x)-1]-at)
}

// settle names a course that does not grow any more.
func (t *trial) settle(noise float64) {
	v := &t.result
	upward := 0
	for _, j := range t.jumps {
		if j.Amount > 0 {
			upward++
		}
	}
	change := math.Abs(float64(v.Level - v.Start))
	// One jump makes up most of the change.
	jumped := len(t.jumps) == 1 && math.Abs(float64(v.Level-v.Start-t.jumps[0].Amount)) <= 0.25*math.Abs(float64(t.jumps[0].Amount))
	switch {
	case upward > 1 && t.span() < leastAfterStairs*t.total() && !t.within(t.jumps[len(t.jumps)-1].At, float64(t.jumps[len(t.jumps)-1].Amount)):
		v.Kind, v.Reason = Inconclusive, fmt.Sprintf("it went up %d times, and the last time is too near the end", upward)
		v.More = t.whole(t.total() / 2)
	case t.cuts == 0 || change < max(3*noise, 2*t.quantum):
		v.Kind = Flat
	case jumped:
		v.Kind = Jump
	default:
		v.Kind = Plateau
	}
}

// judgeCurve judges a tail that is the beginning of a saturating curve.
func (t *trial) judgeCurve(curve fitted, tolerance, noise float64) {
	end := t.x[len(t.x)-1]
	elapsed := end - curve.origin
	rest := curve.change * math.Exp(-elapsed/curve.at)
	v := &t.result
	// What lies around a line is mostly the curve's bend; and what grows beyond doubt is
	// not hidden by noise.
	noise = min(noise, t.around(curve))
	if v.Slope.Low > float64(t.Budget) {
		noise = 0
	}
	// What the next span as long as this one would still add.
	if next := rest * (1 - math.Exp(-t.span()/curve.at)); next <= max(tolerance*t.span(), noise) && curve.at < t.span()/2 {
		v.Kind = Plateau
		v.Level = Bytes(curve.value(end))
		if t.cuts == 0 {
			v.Start = Bytes(curve.level)
		}
		return
	}
	v.Kind, v.Reason = Inconclusive, "it still rises, but levels off"
	v.More = t.whole(max(5*curve.at-elapsed, t.total()/4))
}

func (t *trial) rising(reason string) {
	t.result.Kind, t.result.Reason = Inconclusive, reason
	t.result.More = t.whole(t.total())
}

// undecided says how many more steps would decide. The half width of the
// interval falls with the power 1.5 of the span: the span itself, and the root
// of the number of samples in it.
func (t *trial) undecided(reason string, tolerance float64) {
	v := &t.result
	distance := max(tolerance-v.Slope.Estimate, v.Slope.Estimate-float64(t.Budget))
	// The estimate may be off by its standard error, to the wrong side.
	distance = max(distance-0.4*v.NoiseFloor, 0.05*v.NoiseFloor)
	factor := max(math.Pow(1.1*v.NoiseFloor/distance, 2.0/3), 1.25)
	v.Kind, v.Reason = Inconclusive, reason
	v.More = t.whole((factor - 1) * t.span())
}

func (t *trial) whole(more float64) float64 { return whole(t.Per, more) }

// whole rounds a number of steps up; minutes stay as they are.
func whole(per Per, more float64) float64 {
	if per == PerMinute {
		return more
	}
	return math.Ceil(cmp.Or(more, 1))
}
