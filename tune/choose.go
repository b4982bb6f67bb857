package tune

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// Choice is what Choose has chosen.
type Choice struct {
	// Candidate is to be applied to the options of the session; the zero value is
	// plain. It is not kept: another training may have less to choose from.
	Candidate Candidate `json:"-"`
	// Measurements are those of the race, plain steps first; empty if there was none.
	Measurements []Measurement `json:"measurements,omitempty"`
	// Why says what was found, in a line without an end: "fused 50 steps, XLA twin:
	// 27.1 us per step, 4.8 times as fast as plain (...)".
	Why string `json:"-"`
	// Took is how long the race was.
	Took time.Duration `json:"took_ns,omitempty"`
	// Allowed is how long it might have been.
	Allowed time.Duration `json:"allowed_ns,omitempty"`
	// Cached means that an earlier race has chosen.
	Cached bool `json:"-"`
	// Unkept says that what was measured could not be kept in Plan.Cache, and why; nil if it
	// was, or was not to be.
	Unkept error `json:"-"`
}

var discard = slog.New(slog.DiscardHandler)

// Choose finds the fastest way to run a training. It opens TensorFlow (tfbind.Load), and
// no session; the race runs in child processes, which have ended when it returns, and
// whose main calls Child first.
//
// A race that finds nothing, or fails, is no error: the choice is plain, and Choice.Why
// says why. Errors are those of ctx, of TensorFlow that is not there, and of a model that
// cannot be trained.
func Choose(ctx context.Context, p Plan) (Choice, error) {
	if ctx == nil {
		return Choice{}, errors.New("tune: the context is nil; give one, such as context.Background()")
	}
	if p.Log == nil {
		p.Log = discard
	}
	if os.Getenv(Env) != "" {
		return Choice{}, errors.New("tune: this is a process of a race, which would begin another: main has to call tune.Child first")
	}
	info, err := tfbind.Load("")
	if err != nil {
		return Choice{}, err
	}
	ways, settings, err := Candidates(p.Model, p.Options, p.Data, p.Batch, p.Limits)
	if err != nil {
		return Choice{}, err
	}
	if len(ways)+len(settings) == 0 {
		return Choice{Why: "plain: the model and the options offer nothing else"}, nil
	}
	if p.Data.Len() < p.Batch {
		return Choice{Why: "plain: there is no whole batch to measure with"}, nil
	}
	if slices.ContainsFunc(p.Data.Fields(), func(f data.FieldSpec) bool { return f.Type == "string" }) {
		return Choice{Why: "plain: data with text is not measured"}, nil
	}
	key := newKey(&p, info)
	kept := p.kept(key)
	allowed := p.allowed(max(p.Least(), kept.step()))
	if c := kept.Choice; c != nil && !p.Anew {
		now, whole := c.now(ways, settings)
		// Where a race has no time, what is known is better than nothing.
		if p.KeptOnly || allowed < MinRace || whole && !now.shortOf(allowed) {
			now.decide(&p, ownMemory())
			now.Cached, now.Why = true, now.why(true)
			return now, nil
		}
	}
	switch {
	case p.KeptOnly:
		return Choice{Why: "plain: no choice is kept for this model, this data and machine"}, nil
	case allowed < MinRace:
		return Choice{Why: fmt.Sprintf("plain: too short a training to measure what is faster (%d steps)", p.Steps)}, nil
	}
	start := time.Now()
	r := newRace(&p, info)
	measured, err := r.run(ctx, ways, settings, allowed)
	if ctx.Err() != nil {
		return Choice{}, context.Cause(ctx)
	}
	if err != nil {
		return Choice{Why: fmt.Sprintf("plain: nothing could be measured: %v", err)}, nil
	}
	c := Choice{Measurements: measured, Took: time.Since(start), Allowed: p.allowed(seconds(measured[0].Step))}
	earlier := kept.Choice
	if p.Anew && earlier != nil {
		earlier = earlier.without(measured, ways, settings)
	}
	c.add(earlier)
	kept.PlainSeconds = measured[0].Step
	if slices.ContainsFunc(measured[1:], func(m Measurement) bool { return !m.Late && !m.Passing }) {
		// Without the budget, which is another one the next time.
		kept.Choice = &c
	}
	unkept := p.keep(key, kept)
	c, _ = c.now(ways, settings)
	if unkept != nil {
		c.Unkept = option.Errorf("what was measured is not kept for the next training: %w; set {Plan.Cache} to a folder that can be written", unkept)
	}
	c.decide(&p, r.own)
	won := of(measured, c.Candidate)
	c.Why = c.why(won == nil || won.Late)
	return c, nil
}

// without is what an earlier race has measured, but for what is offered: that must not win by
// the chance of having been measured then and not now. What there was no time for now stays.
func (c *Choice) without(measured []Measurement, ways, settings []Candidate) *Choice {
	left := *c
	left.Measurements = slices.DeleteFunc(slices.Clone(c.Measurements), func(m Measurement) bool {
		candidate, again := offered(m.Candidate, ways, settings)
		now := of(measured, candidate)
		return again && (now == nil || !now.Late)
	})
	return &left
}

// add takes what an earlier race has measured and this one has not, such as what this
// training must not use, and what there was no time for.
func (c *Choice) add(earlier *Choice) {
	if earlier == nil {
		return
	}
	c.Measurements = slices.Clone(c.Measurements)
	for _, m := range earlier.Measurements {
		if !m.Late && !m.Passing {
			c.put(m)
		}
	}
}

// put adds a measurement, unless there is one of the same candidate for which there was time.
func (c *Choice) put(m Measurement) {
	if have := c.of(m.Candidate); have == nil {
		c.Measurements = append(c.Measurements, m)
	} else if have.Late {
		*have = m
	}
}

// decide chooses by what was measured. own is the anonymous memory of this process.
func (c *Choice) decide(p *Plan, own memory.Bytes) {
	c.Measurements, c.Candidate = p.within(c.Measurements, own), Candidate{}
	if winner, ok := judge(c.Measurements); ok {
		c.Candidate = winner.Candidate
	}
}

// now is a kept choice with those of its measurements that are about what is offered. whole
// means that all of that was measured.
func (c *Choice) now(ways, settings []Candidate) (now Choice, whole bool) {
	now, whole = *c, true
	now.Measurements = nil
	missing := slices.Concat(ways, settings)
	for _, m := range c.Measurements {
		candidate, ok := offered(m.Candidate, ways, settings)
		if !ok {
			continue
		}
		m.Candidate = candidate
		now.put(m)
		way, on := candidate.parts()
		missing = slices.DeleteFunc(missing, func(c Candidate) bool {
			return len(on) == 0 && c == way || slices.Contains(on, c)
		})
	}
	return now, len(missing) == 0
}

// shortOf reports whether a race of so much time could measure what this one had no time
// for, or what failed then and may not fail now.
func (c *Choice) shortOf(allowed time.Duration) bool {
	return slices.ContainsFunc(c.Measurements, func(m Measurement) bool {
		return m.Passing && allowed >= min(c.Allowed, MaxRace) || m.Late && allowed >= 2*c.Allowed
	})
}

// of is the measurement of a candidate; nil if there is none.
func (c *Choice) of(candidate Candidate) *Measurement { return of(c.Measurements, candidate) }

func of(measured []Measurement, c Candidate) *Measurement {
	if i := slices.IndexFunc(measured, func(m Measurement) bool { return m.Candidate == c }); i >= 0 {
		return &measured[i]
	}
	return nil
}

// why says what was found.
func (c *Choice) why(kept bool) string {
	when := fmt.Sprintf("measured in %.1f s", c.Took.Seconds())
	if kept {
		when = "measured before"
	}
	won := c.of(c.Candidate)
	if won == nil {
		return c.Candidate.String() + " (" + when + ")"
	}
	text := fmt.Sprintf("%s: %s per step", c.Candidate, Duration(won.Step))
	if c.Candidate.Plain() {
		text += ", and nothing was shown to be faster"
		if slices.ContainsFunc(c.Measurements, func(m Measurement) bool { return m.Out != "" && m.Rounds >= minRounds }) {
			text += " that may be chosen"
		}
	} else {
		text += fmt.Sprintf(", %.2g times as fast as plain", 1/won.Ratio)
	}
	var lost []string
	more := map[string]int{} // that are out for the same reason
	for _, m := range c.Measurements {
		more[m.Out]++
	}
	for _, m := range c.Measurements {
		if m.Out == "" || more[m.Out] == 0 {
			continue
		}
		who := m.Candidate.String() + " is"
		if n := more[m.Out] - 1; n > 0 {
			who = fmt.Sprintf("%s and %d more are", m.Candidate, n)
		}
		more[m.Out] = 0 // said
		lost = append(lost, fmt.Sprintf("%s out: %s", who, m.Out))
	}
	return strings.Join(append([]string{text + " (" + when + ")"}, lost...), "; ")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
