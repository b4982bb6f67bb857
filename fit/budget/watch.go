package budget

import (
	"steadyfit/fit"
	"steadyfit/memory"
)

const (
	// peakEvery is the number of steps between two looks at the peak, and the number of steps
	// that are looked at one by one after a change.
	peakEvery = 16
	// leastNoise is the least random difference of two peaks.
	leastNoise = memory.MiB
)

// watch measures how far the steps of a run rise above the level, the memory between steps.
type watch struct {
	meter
	limit memory.Bytes
	began int64 // the step

	// above is the most that a step rose above the level since the last change; guessed is
	// true until it is measured.
	above   memory.Bytes
	guessed bool
	// top is the highest level since the last look, and firstPeak the peak of the first
	// step since the last change.
	top, firstPeak memory.Bytes
	// starting is true until the first micro-batches are measured. No measure is taken
	// before.
	starting bool
	// settling is the number of looks that do not count, because a first step takes what
	// later ones do not; near, the number of steps to look at one by one; unseen, the number
	// of steps since the last look.
	settling, near, unseen int
}

// left is the reserve of a limit.
func (w *watch) left(limit memory.Bytes) memory.Bytes {
	return max(memory.Bytes(reserve*float64(limit)), w.uncertainty())
}

// free is the limit less the reserve.
func (w *watch) free() memory.Bytes { return w.limit - w.left(w.limit) }

// enough is the least limit, in whole MiB, that a peak fits with the reserve.
func (w *watch) enough(peak memory.Bytes) memory.Bytes {
	least := max(memory.Bytes(float64(peak)/(1-reserve)), peak+w.uncertainty())
	return (least + memory.MiB) / memory.MiB * memory.MiB
}

// noise is the random difference of two readings.
func (w *watch) noise() memory.Bytes { return max(leastNoise, w.uncertainty()) }

// headroom reports whether the next step leaves the reserve free.
func (w *watch) headroom() bool { return w.level().Bytes+w.above <= w.free() }

// steady reports whether a step was measured since the last change.
func (w *watch) steady() bool { return !w.guessed && w.settling == 0 }

// changed looks at the following steps one by one. above is the guess of how far they rise
// above the level, until the first of them is measured.
func (w *watch) changed(above memory.Bytes) {
	w.above, w.guessed = above, true
	w.settling, w.near = 1, peakEvery
}

// restart makes the next look ignore what was before.
func (w *watch) restart() {
	w.beyond()
	w.top = w.level().Bytes
}

// due counts a step that ended at a level, and reports whether to look at its peak; all
// looks at each.
func (w *watch) due(s *fit.State, level memory.Bytes, all bool) bool {
	w.top = max(w.top, level)
	w.unseen++
	// It looks at the last step of an epoch, to tell a validation from a step.
	if !all && w.near == 0 && w.unseen < peakEvery && s.EpochStep != s.StepsPerEpoch {
		return false
	}
	w.unseen, w.near = 0, max(w.near-1, 0)
	return true
}

// alone reports whether only a step ran since the last look. A checkpoint may have been
// written before the first one of an epoch.
func (w *watch) alone(s *fit.State) bool {
	return s.EpochStep > 1 || s.StepsPerEpoch == 1 || s.Step <= w.began+1
}

// look records the peak since the last look. alone is true if only a step ran since then.
// counts is false if the peak does not predict that of later steps.
func (w *watch) look(level memory.Bytes, alone bool) (peak memory.Bytes, counts bool) {
	peak = level + w.beyond()
	// Memory that was freed meanwhile was part of the level.
	above := max(peak-max(w.top, level), 0)
	w.top = level
	if w.settling > 0 && (peak <= w.limit || w.starting) {
		if alone {
			w.settling--
		}
		w.firstPeak = peak
		return peak, false
	}
	if w.guessed && alone {
		w.above, w.guessed, w.starting = 0, false, false
	}
	w.above = max(w.above, above)
	return peak, alone
}
