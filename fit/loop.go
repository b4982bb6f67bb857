package fit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/option"
)

// Loop trains a Session. Session, Batch and Epochs are required; the other fields may be zero.
// A Loop can run again after Run has returned. It is not safe for concurrent use.
type Loop struct {
	// Session is the model to train.
	Session Session
	// Batch is the number of samples of a train step.
	Batch int
	// Epochs is the total number of epochs, including those before a resume.
	Epochs int
	// InitialEpoch is the number of epochs that a new training skips. The step and the position in
	// the data are as if InitialEpoch epochs were done.
	InitialEpoch int
	// StepsPerEpoch is the number of train steps of an epoch; 0 means one pass over the
	// dataset. An epoch begins where the previous one ended in the data, and continues with the
	// next pass when a pass ends. (Keras 3 ends the epoch with the pass, and warns.)
	StepsPerEpoch int
	// DropRemainder omits the last batch of a pass if it is smaller than Batch.
	DropRemainder bool

	// Validation is the data for a validation after epochs; nil means none.
	Validation data.Dataset
	// ValidationEvery is the number of epochs from one validation to the next; 0 means 1.
	ValidationEvery int

	// LearningRate returns the rate of a train step; ParseSchedule returns common functions. step is
	// the number of train steps before that step, and epoch the number of complete epochs. The rate
	// must depend only on step and epoch, so that a resumed run gets the same rates. A negative or
	// non-finite rate ends the run. If LearningRate is nil, the model sets its rate.
	LearningRate func(step int64, epoch int) float64
	// LearningRateText describes LearningRate in the syntax of ParseSchedule. A run cannot
	// resume from a checkpoint with a different text (session.ErrMismatch). An empty text is not
	// compared.
	LearningRateText string

	// Resume is a folder of checkpoints, usually that of the Checkpoint hook. The run resumes
	// from the newest good checkpoint. If there is none, or Resume is empty, a new training
	// begins.
	Resume string
	// ResumeAnyway resumes despite the differences of a session.ErrMismatch, where that is possible.
	// It logs a warning for each difference, and records the event "resumed_anyway".
	ResumeAnyway bool

	// Recover continues the run after a failed step. If it is nil, a failed step ends the run.
	Recover *Recovery

	// Alive, if not nil, is called after each train step, each evaluated batch, each stacked
	// batch (Session), and each batch that is read to identify the data. step is the number of
	// train steps done, or 0 before the first train step of this run.
	Alive func(step int64)

	// Log receives warnings and the position at which a run resumes; nil discards them.
	Log *slog.Logger

	hooks []Hook
	// now is the clock; nil means the system clock.
	now func() time.Time
}

// Hook adds hooks.
func (l *Loop) Hook(hooks ...Hook) { l.hooks = append(l.hooks, hooks...) }

// Run trains on the dataset. The History is never nil; after an error it has the epochs that were
// done. History.Done reports whether the training is complete.
//
// The error is
//   - an *option.Error if an option cannot work. Nothing was trained.
//   - session.ErrMismatch if the checkpoint does not match this run.
//   - ErrLocked if another run uses the folder of checkpoints.
//   - ErrDiverged if the loss is NaN or infinite, or the gradients stay
//     infinite, so that steps no longer change the weights.
//   - context.Canceled or context.DeadlineExceeded if ctx ended. Run completes the step in
//     progress, and a Checkpoint hook writes a checkpoint.
//   - a *HookError if a hook failed. It can be joined with other errors.
//   - another error if the dataset or the session failed. The message has the step.
//
// Hooks get ctx. The session gets a context that is never cancelled, since an interrupted step
// would leave the model in an undefined state.
func (l *Loop) Run(ctx context.Context, ds data.Dataset) (*History, error) {
	if ctx == nil {
		return &History{}, &option.Error{Option: "context", Reason: "missing",
			Fix: "give Run a context, such as context.Background()"}
	}
	r, err := newRun(l, ds)
	if err != nil {
		return &History{}, err
	}
	r.steady = context.WithoutCancel(ctx)
	ctx, done := r.together(ctx)
	defer done()
	started, err := r.begin(ctx)
	if err == nil {
		r.prepareStack()
	}
	for err == nil && r.stop == "" && r.state.EpochsDone < l.Epochs {
		err = r.epoch(ctx)
	}
	if err == nil {
		r.state.History.Stopped, r.state.History.Done = r.stop, r.over()
	}
	err = r.end(started, err)
	if err == nil && r.over() && r.state.History.Restored == 0 {
		if err = r.state.Session.Finalize(r.steady); err != nil {
			err = fmt.Errorf("finalizing the weights: %w", err)
		}
	}
	return r.state.History, join(err, r.releaseSnapshot())
}

// run is the state of one call of Loop.Run.
type run struct {
	loop      *Loop
	ds        data.Dataset
	hooks     []Hook
	stepHooks []Hook
	now       func() time.Time
	// steady is the context of Run without its cancellation.
	steady            context.Context
	train, validation scalars

	state State // includes the position
	// ranks is the result of Session.Ranks, and rank the index of this process in it.
	ranks contract.RankGroup
	rank  int
	// tally, phase and since describe the current epoch: its counts, its current phase (such as
	// training), and the time at which that phase began.
	tally tally
	phase phase
	since time.Time
	// rate is the learning rate set in the session; NaN if it is unknown.
	rate float64
	// stack collects batches for executions of several steps; nil if steps run one by one.
	stack *stacking
	// warned is true once the run has logged a skipped step at the lowest loss scale.
	warned bool
	// sound is false if the state of the session may not match the position in the training. No
	// checkpoint is written then.
	sound bool
	// stop is the reason to end the run; empty to continue. finished is true if stopping completes
	// the training.
	stop     string
	finished bool
	// snapshot is the newest snapshot for Loop.Recover. trained is the last step for which hooks were
	// called; steps that are repeated after a return to the snapshot do not call hooks again.
	snapshot *snapshot
	trained  int64

	// lock is the lock on Loop.Resume; nil if there is none.
	lock *checkpoint.Lock
	// written is the newest checkpoint.
	written written
	// checkpoints are the Checkpoint hooks that have started.
	checkpoints []*checkpointer
	// identity is computed when it is first needed; see run.identify.
	identity map[string]string
}

type phase int

const (
	idle     phase = iota // before an epoch, and during its validation
	training              // train steps run
	closing               // Epoch hooks are called
)

func (r *run) start(ctx context.Context) (started int, err error) {
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Start != nil {
			// An interrupted hook counts as started, since its End may have to clean up.
			if err := r.hookError(ctx, h.Name, "start", h.Start(ctx, &r.state)); err != nil {
				return i, err
			}
		}
	}
	return len(r.hooks), nil
}

func (r *run) epoch(ctx context.Context) error {
	s := &r.state
	s.Epoch = s.EpochsDone + 1
	r.phase, r.since = training, r.now()
	for s.EpochStep < s.StepsPerEpoch {
		if err := r.pass(ctx); err != nil || r.stop != "" {
			return err
		}
	}
	if r.ranks != nil {
		if err := r.ranks.CheckEqual(r.steady); err != nil {
			return fmt.Errorf("after epoch %d: %w", s.Epoch, err)
		}
	}
	r.tally.TrainTime, r.phase, r.since = r.trainTime(), idle, r.now()
	var validation Metrics
	if r.validates() {
		var err error
		if validation, err = r.validate(ctx); err != nil {
			return err
		}
	}
	if err := r.record(validation); err != nil {
		return fmt.Errorf("after epoch %d: %w", s.Epoch, err)
	}
	r.phase = closing
	defer func() { r.phase = idle }()
	for i := range r.hooks {
		if h := &r.hooks[i]; h.Epoch != nil {
			if err := r.hookError(ctx, h.Name, "epoch", h.Epoch(ctx, s)); err != nil {
				return err
			}
		}
	}
	return nil
}

// pass trains until the end of the epoch, the end of the pass over the data, or a return to a
// snapshot. Its steps do not allocate.
func (r *run) pass(ctx context.Context) error {
	s := &r.state
	r.stack.clear()
	next, stop := iter.Pull2(r.ds.Batches(data.Pass{Batch: r.loop.Batch, Epoch: s.Pass, Skip: s.PassBatch,
		DropRemainder: r.loop.DropRemainder}))
	defer stop()
	for {
		if err := r.interrupted(ctx); err != nil {
			return err
		}
		b, err := r.read(next)
		if err != nil {
			return err
		}
		n, err := r.before(b)
		switch {
		case err != nil:
		case n == 1:
			err = s.Session.Train(r.steady, s.Step, b, r.train.values)
			err = r.after(ctx, b, n, err)
		case n > 1:
			err = r.state.Session.TrainN(r.steady, s.Step, n, r.train.values)
			err = r.after(ctx, b, n, err)
		}
		if errors.Is(err, errWentBack) {
			return nil
		} else if err != nil {
			return err
		}
		if n > 0 && (r.stop != "" || s.EpochStep == s.StepsPerEpoch || s.PassBatch == 0) {
			return nil
		}
	}
}

func (r *run) read(next func() (data.Batch, error, bool)) (data.Batch, error) {
	s := &r.state
	asked := r.now()
	b, err, ok := next()
	r.tally.WaitTime += seconds(r.now().Sub(asked))
	switch {
	case !ok:
		err = fmt.Errorf("%s ended after batch %d of a pass; its %d samples should give %d batches of %d",
			r.ds.Name(), s.PassBatch+r.stack.size(), r.ds.Len(), r.batchesPerPass(), r.loop.Batch)
	case err != nil:
		err = fmt.Errorf("reading batch %d for epoch %d: %w", s.PassBatch+r.stack.size(), s.Epoch, err)
	}
	return b, err
}

// before prepares the session for a train step on batch b, or for an execution of several steps
// that ends with b. n is the number of steps to run; 0 if the execution needs more batches.
func (r *run) before(b data.Batch) (n int, err error) {
	s := &r.state
	if r.stack.size() == 0 {
		if err := r.applyRate(); err != nil {
			return 0, err
		}
	}
	if n, err = r.gather(b); n == 0 || err != nil {
		return 0, err
	}
	if b.Size < 1 {
		return 0, fmt.Errorf("batch %d of %s has no samples", b.Index, r.ds.Name())
	}
	if s.EpochStep == 0 {
		if err := r.state.Session.ResetMetrics(r.steady); err != nil {
			return 0, fmt.Errorf("epoch %d: resetting metrics: %w", s.Epoch, err)
		}
	}
	if r.loop.Recover != nil {
		if err := r.takeSnapshot(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// after handles the result of n steps that ended with batch b: it adds their metrics to the
// epoch and calls the hooks.
func (r *run) after(ctx context.Context, b data.Batch, n int, failed error) error {
	if failed != nil {
		return r.stepFailed(ctx, b, n, failed)
	}
	s := &r.state
	finite := isFinite(r.train.values[0])
	if err := r.checkLoss(b, n, finite); err != nil {
		r.sound = false
		return err
	}
	samples := 0
	if finite {
		samples = n * b.Size
	}
	r.train.add(s.sums, samples)
	s.advance(b, n, r.batchesPerPass(), finite)
	s.Samples = b.Size
	r.alive()
	again := s.Step <= r.trained
	for i := range r.stepHooks {
		h := &r.stepHooks[i]
		if again && !h.Replays {
			continue
		}
		if err := h.Step(ctx, s); err != nil {
			if err := r.hookError(ctx, h.Name, "step", err); err != nil {
				return err
			}
		}
	}
	return nil
}

// stepFailed asks Loop.Recover how to continue after a failed step. After a failed execution of
// several steps, it returns to the snapshot, and steps run one by one.
func (r *run) stepFailed(ctx context.Context, b data.Batch, n int, err error) error {
	s := &r.state
	r.sound = false
	if n > 1 {
		err = fmt.Errorf("train steps %d to %d (epoch %d, batches %d to %d), in one execution: %w", s.Step+1, s.Step+int64(n),
			s.Epoch, s.PassBatch, b.Index, err)
	} else {
		err = fmt.Errorf("train step %d (epoch %d, batch %d): %w", s.Step+1, s.Epoch, b.Index, err)
	}
	if r.loop.Recover == nil {
		return err
	}
	event := unstackedEvent
	s.AwaitCheckpoint()
	if n > 1 {
		r.unstack(err)
	} else {
		var ending error
		if event, ending = r.loop.Recover.Decide(ctx, s, err); ending != nil {
			return ending
		}
	}
	return r.goBack(event, err)
}

// maxSkipped is the maximum number of consecutive skipped steps at the lowest loss scale.
const maxSkipped = 100

// checkLoss returns an error if the loss of n steps that ended with batch b is not finite, or
// if too many steps were skipped.
func (r *run) checkLoss(b data.Batch, n int, finite bool) error {
	s := &r.state
	skipped, stuck, scale := r.state.Session.Skipped()
	if !finite && !skipped {
		return &divergedError{Epoch: s.Epoch, Step: s.Step + int64(n), Steps: n, Batch: b.Index, Metric: r.train.names[0],
			Value: r.train.values[0]}
	}
	if !stuck && !skipped {
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
		s.Log.Warn("a train step was skipped: its gradients are not finite, and the loss scale cannot be lowered", "step",
			step, "loss_scale", scale)
	}
	if s.SkippedSteps < maxSkipped && (s.EpochStep+n < s.StepsPerEpoch || s.SkippedSteps < int64(s.StepsPerEpoch)) {
		return nil
	}
	return &divergedError{Epoch: s.Epoch, Step: step, Steps: n, Batch: b.Index, Metric: contract.MetricLossScale,
		Value: scale, Skipped: s.SkippedSteps}
}

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
		return &option.Error{Option: "Loop.LearningRate", Value: rate,
			Reason: fmt.Sprintf("at step %d of epoch %d, expected a finite number of at least 0", s.Step+1, s.EpochsDone+1),
			Fix:    "correct the schedule"}
	}
	if err := s.Session.SetLearningRate(rate); err != nil {
		return fmt.Errorf("setting the learning rate to %v: %w", rate, err)
	}
	r.rate = rate
	return nil
}

func (r *run) fullBatches() int { return r.ds.Len() / r.loop.Batch }

func (r *run) batchesPerPass() int {
	n := r.fullBatches()
	if !r.loop.DropRemainder && r.ds.Len()%r.loop.Batch > 0 {
		n++
	}
	return n
}

func (r *run) validates() bool {
	return r.loop.Validation != nil && r.state.Epoch%max(r.loop.ValidationEvery, 1) == 0
}

func (r *run) validate(ctx context.Context) (Metrics, error) {
	s := &r.state
	e := &evaluation{session: s.Session, ds: r.loop.Validation, batch: r.loop.Batch, metrics: r.validation, finite: true,
		done: r.alive}
	if err := e.run(ctx, r.steady); err != nil {
		return nil, fmt.Errorf("validation of epoch %d, after step %d: %w", s.Epoch, s.Step, err)
	}
	if e.badBatch >= 0 {
		r.sound = false
		return nil, &divergedError{Epoch: s.Epoch, Step: s.Step, Batch: e.badBatch, Metric: r.validation.names[0],
			Value: e.metrics.values[0]}
	}
	return e.metrics.means(e.sums, e.samples), nil
}

func (r *run) record(validation Metrics) error {
	s := &r.state
	trained := r.tally.TrainTime
	record := Record{
		Epoch: s.Epoch, Step: s.Step,
		Metrics:         append(s.Running(), validation...),
		Seconds:         (trained + seconds(r.now().Sub(r.since))).float(),
		CheckpointPause: r.tally.Pause.float(),
		Resets:          r.tally.Resets,
		Events:          r.tally.Events,
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
	// The amounts of memory are unknown if there is no /proc.
	record.Memory, _ = memory.Read()
	record.LiveTensors, record.GPU = r.state.Session.Usage()
	s.History.Records = append(s.History.Records, record)
	s.Record = &s.History.Records[len(s.History.Records)-1]
	s.endEpoch()
	r.tally = tally{}
	return nil
}

// end calls End of the started hooks in reverse order, and unlocks the folders of checkpoints.
// It joins all errors with err.
func (r *run) end(started int, err error) error {
	r.state.Err = err
	errs := []error{err}
	for i := started - 1; i >= 0; i-- {
		if h := &r.hooks[i]; h.End != nil {
			errs = append(errs, r.hookError(r.steady, h.Name, "end", h.End(r.steady, &r.state)))
		}
	}
	for _, c := range r.checkpoints {
		errs = append(errs, c.folder.Lock.Release())
	}
	return join(append(errs, r.lock.Release())...)
}

// join is like errors.Join, but does not wrap a single error.
func join(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func (r *run) over() bool { return r.state.EpochsDone >= r.loop.Epochs || r.finished }

func (r *run) alive() {
	if r.loop.Alive == nil {
		return
	}
	step := int64(0)
	if r.state.Samples > 0 { // is 0 before the first step of this run
		step = r.state.Step
	}
	r.loop.Alive(step)
}

func (r *run) trainTime() seconds {
	if r.phase != training {
		return r.tally.TrainTime
	}
	return r.tally.TrainTime + seconds(r.now().Sub(r.since))
}

// waiting returns the share of the epoch's training time during which steps waited for data.
func (r *run) waiting() float64 {
	if spent := r.trainTime(); spent > 0 {
		// The sums of a checkpoint are rounded, so the quotient may exceed 1.
		return min(max(r.tally.WaitTime.float()/spent.float(), 0), 1)
	}
	return 0
}

func (r *run) interrupted(ctx context.Context) error {
	if err := ended(ctx, r.ranks); err != nil {
		return fmt.Errorf("interrupted in epoch %d, after step %d: %w", r.state.Epoch, r.state.Step, err)
	}
	return nil
}

func isFinite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
