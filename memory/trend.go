package memory

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

const (
	// trendPoints is the most points that a slope is estimated from. Longer series
	// are cut into that many bins, and the middle of each bin is a point: the number
	// of pairs grows with the square, and the middle sheds outliers.
	trendPoints = 60
	// resamples of the block bootstrap. It gives a standard error, not quantiles,
	// for which so many suffice: that standard error is itself within 5%.
	resamples = 200
	// shortfall is by how much the block bootstrap of so few points comes out too
	// small, as measured on white noise.
	shortfall = 1.2
)

// trend is the slope of a series and how well it is known.
type trend struct {
	slope, intercept float64
	// half is half the width of the interval of the slope.
	half float64
	// bends is whether the last third is less steep than the rest, beyond doubt
	// and by a third at least.
	bends bool
}

// pairs are the pairs of points of which Theil and Sen take the slopes.
type pairs struct {
	i, j    []int32
	inverse []float64 // 1 / (x[j]-x[i])
	slopes  []float64
}

func newPairs(x []float64) *pairs {
	n := len(x) * (len(x) - 1) / 2
	p := &pairs{make([]int32, 0, n), make([]int32, 0, n), make([]float64, 0, n), make([]float64, n)}
	for j := range x {
		for i := range j {
			p.i, p.j = append(p.i, int32(i)), append(p.j, int32(j))
			p.inverse = append(p.inverse, 1/(x[j]-x[i]))
		}
	}
	return p
}

// slope is the median of the slopes of all pairs (Theil 1950, Sen 1968): up to
// 29% of the points may be anything without moving it far.
func (p *pairs) slope(y []float64) float64 {
	for k, i := range p.i {
		p.slopes[k] = (y[p.j[k]] - y[i]) * p.inverse[k]
	}
	return median(p.slopes)
}

// median reorders v. It selects instead of sorting, since the bootstrap takes
// medians of thousands of slopes hundreds of times.
func median(v []float64) float64 {
	n := len(v)
	if n == 0 {
		return math.NaN()
	}
	high := selectNth(v, n/2)
	if n%2 == 1 {
		return high
	}
	return (slices.Max(v[:n/2]) + high) / 2
}

// selectNth is the value that would be at k if v were sorted, and leaves
// smaller ones before it (Hoare 1961).
func selectNth(v []float64, k int) float64 {
	low, high := 0, len(v)-1
	for low < high {
		a, b, c := v[low], v[(low+high)/2], v[high]
		pivot := max(min(a, b), min(max(a, b), c))
		i, j := low, high
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			high = j
		case k >= i:
			low = i
		default:
			return v[k]
		}
	}
	return v[k]
}

// bins cuts a series into at most n runs of equally many samples and returns
// the mean place of each and the mean of the middle half of its values, which
// sheds outliers nearly as well as the median and scatters less.
func bins(x, y []float64, n int) (bx, by []float64) {
	per := (len(x) + n - 1) / n
	if per <= 1 {
		return x, y
	}
	room := make([]float64, per)
	for i := 0; i < len(x); i += per {
		end := min(i+per, len(x))
		bx = append(bx, stat.Mean(x[i:end], nil))
		values := room[:copy(room, y[i:end])]
		slices.Sort(values)
		outer := len(values) / 4
		if len(values) == 3 {
			outer = 1
		}
		by = append(by, stat.Mean(values[outer:len(values)-outer], nil))
	}
	return bx, by
}

// estimate is the trend of a series at a confidence such as 0.99.
//
// The interval comes from a moving-block bootstrap (Künsch 1989): blocks of
// neighbouring residuals, long enough to carry their correlation, are drawn at
// random and put on the fitted line, and the slope is estimated again. It is
// slope ± t * (standard deviation of these slopes), with Student's t for as many
// degrees of freedom as there are independent blocks less 2, so that few or long
// blocks give a wide interval rather than a wrong one. The grain is what
// rounding can move a value by.
func estimate(x, y []float64, grain, confidence float64, seed uint64) trend {
	x, y = bins(x, y, trendPoints)
	n := len(x)
	all := newPairs(x)
	var t trend
	t.slope = all.slope(y)
	r := make([]float64, n)
	for i := range r {
		r[i] = y[i] - t.slope*x[i]
	}
	t.intercept = median(slices.Clone(r))
	for i := range r {
		r[i] -= t.intercept
	}
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	block := blockLength(r)
	drawn, estimates := make([]float64, n), make([]float64, resamples)
	for b := range estimates {
		draw(drawn, r, block, random)
		estimates[b] = all.slope(drawn)
	}
	student := students(n, block, confidence)
	t.half = shortfall * student * stat.StdDev(estimates, nil)

	// The bend is measured against the noise around a parabola: around a line the
	// bend itself would count as noise.
	cut := n - n/3
	if n/3 < 4 {
		return t
	}
	first, last := newPairs(x[:cut]), newPairs(x[cut:])
	before, after := first.slope(y[:cut]), last.slope(y[cut:])
	if after >= before*2/3 {
		return t
	}
	residuals(fitQuadratic(x, y), x, y, r)
	block = blockLength(r)
	for b := range estimates {
		draw(drawn, r, block, random)
		estimates[b] = first.slope(drawn[:cut]) - last.slope(drawn[cut:])
	}
	// Rounding alone can move the ends of the last third by a grain each.
	rounding := 2 * grain / (x[n-1] - x[cut])
	t.bends = before-after > students(n, block, 0.998)*stat.StdDev(estimates, nil)+rounding
	return t
}

// students is the two-sided quantile of Student's t for n values in blocks.
func students(n, block int, confidence float64) float64 {
	freedom := max(float64(n)/float64(block)-2, 1)
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(0.5 + confidence/2)
}

// draw fills out with blocks of r. The scale makes up for the two parameters
// that were fitted.
func draw(out, r []float64, block int, random *rand.Rand) {
	scale := math.Sqrt(float64(len(r)) / max(float64(len(r)-2), 1))
	for at := 0; at < len(out); at += block {
		from := random.IntN(len(r) - block + 1)
		for k := 0; k < block && at+k < len(out); k++ {
			out[at+k] = r[from+k] * scale
		}
	}
}

// blockLength is how many neighbours belong together, by the rule of Politis
// and White (2004, corrected by Patton, Politis and White 2009): 1 for white
// noise, more the longer its correlation lasts, a quarter of the series at most.
func blockLength(r []float64) int {
	n := len(r)
	largest := max(n/4, 1)
	variance := covariance(r, 0)
	if variance == 0 {
		return 1
	}
	// The correlation has died out where so many lags in a row are insignificant.
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
		weight := 1.0 // the flat-top window: 1 up to a half, then falling to 0
		if f := float64(lag) / float64(window); f > 0.5 {
			weight = 2 * (1 - f)
		}
		c := 2 * weight * covariance(r, lag)
		spectrum += c
		bias += c * float64(lag)
	}
	if spectrum <= 0 {
		return 1
	}
	length := math.Cbrt(2 * bias * bias / (4.0 / 3 * spectrum * spectrum) * float64(n))
	return int(min(max(math.Ceil(length), 1), float64(largest)))
}

// covariance of values around 0 at a lag.
func covariance(r []float64, lag int) float64 {
	sum := 0.0
	for i := lag; i < len(r); i++ {
		sum += r[i] * r[i-lag]
	}
	return sum / float64(len(r))
}
