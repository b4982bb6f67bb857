package fit

import "steadyfit/memory"

// measure is what can be done in place when there is little room, the cheapest first.
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

func (m measure) String() string {
	return [...]string{"none", "trim", "unmap", "prefetch", "microbatch", "reload", "end"}[m]
}

const (
	// soon is within how many steps a measure that is needed again did not help.
	soon = 16
	// firstPatience is how many steps little room is borne at first; it is doubled each
	// time that nothing helps.
	firstPatience = 2 * peakEvery
)

// ladder is which measures have been taken, and whether they were of use.
type ladder struct {
	// last is the measure that was taken last, and lastStep after which step.
	last     measure
	lastStep int64
	// While there is little room, nothing is done about it before the step idle, unless
	// it has become less by half; tight was the level then, 0 if there is room. patience
	// is how long that is borne.
	idle, patience int64
	tight          memory.Bytes
}

// from is the measure to begin with.
func (l *ladder) from(step int64) measure {
	if step-l.lastStep > l.patience {
		l.patience = firstPatience
	}
	if l.last == measureNone || step-l.lastStep > soon {
		return measureTrim
	}
	// Reading still less ahead, and smaller parts, are other measures than before.
	if l.last == measureTrim || l.last == measureUnmap || l.last == measureReload {
		return l.last + 1
	}
	return l.last
}

func (l *ladder) took(m measure, step int64) { l.last, l.lastStep = m, step }

// bear has little room borne for a while, after nothing has helped at a level.
func (l *ladder) bear(step int64, level memory.Bytes) {
	l.idle, l.tight = step+l.patience, level
	l.patience *= 2
}

// bears reports whether little room at a level is still borne; most is the highest level
// that leaves a step what it needs.
func (l *ladder) bears(step int64, level, most memory.Bytes) bool {
	return step < l.idle && level <= l.tight+(most-l.tight)/2
}

// grew reports whether the level is above the one at which nothing helped.
func (l *ladder) grew(level, noise memory.Bytes) bool { return l.tight > 0 && level > l.tight+noise }
