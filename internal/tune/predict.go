package tune

import (
	"math"

	"gonum.org/v1/gonum/stat"

	"steadyfit/memory"
)

// prediction has the expected peak of a candidate, and its expected time relative to plain steps.
// spread is the expected error of their logarithms.
type prediction struct {
	ratio, peak    float64
	opened, spread float64
}

func (p prediction) fastest() float64 { return p.ratio * math.Exp(-p.spread) }

// smallest returns the least expected peak. The memory of the opened session has no error.
func (p prediction) smallest() float64 { return p.opened + (p.peak-p.opened)*math.Exp(-p.spread) }

// effect is the change of the logarithms of the time and of the memory of steps.
type effect struct{ time, memory float64 }

func (e effect) plus(o effect, sign float64) effect {
	return effect{e.time + sign*o.time, e.memory + sign*o.memory}
}

// steps returns the memory that steps add to the opened session.
func (s *search) steps(peak memory.Bytes) float64 { return float64(max(peak-s.opened, memory.MiB)) }

// between returns the effect of changing from one point to another.
func (s *search) between(from, to point) effect {
	return effect{math.Log(to.ratio / from.ratio), math.Log(s.steps(to.peak) / s.steps(from.peak))}
}

// predict predicts a candidate from the nearest points and the effects of the axes on which it differs.
// ok is false if an effect is unknown. A setting has another effect on steps with cached features than
// on other steps. The effect on other steps counts only until the effect on steps with cached features
// was measured.
func (s *search) predict(c candidate) (_ prediction, ok bool) {
	nearest := math.MaxInt
	var sum effect
	n := 0.0
	for _, p := range s.points {
		d := c.distance(p.candidate)
		if d > nearest || p.is.CachedFeatures != c.is.CachedFeatures {
			continue
		}
		e := effect{math.Log(p.ratio), math.Log(s.steps(p.peak))}
		known := true
		for axis, value := range c.at {
			if value == p.at[axis] {
				continue
			}
			to, ok1 := s.likely(axis, value, c.is.CachedFeatures)
			from, ok2 := s.likely(axis, p.at[axis], c.is.CachedFeatures)
			known = known && ok1 && ok2
			e = e.plus(to, 1).plus(from, -1)
		}
		if !known {
			continue
		}
		if d < nearest {
			nearest, sum, n = d, effect{}, 0
		}
		sum, n = sum.plus(e, 1), n+1
	}
	if n == 0 {
		return prediction{}, false
	}
	return prediction{
		ratio: math.Exp(sum.time / n), peak: float64(s.opened) + math.Exp(sum.memory/n),
		opened: float64(s.opened), spread: slack * float64(nearest),
	}, true
}

// likely returns the effect of a value on steps with or without cached features or, if it is
// unknown, the effect on the other kind of steps.
func (s *search) likely(axis, value int, cached bool) (e effect, ok bool) {
	if e, ok = s.effect(axis, value, cached); !ok {
		e, ok = s.effect(axis, value, !cached)
	}
	return e, ok
}

// effect returns the effect of a value of an axis, compared with plain steps: the mean over all
// pairs of points, with or without cached features, that differ only by it. The effect of a number
// of micro-batches without such a pair is interpolated from the other numbers (onLine).
func (s *search) effect(axis, value int, cached bool) (e effect, ok bool) {
	key := effectKey{axis, value, cached}
	k, found := s.effects[key]
	if !found {
		k.effect, k.ok = s.estimate(key)
		s.effects[key] = k
	}
	return k.effect, k.ok
}

func (s *search) estimate(key effectKey) (e effect, ok bool) {
	axis, value := key.axis, key.value
	if value == 0 {
		return effect{}, true
	}
	n := 0.0
	for _, with := range s.points {
		if with.at[axis] != value {
			continue
		}
		for _, without := range s.points {
			same := with.is.CachedFeatures == key.cached && without.is.CachedFeatures == key.cached
			if same && without.at[axis] == 0 && with.distance(without.candidate) == 1 {
				e, n = e.plus(s.between(without, with), 1), n+1
			}
		}
	}
	if n > 0 {
		return effect{e.time / n, e.memory / n}, true
	}
	if axis == 0 && s.axes[0][value-1].MicroBatches > 1 {
		return s.onLine(float64(s.axes[0][value-1].MicroBatches))
	}
	return effect{}, false
}

// onLine returns the effect of a number of micro-batches without settings. The time is linear in
// the number, and the memory of steps is linear in the size of a micro-batch.
func (s *search) onLine(parts float64) (effect, bool) {
	origin := s.candidates[0]
	var number, size, times, memories []float64
	for _, p := range s.points {
		if d := p.distance(origin); d > 1 || d == 1 && p.is.MicroBatches < 2 {
			continue
		}
		k := math.Max(float64(p.is.MicroBatches), 1)
		number, size = append(number, k), append(size, 1/k)
		times, memories = append(times, p.ratio), append(memories, s.steps(p.peak))
	}
	if len(number) < 2 {
		return effect{}, false
	}
	time, bytes := line(number, times, parts), line(size, memories, 1/parts)
	wholeTime, wholeBytes := line(number, times, 1), line(size, memories, 1)
	if plain := s.point(origin.is); plain != nil {
		wholeTime, wholeBytes = plain.ratio, s.steps(plain.peak)
	}
	if min(time, bytes, wholeTime, wholeBytes) <= 0 {
		return effect{}, false
	}
	return effect{math.Log(time / wholeTime), math.Log(bytes / wholeBytes)}, true
}

// line returns the value at x of the line with the least squares.
func line(xs, ys []float64, x float64) float64 {
	level, slope := stat.LinearRegression(xs, ys, nil, false)
	return level + slope*x
}
