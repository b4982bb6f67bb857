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

// Recovery continues a run after a failed step. After a failed train step, the run returns to a
// snapshot of the session and trains the steps since then again, one by one, on the same
// batches. After a failed validation step, it evaluates the batch again.
//
// Repeated steps do not call hooks again, except hooks that set Replays. After a failed execution
// of several steps, the run returns to the snapshot and continues with single steps, without a call
// of Decide; the event is "unfused". A run that ends while it repeats steps before the newest
// checkpoint writes no checkpoint.
type Recovery struct {
	// Snapshot saves the state of the session. revert restores the state, any number of times, and
	// release frees it.
	Snapshot func(ctx context.Context) (revert func(context.Context) error, release func() error, err error)
	// Every is the number of steps between snapshots; 0 means 100. Each epoch also begins with
	// a snapshot. Only the newest snapshot is held.
	Every int
	// Decide is called after a failed train step or validation step. To try again, it removes
	// the cause of the failure and returns an event for the history. Otherwise it returns the
	// error that ends the run.
	Decide func(ctx context.Context, s *State, failed error) (event string, err error)
	// Save, if not nil, returns state for checkpoints, such as the number of micro-batches.
	// Load, if not nil, gets that state when a run resumes, before the hooks are loaded.
	Save func() (json.RawMessage, error)
	Load func(json.RawMessage) error
}

// snapshotEvery is the default of Recovery.Every.
const snapshotEvery = 100

// errWentBack means that the run returned to a snapshot.
var errWentBack = errors.New("went back")

// replay describes the snapshot and the steps that are trained again.
type replay struct {
	snapshot *snapshot
	// trained is the last step for which hooks were called.
	trained int64
	// rescaled are the changes of RateScale since the snapshot, which repeated steps make
	// again.
	rescaled []rescaling
}

type snapshot struct {
	revert   func(context.Context) error
	release  func() error
	position Position
}

// rescaling is the value of RateScale after a step.
type rescaling struct {
	Step  int64  `json:"step"`
	Scale number `json:"scale"`
}

func (r *run) rescale() {
	for _, c := range r.replay.rescaled {
		if c.Step == r.state.Step {
			r.state.RateScale = float64(c.Scale)
		}
	}
}

// toRescale returns the changes of RateScale after the current step.
func (r *run) toRescale() []rescaling {
	return slices.DeleteFunc(slices.Clone(r.replay.rescaled), func(c rescaling) bool { return c.Step <= r.state.Step })
}

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

// goBack returns to the snapshot. If that succeeds, the error is errWentBack.
func (r *run) goBack(event string, failed error) error {
	s, last := &r.state, r.replay.snapshot
	if err := last.revert(r.steady); err != nil {
		return fmt.Errorf("returning to step %d after %w: %w", last.position.Step, failed, err)
	}
	r.replay.trained = max(r.replay.trained, s.Step)
	s.Position = last.position.clone()
	// The learning rate may be a variable of the model, which the snapshot has restored.
	r.rate, r.sound = math.NaN(), true
	s.Event(event)
	return errWentBack
}
