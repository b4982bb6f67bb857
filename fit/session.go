package fit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"steadyfit/data"
	"steadyfit/savedmodels"
)

// Session is the trainable model that a Loop drives; *session.Session is one.
// A Loop calls it from one goroutine at a time.
type Session interface {
	// TrainMetrics names the scalars of a train step, "loss" first.
	TrainMetrics() []string
	// Train runs one train step on a batch and writes the step's scalars to
	// out, in the order of TrainMetrics. step is the number of train steps done
	// before this one; sessions derive random seeds from it. The batch may be
	// reused once Train returns. On error the state of the model is in doubt
	// unless the error says otherwise.
	Train(ctx context.Context, step int64, b data.Batch, out []float64) error
	// EvaluateMetrics names the scalars of an evaluation step, "loss" first;
	// nil if the model has no evaluation signature.
	EvaluateMetrics() []string
	// Evaluate runs one batch without changing what the model has learned.
	Evaluate(ctx context.Context, b data.Batch, out []float64) error
	// Save writes the model's whole state, optimizer included, to files whose
	// names begin with prefix (prefix.index, prefix.data-00000-of-00001).
	Save(ctx context.Context, prefix string) error
	// Restore reads what Save wrote.
	Restore(ctx context.Context, prefix string) error
	// SetLearningRate sets the rate that the following train steps use.
	SetLearningRate(rate float64) error
	// Identity describes what a checkpoint must match to be resumed here, by
	// key (model, signature, tensorflow, ...).
	Identity() map[string]string
}

// Stacker is a Session that can run several train steps in one call; *session.Session is
// one. They are the same steps: a call ends with an epoch and a pass over the data, before
// the learning rate changes, and where a hook has to be called (Hook.StepEvery), and a last
// batch that is smaller is a step of its own. What has to run one by one does, and why
// is in the log. A hook that has to be called after every step (Hook.StepEvery is 0), such as
// a Budget, has all steps run one by one, and so has a call that failed, for the rest of
// the run.
type Stacker interface {
	// StepsPerExecution is the most train steps of a call; 0 and 1 run them one by one.
	StepsPerExecution() int
	// Stackable is how many train steps the next call can run, of up to n on batches of
	// that many samples; 1 if they have to run one by one. It may change.
	Stackable(n, samples int) int
	// Stack takes a batch, to be the one of step i, from 0, of a call of n steps, as
	// many as Stackable said. It changes nothing in the model, whatever its error. 0 begins
	// anew. It copies the batch, unless those of the call can be joined (data.Batch.Join):
	// these TrainN may read where they are. A Loop calls TrainN before it asks the dataset for
	// another batch.
	Stack(i, n int, b data.Batch) error
	// TrainN runs the n steps that were gathered and writes the means of their scalars
	// to out. step is as for Train, of the first of them. On error the state of the model
	// is in doubt, as with Train.
	TrainN(ctx context.Context, step int64, n int, out []float64) error
}

// Skipper is a Session whose model scales its loss, and changes nothing in a step whose
// gradients are not finite; *session.Session is one.
type Skipper interface {
	// Skipped reports whether the last train step changed no weights, and those that
	// follow scale the loss less: then a loss that is NaN or infinite is no
	// DivergedError, and the metrics of that step are not part of the epoch's means.
	// After a call of several steps it is true if any of them was such a step, and a
	// mean loss that is NaN or infinite leaves the whole call out.
	Skipped() bool
	// Stuck reports whether the last train step changed no weights although the loss
	// cannot be scaled less than with scale; after a call of several steps, whether any
	// of them did. After an epoch of nothing but skipped steps, or 100 in a row, that is
	// a DivergedError.
	Stuck() (scale float64, stuck bool)
}

// Stateful is a Session with state that is in no variable, such as that of a loss
// scale; *session.Session is one. Checkpoints have it.
type Stateful interface {
	// State returns the state, or nil if there is none.
	State() (json.RawMessage, error)
	// SetState brings it back, after Restore.
	SetState(json.RawMessage) error
}

// Accumulator is a Session with metrics that are computed from all batches of an epoch or
// an evaluation, as Keras metrics are; *session.Session is one. A Loop resets them when
// either begins, and records have the value that the last batch gave, and not a mean.
type Accumulator interface {
	// RunningMetrics names these metrics, of TrainMetrics and EvaluateMetrics.
	RunningMetrics() []string
	// ResetMetrics has what follows begin with no batches. Training and evaluation have
	// this state in common.
	ResetMetrics(ctx context.Context) error
}

// Finalizer is a Session whose weights get their final values when a training is over,
// such as averages over its steps; *session.Session is one. A Loop calls it after the last
// epoch, after the hooks have ended, unless RestoreBest has restored other weights, as Keras
// does. Checkpoints have the weights before that.
type Finalizer interface {
	Finalize(ctx context.Context) error
}

// lastValues says of each metric whether records have its last value rather than a mean:
// those that say how the session is rather than what a step gave, and running ones.
func lastValues(s Session, names []string) []bool {
	last := []string{savedmodels.MetricLossScale, savedmodels.MetricSkippedSteps}
	if a, ok := s.(Accumulator); ok {
		last = append(last, a.RunningMetrics()...)
	}
	is := make([]bool, len(names))
	for i, name := range names {
		is[i] = slices.Contains(last, name)
	}
	return is
}

// resetMetrics resets the running metrics, if there are any.
func resetMetrics(ctx context.Context, s Session) error {
	a, ok := s.(Accumulator)
	if !ok {
		return nil
	}
	if err := a.ResetMetrics(ctx); err != nil {
		return fmt.Errorf("resetting metrics: %w", err)
	}
	return nil
}
