package compare

import (
	"cmp"
	"fmt"
	"slices"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// Trimmed adds Verdict.Kept and a note to a verdict with growth. closed is a sample after all sessions and
// tensors were closed; trimmed is a sample after a trim of the allocator that followed. Without the
// judged layer in both samples, the verdict is unchanged.
//
// If at least half of the growth remained after closing and the trim returned it, the cause is
// retention, unless another cause is known. If the trim returned less, the rest is in pools that a
// trim does not reach, or was not released.
func Trimmed(v memory.Verdict, closed, trimmed *memory.Sample) memory.Verdict {
	a, b := closed.Get(v.Layer), trimmed.Get(v.Layer)
	rose := v.Kind == memory.Leak || v.Kind == memory.Jump || v.Kind == memory.Plateau || v.Kind == memory.Inconclusive &&
		v.Slope.Low > 0
	if !a.OK || !b.OK || !rose || v.Level <= v.Start {
		return v
	}
	growth, left, back := float64(v.Level-v.Start), float64(a.Bytes-v.Start), float64(a.Bytes-b.Bytes)
	v.Kept = &memory.Kept{Closed: a.Bytes - v.Start, Trimmed: b.Bytes - v.Start}
	amount := func(n float64) string { return memlayer.Amount(v.Layer, n) }
	var note string
	switch {
	case left < growth/2:
		note = fmt.Sprintf("closing everything released most of the growth of %s: %s remained above the start",
			amount(growth), amount(max(left, 0)))
	case back >= growth/2:
		if v.Cause == "" || v.Cause == memlayer.Unattributed || v.Cause == memlayer.Retention {
			v.Cause, v.Carrier = memlayer.Retention, cmp.Or(v.Carrier, v.Layer)
		}
		note = fmt.Sprintf("after closing everything, %s of the growth of %s remained, and a trim returned %s: malloc had "+
			"retained freed memory", amount(left), amount(growth), amount(back))
	default:
		note = fmt.Sprintf("after closing everything, %s of the growth of %s remained, and a trim returned only %s: the "+
			"rest is in pools that a trim does not reach, or was not released",
			amount(left), amount(growth), amount(max(back, 0)))
	}
	v.Notes = append(slices.Clone(v.Notes), note)
	return v
}
