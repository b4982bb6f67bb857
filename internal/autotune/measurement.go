package autotune

import (
	"cmp"
	"errors"
	"slices"

	"steadyfit/internal/stats"
	"steadyfit/memory"
)

// margin is the minimum speedup over plain steps. The whole confidence interval of the chosen
// configuration must exceed it.
const margin = 0.03

// The numbers of rounds of a trial: minRounds before any conclusion, slowRounds before a configuration of
// Run counts as slower, and maxRounds if there is time.
const (
	minRounds  = 3
	slowRounds = 5
	maxRounds  = 9
)

// Measurement is the result of a trial of one configuration.
type Measurement struct {
	Configuration Configuration `json:"candidate"`
	// Step is the median time of a step over rounds, in seconds.
	Step float64 `json:"step_seconds,omitempty"`
	// Ratio is the time of a step divided by the time of a step of Reference: the median, over rounds, of
	// the ratio in the same round. It lies between Low and High with a confidence of about 3/4 for 3
	// rounds, and of at least 0.9 from 5 rounds on.
	Ratio  float64 `json:"ratio,omitempty"`
	Low    float64 `json:"ratio_low,omitempty"`
	High   float64 `json:"ratio_high,omitempty"`
	Rounds int     `json:"rounds,omitempty"`
	// Confirmed means that this is the slower one of two trials for Choose.
	Confirmed bool `json:"confirmed,omitempty"`
	// Peak is the highest RSS since the session was opened, and Anon its anonymous part. The store has the
	// amounts of the trial, and Trials returns the amounts of a training with all its data. 0 means unknown.
	Peak memory.Bytes `json:"peak_bytes,omitempty"`
	Anon memory.Bytes `json:"anon_bytes,omitempty"`
	// Base is the anonymous memory before the session was opened, with the data of the trial.
	Base memory.Bytes `json:"base_bytes,omitempty"`
	// Reference is the configuration to which this one was compared: plain steps, unless these could not
	// run.
	Reference Configuration `json:"reference,omitzero"`
	// Out is the reason why the configuration cannot be chosen; empty if it can.
	Out string `json:"out,omitempty"`
	// Late means that no time was left to measure the configuration.
	Late bool `json:"-"`
}

// failed returns the measurement of a configuration that failed.
func failed(c Configuration, err error) Measurement {
	return Measurement{Configuration: c, Out: err.Error(), Late: errors.Is(err, errLate)}
}

// summarize returns the measurement of c. steps has the times of a step in its rounds, and beside those in
// the alternating rounds of the reference.
func summarize(c Configuration, steps, beside []float64) Measurement {
	m := Measurement{Configuration: c, Rounds: len(steps), Step: stats.Median(steps)}
	m.Ratio, m.Low, m.High = stats.MedianRatio(steps, beside)
	return m
}

// addMemory takes the memory from an answer of the trial.
func (m *Measurement) addMemory(a answer) {
	m.Peak, m.Anon, m.Base = a.Peak, max(a.Peak-a.Mapped, 0), a.Base
}

// faster reports whether the configuration was measured to be faster than plain steps by
// margin.
func (m Measurement) faster() bool {
	return m.Out == "" && !m.Configuration.Plain() && m.Rounds >= minRounds && m.High <= 1-margin
}

// fastest returns the configuration to choose. Within margin of the fastest configuration, fewer changes
// win. It is plain if no configuration is measurably faster.
func fastest(measured []Measurement) Configuration {
	good := slices.DeleteFunc(slices.Clone(measured), func(m Measurement) bool { return !m.faster() })
	if len(good) == 0 {
		return Configuration{}
	}
	best := slices.MinFunc(good, func(a, b Measurement) int { return cmp.Compare(a.Ratio, b.Ratio) })
	good = slices.DeleteFunc(good, func(m Measurement) bool { return m.Ratio > best.Ratio/(1-margin) })
	return slices.MinFunc(good, func(a, b Measurement) int {
		return cmp.Or(cmp.Compare(a.Configuration.changes(), b.Configuration.changes()), cmp.Compare(a.Ratio, b.Ratio))
	}).Configuration
}

// find returns the measurement of a configuration; nil if there is none.
func find(measured []Measurement, c Configuration) *Measurement {
	if i := slices.IndexFunc(measured, func(m Measurement) bool { return m.Configuration == c }); i >= 0 {
		return &measured[i]
	}
	return nil
}

// ownMemory returns the anonymous memory of this process; 0 if unknown.
func ownMemory() memory.Bytes {
	usage, _ := memory.Read() // unknown amounts are 0
	return usage.Anon.Bytes
}
