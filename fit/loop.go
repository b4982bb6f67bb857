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
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// Loop trains a Session for some epochs. Session, Batch and Epochs have to be
// set; the zero values of the others are useful.
//
// A Loop may run again once a run has returned. It is not safe for concurrent
// use.
type Loop struct {
	// Session is what is trained.
	Session Session
	// Batch is the number of samples per train step.
	Batch int
	// Epochs is the number of epochs after which training is complete, counted
	// from its very beginning: a resumed run does those that are missing.
	Epochs int
	// InitialEpoch is the number of epochs to take as done when a run begins
	// anew. Steps and the position in the data count as if they had been run.
	InitialEpoch int
	// StepsPerEpoch is the number of train steps of an epoch. 0 means one pass
	// over the dataset. If it is less than a pass, the next epoch continues
	// where the last one stopped, as in Keras, and every sample gets its turn.
	// When a pass ends in the middle of an epoch, the next pass begins there:
	// an epoch always has this many steps, also if they are more than a pass has,
	// as of a dataset that repeats in Keras. (Without that, Keras 3 ends the epoch
	// early, with a warning.)
	StepsPerEpoch int
	// DropRemainder leaves out the last batch of a pass if it is smaller than
	// Batch.
	DropRemainder bool

	// Validation is evaluated after epochs; nil for no validation.
	Validation data.Dataset
	// ValidationBatch is the number of samples per evaluation step; 0 means
	// Batch.
	ValidationBatch int
	// ValidationEvery is the number of epochs from one validation to the next; 0
	// means 1.
	ValidationEvery int

	// FuseSteps is the most train steps to run in one call of a Session that is a Fuser;
	// 0 and 1 run them one by one. The steps are the same ones: a call ends with an epoch
	// and a pass over the data, before the learning rate changes, and where a hook has
	// to be called (Hook.StepEvery); a last batch that is smaller is a step of its own.
	// What has to run one by one does, and why is in the log. A hook that has to be
	// called after every step (Hook.StepEvery is 0), such as a Budget, has all steps run
	// one by one, and so has a call that failed, for the rest of the run.
	FuseSteps int

	// LearningRate sets the rate before each step; nil leaves it to the model.
	LearningRate Schedule
	// LearningRateText is what LearningRate is in words, as ParseSchedule reads them: a
	// checkpoint of a run with other ones belongs to another run (MismatchError). Empty
	// leaves it out.
	LearningRateText string

	// Resume is a folder of checkpoints, usually that of the Checkpoint hook.
	// The run continues from the newest one that is good; it begins anew if
	// there is none. Empty always begins anew.
	Resume string

	// Recover lets the run go on after steps that fail; nil ends it.
	Recover *Recovery

	// Alive is called after each train step, each batch that was evaluated, each that
	// waits for others (FuseSteps), and each that was read to identify the data, with
	// the number of train steps done, those before a resume included, or 0 before this
	// run has done one; session.Supervised.Alive is made for it. It should cost little.
	// nil is not to call it.
	Alive func(step int64)

	// Log gets warnings, such as of a damaged checkpoint that is skipped, and
	// where a run resumes; nil discards them.
	Log *slog.Logger

	hooks []Hook
	// now is the clock; nil is the system's.
	now func() time.Time

	// ResumeAnyway resumes although the checkpoint belongs to another run, where
	// that is possible, with a warning for each difference and the event
	// "resumed_anyway"; see MismatchError.
	ResumeAnyway bool
}

// TensorCounter is a Session that knows how many native tensors are held.
// Records then have LiveTensors.
type TensorCounter interface {
	LiveTensors() int64
}

// GPUMeter is a Session that knows how many bytes are in use on GPUs, as
// session.Session does. Records then have GPU. ok is false if it cannot tell.
type GPUMeter interface {
	GPUBytes() (bytes int64, ok bool)
}

// Hook adds hooks.
func (l *Loop) Hook(hooks ...Hook) { l.hooks = append(l.hooks, hooks...) }

// Run trains on the dataset. The History is never nil, whatever the error, and
// has the epochs that were done.
//
// History.Done tells whether the training is over, or has only stopped here.
//
// Errors, for errors.Is and errors.As:
//   - *option.Error: an option cannot work; nothing was trained.
//   - *MismatchError: the checkpoint to resume from belongs to another run.
//   - *LockedError: another run writes to the folder of checkpoints.
//   - *DivergedError (ErrDiverged): the loss is NaN or infinite, or the gradients are
//     so that no step changes anything any more.
//   - context.Canceled or context.DeadlineExceeded: ctx ended. The step in
//     progress is completed first, and a Checkpoint hook writes a checkpoint.
//   - *HookError: a hook failed. It can come together with others, if it did so
//     at the end of a run.
//   - others: the dataset or the session failed; the message has the step. A
//     step that failed is first given to Loop.Recover.
//
// Only hooks see ctx itself: the session gets one that cannot be cancelled,
// since the state of a model is in doubt after an interrupted step.
func (l *Loop) Run(ctx context.Context, ds data.Dataset) (*History, error) {
	if ctx == nil {
		return &History{}, &option.Error{Option: "context", Reason: "there is none", Fix: "give Run a context, such as context.Background()"}
	}
	r, err := newRun(l, ds)
	if err != nil {
		return &History{}, err
	}
	r.steady = context.WithoutCancel(ctx)
	if err := r.resume(ctx); err != nil {
		return r.state.History, err
	}
	started := 0
	err = r.applyRate()
	if err == nil {
		started, err = r.start(ctx)
	}
	if err == nil {
		r.fuse()
		err = r.train(ctx)
	}
	if err == nil {
		r.state.History.Stopped, r.state.History.Done = r.stop, r.over()
	}
	err = r.end(started, err)
	if f, ok := l.Session.(Finalizer); ok && err == nil && r.over() && !r.restored {
		if err = f.Finalize(r.steady); err != nil {
			err = fmt.Errorf("finalizing the weights: %w", err)
		}
	}
	if drop := r.dropKept(); drop != nil {
		err = errors.Join(err, drop)
	}
	return r.state.History, err
}

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
	state  State

	trainNames, validationNames, available []string
	stepsPerPass                           int
	// values and sums have a place per metric of the train signature; where last is true,
	// sums has the last value.
	values, sums                     []float64
	last                             []bool
	validationValues, validationSums []float64
	validationLast                   []bool

	// What follows is the position of the run; checkpoints have all of it.
	done      int   // epochs
	pass      int   // passes over the data
	passBatch int   // batches of the current pass
	samples   int64 // that are in the sums
	// uncounted are the samples of the epoch that are not, and unapplied the train steps
	// in a row, up to the last one, that were skipped.
	uncounted, unapplied int64
	events               []string
	resets               Resets
	scale                float64 // of the learning rate
	// trained is the last step that hooks were called for, and rescaled are the
	// changes of scale since the state that is kept: a run that went back does them
	// again.
	trained  int64
	rescaled []rescaling
	// logs are the sizes that log files had when the training began, by hook.
	logs map[string]int64
	// locks are those of the Checkpoint hooks.
	locks []*folderLock
	// passed is the reset by way of another process that this one goes on after; nil
	// if there is none, or it has been recorded.
	passed *passedOn
	// spent is the time that training took in the epoch in progress, not
	// counting that from since on.
	spent time.Duration
	// waited is the part of it in which the next batch was asked for and not there.
	waited time.Duration
	// proven is true if a finite loss was computed with the present state of
	// the model.
	proven bool

	// began is true once this run has done a train step.
	began bool
	// training is true while an epoch's train steps run, and not its validation;
	// since is when either of them began.
	training bool
	since    time.Time
	// rate is the learning rate that the session has; NaN if it is not known.
	rate float64
	// fuser runs up to fuse steps in one call; nil where steps run one by one.
	// gathered of the batches of a call of together steps are with it.
	fuser              Fuser
	gathered, together int
	// fullBatches is how many batches of a pass have Loop.Batch samples. changing is true
	// once it was said that the learning rate keeps steps from running in one call.
	fullBatches int
	changing    bool
	// warned is true once it was said that steps are skipped at the least loss scale.
	warned bool
	// restored is true once RestoreBest has restored weights.
	restored bool
	// stop is why the run should end; empty while it should not. finished is true if
	// the training is over with it.
	stop     string
	finished bool
	// closing is true while Epoch hooks are called.
	closing bool
	// sound is false if the session and the position may not belong together,
	// so that a checkpoint of them would be wrong.
	sound bool
	// kept is what the run can go back to.
	kept *kept
	// lines are those of history.jsonl; the first linesKept bytes are of the first
	// linesOf records.
	lines              []byte
	linesKept, linesOf int
	// identity is computed when first needed; see run.identify.
	identity map[string]string
}

// maxBatch is the most samples of a batch.
const maxBatch = math.MaxInt32

// newRun checks all options.
func newRun(l *Loop, ds data.Dataset) (*run, error) {
	if l.Session == nil {
		return nil, &option.Error{Option: "Loop.Session", Reason: "there is none", Fix: "set it to an open session"}
	}
	if ds == nil {
		return nil, &option.Error{Option: "dataset", Reason: "there is none", Fix: "give Run a dataset"}
	}
	for _, o := range []struct {
		name       string
		value, min int
	}{
		{"Batch", l.Batch, 1},
		{"Epochs", l.Epochs, 1},
		{"InitialEpoch", l.InitialEpoch, 0},
		{"StepsPerEpoch", l.StepsPerEpoch, 0},
		{"FuseSteps", l.FuseSteps, 0},
		{"ValidationBatch", l.ValidationBatch, 0},
		{"ValidationEvery", l.ValidationEvery, 0},
	} {
		if o.value < o.min {
			return nil, &option.Error{Option: "Loop." + o.name, Value: o.value, Reason: fmt.Sprintf("expected at least %d", o.min)}
		}
	}
	if l.Batch > maxBatch {
		return nil, &option.Error{Option: "Loop.Batch", Value: l.Batch, Reason: fmt.Sprintf("expected at most %d", maxBatch)}
	}
	if l.InitialEpoch >= l.Epochs {
		return nil, &option.Error{Option: "Loop.InitialEpoch", Value: l.InitialEpoch, Reason: fmt.Sprintf("nothing is left to train of %d epochs", l.Epochs), Fix: "raise {Loop.Epochs}, which counts from the beginning of training"}
	}
	n := ds.Len()
	if n < 1 {
		return nil, &option.Error{Option: "dataset", Reason: ds.Name() + " has no samples", Fix: "give Run a dataset with at least one"}
	}
	perPass := n / l.Batch
	if !l.DropRemainder && n%l.Batch > 0 {
		perPass++
	}
	if perPass == 0 {
		return nil, &option.Error{Option: "Loop.DropRemainder", Reason: fmt.Sprintf("%s has %d samples, less than one batch of %d, so no batch remains", ds.Name(), n, l.Batch), Fix: "lower {Loop.Batch}, or keep the remainder"}
	}
	if most := math.MaxInt64 / int64(l.Epochs); int64(l.StepsPerEpoch) > most {
		return nil, &option.Error{Option: "Loop.StepsPerEpoch", Value: l.StepsPerEpoch, Reason: fmt.Sprintf("expected at most %d with %d epochs", most, l.Epochs)}
	}
	hooks, err := checkHooks(l.hooks)
	if err != nil {
		return nil, err
	}

	r := &run{
		loop: l, ds: ds, hooks: hooks, log: l.Log, now: l.now,
		stepsPerPass: perPass, fullBatches: n / l.Batch, scale: 1, rate: math.NaN(), sound: true,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.now == nil {
		r.now = time.Now
	}
	for _, h := range hooks {
		if h.Step != nil {
			r.stepHooks = append(r.stepHooks, h)
			if h.Replays {
				r.replayHooks = append(r.replayHooks, h)
			}
		}
	}
	if r.trainNames, err = metricNames(l.Session.TrainMetrics(), "", "train"); err != nil {
		return nil, err
	}
	r.values, r.sums = make([]float64, len(r.trainNames)), make([]float64, len(r.trainNames))
	r.last = lastValues(l.Session, l.Session.TrainMetrics())
	r.available = slices.Clone(r.trainNames)
	if l.Validation != nil {
		if err := r.prepareValidation(); err != nil {
			return nil, err
		}
	}
	steps := l.StepsPerEpoch
	if steps == 0 {
		steps = perPass
	}
	r.state = State{
		Session: l.Session, Epochs: l.Epochs, StepsPerEpoch: steps,
		Values: r.values, History: &History{}, run: r,
	}
	r.done = l.InitialEpoch
	r.state.Epoch = l.InitialEpoch + 1
	r.state.Step = int64(l.InitialEpoch) * int64(steps)
	r.pass = int(r.state.Step / int64(perPass))
	r.passBatch = int(r.state.Step % int64(perPass))
	return r, nil
}

func (r *run) prepareValidation() (err error) {
	v := r.loop.Validation
	names := r.loop.Session.EvaluateMetrics()
	if len(names) == 0 {
		return &option.Error{Option: "Loop.Validation", Reason: "the model has no evaluate signature", Fix: "export the model with one, or train without validation"}
	}
	if v.Len() < 1 {
		return &option.Error{Option: "Loop.Validation", Reason: v.Name() + " has no samples", Fix: "use a dataset with at least one"}
	}
	if r.validationNames, err = metricNames(names, validationPrefix, "evaluate"); err != nil {
		return err
	}
	for _, name := range r.validationNames {
		if slices.Contains(r.trainNames, name) {
			return &option.Error{Option: "Loop.Validation", Reason: name + " is a metric of the train signature already", Fix: "give that output of the model a name that does not begin with " + validationPrefix}
		}
	}
	r.available = append(r.available, r.validationNames...)
	r.validationValues, r.validationSums = make([]float64, len(names)), make([]float64, len(names))
	r.validationLast = lastValues(r.loop.Session, names)
	return nil
}

// start calls Load and Start of the hooks, and returns how many are started.
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

// end calls End of those hooks that were started, last to first, as deferred
// calls are, and joins their errors to that of the run. Folders that hooks have locked are
// let go of after that.
func (r *run) end(started int, err error) error {
	r.state.Err = err
	errs := []error{err}
	for i := started - 1; i >= 0; i-- {
		if h := &r.hooks[i]; h.End != nil {
			errs = append(errs, r.hookError(r.steady, h.Name, "end", h.End(r.steady, &r.state)))
		}
	}
	for _, lock := range r.locks {
		if err := lock.release(); err != nil {
			errs = append(errs, fmt.Errorf("unlocking a folder of checkpoints: %w", err))
		}
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// over reports whether the training is: there is nothing left to go on with.
func (r *run) over() bool { return r.done >= r.loop.Epochs || r.finished }

// alive tells that the run goes on.
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

// train runs epochs until all are done or a hook asks to stop.
func (r *run) train(ctx context.Context) error {
	for r.done < r.loop.Epochs && r.stop == "" {
		if err := r.epoch(ctx); err != nil {
			return err
		}
	}
	return nil
}

// epoch runs what is left of an epoch.
func (r *run) epoch(ctx context.Context) error {
	s := &r.state
	s.Epoch = r.done + 1
	r.training, r.since = true, r.now()
	for s.EpochStep < s.StepsPerEpoch {
		if err := r.trainPass(ctx); err != nil || r.stop != "" {
			return err
		}
	}
	r.spent, r.training, r.since = r.trainTime(), false, r.now()
	var validation Metrics
	if r.validates() {
		var err error
		if validation, err = r.validate(ctx); err != nil {
			return err
		}
	}
	r.close(validation)
	r.closing = true
	defer func() { r.closing = false }()
	return r.call(ctx, "epoch", func(h *Hook) func(context.Context, *State) error { return h.Epoch })
}

// trainTime is the time spent on training in the epoch in progress.
func (r *run) trainTime() time.Duration {
	if !r.training {
		return r.spent
	}
	return r.spent + r.now().Sub(r.since)
}

// waiting is the share of the training time of the epoch in progress in which steps
// waited for data.
func (r *run) waiting() float64 {
	if spent := r.trainTime(); spent > 0 {
		// What a checkpoint has of both is rounded.
		return min(max(r.waited.Seconds()/spent.Seconds(), 0), 1)
	}
	return 0
}

// validates reports whether the epoch in progress ends with a validation.
func (r *run) validates() bool {
	return r.loop.Validation != nil && r.state.Epoch%max(r.loop.ValidationEvery, 1) == 0
}

// trainPass trains until the end of the epoch or of the pass over the data,
// whichever comes first. The context is looked at before each step.
func (r *run) trainPass(ctx context.Context) error {
	if err := r.interrupted(ctx); err != nil {
		return err
	}
	s := &r.state
	r.gathered = 0
	asked := r.now()
	for b, err := range r.ds.Batches(data.Pass{Batch: r.loop.Batch, Epoch: r.pass, Skip: r.passBatch, DropRemainder: r.loop.DropRemainder}) {
		r.waited += r.now().Sub(asked)
		if err != nil {
			err = fmt.Errorf("reading batch %d for epoch %d: %w", r.passBatch+r.gathered, s.Epoch, err)
			if r.gathered > 0 {
				r.unfuse(err) // the batches before it can be trained
				return nil
			}
			return err
		}
		if err := r.take(ctx, b); errors.Is(err, errBack) {
			return nil // the caller goes on from where the run is now
		} else if err != nil {
			return err
		}
		if r.gathered == 0 && (r.stop != "" || s.EpochStep == s.StepsPerEpoch || r.passBatch == 0) {
			return nil
		}
		if err := r.interrupted(ctx); err != nil {
			return err
		}
		asked = r.now()
	}
	err := fmt.Errorf("%s ended after batch %d of a pass; its %d samples should give %d batches of %d",
		r.ds.Name(), r.passBatch+r.gathered, r.ds.Len(), r.stepsPerPass, r.loop.Batch)
	if r.gathered > 0 {
		r.unfuse(err)
		return nil
	}
	return err
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

// step trains on a batch, or, with n > 1, on the n batches that were gathered, of which
// this is the last. In the steady state it does not allocate.
func (r *run) step(ctx context.Context, b data.Batch, n int) error {
	s := &r.state
	if err := r.applyRate(); err != nil {
		return err
	}
	if b.Size < 1 {
		return fmt.Errorf("batch %d of %s has no samples", b.Index, r.ds.Name())
	}
	if s.EpochStep == 0 {
		if err := resetMetrics(r.steady, s.Session); err != nil {
			return fmt.Errorf("epoch %d: %w", s.Epoch, err)
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
	if n > 1 {
		if err := r.fuser.TrainN(r.steady, s.Step, n, r.values); err != nil {
			r.sound = false
			err = fmt.Errorf("train steps %d to %d (epoch %d, batches %d to %d), in one call: %w", s.Step+1, s.Step+int64(n), s.Epoch, r.passBatch, b.Index, err)
			if r.loop.Recover == nil {
				return err
			}
			// One by one they may go through, and if not, it is known which one fails.
			r.unfuse(err)
			return r.back(unfusedEvent, err)
		}
	} else if err := s.Session.Train(r.steady, s.Step, b, r.values); err != nil {
		r.sound = false
		err = fmt.Errorf("train step %d (epoch %d, batch %d): %w", s.Step+1, s.Epoch, b.Index, err)
		if r.loop.Recover != nil {
			return r.goBack(ctx, err)
		}
		return err
	}
	skipper, _ := s.Session.(Skipper)
	counts := true
	if loss := r.values[0]; math.IsNaN(loss) || math.IsInf(loss, 0) {
		if skipper == nil || !skipper.Skipped() {
			r.sound = false
			return &DivergedError{Epoch: s.Epoch, Step: s.Step + int64(n), Steps: n, Batch: b.Index, Metric: r.trainNames[0], Value: loss}
		}
		counts = false
	}
	if skipper != nil {
		if err := r.skips(skipper, b, n); err != nil {
			r.sound = false
			return err
		}
	}
	samples := n * b.Size
	if counts {
		r.samples += int64(samples)
	} else {
		r.uncounted += int64(samples)
	}
	for i, v := range r.values {
		switch {
		case r.last[i]:
			r.sums[i] = v
		case counts:
			r.sums[i] += v * float64(samples)
		}
	}
	r.proven = false
	if r.passBatch += n; r.passBatch == r.stepsPerPass {
		r.pass, r.passBatch = r.pass+1, 0
	}
	s.Step += int64(n)
	s.EpochStep += n
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

// unappliedMost is how many train steps in a row may be skipped while the loss scale
// cannot be lowered.
const unappliedMost = 100

// skips counts steps that change nothing, and ends a run that no longer trains. n is as
// for step.
func (r *run) skips(skipper Skipper, b data.Batch, n int) error {
	s := &r.state
	scale, stuck := skipper.Stuck()
	if !stuck && !skipper.Skipped() {
		r.unapplied = 0
		return nil
	}
	r.unapplied += int64(n)
	if !stuck {
		return nil
	}
	step := s.Step + int64(n)
	if !r.warned {
		r.warned = true
		r.log.Warn("a train step was skipped: its gradients are not finite, and the loss scale cannot be lowered", "step", step, "loss_scale", scale)
	}
	if r.unapplied < unappliedMost && (s.EpochStep+n < s.StepsPerEpoch || r.unapplied < int64(s.StepsPerEpoch)) {
		return nil
	}
	return &DivergedError{Epoch: s.Epoch, Step: step, Steps: n, Batch: b.Index, Metric: savedmodels.MetricLossScale, Value: scale, Skipped: r.unapplied}
}

// running are the metrics of the epoch so far.
func (r *run) running() Metrics {
	return means(r.trainNames, r.sums, r.last, r.samples)
}

// applyRate gives the session the learning rate of the next step, if it is
// another one.
func (r *run) applyRate() error {
	if r.loop.LearningRate == nil {
		return nil
	}
	rate := r.loop.LearningRate(r.state.Step, r.done) * r.scale
	if rate == r.rate {
		return nil
	}
	if !validRate(rate) {
		return &option.Error{Option: "Loop.LearningRate", Value: rate, Reason: fmt.Sprintf("at step %d of epoch %d, expected a finite number of at least 0", r.state.Step+1, r.done+1), Fix: "correct the schedule"}
	}
	if err := r.state.Session.SetLearningRate(rate); err != nil {
		return fmt.Errorf("setting the learning rate to %v: %w", rate, err)
	}
	r.rate = rate
	return nil
}

// validate evaluates the validation data. A batch that fails changes nothing in the
// model, and is evaluated again if Loop.Recover says so.
func (r *run) validate(ctx context.Context) (Metrics, error) {
	s := &r.state
	where := fmt.Sprintf("validation of epoch %d, after step %d", s.Epoch, s.Step)
	e := evaluation{session: s.Session, ds: r.loop.Validation, batch: r.validationBatch(), values: r.validationValues, sums: r.validationSums, last: r.validationLast, finite: true}
	e.done = r.alive
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
		return nil, &DivergedError{Epoch: s.Epoch, Step: s.Step, Batch: e.badBatch, Metric: r.validationNames[0], Value: e.values[0]}
	}
	r.proven = true
	return means(r.validationNames, e.sums, e.last, e.samples), nil
}

func (r *run) validationBatch() int { return cmp.Or(r.loop.ValidationBatch, r.loop.Batch) }

// close turns the sums of the epoch into a record and begins the next epoch.
func (r *run) close(validation Metrics) {
	s := &r.state
	record := Record{
		Epoch: s.Epoch, Step: s.Step,
		Metrics: append(r.running(), validation...),
		Seconds: (r.spent + r.now().Sub(r.since)).Seconds(),
		Resets:  r.resets,
		Events:  r.events,
	}
	if seconds := r.spent.Seconds(); seconds > 0 {
		record.SamplesPerSecond = float64(r.samples+r.uncounted) / seconds
		record.StepsPerSecond = float64(s.StepsPerEpoch) / seconds
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
	r.done++
	s.EpochStep = 0
	clear(r.sums)
	r.samples, r.uncounted, r.spent, r.waited, r.events, r.resets = 0, 0, 0, 0, nil, Resets{}
}
