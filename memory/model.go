package memory

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Model is a shape that the course of a series may have.
type Model string

// The models that compete. A step and a saturating curve may come with a slope:
// otherwise a leak that begins with a warm-up would pass for one of them.
const (
	Constant   Model = "constant"
	Step       Model = "one step"
	Saturating Model = "saturating" // a + b(1-exp(-t/tau))
	Linear     Model = "linear"
	Quadratic  Model = "quadratic"

	StepLinear       Model = "one step and linear"
	SaturatingLinear Model = "saturating and linear"
)

const (
	// modelPoints is the most points that models are fitted to.
	modelPoints = 120
	// evidence is how much better, in AICc, a model must be than a simpler one to
	// be preferred; from 4 to 7 the simpler one has considerably less support
	// (Burnham & Anderson 2002, section 2.6).
	evidence = 6
)

// fitted is a model with its parameters.
type fitted struct {
	model Model
	// level is the value at the start (constant, step, saturating), or at x = 0.
	level float64
	// change is the height of the step, b of the saturating model, or the slope.
	change float64
	// at is where the step is, between two points, or tau.
	at float64
	// origin is x at the start, from which the saturating model counts t.
	origin float64
	// slope is that of a step or curve with a slope.
	slope float64
	// curve is the coefficient of the parabola, whose value is
	// level + change*x + curve*(x*x - (p + q*x)).
	curve, p, q float64
	squares     float64 // sum of the squared residuals
	parameters  float64 // the variance included
	score       float64 // AICc
}

func (f fitted) value(x float64) float64 {
	switch f.model {
	case Step, StepLinear:
		if x > f.at {
			return f.level + f.change + f.slope*x
		}
		return f.level + f.slope*x
	case Saturating, SaturatingLinear:
		return f.level + f.slope*x + f.rise(x)
	case Linear:
		return f.level + f.change*x
	case Quadratic:
		return f.level + f.change*x + f.curve*(x*x-f.p-f.q*x)
	}
	return f.level
}

// rise is what the curve of a saturating model has risen by.
func (f fitted) rise(x float64) float64 {
	return f.change * (1 - math.Exp(-(x-f.origin)/f.at))
}

func residuals(f fitted, x, y, into []float64) {
	for i := range x {
		into[i] = y[i] - f.value(x[i])
	}
}

func fitConstant(y []float64) fitted {
	mean, variance := stat.PopMeanVariance(y, nil)
	return fitted{model: Constant, level: mean, squares: variance * float64(len(y)), parameters: 2}
}

func fitLinear(x, y []float64) fitted {
	f := fitted{model: Linear, parameters: 3}
	f.level, f.change = stat.LinearRegression(x, y, nil, false)
	f.squares = squares(f, x, y)
	return f
}

// fitQuadratic adds to the line what of x*x a line cannot follow, so each
// coefficient is a regression of its own and no matrix is needed.
func fitQuadratic(x, y []float64) fitted {
	f := fitLinear(x, y)
	f.model, f.parameters = Quadratic, 4
	square := make([]float64, len(x))
	for i := range x {
		square[i] = x[i] * x[i]
	}
	f.p, f.q = stat.LinearRegression(x, square, nil, false)
	var dot, norm float64
	for i := range x {
		bend := square[i] - f.p - f.q*x[i]
		dot += bend * (y[i] - f.level - f.change*x[i])
		norm += bend * bend
	}
	if norm > 0 {
		f.curve = dot / norm
	}
	f.squares = squares(f, x, y)
	return f
}

// fitStep tries each place for the step, with three points after it at least:
// fewer could be noise. Its place counts as three parameters: a free place fits
// noise that much better (Ninomiya 2015).
func fitStep(x, y []float64) fitted {
	n := len(y)
	offset := stat.Mean(y, nil) // keeps the sums of squares small
	var total, all float64
	for _, v := range y {
		total += v - offset
		all += (v - offset) * (v - offset)
	}
	best := fitted{model: Step, squares: math.Inf(1), parameters: 6}
	sum := 0.0
	for k := 1; k <= n-3; k++ {
		sum += y[k-1] - offset
		left, right := sum/float64(k), (total-sum)/float64(n-k)
		if s := all - sum*left - (total-sum)*right; s < best.squares {
			best.squares, best.at = s, (x[k-1]+x[k])/2
			best.level, best.change = left+offset, right-left
		}
	}
	best.squares = squares(best, x, y)
	return best
}

// fitSaturating tries time constants; for a given one the model is a line in
// 1-exp(-t/tau).
func fitSaturating(x, y []float64) fitted {
	curve := make([]float64, len(x))
	return bestTimeConstant(x, func(tau float64) fitted {
		f := fitted{model: Saturating, at: tau, origin: x[0], change: 1, parameters: 4}
		for i := range x {
			curve[i] = f.rise(x[i])
		}
		f.level, f.change = stat.LinearRegression(curve, y, nil, false)
		f.squares = 0
		for i := range x {
			d := y[i] - f.level - f.change*curve[i]
			f.squares += d * d
		}
		return f
	})
}

// bestTimeConstant tries time constants from the distance of two points to three
// times the series, each 30% above the one before, and then closes in on the
// best one by golden sections, to some thousandths.
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

// fitSloped fits a step or a saturating curve together with a slope. For each
// place or time constant it takes from the data and from the shape what a line
// can follow, so that one regression of the rests gives the height (Frisch &
// Waugh 1933).
func fitSloped(model Model, x, y []float64) fitted {
	n := len(x)
	line := fitLinear(x, y)
	rest := make([]float64, n)
	residuals(line, x, y, rest)
	shape := make([]float64, n)
	try := func(f fitted) fitted {
		f.model, f.change = model, 1
		for i := range x {
			shape[i] = f.value(x[i])
		}
		p, q := stat.LinearRegression(x, shape, nil, false)
		var dot, norm float64
		for i := range x {
			shape[i] -= p + q*x[i]
			dot += shape[i] * rest[i]
			norm += shape[i] * shape[i]
		}
		f.change = 0
		if norm > 0 {
			f.change = dot / norm
		}
		f.level, f.slope = line.level-f.change*p, line.change-f.change*q
		f.squares = line.squares - f.change*dot
		return f
	}
	var best fitted
	if model == SaturatingLinear {
		best = bestTimeConstant(x, func(tau float64) fitted { return try(fitted{at: tau, origin: x[0], parameters: 5}) })
	} else {
		best.squares = math.Inf(1)
		for k := 1; k <= n-3; k++ {
			if f := try(fitted{at: (x[k-1] + x[k]) / 2, parameters: 7}); f.squares < best.squares {
				best = f
			}
		}
	}
	best.squares = squares(best, x, y)
	return best
}

func squares(f fitted, x, y []float64) float64 {
	sum := 0.0
	for i := range x {
		d := y[i] - f.value(x[i])
		sum += d * d
	}
	return sum
}

// models are the fits of all models to one series, with their scores.
type models struct {
	best fitted
	all  []fitted // simplest first
	n    float64  // the number of points they were fitted to
}

func (m *models) get(model Model) fitted {
	i := slices.IndexFunc(m.all, func(f fitted) bool { return f.model == model })
	return m.all[i]
}

// choose fits all models and scores them by AICc, the information criterion of
// Akaike corrected for small samples (Hurvich & Tsai 1989; Burnham & Anderson
// 2002). Three things keep it from believing too much. Points that even the
// closest model misses by far are left out. Correlated noise counts as fewer
// points, n(1-r)/(1+r) for the correlation r of neighbours around the closest
// model. And a variance below that of rounding to the quantum is not believed.
// The simplest model that is within the evidence of the best one is chosen.
func choose(x, y []float64, quantum float64) models {
	x, y = bins(x, y, modelPoints)
	y = withoutOutliers(y)
	m := fitAll(x, y)
	r := make([]float64, len(x))
	residuals(m.closest(), x, y, r)
	if kx, ky := trimmed(x, y, r); len(kx) < len(x) {
		x, y = kx, ky
		m = fitAll(x, y)
		r = r[:len(x)]
		residuals(m.closest(), x, y, r)
	}
	m.n = float64(len(x))
	n := m.n
	floor := quantum * quantum / 12
	points := n
	if m.closest().squares/n > floor {
		correlation := min(max(covariance(r, 1)/covariance(r, 0), 0), 0.95)
		points = max(n*(1-correlation)/(1+correlation), min(n, 10))
	}
	for i := range m.all {
		f := &m.all[i]
		k := f.parameters
		f.score = points*math.Log(max(f.squares/n, floor)) + 2*k + 2*k*(k+1)/max(points-k-1, 1)
	}
	least := math.Inf(1)
	for _, f := range m.all {
		least = min(least, f.score)
	}
	for _, f := range m.all {
		if f.score <= least+evidence {
			// Of equally simple ones, the better.
			if m.best.model == "" || f.parameters == m.best.parameters && f.score < m.best.score {
				m.best = f
			}
		}
	}
	return m
}

func fitAll(x, y []float64) models {
	return models{all: []fitted{fitConstant(y), fitLinear(x, y), fitSaturating(x, y), fitQuadratic(x, y),
		fitSloped(SaturatingLinear, x, y), fitStep(x, y), fitSloped(StepLinear, x, y)}}
}

// apart is how far two fits are from each other, as a deviation per point.
func (m *models) apart(worse, better fitted) float64 {
	return math.Sqrt(max(worse.squares-better.squares, 0) / m.n)
}

// closest is the fit with the least residuals.
func (m *models) closest() fitted {
	closest := m.all[0]
	for _, f := range m.all {
		if f.squares < closest.squares {
			closest = f
		}
	}
	return closest
}

// trimmed leaves out the points whose residual is beyond four deviations, as
// long as no more than three in a row are: a longer run, or one at the beginning
// or that long at the end, is part of the course.
func trimmed(x, y, r []float64) (kx, ky []float64) {
	const longest = 3
	n := len(r)
	size := make([]float64, n)
	for i := range r {
		size[i] = math.Abs(r[i])
	}
	limit := 4 * 1.4826 * median(slices.Clone(size))
	for i := 0; i < n; {
		run := 0
		for i+run < n && size[i+run] > limit {
			run++
		}
		if run == 0 || run > longest || i == 0 || i+run == n && run == longest {
			kx, ky = append(kx, x[i:i+max(run, 1)]...), append(ky, y[i:i+max(run, 1)]...)
		}
		i += max(run, 1)
	}
	return kx, ky
}

// withoutOutliers replaces values that stand out alone from both neighbours,
// in the same direction and by four deviations, by the mean of these: least
// squares would bend to them. Edges, teeth and slopes stay as they are.
func withoutOutliers(y []float64) []float64 {
	n := len(y)
	if n < 3 {
		return y
	}
	differences := make([]float64, n-1)
	for i := range differences {
		differences[i] = math.Abs(y[i+1] - y[i])
	}
	// For white noise the median of the differences is 0.95 deviations.
	limit := 4 / 0.95 * median(differences)
	out := slices.Clone(y)
	for i := 1; i < n-1; i++ {
		left, right := y[i]-y[i-1], y[i]-y[i+1]
		if left*right > 0 && min(math.Abs(left), math.Abs(right)) > limit {
			out[i] = (y[i-1] + y[i+1]) / 2
		}
	}
	return out
}
