package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// Reset describes a finished reset.
type Reset struct {
	// Returned is the decrease of the process's anonymous memory. It is negative if the memory
	// grew.
	Returned memory.Reading
	Took     time.Duration
}

// ErrLost means that a reset closed the session and could not load the model again. Checkpoints remain valid. ErrLost
// matches supervise.ErrRetry, so a supervisor resumes from the last checkpoint.
var ErrLost = fmt.Errorf("the session is lost: %w", supervise.ErrRetry)

// Reset gives memory back, and preserves the state of the model. The depth says how much it closes and loads again
// (docs/explanation/recovery.md has the memory that each depth returns to the system):
//   - "restore" writes the variables of the open session. It returns no memory.
//   - "reload" closes the session, returns malloc's free memory to the system, and loads the
//     model again.
//
// After a reset, training gives the same results bit for bit, except for state outside of variables; see Snapshot.
//
// A reset needs memory for a Snapshot, at most one copy of the variables (Snapshot.Bytes).
// A reload also needs memory for a second copy while it writes the variables. There is never
// a second session.
//
// A reload closes the steps made by Prepare. It first checks the model's folder
// (savedmodels.Model.CheckUnchanged) and closes nothing if the check fails. If loading fails
// after the check, the error is ErrLost, and the session is closed.
func (s *Session) Reset(ctx context.Context, depth string) (Reset, error) {
	if err := causeOf(ctx); err != nil {
		return Reset{}, fmt.Errorf("reset: %w", err)
	}
	before, began := anonymous(), time.Now()
	if err := s.reset(ctx, depth); err != nil {
		return Reset{}, fmt.Errorf("reset: %w", err)
	}
	r := Reset{Took: time.Since(began)}
	if after := anonymous(); before.OK && after.OK {
		r.Returned = memory.Known(before.Bytes - after.Bytes)
	}
	return r, nil
}

func (s *Session) reset(ctx context.Context, depth string) (err error) {
	if depth != contract.ResetRestore && depth != contract.ResetReload {
		return fmt.Errorf("a session has no depth %q; expected restore or reload", depth)
	}
	p, err := s.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if depth == contract.ResetRestore {
		return s.Revert(ctx, p)
	}
	if err := s.model.CheckUnchanged(); err != nil {
		return fmt.Errorf("the session is unchanged, because its model could not be loaded again: %w", err)
	}
	if err = s.unload(); err == nil {
		tfbind.TrimMalloc()
		err = s.reload(ctx, p)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w; resume from the last checkpoint", ErrLost, err), s.Close())
	}
	return nil
}

// reload loads the model after unload and restores its state.
func (s *Session) reload(ctx context.Context, to *Snapshot) error {
	if err := s.load(); err != nil {
		return fmt.Errorf("loading %s again: %w", s.model.Dir, err)
	}
	if s.parts > 1 {
		if err := s.prepareMicroBatches(); err != nil {
			return err
		}
	}
	return s.Revert(ctx, to)
}

// ErrOutOfMemory means that a step ran out of memory. Some of the variables may be updated.
var ErrOutOfMemory = tfbind.ErrResourceExhausted

func anonymous() memory.Reading {
	p, err := memory.Read()
	if err != nil {
		return memory.Reading{}
	}
	return p.Anon
}
