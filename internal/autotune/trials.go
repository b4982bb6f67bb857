package autotune

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/internal/allocator"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Trials measures the configurations that its caller selects, for a search with another objective
// than the time of a step (package tune). Each trial is compared with plain steps or, if these cannot
// run, such as for lack of memory, with the most micro-batches. Plan.Budget says only whether the
// training has a budget: the caller decides what exceeds it.
type Trials struct {
	tuner  *tuner
	cached entry
	remove func() error
}

// NewTrials prepares trials that end at a time. It opens TensorFlow but no session. Measure starts
// processes. The data has at least one full batch. The result must be closed.
func NewTrials(p *Plan, until time.Time) (*Trials, error) {
	info, err := tfbind.Load("")
	if err != nil {
		return nil, err
	}
	u := newTuner(p, info)
	u.began, u.until, u.least, u.own = time.Now(), until, slowRounds, ownMemory()
	u.spec.AsSet, u.spec.Budgeted = true, p.Budget > 0
	return &Trials{tuner: u, cached: p.load(newKey(p, info))}, nil
}

// Known returns the measurements of earlier trials on this machine, including those of trainings
// that differ only in the values and the number of samples. It leaves out configurations that were
// too slow to warm up if there is now twice as much time.
func (t *Trials) Known() (known []Measurement) {
	left := time.Until(t.tuner.until).Seconds()
	for _, m := range *t.stored() {
		if m.Waited == 0 || left/2 < 2*m.Waited {
			known = append(known, t.whole(m))
		}
	}
	return known
}

// whole converts a measurement of a trial, which has only the first batches of the data, to all data
// of the training: the memory, and the time and size of the features. If the plan does not allow the
// features, it sets Out.
func (t *Trials) whole(m Measurement) Measurement {
	if m.StepPeak == 0 {
		return m // unknown
	}
	heap := max(t.tuner.own-m.Base, 0)
	m.StepAnon, m.OpenedAnon = m.StepAnon+heap, m.OpenedAnon+heap
	m.StepPeak, m.Opened, m.Opening = m.StepPeak+heap, m.Opened+heap, m.Opening+heap
	if f := m.Features; f != nil {
		n := t.tuner.plan.Data.Len()
		factor := float64(n) / float64(f.Samples)
		all := Features{n, memory.Bytes(factor * float64(f.Bytes)), factor * f.Seconds, f.Difference}
		m.StepPeak, m.StepAnon, m.Features = m.StepPeak+all.Bytes-f.Bytes, m.StepAnon+all.Bytes-f.Bytes, &all
		if f.Difference > 0 && !t.tuner.plan.Limits.FeatureRounding {
			m.Out = fmt.Sprintf("the first steps would round differently, by %.1g; {Config.CacheFeatures} on accepts that", f.Difference)
		}
	}
	return m
}

func (t *Trials) stored() *[]Measurement {
	if t.tuner.plan.Budget > 0 {
		return &t.cached.BudgetTrials
	}
	return &t.cached.Trials
}

// Measure measures a configuration and stores the result in Plan.Cache. A configuration that cannot
// run, or that is too slow to warm up, has a reason in Measurement.Out, and one without time left is
// Late. An error means that no configuration to compare with could run, or that ctx ended.
func (t *Trials) Measure(ctx context.Context, c Configuration) (Measurement, error) {
	u := t.tuner
	if err := t.start(ctx); err != nil {
		return Measurement{}, err
	}
	if time.Until(u.until) < u.warm {
		return out(c, errLate), nil
	}
	if err := headroom(u.plain.Anon); err != nil {
		return out(c, err), nil
	}
	other := u.start(ctx, c)
	defer other.end()
	m, _, err := u.compare(other, c)
	if cause := context.Cause(ctx); cause != nil {
		return Measurement{}, cause
	}
	if err != nil {
		return Measurement{}, fmt.Errorf("%v steps: %w", u.reference, err)
	}
	stored := t.stored()
	if m.Waited > 0 { // out of time; late if an earlier trial completed this configuration
		m.Late = slices.ContainsFunc(*stored, func(e Measurement) bool { return e.Configuration == c && e.Out == "" })
	}
	if m.Late {
		return m, nil
	}
	m.Reference = u.reference
	if a := other.last(); m.Out == "" {
		m.StepPeak, m.StepAnon = a.StepPeak, max(a.StepPeak-a.Mapped, 0)
		m.Opened, m.OpenedAnon, m.Opening, m.Features = a.Opened, a.OpenedAnon, a.Opening, a.Features
	}
	*stored = append(slices.DeleteFunc(*stored, func(e Measurement) bool { return e.Configuration == c && e.Waited > 0 }), m)
	m.Unsaved = u.plan.save(t.cached)
	return t.whole(m), nil
}

// start writes the data and starts the steps to compare with, unless that is done.
func (t *Trials) start(ctx context.Context) error {
	u := t.tuner
	if u.best != nil {
		return nil
	}
	dir, remove, err := files.Scratch("steadyfit-tune-")
	if err != nil {
		return err
	}
	t.remove = remove
	u.spec.Data = dir
	if u.spec.Fields, err = sample(u.plan, dir, time.Until(u.until)/4); err != nil {
		return err
	}
	err = u.begin(ctx)
	parts := u.plan.split()
	if err == nil || errors.Is(err, errLate) || context.Cause(ctx) != nil || len(parts) == 0 {
		return err
	}
	u.best.end()
	u.reference = parts[len(parts)-1]
	if second := u.begin(ctx); second != nil {
		return errors.Join(err, second)
	}
	return nil
}

// Close ends the processes and removes the data of the trials.
func (t *Trials) Close() error {
	if t.tuner.best != nil {
		t.tuner.best.end()
	}
	if t.remove == nil {
		return nil
	}
	return t.remove()
}

// Space returns the parts of which the configurations of a plan consist: bases (see
// Configuration.parts), and groups of settings. A configuration has at most one base, and at most
// one setting of each group. The groups that change memory most come first. TensorFlow must be
// open.
func (p *Plan) Space() (bases []Configuration, groups [][]Configuration, err error) {
	o, err := newOffer(p)
	if err != nil {
		return nil, nil, err
	}
	if n := p.Options.MicroBatches; n < 2 {
		bases = p.split()
	}
	bases = append(bases, o.bases...)
	if p.divides() { // first, since it saves most where it is possible
		bases = slices.Insert(bases, 0, Configuration{CachedFeatures: true})
	}
	var precision, threads []Configuration
	// Allocators and oneDNN are one group: both decide where memory comes from, so an effect of one
	// depends on the other.
	memories := p.allocators()
	for _, c := range o.settings {
		switch {
		case c.Precision != "":
			precision = append(precision, c)
		case c.OneDNN != "":
			for _, a := range append([]Configuration{{}}, p.allocators()...) {
				memories = append(memories, a.over(c))
			}
		case c.Allocator == "":
			threads = append(threads, c)
		}
	}
	for _, group := range [][]Configuration{precision, {{NoPrefetch: true}}, threads, memories} {
		if len(group) > 0 {
			groups = append(groups, group)
		}
	}
	return bases, groups, nil
}

// Over returns the configuration with its zero fields taken from base. ok is false if the options
// of the plan exclude the combination.
func (p *Plan) Over(c, base Configuration) (both Configuration, ok bool) {
	both = c.over(base)
	_, err := both.Apply(p.Options).Device.Check(nil)
	return both, err == nil
}

// split returns the numbers of micro-batches to measure: for each power of two, the next number
// that divides the batch, because micro-batches of two sizes take memory for both.
func (p *Plan) split() (bases []Configuration) {
	plan, err := session.Compile(p.Model, p.Options)
	if err != nil || plan.CheckSplit() != nil {
		return nil
	}
	for n := 2; n <= p.Batch; n *= 2 {
		parts := n
		for d := n; d < 2*n && d <= p.Batch; d++ {
			if p.Batch%d == 0 {
				parts = d
				break
			}
		}
		c := Configuration{MicroBatches: parts}
		if _, err := session.Compile(p.Model, c.Apply(p.Options)); err == nil {
			bases = append(bases, c)
		}
	}
	return bases
}

// divides reports whether a training may compute the frozen part of the model once. It excludes
// micro-batches, steps per execution and compiled signatures: features are checked in whole batches, so
// smaller parts would not lower the peak, and the other signatures compute the frozen part.
func (p *Plan) divides() bool {
	o := p.Options
	ds, ok := p.Data.(*data.InMemory)
	if !ok || !ds.Repeats() || !p.Limits.Features || o.Compiled || o.StepsPerExecution > 1 || o.MicroBatches > 1 {
		return false
	}
	f, err := p.Model.Features(o.TrainSignature)
	if err != nil || f.Omitted != nil {
		return false
	}
	_, err = session.Compile(f.Model, o)
	return err == nil
}

// allocators returns the installed allocators other than that of this process, unless a variable
// excludes them.
func (p *Plan) allocators() (settings []Configuration) {
	if !p.Limits.under(p.Options).Restart {
		return nil
	}
	for _, name := range append(slices.Sorted(maps.Keys(allocator.Libraries)), allocator.Mmap) {
		c := Configuration{Allocator: name}
		if missing, err := c.Environment(); err == nil && len(missing) > 0 {
			settings = append(settings, c)
		}
	}
	return settings
}
