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

// ErrLost means that a reset closed the session and could not load the model again. The
// snapshot and the checkpoints remain valid: a new session can Revert to the snapshot. ErrLost
// matches supervise.ErrRetry, so a supervisor resumes from the last checkpoint.
var ErrLost = fmt.Errorf("the session is lost: %w", supervise.ErrRetry)

// Reset returns the model to a snapshot, or to its original weights if the snapshot is nil. The depth
// says how much it closes and loads again (docs/explanation/recovery.md has the memory that each
// depth returns to the system):
//   - "none" does nothing.
//   - "restore" writes the variables of the open session, for example to start another trial
//     without loading the model. It returns no memory.
//   - "reload" closes the session, returns malloc's free memory to the system, and loads the
//     model again.
//
// After a reset to a snapshot that was just taken, training gives the same results bit for bit,
// except for state outside of variables; see Snapshot.
//
// A reset needs memory for the snapshot, at most one copy of the variables (Snapshot.Bytes).
// A reload also needs memory for a second copy while it writes the variables. There is never
// a second session.
//
// A reload closes the steps made by Prepare. It first checks the model's folder
// (savedmodels.Model.CheckUnchanged) and closes nothing if the check fails. If loading fails
// after the check, the error is ErrLost, the session is closed, and the snapshot remains valid.
func (s *Session) Reset(ctx context.Context, depth string, to *Snapshot) (Reset, error) {
	if err := causeOf(ctx); err != nil {
		return Reset{}, fmt.Errorf("reset: %w", err)
	}
	before, began := anonymous(), time.Now()
	if err := s.reset(ctx, depth, to); err != nil {
		return Reset{}, fmt.Errorf("reset: %w", err)
	}
	r := Reset{Took: time.Since(began)}
	if after := anonymous(); before.OK && after.OK {
		r.Returned = memory.Known(before.Bytes - after.Bytes)
	}
	return r, nil
}

func (s *Session) reset(ctx context.Context, depth string, to *Snapshot) error {
	switch {
	case depth == contract.ResetNone:
		return nil
	case depth == contract.ResetRestore && to == nil:
		return s.Restore(ctx, ownWeights(s.model))
	case depth == contract.ResetRestore:
		return s.Revert(ctx, to)
	case depth != contract.ResetReload:
		return fmt.Errorf("a session has no depth %q; expected restore or reload", depth)
	case s.closed:
		return tfbind.ErrClosed
	}
	if to != nil {
		if err := to.fits(s.model); err != nil {
			return err
		}
	}
	if err := s.model.CheckUnchanged(); err != nil {
		return fmt.Errorf("the session is unchanged, because its model could not be loaded again: %w", err)
	}
	err := s.unload()
	if err == nil {
		tfbind.TrimMalloc()
		err = s.reload(ctx, to)
	}
	if err != nil {
		return s.lost(to, err)
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
	if to == nil {
		return nil
	}
	return s.Revert(ctx, to)
}

// lost closes the session after a failed reload.
func (s *Session) lost(to *Snapshot, err error) error {
	todo := "resume from the last checkpoint"
	if to != nil {
		todo = "open the model again and revert to the snapshot, which is still valid, or resume from the last checkpoint"
	}
	return errors.Join(fmt.Errorf("%w: %w; %s", ErrLost, err, todo), s.Close())
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
