package memory

// Per is the unit of a slope.
type Per string

// The units of slopes. The zero value of Per means PerStep.
const (
	PerStep   Per = "step"
	PerMinute Per = "minute"
)

// DefaultConfidence is the confidence of intervals. At 99%, one of 200 runs without a leak has
// an interval above 0 by chance.
const DefaultConfidence = 0.99

// Criteria configure the judgement. The zero value judges anonymous memory by step, and any
// growth beyond noise is a leak.
type Criteria struct {
	// Layer is the layer to judge; "" means Anon, or RSS if the system does not report Anon.
	Layer Layer
	// Per is the unit of slopes; empty means PerStep. PerMinute suits a watch without steps.
	Per Per
	// Budget is the growth in bytes per step (or minute) that does not count as a leak. Flat
	// means that the growth is certainly within it. With 0, Flat means that no growth was
	// found, and hidden growth is below 1% of the level, a MiB, or the usual variation.
	Budget Bytes
	// Confidence is the confidence of the interval; 0 means DefaultConfidence.
	Confidence float64
	// Seed is the seed of the bootstrap. Equal samples and equal seeds give equal verdicts.
	Seed uint64
}

// Kind is the kind of a verdict.
type Kind string

// The kinds. [Series.Judge] never returns Crash; the program that started the run does.
const (
	Leak         Kind = "leak"         // grows on, above the budget, without slowing down
	Plateau      Kind = "plateau"      // has grown, and has stopped
	Jump         Kind = "jump"         // has changed once, at once
	Flat         Kind = "flat"         // has not grown
	Sawtooth     Kind = "sawtooth"     // grows and falls back, again and again
	Inconclusive Kind = "inconclusive" // undecided
	Crash        Kind = "crash"        // the run ended before its time
)

// minimumSamples is the least number of samples for a verdict.
const minimumSamples = 16

// Verdict is the judgement of a series. Slopes and spans have the unit of Per, amounts the unit
// of the layer.
type Verdict struct {
	Kind  Kind  `json:"kind"`
	Layer Layer `json:"layer"`
	Per   Per   `json:"per"`
	// Slope is the confidence interval of the slope of the judged part. It is zero for fewer
	// than 16 samples.
	Slope      Interval `json:"slope"`
	Confidence float64  `json:"confidence"`
	Budget     Bytes    `json:"budget"`
	// NoiseFloor is half of the width of the slope's interval. A leak of four times as much is
	// found in 99 of 100 series.
	NoiseFloor float64 `json:"noise_floor"`
	// Noise is a robust standard deviation of one sample around the trend. Quantum is the
	// smallest difference of two samples, usually a page.
	Noise   Bytes `json:"noise"`
	Quantum Bytes `json:"quantum"`
	// Start is the level at the beginning, and Level the level at the end.
	Start Bytes `json:"start"`
	Level Bytes `json:"level"`
	// Jumps are the changes of level that were cut off, in the order of time.
	Jumps []Change `json:"jumps,omitempty"`
	// Depth and Falls are the size and number of the falls of a sawtooth.
	Depth Bytes `json:"depth,omitempty"`
	Falls int   `json:"falls,omitempty"`
	// From and To bound the judged part; everything before is warm-up.
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// Model is the model that fits the judged part best, by AICc.
	Model Model `json:"model,omitempty"`
	// Samples is the number of samples in the judged part.
	Samples int `json:"samples"`
	// More is the number of further steps (or minutes) that would decide an inconclusive
	// verdict if the noise stays the same.
	More float64 `json:"more,omitempty"`
	// Reason explains an inconclusive verdict, or a crash.
	Reason string `json:"reason,omitempty"`
	// Carrier is the layer that grows with the judged one, and Cause its meaning; both are
	// empty if nothing grew.
	Cause   Cause `json:"cause,omitempty"`
	Carrier Layer `json:"carrier,omitempty"`
	// Net is the slope without malloc's free memory. It is nil unless that was sampled and
	// malloc in use does not grow.
	Net *Interval `json:"net,omitempty"`
	// Kept is the part of the growth that remained after closing everything
	// ([Verdict.Trimmed]).
	Kept *Kept `json:"kept,omitempty"`
	// Trends are the slopes of all layers.
	Trends []Trend `json:"trends,omitempty"`
	// Notes are sentences for the reader.
	Notes []string `json:"notes,omitempty"`
}

// Interval is an estimate and the bounds of its interval.
type Interval struct {
	Estimate float64 `json:"estimate"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
}

// Change is a change of level at one step or minute.
type Change struct {
	At     float64 `json:"at"`
	Amount Bytes   `json:"amount"`
}

// Crashed is the verdict on a run that ended early.
func Crashed(reason string) Verdict { return Verdict{Kind: Crash, Per: PerStep, Reason: reason} }
