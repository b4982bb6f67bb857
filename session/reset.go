package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"steadyfit/memory"
	"steadyfit/tfbind"
)

// Depth is how far a reset goes.
type Depth string

// The depths. What each gives back to the system was measured, see
// docs/resilience.md.
const (
	// ResetNone does nothing.
	ResetNone Depth = "none"
	// ResetRestore writes the variables of the same session.
	ResetRestore Depth = "restore"
	// ResetReload closes the session and its graph, has malloc give back what is
	// free, and loads the model anew.
	ResetReload Depth = "reload"
	// ResetProcess ends the process after a checkpoint, and another one goes on. A
	// session cannot do that; see [Supervise].
	ResetProcess Depth = "process"
)

// Reset is what a reset did. The amounts are anonymous memory of the process.
type Reset struct {
	Depth Depth
	// Before and After the reset; Closed is between closing and loading anew,
	// unknown for ResetRestore.
	Before, Closed, After memory.Reading
	Took                  time.Duration
}

// Returned is how much less memory there is than before; it is negative if there is
// more, and unknown where the amounts are.
func (r Reset) Returned() memory.Reading {
	if !r.Before.OK || !r.After.OK {
		return memory.Reading{}
	}
	return memory.Known(r.Before.Bytes - r.After.Bytes)
}

// Reset brings the model to the state of a snapshot, or with nil to the one that it
// was exported with, by way of a depth. With a snapshot that was taken just before,
// training goes on as if there had been no reset, bit for bit.
//
// After ResetReload, steps made by Prepare are closed. If loading anew fails, the
// session is closed; the snapshot is as it was, and can be restored into a session
// that Open makes.
func (s *Session) Reset(ctx context.Context, depth Depth, to *Snapshot) (Reset, error) {
	if err := context.Cause(ctx); err != nil {
		return Reset{}, fmt.Errorf("reset: %w", err)
	}
	r := Reset{Depth: depth, Before: anonymous()}
	began := time.Now()
	switch depth {
	case ResetNone:
	case ResetRestore:
		if err := s.bringTo(ctx, to); err != nil {
			return r, fmt.Errorf("reset: %w", err)
		}
	case ResetReload:
		if to != nil && to.model != s.model.Hash {
			return r, fmt.Errorf("reset: %w: it is of another model", ErrSnapshot)
		}
		if err := s.native.close(); err != nil {
			return r, fmt.Errorf("reset: %w", err)
		}
		tfbind.TrimMalloc()
		r.Closed = anonymous()
		if err := s.load(); err != nil {
			return r, fmt.Errorf("reset: the session is closed, loading %s anew failed: %w", s.model.Dir, err)
		}
		if s.parts > 1 {
			if err := s.prepareParts(); err != nil {
				return r, errors.Join(fmt.Errorf("reset: %w", err), s.Close())
			}
		}
		if to != nil {
			if err := s.Revert(ctx, to); err != nil {
				return r, errors.Join(fmt.Errorf("reset: %w", err), s.Close())
			}
		}
	default:
		return r, fmt.Errorf("reset: a session cannot do %q; expected %s or %s", depth, ResetRestore, ResetReload)
	}
	r.Took, r.After = time.Since(began), anonymous()
	return r, nil
}

// Trim has malloc give back to the system what is free, as ResetReload does, and
// reports whether it could be asked; see [tfbind.TrimMalloc].
func Trim() bool { return tfbind.TrimMalloc() }

// ErrOutOfMemory: TensorFlow had no memory for a step, whose variables are in doubt.
var ErrOutOfMemory = tfbind.ErrResourceExhausted

// bringTo writes all variables.
func (s *Session) bringTo(ctx context.Context, to *Snapshot) error {
	if to != nil {
		return s.Revert(ctx, to)
	}
	return s.Restore(ctx, filepath.Join(s.model.Dir, "variables", "variables"))
}

// anonymous is the anonymous memory of this process.
func anonymous() memory.Reading {
	p, err := memory.Read()
	if err != nil {
		return memory.Reading{}
	}
	return p.Anon
}
