package budget

import (
	"context"

	"steadyfit/fit"
	"steadyfit/internal/contract"
	"steadyfit/memory"
)

// measure is a way to make headroom in the process. Cheaper measures come first.
type measure int

const (
	measureNone measure = iota
	measureTrim
	measureUnmap
	measurePrefetch
	measureSplit
	measureReload
	measuresEnd
)

// String returns the name of the measure's event.
func (m measure) String() string {
	return [...]string{"none", "trim", "unmap", "prefetch", "microbatch", "reload", "end"}[m]
}

const (
	// If a measure is needed again within this number of steps, it did not help.
	soon = 16
	// firstBackoff is the first number of steps for which too little headroom is tolerated. It
	// doubles each time that no measure helps.
	firstBackoff = 2 * peakEvery
)

// ladder records the measures that were taken, and decides when to take the next one.
type ladder struct {
	last     measure
	lastStep int64
	// Too little headroom is tolerated until step idle, or until half of the remaining headroom is
	// used up. backoff is the number of steps for which it is tolerated next time. tight is the
	// level of memory at which no measure helped; 0 if there is headroom.
	idle, backoff int64
	tight         memory.Bytes
}

func (l *ladder) first(step int64) measure {
	if step-l.lastStep > l.backoff {
		l.backoff = firstBackoff
	}
	if l.last == measureNone || step-l.lastStep > soon {
		return measureTrim
	}
	// Reducing the prefetched batches and splitting can be repeated.
	if l.last == measureTrim || l.last == measureUnmap || l.last == measureReload {
		return l.last + 1
	}
	return l.last
}

func (l *ladder) took(m measure, step int64) { l.last, l.lastStep = m, step }

func (l *ladder) tolerate(step int64, level memory.Bytes) {
	l.idle, l.tight = step+l.backoff, level
	l.backoff *= 2
}

// tolerates reports whether a level of memory is tolerated at a step. most is the highest level at
// which a step fits.
func (l *ladder) tolerates(step int64, level, most memory.Bytes) bool {
	return step < l.idle && level <= l.tight+(most-l.tight)/2
}

// grew reports whether the level has grown since the last time that no measure helped.
func (l *ladder) grew(level, noise memory.Bytes) bool { return l.tight > 0 && level > l.tight+noise }

func (e *enforcer) act(ctx context.Context, s *fit.State, level memory.Bytes) error {
	e.then, e.exploring = nil, nil
	helps := false
	for m := e.taken.first(s.Step); m < measuresEnd && !helps; m++ {
		if m == measureReload && !e.reloadFits() {
			e.taken.took(m, s.Step)
			continue
		}
		var err error
		if helps, err = e.take(ctx, s, m, level); err != nil {
			return err
		}
		if helps || m == measureReload {
			e.taken.took(m, s.Step)
		}
	}
	if e.chosen.Parts == 0 {
		e.chosen = e.plan()
	}
	e.watch.restart()
	if !helps {
		return e.lastResort(s, level)
	}
	e.taken.tight = 0
	e.log.Info("memory budget: "+e.taken.last.String(), "step", s.Step, "before", level, "now", e.watch.level(), "parts", e.session.MicroBatches(), "prefetch", e.ahead(), "budget", e.Limit)
	return nil
}

func (e *enforcer) take(ctx context.Context, s *fit.State, m measure, level memory.Bytes) (helps bool, err error) {
	switch m {
	case measureTrim:
		helps = e.watch.trim() && e.watch.headroom()
	case measureUnmap:
		helps = e.unmap()
	case measurePrefetch:
		return e.reducePrefetch(s), nil
	case measureSplit:
		helps, err = e.split()
	case measureReload:
		helps, err = e.reload(ctx, s, level)
	}
	if err == nil && (helps || m == measureReload) {
		s.CountEvent(m.String())
	}
	return helps, err
}

// restoreThreshold lets malloc retain blocks after the run.
func (e *enforcer) restoreThreshold() {
	if e.unmaps && e.watch.unmapFrom(unmapHuge) == nil {
		e.unmaps = false
	}
}

// unmap undoes retain, and reports whether there is headroom afterwards.
func (e *enforcer) unmap() bool {
	if !e.retained || e.unmaps || e.watch.unmapFrom(unmapLarge) != nil {
		return false
	}
	e.unmaps = true
	e.watch.trim()
	e.watch.changed(e.beyondUnmapped)
	return e.watch.headroom()
}

// reducePrefetch lowers the number of prefetched batches so that steps fit. It returns false if no
// number suffices, or if the next steps do not fit while the batches are used up.
func (e *enforcer) reducePrefetch(s *fit.State) bool {
	needed, present := e.watch.level().Bytes+e.watch.above, e.ahead()
	if needed > e.Limit {
		return false
	}
	for ahead := present; ahead > 0; {
		ahead /= 2
		if needed-memory.Bytes(present-ahead)*e.aheadBytes() <= e.watch.free() {
			e.prefetchLess(s, ahead, func() error { return nil })
			e.watch.near = peakEvery
			return true
		}
	}
	return false
}

func (e *enforcer) split() (bool, error) {
	if !e.splits() {
		return false, nil
	}
	for parts := e.session.MicroBatches(); parts < e.Batch; {
		more := min(2*parts, e.Batch)
		if err := e.shrink(parts, more); err != nil {
			return false, err
		}
		if e.watch.headroom() {
			return true, nil
		}
		if e.watch.level().Bytes > e.watch.free() {
			return false, nil // the level alone exceeds the limit
		}
		parts = more
	}
	return false, nil
}

// shrink sets more micro-batches. Until the memory of a step is measured, it is assumed to be
// proportional to the samples of a micro-batch.
func (e *enforcer) shrink(from, to int) error {
	e.watch.changed(e.watch.above * memory.Bytes(partSize(e.Batch, to)) / memory.Bytes(partSize(e.Batch, from)))
	return e.session.SetMicroBatches(to)
}

// reloadFits reports whether a reload fits in memory. It needs the variables of the snapshot,
// which may be a copy, and those of the loaded model.
func (e *enforcer) reloadFits() bool {
	level, twice := e.watch.level().Bytes, 2*e.session.variableBytes()
	if level+twice <= e.Limit {
		return true
	}
	e.log.Info("memory budget: no headroom to reload the model", "now", level, "needed", level+twice, "budget", e.Limit)
	return false
}

func (e *enforcer) reload(ctx context.Context, s *fit.State, level memory.Bytes) (bool, error) {
	did, err := e.session.reset(context.WithoutCancel(ctx), contract.ResetReload) // an interrupt must not lose a step
	if err != nil {
		return false, err
	}
	s.ResetBy(contract.ResetReload, did.Returned, did.Took)
	if peak := e.watch.level().Bytes + e.watch.beyond(); peak > max(e.Limit, level) {
		e.over(s, peak)
	}
	e.watch.settling, e.watch.near = 1, peakEvery
	return e.watch.headroom(), nil
}
