package memory

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/stats"
)

const (
	// trendPoints is the maximum number of points for a slope, since the number of pairs grows with
	// its square. Longer series are divided into this many bins.
	trendPoints = 60
	// resamples is the number of bootstrap samples, enough for a standard error within 5%.
	resamples = 200
	// shortfall is the factor by which the block bootstrap underestimates the deviation with so few
	// points, measured on white noise.
	shortfall = 1.2
)

type trend struct {
	slope, intercept float64
	// half is the half width of the slope's interval.
	half float64
	// bends reports whether the last third is certainly less steep than the rest, by at least a
	// third.
	bends bool
}

// bins divides a series into at most n runs of similar length. For each run it returns the mean place,
// and the mean of the middle half of the values: it excludes outliers, and scatters less than a median.
func bins(x, y []float64, n int) (bx, by []float64) {
	per := (len(x) + n - 1) / n
	if per <= 1 {
		return x, y
	}
	for i := 0; i < len(x); i += per {
		end := min(i+per, len(x))
		values := slices.Sorted(slices.Values(y[i:end]))
		outer := len(values) / 4
		if len(values) == 3 {
			outer = 1
		}
		bx, by = append(bx, stat.Mean(x[i:end], nil)), append(by, stat.Mean(values[outer:len(values)-outer], nil))
	}
	return bx, by
}

// estimate returns the trend of a series. The grain is the amount by which rounding can move a value.
//
// The interval comes from a moving-block bootstrap (Künsch 1989). Blocks of neighbouring residuals,
// long enough to preserve their correlation, are drawn at random and added to the fitted line, and the
// slope is estimated again. Student's t has two degrees of freedom fewer than there are independent
// blocks, so few or long blocks give a wide interval.
func estimate(x, y []float64, grain float64, seed uint64) trend {
	x, y = bins(x, y, trendPoints)
	n := len(x)
	all := stats.NewSlopes(x)
	t := trend{slope: all.Median(y)}
	r := make([]float64, n)
	for i := range r {
		r[i] = y[i] - t.slope*x[i]
	}
	t.intercept = stats.Median(r)
	for i := range r {
		r[i] -= t.intercept
	}
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	// deviation returns the standard deviation of a statistic over bootstrap samples, times
	// Student's t.
	deviation := func(r []float64, confidence float64, statistic func([]float64) float64) float64 {
		block := blockLength(r)
		drawn, estimates := make([]float64, n), make([]float64, resamples)
		for b := range estimates {
			draw(drawn, r, block, random)
			estimates[b] = statistic(drawn)
		}
		return stats.Student(max(float64(n)/float64(block)-2, 1), confidence) * stat.StdDev(estimates, nil)
	}
	t.half = shortfall * deviation(r, stats.Confidence, all.Median)

	cut := n - n/3
	if n/3 < 4 {
		return t
	}
	first, last := stats.NewSlopes(x[:cut]), stats.NewSlopes(x[cut:])
	before, after := first.Median(y[:cut]), last.Median(y[cut:])
	if after >= before*2/3 {
		return t
	}
	// The bend of a series must not count as noise, so the noise is measured around a parabola.
	residuals(fit(quadraticModel, x, y), x, y, r)
	bend := deviation(r, 0.998, func(y []float64) float64 { return first.Median(y[:cut]) - last.Median(y[cut:]) })
	// Rounding can move both ends of the last third by a grain.
	t.bends = before-after > bend+2*grain/(x[n-1]-x[cut])
	return t
}

// draw fills out with random blocks of r. The scale compensates for the two fitted parameters.
func draw(out, r []float64, block int, random *rand.Rand) {
	scale := math.Sqrt(float64(len(r)) / max(float64(len(r)-2), 1))
	for at := 0; at < len(out); at += block {
		from := random.IntN(len(r) - block + 1)
		for k := 0; k < block && at+k < len(out); k++ {
			out[at+k] = r[from+k] * scale
		}
	}
}

// blockLength returns the number of correlated neighbours by the rule of Politis and White (2004,
// corrected by Patton, Politis and White 2009): 1 for white noise, and at most a quarter of the series.
func blockLength(r []float64) int {
	n := len(r)
	variance := covariance(r, 0)
	if variance == 0 {
		return 1
	}
	// After this many insignificant lags, the correlation counts as zero.
	quiet := max(5, int(math.Sqrt(math.Log10(float64(n)))))
	limit := 2 * math.Sqrt(math.Log10(float64(n))/float64(n))
	window, run := 0, 0
	for lag := 1; lag < n/2 && run < quiet; lag++ {
		if math.Abs(covariance(r, lag)/variance) < limit {
			run++
		} else {
			run, window = 0, lag
		}
	}
	if window == 0 {
		return 1
	}
	window = min(2*window, n-1)
	spectrum, bias := variance, 0.0
	for lag := 1; lag <= window; lag++ {
		// The flat-top window is 1 up to a half, then falls to 0.
		weight := min(1, 2*(1-float64(lag)/float64(window)))
		c := 2 * weight * covariance(r, lag)
		spectrum += c
		bias += c * float64(lag)
	}
	if spectrum <= 0 {
		return 1
	}
	length := math.Cbrt(2 * bias * bias / (4.0 / 3 * spectrum * spectrum) * float64(n))
	return int(min(max(math.Ceil(length), 1), float64(max(n/4, 1))))
}

// covariance returns the autocovariance of values with mean 0 at a lag.
func covariance(r []float64, lag int) float64 {
	sum := 0.0
	for i := lag; i < len(r); i++ {
		sum += r[i] * r[i-lag]
	}
	return sum / float64(len(r))
}
