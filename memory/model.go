package memory

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/stats"
)

// modelName names the shape of a function that is fitted to a series.
type modelName string

// Steps and curves can be combined with a slope. Without a slope, steps and curves would be the
// best models of a leak that begins with a warm-up.
const (
	constantModel         modelName = "constant"
	linearModel           modelName = "linear"
	saturatingModel       modelName = "saturating" // a + b(1-exp(-t/tau))
	quadraticModel        modelName = "quadratic"
	saturatingLinearModel modelName = "saturating and linear"
	stepModel             modelName = "one step"
	stepLinearModel       modelName = "one step and linear"
)

// shapes lists the models, simplest first, with their numbers of parameters, including the variance.
// The place of a step counts as three parameters, because a free place fits noise that much better
// (Ninomiya 2015).
var shapes = []struct {
	model      modelName
	parameters float64
}{{constantModel, 2}, {linearModel, 3}, {saturatingModel, 4}, {quadraticModel, 4}, {saturatingLinearModel, 5},
	{stepModel, 6}, {stepLinearModel, 7}}

func (m modelName) saturates() bool { return m == saturatingModel || m == saturatingLinearModel }
func (m modelName) steps() bool     { return m == stepModel || m == stepLinearModel }

const (
	// modelPoints is the maximum number of points for fitting a model.
	modelPoints = 120
	// evidence is the minimum advantage in AICc of a model over a simpler one. From 4 to 7, the
	// simpler model has considerably less support (Burnham & Anderson 2002, section 2.6).
	evidence = 6
)

// fitted is a model and its parameters: level + slope*x + change*shape(x).
type fitted struct {
	model        modelName
	level, slope float64
	// change is the height of the step or curve, or the coefficient of the parabola.
	change float64
	// at is the place of the step, between two points, or the time constant of the curve.
	at                  float64
	origin              float64 // the first x
	squares, parameters float64
	score               float64 // AICc
}

func (f fitted) value(x float64) float64 { return f.level + f.slope*x + f.change*f.shape(x) }

func (f fitted) shape(x float64) float64 {
	switch {
	case f.model.steps() && x > f.at:
		return 1
	case f.model.saturates():
		return 1 - math.Exp(-(x-f.origin)/f.at)
	case f.model == quadraticModel:
		return (x - f.origin) * (x - f.origin)
	}
	return 0
}

func residuals(f fitted, x, y, into []float64) {
	for i := range x {
		into[i] = y[i] - f.value(x[i])
	}
}

func squares(f fitted, x, y []float64) float64 {
	sum := 0.0
	for i := range x {
		d := y[i] - f.value(x[i])
		sum += d * d
	}
	return sum
}

// fit fits a model by least squares: first the constant or line, then the shape to the residuals. The
// shape is made orthogonal to the line first, so one product gives its height (Frisch & Waugh 1933).
// At least three points follow a step, since fewer may be noise.
func fit(model modelName, x, y []float64) fitted {
	n := len(x)
	base := fitted{model: constantModel, origin: x[0]}
	line := func(v []float64) (level, slope float64) { return stat.Mean(v, nil), 0 }
	if model == linearModel || model == quadraticModel || model == stepLinearModel || model == saturatingLinearModel {
		base.model = linearModel
		line = func(v []float64) (level, slope float64) { return stat.LinearRegression(x, v, nil, false) }
	}
	base.level, base.slope = line(y)
	rest, shape := make([]float64, n), make([]float64, n)
	residuals(base, x, y, rest)
	base.squares = squares(base, x, y)
	try := func(at float64) fitted {
		f := base
		f.model, f.at = model, at
		for i := range x {
			shape[i] = f.shape(x[i])
		}
		level, slope := line(shape)
		var dot, norm float64
		for i := range x {
			d := shape[i] - level - slope*x[i]
			dot += d * rest[i]
			norm += d * d
		}
		if norm > 0 {
			f.change = dot / norm
		}
		f.level, f.slope = f.level-f.change*level, f.slope-f.change*slope
		f.squares -= f.change * dot
		return f
	}
	best := base
	switch {
	case model == quadraticModel:
		best = try(0)
	case model.saturates():
		best = bestTimeConstant(x, try)
	case model.steps():
		best.squares = math.Inf(1)
		for k := 1; k <= n-3; k++ {
			if f := try((x[k-1] + x[k]) / 2); f.squares < best.squares {
				best = f
			}
		}
	}
	best.squares = squares(best, x, y)
	return best
}

// bestTimeConstant tries time constants up to three times the length of the series, in steps of 30%,
// and refines the best by golden-section search.
func bestTimeConstant(x []float64, fit func(tau float64) fitted) fitted {
	span := x[len(x)-1] - x[0]
	const ratio = 1.3
	best := fitted{squares: math.Inf(1)}
	for tau := span / float64(len(x)); tau < 3*span; tau *= ratio {
		if f := fit(tau); f.squares < best.squares {
			best = f
		}
	}
	if math.IsInf(best.squares, 1) {
		return fit(span)
	}
	low, high := best.at/ratio, best.at*ratio
	for range 12 {
		left, right := fit(high-(high-low)/math.Phi), fit(low+(high-low)/math.Phi)
		if left.squares < right.squares {
			high = right.at
		} else {
			low, left = left.at, right
		}
		if left.squares < best.squares {
			best = left
		}
	}
	return best
}

// models has the fits of all models to one series.
type models struct {
	best fitted
	all  []fitted // in the order of shapes
	n    float64  // number of points
}

func fitAll(x, y []float64) models {
	m := models{n: float64(len(x))}
	for _, s := range shapes {
		f := fit(s.model, x, y)
		f.parameters = s.parameters
		m.all = append(m.all, f)
	}
	return m
}

func (m *models) get(model modelName) fitted {
	return m.all[slices.IndexFunc(m.all, func(f fitted) bool { return f.model == model })]
}

// apart returns the difference of two fits as a standard deviation: the root of the difference of
// their mean squared residuals.
func (m *models) apart(worse, better fitted) float64 {
	return math.Sqrt(max(worse.squares-better.squares, 0) / m.n)
}

func (m *models) closest() fitted {
	return slices.MinFunc(m.all, func(a, b fitted) int { return cmp.Compare(a.squares, b.squares) })
}

// choose fits all models and scores them by AICc, Akaike's information criterion for small samples
// (Hurvich & Tsai 1989; Burnham & Anderson 2002). It chooses the simplest model whose score exceeds
// the lowest score by at most the constant evidence. Three rules prevent overconfidence:
//
//   - Single outliers are replaced.
//   - n points with correlated noise count as n(1-r)/(1+r), where r is the correlation of neighbours.
//   - The variance is at least that of rounding to the quantum.
func choose(x, y []float64, quantum float64) models {
	x, y = bins(x, y, modelPoints)
	y = withoutOutliers(y)
	m := fitAll(x, y)
	r := make([]float64, len(x))
	residuals(m.closest(), x, y, r)
	n := m.n
	floor := quantum * quantum / 12
	points := n
	if m.closest().squares/n > floor {
		correlation := min(max(covariance(r, 1)/covariance(r, 0), 0), 0.95)
		points = max(n*(1-correlation)/(1+correlation), min(n, 10))
	}
	least := math.Inf(1)
	for i := range m.all {
		f := &m.all[i]
		k := f.parameters
		f.score = points*math.Log(max(f.squares/n, floor)) + 2*k + 2*k*(k+1)/max(points-k-1, 1)
		least = min(least, f.score)
	}
	for _, f := range m.all {
		// Of equally simple models, the better score wins.
		if f.score <= least+evidence && (m.best.model == "" || f.parameters == m.best.parameters && f.score < m.best.score) {
			m.best = f
		}
	}
	return m
}

// withoutOutliers replaces a value that differs from both neighbours by more than four standard
// deviations, in the same direction, by their mean, so that it does not bend a least-squares fit.
func withoutOutliers(y []float64) []float64 {
	if len(y) < 3 {
		return y
	}
	limit := 4 * neighbourNoise(y)
	out := slices.Clone(y)
	for i := 1; i < len(y)-1; i++ {
		left, right := y[i]-y[i-1], y[i]-y[i+1]
		if left*right > 0 && min(math.Abs(left), math.Abs(right)) > limit {
			out[i] = (y[i-1] + y[i+1]) / 2
		}
	}
	return out
}

// neighbourNoise estimates the standard deviation of white noise from the median difference of
// neighbours, which is 0.95 standard deviations.
func neighbourNoise(y []float64) float64 {
	differences := make([]float64, len(y)-1)
	for i := range differences {
		differences[i] = math.Abs(y[i+1] - y[i])
	}
	return stats.Median(differences) / 0.95
}
