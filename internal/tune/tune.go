package tune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"steadyfit/internal/autotune"
	"steadyfit/internal/english"
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

// Point is a measured configuration.
type Point struct {
	Configuration autotune.Configuration
	// Step is the time of a step, between StepLow and StepHigh in all trials: the time of a step of
	// the reference, times the measured ratio.
	Step, StepLow, StepHigh time.Duration
	// Peak is the highest peak of all trials since the session was opened, and PeakLow the lowest.
	Peak, PeakLow memory.Bytes
	// Opening is the highest peak while the session was opened; 0 if it is unknown. A budget is kept from
	// the first step on, so Opening may exceed it.
	Opening memory.Bytes
	Trials  int
	// Features describes the cached features of all data; nil without.
	Features *autotune.Features
}

// Opens describes the peak while the model is opened; it is empty if a step has the highest peak.
func (p Point) Opens() string {
	if p.Opening <= p.Peak {
		return ""
	}
	return fmt.Sprintf("opening the model takes %v for a moment", p.Opening)
}

// Failure is a configuration that could not run.
type Failure struct {
	Configuration autotune.Configuration
	Reason        string
}

// Result is the outcome of a search.
type Result struct {
	// Default has plain steps; nil if they cannot run.
	Default *Point
	// Points are the measured configurations, fastest first. Front has those for which no other one is
	// faster and smaller.
	Points, Front []Point
	// Chosen is the choice for the goal; nil if no configuration reaches it. Nearest is then the
	// configuration that comes closest.
	Chosen, Nearest *Point
	Failures        []Failure
	// Configurations is the number of all configurations. Complete is false if time ran out while
	// configurations were left that are worth a trial.
	Configurations int
	Complete       bool
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
		rest = "no other one is predicted to be better"
	}
	return fmt.Sprintf("measured %d of %s; %s", len(r.Points), english.Count(r.Configurations, "combination"), rest)
}

// Cache describes the cached features of the rows; it is empty if no row has cached features.
func (r Result) Cache() string {
	for _, p := range r.Rows() {
		if f := p.Features; f != nil {
			return fmt.Sprintf("cached features take %v for all %d samples, which the peak includes, and are computed once, before the first step, in about %s after their check; the time of a step is that of all epochs",
				f.Bytes, f.Samples, english.Duration(time.Duration(f.Seconds*float64(time.Second))))
		}
	}
	return ""
}

// Comparison compares the choice with the default; it is empty if one of them is missing.
func (r Result) Comparison() string {
	if r.Chosen == nil || r.Default == nil {
		return ""
	}
	return fmt.Sprintf("%.3g times the peak and %.3g times the time of the default",
		float64(r.Chosen.Peak)/float64(r.Default.Peak), r.Chosen.Step.Seconds()/r.Default.Step.Seconds())
}

// Event describes a trial that is about to begin, or that has ended.
type Event struct {
	// Configuration is the configuration of the trial. If there were earlier trials, the first event
	// has only their number.
	Configuration autotune.Configuration
	// Done is nil before the trial.
	Done *autotune.Measurement
	// Trials counts all trials, earlier ones too.
	Trials int
}

// ErrNothing means that no configuration was measured.
var ErrNothing = errors.New("tune: nothing was measured")

// trials is implemented by autotune.Trials.
type trials interface {
	Known() []autotune.Measurement
	Measure(context.Context, autotune.Configuration) (autotune.Measurement, error)
}

// Run searches until a time. TensorFlow must be open. If ctx ends, the error is its cause, and the
// next call continues. progress may be nil.
func Run(ctx context.Context, p *autotune.Plan, g Goal, until time.Time, progress func(Event)) (r Result, err error) {
	bases, groups, err := p.Space()
	if err != nil {
		return r, err
	}
	t, err := autotune.NewTrials(p, until)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	s := newSearch(g, bases, groups, p.Over)
	if err := s.run(ctx, t, until, progress); err != nil {
		return r, err
	}
	return s.result()
}

// searchShare is the part of the time for configurations that have no trial yet. The rest repeats
// trials of the best ones.
const searchShare = 0.8

func (s *search) run(ctx context.Context, t trials, until time.Time, progress func(Event)) error {
	for _, m := range t.Known() {
		if !m.Passing {
			s.add(m)
		}
	}
	if progress == nil {
		progress = func(Event) {}
	}
	if s.count > 0 {
		progress(Event{Trials: s.count})
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
		progress(Event{Configuration: c, Trials: s.count})
		m, err := t.Measure(ctx, c)
		if err != nil {
			return err
		}
		if m.Late {
			return nil
		}
		s.add(m)
		progress(Event{Configuration: c, Done: &m, Trials: s.count})
	}
}

// result returns the front and the choice of the measured configurations.
func (s *search) result() (Result, error) {
	if len(s.points) == 0 {
		why := cmp.Or(s.failed[autotune.Configuration{}], "no time was left")
		return Result{}, fmt.Errorf("%w: plain steps: %s", ErrNothing, why)
	}
	r := Result{Configurations: len(s.candidates), Complete: s.complete}
	if plain := s.point(autotune.Configuration{}); plain != nil {
		shown := s.show(*plain)
		r.Default = &shown
	}
	for _, p := range slices.SortedFunc(slices.Values(s.points), faster) {
		r.Points = append(r.Points, s.show(p))
	}
	for _, p := range front(s.points) {
		r.Front = append(r.Front, s.show(p))
	}
	best, reached := s.best()
	shown := s.show(best)
	if r.Nearest = &shown; reached {
		r.Chosen, r.Nearest = &shown, nil
	}
	for _, c := range s.candidates {
		if why := s.failed[c.is]; why != "" {
			r.Failures = append(r.Failures, Failure{c.is, why})
		}
	}
	return r, nil
}

// show converts a point, whose times are ratios, to a Point with the times of a step.
func (s *search) show(p point) Point {
	of := func(ratio float64) time.Duration {
		return time.Duration(math.Round(ratio * s.plainStep() * float64(time.Second)))
	}
	return Point{
		Configuration: p.is, Step: of(p.ratio), StepLow: of(p.low), StepHigh: of(p.high),
		Peak: p.peak, PeakLow: p.least, Opening: p.opening, Trials: p.trials, Features: p.features,
	}
}
