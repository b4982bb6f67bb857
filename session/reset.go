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

// Depth is how much a reset closes and loads again.
type Depth string

// The depths of a reset. docs/explanation/recovery.md has the memory that each returns to the
// system.
const (
	// ResetNone does nothing.
	ResetNone Depth = "none"
	// ResetRestore writes the variables of the same session, so that another fold or trial
	// does not load the model again. Right after taking the snapshot it changes nothing and
	// returns no memory; it costs a Snapshot and a Revert.
	ResetRestore Depth = "restore"
	// ResetReload closes the session and its graph, returns malloc's free memory to the
	// system, and loads the model again.
	ResetReload Depth = "reload"
	// ResetProcess ends the process after a checkpoint and continues in a new process. It
	// needs a supervisor (package supervise).
	ResetProcess Depth = "process"
)

// Reset describes a reset. The amounts are the anonymous memory of the process.
type Reset struct {
	Depth Depth
	// Closed is the amount between closing and loading; it is unknown for ResetRestore.
	Before, Closed, After memory.Reading
	Took                  time.Duration
}

// Returned returns the decrease of memory, which is negative if it grew, and unknown if an
// amount is unknown.
func (r Reset) Returned() memory.Reading {
	if !r.Before.OK || !r.After.OK {
		return memory.Reading{}
	}
	return memory.Known(r.Before.Bytes - r.After.Bytes)
}

// ErrLost means that a reset closed the session and could not load the model again. The
// snapshot and the checkpoints still have the trained state, and a new session can Revert to
// the snapshot. ErrLost is a supervise.ErrRetry, so a supervisor continues from the last
// checkpoint in a new process.
var ErrLost = fmt.Errorf("the session is lost: %w", supervise.ErrRetry)

// Reset returns the model to the state of a snapshot, or with nil to its original weights, at
// a given depth. With a snapshot taken just before, training continues bit for bit as if there
// had been no reset, except for state outside of variables; see Snapshot.
//
// A reset needs memory for the snapshot until it is closed, at most one copy of the variables
// (Snapshot.Bytes). ResetReload also needs memory for the newly loaded variables until they
// have the snapshot's values. There are never two sessions at a time.
//
// ResetReload first checks the model's folder (savedmodels.Model.CheckUnchanged); if that
// fails, nothing is closed. Steps made by Prepare are closed with the session. If loading
// fails after that, the session is closed, the error is ErrLost, and the snapshot stays valid.
// Reset does not try to load again: after the check, a failure means a lack of memory or a
// damaged file, which a retry does not fix.
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
			return r, fmt.Errorf("reset: the session is unchanged, because its model could not be loaded again: %w", err)
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
		return r, fmt.Errorf("reset: a session has no depth %q; expected %s or %s", depth, ResetRestore, ResetReload)
	}
	r.Took, r.After = time.Since(began), anonymous()
	return r, nil
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

// lost closes a session that a reset could not load again. After a concurrent Close, the error
// is tfbind.ErrClosed instead of ErrLost.
func (s *Session) lost(to *Snapshot, err error) error {
	closing := s.Close()
	if errors.Is(err, tfbind.ErrClosed) {
		return errors.Join(fmt.Errorf("reset: %w", err), closing)
	}
	todo := "resume from the last checkpoint"
	if to != nil {
		todo = "open the model again and revert to the snapshot, which is still valid, or resume from the last checkpoint"
	}
	return errors.Join(fmt.Errorf("reset: %w: %w; %s", ErrLost, err, todo), closing)
}

// Trim returns malloc's free memory to the system, as ResetReload does, and reports whether
// malloc supports it; see [tfbind.TrimMalloc].
func Trim() bool { return tfbind.TrimMalloc() }

// MaxMmapThreshold is [tfbind.MaxMmapThreshold].
const MaxMmapThreshold memory.Bytes = tfbind.MaxMmapThreshold

// SetMmapThreshold sets the size from which malloc returns freed blocks to the system; see
// [tfbind.SetMmapThreshold].
func SetMmapThreshold(size memory.Bytes) error { return tfbind.SetMmapThreshold(int(size)) }

// HasPool reports whether TensorFlow allocates large blocks on the CPU from its own pool,
// which returns nothing to the system. It does so with oneDNN and without
// TF_ONEDNN_USE_SYSTEM_ALLOCATOR. HasPool is false if TensorFlow is not open.
func HasPool() bool {
	on, _ := tfbind.OneDNN()
	env, _ := tfbind.Environment()
	_, missing, err := gpuopts.With(env, []gpuopts.Variable{{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1"}})
	return on && (err != nil || len(missing) > 0)
}

// ErrOutOfMemory means that TensorFlow had no memory for a step. The variables may be partly
// updated.
var ErrOutOfMemory = tfbind.ErrResourceExhausted

// bringTo sets all variables to those of a snapshot, or to the original weights.
func (s *Session) bringTo(ctx context.Context, to *Snapshot) error {
	if to != nil {
		return s.Revert(ctx, to)
	}
	return s.Restore(ctx, filepath.Join(s.model.Dir, "variables", "variables"))
}

// anonymous returns the anonymous memory of this process.
func anonymous() memory.Reading {
	p, err := memory.Read()
	if err != nil {
		return memory.Reading{}
	}
	return p.Anon
}
