package fit

import (
	"fmt"

	"steadyfit/memory"
)

const (
	// smallestParts is how many parts a budget begins with, if the batch has as many
	// samples.
	smallestParts = 16
	// extrapolated is how much more growth with the samples is reckoned with than between
	// the two sizes that were measured.
	extrapolated = 1.15
	// clearly is how many times the noise two peaks have to differ by for their slope to
	// be a prediction.
	clearly = 8
)

// plan is how batches are trained: in so many parts, with so many read ahead.
type plan struct {
	Parts int `json:"parts"`
	Ahead int `json:"prefetch"`
}

// partSize is the samples of the largest part.
func partSize(batch, parts int) int {
	parts = min(parts, batch)
	return (batch + parts - 1) / parts
}

// choice finds the largest parts that fit, going by what the last two sizes need.
type choice struct {
	batch              int
	limit, free, noise memory.Bytes
	base               memory.Bytes // before the first step
	aheadBytes         memory.Bytes // of a batch that is read ahead
	// returns is true if the system gets the blocks of smaller parts back. Sizes can then be
	// tried one after the other, each twice the one before, for several steps: what a step
	// needs varies with the operations that happen to run at the same time.
	returns bool

	// before is what the parts of the size before needed; its size is 0 for the first.
	before need
	// once is what the first step with parts of the present size took more than the
	// next one; another size takes it again.
	once memory.Bytes

	// looks counts the steps with so many parts, and highest is their peak.
	looks, lookParts int
	highest          memory.Bytes

	// needs is the peak of steps under the plan to keep, as measured or predicted, and why
	// says why its parts are not larger.
	needs memory.Bytes
	why   string
}

// looksReturned is how many steps are looked at with parts of a size where blocks return.
const looksReturned = 3

// enough takes up the peak of a step with so many parts, and reports whether enough of these
// steps were looked at; then peak is the highest of them.
func (c *choice) enough(parts int, step memory.Bytes) (peak memory.Bytes, done bool) {
	if parts != c.lookParts { // what failed for want of memory is split meanwhile
		c.looks, c.highest, c.lookParts = 0, 0, parts
	}
	c.looks++
	c.highest = max(c.highest, step)
	if c.returns && c.looks < looksReturned {
		return 0, false
	}
	return c.highest, true
}

// need is what steps on parts of a size had at most.
type need struct {
	size int
	peak memory.Bytes
}

// next takes up the peak of steps under a plan, of which the first had firstPeak, and how
// far they went above their level. It returns the plan to try, or, if done, to keep.
func (c *choice) next(p plan, firstPeak, peak, above memory.Bytes) (next plan, done bool) {
	now, half := need{partSize(c.batch, p.Parts), peak}, plan{(p.Parts + 1) / 2, p.Ahead}
	c.once = max(firstPeak-peak, 0)
	if c.before.size == 0 {
		c.before = now
		// If all that there is were for samples, twice as many would take as much again.
		twice := now.peak + max(now.peak-c.base, 0) + c.once
		if p.Parts > 1 && twice <= c.limit {
			return half, false
		}
		c.needs, c.why = now.peak, mayNeed(half.Parts, twice)
		return p, true
	}
	if now.size <= c.before.size {
		c.needs, c.why = now.peak, "batches were split for another reason meanwhile"
		return p, true
	}
	grown := now.peak - c.before.peak
	perSample := extrapolated * float64(max(grown, c.noise)) / float64(now.size-c.before.size)
	if c.returns {
		perSample = max(perSample, float64(above)/float64(now.size))
	}
	if grown < clearly*c.noise && p.Parts > 1 && c.fits(now, perSample, half.Parts, 0) {
		return half, false
	}
	// The pool keeps the blocks of smaller parts, which are of no use to larger ones:
	// so not one size after the other is tried, but what these say.
	best, lowest := p, 1
	if c.returns {
		lowest = half.Parts
	}
	for ahead := p.Ahead; ; ahead /= 2 {
		saved := memory.Bytes(p.Ahead-ahead) * c.aheadBytes
		if n := c.fewest(now, perSample, lowest, p.Parts, saved); n > 0 && n < best.Parts {
			best = plan{n, ahead}
		}
		if c.returns && best == half && half.Parts > 1 {
			c.before = now
			return half, false
		}
		if ahead == 0 {
			c.explain(now, perSample, best.Parts, memory.Bytes(p.Ahead-best.Ahead)*c.aheadBytes)
			return best, true
		}
	}
}

// explain sets needs and why for so many parts.
func (c *choice) explain(now need, perSample float64, best int, saved memory.Bytes) {
	c.needs, c.why = c.predict(now, perSample, best, saved), "whole batches fit"
	for parts := best - 1; parts > 0; parts-- {
		if c.fits(now, perSample, parts, saved) {
			continue
		}
		if peak := c.predict(now, perSample, parts, saved); peak > c.free {
			c.why = fmt.Sprintf("%s, and %v are left free", mayNeed(parts, peak), c.limit-c.free)
		} else {
			c.why = mayNeed(parts, peak+c.once)
		}
		if parts < best-1 {
			c.why += "; those between are of two sizes"
		}
		return
	}
}

// mayNeed says what a number of parts may need.
func mayNeed(parts int, peak memory.Bytes) string {
	if parts == 1 {
		return fmt.Sprintf("whole batches may need %v", peak)
	}
	return fmt.Sprintf("%d parts may need %v", parts, peak)
}

// fits predicts whether so many parts fit when saved bytes less are read ahead, going by
// what the present ones need. What only the first step takes may use what is left free.
func (c *choice) fits(now need, perSample float64, parts int, saved memory.Bytes) bool {
	peak := c.predict(now, perSample, parts, saved)
	return peak <= c.free && peak+c.once <= c.limit
}

// predict is the peak of so many parts when saved bytes less are read ahead.
func (c *choice) predict(now need, perSample float64, parts int, saved memory.Bytes) memory.Bytes {
	return now.peak - saved + memory.Bytes(perSample*float64(partSize(c.batch, parts)-now.size))
}

// fewest is the smallest number of parts from lowest on and below the present one that is
// predicted to fit when saved bytes less are read ahead; 0 if none is. now is what the
// present parts need.
func (c *choice) fewest(now need, perSample float64, lowest, present int, saved memory.Bytes) int {
	fits := 0
	for parts := lowest; parts < present; parts++ {
		if !c.fits(now, perSample, parts, saved) {
			continue
		}
		if fits == 0 {
			fits = parts
		}
		// Parts of two sizes take blocks of two sizes from the pool.
		if c.batch%parts == 0 {
			return parts
		}
		if parts >= 2*fits {
			break
		}
	}
	return fits
}
