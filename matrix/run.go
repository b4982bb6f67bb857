package matrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
		Settings: Settings{Pairs: p.Pairs, Seed: p.Seed, Confidence: memory.DefaultConfidence, Quick: p.Quick, Timeout: p.Timeout.Seconds()}}
	variables := newVariables(&p)
	progress := Progress{Run: RunResult{ID: -1}, Total: len(jobs)}
	p.report(progress)
	var spent time.Duration
	for id, j := range jobs {
		run, reused, err := p.one(ctx, id, j, store, variables)
		if err != nil {
			p.assemble(r, settled, jobs)
			return r, err
		}
		r.Runs = append(r.Runs, *run)
		progress.Run, progress.Done = *run, progress.Done+1
		if reused {
			progress.Reused++
		} else {
			spent += time.Duration(run.Seconds * float64(time.Second))
			progress.Left = spent / time.Duration(progress.Done-progress.Reused) * time.Duration(progress.Total-progress.Done)
		}
		p.report(progress)
	}
	r.Complete = true
	p.assemble(r, settled, jobs)
	return r, nil
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
func (p *Plan) one(ctx context.Context, id int, j job, s *store, variables *variables) (*RunResult, bool, error) {
	spec, env, err := p.spec(j)
	if err != nil {
		return nil, false, err
	}
	key, err := p.key(j, spec, env)
	if err != nil {
		return nil, false, err
	}
	if run, ok := s.runs[key]; ok {
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
	o, err := observe(ctx, p.Commands[j.runtime], env, spec, p.limit(j.workload), p.Timeout)
	if err != nil {
		return nil, false, fmt.Errorf("%s %s with %s: %w", j.runtime, j.workload.ID, j.remedy.ID, err)
	}
	run := &RunResult{
		ID: id, Runtime: j.runtime, Workload: j.workload.ID, Remedy: j.remedy.ID, Pair: j.pair, Group: j.group,
		Key: key, Started: started, Seconds: time.Since(started).Seconds(),
		Phases: o.phases, Facts: o.facts, Series: &o.series, Failure: o.failure, Cause: o.cause,
	}
	if run.Failure == "" {
		if reason := p.verify(j, o, variables); reason != "" {
			run.Failure, run.Cause = cell.CouldNotApply, reason
		}
	} else {
		run.Log = excerpt(o.log)
	}
	run.Outcome = outcome(o, j.workload, uint64(p.Seed))
	if run.Failure != "" {
		run.Outcome.Verdict = memory.Crashed(string(run.Failure) + ": " + run.Cause)
	}
	return run, false, s.add(*run)
}

// outcome is what a run came to, for memory.Compare.
func outcome(o *observed, w Workload, seed uint64) memory.Outcome {
	v := o.series.Judge(memory.Criteria{Budget: memory.Bytes(w.Budget), Seed: seed})
	result := o.series.Outcome(v)
	for _, sample := range o.phases {
		if peak := sample.Get(memory.Peak); peak.OK && (!result.Peak.OK || peak.Bytes > result.Peak.Bytes) {
			result.Peak = peak
		}
	}
	if closed, ok := o.phases[cell.PhaseClosed]; ok {
		result.Reset = closed.Get(memory.Anon)
	}
	return result
}
