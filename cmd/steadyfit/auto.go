package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tune"
)

// The words of --auto.
const (
	autoOn        = "on"
	autoPrecision = "precision"
	autoOff       = "off"
	autoKept      = "kept" // of bench
)

// autoFlags are the flags of the measured choice of how a training runs.
type autoFlags struct{ auto, cache string }

func (a *autoFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&a.auto, "auto", autoOn, "how steps run, where no flag says it: on (measure at the start what is fastest, in at most 2% of the training and 20s, and keep it), precision (16 bits among it, which changes the result), off (as exported)")
	a.registerCache(flags)
}

func (a *autoFlags) registerCache(flags *pflag.FlagSet) {
	flags.StringVar(&a.cache, "cache", "", "folder for what --auto has measured; default steadyfit/tune in your cache folder")
}

func (a *autoFlags) checkAuto() error {
	if info, err := os.Stat(a.cache); a.cache != "" && a.auto != autoOff && err == nil && !info.IsDir() {
		return usagef("--cache %s: expected a folder, and it is a file", a.cache)
	}
	return a.among(autoOn, autoPrecision, autoOff)
}

func (a *autoFlags) among(words ...string) error {
	if slices.Contains(words, a.auto) {
		return nil
	}
	return usagef("--auto %s: expected %s", a.auto, strings.Join(words, ", "))
}

// folder is that of the cache.
func (a *autoFlags) folder() string {
	if a.cache != "" {
		return a.cache
	}
	return tune.CacheDir()
}

// checkCache refuses a folder that was named and cannot take what is to be measured. fit only
// warns, since the choices in a folder that is only read are as good.
func (a *autoFlags) checkCache() error {
	if a.cache == "" || a.auto == autoOff || a.auto == autoKept {
		return nil
	}
	err := os.MkdirAll(a.cache, 0o755)
	if err == nil {
		err = files.Writable(a.cache, 0)
	}
	if err != nil {
		return unusable(fmt.Errorf("--cache %s: what is measured cannot be kept there: %w; give it a folder that can be written", a.cache, err))
	}
	return nil
}

// limits say what the flags leave open. fuse is Limits.Fuse.
func (a *autoFlags) limits(given func(flag string) bool, d *deviceFlags, fuse int) tune.Limits {
	l := tune.Limits{
		Fuse: fuse, Compiled: !given("compiled"),
		// To tell what fp16 is, TensorFlow's devices were set up, threads included.
		Threads:   !given("intra-threads") && !given("inter-threads") && d.precision != precisionFP16,
		Precision: a.auto == autoPrecision && !given("precision"),
	}
	if given("fuse-steps") {
		l.Fuse = 0
	}
	return l
}

// chosen is what was chosen for a training; the zero value has chosen nothing.
type chosen struct {
	plan   tune.Plan
	choice tune.Choice
	steps  int // of an epoch
	// together is how many steps there can be in a call at the most.
	together int
}

// choose decides how the training runs: as the checkpoint did that it goes on from, else
// as was measured, now or before. It puts that into the options and the loop, and says so
// in a line.
func (f *fitFlags) choose(ctx context.Context, cmd *cobra.Command, g *global, c *session.Supervised, l *fit.Loop, model *savedmodels.Model, train data.Dataset) (*chosen, error) {
	d := &chosen{}
	l.Hook(d.hook())
	say := func(why string) {
		if !c.Continues() && f.auto != autoOff {
			fmt.Fprintf(cmd.ErrOrStderr(), "auto: %s\n", f.inForceNow(why))
		}
	}
	limits := f.limits(cmd.Flags().Changed, &f.device, 0)
	full := train.Len() / f.batch
	d.steps = full
	if !f.dropRemainder && train.Len()%f.batch > 0 {
		d.steps++
	}
	if f.steps > 0 {
		d.steps = f.steps
	}
	pause, err := f.pause(l, d.steps)
	if err != nil {
		return nil, err
	}
	d.together = min(full, d.steps, pause)
	if !cmd.Flags().Changed("fuse-steps") {
		limits.Fuse = d.together
	}
	// In 16 bits, whether they are in force is worth a look.
	limits.Traced = f.traces(cmd, g) || limits.Precision && f.mayTrace(cmd)
	if anew, err := d.goOn(); err != nil || anew {
		f.options = d.choice.Candidate.Apply(f.options)
		return d, err
	}
	// To be started anew takes as long as it has taken to get here, which has to be little of
	// the training. The parent of a supervised process would lose it.
	least := float64(f.epochs) * float64(d.steps) * float64((&tune.Plan{Data: train, Batch: f.batch}).Least())
	limits.Preload = c == nil && !f.release && f.budget == "" && float64(time.Since(f.begun)) <= tune.Share*least
	if f.resume {
		state, found, err := fit.HookState(f.checkpoints, autoHook)
		if err != nil {
			return nil, err
		}
		if found {
			limits.Precision = !cmd.Flags().Changed("precision")
			// Only what was asked for goes before the checkpoint's executor.
			limits.Traced = f.inForce
			if !cmd.Flags().Changed("fuse-steps") {
				limits.Fuse = math.MaxInt32 // the loop knows where it has to pause
			}
			if err := d.takeOver(state, limits, f, l.Log); err != nil {
				return nil, fmt.Errorf("%s: %w", f.checkpoints, err)
			}
			say(d.choice.Why)
			f.options = d.choice.Candidate.Apply(f.options)
			return d, d.startAnew(ctx, l.Log)
		}
	}
	if f.auto == autoOff {
		return d, nil
	}
	d.plan = tune.Plan{
		Model: model, Options: f.options, Limits: limits, Data: train, Batch: f.batch,
		Steps: int64(f.epochs) * int64(d.steps), Cache: f.folder(), Log: l.Log,
	}
	if l.LearningRate != nil {
		d.plan.LearningRate = l.LearningRate(0, 0)
	}
	if f.budget != "" && f.budgetOf != budgetOfGPU {
		bytes, err := memory.ParseBytes(f.budget)
		if err != nil {
			return nil, usagef("--memory-budget: %w", err)
		}
		d.plan.Budget, d.plan.BudgetOfAnon = bytes, f.budgetOf != "rss"
	}
	done := c.Busy()
	d.choice, err = tune.Choose(ctx, d.plan)
	done()
	if err != nil {
		return nil, err
	}
	say(d.choice.Why)
	warnUnkept(cmd.ErrOrStderr(), d.choice)
	f.options = d.choice.Candidate.Apply(f.options)
	return d, d.startAnew(ctx, l.Log)
}

// warnUnkept says that a race will have to be repeated.
func warnUnkept(w io.Writer, c tune.Choice) {
	if c.Unkept != nil {
		fmt.Fprintf(w, "steadyfit: warning: what was measured is not kept for the next training: %v; give --cache a folder that can be written\n", c.Unkept)
	}
}

// inForceNow is what was chosen with the flags that say how steps run in the place of
// "plain", which they are then not.
func (f *fitFlags) inForceNow(why string) string {
	var flags []string
	if f.options.StepsPerExecution > 1 {
		flags = append(flags, fmt.Sprintf("--fuse-steps %d", f.options.StepsPerExecution))
	}
	if f.options.Compiled {
		flags = append(flags, "--compiled")
	}
	rest, plain := strings.CutPrefix(why, "plain")
	if !plain || len(flags) == 0 {
		return why
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, ": "), ", ")
	rest = strings.Replace(rest, "to measure what is faster", "to measure more", 1)
	return fmt.Sprintf("as the flags say (%s); %s", strings.Join(flags, " "), rest)
}

// pause is after how many steps something has to be done at the latest, before which the
// next ones cannot run in one call: a checkpoint, a reset, watching memory, or setting
// another learning rate.
func (f *fitFlags) pause(l *fit.Loop, epoch int) (int, error) {
	if f.budget != "" && f.budgetOf != budgetOfGPU || f.resetNear != "" {
		return 1, nil
	}
	if l.LearningRate != nil {
		half := f.epochs / 2
		step := int64(half)*int64(epoch) + int64(epoch)/2
		if l.LearningRate(step, half) != l.LearningRate(step+1, half) {
			return 1, nil
		}
	}
	pause := math.MaxInt32
	if f.checkpoints != "" {
		steps, _, err := parseEvery("every", f.every)
		if err != nil {
			return 0, err
		}
		pause = min(pause, cmp.Or(steps, pause))
	}
	if f.reset != string(session.ResetNone) {
		steps, _, err := f.resilience.every()
		if err != nil {
			return 0, err
		}
		pause = min(pause, cmp.Or(steps, pause))
	}
	return pause, nil
}

// chosenEnv is the environment variable that has what was chosen by a process that started
// itself anew for it.
const chosenEnv = "STEADYFIT_CHOSEN"

// startedAnew reports whether this process was started anew with what was chosen before.
func startedAnew() bool {
	_, ok := os.LookupEnv(chosenEnv)
	return ok
}

// startAnew has the process run under what the choice needs from its start; it returns where
// it does. Where that fails, the training goes on without another allocator.
func (d *chosen) startAnew(ctx context.Context, log *slog.Logger) error {
	missing, err := d.choice.Candidate.Environment()
	if err == nil && len(missing) == 0 {
		return nil
	}
	// A signal that has come meanwhile would be lost.
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("not started: %w", cause)
	}
	if err == nil {
		err = d.again(missing)
	}
	log.Warn("--auto goes on without "+d.choice.Candidate.Allocator, "error", err)
	d.choice.Candidate.Allocator = ""
	return nil
}

// again returns only with an error.
func (d *chosen) again(missing []gpuopts.Variable) error {
	text, err := json.Marshal(d.choice.Candidate)
	if err != nil {
		return err
	}
	if err := os.Setenv(chosenEnv, string(text)); err != nil {
		return err
	}
	return errors.Join(session.StartAnew(missing), os.Unsetenv(chosenEnv))
}

// goOn is the choice of the process before it was started anew, if it was.
func (d *chosen) goOn() (bool, error) {
	text, ok := os.LookupEnv(chosenEnv)
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), &d.choice.Candidate); err != nil {
		return false, usagef("the variable %s is set, but not by this program; unset it: %w", chosenEnv, err)
	}
	// Programs that this one starts have not chosen.
	return true, os.Unsetenv(chosenEnv)
}

// autoHook is the name of the hook that has checkpoints remember the choice.
const autoHook = "auto"

// hook has checkpoints remember the choice, so that what goes on from them runs alike.
func (d *chosen) hook() fit.Hook {
	return fit.Hook{Name: autoHook, Save: func(string) (json.RawMessage, error) {
		if d.choice.Candidate.Plain() {
			return nil, nil
		}
		return json.Marshal(d.choice.Candidate)
	}}
}

// takeOver is the choice of a checkpoint, less what flags say now. Where the steps would
// round in another way than those before, it is a usage error, unless --force is given.
func (d *chosen) takeOver(state json.RawMessage, l tune.Limits, f *fitFlags, log *slog.Logger) error {
	var c tune.Candidate
	if state != nil {
		if err := json.Unmarshal(state, &c); err != nil {
			return fmt.Errorf("how the checkpoint was trained (--auto): %w", err)
		}
	}
	now := c.Within(l, f.options)
	if f.auto == autoOff {
		now = tune.Candidate{}
	}
	was, is := c.Apply(f.options), now.Apply(f.options)
	if flag := f.against(was, is); flag != "" && f.force {
		log.Warn("the checkpoint was trained in another way, which rounds differently", "checkpoint", c, "now", now, "because", flag)
	} else if flag != "" {
		return usagef("the checkpoint was trained with %s, as --auto had chosen, and %s rules that out, which rounds in another way; leave %[2]s out to go on as before, or give --force to go on in spite of it", c, flag)
	}
	d.choice.Candidate = now
	d.choice.Why = fmt.Sprintf("%s, as the checkpoint that this goes on from", now)
	if now != c {
		d.choice.Why = fmt.Sprintf("%s; the checkpoint that this goes on from was trained with %s", now, c)
	}
	return nil
}

// against is the flag, or the variable, because of which options of now round differently
// than those of a checkpoint; empty if they do not.
func (f *fitFlags) against(was, is session.Options) string {
	given := f.device.flags.Changed
	a, b := was.Rounding(), is.Rounding()
	compiled, precision := a.Compiled != b.Compiled, a.Precision != b.Precision
	threads := a.IntraThreads != b.IntraThreads || a.Loop && was.Device.Executor != is.Device.Executor
	switch {
	case a == b:
		return ""
	case f.auto == autoOff:
		return "--auto off"
	case precision && given("precision"):
		return "--precision"
	case compiled && given("compiled"):
		return "--compiled"
	case (compiled || threads) && is.Device.Deterministic:
		return "--deterministic"
	case threads && given("intra-threads"):
		return "--intra-threads"
	case threads && given("inter-threads"):
		return "--inter-threads"
	case threads && f.device.precision == precisionFP16:
		return "--precision"
	case threads:
		return cmp.Or(tune.ThreadVariable(), "--in-force")
	}
	return "--fuse-steps"
}

// longEnough is a training whose time per step is worth to be known the next time.
const longEnough = 10 * time.Second

// note keeps what a plain step took, where nothing was measured before.
func (d *chosen) note(h *fit.History) {
	if d.plan.Model == nil || !d.choice.Candidate.Plain() || len(d.choice.Measurements) > 0 || len(h.Records) == 0 {
		return
	}
	last := h.Last()
	if last.Seconds*float64(len(h.Records)) < longEnough.Seconds() || last.StepsPerSecond <= 0 {
		return
	}
	d.plan.Note(time.Duration(float64(time.Second) / last.StepsPerSecond))
}
