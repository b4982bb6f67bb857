package memory

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"steadyfit/internal/stats"
)

const (
	// fewSteps is the maximum number of step changes. More step changes count as growth with a
	// slope.
	fewSteps = 3
	// stepsMake is the minimum share of all growth for the steps together.
	stepsMake = 0.75
	// lowStep applies once the steps found so far have the share stepsMake: another step then needs
	// at least this share of all growth. If the slope between the steps exceeds the share
	// besideSteps of the whole slope, memory also grows between the steps.
	lowStep     = 0.1
	besideSteps = 0.1
	// stepsLeave is the maximum ratio of the squared residuals around a fit with steps to those
	// around a line. Noisy growth cut into four pieces gives about 1.
	stepsLeave = 0.5
	// oneStep is the maximum distance of the parts of one step, in bins.
	oneStep = 2
)

// judgeStepChanges judges a growing series again, since a few step changes look like growth to models
// with at most one step. If the last step is long ago, only the part after it is judged; otherwise the
// verdict is inconclusive. A series that also grows between its steps keeps its verdict.
func (t *trial) judgeStepChanges() {
	from := 0
	if len(t.jumps) > 0 {
		from = t.from // the step change before t.from is already confirmed
	}
	at := t.stepChanges(from)
	if at == nil {
		return
	}
	last := at[len(at)-1]
	// If steps come at regular intervals, the rest must be long enough to exclude another step.
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
	f := estimate(t.x[from:], rest, grain, t.Seed)
	grows := f.slope-f.half*wider-grain/(t.end()-t.x[from]) > max(float64(t.Budget), besideSteps*t.result.Slope.Estimate)
	if grows && t.result.Kind == Leak {
		return
	}
	v := &t.result
	since := t.end() - t.x[last]
	if len(t.x)-last >= fewTail && since >= leastAfterSeveral*t.total() && since >= interval {
		*t = trial{Criteria: t.Criteria, x: t.x, y: t.y, from: last, quantum: t.quantum, cuts: 1, jumps: jumps,
			result: Verdict{
				Layer: t.Layer, Per: t.per(), Confidence: stats.Confidence, Budget: t.Budget,
				Start: Bytes(t.y[0]), To: t.end(),
			}}
		t.cutWarmUp()
		t.judgeTail()
		return
	}
	if len(at) == 1 || grows {
		return
	}
	v.Jumps = jumps
	t.inconclusive(max(t.total()/2, interval-since), "the level rose in %d steps, and the last step is too near the end",
		len(jumps))
}

// stepChanges returns the indices after the few steps that make up most of the growth, or nil. The
// values after a step, except single outliers, exceed all values before it by more than noise or a
// slope explains.
func (t *trial) stepChanges(from int) []int {
	_, y := bins(t.x[from:], t.y[from:], modelPoints)
	y = withoutOutliers(y)
	least := slices.Clone(y) // minimum of each sample and all later samples
	for i := len(y) - 2; i >= 0; i-- {
		least[i] = min(least[i], least[i+1])
	}
	type rise struct {
		at     int
		height float64
	}
	// Noise reduces each visible step by up to five deviations.
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
		sample := from + place*((len(t.y[from:])+modelPoints-1)/modelPoints)
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

// withoutSteps returns the steps, and the series without them; nil if a line explains the series as
// well. Removing steps loses information about the slope. wider is the factor by which the interval
// of the slope becomes wider.
func (t *trial) withoutSteps(from int, at []int) (jumps []Change, rest []float64, wider float64) {
	x, y := t.x[from:], withoutOutliers(t.y[from:])
	bounds := []int{0}
	for _, i := range at {
		bounds = append(bounds, i-from)
	}
	bounds = append(bounds, len(y))
	// These sums give the slope between the steps and the middle of each level.
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
