package matrix

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"steadyfit/internal/allocator"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/lab/worker"
	"steadyfit/memory"
)

// Command starts the children of a runtime.
type Command struct {
	// Args are the program and its arguments. Env is added to the environment.
	Args, Env []string
	// Identity identifies the build. A resumed matrix repeats the runs of another build.
	Identity string
	// Libraries are the TensorFlow libraries that the child uses.
	Libraries []string
}

// Plan says what to run. Workloads, Runtimes, Commands and Out must be set.
type Plan struct {
	Workloads []Workload
	// Remedies to run beside the baseline, which always runs.
	Remedies []Remedy
	// Select reports whether a remedy is applied to a workload on a runtime; nil means always. A
	// workload without a remedy runs as the baseline.
	Select   func(runtime, workload, remedy string) bool
	Runtimes []string
	// Commands start the children, by runtime.
	Commands map[string]Command
	// Models has the folder of each built-in model that the workloads name. User and Data are
	// the model and dataset of the workload "user".
	Models     map[string]string
	User, Data string
	// Pairs is the number of runs of each remedy, each paired with one of the baseline; 0 means
	// 5. Fewer than 2 give no comparison.
	Pairs int
	// Group is the number of remedies that share a baseline run; 0 means 8.
	Group int
	// Seed of the data and of the bootstrap.
	Seed int64
	// Limit is the memory limit of each child, unless its workload has its own limit; 0 is no
	// limit.
	Limit memory.Bytes
	// Timeout is the longest time between two messages of a child; 0 means two minutes.
	Timeout time.Duration
	// Jobs is the number of runs at the same time; 0 means 1. More of them disturb each other's
	// step times.
	Jobs int
	// Quick and Version are recorded in the result. Version is that of steadyfit.
	Quick   bool
	Version string
	// GPUs names the GPUs of this machine. GPU reads the GPU memory of a process; nil if that is
	// not possible.
	GPUs []string
	GPU  func(pid int) memory.Source
	// Allocator returns the library of an allocator to preload; nil means to search the system's
	// library path.
	Allocator func(name string) (path string, err error)
	// Out is the folder for results. A run in this folder with the same key is reused.
	Out string
	// Again repeats the failed runs in Out.
	Again bool
	// Progress is called before the first run, with a negative ID, and after each run. It may be
	// nil.
	Progress func(Progress)

	inputs    inputs
	limitKind string // as runner.LimitKind returns it
}

// Progress is the progress of a matrix.
type Progress struct {
	// Run is the run that has just ended.
	Run RunResult
	// Done is the number of completed runs out of Total. Reused of them are from an earlier
	// matrix.
	Done, Total, Reused int
	// Left is an estimate of the remaining time; 0 before the first run of this process.
	Left time.Duration
}

func (p *Plan) defaults() {
	if p.Pairs == 0 {
		p.Pairs = 5
	}
	if p.Group == 0 {
		p.Group = 8
	}
	if p.Timeout == 0 {
		p.Timeout = 2 * time.Minute
	}
	if p.Allocator == nil {
		p.Allocator = allocator.Find
	}
}

// job is one run to do.
type job struct {
	runtime     string
	workload    Workload
	remedy      Remedy
	pair, group int
	variants    []string // the remedies of the group
}

// together reports whether two jobs belong to the same pair of the same group. Such runs are
// done one after the other.
func (j job) together(other job) bool {
	return j.runtime == other.runtime && j.workload.ID == other.workload.ID && j.pair == other.pair && j.group == other.group
}

// cellID is the key of a cell in maps.
type cellID struct{ runtime, workload, remedy string }

func (j job) cell() cellID { return cellID{j.runtime, j.workload.ID, j.remedy.ID} }

// expand returns the runs in their order, and the cells that need no run, with the reason. Odd
// pairs run backwards, so that a machine that becomes slower favours neither side.
func (p *Plan) expand() (jobs []job, settled map[cellID]Cell) {
	settled = make(map[cellID]Cell)
	base := Remedies()[0]
	for _, runtime := range p.Runtimes {
		for _, w := range p.Workloads {
			if !w.RunsOn(runtime) {
				continue
			}
			w := w.on(runtime)
			var remedies []Remedy
			for _, r := range p.Remedies {
				if r.ID == Baseline || p.Select != nil && !p.Select(runtime, w.ID, r.ID) {
					continue
				}
				r = r.on(runtime)
				if effect, reason := p.refuse(runtime, w, r); effect != "" {
					settled[cellID{runtime, w.ID, r.ID}] = Cell{Runtime: runtime, Workload: w.ID, Remedy: r.ID, Effect: effect, Reason: reason}
					continue
				}
				remedies = append(remedies, r)
			}
			groups := slices.Collect(slices.Chunk(remedies, p.Group))
			if len(groups) == 0 {
				groups = [][]Remedy{nil}
			}
			for pair := range p.Pairs {
				for g, group := range groups {
					variants := append([]Remedy{base}, group...)
					if pair%2 == 1 {
						slices.Reverse(variants)
					}
					var ids []string
					for _, r := range variants {
						ids = append(ids, r.ID)
					}
					for _, r := range variants {
						jobs = append(jobs, job{runtime, w, r, pair, g, ids})
					}
				}
			}
		}
	}
	return jobs, settled
}

// Inapplicable returns the reasons why no remedy of the plan changes anything. It is empty if
// one does, or if the plan has no remedies.
func (p *Plan) Inapplicable() []string {
	var reasons []string
	for _, r := range p.Remedies {
		if r.ID == Baseline {
			continue
		}
		why := "the workloads that it was named for are not measured"
		for _, runtime := range p.Runtimes {
			for _, w := range p.Workloads {
				if p.Select != nil && !p.Select(runtime, w.ID, r.ID) {
					continue
				}
				if !w.RunsOn(runtime) {
					why = fmt.Sprintf("%s does not run on %s", w.ID, runtime)
					continue
				}
				effect, reason := p.refuse(runtime, w.on(runtime), r.on(runtime))
				if effect != memory.NotApplicable {
					return nil
				}
				why = reason
			}
		}
		reasons = append(reasons, r.ID+": "+why)
	}
	return reasons
}

// common are the parameters that every workload has.
var common = []string{"gc", "trim"}

// refuse returns the reason why a remedy is not run on a workload, if it is known beforehand, or
// "".
func (p *Plan) refuse(runtime string, w Workload, r Remedy) (memory.Effect, string) {
	if len(r.Runtimes) > 0 && !slices.Contains(r.Runtimes, runtime) {
		return memory.NotApplicable, fmt.Sprintf("it does not apply to the runtime %s", runtime)
	}
	if r.NeedsGPU && len(p.GPUs) == 0 {
		return memory.CouldNotApply, "no GPU"
	}
	if r.Device != nil && runtime == Keras {
		return memory.NotApplicable, "it is set in a ConfigProto, and Keras takes none"
	}
	if r.Device != nil && w.NoSession {
		return memory.NotApplicable, fmt.Sprintf("%s opens no session", w.ID)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Params)) {
		switch {
		case name == batchDivide:
			if w.Batch < 4 {
				return memory.NotApplicable, fmt.Sprintf("%s has no batch to divide", w.ID)
			}
		case !slices.Contains(common, name) && !slices.Contains(w.Takes[runtime], name):
			return memory.NotApplicable, fmt.Sprintf("%s on %s has nothing that %s=%s changes", w.ID, runtime, name, r.Params[name])
		}
	}
	if w.does(runtime, r.Params) && len(r.Env) == 0 && r.Device == nil && r.Preload == "" {
		return memory.NotApplicable, fmt.Sprintf("%s does that already", w.ID)
	}
	if r.Preload != "" {
		if _, err := p.Allocator(r.Preload); err != nil {
			return memory.CouldNotApply, err.Error()
		}
	}
	return "", ""
}

// run returns the run of a job. It does not set the folder for the child's files.
func (p *Plan) run(j job) (runner.Job, error) {
	w, r := j.workload, j.remedy
	s := worker.Spec{
		Workload: cmp.Or(w.Like, w.ID), Steps: w.Steps, Every: w.Every, Epoch: w.Epoch, Batch: w.Batch,
		Seed: p.Seed, Model: p.Models[w.Model], Params: merged(w.Params, r.Params),
		Trace: p.limit(w) == 0, // Tracing could fail a run that survived all its steps.
	}
	run := runner.Job{Args: p.Commands[j.runtime].Args, Limit: p.limit(w), Timeout: p.Timeout, GPU: p.GPU}
	if w.ID == User {
		s.Model, s.Data = p.User, p.Data
	}
	if n := r.dividesBatch(); n > 1 {
		if part := max(1, s.Batch/n); part != s.Batch {
			s.Samples, s.Batch = s.Epoch*s.Batch, part
		}
	}
	delete(s.Params, batchDivide)
	if r.Device != nil {
		var err error
		if s.Config, err = r.Device.ConfigProto(); err != nil {
			return run, fmt.Errorf("remedy %s: %w", r.ID, err)
		}
	}
	variables := merged(w.Env, r.Env)
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		run.Env = append(run.Env, name+"="+variables[name])
	}
	if r.Preload != "" {
		library, err := p.Allocator(r.Preload)
		if err != nil {
			return run, err
		}
		run.Env = append(run.Env, "LD_PRELOAD="+library)
	}
	run.Spec = s
	return run, nil
}

// key identifies a job and everything that its outcome depends on.
func (p *Plan) key(j job, run runner.Job) (string, error) {
	user, limitKind := "", ""
	if j.workload.ID == User {
		user = p.inputs.user
	}
	if run.Limit > 0 {
		limitKind = p.limitKind
	}
	text, err := json.Marshal([]any{
		j.runtime, j.remedy.ID, p.Commands[j.runtime].Identity, j.pair, j.group, j.variants, max(p.Jobs, 1),
		run.Spec, run.Env, run.Limit, limitKind, j.workload.Budget,
		p.inputs.runtimes[j.runtime], user, p.inputs.machine, p.inputs.variables,
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), nil
}

func (p *Plan) limit(w Workload) memory.Bytes {
	return cmp.Or(memory.Bytes(w.Limit), p.Limit)
}
