package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Recovery continues a run after a failed step. After a failed train step, the run returns to a
// snapshot of the session and trains the steps since then again, one by one, on the same batches.
//
// Repeated steps do not call hooks again, except hooks that set Replays. After a failed execution
// of several steps, the run returns to the snapshot and continues with single steps, without a call
// of Decide; the event is "unstacked". A run that ends while it repeats steps writes no checkpoint.
type Recovery struct {
	// Snapshot saves the state of the session. revert restores the state, any number of times, and
	// release frees it.
	Snapshot func(ctx context.Context) (revert func(context.Context) error, release func() error, err error)
	// Every is the number of steps between snapshots; 0 means 100. Each epoch also begins with
	// a snapshot. Only the newest snapshot is held.
	Every int
	// Decide is called after a failed train step. To try again, it removes
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

type snapshot struct {
	revert   func(context.Context) error
	release  func() error
	position Position
}

func (r *run) takeSnapshot() error {
	o, s := r.loop.Recover, &r.state
	every := int64(cmp.Or(o.Every, snapshotEvery))
	if last := r.snapshot; last != nil {
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
	r.snapshot = &snapshot{revert, release, s.Position.clone()}
	return nil
}

func (r *run) releaseSnapshot() error {
	last := r.snapshot
	if last == nil {
		return nil
	}
	r.snapshot = nil
	return last.release()
}

// goBack returns to the snapshot. If that succeeds, the error is errWentBack.
func (r *run) goBack(event string, failed error) error {
	s, last := &r.state, r.snapshot
	if err := last.revert(r.steady); err != nil {
		return fmt.Errorf("returning to step %d after %w: %w", last.position.Step, failed, err)
	}
	r.trained = max(r.trained, s.Step)
	s.Position = last.position.clone()
	// The learning rate may be a variable of the model, which the snapshot has restored.
	r.rate, r.sound = math.NaN(), true
	s.Event(event)
	return errWentBack
}
