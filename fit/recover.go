package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Recovery lets a run continue after a failed train step, from an earlier snapshot of the
// session, and after a failed validation batch, which is evaluated again.
//
// The steps since the snapshot are trained again on the same batches, one by one. Hooks that
// were already called for a step are not called again, except those with Replays. A failed call
// of several steps (Stacker) returns to the snapshot without a call of Decide, with the event
// "unfused", and the run continues with single steps. A run that ends before it reaches the
// newest checkpoint again writes no checkpoint.
type Recovery struct {
	// Snapshot saves the current state of the session, between steps. revert restores that
	// state, any number of times, and release frees it.
	Snapshot func(ctx context.Context) (revert func(context.Context) error, release func() error, err error)
	// Every is the number of steps between snapshots; 0 means 100. Each epoch also begins with
	// a snapshot. Only the last snapshot is held.
	Every int
	// Decide is called after a failed train step or validation batch. To try again, it removes
	// the cause of the failure and returns an event for the history. Otherwise it returns the
	// error that ends the run.
	Decide func(ctx context.Context, s *State, failed error) (event string, err error)
	// Save returns the state for a checkpoint, such as the number of micro-batches, or nil.
	// Load gets it when a run resumes, before the hooks. Both are optional.
	Save func() (json.RawMessage, error)
	Load func(json.RawMessage) error
}

// snapshotEvery is the default of Recovery.Every.
const snapshotEvery = 100

// errWentBack means that the run returned to the snapshot and continues from there.
var errWentBack = errors.New("went back")

// replay is the state for returning to a snapshot and training steps again.
type replay struct {
	snapshot *snapshot
	// trained is the last step for which hooks were called.
	trained int64
	// rescaled are the changes of RateScale since the snapshot. Steps that are trained again
	// repeat them.
	rescaled []rescaling
}

// snapshot is a state of the session and its position.
type snapshot struct {
	revert   func(context.Context) error
	release  func() error
	position Position
}

// rescaling is a change of Position.RateScale after a step.
type rescaling struct {
	Step  int64  `json:"step"`
	Scale number `json:"scale"`
}

// rescale repeats the change of the scale that was made after this step.
func (r *run) rescale() {
	for _, c := range r.replay.rescaled {
		if c.Step == r.state.Step {
			r.state.RateScale = float64(c.Scale)
		}
	}
}

// toRescale returns the changes of the scale after later steps.
func (r *run) toRescale() []rescaling {
	return slices.DeleteFunc(slices.Clone(r.replay.rescaled), func(c rescaling) bool { return c.Step <= r.state.Step })
}

// takeSnapshot takes a snapshot if one is due, and releases the previous one.
func (r *run) takeSnapshot() error {
	o, s := r.loop.Recover, &r.state
	every := int64(cmp.Or(o.Every, snapshotEvery))
	if last := r.replay.snapshot; last != nil {
		if since := s.Step - last.position.Step; since < every && (s.EpochStep > 0 || since == 0) {
			return nil
		}
	}
	revert, release, err := o.Snapshot(r.steady)
	if err != nil {
		return fmt.Errorf("taking a snapshot before step %d: %w", s.Step+1, err)
	}
	if err := r.releaseSnapshot(); err != nil {
		return errors.Join(err, release())
	}
	r.replay.snapshot, r.replay.rescaled = &snapshot{revert, release, s.Position.clone()}, r.toRescale()
	return nil
}

func (r *run) releaseSnapshot() error {
	last := r.replay.snapshot
	if last == nil {
		return nil
	}
	r.replay.snapshot = nil
	return last.release()
}

// goBack reverts to the snapshot and returns errWentBack, or the error of reverting.
func (r *run) goBack(event string, failed error) error {
	s, last := &r.state, r.replay.snapshot
	if err := last.revert(r.steady); err != nil {
		return fmt.Errorf("going back to step %d after %w: %w", last.position.Step, failed, err)
	}
	r.replay.trained = max(r.replay.trained, s.Step)
	s.Position = last.position.clone()
	// Reverting also restores a rate that is a variable of the model.
	r.rate, r.sound = math.NaN(), true
	s.Event(event)
	return errWentBack
}
