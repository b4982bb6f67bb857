package tune

import (
	"cmp"
	"math"
	"slices"

	"steadyfit/internal/autotune"
	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// point summarizes all trials of a configuration. Its times are ratios to those of search.reference.
// least is the lowest peak, and peak the highest.
type point struct {
	candidate
	ratio, low, high float64
	peak, least      memory.Bytes
	opening          memory.Bytes
	trials           int
	features         *autotune.Features
}

// candidate is a configuration with the index of its value on each axis. The first axis has the
// bases of autotune.Plan.Space, and each further axis a group of settings. Index 0 is the value of
// plain steps.
type candidate struct {
	is autotune.Configuration
	at []int
}

// distance returns the number of axes on which two candidates differ.
func (c candidate) distance(other candidate) (n int) {
	for i, v := range c.at {
		if v != other.at[i] {
			n++
		}
	}
	return n
}

// search selects the configurations to measure.
type search struct {
	goal       Goal
	axes       [][]autotune.Configuration
	candidates []candidate
	// screening are the candidates to measure first.
	screening []candidate

	points []point
	failed map[autotune.Configuration]string
	// reference are the steps to which the points were compared; usually plain steps.
	reference autotune.Configuration
	// plain has the times of a step of the reference in seconds. opened is the memory before the
	// first step.
	plain    []float64
	opened   memory.Bytes
	count    int // trials
	complete bool
	effects  map[effectKey]known // results of the method estimate
}

// effectKey is a value of an axis, with or without cached features.
type effectKey struct {
	axis, value int
	cached      bool
}

// known is an effect; ok is false if it is unknown.
type known struct {
	effect
	ok bool
}

// newSearch makes a search. over combines two configurations, if that is possible.
func newSearch(g Goal, bases []autotune.Configuration, groups [][]autotune.Configuration, over func(c, base autotune.Configuration) (autotune.Configuration, bool)) *search {
	s := &search{goal: g, failed: map[autotune.Configuration]string{}, effects: map[effectKey]known{}}
	s.axes = append([][]autotune.Configuration{bases}, groups...)
	s.candidates = []candidate{{at: make([]int, len(s.axes))}}
	for axis, values := range s.axes {
		for _, c := range slices.Clone(s.candidates) {
			for i, value := range values {
				if is, ok := over(value, c.is); ok {
					at := slices.Clone(c.at)
					at[axis] = i + 1
					s.candidates = append(s.candidates, candidate{is, at})
				}
			}
		}
	}
	s.screen()
	return s
}

// screen lists what to measure first: plain steps; several steps per execution with the single-threaded
// executor, measured together because their gains add up to more than each alone; and each entry of the
// first axis without other settings. Of the numbers of micro-batches, only a middle one and the largest
// one are listed: plain steps and the middle one suffice for a linear prediction, and the largest one
// is measured if plain steps fail.
func (s *search) screen() {
	var parts []int
	for i, c := range s.axes[0] {
		if c.MicroBatches > 1 {
			parts = append(parts, i+1)
		}
	}
	for _, c := range s.candidates {
		switch i := slices.Index(parts, c.at[0]); {
		case i >= 0 && i != len(parts)-1 && i != (len(parts)-1)/2:
		case c.distance(s.candidates[0]) == 2 && c.is.StepsPerExecution > 1 && c.is.Executor != "":
			s.screening = slices.Insert(s.screening, 1, c)
		case !slices.ContainsFunc(c.at[1:], func(value int) bool { return value != 0 }):
			s.screening = append(s.screening, c)
		}
	}
}

func (s *search) find(c autotune.Configuration) (candidate, bool) {
	i := slices.IndexFunc(s.candidates, func(k candidate) bool { return k.is == c })
	if i < 0 {
		return candidate{}, false
	}
	return s.candidates[i], true
}

func (s *search) point(c autotune.Configuration) *point {
	if i := slices.IndexFunc(s.points, func(p point) bool { return p.is == c }); i >= 0 {
		return &s.points[i]
	}
	return nil
}

// add records a trial. It ignores configurations that are not candidates. After a trial with another
// reference, earlier times cannot be compared, so add drops them.
func (s *search) add(m autotune.Measurement) {
	c, ok := s.find(m.Configuration)
	if !ok {
		return
	}
	s.count++
	s.effects = map[effectKey]known{}
	peak, opened, opening := m.StepPeak, m.Opened, m.Opening
	if s.goal.Anon {
		peak, opened, opening = m.StepAnon, m.OpenedAnon, 0
	}
	if m.Out != "" || m.Ratio <= 0 || peak <= 0 {
		s.failed[c.is] = cmp.Or(m.Out, "its memory or time is unknown")
		s.points = slices.DeleteFunc(s.points, func(p point) bool { return p.is == c.is })
		return
	}
	if m.Reference != s.reference {
		s.reference, s.points, s.plain = m.Reference, nil, nil
	}
	s.plain = append(s.plain, m.Step/m.Ratio)
	if opened = min(opened, peak); s.opened == 0 || opened < s.opened {
		s.opened = opened
	}
	if p := s.point(c.is); p != nil {
		n := float64(p.trials)
		p.ratio = math.Exp((n*math.Log(p.ratio) + math.Log(m.Ratio)) / (n + 1))
		p.low, p.high = min(p.low, m.Low), max(p.high, m.High)
		p.peak, p.least, p.opening = max(p.peak, peak), min(p.least, peak), max(p.opening, opening)
		p.trials++
	} else if s.failed[c.is] == "" {
		s.points = append(s.points, point{c, m.Ratio, m.Low, m.High, peak, peak, opening, 1, m.Features})
	}
}

// plainStep returns the time of a step of the reference in seconds.
func (s *search) plainStep() float64 { return stats.Median(s.plain) }

func (s *search) tried(c candidate) bool { return s.failed[c.is] != "" || s.point(c.is) != nil }

const (
	// slack is the error of a prediction for each axis on which it extrapolates, as a logarithm: 50 steps
	// per execution take as long as plain steps of the model lstm, but 10% less on a single thread.
	slack = 0.08
	// least is the least improvement that is worth a trial.
	least = 0.03
)

// next returns the configuration to measure next; ok is false if no other one is worth it. Like
// autotune.Choose, it first tries the entries of the first axis, and then settings on the best of
// them. But a combination that is predicted to be better than the best measured one precedes
// settings that were never measured.
func (s *search) next() (c autotune.Configuration, ok bool) {
	for _, c := range s.screening {
		if _, known := s.predict(c); !s.tried(c) && (!known || c.is.MicroBatches < 2) {
			return c.is, true
		}
	}
	if len(s.points) == 0 {
		return c, false
	}
	if c, ok := s.promising(true); ok {
		return c, true
	}
	if c, ok := s.unknown(); ok {
		return c, true
	}
	if c, ok := s.promising(false); ok {
		return c, true
	}
	return s.simpler()
}

// promising returns the candidate with the best score among those that are worth a trial. If sure is
// true, it makes no allowance for the error of predictions.
func (s *search) promising(sure bool) (c autotune.Configuration, ok bool) {
	worth := s.worth()
	best := math.Inf(1)
	for _, k := range s.candidates {
		if s.tried(k) {
			continue
		}
		p, known := s.predict(k)
		if !known {
			continue
		}
		if sure {
			p.spread = 0
		}
		if score, ok := worth(p); ok && score < best {
			best, c = score, k.is
		}
	}
	return c, !math.IsInf(best, 1)
}

// unknown returns a candidate with a setting whose effect is unknown: the best point with that
// setting or, if that is impossible or failed, plain steps with it. Without a goal, the first group
// of settings, which changes memory most, is measured on plain steps, since its effect there is the
// largest and the whole front counts.
func (s *search) unknown() (c autotune.Configuration, ok bool) {
	best, _ := s.best()
	for axis := 1; axis < len(s.axes); axis++ {
		for i := range s.axes[axis] {
			if _, known := s.effect(axis, i+1, best.is.CachedFeatures); known {
				continue
			}
			order := []candidate{best.candidate, s.candidates[0]}
			if s.goal == (Goal{}) && axis == 1 {
				slices.Reverse(order)
			}
			for _, on := range order {
				at := slices.Clone(on.at)
				at[axis] = i + 1
				with := slices.IndexFunc(s.candidates, func(k candidate) bool { return slices.Equal(k.at, at) })
				if with >= 0 && !s.tried(s.candidates[with]) {
					return s.candidates[with].is, true
				}
			}
		}
	}
	return c, false
}

// simpler returns a configuration with one setting less than the best one that is predicted to be
// about as good.
func (s *search) simpler() (c autotune.Configuration, ok bool) {
	best, reached := s.best()
	if !reached {
		return c, false
	}
	for _, k := range s.candidates {
		if s.tried(k) || k.distance(best.candidate) != 1 || k.is.Changes() >= best.is.Changes() {
			continue
		}
		if p, known := s.predict(k); known && s.asGood(p, best) {
			return k.is, true
		}
	}
	return c, false
}

// asGood reports whether a prediction is as good as best, a point that reaches the goal. The predicted
// cost may be higher by the factor 1+same.
func (s *search) asGood(p prediction, best point) bool {
	if s.goal.Budget == 0 && s.goal.Step == 0 {
		return p.ratio*p.peak <= (1+same)*best.ratio*float64(best.peak)
	}
	limit, amounts := s.amounts()
	bounded, minimized := amounts(p.ratio, p.peak)
	_, cost := amounts(best.ratio, float64(best.peak))
	return bounded <= limit && minimized <= (1+same)*cost
}

// worth returns the function that decides whether a prediction is worth a trial. A lower score is
// better.
func (s *search) worth() func(prediction) (score float64, ok bool) {
	if s.goal.Budget == 0 && s.goal.Step == 0 {
		now := front(s.points)
		return func(p prediction) (float64, bool) {
			return -gain(now, p.ratio, p.peak), gain(now, p.fastest(), p.smallest()) > least
		}
	}
	// Of the two amounts of a configuration, time and peak, one has a limit and the other is to be
	// minimized.
	limit, amounts := s.amounts()
	best, reached := s.best()
	bounded, minimized := amounts(best.ratio, float64(best.peak))
	return func(p prediction) (float64, bool) {
		b, m := amounts(p.ratio, p.peak)
		lowB, lowM := amounts(p.fastest(), p.smallest())
		if !reached { // first come closer to the limit
			return math.Max(b/limit, 1) + 1e-6*m/minimized, lowB < (1-least)*bounded
		}
		score := m / minimized
		if b > limit {
			score += b / limit // it probably exceeds the limit
		}
		return score, lowB <= limit && lowM < (1-least)*minimized
	}
}

// amounts returns the limit of a goal, and a function that orders the time and the peak of a
// configuration: the amount with the limit first, then the amount to minimize.
func (s *search) amounts() (limit float64, order func(ratio, peak float64) (bounded, minimized float64)) {
	if s.goal.Step != 0 {
		return s.goal.Step.Seconds() / s.plainStep(), func(ratio, peak float64) (float64, float64) { return ratio, peak }
	}
	return float64(s.goal.Limit()), func(ratio, peak float64) (float64, float64) { return peak, ratio }
}

// best returns the point that the goal chooses, with the fewest changes among those that are about
// as good. If none reaches the goal, it returns the one that comes closest.
func (s *search) best() (best point, reached bool) {
	if s.goal.Budget == 0 && s.goal.Step == 0 {
		return choose(front(s.points), func(p point) float64 { return p.ratio * float64(p.peak) }), true
	}
	limit, amounts := s.amounts()
	bounded := func(p point) float64 { b, _ := amounts(p.ratio, float64(p.peak)); return b }
	minimized := func(p point) float64 { _, m := amounts(p.ratio, float64(p.peak)); return m }
	good := slices.DeleteFunc(slices.Clone(s.points), func(p point) bool { return bounded(p) > limit })
	if len(good) > 0 {
		return choose(good, minimized), true
	}
	return slices.MinFunc(s.points, func(a, b point) int { return cmp.Compare(bounded(a), bounded(b)) }), false
}

// same is the relative difference that is ignored in favour of fewer changes. The results of two
// searches differ by about as much.
const same = 0.05

// choose returns the point with the least cost. If the costs of points differ by less than same,
// it returns the one with the fewest changes.
func choose(points []point, cost func(point) float64) point {
	cheapest := slices.MinFunc(points, func(a, b point) int { return cmp.Compare(cost(a), cost(b)) })
	near := slices.DeleteFunc(slices.Clone(points), func(p point) bool { return cost(p) > cost(cheapest)*(1+same) })
	return slices.MinFunc(near, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.is.Changes(), b.is.Changes()), cmp.Compare(cost(a), cost(b)))
	})
}

// enoughTrials is the number of trials of the choice. frontTrials is the number for other points of
// the front.
const enoughTrials, frontTrials = 3, 2

// repeat returns a configuration whose trial is worth repeating.
func (s *search) repeat() (c autotune.Configuration, ok bool) {
	if len(s.points) == 0 {
		return c, false
	}
	best, _ := s.best()
	if best.trials < frontTrials {
		return best.is, true
	}
	if s.goal == (Goal{}) {
		for _, p := range front(s.points) {
			if p.trials < frontTrials {
				return p.is, true
			}
		}
	}
	return best.is, best.trials < enoughTrials
}

// tie is the relative difference below which two times or two peaks count as equal.
const tie = 0.02

// faster orders points by time, then by peak.
func faster(a, b point) int {
	return cmp.Or(cmp.Compare(a.ratio, b.ratio), cmp.Compare(a.peak, b.peak))
}

// front returns the points for which no other one is both faster and smaller, fastest first.
func front(points []point) (front []point) {
	for _, p := range slices.SortedFunc(slices.Values(points), faster) {
		n := len(front)
		switch {
		case n > 0 && float64(p.peak) > (1-tie)*float64(front[n-1].peak):
		case n > 0 && p.ratio < (1+tie)*front[n-1].ratio:
			front[n-1] = p
		default:
			front = append(front, p)
		}
	}
	return front
}

// gain returns by how much a time and a peak improve a front, as a logarithm. Compared with each
// point, it takes the better factor of time and peak. The result is the smallest of these factors.
func gain(front []point, ratio, peak float64) float64 {
	least := math.Inf(1)
	for _, p := range front {
		least = min(least, max(math.Log(p.ratio/ratio), math.Log(float64(p.peak)/peak)))
	}
	return least
}
