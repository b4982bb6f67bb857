package budget

import (
	"cmp"
	"fmt"

	"steadyfit/memory"
)

const (
	// mostParts is the maximum number of micro-batches at the beginning of a run.
	mostParts = 16
	// extrapolated is the factor by which predictions multiply the measured growth per sample.
	extrapolated = 1.15
	// clearly is the minimum difference of two peaks from which a prediction is made, in multiples
	// of the noise.
	clearly = 8
	// looksReturned is the number of steps to measure per size of micro-batch if malloc returns
	// blocks to the system.
	looksReturned = 3
)

// plan is the number of micro-batches of a batch, and the number of prefetched batches.
type plan struct {
	Parts int `json:"parts"`
	Ahead int `json:"prefetch"`
}

// partSize returns the number of samples of the largest micro-batch.
func partSize(batch, parts int) int {
	parts = min(parts, batch)
	return (batch + parts - 1) / parts
}

// choice searches for the largest micro-batches that fit in memory. It predicts peaks from the
// last two sizes.
type choice struct {
	batch              int
	limit, free, noise memory.Bytes
	base               memory.Bytes // memory before the first step
	aheadBytes         memory.Bytes // the size of a prefetched batch
	// returns is true if malloc returns the blocks of smaller micro-batches. The search then
	// doubles the size, and measures several steps with each size, because the memory of a step
	// varies with the operations that run at the same time.
	returns bool

	// before is the peak with the previous size; before.size is 0 for the first size.
	before need
	// once is the memory that only the first step with a size takes.
	once memory.Bytes

	// looks is the number of steps measured with lookParts micro-batches. highest is their
	// peak.
	looks, lookParts int
	highest          memory.Bytes

	// needs is the measured or predicted peak with the final plan. why is the reason against
	// larger micro-batches.
	needs memory.Bytes
	why   string
}

// enough records the peak of a step. done is true after enough steps with this size of micro-batch;
// peak is then the highest peak of these steps.
func (c *choice) enough(parts int, step memory.Bytes) (peak memory.Bytes, done bool) {
	if parts != c.lookParts { // OnOutOfMemory may have split the batch
		c.looks, c.highest, c.lookParts = 0, 0, parts
	}
	c.looks++
	c.highest = max(c.highest, step)
	if c.returns && c.looks < looksReturned {
		return 0, false
	}
	return c.highest, true
}

// need is the highest peak with micro-batches of a size.
type need struct {
	size int
	peak memory.Bytes
}

// next records the peak with plan p. firstPeak is the peak of the first step, and above is the
// memory that a step adds. The result is the plan to try next or, if done is true, the final plan.
func (c *choice) next(p plan, firstPeak, peak, above memory.Bytes) (next plan, done bool) {
	now, half := need{partSize(c.batch, p.Parts), peak}, plan{(p.Parts + 1) / 2, p.Ahead}
	c.once = max(firstPeak-peak, 0)
	if c.before.size == 0 {
		c.before = now
		// Twice the samples add at most twice the memory of the first step.
		twice := now.peak + max(now.peak-c.base, 0) + c.once
		if p.Parts > 1 && twice <= c.limit {
			return half, false
		}
		c.needs, c.why = now.peak, mayNeed(half.Parts, twice)
		return p, true
	}
	if now.size <= c.before.size {
		c.needs, c.why = now.peak, "batches were split for another reason during the search"
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
	// oneDNN's pool retains the blocks of smaller micro-batches, and larger ones cannot use
	// them. Trying many sizes would therefore waste memory, so the size is predicted.
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

// explain sets needs and why for the chosen number of micro-batches.
func (c *choice) explain(now need, perSample float64, best int, saved memory.Bytes) {
	c.needs, c.why = c.predict(now, perSample, best, saved), "whole batches fit"
	for parts := best - 1; parts > 0; parts-- {
		if c.fits(now, perSample, parts, saved) {
			continue
		}
		if peak := c.predict(now, perSample, parts, saved); peak > c.free {
			c.why = fmt.Sprintf("%s, and %v must stay free", mayNeed(parts, peak), c.limit-c.free)
		} else {
			c.why = mayNeed(parts, peak+c.once)
		}
		if parts < best-1 {
			c.why += "; the numbers in between would make micro-batches of two sizes"
		}
		return
	}
}

func mayNeed(parts int, peak memory.Bytes) string {
	if parts == 1 {
		return fmt.Sprintf("whole batches may need %v", peak)
	}
	return fmt.Sprintf("%d parts may need %v", parts, peak)
}

// fits predicts whether steps with the number parts of micro-batches fit in memory. saved is the
// memory of prefetched batches that are given up. The first step may use the reserve.
func (c *choice) fits(now need, perSample float64, parts int, saved memory.Bytes) bool {
	peak := c.predict(now, perSample, parts, saved)
	return peak <= c.free && peak+c.once <= c.limit
}

func (c *choice) predict(now need, perSample float64, parts int, saved memory.Bytes) memory.Bytes {
	return now.peak - saved + memory.Bytes(perSample*float64(partSize(c.batch, parts)-now.size))
}

// fewest returns the smallest number of micro-batches in [lowest, present) that is predicted to
// fit; 0 if there is none.
func (c *choice) fewest(now need, perSample float64, lowest, present int, saved memory.Bytes) int {
	fits := 0
	for parts := lowest; parts < present; parts++ {
		if !c.fits(now, perSample, parts, saved) {
			continue
		}
		fits = cmp.Or(fits, parts)
		// Micro-batches of two sizes would take blocks of two sizes from the pool.
		if c.batch%parts == 0 {
			return parts
		}
		if parts >= 2*fits {
			break
		}
	}
	return fits
}
