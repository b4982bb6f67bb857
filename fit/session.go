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
	// Train runs one train step on a batch and writes the step's scalars to out, in the order
	// of TrainMetrics. step is the number of train steps done before this one; sessions derive
	// random seeds from it. The batch may be reused once Train returns. After an error the
	// state of the model is undefined unless the error says otherwise.
	Train(ctx context.Context, step int64, b data.Batch, out []float64) error
	// EvaluateMetrics names the scalars of an evaluation step, "loss" first;
	// nil if the model has no evaluation signature.
	EvaluateMetrics() []string
	// Evaluate runs one batch without changing the weights.
	Evaluate(ctx context.Context, b data.Batch, out []float64) error
	// Save writes the model's whole state, optimizer included, to files whose
	// names begin with prefix (prefix.index, prefix.data-00000-of-00001).
	Save(ctx context.Context, prefix string) error
	// Restore reads the files that Save wrote.
	Restore(ctx context.Context, prefix string) error
	// SetLearningRate sets the rate that the following train steps use.
	SetLearningRate(rate float64) error
	// Identity returns the values, by key (model, signature, tensorflow, ...), that a
	// checkpoint must match to be resumed by this session.
	Identity() map[string]string
}

// Stacker is a Session that can run several train steps in one call; *session.Session is one.
// The results are those of single steps. A call ends at the end of an epoch or a pass over the
// data, before the learning rate changes, and at steps where a hook has to be called
// (Hook.StepEvery). A smaller last batch is a step of its own. After a failed call, steps run
// one by one.
type Stacker interface {
	// StepsPerExecution is the maximum number of train steps of a call; 0 and 1 mean one.
	StepsPerExecution() int
	// Stackable returns the number of train steps, up to n, that the next call can run on
	// batches of this size; 1 means one by one. The number may change.
	Stackable(n, samples int) int
	// Stack adds the batch of step i, from 0, to an execution of n steps; i = 0 starts a new one.
	// It does not change the model. It copies the batch, unless the batches of the call can be
	// joined (data.Batch.Join), in which case TrainN reads them in place. A Loop calls TrainN
	// before it requests another batch from the dataset.
	Stack(i, n int, b data.Batch) error
	// TrainN runs the n stacked steps and writes the means of their scalars to out. step is the
	// number of the first, as in Train. After an error the state of the model is undefined.
	TrainN(ctx context.Context, step int64, n int, out []float64) error
}

// LossScaler is a Session whose model scales its loss and skips the update of a step with
// non-finite gradients; *session.Session is one.
type LossScaler interface {
	// Skipped reports whether the last train step, or any step of the last call, was skipped,
	// and the scale was lowered for the next ones. A loss that is NaN or infinite is then not a
	// DivergedError, and the means of the epoch leave out the step or call.
	Skipped() bool
	// Stuck reports whether the last train step, or any step of the last call, was skipped
	// although the scale cannot be lowered. After an epoch of skipped steps, or 100 in a row,
	// the run ends with a DivergedError.
	Stuck() (scale float64, stuck bool)
}

// Stateful is a Session with state outside of variables, such as a loss scale; *session.Session
// is one. Checkpoints store that state.
type Stateful interface {
	// State returns the state, or nil if there is none.
	State() (json.RawMessage, error)
	// SetState restores the state. It is called after Restore.
	SetState(json.RawMessage) error
}

// Accumulator is a Session with running metrics, which are computed from all batches of an
// epoch or an evaluation, as Keras metrics are; *session.Session is one. Records contain the
// last value of a running metric instead of a mean.
type Accumulator interface {
	// RunningMetrics names the running metrics among TrainMetrics and EvaluateMetrics.
	RunningMetrics() []string
	// ResetMetrics resets the running metrics. It is called when an epoch or an evaluation
	// begins.
	ResetMetrics(ctx context.Context) error
}

// Finalizer is a Session that sets final weights when a training is complete, such as averages
// over its steps; *session.Session is one. A Loop calls it after the hooks have ended, unless
// RestoreBest has restored weights, as in Keras. Checkpoints contain the weights from before
// that call.
type Finalizer interface {
	Finalize(ctx context.Context) error
}

// lastValues reports, for each metric, whether records contain its last value instead of a
// mean.
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
