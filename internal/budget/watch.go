package budget

import (
	"steadyfit/fit"
	"steadyfit/memory"
)

const (
	// peakEvery is the number of steps between two readings of the peak. After a change, that
	// many steps are measured one by one.
	peakEvery = 16
	// leastNoise is the least random difference of two peaks.
	leastNoise = memory.MiB
	// reserve is the part of a limit that stays free, because predictions are inexact.
	reserve = 0.03
	// laterSteps is the fraction by which the peak of later steps may exceed the peak of the first steps.
	// In a training that took as much as a limit of 657 MiB allows, it was 5.5% after two epochs.
	laterSteps = 0.06
)

// watch measures how much memory steps need above the level, which is the memory between steps.
type watch struct {
	meter
	limit memory.Bytes
	began int64 // first step of the run

	// above is the most memory that a step since the last change needed above the level. guessed is
	// true until above is measured.
	above   memory.Bytes
	guessed bool
	// top is the highest level since the last reading. firstPeak is the peak of the first step
	// since the last change.
	top, firstPeak memory.Bytes
	// starting is true until the first micro-batches are measured. No measure is taken before
	// that.
	starting bool
	// settling is the number of readings to ignore, since the first step takes more memory than
	// later ones. near is the number of steps to measure one by one. unseen is the number of
	// steps since the last reading.
	settling, near, unseen int
}

// free returns the part of the limit that steps may use.
func (w *watch) free() memory.Bytes {
	return w.limit - max(memory.Bytes(reserve*float64(w.limit)), w.uncertainty())
}

// enough returns the least limit in whole MiB that has space for a peak of the first steps, for
// what later steps may take in addition, and for the reserve.
func (w *watch) enough(peak memory.Bytes) memory.Bytes {
	peak += memory.Bytes(laterSteps * float64(peak))
	least := max(memory.Bytes(float64(peak)/(1-reserve)), peak+w.uncertainty())
	return (least + memory.MiB) / memory.MiB * memory.MiB
}

func (w *watch) noise() memory.Bytes { return max(leastNoise, w.uncertainty()) }

// headroom reports whether the next step leaves the reserve free.
func (w *watch) headroom() (bool, error) {
	level, err := w.level()
	return level+w.above <= w.free(), err
}

func (w *watch) steady() bool { return !w.guessed && w.settling == 0 }

// changed makes watch measure the following steps one by one. above is a guess for the memory
// of a step.
func (w *watch) changed(above memory.Bytes) {
	w.above, w.guessed = above, true
	w.settling, w.near = 1, peakEvery
}

// restart makes the next reading ignore earlier peaks.
func (w *watch) restart() (err error) {
	if _, err = w.beyond(); err == nil {
		w.top, err = w.level()
	}
	return err
}

// due counts a step, and reports whether to read its peak. If all is true, every peak is read.
func (w *watch) due(s *fit.State, level memory.Bytes, all bool) bool {
	w.top = max(w.top, level)
	w.unseen++
	// The peak is read after the last step of an epoch, so that it does not include a validation.
	if !all && w.near == 0 && w.unseen < peakEvery && s.EpochStep != s.StepsPerEpoch {
		return false
	}
	w.unseen, w.near = 0, max(w.near-1, 0)
	return true
}

// alone reports whether only a step ran since the last reading. It is false for the first step of an
// epoch, because a checkpoint may have been written before it.
func (w *watch) alone(s *fit.State) bool {
	return s.EpochStep > 1 || s.StepsPerEpoch == 1 || s.Step <= w.began+1
}

// look records the peak since the last call. alone is true if only a step ran since the last call.
// counts is false if the peak does not predict later steps.
func (w *watch) look(level memory.Bytes, alone bool) (peak memory.Bytes, counts bool, err error) {
	beyond, err := w.beyond()
	if err != nil {
		return 0, false, err
	}
	peak = level + beyond
	// Memory that was freed since the last call was part of the level then, so the highest level
	// counts.
	above := max(peak-max(w.top, level), 0)
	w.top = level
	if w.settling > 0 && (peak <= w.limit || w.starting) {
		if alone {
			w.settling--
		}
		w.firstPeak = peak
		return peak, false, nil
	}
	if w.guessed && alone {
		w.above, w.guessed, w.starting = 0, false, false
	}
	w.above = max(w.above, above)
	return peak, alone, nil
}
