package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"steadyfit/internal/files"
)

var (
	// ErrTorn means that a checkpoint is damaged or incomplete.
	ErrTorn = errors.New("torn checkpoint")
	// ErrForeign means that a folder named like a checkpoint has none that this version can
	// read.
	ErrForeign = errors.New("not a checkpoint of this program")
	// ErrFuture is an ErrForeign for a checkpoint that a newer version of this program wrote.
	ErrFuture = fmt.Errorf("%w: a newer version wrote it", ErrForeign)
	// ErrLocked matches every LockedError with errors.Is.
	ErrLocked = errors.New("folder of checkpoints is in use")
)

// LockedError reports that another run uses a folder of checkpoints. It matches ErrLocked.
// Nothing was trained or changed.
type LockedError struct {
	Folder string
	// Holder is the run that uses the folder; the zero value if unknown.
	Holder Holder
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is in use by %s; wait until it has ended, or stop it, or give this run another folder for its checkpoints", e.Folder, e.Holder)
}

// Is reports whether target is ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Error reports a checkpoint that could not be written, or an old one that could not be
// removed. Earlier good checkpoints are intact, and no part of the failed one remains. The
// session still has its state.
type Error struct {
	// Path is the folder that could not be written or removed.
	Path string
	// Good is the newest good checkpoint; empty if there is none.
	Good string
	// Final is true if the training is complete (fit.History.Done) and has no other error. The
	// result is then on disk only if Good is the checkpoint of the last step.
	Final bool
	// Remedy describes how to fix the problem.
	Remedy string
	Err    error
}

func (e *Error) Error() string {
	good := "this run has no checkpoint yet"
	if e.Good != "" {
		good = e.Good + " is good"
	}
	return fmt.Sprintf("checkpoint %s: %v; %s; %s", e.Path, e.Err, good, e.Remedy)
}

// Unwrap returns the error of the file system or of the session.
func (e *Error) Unwrap() error { return e.Err }

// Permanent marks an error that another attempt to save the state would repeat.
type Permanent struct{ Err error }

func (e *Permanent) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *Permanent) Unwrap() error { return e.Err }

// errNoRoom means that makeRoom must not remove any checkpoint.
var errNoRoom = errors.New("all other checkpoints are needed")

var remedyFull = remedyFor(syscall.ENOSPC)

func remedyFor(err error) string {
	return files.Remedy(err, "keep fewer checkpoints, remove folders diverged-*")
}

func remedyUnread(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "give this user the right to read it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.EIO):
		return remedyFor(err)
	}
	return "make its files readable"
}
