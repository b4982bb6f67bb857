package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/reexec"
	"steadyfit/internal/tflibrary"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Autotune measures which configuration of a training runs fastest on this machine: the steps
// per execution, the XLA-compiled signatures of the model, and settings of TensorFlow's executor,
// its threads, oneDNN and the allocator. Plain steps are used unless another configuration is at
// least 3% faster with its whole confidence interval.
//
// Measurements run at the start of a training in processes of the same program that end before main
// begins, and take at most 2% of the training and at most 20 s. The thread of train steps is chosen
// during the training. A resumed training uses the configuration of its checkpoint.
type Autotune struct {
	// Mode selects the configurations that may be chosen: On allows those that compute with the
	// types of the model, and Precision also those with 16-bit types, which change the result. Live
	// measures nothing at the start, and chooses only the thread of train steps. Empty chooses
	// nothing.
	Mode Choice
	// Cache is the folder for measurements; empty means steadyfit/tune in the
	// cache folder of the user.
	Cache string
	// Fixed selects options of Config.Session that keep their values. An option that differs from its
	// default always keeps its value.
	Fixed struct{ StepsPerExecution, Compiled, Threads, OneDNN, Precision bool }
}

func (a *Autotune) check() error {
	if info, err := os.Stat(a.Cache); a.Cache != "" && a.Mode != "" && err == nil && !info.IsDir() {
		return refuse("Autotune.Cache", a.Cache, "expected a folder, and it is a file")
	}
	return nil
}

// measures reports whether configurations are measured at the start of a training.
func (a *Autotune) measures() bool { return a.Mode == On || a.Mode == Precision }

func (a *Autotune) limits(o session.Options, most int) autotune.Limits {
	return autotune.Fixed(a.Fixed).Limits(o, most, a.Mode == Precision)
}

// tunesLive reports whether train steps choose their thread during the training.
func (t *training) tunesLive() bool {
	return t.Autotune.Mode != "" && !autotune.Fixed(t.Autotune.Fixed).With(t.Session).Threads &&
		!t.Session.CallerRuns && !t.Session.Device.Deterministic && autotune.ThreadVariable() == ""
}

// autotune chooses the configuration: that of the checkpoint to resume from, or the fastest one
// by measurements.
func (t *training) autotune(ctx context.Context) error {
	t.Loop.Hook(fit.Hook{Name: autotuneHook, Save: t.saveChoice, NoFiles: true})
	p := t.autotunePlan()
	t.most = min(t.data.Len()/t.Loop.Batch, int(p.Steps)/t.Loop.Epochs, t.pause(int(p.Steps)/t.Loop.Epochs))
	p.Limits = t.Autotune.limits(t.Session, t.most)
	t.live = t.tunesLive()
	// A traced step shows whether 16-bit types take effect.
	p.Limits.Traced = t.traces() || t.Profile != Profile{} || p.Limits.Precision && t.Trace == "" && t.mayTrace()
	if text, restarted := os.LookupEnv(autotune.ChosenEnv); restarted {
		if err := json.Unmarshal([]byte(text), &t.choice.Configuration); err != nil {
			return refuse(autotune.ChosenEnv, nil, "the variable was not set by this program (%v); unset it", err)
		}
		t.Session = t.choice.Configuration.Apply(t.Session)
		return os.Unsetenv(autotune.ChosenEnv) // programs started by this one must choose for themselves
	}
	// A restart takes about as long as the start so far.
	p.Limits.Restart, p.RestartTime = t.mayRestart(), time.Since(t.started)
	found, err := t.takeOver(p.Limits)
	if err == nil && !found && t.Autotune.measures() {
		done := t.worker.Busy()
		t.tuned = &p
		t.choice, err = autotune.Choose(ctx, p)
		done()
		if isAny(err, data.ErrFormat, data.ErrUnsupported) { // an image of the samples is damaged, and perhaps others
			err = cmp.Or(t.checkImages(ctx), err)
		}
	}
	t.choice.Reason = t.asSet(t.choice.Reason)
	t.addPrior()
	if err != nil {
		return err
	}
	if t.choice.Reason != "" && t.Autotune.Mode != "" && !t.continues() {
		t.report("auto", text(t.choice.Reason))
	}
	if t.choice.CacheError != nil {
		t.report("warning", t.choice.CacheError)
	}
	if err := t.restart(ctx); err != nil {
		return err
	}
	t.Session = t.choice.Configuration.Apply(t.Session)
	return nil
}

// startWithPrior sets the variables of a configuration that needs no measurement, before
// TensorFlow is opened.
func (t *training) startWithPrior() error {
	if _, open := tfprocess.Environment(); open || !t.Autotune.measures() || !t.mayRestart() || restartedAlready() || autotune.Freezes(t.model) {
		return nil // autotune does not configure steps on cached features
	}
	if t.Resume {
		_, found, err := checkpoint.HookState(t.Checkpoints.Folder, autotuneHook)
		if err != nil || found {
			return err
		}
	}
	if _, err := tflibrary.Locate(t.TensorFlow); err != nil {
		return nil //nolint:nilerr // Load reports it, and the environment stays as it was
	}
	p := t.autotunePlan()
	p.Limits = t.Autotune.limits(t.Session, 0)
	p.Limits.Restart = true
	t.prior = p.Prior()
	missing, err := t.prior.Environment()
	for _, v := range missing {
		err = errors.Join(err, os.Setenv(v.Name, v.Value))
	}
	return err
}

// addPrior adds the configuration that TensorFlow was opened with to a choice, which is relative to
// that configuration.
func (t *training) addPrior() {
	if t.prior.Plain() || t.choice.Configuration.OneDNN != "" {
		return
	}
	rest, plain := strings.CutPrefix(t.choice.Reason, "plain")
	if !plain {
		rest = ", " + rest
	}
	t.choice.Configuration.OneDNN = t.prior.OneDNN
	t.choice.Reason = fmt.Sprintf("%s (the model has large convolutions)%s", t.prior, rest)
}

func (t *training) autotunePlan() autotune.Plan {
	steps := t.data.Len() / t.Loop.Batch
	if !t.Loop.DropRemainder && t.data.Len()%t.Loop.Batch > 0 {
		steps++
	}
	p := autotune.Plan{
		Model: t.model, Options: t.Session, Data: t.data, Batch: t.Loop.Batch,
		Steps: int64(t.Loop.Epochs) * int64(cmp.Or(t.Loop.StepsPerEpoch, steps)), Cache: cmp.Or(t.Autotune.Cache, autotune.CacheDir()), Log: t.Loop.Log,
	}
	if t.Loop.LearningRate != nil {
		p.LearningRate = t.Loop.LearningRate(0, 0)
	}
	if t.Budget.ofProcess() {
		p.Budget, p.BudgetOfAnon = t.Budget.Limit, t.Budget.Layer != "" && t.Budget.Layer != memory.RSS
	}
	return p
}

// asSet replaces the prefix "plain" of a reason with the options that the user set.
func (t *training) asSet(reason string) string {
	var set []string
	if n := t.Session.StepsPerExecution; n > 1 {
		set = append(set, fmt.Sprintf("{Options.StepsPerExecution %d}", n))
	}
	if t.Session.Compiled {
		set = append(set, "{Options.Compiled true}")
	}
	rest, plain := strings.CutPrefix(reason, "plain")
	if !plain || len(set) == 0 {
		return reason
	}
	rest = strings.Replace(strings.TrimLeft(rest, ":, "), "for trials", "for further trials", 1)
	return fmt.Sprintf("as set (%s); %s", strings.Join(set, " "), rest)
}

// pause returns the maximum number of steps that can run in one execution: checkpoints, resets,
// reading memory, values for TensorBoard and changes of the learning rate happen between
// executions.
func (t *training) pause(epoch int) int {
	if t.Budget.ofProcess() || t.resets() && t.Reset.Limit != 0 {
		return 1
	}
	if rate := t.Loop.LearningRate; rate != nil {
		half := t.Loop.Epochs / 2
		step := int64(half)*int64(epoch) + int64(epoch)/2
		if rate(step, half) != rate(step+1, half) {
			return 1
		}
	}
	pause := cmp.Or(t.TensorBoard.EverySteps, math.MaxInt32)
	if t.Checkpoints.Folder != "" {
		pause = min(pause, cmp.Or(t.Checkpoints.EverySteps, pause))
	}
	if t.resets() {
		pause = min(pause, cmp.Or(t.Reset.EverySteps, pause))
	}
	return pause
}

func restartedAlready() bool {
	_, ok := os.LookupEnv(autotune.ChosenEnv)
	return ok
}

// mayRestart reports whether autotune may restart the program with other variables. A supervised
// process cannot restart, and each variable can affect memory. A program that has used TensorFlow
// before would repeat that work after a restart, and its first training would use the choice for a
// later training.
func (t *training) mayRestart() bool {
	return t.worker == nil && !t.later && !t.ReleaseMemory && t.Allocator == "" && !t.Budget.ofProcess()
}

// restart restarts the program if the choice needs environment variables that are not set. If the
// restart fails, the training continues without these variables.
func (t *training) restart(ctx context.Context) error {
	c := &t.choice.Configuration
	missing, err := c.Environment()
	if err == nil && len(missing) == 0 {
		return nil
	}
	// A restart would lose a signal that has arrived.
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("not started: %w", cause)
	}
	var chosen []byte
	if err == nil {
		chosen, err = json.Marshal(c)
	}
	for _, v := range missing {
		err = errors.Join(err, os.Unsetenv(v.Name)) // reexec.With does not replace a value
	}
	if err == nil {
		err = errors.Join(os.Setenv(autotune.ChosenEnv, string(chosen)), reexec.With(missing), os.Unsetenv(autotune.ChosenEnv))
	}
	without := *c
	without.Allocator, without.OneDNN = "", t.prior.OneDNN
	t.Loop.Log.Warn("autotune could not restart the program", "chosen", c, "used", without, "error", err)
	*c = without
	return nil
}

// autotuneHook is the hook that stores the choice in checkpoints.
const autotuneHook = "auto"

func (t *training) saveChoice(string) (json.RawMessage, error) {
	if t.choice.Configuration.Plain() {
		return nil, nil
	}
	return json.Marshal(t.choice.Configuration)
}

// chosenBefore returns the choice in the checkpoint to resume from.
func (t *training) chosenBefore() (c autotune.Configuration, found bool, err error) {
	if !t.Resume {
		return c, false, nil
	}
	state, found, err := checkpoint.HookState(t.Checkpoints.Folder, autotuneHook)
	if err == nil && state != nil {
		if err = json.Unmarshal(state, &c); err != nil {
			err = fmt.Errorf("%s: the configuration in the checkpoint: %w", t.Checkpoints.Folder, err)
		}
	}
	return c, found, err
}

// takeOver uses the choice from the checkpoint, except parts that the options exclude. If steps
// would then round differently, it returns an error unless Loop.ResumeAnyway is set.
func (t *training) takeOver(l autotune.Limits) (found bool, err error) {
	before, found, err := t.chosenBefore()
	if err != nil || !found {
		return false, err
	}
	l.Restart = t.mayRestart()
	l.Precision = !t.Autotune.Fixed.Precision
	// The executor of the checkpoint takes precedence over tracing, unless Trace is Always.
	l.Traced = t.Trace == Always
	if !t.Autotune.Fixed.StepsPerExecution {
		l.StepsPerExecution = math.MaxInt32 // the loop itself ends executions where it must pause
	}
	now := before.Within(l, t.Session)
	if !t.Autotune.measures() {
		now = autotune.Configuration{}
	}
	if because := t.excludes(before.Apply(t.Session), now.Apply(t.Session)); because != "" {
		if late := before.TooLate(t.Session); late != nil && !t.Loop.ResumeAnyway {
			return false, fmt.Errorf("%s: the checkpoint was trained with %s: %w", t.Checkpoints.Folder, before, late)
		}
		if !t.Loop.ResumeAnyway {
			return false, fmt.Errorf("%s: %w", t.Checkpoints.Folder, option.New(because,
				fmt.Sprintf("the checkpoint was trained with %s, as {Autotune.Mode} had chosen; this setting excludes it, and steps would round differently", before),
				"leave it out to train as before, or set {Loop.ResumeAnyway}"))
		}
		t.Loop.Log.Warn("the checkpoint was trained with a configuration that rounds differently", "checkpoint", before, "now", now, "because", text("{"+because+"}"))
	}
	t.choice.Configuration = now
	t.choice.Reason = fmt.Sprintf("%s, as in the checkpoint", now)
	if now != before {
		t.choice.Reason = fmt.Sprintf("%s; the checkpoint was trained with %s", now, before)
	}
	return true, nil
}

// excludes returns the option or variable that makes steps round differently than in the
// checkpoint; empty if there is none.
func (t *training) excludes(was, is session.Options) string {
	fixed := t.Autotune.Fixed
	a, b := was.Rounding(), is.Rounding()
	compiled, precision := a.Compiled != b.Compiled, a.Precision != b.Precision
	threads := a.IntraThreads != b.IntraThreads || a.Loop && was.Device.Executor != is.Device.Executor
	switch {
	case a == b:
		return ""
	case t.Autotune.Mode == "":
		return "Autotune.Mode off"
	case t.Autotune.Mode == Live:
		return "Autotune.Mode live"
	case a.OneDNN != b.OneDNN:
		return t.excludesOneDNN()
	case precision && fixed.Precision:
		return "Options.Precision"
	case compiled && fixed.Compiled:
		return "Options.Compiled"
	case (compiled || threads) && t.Session.Device.Deterministic:
		return "Options.Deterministic"
	case threads:
		return t.excludesThreads()
	}
	return "Options.StepsPerExecution"
}

// excludesThreads returns the option or variable that prevents autotune from setting threads or
// the executor as in the checkpoint.
func (t *training) excludesThreads() string {
	device := t.Session.Device
	switch {
	case device.InterThreads != 0 && device.IntraThreads == 0:
		return "Options.InterThreads"
	case device.Precision != "" && device.Precision != gpuopts.BFloat16:
		return "Options.Precision"
	case t.Autotune.Fixed.Threads:
		return "Options.IntraThreads"
	}
	return cmp.Or(autotune.ThreadVariable(), "Config.Trace")
}

// excludesOneDNN returns the option or variable that prevents autotune from turning oneDNN on or
// off as in the checkpoint.
func (t *training) excludesOneDNN() string {
	switch {
	case t.Session.Device.Deterministic:
		return "Options.Deterministic"
	case t.ReleaseMemory:
		return "Config.ReleaseMemory"
	case t.Budget.ofProcess():
		return "Budget.Limit"
	case t.worker != nil:
		return "Config.Supervise"
	case t.Session.Device.OneDNN != "":
		return "Options.OneDNN"
	}
	return "TF_ENABLE_ONEDNN_OPTS"
}

// longEnough is the least training time after which the time per step is stored.
const longEnough = 10 * time.Second

// noteSpeed stores the time of a step for later trainings, if autotune measured nothing.
func (t *training) noteSpeed(h *fit.History) {
	if t.tuned == nil || t.choice.Configuration != t.prior || len(t.choice.Measurements) > 0 || len(h.Records) == 0 {
		return
	}
	last := h.Last()
	if last.Seconds*float64(len(h.Records)) >= longEnough.Seconds() && last.StepsPerSecond > 0 {
		t.tuned.Note(time.Duration(float64(time.Second) / last.StepsPerSecond))
	}
}
