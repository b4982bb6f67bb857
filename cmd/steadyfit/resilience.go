package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// resilience are the flags of fit for resets, budgets and what goes wrong.
type resilience struct {
	reset, resetEvery string
	resetNear         string
	resetWithin       int
	release           bool
	budget, budgetOf  string
	onOOM, onError    string
	inexact           bool
	supervise, force  bool
	deadline          time.Duration
	restarts          int
}

// What a flag's words mean.
var (
	budgetLayers = map[string]memory.Layer{"rss": memory.RSS, "anon": memory.Anon, "cgroup": memory.CgroupWorkingSet, budgetOfGPU: memory.GPUProcess}

	onWriteError = map[string]fit.ErrorPolicy{"stop": fit.Stop, "continue": fit.Continue}
)

// budgetOfGPU is a budget that TensorFlow keeps itself, by failing a step that would
// take more.
const budgetOfGPU = "gpu"

const (
	oomStop       = "stop"
	oomMicrobatch = "microbatch"
	oomRestart    = "restart"
)

func (r *resilience) register(flags *pflag.FlagSet) {
	flags.StringVar(&r.reset, "reset", string(session.ResetNone), "reset the session now and then, with the same numbers: none, restore (its variables), reload (the model, and give free memory back), process (a new process goes on)")
	flags.StringVar(&r.resetEvery, "reset-every", "", "how often to reset, as in 500steps or 2epochs; default 1epochs, and with --reset-near never")
	flags.StringVar(&r.resetNear, "reset-near", "", "reset, too, when nine tenths of this much memory are in use, such as 2GiB; of which kind, --memory-budget-of says")
	flags.IntVar(&r.resetWithin, "reset-within", 0, "with --reset-near: also when that is fewer than so many steps away, going by how memory grows")
	flags.BoolVar(&r.release, "release-memory", false, "have --reset reload give memory back: large blocks come from malloc, which keeps what is free until then (docs/resilience.md says what it costs)")
	flags.StringVar(&r.budget, "memory-budget", "", "memory that the process may use at any time, such as 600MiB; it is kept by splitting batches, reloading, and, with --checkpoints, going on in a new process")
	flags.StringVar(&r.budgetOf, "memory-budget-of", "rss", "what the budget and --reset-near are about: rss (resident memory), anon (without files), cgroup (the control group, without file pages that have not been used lately), gpu (TensorFlow's pool on the first GPU)")
	flags.StringVar(&r.onOOM, "on-oom", oomStop, "when TensorFlow runs out of memory: stop, microbatch (go back and split the batches), restart (from the last checkpoint, with --supervise)")
	flags.BoolVar(&r.inexact, "inexact-micro-batches", false, "split batches for --on-oom and --memory-budget even where the model's update is then another one, as with BatchNormalization, Dropout, or Embeddings under Adam")
	flags.StringVar(&r.onError, "on-write-error", "stop", "when a checkpoint or the history cannot be written: stop or continue")
	flags.BoolVar(&r.force, "force", false, "resume although data, options or TensorFlow differ, with a warning for each difference")
	flags.BoolVar(&r.supervise, "supervise", false, "train in a child process that is started again from the last checkpoint if it dies or hangs")
	flags.DurationVar(&r.deadline, "deadline", 5*time.Minute, "a supervised training without a step for so long hangs; more than a checkpoint takes; 0 is none; after Ctrl-C, a training in a child process has as long to end, at least 1m")
	flags.IntVar(&r.restarts, "restarts", 5, "deaths in a row, without progress, that --supervise bears")
}

// check refuses flags that cannot work together, or with the model, before TensorFlow is
// opened. given tells which flags were given.
func (r *resilience) check(f *fitFlags, given func(flag string) bool) error {
	switch depth := session.Depth(r.reset); {
	case !slices.Contains([]session.Depth{session.ResetNone, session.ResetRestore, session.ResetReload, session.ResetProcess}, depth):
		return usagef("--reset %s: expected none, restore, reload or process", r.reset)
	case depth == session.ResetProcess && !r.supervise:
		return usagef("--reset process needs --supervise, which starts the next process")
	}
	if _, _, err := r.every(); err != nil {
		return err
	}
	if r.resetNear != "" {
		if err := checkAmount("reset-near", r.resetNear, "look at no limit"); err != nil {
			return err
		}
	}
	switch {
	case r.resetEvery != "" && r.reset == string(session.ResetNone):
		return usagef("--reset-every needs --reset, how to reset")
	case r.resetNear != "" && r.reset == string(session.ResetNone):
		return usagef("--reset-near needs --reset, how to reset")
	case r.resetWithin != 0 && r.resetNear == "":
		return usagef("--reset-within needs --reset-near, the limit that it looks ahead to")
	case r.resetWithin < 0:
		return usagef("--reset-within %d: expected 0 or more steps", r.resetWithin)
	}
	if !slices.Contains([]string{oomStop, oomMicrobatch, oomRestart}, r.onOOM) {
		return usagef("--on-oom %s: expected stop, microbatch or restart", r.onOOM)
	}
	if r.onOOM == oomRestart && !r.supervise {
		return usagef("--on-oom restart needs --supervise, which starts the next process")
	}
	if _, ok := onWriteError[r.onError]; !ok {
		return usagef("--on-write-error %s: expected stop or continue", r.onError)
	}
	if _, ok := budgetLayers[r.budgetOf]; !ok {
		return usagef("--memory-budget-of %s: expected %s", r.budgetOf, strings.Join(slices.Sorted(maps.Keys(budgetLayers)), ", "))
	}
	if r.budget != "" {
		if err := checkAmount("memory-budget", r.budget, "have none"); err != nil {
			return err
		}
	}
	if r.resetNear != "" && r.budgetOf == budgetOfGPU {
		return usagef("--reset-near is about the memory of the process; expected --memory-budget-of rss, anon or cgroup")
	}
	if r.force && !f.resume {
		return usagef("--force is for --resume")
	}
	if r.supervise && f.checkpoints == "" {
		return usagef("--supervise needs --checkpoints, the folder to go on from")
	}
	if r.deadline < 0 || r.restarts < 0 {
		return usagef("--deadline %v, --restarts %d: expected 0 or more", r.deadline, r.restarts)
	}
	_, child := r.supervisor(f.checkpoints, given("supervise"))
	switch {
	case given("deadline") && !child:
		return usagef("--deadline needs --supervise, which ends a training that hangs")
	case given("restarts") && !r.supervise:
		return usagef("--restarts needs --supervise, which starts a training again that died")
	}
	return r.checkSplit(f)
}

// checkAmount refuses an amount of memory with which no training could run. without is
// what leaving the flag out is for.
func checkAmount(flag, text, without string) error {
	bytes, err := memory.ParseBytes(text)
	switch {
	case err != nil:
		return usagef("--%s: %w", flag, err)
	case bytes == 0:
		return usagef("--%s %s: expected more than 0; leave it out to %s", flag, text, without)
	case bytes >= memory.MiB: // in which TensorFlow counts a GPU's memory, too
		return nil
	}
	meant := ""
	if n, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
		meant = fmt.Sprintf("; a number alone is in bytes: did you mean %gMiB?", n)
	}
	return usagef("--%s %s: that is %v, and no training has less than 1 MiB%s", flag, text, bytes, meant)
}

// checkSplit refuses what takes a model whose batches can be split, if this one's cannot:
// it would help only until memory is short, when it is too late.
func (r *resilience) checkSplit(f *fitFlags) error {
	var flag, todo string
	switch {
	case r.onOOM == oomMicrobatch:
		flag, todo = "--on-oom microbatch", "--on-oom stop or restart do not split"
	case r.budget != "" && r.budgetOf == budgetOfGPU:
		flag, todo = "--memory-budget-of gpu", "a smaller --batch takes less, and --gpu-memory-fraction limits TensorFlow's pool, too"
	default:
		return nil
	}
	model, err := f.open()
	if err != nil {
		return err
	}
	o := f.options
	o.AllowInexactSplit = r.inexact
	plan, err := session.Compile(model, o)
	if err == nil {
		err = plan.CheckSplit()
	}
	if errors.Is(err, session.ErrNoSignature) || errors.Is(err, session.ErrInexactSplit) {
		return usagef("%s: %w; %s", flag, err, todo)
	}
	return err
}

// warn says of problems of the model what they mean for this training. State that is in no
// checkpoint or snapshot matters if the flags may have it go on from one. A reset to restore
// is no such case: it writes the values that the variables have already, and leaves all else
// as it is.
func (f *fitFlags) warn(model *savedmodels.Model, log *slog.Logger) {
	problems := model.ProblemsFor(f.options.TrainSignature)
	for _, p := range problems {
		if p.Code == savedmodels.CodeMetadata {
			log.Warn("names of classes, ranges of inputs and whether batches can be split are not known", "problem", p.Message, "fix", p.Fix)
		}
	}
	depth := session.Depth(f.reset)
	resets := depth != session.ResetNone && depth != session.ResetRestore
	if !resets && !f.supervise && !f.resume && f.budget == "" && f.onOOM == oomStop {
		return
	}
	for _, p := range problems {
		if p.Code == savedmodels.CodeStateNotSaved {
			log.Warn("resets and resumes will change the numbers of this training", "problem", p.Message, "fix", p.Fix)
		}
	}
}

// every is how many steps or epochs lie between two resets; 0 is never.
func (r *resilience) every() (steps, epochs int, err error) {
	switch {
	case r.resetEvery != "":
		return parseEvery("reset-every", r.resetEvery)
	case r.resetNear != "":
		return 0, 0, nil
	}
	return 0, 1, nil
}

// supervised trains in this process, or in a child of it.
func (r *resilience) supervised(cmd *cobra.Command, checkpoints string, train func(context.Context, *session.Supervised) error) error {
	s, ok := r.supervisor(checkpoints, cmd.Flags().Changed("supervise"))
	if !ok {
		return train(cmd.Context(), nil)
	}
	s.Log, s.Stderr, s.ExitCode = newLog(cmd.ErrOrStderr()), cmd.ErrOrStderr(), exitCode
	return goOn(session.Supervise(cmd.Context(), s, train), checkpoints)
}

// goOn adds to the error of a training that died too often what there is to continue from.
func goOn(err error, checkpoints string) error {
	var child *session.ChildError
	if !errors.As(err, &child) || len(child.Deaths) == 0 {
		return err
	}
	found, _ := fit.Checkpoints(checkpoints) // what cannot be read is nothing to continue from
	for _, c := range found {
		if c.Err == nil {
			return fmt.Errorf("%w\nthe newest checkpoint is %s, continue with --resume", err, c.Path)
		}
	}
	return fmt.Errorf("%w\nthere is no checkpoint in %s to continue from", err, checkpoints)
}

// supervisor is how a child is watched, if there is to be one. A budget may need another
// process, too: if there are checkpoints to go on from, and --supervise is not given, it
// gets a child that is not started again if it dies, and has the deadline only to end in.
func (r *resilience) supervisor(checkpoints string, given bool) (s session.Supervisor, ok bool) {
	switch {
	case r.supervise:
		s.Deadline, s.Restarts = r.deadline, r.restarts
		if s.Restarts == 0 {
			s.Restarts = -1 // 0 is the default there
		}
		return s, true
	case r.budget != "" && r.budgetOf != budgetOfGPU && checkpoints != "" && !given:
		s.Restarts, s.Grace = -1, max(r.deadline, time.Minute)
		return s, true
	}
	return s, false
}

// arranged is what a run's flags set up, to be asked after the run.
type arranged struct {
	again error
}

// outcome is why a run that ended without an error is not done.
func (a *arranged) outcome() error { return a.again }

// configure sets what a session must be opened with to split batches, and for a budget of
// GPU memory.
func (r *resilience) configure(o *session.Options) error {
	o.AllowInexactSplit = r.inexact
	if r.budget == "" || r.budgetOf != budgetOfGPU {
		return nil
	}
	if len(o.Device.VirtualGPUs) > 0 {
		return usagef("--memory-budget-of gpu: the GPUs are divided into devices of %v MiB already; expected either, since both limit TensorFlow's pool", o.Device.VirtualGPUs)
	}
	bytes, err := memory.ParseBytes(r.budget)
	if err != nil {
		return usagef("--memory-budget: %w", err)
	}
	o.Device.VirtualGPUs = [][]int{{int(bytes / memory.MiB)}}
	if _, err := o.Device.Check(os.Environ()); err != nil {
		return usagef("--memory-budget-of gpu, a virtual GPU of %d MiB: %w", bytes/memory.MiB, err)
	}
	o.ListAllocations = false // the batch is split instead
	return nil
}

// arrange has a loop train a session as the flags say. begun is set when a loop that goes
// on with what another process has begun has resumed.
func (r *resilience) arrange(l *fit.Loop, train data.Dataset, s *session.Session, c *session.Supervised, begun *bool) (*arranged, error) {
	a := &arranged{}
	l.Session = s
	var again func(reason string)
	if c != nil {
		again = func(reason string) { a.again = c.Again(reason) }
		if why := c.Why(); why != "" {
			l.Hook(fit.Hook{Name: "supervised", Start: func(_ context.Context, st *fit.State) error {
				*begun = true
				l.Log.Info(why)
				if c.Restarted() {
					st.Event("restart")
				}
				return nil
			}})
		}
	}
	if depth := session.Depth(r.reset); depth != session.ResetNone {
		steps, epochs, err := r.every()
		if err != nil {
			return nil, err
		}
		p := fit.ResetPolicy{Depth: depth, EverySteps: steps, EveryEpochs: epochs, Layer: budgetLayers[r.budgetOf], Within: r.resetWithin, Again: again}
		if r.resetNear != "" {
			if p.Limit, err = memory.ParseBytes(r.resetNear); err != nil {
				return nil, usagef("--reset-near: %w", err)
			}
		}
		l.Hook(p.Hook(s))
	}
	split, chooses := r.onOOM == oomMicrobatch, false
	switch {
	case r.budget == "":
	case r.budgetOf == budgetOfGPU:
		split = true
	default:
		limit, err := memory.ParseBytes(r.budget)
		if err != nil {
			return nil, usagef("--memory-budget: %w", err)
		}
		budget := &fit.Budget{Limit: limit, Layer: budgetLayers[r.budgetOf], Batch: l.Batch, Again: again, Log: l.Log}
		budget.Prefetch, _ = train.(*data.Prefetched) // else nothing is read ahead
		l.Hook(budget.Hook(s))
		chooses = true // the parts
	}
	if split {
		l.Recover = fit.OnOutOfMemory(s, l.Batch)
		if !chooses {
			l.Hook(fit.SplitAfterDeaths(s, l.Batch, c.MemoryDeaths()))
		}
	}
	return a, nil
}

// restartable marks an error that another process may not have. early is one that a process
// meets which has yet to go on with a training: the disk, the network or the memory was
// there when the training began, and to give up now costs what is done already.
func (r *resilience) restartable(err error, early bool) error {
	noMemory := errors.Is(err, session.ErrOutOfMemory)
	if noMemory && (early || r.onOOM == oomRestart) || early && errors.As(err, new(syscall.Errno)) {
		return fmt.Errorf("%w: %w", session.ErrRetry, err)
	}
	return err
}
