// Package capability declares what packages of this module use of a session beyond its exported
// methods.
package capability

import (
	"context"
	"encoding/json"
	"errors"

	"steadyfit/data"
	"steadyfit/internal/feature"
	"steadyfit/internal/rank"
	"steadyfit/memory"
	"steadyfit/savedmodels"
)

// Set has the capabilities of a session. Like the session, it is for one goroutine at a time.
type Set interface {
	// StepsPerExecution returns the maximum number of train steps per execution; 0 and 1 mean one.
	StepsPerExecution() int
	// Stackable returns the number of train steps, at most n, that the next execution can run on
	// batches of this size. 1 means that steps run one by one. A later call may return another
	// number.
	Stackable(n, samples int) int
	// Stack adds batch i, from 0, to an execution of n steps; batch 0 starts a new execution, also
	// after an error. All batches have the same size. Stack does not change the model.
	//
	// If the batches are contiguous in memory (data.Batch.Join), TrainN reads them in place. It
	// must then run before the dataset returns the next batch. Other batches are copied.
	Stack(i, n int, b data.Batch) error
	// TrainN runs the n stacked steps and writes the means of their results to out. step is the
	// number of steps before. After an error, any number of the steps may have run.
	TrainN(ctx context.Context, step int64, n int, out []float64) error
	// Uncompiled returns which steps on batches of this size are not compiled, and why, if
	// session.Options.Compiled is set. It is empty if all steps are compiled. most is the largest
	// number of steps per execution, which a pass, an epoch or checkpoints may limit. Shorter
	// executions, such as at the end of an epoch, are ignored.
	Uncompiled(samples, most int) string
	// Skipped reports whether a step of the last execution was skipped because of non-finite
	// gradients, and the loss scale was lowered. The loss of a skipped step has no meaning.
	//
	// stuck reports whether a step was skipped although the loss scale cannot be lowered from the
	// value scale.
	Skipped() (lowered, stuck bool, scale float64)
	// State returns state other than variables, such as a loss scale, for a checkpoint. SetState
	// restores it after Restore; nil restores the initial state.
	State() (json.RawMessage, error)
	SetState(json.RawMessage) error
	// Freeze returns the state for a checkpoint that is written while later steps run; nil if only
	// Save can write it.
	Freeze(ctx context.Context) (Frozen, error)
	// RunningMetrics returns the names of the metrics that accumulate over all batches since
	// ResetMetrics, like Keras metrics. The other results are values of one batch.
	RunningMetrics() []string
	// ResetMetrics begins an epoch or an evaluation.
	ResetMetrics(ctx context.Context) error
	// Finalize sets final weights, such as averages over the steps, when a training is complete.
	Finalize(ctx context.Context) error
	// CheckVariables returns an error if the variables in the files of Save have other names, types
	// or shapes than those of the session. TensorFlow may restore a variable of another shape
	// without an error.
	CheckVariables(prefix string) error
	// Usage returns the number of native tensors in this process, nil if unknown, and the memory of
	// this process on GPUs.
	Usage() (tensors *int64, gpu memory.Reading)
	// Ranks returns this process as one of several ranks; nil if it trains alone.
	Ranks() rank.Group
	// SetCallerRuns changes session.Options.CallerRuns for the following steps. Their results stay
	// the same, bit for bit. ok is false, and nothing changes, with another executor or several
	// devices.
	SetCallerRuns(on bool) (ok bool)
	// NewFeatureStep prepares the computation of features. The session must have the model f.Model.
	// The result must be closed.
	NewFeatureStep(f *savedmodels.Features) (feature.Step, error)
}

// Frozen is the state of a session at the time of Freeze. Another goroutine than that of the session
// may use it.
type Frozen interface {
	// Bytes returns the memory that the state takes if all variables change.
	Bytes() int64
	// Save writes the files of Save. After Close of the session, it returns tfbind.ErrClosed.
	Save(prefix string) error
	// Close frees the state.
	Close() error
}

// Session is a session with capabilities.
type Session interface{ Capabilities() Set }

// Of returns the capabilities of a session. If session does not implement Session, the result is
// None{}.
func Of(session any) Set {
	if s, ok := session.(Session); ok {
		return s.Capabilities()
	}
	return None{}
}

// None has the capabilities of a session that runs steps one by one and has no state but variables.
type None struct{}

var _ Set = None{}

var errNone = errors.New("the session cannot do this")

func (None) StepsPerExecution() int                                     { return 1 }
func (None) Stackable(int, int) int                                     { return 1 }
func (None) Stack(int, int, data.Batch) error                           { return errNone }
func (None) TrainN(context.Context, int64, int, []float64) error        { return errNone }
func (None) Uncompiled(int, int) string                                 { return "" }
func (None) Skipped() (lowered, stuck bool, scale float64)              { return false, false, 0 }
func (None) State() (json.RawMessage, error)                            { return nil, nil }
func (None) SetState(json.RawMessage) error                             { return nil }
func (None) Freeze(context.Context) (Frozen, error)                     { return nil, nil }
func (None) RunningMetrics() []string                                   { return nil }
func (None) ResetMetrics(context.Context) error                         { return nil }
func (None) Finalize(context.Context) error                             { return nil }
func (None) Usage() (*int64, memory.Reading)                            { return nil, memory.Reading{} }
func (None) Ranks() rank.Group                                          { return nil }
func (None) SetCallerRuns(bool) bool                                    { return false }
func (None) NewFeatureStep(*savedmodels.Features) (feature.Step, error) { return nil, errNone }
func (None) CheckVariables(string) error {
	return errors.New("the variables of another model may not fit, and the session cannot compare them")
}
