package budget

import (
	"fmt"

	"steadyfit/memory"
)

const (
	// mostParts is the number of micro-batches that a run begins with, if the batch has as
	// many samples.
	mostParts = 16
	// extrapolated multiplies the growth per sample that two sizes showed, for predictions.
	extrapolated = 1.15
	// clearly is the difference of two peaks, in multiples of the noise, from which their
	// slope is a prediction.
	clearly = 8
	// looksReturned is the number of steps to measure per size where blocks are returned to
	// the system.
	looksReturned = 3
)

// plan is the number of micro-batches of a batch, and of prefetched batches.
type plan struct {
	Parts int `json:"parts"`
	Ahead int `json:"prefetch"`
}

// partSize is the number of samples of the largest micro-batch.
func partSize(batch, parts int) int {
	parts = min(parts, batch)
	return (batch + parts - 1) / parts
}

// choice finds the largest micro-batches that fit. It predicts from the last two sizes.
type choice struct {
	batch              int
	limit, free, noise memory.Bytes
	base               memory.Bytes // before the first step
	aheadBytes         memory.Bytes // of a prefetched batch
	// returns is true if malloc returns the blocks of smaller micro-batches. Sizes are then
	// doubled one by one, and each is measured for several steps, because the need of a step
	// varies with the operations that run at the same time.
	returns bool

	// before is the need of the previous size; its size is 0 for the first.
	before need
	// once is what the first step of a size took beyond the next one.
	once memory.Bytes

	// looks counts the steps with lookParts micro-batches, and highest is their peak.
	looks, lookParts int
	highest          memory.Bytes

	// needs is the peak of steps under the final plan, measured or predicted, and why is the
	// reason that its micro-batches are not larger.
	needs memory.Bytes
	why   string
}

// enough records the peak of a step, and reports whether enough steps of this size were
// measured; then peak is the highest of them.
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

// need is the highest peak of steps with micro-batches of a size.
type need struct {
	size int
	peak memory.Bytes
}

// next records the peak of steps under a plan, of which the first had firstPeak, and the
// height of peaks above the level. It returns the plan to try, or, if done, the final one.
func (c *choice) next(p plan, firstPeak, peak, above memory.Bytes) (next plan, done bool) {
	now, half := need{partSize(c.batch, p.Parts), peak}, plan{(p.Parts + 1) / 2, p.Ahead}
	c.once = max(firstPeak-peak, 0)
	if c.before.size == 0 {
		c.before = now
		// Twice the samples take at most twice of what the first step added.
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
	// oneDNN's pool retains the blocks of smaller micro-batches, which do not serve larger
	// ones. So sizes are not tried one after the other, but predicted.
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

// explain sets needs and why for the best number of micro-batches.
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

// mayNeed describes the predicted need of a number of micro-batches.
func mayNeed(parts int, peak memory.Bytes) string {
	if parts == 1 {
		return fmt.Sprintf("whole batches may need %v", peak)
	}
	return fmt.Sprintf("%d parts may need %v", parts, peak)
}

// fits predicts whether a number of micro-batches fits with saved bytes fewer of prefetched
// batches. What only the first step takes may use the reserve.
func (c *choice) fits(now need, perSample float64, parts int, saved memory.Bytes) bool {
	peak := c.predict(now, perSample, parts, saved)
	return peak <= c.free && peak+c.once <= c.limit
}

// predict predicts the peak of a number of micro-batches.
func (c *choice) predict(now need, perSample float64, parts int, saved memory.Bytes) memory.Bytes {
	return now.peak - saved + memory.Bytes(perSample*float64(partSize(c.batch, parts)-now.size))
}

// fewest is the smallest number of micro-batches, from lowest to below present, that is
// predicted to fit; 0 if none is.
func (c *choice) fewest(now need, perSample float64, lowest, present int, saved memory.Bytes) int {
	fits := 0
	for parts := lowest; parts < present; parts++ {
		if !c.fits(now, perSample, parts, saved) {
			continue
		}
		if fits == 0 {
			fits = parts
		}
		// Micro-batches of two sizes take blocks of two sizes from the pool.
		if c.batch%parts == 0 {
			return parts
		}
		if parts >= 2*fits {
			break
		}
	}
	return fits
}
