package compare

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"

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

// of returns the ratio of means over the pairs that measured the amount in both runs, with its interval by Student's t.
// It is unknown for fewer than two such pairs.
func (a amount) of(pairs []Pair, random *rand.Rand) Ratio {
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
	if len(base) < 2 {
		return Ratio{}
	}
	n, logarithm := float64(len(base)), a.goal != LowerSlope
	meanBase := stat.Mean(base, nil)
	ratio := stat.Mean(remedy, nil) / meanBase
	deviation := 0.0 // of the ratio, or of its logarithm
	if len(base) >= bootstrapPairs {
		deviation = bootstrap(base, remedy, random, logarithm)
	} else {
		// The delta method: the deviation of a ratio of means is that of the mean of (remedy - ratio*base) / mean(base).
		moves := make([]float64, len(base))
		for i := range moves {
			moves[i] = (remedy[i] - ratio*base[i]) / meanBase
		}
		deviation = max(stat.StdDev(moves, nil)/math.Sqrt(n),
			math.Sqrt(knownRemedy+ratio*ratio*knownBase)/n/math.Abs(meanBase))
		if logarithm {
			deviation /= ratio
		}
	}
	half := stats.Student(n-1, compareConfidence) * deviation
	if math.IsNaN(half) || math.IsInf(ratio, 0) {
		return Ratio{}
	}
	i := memory.Interval{Estimate: ratio, Low: ratio - half, High: ratio + half}
	if logarithm {
		i.Low, i.High = ratio*math.Exp(-half), ratio*math.Exp(half)
	}
	unbounded := math.IsInf(i.High, 0)
	i.High = min(i.High, math.MaxFloat64) // JSON has no infinity
	return Ratio{Interval: i, OK: true, Unbounded: unbounded}
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
