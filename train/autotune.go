package train

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/autotune"
	"steadyfit/internal/checkpoint"
	"steadyfit/option"
	"steadyfit/supervise"
)

// Autotune measures which configuration of a training runs fastest on this machine: the steps per execution, the
// XLA-compiled signatures of the model, and settings of TensorFlow's executor, its threads, oneDNN and the allocator.
// Plain steps are used unless another configuration is at least 3% faster with its whole confidence interval.
//
// Measurements run at the start of a training in processes of the same program that end before main begins,
// and take at most 2% of the training and at most 20 s. Their results are kept in the folder steadyfit/tune
// of the user's cache folder. A training with a Budget of the process measures nothing. A resumed training
// uses the configuration of its checkpoint.
type Autotune struct {
	// Mode is On to choose the fastest configuration. Empty makes no trials. Each training measures in its
	// first steps whether the calling thread is faster.
	Mode Choice
	// Fixed selects options of Config.Session that keep their values. An option that differs from its
	// default always keeps its value.
	Fixed autotune.Fixed
}

// tunesLive reports whether the training measures, in its first steps, if TensorFlow's threads or the
// calling thread are faster (autotune.Live).
func (t *training) tunesLive() bool {
	_, ranked := t.ranked()
	return !ranked && !t.Autotune.Fixed.With(t.Session).Threads && !t.Session.CallerRuns &&
		!t.Session.Device.Deterministic && autotune.ThreadVariable() == ""
}

// autotune chooses the configuration: that of the checkpoint to resume from, or the fastest one by measurements.
func (t *training) autotune(ctx context.Context) error {
	t.Loop.Hook(fit.Hook{Name: autotuneHook, Save: t.saveChoice})
	if t.chosen != nil {
		t.choice.Configuration = *t.chosen
		t.Session = t.chosen.Apply(t.Session)
		return nil
	}
	p := t.autotunePlan()
	epoch := int(p.Steps) / t.Loop.Epochs
	p.Limits = t.Autotune.Fixed.Limits(t.Session, min(t.data.Len()/t.Loop.Batch, epoch, t.pause(epoch)))
	p.Limits.Traced = t.Profile != Profile{}
	// A restart takes about as long as the start so far.
	p.Limits.Restart, p.RestartTime = t.mayRestart(), time.Since(t.started)
	found, err := t.takeOver(p.Limits)
	switch {
	case err != nil || found || t.Autotune.Mode == "":
	case t.Budget.Limit != 0:
		t.choice.Reason = "plain: a memory budget leaves no room for trials"
	default:
		done := t.worker.Busy()
		t.choice, err = autotune.Choose(ctx, p)
		done()
		if isAny(err, data.ErrFormat, data.ErrUnsupported) { // an image of the samples is damaged, and perhaps others
			err = cmp.Or(t.checkImages(ctx), err)
		}
	}
	if err != nil {
		return err
	}
	if t.choice.Reason != "" && t.Autotune.Mode != "" && !t.continues() {
		t.report("auto", text(t.choice.Reason))
	}
	if err := t.leaveForChild(ctx); err != nil {
		return err
	}
	t.Session = t.choice.Configuration.Apply(t.Session)
	return nil
}

func (t *training) autotunePlan() autotune.Plan {
	steps := t.data.Len() / t.Loop.Batch
	if !t.Loop.DropRemainder && t.data.Len()%t.Loop.Batch > 0 {
		steps++
	}
	p := autotune.Plan{
		Model: t.model, Options: t.Session, Data: t.data, Batch: t.Loop.Batch,
		Steps: int64(t.Loop.Epochs) * int64(cmp.Or(t.Loop.StepsPerEpoch, steps)),
		Cache: autotune.CacheDir(),
	}
	if t.Loop.LearningRate != nil {
		p.LearningRate = t.Loop.LearningRate(0, 0)
	}
	return p
}

// pause returns the maximum number of steps that can run in one execution: checkpoints, resets,
// reading memory and changes of the learning rate happen between executions.
func (t *training) pause(epoch int) int {
	if rate := t.Loop.LearningRate; rate != nil {
		half := t.Loop.Epochs / 2
		step := int64(half)*int64(epoch) + int64(epoch)/2
		if rate(step, half) != rate(step+1, half) {
			return 1
		}
	}
	pause := math.MaxInt32
	if t.Checkpoints.Folder != "" {
		pause = min(pause, cmp.Or(t.Checkpoints.EverySteps, pause))
	}
	if t.resets() {
		pause = min(pause, cmp.Or(t.Reset.EverySteps, pause))
	}
	return pause
}

// mayRestart reports whether autotune may choose a configuration that needs environment variables, with which the
// training runs in a child process. The child of a supervisor starts no child.
func (t *training) mayRestart() bool {
	return t.worker == nil && supervise.Known(taskName) && t.Allocator == "" && t.Budget.Limit == 0
}

// leaveForChild returns an *elsewhere if the choice needs environment variables that this process does not have.
func (t *training) leaveForChild(ctx context.Context) error {
	missing, err := t.choice.Configuration.Environment()
	switch {
	case err == nil && len(missing) == 0:
		return nil
	case context.Cause(ctx) != nil:
		return fmt.Errorf("not started: %w", context.Cause(ctx))
	case err == nil:
		return &elsewhere{t.choice.Configuration, missing}
	}
	without := t.choice.Configuration
	without.Allocator, without.OneDNN = "", ""
	t.Loop.Log.Warn("the chosen configuration is not possible here", "chosen", t.choice.Configuration, "used", without,
		"error", err)
	t.choice.Configuration = without
	return nil
}

// autotuneHook is the hook that stores the choice in checkpoints.
const autotuneHook = "auto"

func (t *training) saveChoice() (json.RawMessage, error) {
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
	l.Traced = false // the executor of the checkpoint takes precedence over tracing
	if !t.Autotune.Fixed.StepsPerExecution {
		l.StepsPerExecution = math.MaxInt32 // the loop itself ends executions where it must pause
	}
	now := autotune.Configuration{}
	if t.Autotune.Mode != "" {
		now = before.Within(l, t.Session)
	}
	if autotune.RoundingOf(before.Apply(t.Session)) != autotune.RoundingOf(now.Apply(t.Session)) {
		if !t.Loop.ResumeAnyway {
			return false, fmt.Errorf("%s: %w", t.Checkpoints.Folder, option.New("Autotune.Mode", fmt.Sprintf("it chose %s for "+
				"the training of the checkpoint; the options and variables of this run allow only %s, and steps would round "+
				"differently", before, now), "leave out what excludes the configuration, or set {Loop.ResumeAnyway}"))
		}
		t.Loop.Log.Warn("the checkpoint was trained with a configuration that rounds differently", "checkpoint", before,
			"now", now)
	}
	t.choice.Configuration = now
	t.choice.Reason = fmt.Sprintf("%s, as in the checkpoint", now)
	if now != before {
		t.choice.Reason = fmt.Sprintf("%s; the checkpoint was trained with %s", now, before)
	}
	return true, nil
}
