package memory

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mathext"
	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Arm is the pairs of one remedy, for [ScatterOf]. Arms of a group were compared with the
// same runs without a remedy.
type Arm struct {
	Group int
	Pairs []Pair
}

// Scatter is how far the pairs of a workload scatter, as all its remedies show it. Three
// pairs tell little of that by themselves: Student's t is 4.3 for them, and a deviation that
// comes out small by luck passes for certainty. The zero value knows nothing.
//
// The deviations of a workload's remedies are taken as draws from a scaled inverse
// chi-squared distribution, whose scale and degrees of freedom are fitted to them, as is
// usual where many comparisons have few replicates each (G. K. Smyth, Linear models and
// empirical Bayes methods, 2004). Each deviation is drawn to the common one, the more so
// the more alike they are; they count as less alike than they look, by a standard error.
// Since remedies of a group share the runs they are compared with, their deviations are
// taken as correlated by a quarter, as are squares of differences from the same value; the
// degrees of freedom of the common one are at most those of as many independent ones.
//
// Slopes of which a remedy leaves less than half scatter less for that; they neither lend nor
// borrow. What a value is known by (a page, a noise floor) is no scatter, and bounds the
// result from below.
//
// A remedy that scatters much more than the others of its workload has intervals that are
// too narrow: where a quarter of simulated remedies scatter ten times as much as the rest, an
// eighth of the intervals of that quarter miss the truth, instead of a twentieth.
type Scatter struct {
	slope, peak, reset, stepTime, gpu common
}

// common is what is known of the deviations of one amount, on the amount's scale.
type common struct {
	arms     int     // that it was fitted to; 0 if nothing is known
	variance float64 // of one pair
	freedom  float64 // that it counts for, the more the more alike the arms deviate
	limit    float64 // degrees of freedom that all arms have
}

const (
	// commonArms is the least number of arms to fit a distribution of deviations to.
	commonArms = 8
	// sharedBase is the correlation of squared differences from the same value.
	sharedBase = 0.25
)

// ScatterOf learns from the remedies of one workload on one runtime. Pairs of which a run
// died, and slopes of runs that do not leak, tell nothing. Of fewer than 8 remedies it
// learns nothing.
func ScatterOf(arms []Arm, seed uint64) Scatter {
	alive := make([]Arm, len(arms))
	leaking := make([]Arm, 0, len(arms))
	for i, arm := range arms {
		var without []Outcome
		alive[i].Group = arm.Group
		for _, p := range arm.Pairs {
			without = append(without, p.Base)
			if p.Base.Verdict.Kind != Crash && p.Remedy.Verdict.Kind != Crash {
				alive[i].Pairs = append(alive[i].Pairs, p)
			}
		}
		if Leaks(without) {
			leaking = append(leaking, alive[i])
		}
	}
	return Scatter{
		slope:    slopeAmount.common(leaking, seed),
		peak:     peakAmount.common(alive, seed),
		reset:    resetAmount.common(alive, seed),
		stepTime: stepTimeAmount.common(alive, seed),
		gpu:      gpuAmount.common(alive, seed),
	}
}

// common fits the distribution of the deviations of arms.
func (a amount) common(arms []Arm, seed uint64) common {
	random := rand.New(rand.NewPCG(seed, uint64(len(arms))))
	var logs, corrections, variances, freedoms []float64
	groups := make(map[int]float64)
	for _, arm := range arms {
		d, ok := a.of(arm.Pairs, random)
		if !ok || d.deviation == 0 || !d.comparable() {
			continue
		}
		variance, freedom := d.deviation*d.deviation*float64(d.pairs), float64(d.pairs-1)
		// The logarithm of a variance is biased by its few degrees of freedom.
		logs = append(logs, math.Log(variance)-mathext.Digamma(freedom/2)+math.Log(freedom/2))
		corrections = append(corrections, trigamma(freedom/2))
		variances, freedoms = append(variances, variance), append(freedoms, freedom)
		groups[arm.Group]++
	}
	n := float64(len(logs))
	if n < commonArms {
		return common{}
	}
	alike := -1.0 // arms that share the base with an arm, on average
	for _, k := range groups {
		alike += k * k / n
	}
	c := common{arms: len(logs), limit: stat.Mean(freedoms, nil) * n / (1 + sharedBase*alike)}
	center, spread := stat.MeanVariance(logs, nil)
	// Shared runs make deviations more alike than they are.
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

// moderate draws the deviation of a mean over pairs to the common one, and says how many
// degrees of freedom it has then.
func (c common) moderate(deviation float64, pairs int) (moderated, freedom float64) {
	n := float64(pairs)
	own := n - 1
	if c.arms == 0 {
		return deviation, own
	}
	if math.IsInf(c.freedom, 1) { // they are all the same
		return math.Sqrt(c.variance / n), max(c.limit, own)
	}
	variance := (c.freedom*c.variance + own*deviation*deviation*n) / (c.freedom + own)
	return math.Sqrt(variance / n), min(c.freedom+own, max(c.limit, own))
}

// interval is the ratio with its interval.
func (c common) interval(d deviating, ok bool) Ratio {
	if !ok {
		return Ratio{}
	}
	if !d.comparable() {
		c = common{}
	}
	deviation, freedom := c.moderate(d.deviation, d.pairs)
	student := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(0.5 + compareConfidence/2)
	half := student * max(deviation, d.floor)
	if math.IsNaN(half) {
		return Ratio{}
	}
	back := func(v float64) float64 { return v }
	if d.logarithm {
		back = math.Exp
	}
	low, high := back(d.ratio-half), back(d.ratio+half)
	unbounded := math.IsInf(high, 0)
	if unbounded {
		high = math.MaxFloat64 // JSON has no infinity
	}
	return Ratio{Interval: Interval{back(d.ratio), low, high}, OK: true, Unbounded: unbounded, Pooled: c.arms}
}

// trigamma is the second derivative of the logarithm of the gamma function.
func trigamma(x float64) float64 { return mathext.Zeta(2, x) }

// inverseTrigamma finds x with trigamma(x) = y, for y > 0. Between its bounds trigamma
// falls from 1/x² + 1/x to 1/x.
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
