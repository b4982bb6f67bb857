package memory

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/internal/texts"
)

// Judge returns the verdict on the series. It takes some milliseconds per layer that changes, for a
// series of any length.
//
// Judge first cuts off the warm-up, such as a step or a curve that levels off. It finds the warm-up
// by choosing a model with AICc. It then estimates the slope of the rest by Theil and Sen, with an
// interval from a moving-block bootstrap. The interval is widened by the quantum, the smallest
// difference of two samples, divided by the length of the judged part.
//
// A verdict of Leak needs a lower bound above the budget, a last third that is not less steep, and no
// better explanation by a saturating curve or a few step changes. A late rise is inconclusive. Two other
// results are inconclusive: growth of the Go heap that no collection confirmed, and constant memory inside
// which native objects or heaps grow. The test of Mann and Kendall is not used, since it raises false
// alarms on such data (Machida, Andrzejak, Matias and Vicente 2013).
func (s *Series) Judge(c Criteria) Verdict {
	if c.Layer == "" {
		if c.Layer = Anon; !s.Max(Anon).OK {
			c.Layer = RSS
		}
	}
	c.Budget = max(c.Budget, 0)
	x, y := s.points(c.Layer, c.PerMinute)
	v := s.retained(judge(x, y, c), c)
	s.attribute(&v, c)
	return v
}

type trial struct {
	Criteria
	x, y    []float64 // the whole series
	from    int       // start of the judged part
	quantum float64
	models  models // fitted to the judged part
	// ramp is the last curve that was cut off. ramp.model is empty if no curve was cut off.
	ramp   fitted
	cuts   int
	jumps  []Change
	late   bool // a step is too near the end to be judged
	result Verdict
}

func judge(x, y []float64, c Criteria) Verdict {
	t := trial{Criteria: c, x: x, y: y, quantum: c.grain(y)}
	t.result = Verdict{Layer: c.Layer, Per: c.per(), Confidence: stats.Confidence, Budget: c.Budget, Samples: len(y)}
	v := &t.result
	if len(y) == 0 {
		v.Kind, v.Reason = Inconclusive, fmt.Sprintf("no sample has %s", c.Layer)
		return *v
	}
	v.Start, v.Level = Bytes(y[0]), Bytes(y[len(y)-1])
	v.From, v.To = x[0], x[len(x)-1]
	if len(y) < minimumSamples {
		more := 1.0
		if len(y) > 1 {
			more = (v.To - v.From) / float64(len(y)-1) * float64(2*minimumSamples-len(y))
		}
		t.inconclusive(more, "%s are too few", texts.Count(len(y), "sample"))
		return *v
	}
	// A warm-up can hide a sawtooth, so the search is repeated without it.
	for _, from := range []int{0, len(y) / 4, len(y) / 2} {
		// A fall of a page or two may be the release of single pages.
		if s, ok := findSawtooth(x[from:], y[from:]); ok && s.depth > 2*t.grainOf(y[from:]) {
			t.from = from
			t.judgeSawtooth(s)
			return *v
		}
	}
	t.cutWarmUp()
	t.judgeTail()
	if v.Kind == Leak || v.Kind == Inconclusive {
		t.judgeStepChanges()
	}
	return *v
}

// quantum returns the smallest difference of two unequal values; 0 if all values are equal.
func quantum(y []float64) float64 {
	sorted := slices.Compact(slices.Sorted(slices.Values(y)))
	least := math.Inf(1)
	for i := 1; i < len(sorted); i++ {
		least = min(least, sorted[i]-sorted[i-1])
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// pageSize is the page size of most machines in bytes.
const pageSize = 4096

// grain returns the amount by which rounding can move a value. It is the quantum, but at most a
// page, since the quantum of a series without noise may be a real change.
func (c Criteria) grain(y []float64) float64 {
	grain := 1.0
	if memlayer.InBytes(c.Layer) {
		grain = pageSize
	}
	if q := quantum(y); q > 0 {
		grain = min(q, grain)
	}
	return grain
}

// grainOf returns the grain of the judged part. The quantum of the whole series can be larger.
func (t *trial) grainOf(tail []float64) float64 { return max(quantum(tail), t.quantum) }

func (t *trial) end() float64   { return t.x[len(t.x)-1] }
func (t *trial) span() float64  { return t.end() - t.x[t.from] }
func (t *trial) total() float64 { return t.end() - t.x[0] }

const (
	// warmUpRounds is the maximum number of times that a warm-up is cut off.
	warmUpRounds = 4
	// leastTail is the minimum fraction of the series that must remain after a curve is cut off.
	// leastAfterStep applies after a step change, whose end is easier to locate. leastAfterSeveral
	// applies after several step changes, since another one may follow.
	leastTail         = 1.0 / 3
	leastAfterStep    = 0.1
	leastAfterSeveral = 0.4
	// fewTail is the minimum number of samples after a cut.
	fewTail = 12
)

// cutWarmUp moves t.from to the end of the warm-up.
func (t *trial) cutWarmUp() {
	for range warmUpRounds {
		x, y := t.x[t.from:], t.y[t.from:]
		t.models = choose(x, y, t.quantum)
		best := t.models.best
		end, least := 0.0, leastTail
		switch {
		case best.model.steps():
			end, least = best.at, leastAfterStep
		case best.model.saturates():
			end = t.settled(best)
		case best.model == quadraticModel:
			end = t.bend(best)
		default:
			return
		}
		from := t.from + firstAbove(x, end)
		if best.model.steps() {
			from = t.edge(from, best.change)
		}
		if len(t.x)-from < fewTail || t.end()-t.x[min(from, len(t.x)-1)] < least*t.total() {
			t.late = best.model == stepModel
			return
		}
		if t.cuts == 0 {
			t.result.Start = Bytes(best.value(x[0]))
		}
		switch {
		case best.model.steps():
			t.jumps = append(t.jumps, Change{At: t.x[from], Amount: Bytes(t.height(best, from))})
		case best.model.saturates():
			t.ramp = best
		}
		t.from = from
		t.cuts++
	}
	t.models = choose(t.x[t.from:], t.y[t.from:], t.quantum)
}

func firstAbove(x []float64, limit float64) int {
	i, found := slices.BinarySearch(x, limit)
	if found {
		i++
	}
	return i
}

// edge returns the index after the largest change in the direction of a step, near the place where a
// model of bins located the step.
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

// height returns the height of a step: the difference of the medians of both sides, or the fitted
// change if the sides slope.
func (t *trial) height(f fitted, from int) float64 {
	if f.model != stepModel || from == t.from {
		return f.change
	}
	return stats.Median(t.y[from:]) - stats.Median(t.y[t.from:from])
}

// settled returns the place from which a saturating curve is within the noise of its final level. It
// is infinite if two thirds of the rise take more than half of the series.
func (t *trial) settled(f fitted) float64 {
	if f.at > t.span()/2 {
		return math.Inf(1)
	}
	noise := max(t.around(f)/2, t.quantum)
	constants := min(max(math.Log(math.Abs(f.change)/noise), 1), 6)
	return min(f.origin+f.at*constants, t.end()-leastTail*t.total()*1.01)
}

// around returns the standard deviation of the judged part from a fit.
func (t *trial) around(f fitted) float64 {
	return math.Sqrt(f.squares / float64(min(len(t.x)-t.from, modelPoints)))
}

// bend returns the place at which to cut a parabola: its vertex, or a third of the series if it has
// no vertex there.
func (t *trial) bend(f fitted) float64 {
	begin := t.x[t.from]
	if f.change != 0 {
		vertex := f.origin - f.slope/(2*f.change)
		if vertex > begin+t.span()/10 && vertex < begin+t.span()*2/3 {
			return vertex
		}
	}
	if f.change*(f.value(t.end())-f.value(begin)) < 0 {
		return begin + t.span()/3
	}
	return math.Inf(1)
}

// tolerance returns the slope that counts as no growth. swing is the usual variation of the amount.
func (t *trial) tolerance(level, swing float64) float64 {
	if t.Budget > 0 {
		return float64(t.Budget)
	}
	least := 0.0
	if memlayer.InBytes(t.Layer) {
		least = float64(MiB)
	}
	return max(least, 0.01*math.Abs(level), swing, 4*t.quantum) / t.span()
}

func (t *trial) measured(f trend) {
	v := &t.result
	half := f.half + t.grainOf(t.y[t.from:])/t.span()
	v.Slope = Interval{f.slope, f.slope - half, f.slope + half}
	v.NoiseFloor = half
	v.From, v.Samples = t.x[t.from], len(t.x)-t.from
	v.Level = Bytes(f.intercept + f.slope*t.end())
	if t.cuts == 0 {
		v.Start = Bytes(f.intercept + f.slope*t.x[t.from])
	}
	v.Jumps = t.jumps
}

func (t *trial) judgeSawtooth(s sawtooth) {
	f := s.trend(t.x[t.from:], t.y[t.from:])
	if t.from > 0 {
		t.cuts = 1
	}
	t.measured(f)
	v := &t.result
	v.Depth = Bytes(s.depth)
	switch tolerance := t.tolerance(float64(v.Level), 2*s.depth); {
	case v.Slope.Low > float64(t.Budget) && f.bends:
		t.inconclusive(t.total(), "the growth slows down")
	case v.Slope.Low > float64(t.Budget):
		v.Kind = Leak
	case v.Slope.High <= tolerance:
		v.Kind = Sawtooth
	default:
		t.undecided("too few rises and falls to decide whether the sawtooth climbs", tolerance)
	}
}

// scatter returns the variation around the line. noise is one robust standard deviation; swing is
// two, or more if the noise has rare peaks.
func (f trend) scatter(x, y []float64) (swing, noise float64) {
	rest := make([]float64, len(x))
	for i := range x {
		rest[i] = y[i] - f.intercept - f.slope*x[i]
	}
	slices.Sort(rest)
	swing = (stat.Quantile(0.95, stat.Empirical, rest, nil) - stat.Quantile(0.05, stat.Empirical, rest, nil)) / 1.645
	for i := range rest {
		rest[i] = math.Abs(rest[i])
	}
	return swing, 1.4826 * stats.Median(rest)
}

func (t *trial) judgeTail() {
	x, y := t.x[t.from:], t.y[t.from:]
	f := estimate(x, y, t.grainOf(y), t.Seed)
	swing, noise := f.scatter(x, y)
	t.measured(f)
	v := &t.result
	tolerance := t.tolerance(float64(v.Level), swing)
	grows := v.Slope.Low > float64(t.Budget)

	curve := t.models.get(saturatingModel)
	line, level, both := t.models.get(linearModel), t.models.get(constantModel), t.models.get(saturatingLinearModel)
	levelsOff := curve.change > 0 && (t.models.best.model == saturatingModel || curve.score+evidence <= line.score) &&
		t.models.apart(line, curve) > t.grainOf(y)/2 && (both.slope <= 0 || both.score+evidence > curve.score)
	// Growth within the noise counts only if a line is also the better model.
	slight := v.Slope.Estimate*t.span() < 2*noise
	step := t.models.best
	switch {
	case t.late && step.change > 0 && !t.grewBefore() && !t.within(step.at, step.change):
		v.Jumps = append(v.Jumps, Change{At: step.at, Amount: Bytes(step.change)})
		t.inconclusive(t.total()/2, "the level changed by %s near the end, too late to decide whether the growth continues",
			memlayer.Amount(v.Layer, step.change))
	case t.Budget > 0 && v.Slope.High <= tolerance:
		t.settle(noise)
	case levelsOff:
		t.judgeCurve(curve, tolerance, noise)
	case v.Slope.High <= tolerance && (!grows || slight && line.score+evidence > level.score):
		t.settle(noise)
	case !grows:
		t.undecided("the interval includes both no growth and too much growth", tolerance)
	case f.bends:
		t.inconclusive(t.total(), "the growth slows down")
	case t.unexplained():
		v.Kind = Leak
	default:
		t.inconclusive(t.total(), "the growth is no more than the rest of the warm-up would add")
	}
}

// grewBefore reports whether the series already grew before a late step.
func (t *trial) grewBefore() bool {
	end := firstAbove(t.x, t.models.best.at)
	x, y := t.x[t.from:end], t.y[t.from:end]
	if len(x) < fewTail {
		return false
	}
	grain := t.grainOf(y)
	f := estimate(x, y, grain, t.Seed)
	return !f.bends && f.slope-f.half-grain/(x[len(x)-1]-x[0]) > float64(t.Budget)
}

// unexplained reports whether the tail grows by more than the cut curve would still rise.
func (t *trial) unexplained() bool {
	if t.ramp.model == "" {
		return true
	}
	rest := t.ramp.change * (t.ramp.shape(t.end()) - t.ramp.shape(t.x[t.from]))
	return t.result.Slope.Low-max(rest, 0)/t.span() > float64(t.Budget)
}

// within reports whether a change at position at, a step or a minute, is smaller than the growth that the
// budget allows from there to the end. A leak above the budget would have added more than that.
func (t *trial) within(at, change float64) bool {
	return math.Abs(change) < float64(t.Budget)*(t.end()-at)
}

// settle chooses the verdict for a series that no longer grows.
func (t *trial) settle(noise float64) {
	v := &t.result
	upward := 0
	var last Change
	for _, last = range t.jumps {
		if last.Amount > 0 {
			upward++
		}
	}
	change := math.Abs(float64(v.Level - v.Start))
	// A jump needs one change that makes up most of the rise.
	jumped := len(t.jumps) == 1 && math.Abs(float64(v.Level-v.Start-last.Amount)) <= 0.25*math.Abs(float64(last.Amount))
	switch {
	case upward > 1 && t.span() < leastAfterSeveral*t.total() && !t.within(last.At, float64(last.Amount)):
		t.inconclusive(t.total()/2, "the level rose in %d steps, and the last step is too near the end", upward)
	case t.cuts == 0 || change < max(3*noise, 2*t.quantum):
		v.Kind = Flat
	case jumped:
		v.Kind = Jump
	default:
		v.Kind = Plateau
	}
}

// judgeCurve judges a tail that looks like the beginning of a saturating curve.
func (t *trial) judgeCurve(curve fitted, tolerance, noise float64) {
	elapsed := t.end() - curve.origin
	rest := curve.change * math.Exp(-elapsed/curve.at)
	v := &t.result
	// The bend of the curve must not count as noise around a line.
	noise = min(noise, t.around(curve))
	if v.Slope.Low > float64(t.Budget) {
		noise = 0
	}
	// next is the amount that the curve would add in another span of this length.
	if next := rest * (1 - math.Exp(-t.span()/curve.at)); next <= max(tolerance*t.span(), noise) && curve.at < t.span()/2 {
		v.Kind = Plateau
		v.Level = Bytes(curve.value(t.end()))
		if t.cuts == 0 {
			v.Start = Bytes(curve.level)
		}
		return
	}
	t.inconclusive(max(5*curve.at-elapsed, t.total()/4), "the level still rises, but flattens")
}

// undecided makes the verdict inconclusive and estimates the number of steps that would decide. The
// width of the interval falls with the power 1.5 of the span.
func (t *trial) undecided(reason string, tolerance float64) {
	v := &t.result
	distance := max(tolerance-v.Slope.Estimate, v.Slope.Estimate-float64(t.Budget))
	// The true slope may be closer to the threshold than the estimate, by the standard error.
	distance = max(distance-0.4*v.NoiseFloor, 0.05*v.NoiseFloor)
	factor := max(math.Pow(1.1*v.NoiseFloor/distance, 2.0/3), 1.25)
	t.inconclusive((factor-1)*t.span(), "%s", reason)
}

func (t *trial) inconclusive(more float64, reason string, args ...any) {
	t.result.Kind, t.result.Reason = Inconclusive, fmt.Sprintf(reason, args...)
	t.result.More = whole(t.PerMinute, more)
}

// whole rounds a number of steps up. Minutes stay unchanged.
func whole(perMinute bool, more float64) float64 {
	if perMinute {
		return more
	}
	return math.Ceil(cmp.Or(more, 1))
}
