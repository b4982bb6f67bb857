// Package stats has robust estimates and intervals of paired measurements, for packages memory and autotune
// and the laboratory. Other statistics come from gonum.org/v1/gonum/stat.
package stats

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Confidence is the confidence of intervals by default. At 99%, the interval of one in 200 runs without a
// change is above 0 by chance.
const Confidence = 0.99

// Median returns the median of values, or NaN if there are none.
func Median(values []float64) float64 { return medianInPlace(slices.Clone(values)) }

// medianInPlace reorders v. It selects instead of sorting, because a bootstrap takes many medians of
// thousands of slopes.
func medianInPlace(v []float64) float64 {
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

// selectNth returns the value at index k of the sorted v, with all smaller values moved before it (Hoare
// 1961).
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

// Slopes estimates slopes for the same x repeatedly.
type Slopes struct {
	pairs  []pair
	slopes []float64
}

type pair struct {
	i, j int32
	gap  float64 // x[j]-x[i]
}

// NewSlopes returns the Slopes for strictly increasing x.
func NewSlopes(x []float64) *Slopes {
	n := len(x) * (len(x) - 1) / 2
	s := &Slopes{make([]pair, 0, n), make([]float64, n)}
	for j := range x {
		for i := range j {
			s.pairs = append(s.pairs, pair{int32(i), int32(j), x[j] - x[i]})
		}
	}
	return s
}

// Median returns the median slope of all pairs of points (Theil 1950, Sen 1968), or NaN for fewer than two
// points. Up to 29% of the points may be outliers.
func (s *Slopes) Median(y []float64) float64 {
	for k, p := range s.pairs {
		s.slopes[k] = (y[p.j] - y[p.i]) / p.gap
	}
	return medianInPlace(s.slopes)
}

// Student returns the two-sided quantile of Student's t: the number of standard deviations that contain a
// value with this confidence.
func Student(freedom, confidence float64) float64 {
	return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: freedom}.Quantile(0.5 + confidence/2)
}

// Mean returns the mean and its interval by Student's t, for approximately normal values. For ratios, use
// the logarithms. With fewer than two values the interval is infinite; without values, the mean is NaN.
func Mean(values []float64, confidence float64) (mean, low, high float64) {
	n := float64(len(values))
	if n < 2 {
		return stat.Mean(values, nil), math.Inf(-1), math.Inf(1)
	}
	mean, deviation := stat.MeanStdDev(values, nil)
	half := Student(n-1, confidence) * deviation / math.Sqrt(n)
	return mean, mean - half, mean + half
}

// MedianRatio compares two variants measured in the same rounds. It returns the median of a[i]/b[i] and an
// interval that assumes no distribution. Below 8 rounds, the bounds are the least and the greatest ratio,
// which contain the median with a confidence of 1-2^(1-n). From 8 rounds on, they are the second least and
// the second greatest, whose confidence exceeds 0.9.
func MedianRatio(a, b []float64) (ratio, low, high float64) {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	slices.Sort(ratios)
	ratio = Median(ratios)
	if len(ratios) >= 8 {
		ratios = ratios[1 : len(ratios)-1]
	}
	return ratio, ratios[0], ratios[len(ratios)-1]
}

// Decimal formats a number with digits after the point. Zero has no sign.
func Decimal(v float64, digits int) string {
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Trim(text, "-0.") == "" {
		text = strings.TrimPrefix(text, "-")
	}
	return text
}
