package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/stats"
	"steadyfit/internal/watch"
	"steadyfit/memory"
)

// errTime ends the runs when Plan.Within is over, except for the time that writing the reports takes.
var errTime = errors.New("the time of the matrix is over")

const reserve = 5 * time.Second

// Run runs a plan and returns the result of all complete runs, including those of earlier
// calls. An error means that the matrix could not continue: ctx ended, a child could not be
// started or was ended from outside, or a disk is full. The result is not nil then, and the
// next call resumes.
func Run(ctx context.Context, p Plan) (*Result, error) {
	p.defaults()
	started := time.Now()
	var end time.Time
	if p.Within > 0 {
		end = started.Add(p.Within - reserve)
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, end, errTime)
		defer stop()
	}
	var err error
	if p.inputs, err = p.readInputs(); err != nil {
		return nil, err
	}
	jobs, settled := p.expand()
	store, err := openStore(p.Out)
	if err != nil {
		return nil, err
	}
	defer store.close()

	r := &Result{Schema: schemaVersion, Version: p.Version, Started: started, Environment: machine.Read(p.GPUs),
		Settings: Settings{Pairs: p.Pairs, Seed: p.Seed, Confidence: stats.Confidence, Quick: p.Quick,
			Timeout: p.Timeout.Seconds(), Within: p.Within.Seconds()}}
	d := &doing{plan: &p, jobs: jobs, end: end, store: store, variables: variables{},
		results: make([]*RunResult, len(jobs)), reused: make([]bool, len(jobs))}
	d.report(RunResult{ID: -1})
	err = d.all(ctx)
	for _, run := range d.results {
		if run != nil {
			r.Runs = append(r.Runs, *run)
		}
	}
	r.Complete = err == nil
	if errors.Is(err, errTime) {
		err = nil
	}
	return r, errors.Join(err, p.assemble(r, settled, jobs))
}

type doing struct {
	plan *Plan
	jobs []job
	end  time.Time // zero without Plan.Within

	store     *store
	variables variables
	results   []*RunResult // by ID; nil if it is not done
	reused    []bool
}

// report reports the progress. The remaining time is estimated from the mean time of the runs of this process.
func (d *doing) report(run RunResult) {
	if d.plan.Progress == nil {
		return
	}
	p, seconds := Progress{Run: run, Total: len(d.jobs)}, 0.0
	for id, done := range d.results {
		switch {
		case done == nil:
			continue
		case d.reused[id]:
			p.Reused++
		default:
			seconds += done.Seconds
		}
		p.Done++
	}
	left := float64(p.Total-p.Done) * seconds / float64(max(p.Done-p.Reused, 1))
	if p.Left = time.Duration(left * float64(time.Second)); !d.end.IsZero() {
		p.Left = min(p.Left, max(time.Until(d.end), 0))
	}
	d.plan.Progress(p)
}

// all does every job. It ends at the first error.
func (d *doing) all(ctx context.Context) error {
	for id, j := range d.jobs {
		run, reused, err := d.plan.one(ctx, id, j, d)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		d.results[id], d.reused[id] = run, reused
		d.report(*run)
	}
	return nil
}

func (p *Plan) observe(ctx context.Context, j job, run runner.Job) (*runner.Observed, error) {
	scratch, err := os.MkdirTemp(p.Out, "scratch-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	if run.Scratch, err = filepath.Abs(scratch); err != nil {
		return nil, err
	}
	if slices.Contains(j.workload.Takes[j.runtime], "scratch") || j.runtime == Go || j.runtime == Galeone {
		run.Args = append(slices.Clip(run.Args), "--scratch="+run.Scratch)
	}
	run.Env = append(slices.Clone(p.Commands[j.runtime].Env), run.Env...)
	o, err := run.Run(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s %s with %s: %w", j.runtime, j.workload.ID, j.remedy.ID, err)
	}
	if run.Change != "" && o.Acted == 0 && o.Failure == "" {
		o.Failure, o.Cause = runner.NotApplicable, "the program did nothing to which it applies"
	}
	return o, nil
}

// one returns the run of a job. The second result is true if the run is from an earlier matrix.
func (p *Plan) one(ctx context.Context, id int, j job, d *doing) (*RunResult, bool, error) {
	child, err := p.run(j)
	if err != nil {
		return nil, false, err
	}
	key, err := p.key(j, child)
	if err != nil {
		return nil, false, err
	}
	run, ok := d.store.runs[key]
	if ok && !(run.Failure != "" && p.Again) {
		run.ID = id
		run.judge(j.workload, uint64(p.Seed))
		return &run, true, nil
	}
	started := time.Now()
	o, err := p.observe(ctx, j, child)
	if err != nil {
		return nil, false, err
	}
	run = RunResult{
		ID: id, Runtime: j.runtime, Workload: j.workload.ID, Remedy: j.remedy.ID, Pair: j.pair, Group: j.group,
		Key: key, Started: started, Seconds: time.Since(started).Seconds(),
		Phases: o.Phases, Facts: o.Facts, Series: &o.Series, Failure: o.Failure, Cause: o.Cause,
	}
	if run.Failure != "" {
		run.Log = o.Log[max(0, len(o.Log)-2048):]
	} else if run.Cause, run.Unverified = p.verify(j, o, d.variables); run.Cause != "" {
		run.Failure = runner.CouldNotApply
	} else {
		run.Cause = o.Cause
	}
	run.judge(j.workload, uint64(p.Seed))
	return &run, false, d.store.add(run)
}

// judge sets the outcome of a run. It also judges a reused run, because this version may judge
// differently.
func (run *RunResult) judge(w Workload, seed uint64) {
	c := memory.Criteria{Budget: memory.Bytes(w.Budget), Seed: seed}
	// Memory of GPUs on the host is shared memory; that of malloc is known as a part of anonymous memory only.
	if run.Series.Max(memlayer.Shared).Bytes+run.Series.Max(memlayer.Swap).Bytes > 0 {
		c.Layer = watch.Total
	}
	if samples := run.Series.Samples(); len(samples) > 0 && samples[len(samples)-1].Step == 0 { // it has no steps
		c.PerMinute, c.Budget = true, watch.MinuteBudget
	}
	v := run.Series.Judge(c)
	result := compare.Of(run.Series, v)
	closed, isClosed := run.Phases[program.Closed]
	if isClosed {
		result.Reset = closed.Get(memory.Anon)
	}
	if trimmed, ok := run.Phases[program.Trimmed]; ok && isClosed {
		result.Verdict = compare.Trimmed(v, &closed, &trimmed)
	}
	if run.Failure != "" {
		result.Verdict = compare.Crashed(string(run.Failure) + ": " + run.Cause)
	}
	run.Outcome = result
}
