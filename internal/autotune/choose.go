package autotune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/english"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

const (
	// share is the part of a training's time that trials may take.
	share = 0.02
	// maxTime is the maximum time of trials. minTime is the least maximum for which trials begin,
	// since two processes have to open TensorFlow and the model, and to warm up.
	maxTime = 20 * time.Second
	minTime = 1500 * time.Millisecond
	// leastStep is less than the time of any step. The fastest measured step took 58 us, on a dense
	// model of 64 units, with XLA and one thread. copiedBytes is the maximum number of bytes of
	// a batch that are copied per second.
	leastStep   = 50 * time.Microsecond
	copiedBytes = 20e9
)

// Plan describes a training for which to choose a configuration.
type Plan struct {
	// Model is the model to train. Options are the options of its session before a choice.
	Model   *savedmodels.Model
	Options session.Options
	// Limits restrict the choice.
	Limits Limits
	// Data is the training data, of which trials use the first 64 MiB. Batch is the number of
	// samples per step.
	Data  data.Dataset
	Batch int
	// Steps is the number of train steps to do. 0 means unknown; only Time then limits the
	// trials.
	Steps int64
	// RestartTime is the time that a restart takes (Limits.Restart). A configuration that
	// needs a restart is chosen only if it saves twice that time.
	RestartTime time.Duration
	// LearningRate is the learning rate for a model that takes one.
	LearningRate float64
	// Budget is the memory that the training may use: RSS or, with BudgetOfAnon, anonymous
	// memory. 0 means no limit.
	Budget       memory.Bytes
	BudgetOfAnon bool
	// Cache is the folder of earlier measurements, such as CacheDir(); empty disables the
	// cache.
	Cache string
	// CacheOnly uses a cached choice, or plain steps if there is none, and runs no trials.
	CacheOnly bool
	// Refresh measures even if the cache has a choice.
	Refresh bool
	// Time is the maximum time of the trials; 0 means 20 s.
	Time time.Duration
	// Log receives details at level Debug; nil discards them.
	Log *slog.Logger
}

// least returns a lower bound of the time of a step: leastStep plus the time to copy the batch.
func (p *Plan) least() time.Duration {
	return leastStep + seconds(batchBytes(p.Data, p.Batch)/copiedBytes)
}

// allowed returns the maximum time of the trials for a given time per step.
func (p *Plan) allowed(step time.Duration) time.Duration {
	most := cmp.Or(p.Time, maxTime)
	if p.Steps <= 0 {
		return most
	}
	return time.Duration(min(share*float64(p.Steps)*float64(step), float64(maxTime), float64(most)))
}

// enough describes the length of the training, and the least number of steps with which trials
// begin. before is the time of a step that an earlier training has measured; 0 if there was none.
func (p *Plan) enough(before time.Duration) string {
	step, known := max(p.least(), before), "the time of a step is not known yet, and assumed to be at least"
	if before > 0 {
		known = "a step of an earlier training took"
	}
	return fmt.Sprintf(" (%s; %s %v: then %.0f steps are enough)", english.Count(p.Steps, "step"), known, step.Round(time.Microsecond),
		math.Ceil(minTime.Seconds()/share/step.Seconds()))
}

// batchBytes returns the size of a batch in bytes.
func batchBytes(ds data.Dataset, batch int) float64 { return batchSize(ds, batch, 0) }

// batchSize returns the size of a batch in bytes, with each element counted as width bytes. If width
// is 0, elements have the size of the field's type.
func batchSize(ds data.Dataset, batch, width int) (size float64) {
	for _, f := range ds.Fields() {
		n := float64(batch)
		if t := dtype.ByName(f.Type); t != nil {
			n *= float64(cmp.Or(width, t.Size))
		}
		for _, d := range f.Shape {
			n *= float64(d)
		}
		size += n
	}
	return size
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Choice is the result of Choose.
type Choice struct {
	// Configuration is the fastest configuration; it is plain if no other one was faster. The cache
	// does not store it, since another training may have other limits.
	Configuration Configuration `json:"-"`
	// Measurements are the results of the trials, plain steps first; empty if there were none.
	Measurements []Measurement `json:"measurements,omitempty"`
	// Reason describes the result in a line: "50 steps per execution: 27.1 us per step, 4.8
	// times as fast as plain (...)".
	Reason string `json:"-"`
	// Took is the time that the trials took, and Allowed their maximum time.
	Took    time.Duration `json:"took_ns,omitempty"`
	Allowed time.Duration `json:"allowed_ns,omitempty"`
	// Cached means that the choice came from the cache.
	Cached bool `json:"-"`
	// CacheError is the reason why measurements could not be stored in Plan.Cache; nil on
	// success.
	CacheError error `json:"-"`
}

// Choose finds the fastest configuration for a training. It opens TensorFlow (tfbind.Load) but
// no session. All trials have ended when it returns.
//
// Trials that fail or find nothing faster are not an error: the choice is then plain, and
// Choice.Reason says why. An error means that ctx ended, that TensorFlow is missing, or that
// the model cannot be trained.
func Choose(ctx context.Context, p Plan) (Choice, error) {
	if ctx == nil {
		return Choice{}, errors.New("autotune: the context is nil; give one, such as context.Background()")
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
		// If there is no time for trials, a cached result is better than nothing.
		if p.CacheOnly || allowed < minTime || whole && !now.shortOf(allowed) {
			now.decide(&p, ownMemory())
			now.Cached, now.Reason = true, now.reason(true)
			return now, nil
		}
	}
	switch {
	case p.CacheOnly:
		return Choice{Reason: "plain: the cache has no choice for this model, data and machine"}, nil
	case allowed < minTime:
		return Choice{Reason: "plain: the training is too short for trials" + p.enough(seconds(cached.PlainSeconds))}, nil
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
		c.CacheError = option.Errorf("the measurements are not cached for the next training: %w; set {Plan.Cache} to a folder that can be written", unkept)
	}
	c.decide(&p, t.own)
	won := find(measured, c.Configuration)
	c.Reason = c.reason(won == nil || won.Late)
	return c, nil
}

// unmeasurable returns the reason why no trial is possible; empty if one is.
func (p *Plan) unmeasurable(offered offer) string {
	switch {
	case len(offered.bases)+len(offered.settings) == 0:
		return "the model and the options allow nothing else"
	case p.Data.Len() < p.Batch:
		return "the data has no full batch to measure with"
	}
	return ""
}

// merge adds earlier measurements of configurations that were not measured now. If refresh
// is true, earlier measurements of configurations that o offers are left out, except those whose new
// trial was late.
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

// put adds a measurement, or replaces a late one of the same configuration.
func (c *Choice) put(m Measurement) {
	if have := find(c.Measurements, m.Configuration); have == nil {
		c.Measurements = append(c.Measurements, m)
	} else if have.Late {
		*have = m
	}
}

// decide makes the choice from the measurements. The argument own is the anonymous memory of this
// process.
func (c *Choice) decide(p *Plan, own memory.Bytes) {
	c.Measurements = p.within(c.Measurements, own)
	winner, _ := judge(c.Measurements)
	c.Configuration = winner.Configuration
}

// needsProcess is the reason why this process cannot use a cached configuration: the first session
// of the process has fixed some of the settings.
const needsProcess = "it needs another process, since this one has already set up TensorFlow's devices"

// now returns a cached choice with only the measurements of the configurations that o offers, and of
// faster ones that are too late for this process (needsProcess). whole is true if all configurations
// that o offers were measured.
func (c *Choice) now(o offer) (now Choice, whole bool) {
	now = *c
	now.Measurements = nil
	missing := slices.Concat(o.bases, o.settings)
	for _, m := range c.Measurements {
		like, ok := o.like(m.Configuration)
		if !ok {
			like, ok = offer{bases: o.bases, settings: slices.Concat(o.settings, o.tooLate)}.like(m.Configuration)
			if ok && m.faster() {
				m.Configuration, m.Out = like, needsProcess
				now.put(m)
			}
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

// shortOf reports whether trials that take at most the time allowed could measure a configuration
// that lacked time before, or that failed for a passing reason.
func (c *Choice) shortOf(allowed time.Duration) bool {
	return slices.ContainsFunc(c.Measurements, func(m Measurement) bool {
		return m.Passing && allowed >= min(c.Allowed, maxTime) || m.Late && allowed >= 2*c.Allowed
	})
}

// reason describes the result.
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
		text += "; no other configuration was measurably faster"
		if slices.ContainsFunc(c.Measurements, func(m Measurement) bool { return m.Out != "" && m.Rounds >= minRounds }) {
			text += " within the limits"
		}
	} else {
		text += fmt.Sprintf(", %.2g times as fast as plain", 1/won.Ratio)
	}
	lines := []string{text + " (" + when + ")"}
	count := map[string]int{} // configurations excluded for the same reason
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
		count[m.Out] = 0 // already listed
		lines = append(lines, fmt.Sprintf("%s out: %s", who, m.Out))
	}
	return strings.Join(lines, "; ")
}
