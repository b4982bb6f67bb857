package train

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/autotune"
	"steadyfit/internal/checkpoint"
	"steadyfit/option"
	"steadyfit/supervise"
)

// tunesLive reports whether the training measures, in its first steps, if TensorFlow's threads or the
// calling thread are faster (autotune.Live).
func (t *training) tunesLive() bool {
	_, ranked := t.ranked()
	return !ranked && !autotune.ThreadsSet(t.Session) && !t.Session.CallerRuns
}

// autotune chooses the configuration: that of the checkpoint to resume from, or the fastest one by measurements.
func (t *training) autotune(ctx context.Context) error {
	t.Loop.Hook(fit.Hook{Name: autotuneHook, Save: t.saveChoice})
	if t.chosen != nil {
		t.choice.Configuration = *t.chosen
		t.Session = t.chosen.Apply(t.Session)
		return nil
	}
	steps := t.data.Len() / t.Loop.Batch
	if !t.Loop.DropRemainder && t.data.Len()%t.Loop.Batch > 0 {
		steps++
	}
	epoch := cmp.Or(t.Loop.StepsPerEpoch, steps)
	p := autotune.Plan{
		Model: t.model, Options: t.Session, Data: t.data, Batch: t.Loop.Batch,
		Steps: int64(t.Loop.Epochs) * int64(epoch), Cache: autotune.CacheDir(),
	}
	if t.Loop.LearningRate != nil {
		p.LearningRate = t.Loop.LearningRate(0, 0)
	}
	p.Limits = autotune.Limits{StepsPerExecution: min(t.data.Len()/t.Loop.Batch, epoch, t.pause(epoch)), Compiled: true,
		Threads: true, Restart: t.mayRestart(), OneDNN: os.Getenv("TF_ENABLE_ONEDNN_OPTS") == ""}
	found, err := t.takeOver(p.Limits)
	p.Limits.Threads = t.Profile == Profile{} // the single-threaded executor cannot trace
	switch {
	case err != nil || found || t.Autotune == "":
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
	if t.choice.Reason != "" && t.Autotune != "" && !t.continues() {
		t.report("auto", text(t.choice.Reason))
	}
	if err := t.leaveForChild(ctx); err != nil {
		return err
	}
	t.Session = t.choice.Configuration.Apply(t.Session)
	return nil
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

// mayRestart reports whether autotune may choose a configuration that needs environment variables. The training then
// runs in a child process that has them. A process that is itself the child of a supervisor starts no child.
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
	l.StepsPerExecution = math.MaxInt32 // the loop itself ends executions where it must pause
	now := autotune.Configuration{}
	if t.Autotune != "" {
		now = before.Within(l, t.Session)
	}
	if autotune.RoundingOf(before.Apply(t.Session)) != autotune.RoundingOf(now.Apply(t.Session)) {
		if !t.Loop.ResumeAnyway {
			return false, fmt.Errorf("%s: %w", t.Checkpoints.Folder, option.New("Config.Autotune", fmt.Sprintf("it chose %s "+
				"for the training of the checkpoint; the options and variables of this run allow only %s, and steps would round "+
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
