package fit

import "steadyfit/memory"

const (
	// peakEvery is how many steps lie between two looks at the peak, and how many are
	// looked at one by one after a change.
	peakEvery = 16
	// leastNoise is what two peaks may differ by for no reason.
	leastNoise = memory.MiB
)

// watch follows how far the steps of a run go above the memory that stays.
type watch struct {
	meter
	limit memory.Bytes
	began int64 // the step

	// above is what the memory has beyond its level, at most, since the last change;
	// guessed is true while that is only supposed.
	above   memory.Bytes
	guessed bool
	// top is the highest level since the last look, and firstPeak the peak of the first
	// step since the last change.
	top, firstPeak memory.Bytes
	// starting is true until the first parts have been measured: there is nothing to be
	// done before that, and the figure is needed.
	starting bool
	// settling is how many looks do not count, since the first step of a kind takes
	// what later ones do not; near, how many steps are looked at one by one; unseen,
	// how many have not been looked at.
	settling, near, unseen int
}

// left is what is left free of a limit.
func (w *watch) left(limit memory.Bytes) memory.Bytes {
	return max(memory.Bytes(reserve*float64(limit)), w.uncertainty())
}

// free is the limit less the reserve.
func (w *watch) free() memory.Bytes { return w.limit - w.left(w.limit) }

// enough is the least limit, in whole MiB, under which a peak leaves the reserve free.
func (w *watch) enough(peak memory.Bytes) memory.Bytes {
	least := max(memory.Bytes(float64(peak)/(1-reserve)), peak+w.uncertainty())
	return (least + memory.MiB) / memory.MiB * memory.MiB
}

// noise is what two amounts may differ by for no reason.
func (w *watch) noise() memory.Bytes { return max(leastNoise, w.uncertainty()) }

// room reports whether the next step leaves the reserve free.
func (w *watch) room() bool { return w.level().Bytes+w.above <= w.free() }

// steady reports whether what a step takes has been measured since the last change.
func (w *watch) steady() bool { return !w.guessed && w.settling == 0 }

// changed has the steps that follow looked at one by one; above is what they are
// supposed to have beyond the level until the first of them has been measured.
func (w *watch) changed(above memory.Bytes) {
	w.above, w.guessed = above, true
	w.settling, w.near = 1, peakEvery
}

// anew has the next look see what comes from now on only.
func (w *watch) anew() {
	w.beyond()
	w.top = w.level().Bytes
}

// due counts a step that ended at a level, and reports whether its peak is to be looked
// at: each one if all is true.
func (w *watch) due(s *State, level memory.Bytes, all bool) bool {
	w.top = max(w.top, level)
	w.unseen++
	// The last step of an epoch, so that what a validation takes is not taken for that
	// of a step.
	if !all && w.near == 0 && w.unseen < peakEvery && s.EpochStep != s.StepsPerEpoch {
		return false
	}
	w.unseen, w.near = 0, max(w.near-1, 0)
	return true
}

// alone reports whether a look after this step sees a step and nothing else: a
// checkpoint may have been written before the first one of an epoch.
func (w *watch) alone(s *State) bool {
	return s.EpochStep > 1 || s.StepsPerEpoch == 1 || s.Step <= w.began+1
}

// look takes up the peak since the last look; alone is true if that was of a step only.
// counts is false if it says little about the steps that follow.
func (w *watch) look(level memory.Bytes, alone bool) (peak memory.Bytes, counts bool) {
	peak = level + w.beyond()
	// What came down meanwhile was part of the level, not beyond it.
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
