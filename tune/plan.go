package tune

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/internal/stats"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// The bounds of a race.
const (
	// Share is the most that a race takes of the training that it is for.
	Share = 0.02
	// MaxRace is the most that a race takes in any case.
	MaxRace = 20 * time.Second
	// MinRace is the least time that a race is begun with: two processes have to open
	// TensorFlow and the model, and to warm up.
	MinRace = 1500 * time.Millisecond
	// Margin is how much faster than plain steps a winner is at least, by the end of
	// its interval that is nearer to them.
	Margin = 0.03
)

// What a step takes at least: the fastest single step that was measured took 58 us (a
// dense model of 64 units, XLA, one thread), and a batch is copied at no more than the
// speed of memory.
const (
	leastStep   = 50 * time.Microsecond
	copiedBytes = 20e9 // per second
)

// Plan is a training that a way is chosen for.
type Plan struct {
	// Model is what is trained, opened with Options, which are those of the session
	// that will train, as they are without a choice.
	Model   *savedmodels.Model
	Options session.Options
	// Limits say what may be chosen.
	Limits Limits
	// Data is what is trained on, Batch samples at a time. Its first batches are run,
	// as far as the first 64 MiB go.
	Data  data.Dataset
	Batch int
	// Steps is the number of train steps still to do; 0 if that is not known. Then
	// only Time limits the race.
	Steps int64
	// LearningRate is fed to a model that takes one; the weights of the race are not
	// kept.
	LearningRate float64
	// Budget is the memory that the training may use at any time, RSS or, with
	// BudgetOfAnon, anonymous memory; 0 is no limit.
	Budget       memory.Bytes
	BudgetOfAnon bool
	// Cache is the folder of choices that were made before, as of [CacheDir]; empty
	// keeps none.
	Cache string
	// KeptOnly takes what the cache has, or else plain steps, without a race.
	KeptOnly bool
	// Anew has a race although the cache has a choice.
	Anew bool
	// Time is the most that the race may take; 0 is MaxRace.
	Time time.Duration
	// Log gets what is of no concern to most, at the level of debugging; nil discards it.
	Log *slog.Logger
}

// Least is the least time that a step is taken to need before it has been measured: 50 us
// and what it takes to copy the batch at 20 GB/s.
func (p *Plan) Least() time.Duration {
	return leastStep + time.Duration(batchBytes(p.Data, p.Batch)/copiedBytes*1e9)
}

// batchBytes is the size of a batch, in bytes.
func batchBytes(ds data.Dataset, batch int) float64 {
	bytes := 0.0
	for _, f := range ds.Fields() {
		n := float64(batch) * sizeOf(f.Type)
		for _, d := range f.Shape {
			n *= float64(d)
		}
		bytes += n
	}
	return bytes
}

// sizeOf is the number of bytes of an element.
func sizeOf(kind string) float64 {
	switch {
	case strings.HasSuffix(kind, "64"):
		return 8
	case strings.HasSuffix(kind, "32"):
		return 4
	case strings.HasSuffix(kind, "16"):
		return 2
	}
	return 1
}

// Allowed is the most that a race may take for a training of so many steps that take so
// long each.
func Allowed(steps int64, step time.Duration) time.Duration {
	allowed := Share * float64(steps) * float64(step)
	return time.Duration(min(allowed, float64(MaxRace)))
}

// allowed is Allowed for the plan.
func (p *Plan) allowed(step time.Duration) time.Duration {
	most := cmp.Or(p.Time, MaxRace)
	if p.Steps <= 0 {
		return most
	}
	return min(Allowed(p.Steps, step), most)
}

// Measurement is what the race found about a candidate.
type Measurement struct {
	Candidate Candidate `json:"candidate"`
	// Step is the median over rounds of the time of a step, in seconds.
	Step float64 `json:"step_seconds,omitempty"`
	// Ratio is the time of a step divided by that of plain steps: the median over rounds
	// of what it is to the fastest way that was found before, in the same round, times the
	// Ratio of that. Between Low and High it lies with a confidence of about three
	// quarters (3 rounds), and of nine tenths or more from 5 rounds on; what is not known
	// of the two factors is taken for independent.
	Ratio  float64 `json:"ratio,omitempty"`
	Low    float64 `json:"ratio_low,omitempty"`
	High   float64 `json:"ratio_high,omitempty"`
	Rounds int     `json:"rounds,omitempty"`
	// Peak and Anon are the largest RSS and anonymous memory of its process, in bytes;
	// 0 is not known.
	Peak memory.Bytes `json:"peak_bytes,omitempty"`
	Anon memory.Bytes `json:"anon_bytes,omitempty"`
	// Base is the anonymous memory that its process had before it opened the model, as any
	// process has that has opened TensorFlow, in bytes.
	Base memory.Bytes `json:"base_bytes,omitempty"`
	// Out says why it cannot win; empty if it was measured and could have.
	Out string `json:"out,omitempty"`
	// Late means that a race with more time might measure it.
	Late bool `json:"late,omitempty"`
	// Passing means that it is out for a reason that may not be there another time, such
	// as a lack of memory.
	Passing bool `json:"passing,omitempty"`
}

// The rounds of a race: at least minRounds to conclude anything; slowRounds for what does
// not win; and maxRounds where there is time.
const (
	minRounds  = 3
	slowRounds = 5
	maxRounds  = 9
)

// plainSteps are what plain steps are to themselves.
var plainSteps = Measurement{Ratio: 1, Low: 1, High: 1}

// summarize puts the rounds of a candidate beside those of another one, pairwise, of which
// it is known what it is to plain steps.
func summarize(c Candidate, steps, beside []float64, other Measurement) Measurement {
	m := Measurement{Candidate: c, Rounds: len(steps)}
	if len(steps) == 0 {
		return m
	}
	ratio, low, high := stats.MedianRatio(steps, beside)
	m.Step, m.Ratio = stats.Median(steps), other.Ratio*ratio
	m.Low = m.Ratio / spread(other.Ratio/other.Low, ratio/low)
	m.High = m.Ratio * spread(other.High/other.Ratio, high/ratio)
	return m
}

// ratios are those of values to others.
func ratios(values, to []float64) []float64 {
	r := make([]float64, len(values))
	for i := range values {
		r[i] = values[i] / to[i]
	}
	return r
}

// spread combines two independent relative errors in quadrature, in log space.
func spread(a, b float64) float64 { return math.Exp(math.Hypot(math.Log(a), math.Log(b))) }

// faster reports whether it was shown to be faster than plain steps by Margin.
func (m Measurement) faster() bool {
	return m.Out == "" && !m.Candidate.Plain() && m.Rounds >= minRounds && m.High <= 1-Margin
}

// judge says which of the measurements wins: the fastest of those that are faster than
// plain steps; among those within Margin of it, the one that changes least. ok is false if
// plain steps stay.
func judge(measured []Measurement) (winner Measurement, ok bool) {
	good := slices.DeleteFunc(slices.Clone(measured), func(m Measurement) bool { return !m.faster() })
	if len(good) == 0 {
		return Measurement{}, false
	}
	fastest := slices.MinFunc(good, func(a, b Measurement) int { return cmp.Compare(a.Ratio, b.Ratio) })
	good = slices.DeleteFunc(good, func(m Measurement) bool { return m.Ratio > fastest.Ratio/(1-Margin) })
	return slices.MinFunc(good, func(a, b Measurement) int {
		if d := a.Candidate.changes() - b.Candidate.changes(); d != 0 {
			return d
		}
		return cmp.Compare(a.Ratio, b.Ratio)
	}), true
}

// bestWay is the way with the least ratio to plain steps of those that were measured
// without settings and not shown to be slower: it may be what settings gain most on. It is
// plain where there is none.
func bestWay(measured []Measurement) Candidate {
	best := Measurement{Ratio: math.Inf(1)}
	for _, m := range measured {
		if _, on := m.Candidate.parts(); len(on) == 0 && m.Out == "" && m.Low < 1 && m.Ratio < best.Ratio {
			best = m
		}
	}
	return best.Candidate
}

// over says why a measurement breaks the budget of memory; empty if it does not. own is
// the anonymous memory of this process: what is more than Base, such as its data, the
// training has beside that of the candidate.
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

// within is what was measured, with what breaks the budget out. Plain steps stay, since
// there is nothing that takes less.
func (p *Plan) within(measured []Measurement, own memory.Bytes) []Measurement {
	measured = slices.Clone(measured)
	for i := range measured {
		if m := &measured[i]; m.Out == "" && !m.Candidate.Plain() {
			m.Out = p.over(*m, own)
		}
	}
	return measured
}

// finite reports whether all of the values are numbers that training can go on from.
func finite(values []float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// Duration is a time per step as people read it, as in "27.1 us".
func Duration(seconds float64) string {
	switch {
	case seconds < 999.5e-6:
		return fmt.Sprintf("%.3g us", seconds*1e6)
	case seconds < 0.9995:
		return fmt.Sprintf("%.3g ms", seconds*1e3)
	}
	return fmt.Sprintf("%.3g s", seconds)
}

// ownMemory is the anonymous memory of this process; 0 if it is not known.
func ownMemory() memory.Bytes {
	usage, err := memory.Read()
	if err != nil || !usage.Anon.OK {
		return 0
	}
	return usage.Anon.Bytes
}
