package memory

import (
	"slices"

	"gonum.org/v1/gonum/stat"
)

const (
	// teethNeeded is how many falls make a saw.
	teethNeeded = 3
	// toothDepth is the least depth of a fall, as a part of the range of the series.
	toothDepth = 0.5
	// toothRise is how many times longer a rise takes than a fall.
	toothRise = 3
	// gradual is the most that one sample may add to a rise, as a part of it.
	gradual = 0.4
)

// saw is a course that rises slowly and falls at once, again and again: memory
// that is given back by a collector, or at the end of each epoch.
type saw struct {
	falls []int // the first sample after each fall
	depth float64
}

// findSaw looks for teeth in a series around a line, so a saw that climbs is
// one, too. The range leaves out the outermost hundredths. What tells teeth from
// noise is asymmetry: noise read backwards looks the same.
func findSaw(x, y []float64) (saw, bool) {
	n := len(y)
	if n < 4*teethNeeded {
		return saw{}, false
	}
	bx, by := bins(x, y, trendPoints)
	slope := newPairs(bx).slope(by)
	r := make([]float64, n)
	for i, v := range withoutOutliers(y) {
		r[i] = v - slope*x[i]
	}
	sorted := slices.Clone(r)
	slices.Sort(sorted)
	span := stat.Quantile(0.99, stat.Empirical, sorted, nil) - stat.Quantile(0.01, stat.Empirical, sorted, nil)
	if span <= 0 {
		return saw{}, false
	}
	threshold := toothDepth * span

	// Walk from turn to turn: a turn is where the course goes back by the threshold.
	var s saw
	var rises, lengths, depths []float64
	steep, slow := 0, 0
	low, high, rising := 0, 0, true
	for i := 1; i < n; i++ {
		switch {
		case rising && r[i] > r[high]:
			high = i
		case rising && r[i] < r[high]-threshold:
			rises = append(rises, float64(high-low))
			if steepestRise(r, low, high) <= gradual*(r[high]-r[low]) {
				slow++
			}
			low, rising = i, false
		case !rising && r[i] < r[low]:
			low = i
		case !rising && r[i] > r[low]+threshold:
			s.fall(r, high, low, &steep, &lengths, &depths)
			high, rising = i, true
		}
	}
	if !rising {
		s.fall(r, high, low, &steep, &lengths, &depths)
	}
	if len(s.falls) < teethNeeded || steep*4 < len(s.falls)*3 || slow*4 < len(rises)*3 {
		return saw{}, false
	}
	s.depth = median(depths)
	if rise := median(rises); rise < toothRise || rise < toothRise*median(lengths) {
		return saw{}, false
	}
	return s, true
}

// fall notes a fall from the sample high to the sample low. It is steep if one
// step makes up half of it.
func (s *saw) fall(r []float64, high, low int, steep *int, lengths, depths *[]float64) {
	depth := r[high] - r[low]
	at := high + 1
	for i := high + 1; i <= low; i++ {
		if r[i-1]-r[i] > r[at-1]-r[at] {
			at = i
		}
	}
	if r[at-1]-r[at] >= depth/2 {
		*steep++
	}
	s.falls = append(s.falls, at)
	*lengths = append(*lengths, float64(low-high))
	*depths = append(*depths, depth)
}

// steepestRise is the largest rise from one sample to the next between two samples.
func steepestRise(r []float64, from, to int) float64 {
	most := 0.0
	for i := from + 1; i <= to; i++ {
		most = max(most, r[i]-r[i-1])
	}
	return most
}

// trend is the slope from tooth to tooth: each whole tooth counts as one point,
// its mean. With few teeth the slope is not known better than to one tooth's
// depth over all of them.
func (s saw) trend(x, y []float64, grain, confidence float64, seed uint64) trend {
	var tx, ty []float64
	for k := 1; k < len(s.falls); k++ {
		from, to := s.falls[k-1], s.falls[k]
		if to > from {
			tx, ty = append(tx, stat.Mean(x[from:to], nil)), append(ty, stat.Mean(y[from:to], nil))
		}
	}
	if len(tx) < 2 {
		return trend{intercept: median(slices.Clone(y)), half: s.depth / (x[len(x)-1] - x[0])}
	}
	span := tx[len(tx)-1] - tx[0]
	if len(tx) >= 8 {
		t := estimate(tx, ty, grain, confidence, seed)
		// A tooth's mean depends on where in it the samples fall.
		perTooth := float64(s.falls[len(s.falls)-1]-s.falls[0]) / float64(len(tx))
		t.half = max(t.half, 2*s.depth/perTooth/span)
		return t
	}
	t := trend{slope: newPairs(tx).slope(ty), half: s.depth / span}
	t.intercept = stat.Mean(ty, nil) - t.slope*stat.Mean(tx, nil)
	last := len(tx) - 1
	t.bends = (ty[last]-ty[last-1])/(tx[last]-tx[last-1]) < t.slope/2
	return t
}
