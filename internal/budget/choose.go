package budget

import (
	"fmt"

	"steadyfit/memory"
)

const (
	// mostParts is the maximum number of micro-batches at the beginning of a run.
	mostParts = 16
	// extrapolated is the factor by which predictions multiply the measured growth. oneDNN's pool grows in
	// regions, whose sizes differ between runs: with 1.15, one of six runs of image-224 exceeded its limit by 3%.
	extrapolated = 1.5
	// looks is the number of steps to measure per size of micro-batch, because the memory of a step varies
	// with the operations that run at the same time.
	looks = 3
)

// partSize returns the number of samples of the largest micro-batch.
func partSize(batch, parts int) int {
	parts = min(parts, batch)
	return (batch + parts - 1) / parts
}

// search doubles the size of micro-batches while the measured peaks predict that the larger ones fit.
type search struct {
	batch              int
	limit, free, noise memory.Bytes
	// before is the peak with half the size; at first, the memory before the first step.
	before memory.Bytes
	// sizes is the number of sizes that were measured, and smaller the last one. perSample is the highest
	// growth per sample from one size to the next.
	sizes, smaller int
	perSample      float64
	// seen is the number of steps measured with parts micro-batches, and highest is their peak.
	parts, seen int
	highest     memory.Bytes
}

// next records the peak of a step with a number of micro-batches. firstPeak is the peak of the first such
// step, and above is the memory that a step adds. The result is the number of micro-batches for the next
// step. why is the reason to end the search; empty to continue.
func (c *search) next(parts int, firstPeak, peak, above memory.Bytes) (next int, why string) {
	if parts != c.parts { // the search or OnOutOfMemory has changed the number
		if c.parts != 0 && parts > c.parts {
			return parts, "batches were split for another reason during the search"
		}
		c.parts, c.seen, c.highest = parts, 0, 0
	}
	c.seen++
	c.highest = max(c.highest, peak)
	if c.seen < looks {
		return parts, ""
	}
	if parts == 1 {
		return 1, "whole batches fit"
	}
	half := (parts + 1) / 2
	size, larger := partSize(c.batch, parts), partSize(c.batch, half)
	growth := max(c.highest-c.before, c.noise)
	needs := c.highest + growth // twice the samples add at most what the first ones added
	if c.before = c.highest; c.sizes > 0 {
		// oneDNN's pool grows in jumps, so a later growth may be as high as an earlier one.
		c.perSample = max(c.perSample, float64(growth)/float64(size-c.smaller), float64(above)/float64(size))
		needs = c.highest + memory.Bytes(extrapolated*c.perSample*float64(larger-size))
	}
	c.sizes, c.smaller = c.sizes+1, size
	once := max(firstPeak-c.highest, 0) // memory that only the first step with a size takes
	switch {
	case needs > c.free:
		return parts, fmt.Sprintf("%s may need %v, and %v must stay free", describe(half), needs, c.limit-c.free)
	case needs+once > c.limit:
		return parts, fmt.Sprintf("%s may need %v", describe(half), needs+once)
	}
	return half, ""
}

func describe(parts int) string {
	if parts == 1 {
		return "whole batches"
	}
	return fmt.Sprintf("%d parts", parts)
}
