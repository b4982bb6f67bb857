package autotune

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/child"
	"steadyfit/internal/files"
	"steadyfit/internal/stats"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

const (
	// roundSeconds is the minimum time of a round. A round has at least one execution, which may
	// take longer. The rounds of the compared configurations take about the same time, up to
	// mostSeconds.
	roundSeconds = 0.02
	mostSeconds  = 0.1
)

// Errors of trials.
var (
	errLate      = errors.New("no time was left")
	errCold      = errors.New("half of the remaining time was too short to warm up")
	errNotFinite = errors.New("its loss is not finite")
)

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

// Trials measures the configurations that its caller selects, and stores the measurements. Each trial is
// compared with plain steps or, if these cannot run, such as for lack of memory, with the most
// micro-batches.
type Trials struct {
	plan *Plan
	spec spec
	// start starts a trial. If that fails, the trial's hear returns the error.
	start func(context.Context, Configuration) trial
	// The trials end at until. A trial has at least this many rounds.
	until  time.Time
	rounds int
	// reference is the trial to compare with, and compared its configuration. warm is the time of its
	// warm-up. steps has the time of a step in each of its rounds.
	reference trial
	compared  Configuration
	warm      time.Duration
	steps     []float64
	// own is the anonymous memory of this process.
	own    memory.Bytes
	store  *store
	remove func() error
}

// newTrials prepares trials that end at a time. It opens TensorFlow but no session. Measure starts
// processes. The data has at least one full batch. The result must be closed.
func newTrials(p *Plan, until time.Time, rounds int) (*Trials, error) {
	if err := CheckAllowed(); err != nil {
		return nil, err
	}
	info, err := tfbind.Load("")
	if err != nil {
		return nil, err
	}
	o := p.Options
	// Several processes share the GPUs, so no process may take all memory of a GPU.
	growth := os.Getenv("TF_FORCE_GPU_ALLOW_GROWTH") != "" || o.Device.GPUAllocator == "cuda_malloc_async"
	if d := &o.Device; !growth && d.MemoryFraction < 1 && len(d.VirtualGPUs) == 0 {
		d.MemoryGrowth = true
	}
	t := &Trials{plan: p, until: until, rounds: rounds, own: ownMemory(), spec: spec{
		Library: info.Library, Model: p.Model.Dir, Hash: p.Model.Hash, Loss: p.Model.LossOutput, Tags: p.Model.Tags,
		Constants: p.Model.Constants(), Options: o,
		Batch: p.Batch, LearningRate: p.LearningRate, Budgeted: p.Budgeted,
		Live: p.Limits.under(o).Threads && !o.CallerRuns,
	}}
	t.start = func(ctx context.Context, c Configuration) trial { return t.startProcess(ctx, c) }
	t.store, err = p.open(info)
	return t, err
}

// begin writes the data, and starts the reference, unless that is done.
func (t *Trials) begin(ctx context.Context) error {
	if t.reference != nil {
		return nil
	}
	dir, remove, err := files.Scratch("steadyfit-tune-")
	if err != nil {
		return err
	}
	t.remove, t.spec.Data = remove, filepath.Join(dir, "batches")
	if err := sample(t.plan, t.spec.Data, time.Until(t.until)/4); err != nil {
		return err
	}
	if err = t.startReference(ctx); err == nil || errors.Is(err, errLate) || context.Cause(ctx) != nil {
		return err
	}
	parts := t.plan.split()
	if len(parts) == 0 || !t.plan.searches {
		return err
	}
	t.reference.end()
	t.compared = parts[len(parts)-1]
	if second := t.startReference(ctx); second != nil {
		return errors.Join(err, second)
	}
	return nil
}

func (t *Trials) startReference(ctx context.Context) error {
	start := time.Now()
	t.reference = t.start(ctx, t.compared)
	first, err := t.reference.hear(t.until)
	t.warm = time.Since(start)
	if err == nil {
		// The first round does not count. It shows how long the trials may take.
		first, err = t.round(t.reference, roundSeconds)
	}
	if err != nil {
		return fmt.Errorf("%v steps: %w", t.compared, cmp.Or(context.Cause(ctx), err))
	}
	t.steps = append(t.steps, first.Step)
	return nil
}

// headroom rejects a second process if twice the anonymous memory of the first may not be
// available: the kernel would kill a process of the control group or, in some containers, all
// of them. XLA was seen to take 2.2 times as much memory as plain steps.
func headroom(anon memory.Bytes) error {
	need := 2*anon + 256*memory.MiB
	if left := cgroup.Available("self"); left.Known() && memory.Bytes(left.Bytes) < need {
		return fmt.Errorf("there may be too little memory: %v are left, and the trial might take %v",
			memory.Bytes(left.Bytes), need)
	}
	return nil
}

// Measure measures a configuration, and stores the measurement in Plan.Cache. A configuration that cannot
// run, or that is too slow to warm up, has a reason in Measurement.Out and is not stored, and one without time
// left is Late. An error means that no configuration to compare with could run, or that ctx ended.
func (t *Trials) Measure(ctx context.Context, c Configuration) (Measurement, error) {
	if err := t.begin(ctx); err != nil {
		return Measurement{}, err
	}
	if time.Until(t.until) < t.warm {
		return failed(c, errLate), nil
	}
	if err := headroom(t.reference.last().Anon); err != nil {
		return failed(c, err), nil
	}
	other := t.start(ctx, c)
	defer other.end()
	m, err := t.compare(other, c)
	if err != nil || ctx.Err() != nil {
		return Measurement{}, cmp.Or(context.Cause(ctx), fmt.Errorf("%v steps: %w", t.compared, err))
	}
	if m.Out != "" {
		return m, nil
	}
	m.Reference = t.compared
	m.addMemory(other.last())
	if earlier := find(t.store.Measurements, c); earlier != nil && !t.plan.searches {
		if earlier.High > m.High {
			m = *earlier
		}
		m.Confirmed = true
	}
	t.store.add(m, !t.plan.searches)
	return t.whole(m), nil
}

// compare runs a trial in rounds that alternate with rounds of the reference. An error means that the
// reference failed.
func (t *Trials) compare(other trial, c Configuration) (Measurement, error) {
	// XLA's compiler may take any time. Half of the remaining time is reserved for the next
	// configurations, unless little remains.
	left := time.Until(t.until)
	share := max(left/2, min(left, 3*t.warm))
	warm, err := other.hear(time.Now().Add(share))
	if errors.Is(err, errLate) && share < left {
		err = errCold
	}
	if err != nil {
		return failed(c, err), nil
	}
	// The round is a little shorter than an execution, so that it has one execution and not two.
	seconds := min(max(roundSeconds, 0.8*max(warm.Execution, t.reference.last().Execution)), mostSeconds)
	var steps, beside []float64
	for len(steps) < maxRounds {
		a, err := t.round(t.reference, seconds)
		if errors.Is(err, errLate) {
			break
		}
		if err != nil {
			return Measurement{}, err
		}
		t.steps = append(t.steps, a.Step)
		b, err := t.round(other, seconds)
		if errors.Is(err, errLate) {
			break
		}
		if err != nil {
			return failed(c, err), nil
		}
		beside, steps = append(beside, a.Step), append(steps, b.Step)
		if len(steps) >= t.rounds && summarize(c, steps, beside).Low >= 1 {
			break // it is slower
		}
	}
	if len(steps) < minRounds {
		return failed(c, errLate), nil
	}
	return summarize(c, steps, beside), nil
}

// round runs a round. A loss that is not finite is an error.
func (t *Trials) round(one trial, seconds float64) (answer, error) {
	a, err := one.ask(t.until, seconds)
	if err == nil && !a.Finite {
		err = errNotFinite
	}
	return a, err
}

// plain returns the measurement of the reference.
func (t *Trials) plain() Measurement {
	m := Measurement{Configuration: t.compared, Rounds: len(t.steps), Ratio: 1, Low: 1, High: 1}
	m.Step = stats.Median(t.steps)
	m.addMemory(t.reference.last())
	return m
}

// Known returns the measurements of earlier trials on this machine, including those of trainings
// that differ only in the values and the number of samples.
func (t *Trials) Known() (known []Measurement) {
	for _, m := range t.store.Measurements {
		known = append(known, t.whole(m))
	}
	return known
}

// whole converts the memory in a measurement of a trial, which has only the first batches of the data, to
// that with all data of the training.
func (t *Trials) whole(m Measurement) Measurement {
	if m.Peak == 0 {
		return m // unknown
	}
	heap := max(t.own-m.Base, 0)
	m.Peak, m.Anon = m.Peak+heap, m.Anon+heap
	return m
}

// Close ends the processes and removes the data of the trials.
func (t *Trials) Close() error {
	if t.reference != nil {
		t.reference.end()
	}
	if t.remove == nil {
		return nil
	}
	return t.remove()
}

// process is a trial in a child process.
type process struct {
	*child.Process
	latest answer
	err    error // the error of all further answers
}

func (t *Trials) startProcess(ctx context.Context, c Configuration) *process {
	p := &process{}
	s := t.spec
	s.Configuration = c
	s.Live = s.Live && c.threads().Plain() // as in a training with these threads
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
		_ = json.NewEncoder(p.Requests).Encode(seconds) // hear returns the reason
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
		p.err = errors.New(a.Failure)
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
