package autotune

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/child"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

const (
	// roundSeconds is the minimum time of a round. A round has at least one execution, which may
	// take longer. The rounds of the compared configurations take about the same time, up to
	// mostSeconds.
	roundSeconds = 0.02
	mostSeconds  = 0.1
	// hangs is the time up to which a round never counts as hanging.
	hangs = 5 * time.Second
)

// Errors of trials.
var (
	errLate      = errors.New("no time was left")
	errCold      = errors.New("half of the remaining time was too short to warm up")
	errHangs     = errors.New("it hangs")
	errNotFinite = errors.New("its loss is not finite")
	// errLasting means that a configuration would also fail at any other time.
	errLasting = errors.New("it cannot run")
)

// failure is the error that a trial reports.
type failure struct {
	text              string
	lasting, badModel bool
}

func (f *failure) Error() string { return f.text }

func (f *failure) Is(target error) bool {
	return target == errLasting && f.lasting || target == savedmodels.ErrNotSavedModel && f.badModel
}

// usable returns an error for an answer whose loss is not finite.
func usable(a answer) error {
	if !a.Finite {
		return errNotFinite
	}
	return nil
}

// trial is a running configuration. Outside of tests it is a process.
type trial interface {
	// hear waits for an answer. The first answer means that the trial has warmed up. After
	// errLate there are no further answers.
	hear(until time.Time) (answer, error)
	// ask requests a round, and waits for the answer.
	ask(until time.Time, seconds float64) (answer, error)
	// last returns the latest answer, with the maximum anonymous memory of all answers.
	last() answer
	// end kills the process of the trial and waits until it has exited.
	end()
}

// tuner measures one configuration after another.
type tuner struct {
	plan *Plan
	spec spec
	// start starts a trial. If that fails, the trial's hear returns the error.
	start func(context.Context, Configuration) trial
	// own is the anonymous memory of this process.
	own memory.Bytes
	// The tuner works from began to until. warm is the time that plain steps took to warm up.
	began, until time.Time
	warm         time.Duration
	// best is the trial of the fastest configuration so far, to which other configurations are
	// compared; at first that is plain steps. standing is its measurement. Ratios to plain steps
	// could not separate two fast configurations, because the times of plain steps scatter by more
	// than the difference of the two.
	best     trial
	standing Measurement
	// steps has the times of plain steps in all rounds so far, and plain has their memory.
	// reference is the configuration that replaces plain steps if these cannot run (Trials).
	steps     []float64
	plain     Measurement
	reference Configuration
	// measured are the measurements so far.
	measured []Measurement
	// least is the minimum number of rounds of a trial that does not fail.
	least int
}

// newTuner prepares the trials of a plan. TensorFlow must be open.
func newTuner(p *Plan, info tfbind.Info) *tuner {
	o := p.Options
	// Several processes share the GPUs, so no process may take all memory of a GPU.
	if d := &o.Device; d.MemoryFraction < 1 && len(d.VirtualGPUs) == 0 && d.GPUAllocator != "cuda_malloc_async" && os.Getenv("TF_FORCE_GPU_ALLOW_GROWTH") == "" {
		d.MemoryGrowth = true
	}
	o.ListAllocations = false
	t := &tuner{plan: p, spec: spec{
		Library: info.Library, Model: p.Model.Dir, Hash: p.Model.Hash, Loss: p.Model.LossOutput, Options: o,
		Batch: p.Batch, LearningRate: p.LearningRate,
		Live: p.Limits.under(o).Threads && !o.CallerRuns,
	}}
	t.start = func(ctx context.Context, c Configuration) trial { return t.startProcess(ctx, c) }
	return t
}

// run writes the data for the trials, and measures. The first measurement is that of plain
// steps. An error concerns all configurations, or plain steps.
func (t *tuner) run(ctx context.Context, o offer, allowed time.Duration) (measured []Measurement, err error) {
	t.began = time.Now()
	t.until = t.began.Add(allowed)
	dir, remove, err := files.Scratch("steadyfit-tune-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	t.spec.Data = dir
	if t.spec.Fields, err = sample(t.plan, dir, allowed/4); err != nil {
		return nil, err
	}
	t.own = ownMemory()
	return t.measureAll(ctx, o)
}

// begin starts the trial with which the configurations are compared at first: the reference, which
// is usually plain steps. An error means that this trial cannot run.
func (t *tuner) begin(ctx context.Context) error {
	start := time.Now()
	t.best, t.standing = t.start(ctx, t.reference), plainSteps
	t.standing.Configuration = t.reference
	first, err := t.best.hear(t.until)
	t.warm = time.Since(start)
	if err == nil {
		// The first round does not count. It shows how long the trials may take.
		first, err = t.best.ask(t.until, roundSeconds)
	}
	if err = cmp.Or(err, usable(first)); err != nil {
		return fmt.Errorf("%v steps: %w", t.reference, cmp.Or(context.Cause(ctx), err))
	}
	t.note(first)
	return nil
}

// measureAll measures, in this order: plain steps; oneDNN, if it is off (if it is faster, all later
// configurations include it); the most promising base; plain steps with fewer threads, which can
// gain most and needs no compiler; the other bases; settings of threads on the best base; and other
// settings on the best of all.
func (t *tuner) measureAll(ctx context.Context, o offer) ([]Measurement, error) {
	defer func() { t.best.end() }()
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	t.until = t.began.Add(t.plan.allowed(seconds(t.steps[0])))

	var fewer []Configuration
	for _, c := range o.settings {
		if c.OneDNN == "on" {
			t.measure(ctx, c)
		} else if c.IntraThreads > 0 {
			fewer = append(fewer, c)
		}
	}
	oneDNN := t.standing.Configuration
	promising := min(len(o.bases), 1)
	for _, c := range slices.Concat(o.bases[:promising], fewer, o.bases[promising:]) {
		t.measure(ctx, c.over(oneDNN))
	}
	base := bestBase(t.plan.within(t.measured, t.own))
	for _, c := range o.settings {
		if c == c.threads() {
			t.measure(ctx, c.over(base))
		}
	}
	for _, c := range o.settings {
		if c != c.threads() && c.OneDNN != "on" {
			winner, _ := judge(t.plan.within(t.measured, t.own))
			t.measure(ctx, c.over(winner.Configuration))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	plain := summarize(Configuration{}, t.steps, t.steps, plainSteps)
	plain.Peak, plain.Anon, plain.Base = t.plain.Peak, t.plain.Anon, t.plain.Base
	return slices.Insert(t.measured, 0, plain), nil
}

// note records a round of the best configuration.
func (t *tuner) note(a answer) {
	m := &t.plain
	if t.standing.Configuration == t.reference {
		t.steps = append(t.steps, a.Step)
		m.Base = t.best.last().Base
	} else if m = find(t.measured, t.standing.Configuration); m == nil {
		return
	}
	m.Peak, m.Anon = max(m.Peak, t.best.last().Peak), max(m.Anon, t.best.last().Anon)
}

// headroom rejects a second process if twice the anonymous memory of the first may not be
// available: the kernel would kill a process of the control group or, in some containers, all
// of them. XLA was seen to take 2.2 times as much memory as plain steps.
func headroom(anon memory.Bytes) error {
	need := 2*anon + 256*memory.MiB
	if left := cgroup.Available(); left.Known() && memory.Bytes(left.Bytes) < need {
		return fmt.Errorf("there may be too little memory: %v are left, and the trial might take %v", memory.Bytes(left.Bytes), need)
	}
	return nil
}

// measure compares a configuration with t.best, unless it was measured before. The configuration
// replaces t.best if its whole interval is faster. A comparison of medians alone would favor the
// luckiest of many configurations.
func (t *tuner) measure(ctx context.Context, c Configuration) {
	for find(t.measured, c) == nil {
		err := headroom(t.plain.Anon)
		if time.Until(t.until) < t.warm {
			err = errLate
		}
		if err != nil {
			t.measured = append(t.measured, out(c, err))
			return
		}
		other := t.start(ctx, c)
		m, shown, err := t.compare(other, c)
		if err == nil && shown && t.plan.within([]Measurement{m}, t.own)[0].faster() {
			t.best, other = other, t.best
			t.standing = m
		}
		other.end()
		switch {
		case err == nil:
			t.measured = append(t.measured, m)
		case t.standing.Configuration.Plain():
			err = fmt.Errorf("the steps that it is compared with failed: %w", err)
			t.measured = append(t.measured, Measurement{Configuration: c, Out: err.Error(), Passing: true})
		default:
			// The best failed after it had been measured, so plain steps replace it.
			*find(t.measured, t.standing.Configuration) = out(t.standing.Configuration, err)
			t.best.end()
			t.best, t.standing = t.start(ctx, Configuration{}), plainSteps
			_, _ = t.best.hear(t.until) // the next answer returns the error again
		}
	}
}

// out returns the measurement of a configuration that failed.
func out(c Configuration, err error) Measurement {
	late := errors.Is(err, errLate) || errors.Is(err, errCold)
	return Measurement{Configuration: c, Out: err.Error(), Late: late, Passing: !late && !errors.Is(err, errNotFinite) && !errors.Is(err, errLasting)}
}

// compare runs a trial in rounds that alternate with rounds of t.best. shown means that the trial
// is measurably faster than t.best. An error means that t.best failed.
func (t *tuner) compare(other trial, c Configuration) (m Measurement, shown bool, err error) {
	// XLA's compiler may take any time. Half of the remaining time is reserved for the next
	// configurations, unless little remains.
	left := time.Until(t.until)
	share := max(left/2, min(left, 3*t.warm))
	warm, err := other.hear(time.Now().Add(share))
	if errors.Is(err, errLate) && share < left {
		m = out(c, errCold)
		m.Waited = share.Seconds()
		return m, false, nil
	}
	if err != nil {
		return out(c, err), false, nil
	}
	// The round is a little shorter than an execution, so that it has one execution and not two.
	seconds := min(max(roundSeconds, 0.8*max(warm.Execution, t.best.last().Execution)), mostSeconds)
	var steps, beside []float64
	for len(steps) < maxRounds {
		a, err := t.round(t.best, seconds)
		if err == nil {
			t.note(a)
		} else if !errors.Is(err, errLate) {
			return Measurement{}, false, err
		}
		var b answer
		if err == nil {
			if b, err = t.round(other, seconds); err != nil && !errors.Is(err, errLate) {
				return out(c, err), false, nil
			}
		}
		if err != nil {
			break // late
		}
		beside, steps = append(beside, a.Step), append(steps, b.Step)
		// A configuration that was slower than plain steps in each round cannot win. One that was
		// slower than t.best can still win if t.best exceeds a limit.
		m := summarize(c, steps, beside, t.standing)
		if len(steps) >= max(t.least, minRounds) && m.Low >= 1 || len(steps) >= slowRounds && slices.Min(ratios(steps, beside)) >= 1 {
			break
		}
	}
	m = summarize(c, steps, beside, t.standing)
	m.Peak, m.Anon, m.Base = other.last().Peak, other.last().Anon, other.last().Base
	if m.Rounds < minRounds {
		m.Out, m.Late = errLate.Error(), true
	}
	return m, summarize(c, steps, beside, plainSteps).faster(), nil
}

// round runs a round. A trial that takes much longer than before counts as hanging.
func (t *tuner) round(one trial, seconds float64) (answer, error) {
	until := time.Now().Add(hangs + time.Duration(20e9*max(seconds, one.last().Execution)))
	if until.After(t.until) {
		until = t.until
	}
	a, err := one.ask(until, seconds)
	if errors.Is(err, errLate) && until.Before(t.until) {
		err = errHangs
	}
	if err == nil {
		err = usable(a)
	}
	return a, err
}

// process is a trial in a child process.
type process struct {
	*child.Process
	latest answer
	err    error // the error of all further answers
}

func (t *tuner) startProcess(ctx context.Context, c Configuration) *process {
	p := &process{}
	s := t.spec
	s.Configuration = c
	s.Live = s.Live && !(s.AsSet && !c.threads().Plain())
	command := child.Command{Args: os.Args[:1], Variable: Env, Spec: s}
	missing, err := c.Environment()
	for _, v := range missing {
		command.Env = append(command.Env, v.String())
	}
	if err == nil {
		p.Process, err = child.Start(ctx, command)
	}
	p.err = err
	return p
}

func (p *process) ask(until time.Time, seconds float64) (answer, error) {
	if p.err == nil {
		_ = json.NewEncoder(p.Requests).Encode(round{seconds}) // hear returns the reason
	}
	return p.hear(until)
}

func (p *process) hear(until time.Time) (answer, error) {
	if p.err != nil {
		return answer{}, p.err
	}
	line, err := p.Receive(until)
	if errors.Is(err, child.ErrDeadline) {
		p.err = errLate // a later answer would belong to this request
		return answer{}, errLate
	}
	var a answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	switch {
	case errors.Is(err, io.EOF):
		p.Wait(time.Second)
		p.err = fmt.Errorf("its process has ended: %s", p.End(nil).Cause)
		p.Process = nil
	case err != nil:
		p.err = err
	case a.Failure != "":
		p.err = &failure{a.Failure, a.Lasting, a.BadModel}
	}
	if err == nil {
		a.Anon = max(p.latest.Anon, a.Anon)
		p.latest = a
	}
	return a, p.err
}

func (p *process) last() answer { return p.latest }

// end kills the process, which has no state to save.
func (p *process) end() {
	if p.Process != nil {
		p.End(nil)
		p.Process = nil
	}
}
