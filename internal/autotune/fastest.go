package autotune

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"steadyfit/internal/texts"
)

// Choice is the result of Choose.
type Choice struct {
	// Configuration is the fastest configuration; it is plain if no other one was faster.
	Configuration Configuration
	// Measurements are the results of the trials, plain steps first; empty if there were none.
	Measurements []Measurement
	// Reason describes the result in a line: "50 steps per execution: 27.1µs per step, 4.8
	// times as fast as plain (...)". It is empty if the training is too short for trials.
	Reason string
}

// Choose finds the fastest configuration for a training. It opens TensorFlow (tfbind.Load) but
// no session. All trials have ended when it returns.
//
// Trials that fail or find nothing faster are not an error: the choice is then plain, and
// Choice.Reason says why. An error means that ctx ended, that TensorFlow is missing, that the program has
// not called Init, or that the model cannot be trained.
func Choose(ctx context.Context, p Plan) (c Choice, err error) {
	t, err := newTrials(&p, time.Time{}, minRounds)
	if err != nil {
		return Choice{}, err
	}
	s, err := p.fastSpace()
	if err != nil {
		return Choice{}, err
	}
	switch {
	case len(s.bases)+len(s.threads)+len(s.memories) == 0:
		return Choice{Reason: "plain: the model and the options allow nothing else"}, nil
	case p.Data.Len() < p.Batch:
		return Choice{Reason: "plain: the data has no full batch to measure with"}, nil
	}
	began := time.Now()
	allowed := p.allowed(p.least())
	if plain := t.store.Plain; plain != nil {
		allowed = p.allowed(max(p.least(), seconds(plain.Step)))
	}
	t.until = began.Add(allowed)
	f := &fastestSearch{plan: &p, trials: t, began: began, mayMeasure: allowed >= minTime}
	if err = f.run(ctx, s); err == nil {
		err = f.confirm(ctx)
	}
	err = errors.Join(err, t.Close())
	switch {
	case ctx.Err() != nil:
		return Choice{}, context.Cause(ctx)
	case err != nil:
		return Choice{Reason: fmt.Sprintf("plain: nothing could be measured: %v", err)}, nil
	case f.ran == 0 && len(f.measured) == 0:
		return Choice{}, nil // the training is too short for trials
	}
	return f.choice(), nil
}

// fastestSearch adds one setting after the other to the fastest configuration so far.
type fastestSearch struct {
	plan       *Plan
	trials     *Trials
	began      time.Time
	mayMeasure bool
	// ran is the number of trials that were started, and measured has the measurements to choose from.
	ran      int
	measured []Measurement
}

// run measures oneDNN first if it is off, since the bases gain less without it. An error means that plain
// steps cannot run.
func (f *fastestSearch) run(ctx context.Context, s space) error {
	memories := s.memories
	groups := [][]Configuration{s.bases, s.threads, memories}
	if len(memories) > 0 && memories[0].OneDNN == "on" {
		groups = [][]Configuration{memories[:1], s.bases, s.threads, memories[1:]}
	}
	for _, group := range groups {
		best := fastest(f.measured)
		for _, c := range group {
			if err := f.measure(ctx, c.over(best)); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure adds the measurement of a configuration, from the store or by a trial.
func (f *fastestSearch) measure(ctx context.Context, c Configuration) error {
	p, t := f.plan, f.trials
	m := find(t.Known(), c)
	if m == nil {
		if !f.mayMeasure {
			return nil
		}
		now, err := t.Measure(ctx, c)
		if err != nil {
			return err
		}
		if f.ran++; f.ran == 1 { // the time of a plain step is known now
			t.until = f.began.Add(p.allowed(seconds(t.plain().Step)))
		}
		m = &now
	}
	f.measured = append(f.measured, *m)
	return nil
}

// confirm repeats the trial of the fastest configuration, which has to be faster than plain steps in both
// trials. Among many trials, chance makes one look fast.
func (f *fastestSearch) confirm(ctx context.Context) error {
	for f.mayMeasure {
		best := find(f.measured, fastest(f.measured))
		if best == nil || best.Confirmed {
			break
		}
		again, err := f.trials.Measure(ctx, best.Configuration)
		if err != nil || again.Late {
			return err
		}
		f.ran++
		*best = again
	}
	return nil
}

// choice returns the choice, and stores the time of plain steps.
func (f *fastestSearch) choice() Choice {
	store := f.trials.store
	if f.ran > 0 {
		plain := f.trials.plain()
		store.Plain = &plain
		store.save()
	}
	c := Choice{Configuration: fastest(f.measured), Measurements: f.measured}
	if store.Plain != nil {
		c.Measurements = slices.Insert(c.Measurements, 0, *store.Plain)
	}
	when := "measured before"
	if f.ran > 0 {
		when = fmt.Sprintf("measured in %.1f s", time.Since(f.began).Seconds())
	}
	c.Reason = c.reason(when)
	return c
}

// reason describes the result.
func (c *Choice) reason(when string) string {
	text := c.Configuration.String()
	won := find(c.Measurements, c.Configuration)
	if won != nil {
		text += fmt.Sprintf(": %s per step", texts.Duration(seconds(won.Step)))
	}
	if c.Configuration.Plain() {
		text += "; no other configuration was measurably faster"
	} else {
		text += fmt.Sprintf(", %.2g times as fast as plain", 1/won.Ratio)
	}
	return text + " (" + when + ")"
}
