package fit

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/session"
)

// Session is the model that a Loop trains; *session.Session is one. A Loop calls it from one
// goroutine at a time. It also uses the following methods of a session that has them:
//   - StepsPerExecution, Stackable, Stack, TrainN: several steps per execution
//   - Skipped: skipped steps of a scaled loss
//   - State, SetState: state other than variables, for checkpoints
//   - Freeze: checkpoints that are written while steps run
//   - RunningMetrics, ResetMetrics: metrics that accumulate over an epoch
//   - Finalize: the final weights of a complete training
//   - CheckVariables: for Loop.ResumeAnyway with another model
//   - Usage: native tensors and GPU memory, for Record
//   - Ranks: training with other processes
type Session interface {
	// TrainMetrics returns the names of the results of a train step, "loss" first.
	TrainMetrics() []string
	// Train runs one train step and writes its results to out, in the order of TrainMetrics.
	// step is the number of earlier train steps; sessions derive random seeds from it. The
	// batch may be reused after Train returns. After an error, the state of the model is
	// undefined unless the error says otherwise.
	Train(ctx context.Context, step int64, b data.Batch, out []float64) error
	// EvaluateMetrics returns the names of the results of an evaluation step, "loss" first; nil
	// if the model has no evaluation signature.
	EvaluateMetrics() []string
	// Evaluate evaluates one batch without changing the weights.
	Evaluate(ctx context.Context, b data.Batch, out []float64) error
	// Save writes the state of the model and its optimizer to files whose names begin with
	// prefix (prefix.index, prefix.data-00000-of-00001).
	Save(ctx context.Context, prefix string) error
	// Restore reads the files that Save wrote.
	Restore(ctx context.Context, prefix string) error
	// SetLearningRate sets the rate of later train steps.
	SetLearningRate(rate float64) error
	// Identity returns the values, by key (model, signature, tensorflow, ...), that a
	// checkpoint must match for this session to resume from it.
	Identity() map[string]string
}

// stacker is a Session that can run several train steps in one execution, with the results of
// single steps. An execution ends at the end of an epoch or a pass over the data, before the
// learning rate changes, and where Hook.StepEvery requires it. A smaller last batch runs alone.
// After a failed execution, steps run one by one.
type stacker interface {
	// StepsPerExecution is the maximum number of train steps per execution; 0 and 1 mean one.
	StepsPerExecution() int
	// Stackable returns the number of train steps, at most n, that the next execution can run
	// on batches of this size. 1 means that steps run one by one. The number may change.
	Stackable(n, samples int) int
	// Stack adds batch i, from 0, to an execution of n steps; batch 0 starts a new execution.
	// Stack does not change the model. It copies the batch unless the batches of the execution
	// are contiguous in memory (data.Batch.Join), in which case TrainN reads them in place. A
	// Loop calls TrainN before it requests another batch from the dataset.
	Stack(i, n int, b data.Batch) error
	// TrainN runs the n stacked steps and writes the means of their results to out.
	TrainN(ctx context.Context, step int64, n int, out []float64) error
}

// lossScaler is a Session whose model scales its loss and skips the update of a step with
// non-finite gradients.
type lossScaler interface {
	// Skipped reports whether a step of the last execution was skipped and the loss scale was
	// lowered. A loss that is NaN or infinite is then not ErrDiverged, and the means of the
	// epoch omit the execution.
	//
	// stuck reports whether a step of the last execution was skipped although the loss scale cannot
	// be lowered from the value scale. After 100 consecutive skipped steps, or an epoch of them, the
	// run ends with ErrDiverged.
	Skipped() (lowered, stuck bool, scale float64)
}

// stateful is a Session with state other than variables, such as a loss scale. Checkpoints
// store that state. SetState is called after Restore.
type stateful interface {
	State() (json.RawMessage, error)
	SetState(json.RawMessage) error
}

// freezer is a Session whose state can be saved while later steps run. Freeze returns nil if only
// Save can write the state.
type freezer interface {
	Freeze(ctx context.Context) (session.Frozen, error)
}

// accumulator is a Session with running metrics, which accumulate over all batches of an epoch
// or an evaluation, like Keras metrics. A Record has the last value of a running metric instead
// of a mean. ResetMetrics is called when an epoch or an evaluation begins.
type accumulator interface {
	RunningMetrics() []string
	ResetMetrics(ctx context.Context) error
}

// finalizer is a Session that sets final weights, such as averages over its steps, when a
// training is complete. A Loop calls Finalize after all hooks have ended. As in Keras, it does
// not do so after RestoreBest has restored weights. Checkpoints have the weights before
// Finalize.
type finalizer interface {
	Finalize(ctx context.Context) error
}

func lastValues(s Session, names []string) []bool {
	last := []string{contract.MetricLossScale, contract.MetricSkippedSteps}
	if a, ok := s.(accumulator); ok {
		last = append(last, a.RunningMetrics()...)
	}
	is := make([]bool, len(names))
	for i, name := range names {
		is[i] = slices.Contains(last, name)
	}
	return is
}

func resetMetrics(ctx context.Context, s Session) error {
	a, ok := s.(accumulator)
	if !ok {
		return nil
	}
	if err := a.ResetMetrics(ctx); err != nil {
		return fmt.Errorf("resetting metrics: %w", err)
	}
	return nil
}

// meter is a Session that counts its native tensors, for Record.LiveTensors, and measures the bytes in
// use on GPUs, for Record.GPU.
type meter interface {
	Usage() (tensors int64, gpu memory.Reading)
}

// usage returns the results of Usage; nil and unknown if the session does not have it.
func usage(s Session) (tensors *int64, gpu memory.Reading) {
	if m, ok := s.(meter); ok {
		n, gpu := m.Usage()
		return &n, gpu
	}
	return nil, gpu
}
