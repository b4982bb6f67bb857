package memory

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

const (
	// fewSteps is how many step changes are few: with more, the slope shows growth.
	fewSteps = 3
	// stepsMake is the least part of all growth that the steps must make up.
	stepsMake = 0.75
	// lowStep is the least part of all growth that counts as a step once these make up
	// enough, and besideSteps the least part that growth beside them must have.
	lowStep     = 0.1
	besideSteps = 0.1
	// stepsLeave is the most of the squares that a line leaves which steps may leave:
	// noisy growth cut in four leaves about as much as a line does.
	stepsLeave = 0.5
	// oneStep is how far apart the pieces of one step lie at most, in bins.
	oneStep = 2
)

// judgeStepChanges judges again a course that grew, or may have: it may have gone up
// in a few steps. No model has more than one, so a line or a curve through them
// passes for growth. If much of the run came after the last step, only that is
// judged; else it is too early. A course that grows beside its steps keeps its verdict.
func (t *trial) judgeStepChanges() {
	from := 0
	if len(t.jumps) > 0 {
		from = t.from // a step that was cut off was one beyond doubt
	}
	at := t.stepChanges(from)
	if at == nil {
		return
	}
	last := at[len(at)-1]
	// If they came at regular intervals, there would have been one more.
	interval := 0.0
	for i := 1; i < len(at); i++ {
		interval = max(interval, t.x[at[i]]-t.x[at[i-1]])
	}
	jumps, rest, wider := t.withoutSteps(from, at)
	if jumps == nil {
		return
	}
	jumps = append(slices.Clone(t.jumps), jumps...)
	grain := t.grainOf(rest)
	f := estimate(t.x[from:], rest, grain, t.Confidence, t.Seed)
	grows := f.slope-f.half*wider-grain/(t.end()-t.x[from]) > max(float64(t.Budget), besideSteps*t.result.Slope.Estimate)
	if grows && t.result.Kind == Leak {
		return
	}
	v := &t.result
	since := t.end() - t.x[last]
	if len(t.x)-last >= fewTail && since >= leastAfterSeveral*t.total() && since >= interval {
		start := v.Start
		if from == 0 {
			start = Bytes(t.y[0])
		}
		*t = trial{Criteria: t.Criteria, x: t.x, y: t.y, from: last, quantum: t.quantum, cuts: 1, jumps: jumps, result: Verdict{
			Layer: t.Layer, Per: t.Per, Confidence: t.Confidence, Budget: t.Budget, Quantum: v.Quantum, Start: start, To: t.end(),
		}}
		t.cutWarmUp()
		t.judgeTail()
		return
	}
	if len(at) == 1 || grows {
		return
	}
	v.Jumps = jumps
	t.inconclusive(max(t.total()/2, interval-since), "it went up %d times, and the last time is too near the end", len(jumps))
}

// stepChanges returns the first samples of the few steps that make up most of the
// growth since a sample, or nil. What comes after a step stays above all that was
// before it, but for single outliers, by more than noise or a slope explain.
func (t *trial) stepChanges(from int) []int {
	_, y := bins(t.x[from:], t.y[from:], modelPoints)
	y = withoutOutliers(y)
	least := slices.Clone(y) // from here on
	for i := len(y) - 2; i >= 0; i-- {
		least[i] = min(least[i], least[i+1])
	}
	type rise struct {
		at     int
		height float64
	}
	// Noise hides five deviations of each step, and adds them once to the whole.
	width := 5 * neighbourNoise(y)
	var rises []rise
	most := y[0]
	for i := 1; i < len(y); i++ {
		if height := least[i] - most; height > 2*t.quantum {
			rises = append(rises, rise{i, height + min(width, height)})
		}
		most = max(most, y[i])
	}
	slices.SortStableFunc(rises, func(a, b rise) int { return cmp.Compare(b.height, a.height) })
	whole := most - least[0] - width
	if whole <= 0 {
		return nil
	}
	missing := stepsMake * whole
	var places []int
	for _, r := range rises {
		if missing <= 0 && r.height < lowStep*whole || len(places) == 2*fewSteps {
			break
		}
		missing -= r.height
		places = append(places, r.at)
	}
	if missing > 0 {
		return nil
	}
	slices.Sort(places)
	var at []int
	for i, place := range places {
		sample := from + riseNear(t.y[from:], place)
		if i > 0 && place-places[i-1] <= oneStep {
			at[len(at)-1] = sample
			continue
		}
		at = append(at, sample)
	}
	if len(at) > fewSteps {
		return nil
	}
	return at
}

// riseNear is the sample after the largest rise near the beginning of a bin.
func riseNear(y []float64, bin int) int {
	per := (len(y) + modelPoints - 1) / modelPoints
	if per <= 1 {
		return bin
	}
	at := bin * per
	for i := max(at-per, 0) + 1; i < min(at+per, len(y)); i++ {
		if y[i]-y[i-1] > y[at]-y[at-1] {
			at = i
		}
	}
	return at
}

// withoutSteps returns the steps as changes, and the course since a sample without
// them; nil if a line explains the course as well. The steps take from what shows a
// slope, so its interval is wider by a factor.
func (t *trial) withoutSteps(from int, at []int) (jumps []Change, rest []float64, wider float64) {
	x, y := t.x[from:], withoutOutliers(t.y[from:])
	bounds := []int{0}
	for _, i := range at {
		bounds = append(bounds, i-from)
	}
	bounds = append(bounds, len(y))
	// The slope that is the same between all steps, and the middle of each level.
	var within, along, around float64
	mx, my := make([]float64, len(at)+1), make([]float64, len(at)+1)
	for k := range mx {
		low, high := bounds[k], bounds[k+1]
		mx[k], my[k] = stat.Mean(x[low:high], nil), stat.Mean(y[low:high], nil)
		for i := low; i < high; i++ {
			within += (x[i] - mx[k]) * (x[i] - mx[k])
			along += (x[i] - mx[k]) * (y[i] - my[k])
			around += (y[i] - my[k]) * (y[i] - my[k])
		}
	}
	if around > stepsLeave*fit(linearModel, x, y).squares {
		return nil, nil, 0
	}
	slope := 0.0
	if within > 0 {
		slope, wider = along/within, math.Sqrt(stat.PopVariance(x, nil)*float64(len(x))/within)
	}
	rest = slices.Clone(t.y[from:])
	for k := range at {
		height := my[k+1] - my[k] - slope*(mx[k+1]-mx[k])
		jumps = append(jumps, Change{At: t.x[at[k]], Amount: Bytes(height)})
		for i := bounds[k+1]; i < len(rest); i++ {
			rest[i] -= height
		}
	}
	return jumps, rest, wider
}
