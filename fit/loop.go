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
	"steadyfit/option"
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
	// ResumeAnyway resumes although the checkpoint belongs to another run, where
	// that is possible, with a warning for each difference and the event
	// "resumed_anyway"; see MismatchError.
	ResumeAnyway bool

	// Recover lets the run go on after steps that fail; nil ends it.
	Recover *Recovery

	// Alive is called after each train step, each batch that was evaluated, each that
	// waits for others (Stacker), and each that was read to identify the data, with
	// the number of train steps done, those before a resume included, or 0 before this
	// run has done one; supervise.Worker.Alive is made for it. It should cost little.
	// nil is not to call it.
	Alive func(step int64)

	// Log gets warnings, such as of a damaged checkpoint that is skipped, and
	// where a run resumes; nil discards them.
	Log *slog.Logger

	hooks []Hook
	// now is the clock; nil is the system's.
	now func() time.Time
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
	if err = r.applyRate(); err == nil {
		started, err = r.start(ctx)
	}
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

// maxBatch is the most samples of a batch.
const maxBatch = math.MaxInt32

// check validates the options, and returns the number of batches of a pass over the dataset.
func (l *Loop) check(ds data.Dataset) (batchesPerPass int, err error) {
	if l.Session == nil {
		return 0, &option.Error{Option: "Loop.Session", Reason: "there is none", Fix: "set it to an open session"}
	}
	if ds == nil {
		return 0, &option.Error{Option: "dataset", Reason: "there is none", Fix: "give Run a dataset"}
	}
	for _, o := range []struct {
		name       string
		value, min int
	}{
		{"Batch", l.Batch, 1},
		{"Epochs", l.Epochs, 1},
		{"InitialEpoch", l.InitialEpoch, 0},
		{"StepsPerEpoch", l.StepsPerEpoch, 0},
		{"ValidationBatch", l.ValidationBatch, 0},
		{"ValidationEvery", l.ValidationEvery, 0},
	} {
		if o.value < o.min {
			return 0, &option.Error{Option: "Loop." + o.name, Value: o.value, Reason: fmt.Sprintf("expected at least %d", o.min)}
		}
	}
	if l.Batch > maxBatch {
		return 0, &option.Error{Option: "Loop.Batch", Value: l.Batch, Reason: fmt.Sprintf("expected at most %d", maxBatch)}
	}
	if l.InitialEpoch >= l.Epochs {
		return 0, &option.Error{Option: "Loop.InitialEpoch", Value: l.InitialEpoch, Reason: fmt.Sprintf("nothing is left to train of %d epochs", l.Epochs), Fix: "raise {Loop.Epochs}, which counts from the beginning of training"}
	}
	n := ds.Len()
	if n < 1 {
		return 0, &option.Error{Option: "dataset", Reason: ds.Name() + " has no samples", Fix: "give Run a dataset with at least one"}
	}
	batchesPerPass = n / l.Batch
	if !l.DropRemainder && n%l.Batch > 0 {
		batchesPerPass++
	}
	if batchesPerPass == 0 {
		return 0, &option.Error{Option: "Loop.DropRemainder", Reason: fmt.Sprintf("%s has %d samples, less than one batch of %d, so no batch remains", ds.Name(), n, l.Batch), Fix: "lower {Loop.Batch}, or keep the remainder"}
	}
	if most := math.MaxInt64 / int64(l.Epochs); int64(l.StepsPerEpoch) > most {
		return 0, &option.Error{Option: "Loop.StepsPerEpoch", Value: l.StepsPerEpoch, Reason: fmt.Sprintf("expected at most %d with %d epochs", most, l.Epochs)}
	}
	return batchesPerPass, nil
}

// newRun checks the options, the hooks and the metrics, and places the run at InitialEpoch.
func newRun(l *Loop, ds data.Dataset) (*run, error) {
	batchesPerPass, err := l.check(ds)
	if err != nil {
		return nil, err
	}
	hooks, err := checkHooks(l.hooks)
	if err != nil {
		return nil, err
	}

	steps := cmp.Or(l.StepsPerEpoch, batchesPerPass)
	r := &run{
		loop: l, ds: ds, hooks: hooks, log: l.Log, now: l.now,
		batchesPerPass: batchesPerPass, fullBatches: ds.Len() / l.Batch, rate: math.NaN(), sound: true,
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.skipper, _ = l.Session.(Skipper)
	for _, h := range hooks {
		if h.Step != nil {
			r.stepHooks = append(r.stepHooks, h)
			if h.Replays {
				r.replayHooks = append(r.replayHooks, h)
			}
		}
	}
	outputs := l.Session.TrainMetrics()
	names, err := metricNames(outputs, "", "train")
	if err != nil {
		return nil, err
	}
	r.train, r.available = newScalars(l.Session, outputs, names), slices.Clone(names)
	if l.Validation != nil {
		if err := r.prepareValidation(); err != nil {
			return nil, err
		}
	}
	step := int64(l.InitialEpoch) * int64(steps)
	r.state = State{
		Session: l.Session, Epoch: l.InitialEpoch + 1, Epochs: l.Epochs, StepsPerEpoch: steps,
		Values: r.train.values, History: &History{}, Log: r.log, run: r,
		Position: Position{
			Step: step, EpochsDone: l.InitialEpoch, Pass: int(step / int64(batchesPerPass)), PassBatch: int(step % int64(batchesPerPass)),
			RateScale: 1, sums: make([]float64, len(names)),
		},
	}
	return r, nil
}

func (r *run) prepareValidation() error {
	v := r.loop.Validation
	outputs := r.loop.Session.EvaluateMetrics()
	if len(outputs) == 0 {
		return &option.Error{Option: "Loop.Validation", Reason: "the model has no evaluate signature", Fix: "export the model with one, or train without validation"}
	}
	if v.Len() < 1 {
		return &option.Error{Option: "Loop.Validation", Reason: v.Name() + " has no samples", Fix: "use a dataset with at least one"}
	}
	names, err := metricNames(outputs, validationPrefix, "evaluate")
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(r.train.names, name) {
			return &option.Error{Option: "Loop.Validation", Reason: name + " is a metric of the train signature already", Fix: "give that output of the model a name that does not begin with " + validationPrefix}
		}
	}
	r.validation, r.available = newScalars(r.loop.Session, outputs, names), append(r.available, names...)
	return nil
}
