package memory

// Per is the unit of a slope.
type Per string

// The units of slopes. The zero value of Per means PerStep.
const (
	PerStep   Per = "step"
	PerMinute Per = "minute"
)

// DefaultConfidence is the level of the intervals. At 99% one of 200 runs
// without a leak has an interval that lies above 0 by chance.
const DefaultConfidence = 0.99

// Criteria select what is judged, and how strictly. The zero value judges anonymous
// memory by step, and any growth beyond noise is a leak.
type Criteria struct {
	// Layer to judge; "" means Anon, or RSS if the system does not report Anon.
	Layer Layer
	// Per is PerStep if empty. PerMinute suits a watch without steps.
	Per Per
	// Budget is the growth in bytes per step (or minute) that is no leak. Flat means
	// that the growth is within it beyond doubt; with 0, that no growth was seen, and
	// that hidden growth is below 1% of the level, a MiB, or the usual swing.
	Budget Bytes
	// Confidence is that of the interval, DefaultConfidence if 0.
	Confidence float64
	// Seed of the bootstrap. Equal samples and equal seeds give equal verdicts.
	Seed uint64
}

// Kind is the kind of a verdict.
type Kind string

// The kinds. [Series.Judge] never finds a Crash; who started the run does.
const (
	Leak         Kind = "leak"         // grows on, above the budget, without slowing down
	Plateau      Kind = "plateau"      // has grown, and has stopped
	Jump         Kind = "jump"         // has changed once, at once
	Flat         Kind = "flat"         // has not grown
	Sawtooth     Kind = "sawtooth"     // grows and falls back, again and again
	Inconclusive Kind = "inconclusive" // undecided
	Crash        Kind = "crash"        // the run ended before its time
)

// minimumSamples is the least that is judged at all.
const minimumSamples = 16

// Verdict is the judgement of a series. Slopes and spans are in the unit of Per,
// amounts in the unit of the layer.
type Verdict struct {
	Kind  Kind  `json:"kind"`
	Layer Layer `json:"layer"`
	Per   Per   `json:"per"`
	// Slope of the judged part at the Confidence; all 0 with fewer than 16 samples.
	Slope      Interval `json:"slope"`
	Confidence float64  `json:"confidence"`
	Budget     Bytes    `json:"budget"`
	// NoiseFloor is half the interval of the slope. A leak of 4 times as much is found
	// in 99 of 100 series.
	NoiseFloor float64 `json:"noise_floor"`
	// Noise is a robust standard deviation of one sample around the trend; Quantum the
	// smallest difference of two samples, mostly a page.
	Noise   Bytes `json:"noise"`
	Quantum Bytes `json:"quantum"`
	// Start is the level at the beginning, Level the one at the end.
	Start Bytes `json:"start"`
	Level Bytes `json:"level"`
	// Jumps are the changes of level that were cut off, in the order of time.
	Jumps []Change `json:"jumps,omitempty"`
	// Depth and Falls are the size and number of the falls of a sawtooth.
	Depth Bytes `json:"depth,omitempty"`
	Falls int   `json:"falls,omitempty"`
	// From and To bound the judged part; what was before is warm-up.
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// Model fits the judged part best, by AICc.
	Model Model `json:"model,omitempty"`
	// Samples is the number of samples in the judged part.
	Samples int `json:"samples"`
	// More is how many more steps (or minutes) would decide an inconclusive verdict if
	// the noise stays the same.
	More float64 `json:"more,omitempty"`
	// Reason explains an inconclusive verdict, or a crash.
	Reason string `json:"reason,omitempty"`
	// Carrier is the layer that grows along, and Cause its meaning; empty if nothing
	// grew.
	Cause   Cause `json:"cause,omitempty"`
	Carrier Layer `json:"carrier,omitempty"`
	// Net is the slope less what malloc holds free; nil unless that was sampled and
	// what malloc has handed out does not grow.
	Net *Interval `json:"net,omitempty"`
	// Kept is what was left of the growth when all was closed ([Verdict.Trimmed]).
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
