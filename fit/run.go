package fit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/fit/checkpoint"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// run is one call of Loop.Run.
type run struct {
	loop  *Loop
	ds    data.Dataset
	hooks []Hook
	// stepHooks are those of the hooks that have a Step, and replayHooks those of them
	// that have Replays.
	stepHooks, replayHooks []Hook
	log                    *slog.Logger
	now                    func() time.Time
	// steady is the context of Run without its cancellation.
	steady context.Context
	// skipper is the session as a Skipper, or nil.
	skipper           Skipper
	train, validation scalars
	available         []string // metrics of records
	// batchesPerPass is the number of batches of a pass, and fullBatches the number of
	// those that have Loop.Batch samples.
	batchesPerPass, fullBatches int

	// state has the position.
	state State
	// tally is that of the epoch in progress. training is true while its train steps run,
	// and false during its validation; since is when that phase began.
	tally    tally
	training bool
	since    time.Time
	// rate is the learning rate that the session has; NaN if it is not known.
	rate float64
	// stack collects batches for calls of several steps; nil where steps run one by one.
	stack *stacking
	// began is true once this run has done a train step.
	began bool
	// warned is true once a step skipped at the least loss scale has been logged.
	warned bool
	// sound is false if the session and the position may not belong together, so that a
	// checkpoint of them would be wrong.
	sound bool
	// stop is why the run should end; empty while it should not. finished is true if
	// the training is over with it, and restored once RestoreBest has restored weights.
	stop               string
	finished, restored bool
	// closing is true while Epoch hooks are called.
	closing bool

	// kept is what the run can go back to. trained is the last step that hooks were
	// called for. rescaled are the changes of RateScale after the kept state; steps that
	// are trained again repeat them.
	kept     *kept
	trained  int64
	rescaled []rescaling
	// passed is the reset by way of another process that this run continues after; nil
	// if there is none, or it has been recorded.
	passed *passedOn

	// logs are the sizes that log files had when the training began, by hook.
	logs map[string]int64
	// folders are those of the Checkpoint hooks.
	folders []*checkpoint.Folder
	// lines are those of history.jsonl; the first linesKept bytes are of the first
	// linesOf records.
	lines              []byte
	linesKept, linesOf int
	// identity is computed when first needed; see run.identify.
	identity map[string]string
}

// start calls Start of the hooks, and returns how many are started.
func (r *run) start(ctx context.Context) (started int, err error) {
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Start != nil {
			// An interrupted hook counts as started: its End may have to clean up.
			if err := r.hookError(ctx, h.Name, "start", h.Start(ctx, &r.state)); err != nil {
				return i, err
			}
		}
	}
	return len(r.hooks), nil
}

// epoch runs the rest of an epoch.
func (r *run) epoch(ctx context.Context) error {
	s := &r.state
	s.Epoch = s.EpochsDone + 1
	r.training, r.since = true, r.now()
	for s.EpochStep < s.StepsPerEpoch {
		if err := r.pass(ctx); err != nil || r.stop != "" {
			return err
		}
	}
	r.tally.TrainTime, r.training, r.since = r.trainTime(), false, r.now()
	var validation Metrics
	if r.validates() {
		var err error
		if validation, err = r.validate(ctx); err != nil {
			return err
		}
	}
	r.record(validation)
	r.closing = true
	defer func() { r.closing = false }()
	return r.call(ctx, "epoch", func(h *Hook) func(context.Context, *State) error { return h.Epoch })
}

// pass trains until the end of the epoch or of the pass over the data, whichever comes
// first, or until the run goes back. The context is checked before each step.
func (r *run) pass(ctx context.Context) error {
	if err := r.interrupted(ctx); err != nil {
		return err
	}
	s := &r.state
	r.stack.clear()
	asked := r.now()
	for b, err := range r.ds.Batches(data.Pass{Batch: r.loop.Batch, Epoch: s.Pass, Skip: s.PassBatch, DropRemainder: r.loop.DropRemainder}) {
		r.tally.WaitTime += seconds(r.now().Sub(asked))
		if err != nil {
			return r.readFailed(fmt.Errorf("reading batch %d for epoch %d: %w", s.PassBatch+r.stack.size(), s.Epoch, err))
		}
		if r.stack == nil {
			err = r.step(ctx, b)
		} else {
			err = r.stackOrStep(ctx, b)
		}
		if errors.Is(err, errBack) {
			return nil
		} else if err != nil {
			return err
		}
		if r.stack.size() == 0 && (r.stop != "" || s.EpochStep == s.StepsPerEpoch || s.PassBatch == 0) {
			return nil
		}
		if err := r.interrupted(ctx); err != nil {
			return err
		}
		asked = r.now()
	}
	return r.readFailed(fmt.Errorf("%s ended after batch %d of a pass; its %d samples should give %d batches of %d",
		r.ds.Name(), s.PassBatch+r.stack.size(), r.ds.Len(), r.batchesPerPass, r.loop.Batch))
}

// readFailed returns err, the error of a dataset that gives no batch. While batches wait in a
// stack, it stops stacking and returns nil: the next pass reads them again, and trains on
// them, before it meets the error again.
func (r *run) readFailed(err error) error {
	if r.stack.size() > 0 {
		r.unstack(err)
		return nil
	}
	return err
}

// step trains on a batch. In the steady state it does not allocate.
func (r *run) step(ctx context.Context, b data.Batch) error {
	if err := r.beforeStep(b); err != nil {
		return err
	}
	s := &r.state
	if err := s.Session.Train(r.steady, s.Step, b, r.train.values); err != nil {
		r.sound = false
		err = fmt.Errorf("train step %d (epoch %d, batch %d): %w", s.Step+1, s.Epoch, b.Index, err)
		if r.loop.Recover != nil {
			return r.goBack(ctx, err)
		}
		return err
	}
	return r.afterStep(ctx, b, 1)
}

// beforeStep prepares the session for a step on batch b, or for a call of several steps, the
// last of them on batch b.
func (r *run) beforeStep(b data.Batch) error {
	if err := r.applyRate(); err != nil {
		return err
	}
	if b.Size < 1 {
		return fmt.Errorf("batch %d of %s has no samples", b.Index, r.ds.Name())
	}
	if r.state.EpochStep == 0 {
		if err := resetMetrics(r.steady, r.state.Session); err != nil {
			return fmt.Errorf("epoch %d: %w", r.state.Epoch, err)
		}
	}
	if r.loop.Recover != nil {
		if err := r.keep(); err != nil {
			return err
		}
	}
	if r.passed != nil {
		r.recordPassed()
	}
	return nil
}

// afterStep checks the loss of n steps that have run, the last of them on batch b, adds them to
// the epoch, and calls the hooks.
func (r *run) afterStep(ctx context.Context, b data.Batch, n int) error {
	s := &r.state
	finite := isFinite(r.train.values[0])
	if !finite && (r.skipper == nil || !r.skipper.Skipped()) {
		r.sound = false
		return &DivergedError{Epoch: s.Epoch, Step: s.Step + int64(n), Steps: n, Batch: b.Index, Metric: r.train.names[0], Value: r.train.values[0]}
	}
	if err := r.countSkipped(b, n); err != nil {
		r.sound = false
		return err
	}
	samples := 0
	if finite {
		samples = n * b.Size
	}
	r.train.add(s.sums, samples)
	s.advance(b, n, r.batchesPerPass, finite)
	s.Samples = b.Size
	r.began = true
	r.alive()
	hooks := r.stepHooks
	if s.Step <= r.trained { // trained again
		r.rescale()
		hooks = r.replayHooks
	}
	for i := range hooks {
		h := &hooks[i]
		if err := h.Step(ctx, s); err != nil {
			if err := r.hookError(ctx, h.Name, "step", err); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxSkipped is how many consecutive train steps may be skipped while the loss scale cannot
// be lowered.
const maxSkipped = 100

// countSkipped counts steps that change nothing, and ends a run that no longer trains. n steps
// have run, the last of them on batch b.
func (r *run) countSkipped(b data.Batch, n int) error {
	if r.skipper == nil {
		return nil
	}
	s := &r.state
	scale, stuck := r.skipper.Stuck()
	if !stuck && !r.skipper.Skipped() {
		s.SkippedSteps = 0
		return nil
	}
	s.SkippedSteps += int64(n)
	if !stuck {
		return nil
	}
	step := s.Step + int64(n)
	if !r.warned {
		r.warned = true
		r.log.Warn("a train step was skipped: its gradients are not finite, and the loss scale cannot be lowered", "step", step, "loss_scale", scale)
	}
	if s.SkippedSteps < maxSkipped && (s.EpochStep+n < s.StepsPerEpoch || s.SkippedSteps < int64(s.StepsPerEpoch)) {
		return nil
	}
	return &DivergedError{Epoch: s.Epoch, Step: step, Steps: n, Batch: b.Index, Metric: savedmodels.MetricLossScale, Value: scale, Skipped: s.SkippedSteps}
}

// applyRate sets the learning rate of the next step, if it differs from the last one.
func (r *run) applyRate() error {
	if r.loop.LearningRate == nil {
		return nil
	}
	s := &r.state
	rate := r.loop.LearningRate(s.Step, s.EpochsDone) * s.RateScale
	if rate == r.rate {
		return nil
	}
	if !validRate(rate) {
		return &option.Error{Option: "Loop.LearningRate", Value: rate, Reason: fmt.Sprintf("at step %d of epoch %d, expected a finite number of at least 0", s.Step+1, s.EpochsDone+1), Fix: "correct the schedule"}
	}
	if err := s.Session.SetLearningRate(rate); err != nil {
		return fmt.Errorf("setting the learning rate to %v: %w", rate, err)
	}
	r.rate = rate
	return nil
}

// validates reports whether the epoch in progress ends with a validation.
func (r *run) validates() bool {
	return r.loop.Validation != nil && r.state.Epoch%max(r.loop.ValidationEvery, 1) == 0
}

func (r *run) validationBatch() int { return cmp.Or(r.loop.ValidationBatch, r.loop.Batch) }

// validate evaluates the validation data. A batch that fails changes nothing in the
// model, and is evaluated again if Loop.Recover says so.
func (r *run) validate(ctx context.Context) (Metrics, error) {
	s := &r.state
	where := fmt.Sprintf("validation of epoch %d, after step %d", s.Epoch, s.Step)
	e := newEvaluation(s.Session, r.loop.Validation, r.validationBatch(), r.validation)
	e.finite, e.done = true, r.alive
	if o := r.loop.Recover; o != nil {
		e.failed = func(failed error) error {
			event, err := o.Decide(ctx, s, fmt.Errorf("%s: %w", where, failed))
			if err == nil {
				s.Event(event)
			}
			return err
		}
	}
	if err := e.run(ctx, r.steady); e.decided {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if e.badBatch >= 0 {
		r.sound = false
		return nil, &DivergedError{Epoch: s.Epoch, Step: s.Step, Batch: e.badBatch, Metric: r.validation.names[0], Value: e.metrics.values[0]}
	}
	s.FiniteLoss = true
	return e.metrics.means(e.sums, e.samples), nil
}

// record adds the record of the epoch to the history, and begins the next epoch.
func (r *run) record(validation Metrics) {
	s := &r.state
	trained := r.tally.TrainTime
	record := Record{
		Epoch: s.Epoch, Step: s.Step,
		Metrics: append(s.Running(), validation...),
		Seconds: (trained + seconds(r.now().Sub(r.since))).float(),
		Resets:  r.tally.Resets,
		Events:  r.tally.Events,
	}
	if trained > 0 {
		record.SamplesPerSecond = float64(s.EpochSamples+s.UncountedSamples) / trained.float()
		record.StepsPerSecond = float64(s.StepsPerEpoch) / trained.float()
		wait := r.waiting()
		record.DataWait = &wait
	}
	if r.loop.LearningRate != nil {
		rate := r.rate
		record.LearningRate = &rate
	}
	// Without /proc the amounts stay unknown, which is what records say then.
	record.Memory, _ = memory.Read()
	if meter, ok := s.Session.(GPUMeter); ok {
		if bytes, ok := meter.GPUBytes(); ok {
			record.GPU = memory.Known(memory.Bytes(bytes))
		}
	}
	if counter, ok := s.Session.(TensorCounter); ok {
		live := counter.LiveTensors()
		record.LiveTensors = &live
	}
	s.History.Records = append(s.History.Records, record)
	s.Record = &s.History.Records[len(s.History.Records)-1]
	s.endEpoch()
	r.tally = tally{}
}

// end calls End of the started hooks in reverse order, and joins their errors to that of the
// run. Then it unlocks the folders that hooks have locked.
func (r *run) end(started int, err error) error {
	r.state.Err = err
	errs := []error{err}
	for i := started - 1; i >= 0; i-- {
		if h := &r.hooks[i]; h.End != nil {
			errs = append(errs, r.hookError(r.steady, h.Name, "end", h.End(r.steady, &r.state)))
		}
	}
	for _, folder := range r.folders {
		if err := folder.Release(); err != nil {
			errs = append(errs, fmt.Errorf("unlocking a folder of checkpoints: %w", err))
		}
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// over reports whether no epoch is left, or a hook has called Finish.
func (r *run) over() bool { return r.state.EpochsDone >= r.loop.Epochs || r.finished }

// alive reports progress to Loop.Alive.
func (r *run) alive() {
	if r.loop.Alive == nil {
		return
	}
	step := int64(0)
	if r.began {
		step = r.state.Step
	}
	r.loop.Alive(step)
}

// trainTime is the time spent on training in the epoch in progress.
func (r *run) trainTime() seconds {
	if !r.training {
		return r.tally.TrainTime
	}
	return r.tally.TrainTime + seconds(r.now().Sub(r.since))
}

// waiting is the share of the training time of the epoch in progress in which steps
// waited for data.
func (r *run) waiting() float64 {
	if spent := r.trainTime(); spent > 0 {
		// What a checkpoint has of both is rounded.
		return min(max(r.tally.WaitTime.float()/spent.float(), 0), 1)
	}
	return 0
}

// interrupted returns an error if the context has ended.
func (r *run) interrupted(ctx context.Context) error {
	if err := contextError(ctx); err != nil {
		return fmt.Errorf("interrupted in epoch %d, after step %d: %w", r.state.Epoch, r.state.Step, err)
	}
	return nil
}

// contextError is the error of a context that has ended, with its cause.
func contextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
