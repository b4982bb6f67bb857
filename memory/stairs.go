package memory

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

const (
	// mostStairs is how many stairs are few: of more, growth can be told by its slope.
	mostStairs = 3
	// stairsMake is the least part of all growth that the stairs must make up.
	stairsMake = 0.75
	// lowStair is the least part of all growth that is a stair when these are enough,
	// and besideStairs the least part that growth beside them must have.
	lowStair     = 0.1
	besideStairs = 0.1
	// stairsLeave is the most of the squares that a line leaves which stairs may leave:
	// noisy growth cut in four leaves about as much as a line does.
	stairsLeave = 0.5
	// oneStair is how far, in bins, the pieces of one stair lie apart at most.
	oneStair = 2
)

// judgeStairs looks again at a course that grew, or may have, for it may have gone
// up in a few stairs: none of the models has more than one, so that a line through
// them passes for growth, and so does a curve. If much of the run came after the
// last, only that is judged; else it is too early to judge several stairs. A course
// that grows beside its stairs keeps its verdict.
func (t *trial) judgeStairs() {
	from := 0
	if len(t.jumps) > 0 {
		from = t.from // a step that was cut off was one beyond doubt
	}
	at := t.stairs(from)
	if at == nil {
		return
	}
	end, last := t.x[len(t.x)-1], at[len(at)-1]
	// If they came at regular intervals, there would have been one more.
	interval := 0.0
	for i := 1; i < len(at); i++ {
		interval = max(interval, t.x[at[i]]-t.x[at[i-1]])
	}
	jumps, rest, wider := t.withoutStairs(from, at)
	if jumps == nil {
		return
	}
	jumps = append(slices.Clone(t.jumps), jumps...)
	grain := t.grainOf(rest)
	f := estimate(t.x[from:], rest, grain, t.Confidence, t.Seed)
	grows := f.slope-f.half*wider-grain/(end-t.x[from]) > max(float64(t.Budget), besideStairs*t.result.Slope.Estimate)
	if grows && t.result.Kind == Leak {
		return
	}
	v := &t.result
	since := end - t.x[last]
	if len(t.x)-last >= fewTail && since >= leastAfterStairs*t.total() && since >= interval {
		start := v.Start
		if from == 0 {
			start = Bytes(t.y[0])
		}
		*t = trial{Criteria: t.Criteria, x: t.x, y: t.y, from: last, quantum: t.quantum, cuts: 1, jumps: jumps, result: Verdict{
			Layer: t.Layer, Per: t.Per, Confidence: t.Confidence, Budget: t.Budget, Quantum: v.Quantum, Start: start, To: end,
		}}
		t.cutWarmUp()
		t.judgeTail()
		return
	}
	if len(at) == 1 || grows {
		return
	}
	v.Kind, v.Jumps = Inconclusive, jumps
	v.Reason = fmt.Sprintf("it went up %d times, and the last time is too near the end", len(jumps))
	v.More = t.whole(max(t.total()/2, interval-since))
}

// stairs are the first samples of the few stairs that make up most of the growth
// since a sample, or nil. What comes after a stair stays above all that was before
// it, but for single outliers, which neither noise nor a slope does by as much.
func (t *trial) stairs(from int) []int {
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
	differences := make([]float64, len(y)-1)
	for i := range differences {
		differences[i] = math.Abs(y[i+1] - y[i])
	}
	// Noise of this width hides so much of each stair, and adds it once to the whole:
	// five deviations, for white noise.
	width := 5 / 0.95 * median(differences)
	var rises []rise
	most := y[0]
	for i := 1; i < len(y); i++ {
		if height := least[i] - most; height > 2*t.quantum {
			rises = append(rises, rise{i, height + min(width, height)})
		}
		most = max(most, y[i])
	}
	slices.SortFunc(rises, func(a, b rise) int { return cmp.Or(cmp.Compare(b.height, a.height), cmp.Compare(a.at, b.at)) })
	whole := most - least[0] - width
	if whole <= 0 {
		return nil
	}
	missing := stairsMake * whole
	var places []int
	for _, r := range rises {
		if missing <= 0 && r.height < lowStair*whole || len(places) == 2*mostStairs {
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
		if i > 0 && place-places[i-1] <= oneStair {
			at[len(at)-1] = sample
			continue
		}
		at = append(at, sample)
	}
	if len(at) > mostStairs {
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

// withoutStairs are the stairs as changes and the course since a sample without
// them, unless a line explains the course as well. The stairs take from what can
// tell a slope, so that its interval is wider by a factor.
func (t *trial) withoutStairs(from int, at []int) (jumps []Change, rest []float64, wider float64) {
	x, y := t.x[from:], withoutOutliers(t.y[from:])
	bounds := []int{0}
	for _, i := range at {
		bounds = append(bounds, i-from)
	}
	bounds = append(bounds, len(y))
	// The slope that is the same between all stairs, and the middle of each tread.
	var within, along, squares float64
	mx, my := make([]float64, len(at)+1), make([]float64, len(at)+1)
	for k := range mx {
		low, high := bounds[k], bounds[k+1]
		mx[k], my[k] = stat.Mean(x[low:high], nil), stat.Mean(y[low:high], nil)
		for i := low; i < high; i++ {
			within += (x[i] - mx[k]) * (x[i] - mx[k])
			along += (x[i] - mx[k]) * (y[i] - my[k])
			squares += (y[i] - my[k]) * (y[i] - my[k])
		}
	}
	if squares > stairsLeave*fitLinear(x, y).squares {
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
