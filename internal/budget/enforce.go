package budget

import (
	"context"
	"errors"
	"fmt"

	"steadyfit/fit"
	"steadyfit/memory"
)

// enough returns the least limit in whole MiB that has space for a peak of the first steps, for
// what later steps may take in addition, and for the reserve.
func (e *enforcer) enough(peak memory.Bytes) memory.Bytes {
	peak += memory.Bytes(laterSteps * float64(peak))
	least := max(memory.Bytes(float64(peak)/(1-reserve)), peak+e.uncertainty())
	return (least + memory.MiB) / memory.MiB * memory.MiB
}

// read returns the level, and the peak since the last call.
func (e *enforcer) read() (level, peak memory.Bytes, err error) {
	if level, err = e.level(); err != nil {
		return 0, 0, err
	}
	beyond, err := e.beyond()
	return level, level + beyond, err
}

// look reads the level, and records the peak since the last call.
func (e *enforcer) look(s *fit.State) (level, peak memory.Bytes, err error) {
	if level, peak, err = e.read(); err != nil {
		return 0, 0, err
	}
	if e.unchanged != 1 || peak > e.Limit { // the first step takes more memory than later ones
		// Memory that was freed since the last call was part of the level then, so the highest level counts.
		e.above = max(e.above, peak-max(e.top, level))
	}
	e.top = level
	if e.session.MicroBatches() >= e.most {
		e.needed = max(e.needed, peak)
	}
	if peak > e.Limit {
		e.Log.Warn("memory budget: exceeded", "step", s.Step, "peak", peak, "budget", e.Limit, "by", peak-e.Limit)
		s.Event(overEvent)
	}
	return level, peak, nil
}

func (e *enforcer) step(_ context.Context, s *fit.State) error {
	return stopWithCheckpoint(s, e.enforce(s), &e.err)
}

func (e *enforcer) epoch(_ context.Context, s *fit.State) error {
	_, _, err := e.look(s)
	return stopWithCheckpoint(s, err, &e.err)
}

func (e *enforcer) end(_ context.Context, s *fit.State) error {
	var exceeded *Error
	if errors.As(e.err, &exceeded) {
		exceeded.Checkpoint = s.History.Checkpoint // the last checkpoint was written
		if _, peak, err := e.read(); err == nil {  // writing it may have taken more memory than the steps
			e.needed = max(e.needed, peak)
		}
		exceeded.Need = e.enough(e.needed)
	}
	return errors.Join(e.err, e.close())
}

// enforce reads the memory after a step. It takes a measure, or continues the search.
func (e *enforcer) enforce(s *fit.State) error {
	level, err := e.level()
	if err != nil {
		return err
	}
	e.top = max(e.top, level)
	e.unchanged++
	var peak memory.Bytes
	// The peak is read after the last step of an epoch, so that it does not include a validation.
	if e.unchanged <= peakEvery || s.Step%peakEvery == 0 || s.EpochStep == s.StepsPerEpoch || level+e.above > e.free {
		if level, peak, err = e.look(s); err != nil {
			return err
		}
	}
	if e.unchanged >= peakEvery && e.chosen > 0 && e.settled == 0 {
		e.settled = level
		if level+headroomToRetain*e.above <= e.free {
			e.retain()
		}
	}
	switch {
	case s.LastStep():
		return nil
	case peak > e.Limit || level+e.above > e.free:
		return e.act(s, level, peak)
	case e.search != nil && peak > 0 && (s.EpochStep > 1 || s.StepsPerEpoch == 1):
		// A checkpoint may have been written before the first step of an epoch.
		return e.grow(peak)
	}
	return nil
}

// search finds the largest micro-batches that fit.
type search struct {
	// parts is the number of micro-batches that is measured. seen is the number of measured steps, and highest
	// is their peak.
	parts, seen int
	highest     memory.Bytes
	// before is the peak with micro-batches of smaller samples; at first, the memory before the first step.
	before  memory.Bytes
	smaller int
	// perSample is the highest growth per sample from one size to the next.
	perSample float64
}

// grow doubles the size of the micro-batches if the measured peaks predict that they fit.
func (e *enforcer) grow(peak memory.Bytes) error {
	c, parts := e.search, e.session.MicroBatches()
	c.seen, c.highest = c.seen+1, max(c.highest, peak)
	if parts == c.parts && c.seen < looks {
		return nil
	}
	half := (parts + 1) / 2
	size, larger := partSize(e.Batch, parts), partSize(e.Batch, half)
	growth := max(c.highest-c.before, e.noise)
	needs := c.highest + growth // twice the samples add at most what the first ones added
	if c.smaller > 0 {
		// oneDNN's pool grows in jumps, so a later growth may be as high as an earlier one.
		c.perSample = max(c.perSample, float64(growth)/float64(size-c.smaller), float64(e.above)/float64(size))
		needs = c.highest + memory.Bytes(extrapolated*c.perSample*float64(larger-size))
	}
	reason := "whole batches fit"
	switch {
	case parts != c.parts:
		reason = "batches were split for another reason during the search"
	case needs > e.free && parts > 1:
		reason = fmt.Sprintf("%d samples may need %v of %v", larger, needs, e.free)
	case parts > 1:
		*c = search{parts: half, before: c.highest, smaller: size, perSample: c.perSample}
		e.fewest, e.unchanged = half, 0
		return e.session.SetMicroBatches(half)
	}
	e.search, e.chosen = nil, parts
	e.Log.Info("memory budget: chosen", "parts", parts, "samples", size, "peak", peak, "budget", e.Limit, "of", e.Layer,
		"reason", reason)
	return nil
}

// partSize returns the number of samples of the largest micro-batch.
func partSize(batch, parts int) int { return (batch + parts - 1) / parts }

// act makes space for the next step with the cheapest measure that helps.
func (e *enforcer) act(s *fit.State, level, peak memory.Bytes) (err error) {
	measure, before := "", level
	level = max(level, peak-e.above) // memory that was freed since the peak may be needed again
	if s.Step-e.acted > peakEvery {
		measure, e.acted = "trim", s.Step
		e.trim()
		if level, err = e.level(); err != nil {
			return err
		}
	}
	space := e.free
	if level > space {
		space = e.Limit // smaller micro-batches cannot restore the reserve
	}
	parts, above := e.session.MicroBatches(), e.above
	for level+above > space && e.whole == nil && parts < e.Batch {
		measure, parts, above = "microbatch", min(2*parts, e.Batch), above/2 // until it is measured
	}
	if e.chosen == 0 {
		e.search, e.chosen = nil, parts
	}
	over := level+above > e.Limit
	grown := level+above > (e.Limit+e.free)/2 && e.settled > 0 && level > e.settled+e.noise
	switch {
	case e.Restart != nil && (grown || over && parts > e.fewest):
		if grown {
			parts = e.chosen // a new process begins with the space that this one had
		}
		s.ResetBy(memory.Reading{}, 0)
		s.Stop(fmt.Sprintf("resuming in a new process: %v of %v in use", before, e.Limit))
		e.Restart("memory budget")
		return e.session.SetMicroBatches(parts) // which the last checkpoint contains
	case over:
		e.stop(s)
	case measure == "microbatch" || measure == "trim" && level+above <= e.free:
		s.Event(measure)
		e.Log.Info("memory budget: "+measure, "step", s.Step, "before", before, "now", level, "parts", parts, "budget",
			e.Limit)
		if measure == "microbatch" {
			e.above, e.unchanged = above, 0
			return e.session.SetMicroBatches(parts)
		}
	}
	return nil // if nothing helps, the steps use the reserve
}

// stop ends the run. The method end returns the error and sets its remaining fields.
func (e *enforcer) stop(s *fit.State) {
	exceeded := &Error{Limit: e.Limit, Layer: e.Layer, Opening: e.opening, Step: s.Step}
	if e.Batch > 1 {
		exceeded.Whole = e.whole
	}
	e.err = exceeded
	s.Stop(fmt.Sprintf("memory budget: %v of %s cannot be kept", e.Limit, e.Layer))
}
