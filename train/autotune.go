package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
	"steadyfit/tune"
)

// Autotune measures at the start of a training how steps run fastest, and has the training
// run so (package tune). A training that resumes runs as its checkpoint did.
type Autotune struct {
	Mode AutotuneMode
	// Cache is the folder for what was measured; empty means tune.CacheDir().
	Cache string
	// Fixed are the options that stay as Config.Session has them.
	Fixed Fixed
}

// AutotuneMode says what may be chosen.
type AutotuneMode string

const (
	// AutotuneOff measures nothing.
	AutotuneOff AutotuneMode = ""
	// AutotuneOn chooses among what trains the model as it was exported.
	AutotuneOn AutotuneMode = "on"
	// AutotunePrecision may also compute in 16 bits, which changes the result.
	AutotunePrecision AutotuneMode = "precision"
)

// Fixed are options of the session that Autotune leaves as they are. Options with another
// value than their default are fixed anyway.
type Fixed struct{ StepsPerExecution, Compiled, Threads, Precision bool }

// isFloat16 reports whether a precision is float16, resolved or not.
func isFloat16(p gpuopts.Precision) bool { return p != "" && p != gpuopts.BFloat16 }

// with adds what the options of a session fix.
func (f Fixed) with(o session.Options) Fixed {
	return Fixed{
		StepsPerExecution: f.StepsPerExecution || o.StepsPerExecution > 1,
		Compiled:          f.Compiled || o.Compiled,
		// To resolve float16, TensorFlow's devices are set up, threads included.
		Threads:   f.Threads || o.Device.IntraThreads != 0 || o.Device.InterThreads != 0 || isFloat16(o.Device.Precision),
		Precision: f.Precision || o.Device.Precision != "",
	}
}

func (a *Autotune) check() error {
	if !slices.Contains([]AutotuneMode{AutotuneOff, AutotuneOn, AutotunePrecision}, a.Mode) {
		return refuse("Autotune.Mode", a.Mode, "expected %s, %s, or nothing", AutotuneOn, AutotunePrecision)
	}
	if info, err := os.Stat(a.Cache); a.Cache != "" && a.Mode != AutotuneOff && err == nil && !info.IsDir() {
		return refuse("Autotune.Cache", a.Cache, "expected a folder, and it is a file")
	}
	return nil
}

// Limits are what may be chosen for a session with options, if most steps can run without a
// pause.
func (a *Autotune) Limits(o session.Options, most int) tune.Limits {
	fixed := a.Fixed.with(o)
	if fixed.StepsPerExecution {
		most = 0
	}
	return tune.Limits{Fuse: most, Compiled: !fixed.Compiled, Threads: !fixed.Threads, Precision: a.Mode == AutotunePrecision && !fixed.Precision}
}

// Folder is that of the cache.
func (a *Autotune) Folder() string {
	if a.Cache != "" {
		return a.Cache
	}
	return tune.CacheDir()
}

// chosen is what was chosen for a training; the zero value has chosen nothing.
type chosen struct {
	plan   tune.Plan
	choice tune.Choice
	// most is how many steps can run without a pause.
	most int
}

// autotune decides how the training runs: as the checkpoint did that it resumes, else as was
// measured, now or before. It puts that into the options and reports it.
func (t *training) autotune(ctx context.Context) error {
	t.Loop.Hook(t.chosen.hook())
	full := t.data.Len() / t.Loop.Batch
	steps := full
	if !t.Loop.DropRemainder && t.data.Len()%t.Loop.Batch > 0 {
		steps++
	}
	steps = cmp.Or(t.Loop.StepsPerEpoch, steps)
	t.chosen.most = min(full, steps, t.pause(steps))
	limits := t.Autotune.Limits(t.Session, t.chosen.most)
	// In 16 bits, whether they take effect is worth a look.
	limits.Traced = t.traces() || limits.Precision && t.Trace == TraceIfUnsure && t.mayTrace()
	if again, err := t.chosen.restarted(); err != nil || again {
		t.Session = t.chosen.choice.Candidate.Apply(t.Session)
		return err
	}
	// A restart takes as long as it has taken to get here, which has to be little of the
	// training. The parent of a supervised process would lose the variables.
	least := float64(t.Loop.Epochs) * float64(steps) * float64((&tune.Plan{Data: t.data, Batch: t.Loop.Batch}).Least())
	limits.Preload = t.worker == nil && !t.ReleaseMemory && !t.Budget.ofProcess() && float64(time.Since(t.started)) <= tune.Share*least
	found, err := t.takeOver(limits)
	if err == nil && !found && t.Autotune.Mode != AutotuneOff {
		err = t.measure(ctx, limits, int64(t.Loop.Epochs)*int64(steps))
	}
	if err != nil {
		return err
	}
	t.reportChoice()
	t.Session = t.chosen.choice.Candidate.Apply(t.Session)
	return t.chosen.restart(ctx, t.Loop.Log)
}

// measure chooses by measurements, now or before.
func (t *training) measure(ctx context.Context, limits tune.Limits, steps int64) (err error) {
	p := tune.Plan{
		Model: t.model, Options: t.Session, Limits: limits, Data: t.data, Batch: t.Loop.Batch,
		Steps: steps, Cache: t.Autotune.Folder(), Log: t.Loop.Log,
	}
	if t.Loop.LearningRate != nil {
		p.LearningRate = t.Loop.LearningRate(0, 0)
	}
	if t.Budget.ofProcess() {
		p.Budget, p.BudgetOfAnon = t.Budget.Limit, t.Budget.Layer != "" && t.Budget.Layer != memory.RSS
	}
	defer t.worker.Busy()()
	t.chosen.plan = p
	t.chosen.choice, err = tune.Choose(ctx, p)
	return err
}

// reportChoice reports what was chosen, and that a choice cannot be kept.
func (t *training) reportChoice() {
	c := t.chosen.choice
	if t.Autotune.Mode == AutotuneOff {
		return
	}
	if !t.continues() {
		t.report("auto", text(t.setAlready(c.Why)))
	}
	if c.Unkept != nil {
		t.report("warning", c.Unkept)
	}
}

// setAlready is what was chosen, with the options that say how steps run in the place of
// "plain".
func (t *training) setAlready(why string) string {
	var set []string
	if n := t.Session.StepsPerExecution; n > 1 {
		set = append(set, fmt.Sprintf("{Options.StepsPerExecution %d}", n))
	}
	if t.Session.Compiled {
		set = append(set, "{Options.Compiled true}")
	}
	rest, plain := strings.CutPrefix(why, "plain")
	if !plain || len(set) == 0 {
		return why
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, ": "), ", ")
	rest = strings.Replace(rest, "to measure what is faster", "to measure more", 1)
	return fmt.Sprintf("as set (%s); %s", strings.Join(set, " "), rest)
}

// pause is after how many steps something has to be done at the latest, before which the
// next ones cannot run in one call: a checkpoint, a reset, watching memory, or setting
// another learning rate.
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
	pause := math.MaxInt32
	if t.Checkpoints.Folder != "" {
		pause = cmp.Or(t.Checkpoints.EverySteps, pause)
	}
	if t.resets() {
		pause = min(pause, cmp.Or(t.Reset.EverySteps, pause))
	}
	return pause
}

// ChosenEnv is the environment variable that has what was chosen by a process that restarted
// itself for it.
const ChosenEnv = "STEADYFIT_CHOSEN"

// restartedAlready reports whether this process was restarted with what was chosen before.
func restartedAlready() bool {
	_, ok := os.LookupEnv(ChosenEnv)
	return ok
}

// restart has the process run under what the choice needs from its start; it returns where
// it does. If that fails, the training goes on without another allocator.
func (d *chosen) restart(ctx context.Context, log *slog.Logger) error {
	missing, err := d.choice.Candidate.Environment()
	if err == nil && len(missing) == 0 {
		return nil
	}
	// A signal that has come meanwhile would be lost.
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("not started: %w", cause)
	}
	if err == nil {
		err = d.execute(missing)
	}
	log.Warn("autotune goes on without "+d.choice.Candidate.Allocator, "error", err)
	d.choice.Candidate.Allocator = ""
	return nil
}

// execute returns only with an error.
func (d *chosen) execute(missing []gpuopts.Variable) error {
	text, err := json.Marshal(d.choice.Candidate)
	if err != nil {
		return err
	}
	if err := os.Setenv(ChosenEnv, string(text)); err != nil {
		return err
	}
	return errors.Join(session.StartAnew(missing), os.Unsetenv(ChosenEnv))
}

// restarted reads the choice of the process before it was restarted, if it was.
func (d *chosen) restarted() (bool, error) {
	text, ok := os.LookupEnv(ChosenEnv)
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), &d.choice.Candidate); err != nil {
		return false, refuse(ChosenEnv, nil, "the variable was not set by this program (%v); unset it", err)
	}
	// Programs that this one starts have not chosen.
	return true, os.Unsetenv(ChosenEnv)
}

// autotuneHook is the name of the hook that has checkpoints remember the choice.
const autotuneHook = "auto"

// hook has checkpoints remember the choice, so that what resumes from them runs alike.
func (d *chosen) hook() fit.Hook {
	return fit.Hook{Name: autotuneHook, Save: func(string) (json.RawMessage, error) {
		if d.choice.Candidate.Plain() {
			return nil, nil
		}
		return json.Marshal(d.choice.Candidate)
	}}
}

// takeOver takes the choice of the checkpoint that the training resumes, if there is one,
// less what options say now. If steps would then round in another way than those before, it
// is an error, unless Loop.ResumeAnyway is set.
func (t *training) takeOver(l tune.Limits) (found bool, err error) {
	if !t.Resume {
		return false, nil
	}
	state, found, err := fit.HookState(t.Checkpoints.Folder, autotuneHook)
	if err != nil || !found {
		return false, err
	}
	var before tune.Candidate
	if state != nil {
		if err := json.Unmarshal(state, &before); err != nil {
			return false, fmt.Errorf("%s: how the checkpoint was trained: %w", t.Checkpoints.Folder, err)
		}
	}
	l.Precision = !t.Autotune.Fixed.Precision
	// Only what was asked for goes before the checkpoint's executor.
	l.Traced = t.Trace == TraceAlways
	if !t.Autotune.Fixed.StepsPerExecution {
		l.Fuse = math.MaxInt32 // the loop knows where it has to pause
	}
	now := before.Within(l, t.Session)
	if t.Autotune.Mode == AutotuneOff {
		now = tune.Candidate{}
	}
	if because := t.against(before.Apply(t.Session), now.Apply(t.Session)); because != "" {
		if !t.Loop.ResumeAnyway {
			return false, fmt.Errorf("%s: %w", t.Checkpoints.Folder, option.New(because,
				fmt.Sprintf("the checkpoint was trained with %s, as {Autotune.Mode} had chosen, and this rules that out, which rounds differently", before),
				"leave it out to train as before, or set {Loop.ResumeAnyway}"))
		}
		t.Loop.Log.Warn("the checkpoint was trained in another way, which rounds differently", "checkpoint", before, "now", now, "because", text("{"+because+"}"))
	}
	t.chosen.choice.Candidate = now
	t.chosen.choice.Why = fmt.Sprintf("%s, as the checkpoint that this goes on from", now)
	if now != before {
		t.chosen.choice.Why = fmt.Sprintf("%s; the checkpoint that this goes on from was trained with %s", now, before)
	}
	return true, nil
}

// against is the option, or the variable, because of which options of now round differently
// than those of a checkpoint; empty if they do not.
func (t *training) against(was, is session.Options) string {
	fixed, device := t.Autotune.Fixed, t.Session.Device
	a, b := was.Rounding(), is.Rounding()
	compiled, precision := a.Compiled != b.Compiled, a.Precision != b.Precision
	threads := a.IntraThreads != b.IntraThreads || a.Loop && was.Device.Executor != is.Device.Executor
	switch {
	case a == b:
		return ""
	case t.Autotune.Mode == AutotuneOff:
		return "Autotune.Mode off"
	case precision && fixed.Precision:
		return "Options.Precision"
	case compiled && fixed.Compiled:
		return "Options.Compiled"
	case (compiled || threads) && device.Deterministic:
		return "Options.Deterministic"
	case threads && device.InterThreads != 0 && device.IntraThreads == 0:
		return "Options.InterThreads"
	case threads && isFloat16(device.Precision):
		return "Options.Precision"
	case threads && fixed.Threads:
		return "Options.IntraThreads"
	case threads:
		return cmp.Or(tune.ThreadVariable(), "Config.Trace")
	}
	return "Options.StepsPerExecution"
}

// longEnough is a training whose time per step is worth knowing the next time.
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
