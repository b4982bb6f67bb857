package autotune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

const (
	// share is the part of a training that trials may take.
	share = 0.02
	// maxTime is the most that trials may take in any case. minTime is the least time to begin
	// with: two processes have to open TensorFlow and the model, and to warm up.
	maxTime = 20 * time.Second
	minTime = 1500 * time.Millisecond
	// leastStep is less than any step takes: the fastest one measured took 58 us, on a dense
	// model of 64 units, with XLA and one thread. A batch is copied at copiedBytes per second at
	// most.
	leastStep   = 50 * time.Microsecond
	copiedBytes = 20e9
)

// Plan is a training to choose a configuration for.
type Plan struct {
	// Model is what is trained, and Options are those of its session without a choice.
	Model   *savedmodels.Model
	Options session.Options
	// Limits say what may be chosen.
	Limits Limits
	// Data is what is trained on, Batch samples at a time. Trials use its first 64 MiB.
	Data  data.Dataset
	Batch int
	// Steps is the number of train steps to do; 0 is unknown, and only Time limits the trials.
	Steps int64
	// LearningRate is fed to a model that takes one.
	LearningRate float64
	// Budget is the memory that the training may use, RSS or with BudgetOfAnon anonymous memory;
	// 0 is no limit.
	Budget       memory.Bytes
	BudgetOfAnon bool
	// Cache is the folder of earlier measurements, such as CacheDir(); empty keeps none.
	Cache string
	// CacheOnly takes what the cache has, or else plain steps, without trials.
	CacheOnly bool
	// Refresh measures although the cache has a choice.
	Refresh bool
	// Time is the most that the trials may take; 0 means 20 s.
	Time time.Duration
	// Log gets details, at the level of debugging; nil discards them.
	Log *slog.Logger
}

// Affords reports whether something may take so long once, beside a training of Steps steps of
// the least time that they may take.
func (p *Plan) Affords(cost time.Duration) bool {
	return float64(cost) <= share*float64(p.Steps)*float64(p.least())
}

// least is the least time that a step may take: the fastest one known, and copying the batch.
func (p *Plan) least() time.Duration {
	return leastStep + seconds(batchBytes(p.Data, p.Batch)/copiedBytes)
}

// allowed is the most that the trials may take if a step takes so long.
func (p *Plan) allowed(step time.Duration) time.Duration {
	most := cmp.Or(p.Time, maxTime)
	if p.Steps <= 0 {
		return most
	}
	return time.Duration(min(share*float64(p.Steps)*float64(step), float64(maxTime), float64(most)))
}

// batchBytes is the size of a batch, in bytes.
func batchBytes(ds data.Dataset, batch int) float64 {
	bytes := 0.0
	for _, f := range ds.Fields() {
		n := float64(batch)
		if t := dtype.ByName(f.Type); t != nil {
			n *= float64(t.Size)
		}
		for _, d := range f.Shape {
			n *= float64(d)
		}
		bytes += n
	}
	return bytes
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Choice is what Choose has chosen.
type Choice struct {
	// Configuration is the winner; plain if none was faster. The cache does not keep it, since
	// another training may have less to choose from.
	Configuration Configuration `json:"-"`
	// Measurements are those of the trials, plain steps first; empty if there were none.
	Measurements []Measurement `json:"measurements,omitempty"`
	// Reason says what was found, in a line: "50 steps per execution: 27.1 us per step, 4.8
	// times as fast as plain (...)".
	Reason string `json:"-"`
	// Took is how long the trials took, and Allowed how long they might have taken.
	Took    time.Duration `json:"took_ns,omitempty"`
	Allowed time.Duration `json:"allowed_ns,omitempty"`
	// Cached means that the cache had the choice.
	Cached bool `json:"-"`
	// CacheError says why measurements could not be kept in Plan.Cache; nil if they could.
	CacheError error `json:"-"`
}

// Choose finds the fastest configuration for a training. It opens TensorFlow (tfbind.Load) and no
// session; its trials have ended when it returns.
//
// Trials that find nothing, or fail, are no error: the choice is plain, and Choice.Reason says
// why. Errors are those of ctx, of a missing TensorFlow, and of a model that cannot be trained.
func Choose(ctx context.Context, p Plan) (Choice, error) {
	if ctx == nil {
		return Choice{}, errors.New("autotune: the context is nil; give one, such as context.Background()")
	}
	if os.Getenv(Env) != "" {
		return Choice{}, errors.New("autotune: this is a trial, which would start others; call autotune.Child first in main")
	}
	info, err := tfbind.Load("")
	if err != nil {
		return Choice{}, err
	}
	offered, err := newOffer(&p)
	if err != nil {
		return Choice{}, err
	}
	if reason := p.unmeasurable(offered); reason != "" {
		return Choice{Reason: "plain: " + reason}, nil
	}
	cached := p.load(newKey(&p, info))
	allowed := p.allowed(max(p.least(), seconds(cached.PlainSeconds)))
	if c := cached.Choice; c != nil && !p.Refresh {
		now, whole := c.now(offered)
		// Where there is no time, what is known is better than nothing.
		if p.CacheOnly || allowed < minTime || whole && !now.shortOf(allowed) {
			now.decide(&p, ownMemory())
			now.Cached, now.Reason = true, now.reason(true)
			return now, nil
		}
	}
	switch {
	case p.CacheOnly:
		return Choice{Reason: "plain: no choice is kept for this model, this data and machine"}, nil
	case allowed < minTime:
		return Choice{Reason: fmt.Sprintf("plain: too short a training to measure what is faster (%d steps)", p.Steps)}, nil
	}
	start := time.Now()
	t := newTuner(&p, info)
	measured, err := t.run(ctx, offered, allowed)
	if ctx.Err() != nil {
		return Choice{}, context.Cause(ctx)
	}
	if err != nil {
		return Choice{Reason: fmt.Sprintf("plain: nothing could be measured: %v", err)}, nil
	}
	c := Choice{Measurements: measured, Took: time.Since(start), Allowed: p.allowed(seconds(measured[0].Step))}
	c.merge(cached.Choice, offered, p.Refresh)
	cached.PlainSeconds = measured[0].Step
	if slices.ContainsFunc(measured[1:], func(m Measurement) bool { return !m.Late && !m.Passing }) {
		cached.Choice = &c
	}
	unkept := p.save(cached)
	c, _ = c.now(offered)
	if unkept != nil {
		c.CacheError = option.Errorf("what was measured is not kept for the next training: %w; set {Plan.Cache} to a folder that can be written", unkept)
	}
	c.decide(&p, t.own)
	won := find(measured, c.Configuration)
	c.Reason = c.reason(won == nil || won.Late)
	return c, nil
}

// unmeasurable says why no trial is possible; empty if one is.
func (p *Plan) unmeasurable(offered offer) string {
	switch {
	case len(offered.bases)+len(offered.settings) == 0:
		return "the model and the options offer nothing else"
	case p.Data.Len() < p.Batch:
		return "there is no whole batch to measure with"
	case slices.ContainsFunc(p.Data.Fields(), func(f data.FieldSpec) bool { return f.Type == "string" }):
		return "data with text is not measured"
	}
	return ""
}

// merge takes what was measured earlier and not now, such as what this training must not use, and
// what there was no time for. What was on offer and is measured again must not win by the chance of
// having been measured then and not now.
func (c *Choice) merge(earlier *Choice, o offer, refresh bool) {
	if earlier == nil {
		return
	}
	measured := c.Measurements
	c.Measurements = slices.Clone(measured)
	for _, m := range earlier.Measurements {
		like, offered := o.like(m.Configuration)
		now := find(measured, like)
		replaced := refresh && offered && (now == nil || !now.Late)
		if !m.Late && !m.Passing && !replaced {
			c.put(m)
		}
	}
}

// put adds a measurement, unless there is one of the same configuration that is not late.
func (c *Choice) put(m Measurement) {
	if have := find(c.Measurements, m.Configuration); have == nil {
		c.Measurements = append(c.Measurements, m)
	} else if have.Late {
		*have = m
	}
}

// decide chooses by the measurements. own is the anonymous memory of this process.
func (c *Choice) decide(p *Plan, own memory.Bytes) {
	c.Measurements = p.within(c.Measurements, own)
	winner, _ := judge(c.Measurements)
	c.Configuration = winner.Configuration
}

// now returns a cached choice with its measurements of what is on offer. whole means that all of
// that was measured.
func (c *Choice) now(o offer) (now Choice, whole bool) {
	now = *c
	now.Measurements = nil
	missing := slices.Concat(o.bases, o.settings)
	for _, m := range c.Measurements {
		like, ok := o.like(m.Configuration)
		if !ok {
			continue
		}
		m.Configuration = like
		now.put(m)
		base, settings := like.parts()
		missing = slices.DeleteFunc(missing, func(c Configuration) bool {
			return len(settings) == 0 && c == base || slices.Contains(settings, c)
		})
	}
	return now, len(missing) == 0
}

// shortOf reports whether trials of so much time could measure what there was no time for, or
// what failed and may not fail now.
func (c *Choice) shortOf(allowed time.Duration) bool {
	return slices.ContainsFunc(c.Measurements, func(m Measurement) bool {
		return m.Passing && allowed >= min(c.Allowed, maxTime) || m.Late && allowed >= 2*c.Allowed
	})
}

// reason says what was found.
func (c *Choice) reason(cached bool) string {
	when := fmt.Sprintf("measured in %.1f s", c.Took.Seconds())
	if cached {
		when = "measured before"
	}
	won := find(c.Measurements, c.Configuration)
	if won == nil {
		return c.Configuration.String() + " (" + when + ")"
	}
	text := fmt.Sprintf("%s: %s per step", c.Configuration, duration(won.Step))
	if c.Configuration.Plain() {
		text += ", and nothing was shown to be faster"
		if slices.ContainsFunc(c.Measurements, func(m Measurement) bool { return m.Out != "" && m.Rounds >= minRounds }) {
			text += " that may be chosen"
		}
	} else {
		text += fmt.Sprintf(", %.2g times as fast as plain", 1/won.Ratio)
	}
	lines := []string{text + " (" + when + ")"}
	count := map[string]int{} // that are out for the same reason
	for _, m := range c.Measurements {
		count[m.Out]++
	}
	for _, m := range c.Measurements {
		if m.Out == "" || count[m.Out] == 0 {
			continue
		}
		who := m.Configuration.String() + " is"
		if n := count[m.Out] - 1; n > 0 {
			who = fmt.Sprintf("%s and %d more are", m.Configuration, n)
		}
		count[m.Out] = 0 // said
		lines = append(lines, fmt.Sprintf("%s out: %s", who, m.Out))
	}
	return strings.Join(lines, "; ")
}
