package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"steadyfit/matrix/cell"
	"steadyfit/memory"
)

// Run does what a plan says, and returns the result of all runs that are done,
// those of an earlier call included. The result is not nil if err is: an error
// means that the matrix could not go on (ctx ended, a child that cannot be
// started, a disk that is full), and what was measured before is in the result and
// in the folder.
func Run(ctx context.Context, p Plan) (*Result, error) {
	p.defaults()
	if err := p.check(); err != nil {
		return nil, err
	}
	jobs, settled := p.expand()
	store, err := openStore(p.Out)
	if err != nil {
		return nil, err
	}
	defer store.close()

	r := &Result{Schema: SchemaVersion, Version: p.Version, Started: time.Now(), Environment: environment(&p),
		Settings: Settings{Pairs: p.Pairs, Seed: p.Seed, Confidence: memory.DefaultConfidence, Quick: p.Quick, Jobs: max(p.Jobs, 1), Timeout: p.Timeout.Seconds()}}
	d := &doing{plan: &p, jobs: jobs, store: store, variables: newVariables(&p), results: make([]*RunResult, len(jobs)),
		progress: Progress{Run: RunResult{ID: -1}, Total: len(jobs)}}
	p.report(d.progress)
	err = d.all(ctx)
	for _, run := range d.results {
		if run != nil {
			r.Runs = append(r.Runs, *run)
		}
	}
	r.Complete = err == nil
	p.assemble(r, settled, jobs)
	return r, err
}

// doing is the runs of a plan as they are done.
type doing struct {
	plan *Plan
	jobs []job

	mu        sync.Mutex // over all that follows
	store     *store
	variables *variables
	results   []*RunResult // by ID
	progress  Progress
	spent     time.Duration
}

// all does every job: those of a pair of a group one after the other, and as many
// pairs at the same time as the plan says. It ends at the first error.
func (d *doing) all(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	pairs := make(chan []int)
	var workers sync.WaitGroup
	for range max(d.plan.Jobs, 1) {
		workers.Go(func() {
			for ids := range pairs {
				for _, id := range ids {
					if err := d.one(ctx, id); err != nil {
						stop(err)
						return
					}
				}
			}
		})
	}
	for from := 0; from < len(d.jobs); {
		to := from + 1
		for to < len(d.jobs) && d.jobs[to].together(d.jobs[from]) {
			to++
		}
		ids := make([]int, 0, to-from)
		for id := from; id < to; id++ {
			ids = append(ids, id)
		}
		from = to
		select {
		case pairs <- ids:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(pairs)
	workers.Wait()
	return context.Cause(ctx)
}

// one does a job and takes note of it.
func (d *doing) one(ctx context.Context, id int) error {
	run, reused, err := d.plan.one(ctx, id, d.jobs[id], d)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.results[id] = run
	d.progress.Run, d.progress.Done = *run, d.progress.Done+1
	if reused {
		d.progress.Reused++
	} else {
		d.spent += time.Duration(run.Seconds * float64(time.Second))
		done := d.progress.Done - d.progress.Reused
		d.progress.Left = d.spent / time.Duration(done*max(d.plan.Jobs, 1)) * time.Duration(d.progress.Total-d.progress.Done)
	}
	d.plan.report(d.progress)
	return nil
}

func (p *Plan) report(progress Progress) {
	if p.Progress != nil {
		p.Progress(progress)
	}
}

// check refuses a plan that cannot work before anything is run.
func (p *Plan) check() error {
	if len(p.Workloads) == 0 || len(p.Runtimes) == 0 {
		return errors.New("nothing to run: no workload or no runtime")
	}
	if p.Out == "" {
		return errors.New("no folder for the results")
	}
	if p.Pairs < 1 {
		return fmt.Errorf("%d pairs: expected at least 1", p.Pairs)
	}
	for _, name := range p.Runtimes {
		if c, ok := p.Commands[name]; !ok || len(c.Args) == 0 {
			return fmt.Errorf("%w: runtime %q has no command", ErrUnknown, name)
		}
	}
	for _, w := range p.Workloads {
		if w.Model != "" && p.Models[w.Model] == "" {
			return fmt.Errorf("workload %s: no folder for its model %s", w.ID, w.Model)
		}
		if w.ID == User && p.User == "" {
			return fmt.Errorf("workload %s: no model", User)
		}
	}
	return nil
}

// one does a job, or finds it done.
func (p *Plan) one(ctx context.Context, id int, j job, d *doing) (*RunResult, bool, error) {
	spec, env, err := p.spec(j)
	if err != nil {
		return nil, false, err
	}
	key, err := p.key(j, spec, env)
	if err != nil {
		return nil, false, err
	}
	d.mu.Lock()
	run, ok := d.store.runs[key]
	d.mu.Unlock()
	if ok {
		run.ID = id
		return &run, true, nil
	}
	if spec.Scratch, err = os.MkdirTemp(p.Out, "scratch-"); err != nil {
		return nil, false, err
	}
	defer os.RemoveAll(spec.Scratch)
	if spec.Scratch, err = filepath.Abs(spec.Scratch); err != nil {
		return nil, false, err
	}
	started := time.Now()
	o, err := observe(ctx, p.Commands[j.runtime], env, spec, p.limit(j.workload), p.Timeout, p.GPU)
	if err != nil {
		return nil, false, fmt.Errorf("%s %s with %s: %w", j.runtime, j.workload.ID, j.remedy.ID, err)
	}
	run = RunResult{
		ID: id, Runtime: j.runtime, Workload: j.workload.ID, Remedy: j.remedy.ID, Pair: j.pair, Group: j.group,
		Key: key, Started: started, Seconds: time.Since(started).Seconds(),
		Phases: o.phases, Facts: o.facts, Series: &o.series, Failure: o.failure, Cause: o.cause,
	}
	run.Outcome = outcome(o, j.workload, uint64(p.Seed))
	d.mu.Lock()
	defer d.mu.Unlock()
	if run.Failure == "" {
		if reason := p.verify(j, o, d.variables); reason != "" {
			run.Failure, run.Cause = cell.CouldNotApply, reason
		}
	} else {
		run.Log = excerpt(o.log)
	}
	if run.Failure != "" {
		run.Outcome.Verdict = memory.Crashed(string(run.Failure) + ": " + run.Cause)
	}
	return &run, false, d.store.add(run)
}

// outcome is what a run came to, for memory.Compare.
func outcome(o *observed, w Workload, seed uint64) memory.Outcome {
	v := o.series.Judge(memory.Criteria{Budget: memory.Bytes(w.Budget), Seed: seed})
	result := o.series.Outcome(v)
	for name, sample := range o.phases {
		if name == cell.PhaseTraced || name == cell.PhaseClosed || name == cell.PhaseTrimmed {
			continue // the trace of a step is no part of the loop
		}
		if peak := sample.Get(memory.Peak); peak.OK && (!result.Peak.OK || peak.Bytes > result.Peak.Bytes) {
			result.Peak = peak
		}
	}
	if closed, ok := o.phases[cell.PhaseClosed]; ok {
		result.Reset = closed.Get(memory.Anon)
	}
	return result
}
