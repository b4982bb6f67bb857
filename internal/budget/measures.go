package budget

import (
	"context"
	"fmt"

	"steadyfit/fit"
	"steadyfit/internal/contract"
	"steadyfit/memory"
)

// measure is a way to make headroom in the process. Cheaper measures come first.
type measure int

const (
	measureNone measure = iota
	measureTrim
	measureSplit
	measureReload
)

// String returns the name of the measure's event.
func (m measure) String() string { return [...]string{"none", "trim", "microbatch", "reload"}[m] }

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

// first returns the first measure to try at a step.
func (l *ladder) first(step int64) measure {
	if step-l.lastStep > l.backoff {
		l.backoff = firstBackoff
	}
	switch {
	case l.last == measureNone || step-l.lastStep > soon:
		return measureTrim
	case l.last == measureSplit: // it can be repeated
		return measureSplit
	}
	return l.last + 1
}

func (l *ladder) tolerate(step int64, level memory.Bytes) {
	l.idle, l.tight = step+l.backoff, level
	l.backoff *= 2
}

// tolerates reports whether a level of memory is tolerated at a step. most is the highest level at
// which a step fits.
func (l *ladder) tolerates(step int64, level, most memory.Bytes) bool {
	return step < l.idle && level <= l.tight+(most-l.tight)/2
}

// act makes headroom with the cheapest measure that helps.
func (e *enforcer) act(ctx context.Context, s *fit.State, level memory.Bytes) error {
	e.searching = nil
	helps := false
	for m := e.taken.first(s.Step); m <= measureReload && !helps; m++ {
		var err error
		if helps, err = e.take(ctx, s, m, level); err != nil {
			return err
		}
		if helps || m == measureReload {
			e.taken.last, e.taken.lastStep = m, s.Step
		}
		if helps && m != measureReload {
			s.Event(m.String())
		}
	}
	if e.chosen == 0 {
		e.chosen = e.session.MicroBatches()
	}
	if err := e.watch.restart(); err != nil {
		return err
	}
	if !helps {
		return e.lastResort(s, level)
	}
	e.taken.tight = 0
	e.log.Info("memory budget: "+e.taken.last.String(), "step", s.Step, "before", level, "now", e.watch.top, "parts",
		e.session.MicroBatches(), "budget", e.Limit)
	return nil
}

func (e *enforcer) take(ctx context.Context, s *fit.State, m measure, level memory.Bytes) (helps bool, err error) {
	switch m {
	case measureTrim:
		if e.retained && e.watch.unmapFrom(unmapLarge) == nil {
			e.unmaps, e.retained = true, false
			e.watch.changed(e.beyondUnmapped)
		}
		if !e.watch.trim() {
			return false, nil
		}
	case measureSplit:
		return e.split()
	case measureReload:
		if fits, err := e.reloadFits(); err != nil || !fits {
			return false, err
		}
		if err := e.reload(ctx, s, level); err != nil {
			return false, err
		}
	}
	return e.watch.headroom()
}

// split halves the micro-batches until a step is predicted to fit.
func (e *enforcer) split() (bool, error) {
	if !e.splits() {
		return false, nil
	}
	for parts := e.session.MicroBatches(); parts < e.Batch; {
		more := min(2*parts, e.Batch)
		if err := e.shrink(parts, more); err != nil {
			return false, err
		}
		if fits, err := e.watch.headroom(); fits || err != nil {
			return fits, err
		}
		if level, err := e.watch.level(); err != nil || level > e.watch.free() {
			return false, err // the level alone exceeds the limit
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
func (e *enforcer) reloadFits() (bool, error) {
	level, err := e.watch.level()
	if err != nil {
		return false, err
	}
	twice := 2 * e.session.variableBytes()
	if level+twice <= e.Limit {
		return true, nil
	}
	e.log.Info("memory budget: no headroom to reload the model", "now", level, "needed", level+twice, "budget", e.Limit)
	return false, nil
}

func (e *enforcer) reload(ctx context.Context, s *fit.State, level memory.Bytes) error {
	did, err := e.session.reset(context.WithoutCancel(ctx), contract.ResetReload) // an interrupt must not lose a step
	if err != nil {
		return err
	}
	s.ResetBy(did.Returned, did.Took)
	s.Event(measureReload.String())
	now, unread := e.watch.level()
	beyond, unseen := e.watch.beyond()
	if peak := now + beyond; unread == nil && unseen == nil && peak > max(e.Limit, level) {
		e.over(s, peak)
	}
	e.watch.settling, e.watch.near = 1, peakEvery
	return nil
}

// lastResort is called if no measure in this process makes enough headroom.
func (e *enforcer) lastResort(s *fit.State, level memory.Bytes) error {
	w := &e.watch
	now := w.top
	grown := e.Restart != nil && s.Step-w.began >= leastLife && now > e.settled+w.noise()
	growsOn := e.taken.tight > 0 && now > e.taken.tight+w.noise() // since the last time that no measure helped
	if now+w.above <= e.Limit && !(grown && growsOn) {
		e.taken.tolerate(s.Step, now)
		e.log.Warn("memory budget: little headroom is left", "step", s.Step, "now", now, "needed", now+w.above, "budget",
			e.Limit)
		return nil
	}
	if grown {
		// A new process begins with the headroom that this process had.
		return e.restart(s, level, e.chosen)
	}
	parts := e.session.MicroBatches()
	if e.splits() && (parts < e.Batch || w.guessed) {
		// The error needs the peak of the smallest micro-batches, so measure them first.
		s.Event(measureSplit.String())
		e.log.Info("memory budget: trying the smallest micro-batches", "step", s.Step, "before", level, "now", now, "parts",
			e.Batch, "budget", e.Limit)
		return e.shrink(parts, e.Batch)
	}
	if e.Restart != nil && (e.loaded == nil || e.loaded.Parts != parts) {
		return e.restart(s, level, parts)
	}
	exceeded := &Error{Limit: e.Limit, Layer: e.layer, Need: w.enough(e.most), Opening: e.opening, Step: s.Step}
	if e.Batch > 1 {
		exceeded.Whole = e.session.CheckSplit()
	}
	e.err = exceeded
	s.Stop(fmt.Sprintf("memory budget: %v of %s cannot be kept", e.Limit, e.layer))
	return nil
}

// restart asks for another process, which begins with a number of micro-batches.
func (e *enforcer) restart(s *fit.State, level memory.Bytes, parts int) error {
	e.handoff = parts
	s.ResetBy(memory.Reading{}, 0)
	s.Stop(fmt.Sprintf("resuming in a new process: %v of %v in use", level, e.Limit))
	e.Restart("memory budget")
	return nil
}
