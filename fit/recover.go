package fit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Recovery lets a run go on after a train step that failed, from a state of the
// session that was kept in memory before, and after a batch of the validation that
// failed, which is evaluated again.
//
// The steps between that state and the failed one are trained again, on the same
// batches, one by one; of the hooks, only those with Replays are called for them a second time.
// Where a call of several steps fails (Stacker), the run goes back without asking,
// with the event "unfused", and runs its steps one by one from there.
//
// A run that ends meanwhile writes no checkpoint that is older than its newest.
type Recovery struct {
	// Snapshot saves the present state of the session, between steps. revert restores it,
	// any number of times, and release frees it.
	Snapshot func(ctx context.Context) (revert func(context.Context) error, release func() error, err error)
	// Every is the number of steps from one state that is kept to the next; 0 means
	// 100. One is kept at the beginning of each epoch, too. The one before is let go.
	Every int
	// Decide is asked after a train step or a batch of the validation failed: nil to
	// try again, after changing what made it fail, and a word for the history; or the
	// error that the run ends with.
	Decide func(ctx context.Context, s *State, failed error) (event string, err error)
	// Save returns what is to be remembered across a resume, such as into how many
	// parts batches are split, or nil; it is called while a checkpoint is written. Load
	// gets it when a run resumes from that checkpoint, before the hooks get theirs; it
	// is not called where there is nothing. Both are optional.
	Save func() (json.RawMessage, error)
	Load func(json.RawMessage) error
}

// keepEvery is the default of Recovery.Every.
const keepEvery = 100

// errBack says that a run went back and goes on from there.
var errBack = errors.New("went back")

// kept is a state of the session, and the position that belongs to it.
type kept struct {
	back     func(context.Context) error
	drop     func() error
	position Position
}

// rescaling is a change of the scale of the learning rate, after a step.
type rescaling struct {
	Step  int64  `json:"step"`
	Scale number `json:"scale"`
}

// rescale changes the scale as was done after this step before the run went back.
func (r *run) rescale() {
	for _, c := range r.rescaled {
		if c.Step == r.state.Step {
			r.state.RateScale = float64(c.Scale)
		}
	}
}

// replaying are the changes of scale that are still to be done again.
func (r *run) replaying() []rescaling {
	return slices.DeleteFunc(slices.Clone(r.rescaled), func(c rescaling) bool { return c.Step <= r.state.Step })
}

// keep keeps the state of the session if that is due.
func (r *run) keep() error {
	o, s := r.loop.Recover, &r.state
	every := int64(o.Every)
	if every == 0 {
		every = keepEvery
	}
	if k := r.kept; k != nil && s.Step-k.position.Step < every && (s.EpochStep > 0 || s.Step == k.position.Step) {
		return nil
	}
	back, drop, err := o.Snapshot(r.steady)
	if err != nil {
		return fmt.Errorf("keeping the state before step %d: %w", s.Step+1, err)
	}
	if err := r.dropKept(); err != nil {
		return errors.Join(err, drop())
	}
	r.kept, r.rescaled = &kept{back, drop, s.Position.clone()}, r.replaying()
	return nil
}

func (r *run) dropKept() error {
	k := r.kept
	if k == nil {
		return nil
	}
	r.kept = nil
	return k.drop()
}

// goBack asks what to do about a train step that failed, and goes back. It returns
// errBack if the run goes on.
func (r *run) goBack(ctx context.Context, failed error) error {
	event, err := r.loop.Recover.Decide(ctx, &r.state, failed)
	if err != nil {
		return err
	}
	return r.back(event, failed)
}

// back goes back to the state that is kept, and returns errBack unless that fails.
func (r *run) back(event string, failed error) error {
	s, k := &r.state, r.kept
	if err := k.back(r.steady); err != nil {
		return fmt.Errorf("going back to step %d after %w: %w", k.position.Step, failed, err)
	}
	r.trained = max(r.trained, s.Step)
	s.Position = k.position.clone()
	// A rate that is a variable of the model has gone back, too.
	r.rate, r.sound = math.NaN(), true
	s.Event(event)
	return errBack
}
