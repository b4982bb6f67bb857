package matrix

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
)

// Command starts the child processes of a runtime.
type Command struct {
	// Args are the program and its arguments. Env is added to the environment.
	Args, Env []string
	// Scripts is the folder of the programs of Keras.
	Scripts string
	// Identity identifies the build. Runs of another build are repeated.
	Identity string
	// Libraries are the TensorFlow libraries of the child.
	Libraries []string
}

// Plan says what to measure. Workloads, Runtimes, Commands and Out are required.
type Plan struct {
	Workloads []Workload
	// Remedies are compared with the baseline, which always runs.
	Remedies []Remedy
	// Select reports whether a remedy is applied to a workload; nil means always.
	Select   func(runtime, workload, remedy string) bool
	Runtimes []string
	// Commands start the children, by runtime.
	Commands map[string]Command
	// Models has the folders of the built-in models. User and Data are the model and the dataset of
	// the workload with the ID "user".
	Models     map[string]string
	User, Data string
	// Program is the command of the workload "program"; empty for none.
	Program []string
	// Pairs is the number of runs of each combination, each paired with a baseline run; 0 means
	// 5. A comparison needs at least 2.
	Pairs int
	// Seed is the seed of the data and of the bootstrap.
	Seed int64
	// Timeout ends a child that sends no message for this long; 0 means two minutes.
	Timeout time.Duration
	// Quick means a few remedies on shorter workloads, and 4.5 minutes if Within is 0.
	Quick bool
	// Within ends the matrix after this time, with the runs that are complete; 0 is no limit.
	Within time.Duration
	// Version is the version of steadyfit, for the result.
	Version string
	// GPUs has the names of the GPUs. GPU reads the GPU memory of a process; nil if that is not
	// possible.
	GPUs []string
	GPU  func(pid int) memory.Source
	// Allocator returns the path of an allocator to preload; nil means to search the library
	// path of the system.
	Allocator func(name string) (path string, err error)
	// Out is the folder of results. A run with the same key in it is reused.
	Out string
	// Again repeats the failed runs in Out.
	Again bool
	// Progress is called before the first run (with a negative ID) and after each run. It may
	// be nil.
	Progress func(Progress)

	inputs string // as readInputs returns them
}

// Progress is the progress of a matrix.
type Progress struct {
	// Run is the last run that ended.
	Run RunResult
	// Done is the number of complete runs, Total the number of all runs, and Reused the number of
	// complete runs from an earlier matrix.
	Done, Total, Reused int
	// Left estimates the remaining time; 0 before the first run of this process.
	Left time.Duration
}

func (p *Plan) defaults() {
	if p.Pairs == 0 {
		p.Pairs = 5
	}
	if p.Timeout == 0 {
		p.Timeout = 2 * time.Minute
	}
	if p.Quick && p.Within == 0 {
		p.Within = quickTime
	}
	if p.Allocator == nil {
		p.Allocator = tfprocess.FindAllocator
	}
}

// groupSize is the number of remedies that share a baseline run.
const groupSize = 8

type job struct {
	runtime     string
	workload    Workload
	remedy      Remedy
	pair, group int
	variants    []string // the remedies of the group
}

type combinationID struct{ runtime, workload, remedy string }

func (j job) id() combinationID { return combinationID{j.runtime, j.workload.ID, j.remedy.ID} }

// expand returns the jobs in their order, and the combinations that need no run. The first pairs
// of all workloads come first, so that a matrix that ends early has some pairs of each. Every
// second pair has the reverse order, so that a machine that becomes slower favours no side.
func (p *Plan) expand() (jobs []job, settled map[combinationID]Combination) {
	settled = make(map[combinationID]Combination)
	base := Remedies()[0]
	byPair := make([][]job, p.Pairs)
	for _, runtime := range p.Runtimes {
		for _, w := range p.Workloads {
			if !w.runsOn(runtime) {
				continue
			}
			w := w.For(runtime)
			var remedies []Remedy
			for _, r := range p.Remedies {
				if r.ID == Baseline || p.Select != nil && !p.Select(runtime, w.ID, r.ID) {
					continue
				}
				r = r.on(runtime)
				if effect, reason := p.refuse(runtime, w, r); effect != "" {
					settled[combinationID{runtime, w.ID, r.ID}] = Combination{Runtime: runtime, Workload: w.ID, Remedy: r.ID,
						Effect: effect, Reason: reason}
					continue
				}
				remedies = append(remedies, r)
			}
			groups := slices.Collect(slices.Chunk(remedies, groupSize))
			if len(groups) == 0 {
				groups = [][]Remedy{nil}
			}
			for pair := range byPair {
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
						byPair[pair] = append(byPair[pair], job{runtime, w, r, pair, g, ids})
					}
				}
			}
		}
	}
	return slices.Concat(byPair...), settled
}

// Inapplicable returns the reasons why no remedy of the plan can change anything. It returns none
// if a remedy can, or if the plan has no remedies.
func (p *Plan) Inapplicable() []string {
	p.defaults()
	jobs, settled := p.expand()
	if slices.ContainsFunc(jobs, func(j job) bool { return j.remedy.ID != Baseline }) {
		return nil
	}
	var reasons []string
	for _, c := range settled {
		if c.Effect != compare.NotApplicable {
			return nil
		}
		reasons = append(reasons, c.Remedy+": "+c.Reason)
	}
	if reasons == nil && slices.ContainsFunc(p.Remedies, func(r Remedy) bool { return r.ID != Baseline }) {
		reasons = []string{"the workloads that they were named for are not measured"}
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}

var common = []string{"gc", "trim"}

// refuse returns the reason why a remedy does not run on a workload, or "".
func (p *Plan) refuse(runtime string, w Workload, r Remedy) (compare.Effect, string) {
	if len(r.Runtimes) > 0 && !slices.Contains(r.Runtimes, runtime) {
		return compare.NotApplicable, fmt.Sprintf("it does not apply to the runtime %s", runtime)
	}
	if r.NeedsGPU && len(p.GPUs) == 0 {
		return compare.CouldNotApply, "no GPU"
	}
	switch {
	case r.Device != nil && (runtime == Keras || runtime == Program):
		return compare.NotApplicable, "it is set in a ConfigProto, and " + runtime + " takes none"
	case r.Device != nil && w.NoSession:
		return compare.NotApplicable, fmt.Sprintf("%s opens no session", w.ID)
	case r.Preload != "":
		if _, err := p.Allocator(r.Preload); err != nil {
			return compare.CouldNotApply, err.Error()
		}
	}
	return p.refuseOptions(runtime, w, r)
}

// refuseOptions returns the reason why the options of a remedy change nothing in a workload, or "".
func (p *Plan) refuseOptions(runtime string, w Workload, r Remedy) (compare.Effect, string) {
	for _, name := range slices.Sorted(maps.Keys(r.Params)) {
		switch {
		case name == batchDivide:
			if w.Batch < 4 {
				return compare.NotApplicable, fmt.Sprintf("%s has no batch to divide", w.ID)
			}
		case !slices.Contains(common, name) && !slices.Contains(w.Takes[runtime], name):
			return compare.NotApplicable, fmt.Sprintf("%s on %s has nothing that %s=%s changes", w.ID, runtime, name,
				r.Params[name])
		}
	}
	if w.does(runtime, r.Params) && len(r.Env) == 0 && r.Device == nil && r.Preload == "" {
		return compare.NotApplicable, fmt.Sprintf("%s does that already", w.ID)
	}
	return "", ""
}

// run returns the process of a job, without the folder for its files.
func (p *Plan) run(j job) (runner.Job, error) {
	w, r := j.workload, j.remedy
	run := runner.Job{Args: p.Commands[j.runtime].Args, Every: w.Every, Change: r.Change, Limit: memory.Bytes(w.Limit),
		Timeout: p.Timeout, GPU: p.GPU}
	if j.runtime == Keras && w.Mark != "" {
		run.Mark = regexp.MustCompile(w.Mark)
	}
	if j.runtime == Program {
		run.Args = p.Program
	} else {
		arguments, err := p.arguments(j)
		if err != nil {
			return run, err
		}
		run.Args = slices.Concat(run.Args, arguments)
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
	return run, nil
}

// arguments returns the name of the program of a job, and its options.
func (p *Plan) arguments(j job) ([]string, error) {
	w, r := j.workload, j.remedy
	arguments := []string{cmp.Or(w.Like, w.ID)}
	if j.runtime == Keras {
		arguments = []string{filepath.Join(p.Commands[Keras].Scripts, w.Script)}
	}
	batch, samples := w.Batch, w.Epoch*w.Batch
	if n := r.dividesBatch(); n > 1 {
		batch = max(1, batch/n)
	}
	options := merged(w.Params, r.Params)
	delete(options, batchDivide)
	for name, n := range map[string]int{"steps": w.Steps, "epoch": w.Epoch, "batch": batch, "samples": samples} {
		options[name] = strconv.Itoa(n)
	}
	options["seed"] = strconv.FormatInt(p.Seed, 10)
	if model := p.Models[w.Model]; w.ID == User {
		options["model"], options["data"] = p.User, p.Data
	} else if j.runtime != Keras {
		options["model"] = model
	} else if slices.Contains(w.Takes[Keras], "model") {
		options["model"] = w.Model
	}
	if r.Device != nil {
		config, err := r.Device.ConfigProto()
		if err != nil {
			return nil, fmt.Errorf("remedy %s: %w", r.ID, err)
		}
		options["config"] = hex.EncodeToString(config)
	}
	if j.runtime == Go && w.Limit == 0 { // tracing could fail a run that survived all its steps
		options["trace"] = "1"
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if options[name] != "" {
			arguments = append(arguments, "--"+name+"="+options[name])
		}
	}
	return arguments, nil
}

// key identifies a job with everything that its outcome depends on.
func (p *Plan) key(j job, run runner.Job) (string, error) {
	text, err := json.Marshal([]any{
		j.runtime, j.remedy.ID, p.Commands[j.runtime].Identity, j.pair, j.group, j.variants, run.Args, run.Every, run.Change,
		run.Env, run.Limit, j.workload.Budget, p.inputs,
	})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12]), nil
}
