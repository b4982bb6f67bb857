package report

import (
	"cmp"
	"fmt"
	"slices"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

// heldWorth is the minimum increase of memory, from before the first step to after close, for which
// a workload is listed. Loading a library increases memory by less.
const heldWorth = 64 * memory.MiB

// mostKept is the maximum number of listed workloads on a page. mostReturns is the maximum number
// of remedies for each.
const mostKept, mostReturns = 6, 4

// kept is a workload without growth that holds most of its memory after everything was closed.
type kept struct {
	answer
	loaded, level, closed memory.Bytes
	trimmed               *int64
	// back has remedies with at least a fifth less memory after close than without the remedy, and
	// than in the loop. fewer has remedies that also have less memory in the loop. alittle has
	// remedies with slightly less memory after close. same has remedies that are meant to return
	// memory but change nothing, and unseen has such remedies that may not have been applied.
	// Remedies whose steps do less work are in no list. The lists are sorted by the memory after
	// close, the smallest first.
	back, fewer, alittle, same, unseen []*matrix.Combination
	// Compared is the number of remedies whose memory after close could be compared.
	Compared int
}

// keeps returns the workloads that hold their memory, the largest amount first. Variants of
// other workloads come last.
func (v *view) keeps(all []answer) []kept {
	var list []kept
	for _, a := range all {
		if a.Grows() || a.Crashes() || a.Base == nil {
			continue
		}
		f := a.Base.Figures
		if f.Loaded == nil || f.Level == nil || f.Closed == nil {
			continue
		}
		k := kept{answer: a, loaded: memory.Bytes(*f.Loaded), level: memory.Bytes(*f.Level), closed: memory.Bytes(*f.Closed),
			trimmed: f.Trimmed}
		if k.held() < heldWorth || 2*k.held() < k.level-k.loaded {
			continue
		}
		for _, m := range v.remedies {
			if c := v.combination(a.Runtime, a.Workload.ID, m.ID); c != nil && c.Comparison != nil && c.Comparison.Reset.OK &&
				!v.lessWork(m.ID) {
				k.add(c, m.Goal)
			}
		}
		for _, list := range [][]*matrix.Combination{k.back, k.fewer, k.alittle} {
			slices.SortStableFunc(list, func(x, y *matrix.Combination) int {
				return cmp.Compare(x.Comparison.Reset.Estimate, y.Comparison.Reset.Estimate)
			})
		}
		list = append(list, k)
	}
	slices.SortStableFunc(list, func(x, y kept) int {
		return cmp.Or(cmp.Compare(min(len(x.Workload.Like), 1), min(len(y.Workload.Like), 1)),
			cmp.Compare(y.held(), x.held()))
	})
	return list
}

func (k *kept) add(c *matrix.Combination, goal compare.Goal) {
	k.Compared++
	to := &k.alittle
	switch f := c.Figures; c.Comparison.Reset.Effect {
	case compare.Works:
		to = &k.fewer
		if f.Level != nil && f.Closed != nil && 5**f.Closed <= 4**f.Level {
			to = &k.back
		}
	case compare.Partly:
	case compare.NoEffect:
		if goal != compare.LowerReset {
			return
		}
		to = &k.same
		if c.Unverified != "" {
			to = &k.unseen
		}
	default:
		return
	}
	*to = append(*to, c)
}

func (k kept) held() memory.Bytes { return k.closed - k.loaded }

// Figure returns the memory that is held after close, and Of a text that compares it with the
// memory in the loop.
func (k kept) Figure() string { return k.closed.String() }
func (k kept) Of() string     { return fmt.Sprintf("held after the close, of %s in the loop", k.level) }

// KeptLines returns the lines with the remedies, by the amount of memory that they return.
func (v *view) KeptLines(k kept) []line {
	back := v.line("works", "✓ Comes back", "It comes back ", green, k.back, mostReturns,
		func(c *matrix.Combination) (string, string) {
			return "to " + size(c.Figures.Closed) + " with", v.afterClose(c)
		})
	if len(k.back) == 0 {
		back.Label, back.Note, back.color = "Comes back", "No setting that was tried brings it back.", yellow
		if k.Compared == 0 {
			back.Note = "no setting was compared"
		}
	}
	lines := []line{back,
		v.line("works", "✓ Less is taken", "Less is taken to begin with: ", "", k.fewer, mostReturns,
			func(c *matrix.Combination) (string, string) {
				return size(c.Figures.Closed) + " with", v.afterClose(c)
			}),
		v.names("partly", "◐ A little less", "A little less with ", "", k.alittle),
		v.names("none", "= As much", "As much with ", "", k.same),
		v.unseenLine(k.unseen),
	}
	return slices.DeleteFunc(lines, line.empty)
}

// Course describes the memory between the phases of a run in one sentence.
func (k kept) Course() string {
	text := fmt.Sprintf("%s before the first step, %s in the loop, %s after everything was closed", k.loaded, k.level,
		k.closed)
	if k.trimmed != nil {
		text += fmt.Sprintf(", %s after malloc_trim in addition", size(k.trimmed))
	}
	return text + "."
}

// bypass is the variable that makes TensorFlow's CPU kernels allocate from malloc instead of
// their pool (tensorflow/core/common_runtime/mkl_cpu_allocator.h).
const bypass = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"

// Keeper names the allocator that holds the memory.
func (v *view) Keeper(k kept) string {
	stays := func(layer memory.Layer) (memory.Bytes, bool) {
		before, after := v.phase(k.Base, worker.PhaseLoaded, layer), v.phase(k.Base, worker.PhaseClosed, layer)
		return after.Bytes, before.OK && after.OK && 2*(after.Bytes-before.Bytes) >= k.held()
	}
	used, inUse := stays(memory.MallocUsed)
	free, idle := stays(memory.MallocFree)
	pool := k.Base.Figures.Pool
	without := slices.IndexFunc(k.back, func(c *matrix.Combination) bool { return v.remedy[c.Remedy].Env[bypass] != "" })
	var text string
	switch {
	case pool != nil && 2*memory.Bytes(*pool) >= k.held():
		text = fmt.Sprintf("TensorFlow's pool keeps freed memory; a step takes up to %s from it", size(pool))
	case idle && !inUse:
		return fmt.Sprintf("malloc keeps %s of freed memory.", free)
	case without >= 0:
		text = "TensorFlow's pool keeps freed memory: without the pool it comes back"
	case inUse:
		text = "TensorFlow keeps it, in a pool or in a cache"
	default:
		return "No figure shows which allocator keeps it."
	}
	if inUse {
		text += fmt.Sprintf("; malloc, from which the pool takes its memory, counts %s as in use", used)
		if free > 0 {
			text += fmt.Sprintf(" and %s as free", free)
		}
	}
	return text + "."
}

// afterClose describes the effect of a trim and the cost: "45.0 MiB after malloc_trim; step
// time ×2.16".
func (v *view) afterClose(c *matrix.Combination) string {
	if left := trimsTo(c); left != "" {
		return left + "; " + v.Cost(c)
	}
	return v.Cost(c)
}

func trimsTo(c *matrix.Combination) string {
	if t := c.Figures.Trimmed; t != nil && c.Figures.Closed != nil && 2**t < *c.Figures.Closed {
		return size(t) + " after malloc_trim"
	}
	return ""
}
