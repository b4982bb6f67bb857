package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"steadyfit/gpuopts"
	"steadyfit/memory"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// Depth is how far a reset goes.
type Depth string

// The depths. For the memory that each returns to the system, see docs/explanation/recovery.md.
const (
	// ResetNone does nothing.
	ResetNone Depth = "none"
	// ResetRestore writes the variables of the same session: for another fold or trial
	// without loading the model again. With a snapshot that was just taken it changes
	// and returns nothing, and costs a Snapshot and a Revert.
	ResetRestore Depth = "restore"
	// ResetReload closes the session and its graph, returns the free memory of malloc, and
	// loads the model again.
	ResetReload Depth = "reload"
	// ResetProcess ends the process after a checkpoint and continues in another one, which
	// takes a supervisor (package supervise).
	ResetProcess Depth = "process"
)

// Reset describes a reset. The amounts are anonymous memory of the process.
type Reset struct {
	Depth Depth
	// Closed is between closing and loading; unknown for ResetRestore.
	Before, Closed, After memory.Reading
	Took                  time.Duration
}

// Returned is the decrease of memory, negative if it grew; unknown where the amounts are.
func (r Reset) Returned() memory.Reading {
	if !r.Before.OK || !r.After.OK {
		return memory.Reading{}
	}
	return memory.Known(r.Before.Bytes - r.After.Bytes)
}

// ErrLost means that a reset closed the session and could not load the model again. The snapshot and
// the checkpoints have the trained state; a new session can Revert to the snapshot. It is
// a supervise.ErrRetry: another process continues from the last checkpoint.
var ErrLost = fmt.Errorf("the session is lost: %w", supervise.ErrRetry)

// Reset returns the model to the state of a snapshot, or with nil to its original weights,
// at a depth. With a snapshot taken just before, training continues as if there had been
// no reset, bit for bit, except for state outside of variables; see Snapshot.
//
// A reset needs memory for the snapshot, at most one copy of the variables
// (Snapshot.Bytes), until it is closed; ResetReload also for the variables that loading
// makes, until they have the snapshot's values. There are never two sessions at a time.
//
// ResetReload first checks the model's folder (savedmodels.Model.CheckUnchanged); if that
// fails, nothing is closed. Steps made by Prepare are closed with the session. If loading
// fails all the same, the session is closed, and the error is ErrLost; the snapshot stays.
// Loading is not retried: a failure after the check is a lack of memory or a damaged file,
// which a moment does not mend.
func (s *Session) Reset(ctx context.Context, depth Depth, to *Snapshot) (Reset, error) {
	if err := causeOf(ctx); err != nil {
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
		if to != nil {
			if err := to.fits(s.model); err != nil {
				return r, fmt.Errorf("reset: %w", err)
			}
		}
		if err := s.model.CheckUnchanged(); err != nil {
			return r, fmt.Errorf("reset: the session is as it was, since its model could not be loaded again: %w", err)
		}
		if err := s.unload(); err != nil {
			return r, s.lost(to, err)
		}
		tfbind.TrimMalloc()
		r.Closed = anonymous()
		if err := s.reload(ctx, to); err != nil {
			return r, s.lost(to, err)
		}
	default:
		return r, fmt.Errorf("reset: a session cannot do %q; expected %s or %s", depth, ResetRestore, ResetReload)
	}
	r.Took, r.After = time.Since(began), anonymous()
	return r, nil
}

// reload loads the model after unload, and restores its state.
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

// lost closes a session that a reset could not load again. After a concurrent Close, the
// error is tfbind.ErrClosed rather than ErrLost.
func (s *Session) lost(to *Snapshot, err error) error {
	closing := s.Close()
	if errors.Is(err, tfbind.ErrClosed) {
		return errors.Join(fmt.Errorf("reset: %w", err), closing)
	}
	todo := "resume from the last checkpoint"
	if to != nil {
		todo = "open the model again and revert to the snapshot, which is whole, or resume from the last checkpoint"
	}
	return errors.Join(fmt.Errorf("reset: %w: %w; %s", ErrLost, err, todo), closing)
}

// Trim returns the free memory of malloc to the system, as ResetReload does, and
// reports whether malloc can do that; see [tfbind.TrimMalloc].
func Trim() bool { return tfbind.TrimMalloc() }

// MaxMmapThreshold is [tfbind.MaxMmapThreshold].
const MaxMmapThreshold memory.Bytes = tfbind.MaxMmapThreshold

// SetMmapThreshold sets the size from which malloc returns freed blocks to the system; see
// [tfbind.SetMmapThreshold].
func SetMmapThreshold(size memory.Bytes) error { return tfbind.SetMmapThreshold(int(size)) }

// HasPool reports whether TensorFlow takes large blocks on the CPU from its own pool, which
// returns nothing to the system: with oneDNN and without TF_ONEDNN_USE_SYSTEM_ALLOCATOR. It
// is false if no TensorFlow is open.
func HasPool() bool {
	on, _ := tfbind.OneDNN()
	env, _ := tfbind.Environment()
	_, missing, err := gpuopts.With(env, []gpuopts.Variable{{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1"}})
	return on && (err != nil || len(missing) > 0)
}

// ErrOutOfMemory means that TensorFlow had no memory for a step; the variables are in doubt.
var ErrOutOfMemory = tfbind.ErrResourceExhausted

// bringTo sets all variables.
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
