package memory

import "steadyfit/internal/memlayer"

// Criteria configure [Series.Judge]. The zero value judges the growth of anonymous memory per step.
type Criteria struct {
	// Layer is the layer to judge. Empty means Anon, or RSS if the system does not report Anon.
	Layer Layer
	// PerMinute makes the unit of slopes a minute instead of a step, for series without steps.
	PerMinute bool
	// Budget is the growth in bytes per step or minute that is not a leak; Flat then means growth
	// within the budget. If Budget is 0, Flat means that no growth was found, and that undetected
	// growth is below 1% of the level, 1 MiB, or the usual variation.
	Budget Bytes
	// Seed seeds the bootstrap. Equal samples and seeds give equal verdicts.
	Seed uint64
}

// per returns Verdict.Per.
func (c Criteria) per() string {
	if c.PerMinute {
		return memlayer.PerMinute
	}
	return memlayer.PerStep
}

// Kind is the kind of a verdict.
type Kind string

// Kinds of verdicts.
const (
	Leak         Kind = "leak"         // grows by more than the budget, without slowing down
	Plateau      Kind = "plateau"      // grew and then stopped
	Jump         Kind = "jump"         // changed once, suddenly
	Flat         Kind = "flat"         // did not grow
	Sawtooth     Kind = "sawtooth"     // rises slowly and falls suddenly, without growth
	Inconclusive Kind = "inconclusive" // undecided
)

const minimumSamples = 16

// Verdict is the judgement of a series. Amounts are in the unit of the layer.
type Verdict struct {
	Kind  Kind  `json:"kind"`
	Layer Layer `json:"layer"`
	// Per is the unit of slopes and spans, "step" or "minute".
	Per string `json:"per"`
	// Slope is the slope of the judged part. It is zero for fewer than 16 samples.
	Slope Interval `json:"slope"`
	// Confidence is the confidence of intervals. At 99%, the interval of one in 200 runs without a leak is above 0 by
	// chance.
	Confidence float64 `json:"confidence"`
	Budget     Bytes   `json:"budget"`
	// NoiseFloor is the half width of the slope's interval. In 99 of 100 series, Judge finds a leak
	// of four times this slope.
	NoiseFloor float64 `json:"noise_floor"`
	// Start is the level at the beginning, and Level the level at the end.
	Start Bytes `json:"start"`
	Level Bytes `json:"level"`
	// Jumps are the changes of level before the judged part, in the order of time.
	Jumps []Change `json:"jumps,omitempty"`
	// Depth is the median depth of the falls of a sawtooth.
	Depth Bytes `json:"depth,omitempty"`
	// From and To bound the judged part. Everything before From is warm-up.
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// Samples is the number of samples in the judged part.
	Samples int `json:"samples"`
	// More is the number of further steps or minutes that would decide an inconclusive verdict at
	// constant noise.
	More   float64 `json:"more,omitempty"`
	Reason string  `json:"reason,omitempty"`
	// Carrier is the layer that grows with the judged layer, and Cause the likely source: "garbage
	// collection lag", "unreleased objects", "host history", "runtime cache or graph", "native heap",
	// "go runtime", "retention", "file pages" or "unattributed". Both are empty without growth.
	Cause   string `json:"cause,omitempty"`
	Carrier Layer  `json:"carrier,omitempty"`
	// Net is the slope without malloc's free memory. It is nil unless malloc was sampled and malloc
	// in use does not grow.
	Net *Interval `json:"net,omitempty"`
	// Kept is the growth that remained after closing everything. The matrix sets it.
	Kept   *Kept   `json:"kept,omitempty"`
	Trends []Trend `json:"trends,omitempty"`
	// Notes are further findings as sentences.
	Notes []string `json:"notes,omitempty"`
}

// Interval is an estimate with its confidence bounds.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
}

// Change is a change of level at a step or minute.
type Change struct {
	At     float64 `json:"at"`
	Amount Bytes   `json:"amount"`
}

// Kept is the growth above Start that remained after everything was closed, and after a trim of the
// allocator. Closing also frees memory from before Start, so Kept is a lower bound and may be negative.
type Kept struct {
	Closed  Bytes `json:"closed"`
	Trimmed Bytes `json:"trimmed"`
}
