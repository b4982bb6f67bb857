package budget

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"steadyfit/fit"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Resets resets the session at intervals. The state is preserved, so results do not change. Resets occur
// between steps, except after the last step, and are recorded in the history (fit.Record).
//
// A failed reset ends the run with its error. Unless the error is session.ErrLost, the session
// still has its state, and a Checkpoint hook saves it.
type Resets struct {
	// Depth is the depth of each reset: one of session.Session.Reset, or "process", which ends the
	// process after a checkpoint, so that a supervisor continues in a new one. Empty means "reload".
	Depth string
	// EverySteps and EveryEpochs are the intervals between resets, counted from the beginning
	// of training; 0 means never.
	EverySteps, EveryEpochs int
	// Restart is called if Depth is "process", after the run was asked to stop. The caller of
	// Loop.Run then starts another process.
	Restart func(reason string)
}

// priority places the hook after hooks that may stop the run, and before hooks that report.
const priority = 400

// Hook returns the resets as a hook of a loop that trains s.
func (p Resets) Hook(s *session.Session) fit.Hook { return p.hook(s) }

func (p Resets) hook(s trainee) fit.Hook {
	p.Depth = cmp.Or(p.Depth, contract.ResetReload)
	r := &resetter{Resets: p, session: s}
	return fit.Hook{
		Name: "reset", StepEvery: cmp.Or(p.EverySteps, fit.AnyStep), Priority: priority,
		Start: r.start, Step: r.step, Epoch: r.epoch, End: func(context.Context, *fit.State) error { return r.failed },
	}
}

// Check returns an *option.Error if the resets cannot work.
func (p Resets) Check() error {
	switch p.Depth {
	case "", contract.ResetNone, contract.ResetRestore, contract.ResetReload:
	case contract.ResetProcess:
		if p.Restart == nil {
			return &option.Error{Option: "Reset.Depth", Value: p.Depth,
				Reason: "it needs a supervisor, which starts the next process", Fix: "run the training under supervise.Run"}
		}
	default:
		return &option.Error{Option: "Reset.Depth", Value: p.Depth, Reason: "expected none, restore, reload or process"}
	}
	for name, value := range map[string]int{"Reset.EverySteps": p.EverySteps, "Reset.EveryEpochs": p.EveryEpochs} {
		if value < 0 {
			return &option.Error{Option: name, Value: value, Reason: "expected at least 0 (0 means never)"}
		}
	}
	return nil
}

type resetter struct {
	Resets
	session trainee
	last    int64 // step of the last reset
	failed  error // error of a reset that left the session unchanged
}

func (r *resetter) start(_ context.Context, s *fit.State) error {
	r.last, r.failed = s.Step, nil
	return r.Check()
}

func (r *resetter) step(ctx context.Context, s *fit.State) error {
	if r.EverySteps > 0 && s.Step%int64(r.EverySteps) == 0 {
		return r.reset(ctx, s, fmt.Sprintf("after %d steps", r.EverySteps))
	}
	return nil
}

func (r *resetter) epoch(ctx context.Context, s *fit.State) error {
	if r.EveryEpochs > 0 && s.Epoch%r.EveryEpochs == 0 && r.last < s.Step {
		return r.reset(ctx, s, fmt.Sprintf("after %d epochs", r.EveryEpochs))
	}
	return nil
}

func (r *resetter) reset(ctx context.Context, s *fit.State, reason string) error {
	if r.Depth == contract.ResetNone || s.LastStep() {
		return nil
	}
	r.last = s.Step
	if r.Depth == contract.ResetProcess {
		s.ResetBy(memory.Reading{}, 0) // the memory that it returns is unknown
		s.Stop("resuming in a new process: " + reason)
		r.Restart(reason)
		return nil
	}
	s.AwaitCheckpoint()                                              // returns its memory, too
	did, err := r.session.Reset(context.WithoutCancel(ctx), r.Depth) // an interrupt must not lose a step
	if err != nil {
		return stopWithCheckpoint(s, err, &r.failed)
	}
	s.ResetBy(did.Returned, did.Took)
	return nil
}

// stopWithCheckpoint stops the run after an error of a reset or a measure. A hook error at this step would
// prevent a checkpoint, so the hook returns atEnd from End instead, unless the session is lost.
func stopWithCheckpoint(s *fit.State, err error, atEnd *error) error {
	if err == nil || errors.Is(err, session.ErrLost) {
		return err
	}
	*atEnd = fmt.Errorf("after step %d: %w; the state after that step is intact, and a Checkpoint hook saves it",
		s.Step, err)
	s.Stop((*atEnd).Error())
	return nil
}
