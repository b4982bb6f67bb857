package autotune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// Goal selects the configuration to choose. The zero value chooses the one with the least product of
// time and memory.
type Goal struct {
	// Budget is the memory that the training may use: RSS or, if Anon is set, anonymous memory. The
	// fastest configuration under it is chosen.
	Budget memory.Bytes
	Anon   bool
	// Step is the longest time of a step. The configuration with the least memory is chosen.
	Step time.Duration
}

// reserve is the part of a budget that stays free: package budget acts when less than 3% are free,
// and peaks of two runs differ.
const reserve = 0.05

// Limit returns the highest peak of a configuration that keeps the budget.
func (g Goal) Limit() memory.Bytes { return memory.Bytes((1 - reserve) * float64(g.Budget)) }

// Point summarizes all trials of a configuration.
type Point struct {
	// Settings is the configuration in words.
	Settings      string        `json:"settings"`
	Configuration Configuration `json:"configuration"`
	// Peak is the highest peak of all trials since the session was opened, and PeakLow the lowest.
	Peak    memory.Bytes `json:"peak_bytes"`
	PeakLow memory.Bytes `json:"peak_low_bytes"`
	// Step is the time of a step in seconds: that of the reference times the measured ratio. It was between
	// StepLow and StepHigh in all trials.
	Step     float64 `json:"step_seconds"`
	StepLow  float64 `json:"step_seconds_low"`
	StepHigh float64 `json:"step_seconds_high"`
	Trials   int     `json:"trials"`
	// Numbers describes how the results relate to those of plain steps.
	Numbers string `json:"numbers"`

	// at has the values of the candidate. ratio, low and high are times relative to
	// search.reference.
	at               []int
	ratio, low, high float64
}

// numbers returns Point.Numbers. inexact means that micro-batches change the update.
func (p Point) numbers(inexact bool) string {
	switch c := p.Configuration; {
	case inexact && c.MicroBatches > 1:
		return "another update"
	case c.Rounds():
		return "rounding"
	}
	return "same bits"
}

// Result is the outcome of a search. Its JSON is the output of tune.
type Result struct {
	// Default has plain steps; nil if they cannot run.
	Default *Point `json:"default"`
	// Points are the measured configurations, fastest first. Front has those for which no other one is
	// faster and smaller.
	Points []Point `json:"-"`
	Front  []Point `json:"front"`
	// Chosen is the choice for the goal; nil if no configuration reaches it. Nearest is then the
	// configuration that comes closest.
	Chosen  *Point `json:"chosen"`
	Nearest *Point `json:"-"`
	// Failures has the reasons of configurations that could not run.
	Failures map[string]string `json:"failures,omitempty"`
	// Measured is the number of Points, and Configurations the number of all configurations. Complete is
	// false if time ran out before all configurations worth a trial were measured.
	Measured       int  `json:"measured"`
	Configurations int  `json:"configurations"`
	Complete       bool `json:"complete"`
}

// Rows returns the points to show: the default, then the front and the choice or the nearest, fastest
// first.
func (r Result) Rows() (rows []Point) {
	if r.Default != nil {
		rows = append(rows, *r.Default)
	}
	for _, p := range r.Points {
		is := func(q Point) bool { return q.Configuration == p.Configuration }
		best := cmp.Or(r.Chosen, r.Nearest)
		if !p.Configuration.Plain() && (slices.ContainsFunc(r.Front, is) || best != nil && is(*best)) {
			rows = append(rows, p)
		}
	}
	return rows
}

// Extent returns a sentence about how much of the search is done.
func (r Result) Extent() string {
	rest := "the time ran out, and others may be better: run the same command again to measure more"
	if r.Complete {
		rest = "each setting was tried with the best other settings"
	}
	return fmt.Sprintf("measured %d of %s; %s", r.Measured, texts.Count(r.Configurations, "combination"), rest)
}

// Comparison compares the choice with the default; it is empty if one of them is missing.
func (r Result) Comparison() string {
	if r.Chosen == nil || r.Default == nil {
		return ""
	}
	return fmt.Sprintf("%.3g times the peak and %.3g times the time of the default",
		float64(r.Chosen.Peak)/float64(r.Default.Peak), r.Chosen.Step/r.Default.Step)
}

// errNothing means that no configuration was measured.
var errNothing = errors.New("tune: nothing was measured")

// measurer is implemented by Trials.
type measurer interface {
	Known() []Measurement
	Measure(context.Context, Configuration) (Measurement, error)
}

// Run searches until a time, and calls done after each trial. TensorFlow must be open. If ctx ends, the
// error is its cause, and the next call continues.
func Run(ctx context.Context, p *Plan, g Goal, until time.Time, done func(Measurement)) (r Result, err error) {
	plan := *p
	plan.searches = true
	space, err := plan.goalSpace()
	if err != nil {
		return r, err
	}
	t, err := newTrials(&plan, until, slowRounds)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	// The groups that change memory most come first.
	s := newSearch(g, [][]Configuration{space.bases, space.memories, space.threads, space.prefetch}, plan.over)
	s.inexact = plan.inexact()
	if err := s.run(ctx, t, until, done); err != nil {
		return r, err
	}
	return s.result()
}

// searchShare is the part of the time for configurations that have no trial yet. The rest repeats
// trials of the best ones and of the default.
const searchShare = 0.75

func (s *search) run(ctx context.Context, t measurer, until time.Time, done func(Measurement)) error {
	for _, m := range t.Known() {
		s.add(m)
	}
	began := time.Now()
	searchUntil := began.Add(time.Duration(searchShare * float64(until.Sub(began))))
	for {
		c, ok := s.next()
		s.complete = !ok
		if !ok || time.Now().After(searchUntil) {
			if c, ok = s.repeat(); !ok {
				return nil
			}
		}
		m, err := t.Measure(ctx, c)
		if err != nil || m.Late {
			return err
		}
		s.add(m)
		done(m)
	}
}

// result returns the front and the choice of the measured configurations.
func (s *search) result() (Result, error) {
	if len(s.points) == 0 {
		why := cmp.Or(s.failed[Configuration{}], "no time was left")
		return Result{}, fmt.Errorf("%w: plain steps: %s", errNothing, why)
	}
	plain := s.plainStep()
	for i := range s.points {
		p := &s.points[i]
		p.Step, p.StepLow, p.StepHigh = p.ratio*plain, p.low*plain, p.high*plain
		p.Settings, p.Numbers = p.Configuration.String(), p.numbers(s.inexact)
	}
	best, reached := s.choice()
	r := Result{
		Default: s.point(Configuration{}), Points: slices.SortedFunc(slices.Values(s.points), faster),
		Front: front(s.points), Failures: map[string]string{}, Measured: len(s.points),
		Configurations: len(s.candidates), Complete: s.complete,
	}
	for c, why := range s.failed {
		r.Failures[c.String()] = why
	}
	if r.Nearest = &best; reached {
		r.Chosen, r.Nearest = &best, nil
	}
	return r, nil
}
