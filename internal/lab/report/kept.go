package report

import (
	"cmp"
	"fmt"
	"slices"

	"steadyfit/internal/lab/cell"
	"steadyfit/matrix"
	"steadyfit/memory"
)

// heldWorth is how much more than before the first step must be held after
// everything was closed for a workload to be said to keep it: less is what a library
// needs once.
const heldWorth = 64 * memory.MiB

// kept is a workload that does not grow, and that holds most of what it took after
// everything was closed.
type kept struct {
	answer
	loaded, level, closed memory.Bytes
	trimmed               *int64
	// back are cells with which at least a fifth less is held after the close and a
	// fifth of what was held in the loop comes back, the least held first; fewer
	// those that took less to begin with. alittle are those that hold less, but not
	// by as much; same are those that are meant for that and leave it as it is, unseen
	// those of them that may not have been in force. Cells that make a step do less are
	// in none.
	back, fewer, alittle, same, unseen []*matrix.Cell
	// compared counts the cells that tell the ratio.
	compared int
}

// keeps are the workloads that keep their memory, what holds most first, variants of
// others last.
func (v *view) keeps(all []answer) []kept {
	var list []kept
	for _, a := range all {
		if a.growth == grows || a.growth == dies || a.base == nil {
			continue
		}
		f := a.base.Figures
		if f.Loaded == nil || f.Level == nil || f.Closed == nil {
			continue
		}
		k := kept{answer: a, loaded: memory.Bytes(*f.Loaded), level: memory.Bytes(*f.Level), closed: memory.Bytes(*f.Closed), trimmed: f.Trimmed}
		if k.held() < heldWorth || 2*k.held() < k.level-k.loaded {
			continue
		}
		for _, m := range v.remedies {
			c := v.cell(a.runtime, a.workload.ID, m.ID)
			if c == nil || c.Comparison == nil || !c.Comparison.Reset.OK || v.lessWork(m.ID) {
				continue
			}
			k.compared++
			switch c.Comparison.Reset.Effect {
			case memory.Works:
				if f := c.Figures; f.Level != nil && f.Closed != nil && 5**f.Closed <= 4**f.Level {
					k.back = append(k.back, c)
				} else {
					k.fewer = append(k.fewer, c)
				}
			case memory.Partly:
				k.alittle = append(k.alittle, c)
			case memory.NoEffect:
				switch {
				case m.Goal != memory.LowerReset:
				case c.Unverified != "":
					k.unseen = append(k.unseen, c)
				default:
					k.same = append(k.same, c)
				}
			}
		}
		for _, list := range [][]*matrix.Cell{k.back, k.fewer, k.alittle} {
			slices.SortStableFunc(list, byReset)
		}
		list = append(list, k)
	}
	slices.SortStableFunc(list, func(x, y kept) int {
		return cmp.Or(cmp.Compare(min(len(x.workload.Like), 1), min(len(y.workload.Like), 1)), cmp.Compare(y.held(), x.held()))
	})
	return list
}

func (k kept) held() memory.Bytes { return k.closed - k.loaded }

func byReset(x, y *matrix.Cell) int {
	return cmp.Compare(x.Comparison.Reset.Estimate, y.Comparison.Reset.Estimate)
}

// course is what was held at the turning points, in a sentence.
func (k kept) course() string {
	text := fmt.Sprintf("%s before the first step, %s in the loop, %s after everything was closed", k.loaded, k.level, k.closed)
	if k.trimmed != nil {
		text += fmt.Sprintf(", %s after malloc_trim in addition", size(k.trimmed))
	}
	return text + "."
}

// bypass is the variable that makes TensorFlow's CPU kernels allocate from malloc
// rather than from their pool (tensorflow/core/common_runtime/mkl_cpu_allocator.h).
const bypass = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"

// keeper says which allocator keeps the memory, as far as malloc's own figures and
// TensorFlow's tell.
func (v *view) keeper(k kept) string {
	stays := func(layer memory.Layer) (memory.Bytes, bool) {
		before, after := v.phaseOf(k.base, cell.PhaseLoaded, layer), v.phaseOf(k.base, cell.PhaseClosed, layer)
		return after.Bytes, before.OK && after.OK && 2*(after.Bytes-before.Bytes) >= k.held()
	}
	used, inUse := stays(memory.MallocUsed)
	free, idle := stays(memory.MallocFree)
	pool := k.base.Figures.Pool
	without := slices.IndexFunc(k.back, func(c *matrix.Cell) bool { return v.remedy[c.Remedy].Env[bypass] != "" })
	var text string
	switch {
	case pool != nil && 2*memory.Bytes(*pool) >= k.held():
		text = fmt.Sprintf("Memory is freed and kept by its allocator, TensorFlow's pool, from which a step takes up to %s", size(pool))
	case idle && !inUse:
		return fmt.Sprintf("Memory is freed and kept by its allocator: malloc counts %s as free.", free)
	case without >= 0:
		text = "Memory is freed and kept by its allocator, TensorFlow's pool: without the pool it comes back"
	case inUse:
		text = "TensorFlow keeps it, in a pool or in a cache"
	default:
		return "No figure tells who keeps it."
	}
	if inUse {
		text += fmt.Sprintf("; malloc, below it, still counts %s as handed out", used)
		if free > 0 {
			text += fmt.Sprintf(" and %s as free", free)
		}
	}
	return text + "."
}

// afterClose says what it costs to hold less after the close, and how much less a trim
// leaves: "45.0 MiB after malloc_trim; step time ×2.16".
func (v *view) afterClose(c *matrix.Cell) string {
	return orEmptyIf(trimsTo(c) != "", trimsTo(c)+"; ") + v.cost(c)
}

// trimsTo is what malloc_trim leaves after the close, if that is less than half.
func trimsTo(c *matrix.Cell) string {
	if t := c.Figures.Trimmed; t != nil && c.Figures.Closed != nil && 2**t < *c.Figures.Closed {
		return size(t) + " after malloc_trim"
	}
	return ""
}

// keptLead is the one sentence about what stays after the close on a runtime; empty
// if nothing does.
func (v *view) keptLead(list []kept) string {
	if len(list) == 0 {
		return ""
	}
	k := list[0]
	amount := "next to nothing"
	if 10*(k.level-k.closed) > k.level {
		amount = "little"
	}
	text := fmt.Sprintf("On %s closing everything returns %s of %s: %s in the loop, %s after it", k.runtime, amount, k.workload.ID, k.level, k.closed)
	switch {
	case len(k.back) > 0:
		c := k.back[0]
		text += fmt.Sprintf("; with “%s” %s", v.title(c.Remedy), size(c.Figures.Closed))
		if left := trimsTo(c); left != "" {
			text += ", and " + left
		}
		if t := c.Comparison.StepTime; t.OK {
			text += ", at step time " + times(t, false)
		}
	case k.compared > 0:
		text += "; no setting that was tried brings it back"
	}
	var others []string
	for i, o := range list[1:] {
		if n := len(list) - 1 - i; i == 3 && n > 1 {
			others = append(others, fmt.Sprintf("%d more", n))
			break
		}
		others = append(others, o.workload.ID)
	}
	if len(others) > 0 {
		text += fmt.Sprintf(". Most of %s stays, too", and(others))
	}
	return text + "."
}

// unlimited is what a workload that dies takes without the limit, from the one that
// it is a variant of, to set the cost of surviving against; empty if that was not
// measured.
func (v *view) unlimited(a answer) string {
	like, ok := v.workload[a.workload.Like]
	if !ok || limitOf(like, a.runtime) > 0 || v.Settings.Limit > 0 {
		return ""
	}
	c := v.cell(a.runtime, like.ID, matrix.Baseline)
	if c == nil || c.Figures.Peak == nil || c.Figures.StepTime == nil {
		return ""
	}
	return fmt.Sprintf("Without the limit (%s): peak %s; %s per step.", like.ID, size(c.Figures.Peak), duration(c.Figures.StepTime))
}

// limitOf is the memory in bytes that a run of a workload may use on a runtime; 0 is
// no limit.
func limitOf(w matrix.Workload, runtime string) int64 {
	return cmp.Or(w.On[runtime].Limit, w.Limit)
}
