package memory

import (
	"slices"

	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/stats"
)

const (
	// fallsNeeded is the minimum number of falls in a sawtooth.
	fallsNeeded = 3
	// fallDepth is the minimum depth of a fall, as a fraction of the range of the series.
	fallDepth = 0.5
	// riseLength is the minimum ratio of the length of a rise to the length of a fall.
	riseLength = 3
	// gradual is the maximum fraction of a rise that may occur between two samples.
	gradual = 0.4
)

// sawtooth is a series that repeatedly rises slowly and falls suddenly, such as memory that a garbage
// collector returns.
type sawtooth struct {
	falls []int // index of the first sample after each fall
	depth float64
}

// findSawtooth searches for falls around a line, so that it also finds a sawtooth that climbs. Slow
// rises and sudden falls distinguish a sawtooth from noise. The outermost hundredths of the values do
// not count for the range.
func findSawtooth(x, y []float64) (sawtooth, bool) {
	n := len(y)
	if n < 4*fallsNeeded {
		return sawtooth{}, false
	}
	bx, by := bins(x, y, trendPoints)
	slope := stats.NewSlopes(bx).Median(by)
	r := make([]float64, n)
	for i, v := range withoutOutliers(y) {
		r[i] = v - slope*x[i]
	}
	sorted := slices.Sorted(slices.Values(r))
	span := stat.Quantile(0.99, stat.Empirical, sorted, nil) - stat.Quantile(0.01, stat.Empirical, sorted, nil)
	if span <= 0 {
		return sawtooth{}, false
	}

	c := turns{values: r}
	c.walk(fallDepth * span)
	if len(c.falls) < fallsNeeded || c.steep*4 < len(c.falls)*3 || c.slow*4 < len(c.rises)*3 {
		return sawtooth{}, false
	}
	rise := stats.Median(c.rises)
	return sawtooth{falls: c.falls, depth: stats.Median(c.depths)}, rise >= riseLength &&
		rise >= riseLength*stats.Median(c.lengths)
}

// turns are the rises and falls of a series.
type turns struct {
	values         []float64
	rises, lengths []float64 // number of samples of each rise and each fall
	depths         []float64 // depth of each fall
	falls          []int     // index after the largest change of each fall
	steep, slow    int       // number of sudden falls and gradual rises
}

// walk finds the turning points: the places where the series reverses by at least the threshold.
func (c *turns) walk(threshold float64) {
	r := c.values
	low, high, rising := 0, 0, true
	for i := 1; i < len(r); i++ {
		switch {
		case rising && r[i] > r[high]:
			high = i
		case rising && r[i] < r[high]-threshold:
			c.rise(low, high)
			low, rising = i, false
		case !rising && r[i] < r[low]:
			low = i
		case !rising && r[i] > r[low]+threshold:
			c.fall(high, low)
			high, rising = i, true
		}
	}
	if !rising {
		c.fall(high, low)
	}
}

func (c *turns) rise(low, high int) {
	c.rises = append(c.rises, float64(high-low))
	if _, change := c.steepest(low, high, 1); change <= gradual*(c.values[high]-c.values[low]) {
		c.slow++
	}
}

func (c *turns) fall(high, low int) {
	depth := c.values[high] - c.values[low]
	at, change := c.steepest(high, low, -1)
	if change >= depth/2 {
		c.steep++
	}
	c.falls, c.lengths, c.depths = append(c.falls, at), append(c.lengths, float64(low-high)), append(c.depths, depth)
}

// steepest returns the largest change between two samples, and the index after it. sign is 1 for a
// rise and -1 for a fall.
func (c *turns) steepest(from, to int, sign float64) (at int, change float64) {
	at = from + 1
	for i := from + 1; i <= to; i++ {
		if d := sign * (c.values[i] - c.values[i-1]); d > change {
			at, change = i, d
		}
	}
	return at, change
}

// trend estimates the slope from the means between falls. The uncertainty is the depth of a fall divided by
// the distance of the first and last mean.
func (s sawtooth) trend(x, y []float64) trend {
	var tx, ty []float64
	for k := 1; k < len(s.falls); k++ {
		from, to := s.falls[k-1], s.falls[k]
		if to > from {
			tx, ty = append(tx, stat.Mean(x[from:to], nil)), append(ty, stat.Mean(y[from:to], nil))
		}
	}
	if len(tx) < 2 {
		return trend{intercept: stats.Median(y), half: s.depth / (x[len(x)-1] - x[0])}
	}
	last := len(tx) - 1
	span := tx[last] - tx[0]
	t := trend{slope: stats.NewSlopes(tx).Median(ty), half: s.depth / span}
	t.intercept = stat.Mean(ty, nil) - t.slope*stat.Mean(tx, nil)
	t.bends = (ty[last]-ty[last-1])/(tx[last]-tx[last-1]) < t.slope/2
	return t
}
