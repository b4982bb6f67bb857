package compare

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

const (
	// bootstrapPairs is the minimum number of pairs for a bootstrap. Fewer pairs have too few
	// different draws: two pairs have three.
	bootstrapPairs = 5
	// pageGrain is the precision of an amount of memory in bytes.
	pageGrain = 4096
	// clockGrain is the precision of a step time in nanoseconds.
	clockGrain = 100
	// floorDeviations is the number of standard deviations in a noise floor: the half width of a
	// 99% interval of a normal distribution.
	floorDeviations = 2.576
)

type amount struct {
	goal  Goal
	name  string
	ratio func(*Comparison) *Ratio
	// get returns the value of a run and the standard deviation of its measurement.
	get func(Outcome) (value, known float64, ok bool)
}

// lowerStepTime identifies the step time, which is not the goal of a remedy.
const lowerStepTime Goal = "step time"

// amounts lists the compared amounts. All except the slope are positive and compared by logarithms.
var amounts = []amount{
	{LowerPeak, "peak", func(c *Comparison) *Ratio { return &c.Peak },
		reading(pageGrain, func(o Outcome) memory.Reading { return o.Peak })},
	{LowerReset, "level after the reset", func(c *Comparison) *Ratio { return &c.Reset },
		reading(pageGrain, func(o Outcome) memory.Reading { return o.Reset })},
	{lowerStepTime, "step time", func(c *Comparison) *Ratio { return &c.StepTime },
		reading(clockGrain, func(o Outcome) memory.Reading { return o.StepTime })},
	{LowerGPU, "peak of GPU memory", func(c *Comparison) *Ratio { return &c.GPU },
		reading(pageGrain, func(o Outcome) memory.Reading { return o.GPU })},
	{LowerSlope, "slope", func(c *Comparison) *Ratio { return &c.Slope }, func(o Outcome) (value, known float64, ok bool) {
		return o.Verdict.Slope.Estimate, o.Verdict.NoiseFloor / floorDeviations, true
	}},
}

// reading returns an amount.get for values that are rounded to multiples of grain.
func reading(grain float64, get func(Outcome) memory.Reading) func(Outcome) (value, known float64, ok bool) {
	return func(o Outcome) (value, known float64, ok bool) {
		r := get(o)
		return float64(r.Bytes), grain / math.Sqrt(12), r.OK && r.Bytes > 0
	}
}

// deviating is a ratio of means with its deviation. If logarithm is set, ratio and deviation are
// those of the logarithm.
type deviating struct {
	ratio, deviation float64
	// floor is the minimum deviation, from the precision of the values.
	floor     float64
	pairs     int
	logarithm bool
}

// comparable reports whether other remedies may have a similar deviation. A remedy that removes most
// of a slope also removes most of its scatter.
func (d deviating) comparable() bool { return d.logarithm || d.ratio > slopeHalf }

// of returns the ratio of means over the pairs that measured the amount in both runs. ok is false for
// fewer than two such pairs.
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
	meanBase := stat.Mean(base, nil)
	ratio := stat.Mean(remedy, nil) / meanBase
	d = deviating{ratio: ratio, pairs: n, logarithm: a.goal != LowerSlope}
	if d.logarithm {
		d.ratio = math.Log(ratio)
	}
	if math.IsNaN(d.ratio) || math.IsInf(d.ratio, 0) {
		return d, false
	}
	if n >= bootstrapPairs {
		d.deviation = bootstrap(base, remedy, random, d.logarithm)
		return d, !math.IsNaN(d.deviation)
	}
	// The delta method: the deviation of a ratio of means is that of the mean of (remedy - ratio*base) / mean(base).
	moves := make([]float64, n)
	for i := range moves {
		moves[i] = (remedy[i] - ratio*base[i]) / meanBase
	}
	d.deviation = stat.StdDev(moves, nil) / math.Sqrt(float64(n))
	d.floor = math.Sqrt(knownRemedy+ratio*ratio*knownBase) / float64(n) / math.Abs(meanBase)
	if d.logarithm {
		d.deviation, d.floor = d.deviation/ratio, d.floor/ratio
	}
	return d, !math.IsNaN(d.deviation)
}

// bootstrap returns the deviation of a ratio of means, or of its logarithm, over random draws of pairs.
func bootstrap(base, remedy []float64, random *rand.Rand, logarithm bool) float64 {
	n := len(base)
	draws := make([]float64, 0, 2000)
	for range cap(draws) {
		var b, r float64
		for range n {
			i := random.IntN(n)
			b, r = b+base[i], r+remedy[i]
		}
		v := r / b
		if logarithm {
			v = math.Log(v)
		}
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			draws = append(draws, v)
		}
	}
	if len(draws) < 2 {
		return math.NaN()
	}
	slices.Sort(draws)
	deviation := stat.StdDev(draws, nil)
	if !logarithm {
		// Quartiles tolerate a draw whose mean base is near 0.
		deviation = (stat.Quantile(0.75, stat.Empirical, draws, nil) - stat.Quantile(0.25, stat.Empirical, draws,
			nil)) / 1.349
	}
	return deviation * math.Sqrt(float64(n)/float64(n-1))
}

// Variant holds the pairs of one remedy. Variants with the same Group share their runs without a
// remedy.
type Variant struct {
	Group int
	Pairs []Pair
}

// Scatter is an estimate of how far the pairs of a workload scatter, from all its remedies. Three
// pairs alone show little: Student's t is 4.3 for them, and a deviation that is small by chance looks
// like certainty. The zero value is no estimate. [ScatterOf] describes the method.
type Scatter struct {
	common [5]common // in the order of amounts
}

// common is the estimate for one amount, on the scale of the amount.
type common struct {
	variants int     // number of variants used; 0 means no estimate
	variance float64 // variance of one pair
	freedom  float64 // degrees of freedom of variance; higher if the variants' deviations are similar
	limit    float64 // degrees of freedom of all variants together
}

const (
	// commonVariants is the minimum number of variants for an estimate.
	commonVariants = 8
	// sharedBase is the correlation of squared differences from a shared value.
	sharedBase = 0.25
)

// ScatterOf estimates the scatter of one workload on one runtime from at least 8 remedies; with fewer,
// it returns no estimate. Pairs with a crash, and slopes of runs that do not leak, are not used.
//
// The deviations of the remedies are modelled as draws from a scaled inverse chi-squared distribution
// (G. K. Smyth, Linear models and empirical Bayes methods, 2004). Each deviation is shrunk towards the
// common one, more strongly if all are similar. As a safety margin, their similarity is reduced by one
// standard error. Deviations within a group are assumed to have a correlation of a quarter.
//
// Slopes reduced by more than half scatter less and are excluded. The precision of the values is a
// lower bound. A remedy that scatters much more than the others gets too narrow intervals: if a quarter
// of simulated remedies scatter ten times as much as the rest, an eighth of their intervals miss the
// truth, instead of a twentieth.
func ScatterOf(variants []Variant, seed uint64) (s Scatter) {
	alive := make([]Variant, len(variants))
	var leaking []Variant
	for i, v := range variants {
		var without []Outcome
		alive[i].Group = v.Group
		for _, p := range v.Pairs {
			without = append(without, p.Base)
			if p.Base.Verdict.Kind != memlayer.Crash && p.Remedy.Verdict.Kind != memlayer.Crash {
				alive[i].Pairs = append(alive[i].Pairs, p)
			}
		}
		if Leaks(without) {
			leaking = append(leaking, alive[i])
		}
	}
	for i, a := range amounts {
		from := alive
		if a.goal == LowerSlope {
			from = leaking
		}
		s.common[i] = a.common(from, seed)
	}
	return s
}

func (a amount) common(variants []Variant, seed uint64) common {
	random := rand.New(rand.NewPCG(seed, uint64(len(variants))))
	var logs, corrections, variances, freedoms []float64
	groups := make(map[int]float64)
	for _, v := range variants {
		d, ok := a.of(v.Pairs, random)
		if !ok || d.deviation == 0 || !d.comparable() {
			continue
		}
		variance, freedom := d.deviation*d.deviation*float64(d.pairs), float64(d.pairs-1)
		// The logarithm of a variance with few degrees of freedom is biased.
		logs = append(logs, math.Log(variance)-mathext.Digamma(freedom/2)+math.Log(freedom/2))
		corrections = append(corrections, trigamma(freedom/2))
		variances, freedoms = append(variances, variance), append(freedoms, freedom)
		groups[v.Group]++
	}
	n := float64(len(logs))
	if n < commonVariants {
		return common{}
	}
	alike := -1.0 // mean number of other variants in the group of a variant
	for _, k := range groups {
		alike += k * k / n
	}
	c := common{variants: len(logs), limit: stat.Mean(freedoms, nil) * n / (1 + sharedBase*alike)}
	center, spread := stat.MeanVariance(logs, nil)
	// Shared runs make deviations more similar.
	spread /= 1 - sharedBase*alike/(n-1)
	more := spread - stat.Mean(corrections, nil)
	c.variance = stat.Mean(variances, freedoms)
	if more > 0 {
		half := inverseTrigamma(more)
		c.variance = math.Exp(center + mathext.Digamma(half) - math.Log(half))
	}
	c.freedom = 2 * inverseTrigamma(max(more, 0)+spread*math.Sqrt(2/(n-1)))
	return c
}

// moderate shrinks a deviation towards the common one, and returns the resulting degrees of freedom.
func (c common) moderate(deviation float64, pairs int) (moderated, freedom float64) {
	n := float64(pairs)
	own := n - 1
	if c.variants == 0 {
		return deviation, own
	}
	if math.IsInf(c.freedom, 1) { // all deviations are equal
		return math.Sqrt(c.variance / n), max(c.limit, own)
	}
	variance := (c.freedom*c.variance + own*deviation*deviation*n) / (c.freedom + own)
	return math.Sqrt(variance / n), min(c.freedom+own, max(c.limit, own))
}

func (c common) interval(d deviating, ok bool) Ratio {
	if !ok {
		return Ratio{}
	}
	if !d.comparable() {
		c = common{}
	}
	deviation, freedom := c.moderate(d.deviation, d.pairs)
	half := stats.Student(freedom, compareConfidence) * max(deviation, d.floor)
	if math.IsNaN(half) {
		return Ratio{}
	}
	i := memory.Interval{Estimate: d.ratio, Low: d.ratio - half, High: d.ratio + half}
	if d.logarithm {
		i = memory.Interval{Estimate: math.Exp(i.Estimate), Low: math.Exp(i.Low), High: math.Exp(i.High)}
	}
	unbounded := math.IsInf(i.High, 0)
	i.High = min(i.High, math.MaxFloat64) // JSON has no infinity
	return Ratio{Interval: i, OK: true, Unbounded: unbounded, Pooled: c.variants}
}

// trigamma is the second derivative of the logarithm of the gamma function.
func trigamma(x float64) float64 { return mathext.Zeta(2, x) }

// inverseTrigamma returns x with trigamma(x) = y for y > 0. trigamma(x) is between 1/x and 1/x+1/x².
func inverseTrigamma(y float64) float64 {
	low, high := 1/y, 1/y+1/math.Sqrt(y)
	for high-low > 1e-9*high {
		if middle := (low + high) / 2; trigamma(middle) > y {
			low = middle
		} else {
			high = middle
		}
	}
	return (low + high) / 2
}
