package autotune

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// margin is the minimum speedup over plain steps. The whole confidence interval of the chosen
// configuration must exceed it.
const margin = 0.03

// The numbers of rounds of a trial: minRounds before any conclusion, slowRounds for a
// configuration that does not win, and maxRounds if there is time.
const (
	minRounds  = 3
	slowRounds = 5
	maxRounds  = 9
)

// Measurement is the result of trials of one configuration.
type Measurement struct {
	Configuration Configuration `json:"candidate"`
	// Step is the median time of a step over rounds, in seconds.
	Step float64 `json:"step_seconds,omitempty"`
	// Ratio is the time of a step divided by the time of a plain step. It is computed as the
	// median, over rounds, of the ratio to the best configuration so far in the same round, times
	// the Ratio of that configuration. It lies between Low and High with a confidence of about 3/4
	// for 3 rounds, and of at least 0.9 from 5 rounds on.
	Ratio  float64 `json:"ratio,omitempty"`
	Low    float64 `json:"ratio_low,omitempty"`
	High   float64 `json:"ratio_high,omitempty"`
	Rounds int     `json:"rounds,omitempty"`
	// Peak and Anon are the maximum RSS and anonymous memory of the process. Base is its
	// anonymous memory before it opened the session, with the data of the trial. 0 means unknown.
	Peak memory.Bytes `json:"peak_bytes,omitempty"`
	Anon memory.Bytes `json:"anon_bytes,omitempty"`
	Base memory.Bytes `json:"base_bytes,omitempty"`
	// StepPeak is the highest RSS since the session was opened, and StepAnon the anonymous part of
	// StepPeak. Opened and OpenedAnon are the RSS and its anonymous part when the session was opened.
	// Only Trials sets these four amounts and Opening. The cache has the amounts of the trial, and
	// Trials returns the amounts of a training with all its data.
	StepPeak   memory.Bytes `json:"step_peak_bytes,omitempty"`
	StepAnon   memory.Bytes `json:"step_anon_bytes,omitempty"`
	Opened     memory.Bytes `json:"opened_bytes,omitempty"`
	OpenedAnon memory.Bytes `json:"opened_anon_bytes,omitempty"`
	// Opening is the highest RSS while the session was opened, which may exceed StepPeak.
	Opening memory.Bytes `json:"opening_bytes,omitempty"`
	// Features is set with Configuration.CachedFeatures. The cache has the values for the data of the
	// trial, and Trials returns the values for all data.
	Features *Features `json:"features,omitempty"`
	// Reference is the configuration to which Trials compared this one: plain steps, unless these
	// could not run.
	Reference Configuration `json:"reference,omitzero"`
	// Out is the reason why the configuration cannot be chosen; empty if it can.
	Out string `json:"out,omitempty"`
	// Waited is the time in seconds that was too short to warm up; 0 if the configuration warmed up,
	// or failed for another reason.
	Waited float64 `json:"waited_seconds,omitempty"`
	// Late means that no time was left to measure the configuration. Passing means that Out is
	// a reason that may not hold at another time, such as a lack of memory.
	Late    bool `json:"late,omitempty"`
	Passing bool `json:"passing,omitempty"`
	// Unsaved is the reason why Trials could not store the measurement; nil on success.
	Unsaved error `json:"-"`
}

// Features describes the features of some samples.
type Features struct {
	Samples int          `json:"samples"`
	Bytes   memory.Bytes `json:"bytes"`
	// Seconds is the time to compute them. It does not include the check of features.
	Seconds float64 `json:"seconds"`
	// Difference is copied from feature.Check.
	Difference float64 `json:"difference"`
}

// plainSteps is the ratio of plain steps to themselves.
var plainSteps = Measurement{Ratio: 1, Low: 1, High: 1}

// summarize returns the measurement of c. steps has the times of a step in its rounds, beside has
// the times in the alternating rounds of another configuration, and other is the measurement of
// that configuration.
func summarize(c Configuration, steps, beside []float64, other Measurement) Measurement {
	m := Measurement{Configuration: c, Rounds: len(steps)}
	if len(steps) == 0 {
		return m
	}
	ratio, low, high := stats.MedianRatio(steps, beside)
	m.Step, m.Ratio = stats.Median(steps), other.Ratio*ratio
	m.Low = m.Ratio / spread(other.Ratio/other.Low, ratio/low)
	m.High = m.Ratio * spread(other.High/other.Ratio, high/ratio)
	return m
}

func ratios(values, to []float64) []float64 {
	r := make([]float64, len(values))
	for i := range values {
		r[i] = values[i] / to[i]
	}
	return r
}

// spread combines two independent errors, given as factors: it adds their logarithms in quadrature.
func spread(a, b float64) float64 { return math.Exp(math.Hypot(math.Log(a), math.Log(b))) }

// faster reports whether the configuration was measured to be faster than plain steps by
// margin.
func (m Measurement) faster() bool {
	return m.Out == "" && !m.Configuration.Plain() && m.Rounds >= minRounds && m.High <= 1-margin
}

// judge returns the winner. Within margin of the fastest configuration, fewer changes win. ok is
// false if plain steps win.
func judge(measured []Measurement) (winner Measurement, ok bool) {
	good := slices.DeleteFunc(slices.Clone(measured), func(m Measurement) bool { return !m.faster() })
	if len(good) == 0 {
		return Measurement{}, false
	}
	fastest := slices.MinFunc(good, func(a, b Measurement) int { return cmp.Compare(a.Ratio, b.Ratio) })
	good = slices.DeleteFunc(good, func(m Measurement) bool { return m.Ratio > fastest.Ratio/(1-margin) })
	return slices.MinFunc(good, func(a, b Measurement) int {
		return cmp.Or(cmp.Compare(a.Configuration.Changes(), b.Configuration.Changes()), cmp.Compare(a.Ratio, b.Ratio))
	}), true
}

// bestBase returns the fastest configuration without settings except oneDNN, since settings may gain
// most when they are added to it. Configurations that were slower than plain steps are left out.
func bestBase(measured []Measurement) Configuration {
	best := Measurement{Ratio: math.Inf(1)}
	for _, m := range measured {
		base, _ := m.Configuration.parts()
		if base.OneDNN = m.Configuration.OneDNN; base == m.Configuration && m.Out == "" && m.Low < 1 && m.Ratio < best.Ratio {
			best = m
		}
	}
	return best.Configuration
}

// find returns the measurement of a configuration; nil if there is none.
func find(measured []Measurement, c Configuration) *Measurement {
	if i := slices.IndexFunc(measured, func(m Measurement) bool { return m.Configuration == c }); i >= 0 {
		return &measured[i]
	}
	return nil
}

// over returns the reason why a measurement exceeds the memory budget; empty if it does not. own is
// the anonymous memory of this process. The part of own that exceeds Measurement.Base, such as the
// data, adds to the memory of the trial.
func (p *Plan) over(m Measurement, own memory.Bytes) string {
	if p.Budget <= 0 {
		return ""
	}
	kind, needs := "resident memory", m.Peak
	if p.BudgetOfAnon {
		kind, needs = "anonymous memory", m.Anon
	}
	if needs += max(own-m.Base, 0); needs <= p.Budget {
		return ""
	}
	return fmt.Sprintf("over the budget of %v of %s", p.Budget, kind)
}

// restartsLong returns the reason why a configuration saves too little for a restart; empty if
// it saves enough, or needs none.
func (p *Plan) restartsLong(m Measurement) string {
	missing, err := m.Configuration.Environment()
	if err != nil || len(missing) == 0 || p.Steps <= 0 || m.Ratio == 0 {
		return ""
	}
	if saved := float64(p.Steps) * m.Step / m.Ratio * (1 - m.High); saved >= 2*p.RestartTime.Seconds() {
		return ""
	}
	return "the restart that it needs takes too long for this training"
}

// within returns the measurements, and sets Out in those of configurations that this training must
// not use. Plain steps are never marked, since nothing needs less memory.
func (p *Plan) within(measured []Measurement, own memory.Bytes) []Measurement {
	measured = slices.Clone(measured)
	for i := range measured {
		if m := &measured[i]; m.Out == "" && !m.Configuration.Plain() {
			m.Out = cmp.Or(p.over(*m, own), p.restartsLong(*m))
		}
	}
	return measured
}

// duration formats a time per step, as in "27.1 us".
func duration(seconds float64) string {
	switch {
	case seconds < 999.5e-6:
		return fmt.Sprintf("%.3g us", seconds*1e6)
	case seconds < 0.9995:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}

// ownMemory returns the anonymous memory of this process; 0 if unknown.
func ownMemory() memory.Bytes {
	usage, err := memory.Read()
	if err != nil || !usage.Anon.OK {
		return 0
	}
	return usage.Anon.Bytes
}
