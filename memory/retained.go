package memory

import (
	"fmt"
	"slices"
)

// retained judges the memory less what malloc holds free, where that is sampled. glibc's
// malloc fragments: under TensorFlow without oneDNN its free memory swings by tens of MiB
// from step to step, and creeps up for hundreds of steps although nothing is held.
//
// Growth beyond doubt whose form such swings hide is a leak if that memory shows one. A
// verdict that is inconclusive because of them becomes that of the memory without them, if
// what malloc has handed out does not grow. Then Net is its slope.
func (s *Series) retained(v *Verdict, c Criteria) {
	if v.Layer != Anon && v.Layer != RSS || v.NoiseFloor == 0 {
		return
	}
	x, y := s.points(v.Layer, c.Per)
	freeAt, free := s.points(MallocFree, c.Per)
	usedAt, used := s.points(MallocUsed, c.Per)
	if !slices.Equal(x, freeAt) || !slices.Equal(x, usedAt) {
		return
	}
	for i := range y {
		y[i] -= free[i]
	}
	w := judge(x, y, c)
	from, _ := searchFloat(x, v.From)
	tolerance := float64(c.Budget)
	if tolerance == 0 {
		tolerance = float64(MiB) / (v.To - v.From)
	}
	handedOut := slopeOf(x[from:], used[from:], c)
	if handedOut.High <= tolerance {
		v.Net = &w.Slope
	}
	grows := v.Slope.Low > float64(c.Budget)
	switch {
	case v.Kind != Inconclusive:
		return
	case grows && w.Kind == Leak && handedOut.Low > float64(c.Budget):
	case !grows && v.Net != nil && (w.Kind == Flat || w.Kind == Plateau || w.Kind == Jump):
	default:
		return
	}
	v.Notes = append(v.Notes, fmt.Sprintf("with what malloc holds free, which was left out, it moves by %s", perUnit(v.Layer, v.Slope, v.Per)))
	v.Kind, v.Slope, v.NoiseFloor, v.Reason, v.More = w.Kind, w.Slope, w.NoiseFloor, "", 0
}
