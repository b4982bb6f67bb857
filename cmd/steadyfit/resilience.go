package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"steadyfit/fit"
	"steadyfit/fit/budget"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/train"
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
	layers       = map[string]memory.Layer{"rss": memory.RSS, "anon": memory.Anon, "cgroup": memory.CgroupWorkingSet, "gpu": memory.GPUProcess}
	onWriteError = map[string]fit.ErrorPolicy{"stop": fit.Stop, "continue": fit.Continue}
	onOOM        = map[string]train.OutOfMemory{"stop": train.Stop, "microbatch": train.MicroBatch, "restart": train.Restart}
	depths       = []session.Depth{session.ResetNone, session.ResetRestore, session.ResetReload, session.ResetProcess}
)

func (r *resilience) register(flags *pflag.FlagSet) {
	flags.StringVar(&r.reset, "reset", string(session.ResetNone), "reset the session now and then, with the same numbers: none, restore (its variables), reload (the model, and give free memory back), process (a new process goes on)")
	flags.StringVar(&r.resetEvery, "reset-every", "", "how often to reset, as in 500steps or 2epochs; default 1epochs, and with --reset-near never")
	flags.StringVar(&r.resetNear, "reset-near", "", "reset, too, when nine tenths of this much memory are in use, such as 2GiB; of which kind, --memory-budget-of says")
	flags.IntVar(&r.resetWithin, "reset-within", 0, "with --reset-near: also when that is fewer than so many steps away, going by how memory grows")
	flags.BoolVar(&r.release, "release-memory", false, "have --reset reload give memory back: large blocks come from malloc, which keeps what is free until then (docs/resilience.md says what it costs)")
	flags.StringVar(&r.budget, "memory-budget", "", "memory that the process may use at any time, such as 600MiB; it is kept by splitting batches, reloading, and, with --checkpoints, going on in a new process")
	flags.StringVar(&r.budgetOf, "memory-budget-of", "rss", "what the budget and --reset-near are about: rss (resident memory), anon (without files), cgroup (the control group, without file pages that have not been used lately), gpu (TensorFlow's pool on the first GPU)")
	flags.StringVar(&r.onOOM, "on-oom", "stop", "when TensorFlow runs out of memory: stop, microbatch (go back and split the batches), restart (from the last checkpoint, with --supervise)")
	flags.BoolVar(&r.inexact, "inexact-micro-batches", false, "split batches for --on-oom and --memory-budget even where the model's update is then another one, as with BatchNormalization, Dropout, or Embeddings under Adam")
	flags.StringVar(&r.onError, "on-write-error", "stop", "when a checkpoint or the history cannot be written: stop or continue")
	flags.BoolVar(&r.force, "force", false, "resume although data, options or TensorFlow differ, with a warning for each difference")
	flags.BoolVar(&r.supervise, "supervise", false, "train in a child process that is started again from the last checkpoint if it dies or hangs")
	flags.DurationVar(&r.deadline, "deadline", 5*time.Minute, "a supervised training without a step for so long hangs; more than a checkpoint takes; 0 is none; after Ctrl-C, a training in a child process has as long to end, at least 1m")
	flags.IntVar(&r.restarts, "restarts", 5, "deaths in a row, without progress, that --supervise bears")
}

// parse puts what the flags say into a training. given tells which flags were given.
func (r *resilience) parse(c *train.Config, given func(flag string) bool) (err error) {
	var ok bool
	if c.OnOutOfMemory, ok = onOOM[r.onOOM]; !ok {
		return usagef("--on-oom %s: expected stop, microbatch or restart", r.onOOM)
	}
	if c.OnWriteError, ok = onWriteError[r.onError]; !ok {
		return usagef("--on-write-error %s: expected stop or continue", r.onError)
	}
	if c.Budget.Layer, ok = layers[r.budgetOf]; !ok {
		return usagef("--memory-budget-of %s: expected %s", r.budgetOf, strings.Join(slices.Sorted(maps.Keys(layers)), ", "))
	}
	if r.budget != "" {
		if c.Budget.Limit, err = parseAmount("memory-budget", r.budget, "have none"); err != nil {
			return err
		}
	}
	if err := r.parseReset(c); err != nil {
		return err
	}
	if r.deadline < 0 || r.restarts < 0 {
		return usagef("--deadline %v, --restarts %d: expected 0 or more", r.deadline, r.restarts)
	}
	c.Loop.ResumeAnyway, c.ReleaseMemory = r.force, r.release
	switch {
	case r.supervise:
		c.Supervise = train.Supervised
	case !given("supervise"):
		c.Supervise = train.ForBudget
	}
	if r.supervise || given("deadline") {
		c.Supervisor.Deadline = r.deadline
	}
	if r.supervise || given("restarts") {
		c.Supervisor.Restarts = r.restarts
		if r.restarts == 0 {
			c.Supervisor.Restarts = -1 // 0 is the default there
		}
	}
	c.Supervisor.Grace = max(r.deadline, time.Minute)
	return nil
}

func (r *resilience) parseReset(c *train.Config) (err error) {
	p := &budget.ResetPolicy{Depth: session.Depth(r.reset), Within: r.resetWithin, Layer: c.Budget.Layer, EveryEpochs: 1}
	switch {
	case !slices.Contains(depths, p.Depth):
		return usagef("--reset %s: expected none, restore, reload or process", r.reset)
	case r.resetEvery != "" && p.Depth == session.ResetNone:
		return usagef("--reset-every needs --reset, how to reset")
	case r.resetNear != "" && p.Depth == session.ResetNone:
		return usagef("--reset-near needs --reset, how to reset")
	case r.resetWithin != 0 && r.resetNear == "":
		return usagef("--reset-within needs --reset-near, the limit that it looks ahead to")
	}
	if r.resetNear != "" {
		p.EveryEpochs = 0
		if p.Limit, err = parseAmount("reset-near", r.resetNear, "look at no limit"); err != nil {
			return err
		}
	}
	if r.resetEvery != "" {
		if p.EverySteps, p.EveryEpochs, err = parseEvery("reset-every", r.resetEvery); err != nil {
			return err
		}
	}
	if p.Depth != session.ResetNone {
		c.Reset = p
	}
	return nil
}

// parseAmount reads an amount of memory, and refuses one with which no training could run.
// without is what leaving the flag out is for.
func parseAmount(flag, text, without string) (memory.Bytes, error) {
	bytes, err := memory.ParseBytes(text)
	switch {
	case err != nil:
		return 0, usagef("--%s: %w", flag, err)
	case bytes == 0:
		return 0, usagef("--%s %s: expected more than 0; leave it out to %s", flag, text, without)
	case bytes >= memory.MiB: // in which TensorFlow counts a GPU's memory, too
		return bytes, nil
	}
	meant := ""
	if n, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil {
		meant = fmt.Sprintf("; a number alone is in bytes: did you mean %gMiB?", n)
	}
	return 0, usagef("--%s %s: that is %v, and no training has less than 1 MiB%s", flag, text, bytes, meant)
}

// goOn adds to the error of a training that died too often what there is to continue from.
func goOn(err error, checkpoints string) error {
	var child *supervise.Error
	if !errors.As(err, &child) || len(child.Crashes) == 0 {
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
