package memory

import (
	"fmt"
	"slices"
)

// retained judges the memory less what malloc holds free, where that is sampled. glibc's
// malloc fragments: under TensorFlow without oneDNN its free memory swings by tens of MiB
// from step to step, and creeps up for hundreds of steps although nothing is held.
//
// If memory surely grows but the swings hide its shape, it is a leak if the rest grows
// like one. If they alone leave a verdict open, and what malloc has handed out does not
// grow, the verdict is that on the rest. Its slope is Net. malloc counts address space as
// free: after a trim, not all of it is resident.
func (s *Series) retained(v Verdict, c Criteria) Verdict {
	if v.Layer != Anon && v.Layer != RSS || v.NoiseFloor == 0 {
		return v
	}
	x, y := s.points(v.Layer, c.Per)
	freeAt, free := s.points(MallocFree, c.Per)
	usedAt, used := s.points(MallocUsed, c.Per)
	if !slices.Equal(x, freeAt) || !slices.Equal(x, usedAt) {
		return v
	}
	for i := range y {
		y[i] -= free[i]
	}
	w := judge(x, y, c)
	from, _ := searchFloat(x, v.From)
	handedOut := slopeOf(x[from:], used[from:], c)
	if handedOut.High <= v.tolerated() {
		v.Net = &w.Slope
	}
	grows := v.Slope.Low > float64(c.Budget)
	switch {
	case v.Kind != Inconclusive:
		return v
	case grows && w.Kind == Leak && handedOut.Low > float64(c.Budget):
	case !grows && v.Net != nil && (w.Kind == Flat || w.Kind == Plateau || w.Kind == Jump):
	default:
		return v
	}
	w.Net = v.Net
	w.Notes = append(w.Notes, fmt.Sprintf("what malloc holds free was left out; with it, the slope is %s", perUnit(v.Layer, v.Slope, v.Per)))
	return w
}

// tolerated is the slope that is taken for none: the budget, or 1 MiB in the judged part.
func (v Verdict) tolerated() float64 {
	if v.Budget > 0 || v.To <= v.From {
		return float64(v.Budget)
	}
	return float64(MiB) / (v.To - v.From)
}
