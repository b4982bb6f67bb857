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
// one. They are the same steps. A call ends with an epoch and a pass over the data, before
// the learning rate changes, and where a hook has to be called (Hook.StepEvery); a smaller
// last batch is a step of its own. After a failed call, steps run one by one.
type Stacker interface {
	// StepsPerExecution is the most train steps of a call; 0 and 1 run them one by one.
	StepsPerExecution() int
	// Stackable is the number of train steps, up to n, that the next call can run on batches
	// of this size; 1 if they have to run one by one. It may change.
	Stackable(n, samples int) int
	// Stack takes the batch of step i, from 0, of a call of n steps; 0 begins a new call. It
	// changes nothing in the model. It copies the batch unless the batches of the call can be
	// joined (data.Batch.Join); TrainN reads those in place. A Loop calls TrainN before it
	// asks the dataset for another batch.
	Stack(i, n int, b data.Batch) error
	// TrainN runs the n stacked steps and writes the means of their scalars to out. step is
	// the step of the first, as for Train. On error the state of the model is undefined.
	TrainN(ctx context.Context, step int64, n int, out []float64) error
}

// LossScaler is a Session whose model scales its loss, and skips the update of a step whose
// gradients are not finite; *session.Session is one.
type LossScaler interface {
	// Skipped reports whether the last train step was skipped, or any step of the last call,
	// and later ones have a lower scale. A loss that is NaN or infinite is then no
	// DivergedError, and the step or call is left out of the means of the epoch.
	Skipped() bool
	// Stuck reports whether the last train step was skipped, or any step of the last call,
	// although the scale cannot be lowered. An epoch of skipped steps, or 100 in a row, is
	// then a DivergedError.
	Stuck() (scale float64, stuck bool)
}

// Stateful is a Session with state outside of variables, such as a loss scale;
// *session.Session is one. Checkpoints save it.
type Stateful interface {
	// State returns the state, or nil if there is none.
	State() (json.RawMessage, error)
	// SetState restores it, after Restore.
	SetState(json.RawMessage) error
}

// Accumulator is a Session with running metrics, which are computed from all batches of an
// epoch or an evaluation, as Keras metrics are; *session.Session is one. Records have their
// last value rather than a mean.
type Accumulator interface {
	// RunningMetrics names these metrics, of TrainMetrics and EvaluateMetrics.
	RunningMetrics() []string
	// ResetMetrics resets them, when an epoch or an evaluation begins.
	ResetMetrics(ctx context.Context) error
}

// Finalizer is a Session that sets final weights when a training is complete, such as
// averages over its steps; *session.Session is one. A Loop calls it after the hooks have
// ended, unless RestoreBest has restored weights, as Keras does. Checkpoints have the weights
// before that.
type Finalizer interface {
	Finalize(ctx context.Context) error
}

// lastValues reports for each metric whether records have its last value rather than a mean.
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

// TensorCounter is a Session that counts its native tensors, for Record.LiveTensors.
type TensorCounter interface {
	LiveTensors() int64
}

// GPUMeter is a Session that measures the bytes in use on GPUs, for Record.GPU;
// *session.Session is one. ok is false if they are unknown.
type GPUMeter interface {
	GPUBytes() (bytes int64, ok bool)
}
