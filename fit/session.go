package fit

import (
	"context"
	"encoding/json"
	"errors"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/session"
)

// Session is the model that a Loop trains; *session.Session is one. A Loop calls it from one
// goroutine at a time. Other sessions embed Plain, which implements what most of them lack. A type that
// embeds a *session.Session and replaces Train must also replace TrainN, which runs several steps per
// execution.
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

	// StepsPerExecution returns the maximum number of train steps per execution; 0 and 1 mean one.
	StepsPerExecution() int
	// Stackable returns the number of train steps, at most n, that the next execution can run on
	// batches of this size. 1 means that steps run one by one. A later call may return another
	// number.
	Stackable(n, samples int) int
	// Stack adds batch i, from 0, to an execution of n steps; batch 0 starts a new execution, also
	// after an error. All batches have the same size. Stack copies the batch, and does not change the
	// model.
	Stack(i, n int, b data.Batch) error
	// TrainN runs the n stacked steps and writes the means of their results to out, in the order of
	// TrainMetrics. step is the number of earlier train steps. After an error, any number of the
	// steps may have run.
	TrainN(ctx context.Context, step int64, n int, out []float64) error

	// Skipped reports whether a step of the last execution was skipped and the loss scale was lowered.
	// The loss of a skipped step has no meaning. stuck reports whether a step was skipped although the
	// loss scale cannot be lowered from the value scale.
	Skipped() (lowered, stuck bool, scale float64)
	// State returns the state that Save does not write, such as the loss scale, for a checkpoint.
	// SetState sets it after Restore; nil stands for the initial state.
	State() (json.RawMessage, error)
	SetState(json.RawMessage) error

	// Freeze returns the state for a checkpoint that is written while later steps run; nil if only
	// Save can write it.
	Freeze(ctx context.Context) (session.Frozen, error)
	// CheckVariables returns an error if Restore cannot set the variables of the session from the
	// files with a prefix, because they have other names, types or shapes. A run that resumes with
	// another model (Loop.ResumeAnyway) needs it.
	CheckVariables(prefix string) error

	// RunningMetrics returns the names of the results that accumulate over all batches since
	// ResetMetrics, like Keras metrics. The other results are values of one batch.
	RunningMetrics() []string
	// ResetMetrics begins an epoch or an evaluation.
	ResetMetrics(ctx context.Context) error

	// Finalize sets the final weights, such as averages over the steps, when a training is complete.
	Finalize(ctx context.Context) error

	// Usage returns the number of native tensors in this process, nil if unknown, and the memory of
	// this process on GPUs.
	Usage() (tensors *int64, gpu memory.Reading)
	// Ranks returns the group of processes ("ranks") that train the model together; nil if this
	// process trains alone.
	Ranks() contract.RankGroup
}

// Plain is embedded in a Session that runs steps one by one and has no state but variables.
type Plain struct{ plain }

// plain has the methods of Plain.
type plain struct{}

func (plain) StepsPerExecution() int                              { return 1 }
func (plain) Stackable(int, int) int                              { return 1 }
func (plain) Skipped() (lowered, stuck bool, scale float64)       { return false, false, 0 }
func (plain) State() (json.RawMessage, error)                     { return nil, nil }
func (plain) SetState(json.RawMessage) error                      { return nil }
func (plain) Freeze(context.Context) (session.Frozen, error)      { return nil, nil }
func (plain) RunningMetrics() []string                            { return nil }
func (plain) ResetMetrics(context.Context) error                  { return nil }
func (plain) Finalize(context.Context) error                      { return nil }
func (plain) Usage() (*int64, memory.Reading)                     { return nil, memory.Reading{} }
func (plain) Ranks() contract.RankGroup                           { return nil }
func (plain) Stack(int, int, data.Batch) error                    { return errPlain }
func (plain) TrainN(context.Context, int64, int, []float64) error { return errPlain }
func (plain) CheckVariables(string) error {
	return errors.New("the model is another one, and the session cannot compare its variables with the saved ones")
}

var errPlain = errors.New("the session cannot run several steps per execution")
