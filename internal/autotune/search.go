package autotune

import (
	"cmp"
	"math"
	"slices"

	"steadyfit/internal/stats"
)

// candidate is a configuration with the index of its value on each axis. The first axis has the bases of
// a space, and each further axis a group of settings. Index 0 is the value of plain steps.
type candidate struct {
	is Configuration
	at []int
}

// search selects the configurations to measure. It tries each value of each axis with the best values of
// the other axes so far, and then changes the best configuration by single steps while that helps.
type search struct {
	goal       Goal
	axes       [][]Configuration
	candidates []candidate

	points []Point
	failed map[Configuration]string
	// inexact means that micro-batches change the update of the model.
	inexact bool
	// reference are the steps to which the points were compared; usually plain steps.
	reference Configuration
	// plain has the times of a step of the reference in seconds.
	plain    []float64
	complete bool
}

// newSearch makes a search. over combines two configurations, if that is possible.
func newSearch(g Goal, axes [][]Configuration, over func(c, base Configuration) (Configuration, bool)) *search {
	s := &search{goal: g, axes: axes, failed: map[Configuration]string{}}
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
	return s
}

func (s *search) point(c Configuration) *Point {
	if i := slices.IndexFunc(s.points, func(p Point) bool { return p.Configuration == c }); i >= 0 {
		return &s.points[i]
	}
	return nil
}

// add records a trial. It ignores configurations that are not candidates. After a trial with another
// reference, earlier times cannot be compared, so add drops them.
func (s *search) add(m Measurement) {
	i := slices.IndexFunc(s.candidates, func(k candidate) bool { return k.is == m.Configuration })
	if i < 0 {
		return
	}
	c := s.candidates[i]
	peak := m.Peak
	if s.goal.Anon {
		peak = m.Anon
	}
	if m.Out != "" || m.Ratio <= 0 || peak <= 0 {
		s.failed[c.is] = cmp.Or(m.Out, "its memory or time is unknown")
		s.points = slices.DeleteFunc(s.points, func(p Point) bool { return p.Configuration == c.is })
		return
	}
	if m.Reference != s.reference {
		s.reference, s.points, s.plain = m.Reference, nil, nil
	}
	s.plain = append(s.plain, m.Step/m.Ratio)
	if p := s.point(c.is); p != nil {
		n := float64(p.Trials)
		p.ratio = math.Exp((n*math.Log(p.ratio) + math.Log(m.Ratio)) / (n + 1))
		p.low, p.high = min(p.low, m.Low), max(p.high, m.High)
		p.Peak, p.PeakLow = max(p.Peak, peak), min(p.PeakLow, peak)
		p.Trials++
	} else if s.failed[c.is] == "" {
		s.points = append(s.points, Point{
			Configuration: c.is, Peak: peak, PeakLow: peak, Trials: 1,
			at: c.at, ratio: m.Ratio, low: m.Low, high: m.High,
		})
	}
}

// plainStep returns the time of a step of the reference in seconds.
func (s *search) plainStep() float64 { return stats.Median(s.plain) }

// untried returns the candidate with the given values, if it exists and has no trial yet.
func (s *search) untried(at []int) (c Configuration, ok bool) {
	i := slices.IndexFunc(s.candidates, func(k candidate) bool { return slices.Equal(k.at, at) })
	if i < 0 {
		return c, false
	}
	c = s.candidates[i].is
	return c, s.failed[c] == "" && s.point(c) == nil
}

// next returns the configuration to measure next; ok is false if no other one is worth it.
func (s *search) next() (c Configuration, ok bool) {
	if c, ok := s.untried(s.candidates[0].at); ok {
		return c, true
	}
	for i, start := range s.starts() {
		for axis, values := range s.axes {
			for value := range len(values) + 1 {
				c, ok := s.untried(changed(start.at, axis, value))
				if !ok || !s.continues(axis, value) {
					continue
				}
				// Each value is tried once. After that, the best candidate is changed in three ways: without a
				// setting, to another base, and by settings that have helped elsewhere. Other candidates get only
				// such settings.
				switch {
				case value > 0 && !s.seen(axis, value), i == 1 && (value == 0 || axis == 0),
					i > 0 && (i == 1 || start.at[axis] == 0) && s.helps(axis, value):
					return c, true
				}
			}
		}
	}
	return c, false
}

// helps reports whether adding a value to a measured configuration has lowered one of its amounts.
func (s *search) helps(axis, value int) bool {
	for _, with := range s.points {
		i := slices.IndexFunc(s.points, func(p Point) bool { return slices.Equal(p.at, changed(with.at, axis, 0)) })
		if with.at[axis] == value && i >= 0 {
			bounded, _, minimized := s.amounts(with.ratio, float64(with.Peak))
			before, _, cost := s.amounts(s.points[i].ratio, float64(s.points[i].Peak))
			if bounded < (1-tie)*before || minimized < (1-tie)*cost {
				return true
			}
		}
	}
	return false
}

// near is the factor by which a point may miss the goal and still be changed by one more setting.
const near = 1.2

// starts returns the candidates to change by one setting: the best one, twice, and those that would be better
// but miss the goal narrowly, best first.
func (s *search) starts() []candidate {
	if len(s.points) == 0 {
		return s.candidates[:1]
	}
	best, reached := s.best()
	starts := []candidate{{best.Configuration, best.at}, {best.Configuration, best.at}}
	_, _, least := s.amounts(best.ratio, float64(best.Peak))
	for _, p := range slices.SortedFunc(slices.Values(s.points), s.compare) {
		bounded, limit, minimized := s.amounts(p.ratio, float64(p.Peak))
		if reached && bounded > limit && bounded <= near*limit && minimized < least {
			starts = append(starts, candidate{p.Configuration, p.at})
		}
	}
	return starts
}

// changed returns a copy of the indices in at, with another value on one axis.
func changed(at []int, axis, value int) []int {
	at = slices.Clone(at)
	at[axis] = value
	return at
}

// seen reports whether a configuration with this value was measured.
func (s *search) seen(axis, value int) bool {
	return slices.ContainsFunc(s.candidates, func(c candidate) bool {
		return c.at[axis] == value && (s.failed[c.is] != "" || s.point(c.is) != nil)
	})
}

// continues reports whether a value of an axis is worth a trial after those before it. More micro-batches
// take less memory and more time: if a number of them is no better than the number before it, larger
// numbers are not worth a trial.
func (s *search) continues(axis, value int) bool {
	parts := func(i int) int {
		if i < 1 {
			return 0
		}
		return s.axes[axis][i-1].MicroBatches
	}
	if parts(value) == 0 || parts(value-1) == 0 {
		return true
	}
	last, ok := s.bestWith(axis, value-1)
	if !ok {
		return true // it failed, perhaps for lack of memory
	}
	before := value - 2
	if parts(before) == 0 {
		before = 0
	}
	earlier, ok := s.bestWith(axis, before)
	return !ok || s.compare(last, earlier) < 0
}

// bestWith returns the best point with a value of an axis.
func (s *search) bestWith(axis, value int) (best Point, ok bool) {
	for _, p := range s.points {
		if p.at[axis] == value && (!ok || s.compare(p, best) < 0) {
			best, ok = p, true
		}
	}
	return best, ok
}

// amounts returns the amount of a configuration that the goal bounds, its limit, and the amount to minimize.
func (s *search) amounts(ratio, peak float64) (bounded, limit, minimized float64) {
	switch {
	case s.goal.Step != 0:
		return ratio, s.goal.Step.Seconds() / s.plainStep(), peak
	case s.goal.Budget != 0:
		return peak, float64(s.goal.Limit()), ratio
	}
	return 0, 0, ratio * peak
}

// compare orders two points: those that reach the goal by the amount to minimize, before others by how near
// they are.
func (s *search) compare(a, b Point) int {
	cost := func(p Point) (missed, minimized float64) {
		bounded, limit, minimized := s.amounts(p.ratio, float64(p.Peak))
		if bounded > limit {
			return bounded, 0
		}
		return 0, minimized
	}
	missedA, costA := cost(a)
	missedB, costB := cost(b)
	return cmp.Or(cmp.Compare(missedA, missedB), cmp.Compare(costA, costB))
}

// same is the relative difference that is ignored in favour of fewer changes. The results of two
// searches differ by about as much.
const same = 0.05

// best returns the point that the goal selects, with the fewest changes among those that are about as
// good. If none reaches the goal, it returns the one that comes closest.
func (s *search) best() (best Point, reached bool) { return s.among(s.points) }

func (s *search) among(points []Point) (best Point, reached bool) {
	best = slices.MinFunc(points, s.compare)
	bounded, limit, least := s.amounts(best.ratio, float64(best.Peak))
	if bounded > limit {
		return best, false
	}
	near := slices.DeleteFunc(slices.Clone(points), func(p Point) bool {
		bounded, limit, minimized := s.amounts(p.ratio, float64(p.Peak))
		return bounded > limit || minimized > least*(1+same)
	})
	return slices.MinFunc(near, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Configuration.changes(), b.Configuration.changes()), s.compare(a, b))
	}), true
}

// choice returns the point to choose: the default, unless it misses the goal or another point is better
// than it in all trials of both. The extremes of more trials are wider, so the default needs at least as
// many trials as that point.
func (s *search) choice() (best Point, reached bool) {
	plain := s.point(Configuration{})
	if plain == nil {
		return s.best()
	}
	if bounded, limit, _ := s.amounts(plain.ratio, float64(plain.Peak)); bounded > limit {
		return s.best()
	}
	better := []Point{*plain}
	for _, p := range s.points {
		_, _, worst := s.amounts(p.high, float64(p.Peak))
		_, _, least := s.amounts(plain.low, float64(plain.PeakLow))
		if worst < least && plain.Trials >= p.Trials {
			better = append(better, p)
		}
	}
	if best, reached = s.among(better); best.Configuration.Plain() && len(better) > 1 {
		return s.among(better[1:]) // the default is within same of the best, and yet worse in all trials
	}
	return best, reached
}

// enoughTrials is the number of trials of the choice and of the default.
const enoughTrials = 3

// repeat returns a configuration whose trial is worth repeating: the best one or the choice, which may
// differ. The default is repeated before each of them, so that chance favours neither.
func (s *search) repeat() (c Configuration, ok bool) {
	if len(s.points) == 0 {
		return c, false
	}
	best, _ := s.best()
	choice, _ := s.choice()
	for _, p := range []Point{best, choice} {
		if plain := s.point(c); plain != nil && plain.Trials < min(p.Trials+1, enoughTrials) {
			return c, true
		}
		if p.Trials < enoughTrials {
			return p.Configuration, true
		}
	}
	return c, false
}

// tie is the relative difference below which two times or two peaks count as equal.
const tie = 0.02

// faster orders points by time, then by peak.
func faster(a, b Point) int {
	return cmp.Or(cmp.Compare(a.ratio, b.ratio), cmp.Compare(a.Peak, b.Peak))
}

// front returns the points for which no other one is both faster and smaller, fastest first.
func front(points []Point) (front []Point) {
	for _, p := range slices.SortedFunc(slices.Values(points), faster) {
		n := len(front)
		switch {
		case n > 0 && float64(p.Peak) > (1-tie)*float64(front[n-1].Peak):
		case n > 0 && p.ratio < (1+tie)*front[n-1].ratio:
			front[n-1] = p
		default:
			front = append(front, p)
		}
	}
	return front
}
