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

// The depths. What each gives back to the system was measured, see
// docs/explanation/recovery.md.
const (
	// ResetNone does nothing.
	ResetNone Depth = "none"
	// ResetRestore writes the variables of the same session. It is for going back: to
	// the state that the model was exported with, as for another fold or another trial
	// without loading the model again. With a snapshot that was just taken it writes
	// the values that are there already, and so changes nothing and returns nothing;
	// budget.ResetPolicy does that, and what it costs is what a Snapshot and a Revert do.
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

// ErrLost: a reset has closed the session and could not load the model anew. What was
// trained is in the snapshot, which a session that Open makes can Revert to, and in
// the checkpoints. It is a supervise.ErrRetry: under supervision another process goes on from the
// last checkpoint.
var ErrLost = fmt.Errorf("the session is lost: %w", supervise.ErrRetry)

// Reset brings the model to the state of a snapshot, or with nil to the weights in its
// folder, those that it was exported with, by way of a depth. With a snapshot that was
// taken just before, training goes on as if there had been no reset, bit for bit, as
// far as its state is in variables; see Snapshot for what is not.
//
// A reset needs memory beside the session: the snapshot, which comes to at most one copy
// of the variables (Snapshot.Bytes), until it is closed; and for ResetReload another one,
// that of the variables that loading makes, until they have the snapshot's values. It
// never has two sessions at a time.
//
// ResetReload first looks whether the model's folder is there, can be read, and has the
// program that was opened and files of weights as long as they should be; if not, nothing is closed, and the error says why
// (savedmodels.ErrChanged for another program). After it, steps made by Prepare are
// closed. If loading anew fails all the same, the session is closed, and the error is
// ErrLost; the snapshot is as it was. It is not tried a second time here: what fails
// right after the folder was found good is memory, a file system that went away, or a
// file with other bytes, none of which mends because one waits a moment.
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

// reload is what comes after unload.
func (s *Session) reload(ctx context.Context, to *Snapshot) error {
	if err := s.load(); err != nil {
		return fmt.Errorf("loading %s anew: %w", s.model.Dir, err)
	}
	if s.parts > 1 {
		if err := s.prepareParts(); err != nil {
			return err
		}
	}
	if to == nil {
		return nil
	}
	return s.Revert(ctx, to)
}

// lost closes a session that a reset could not make anew. Where Close came in between,
// that is all there is to say.
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

// Trim has malloc give back to the system what is free, as ResetReload does, and
// reports whether it could be asked; see [tfbind.TrimMalloc].
func Trim() bool { return tfbind.TrimMalloc() }

// MaxMmapThreshold is [tfbind.MaxMmapThreshold].
const MaxMmapThreshold memory.Bytes = tfbind.MaxMmapThreshold

// SetMmapThreshold sets the size from which malloc returns a block to the system as soon
// as it is freed; see [tfbind.SetMmapThreshold].
func SetMmapThreshold(size memory.Bytes) error { return tfbind.SetMmapThreshold(int(size)) }

// HasPool reports whether TensorFlow takes large blocks on the CPU from a pool of its own,
// which returns nothing to the system: with oneDNN, unless the environment has
// TF_ONEDNN_USE_SYSTEM_ALLOCATOR. It is false if no TensorFlow is open.
func HasPool() bool {
	on, _ := tfbind.OneDNN()
	env, _ := tfbind.Environment()
	_, missing, err := gpuopts.With(env, []gpuopts.Variable{{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1"}})
	return on && (err != nil || len(missing) > 0)
}

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
