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
	// ErrForeign means that a folder has a checkpoint's name but none that this version can
	// read.
	ErrForeign = errors.New("not a checkpoint of this program")
	// ErrFuture is an ErrForeign that a newer version of this program wrote.
	ErrFuture = fmt.Errorf("%w: it is of a newer version", ErrForeign)
	// ErrLocked is what a LockedError is.
	ErrLocked = errors.New("folder of checkpoints is in use")
)

// LockedError is a folder of checkpoints that another run uses. errors.Is(err, ErrLocked)
// holds. Nothing was trained, and nothing in the folder was changed.
type LockedError struct {
	Folder string
	// Holder is the run that uses it; its zero value if that is unknown.
	Holder Holder
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is in use by %s; wait until it has ended, or stop it, or give this run another folder for its checkpoints", e.Folder, e.Holder)
}

// Is reports that this is ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Error is a checkpoint that could not be written, or an old one that could not be removed.
// Earlier good checkpoints are still there, and nothing is left of the failed one. The
// session has the state that should have been saved.
type Error struct {
	// Path is the folder that could not be written or removed.
	Path string
	// Good is the newest good checkpoint; empty if there is none.
	Good string
	// Final is true at the end of a training that is complete (fit.History.Done) and has no
	// other error: the session has a result that is on disk only if Good has it.
	Final bool
	// Remedy says what to do.
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

// Unwrap is the error of the file system or of the session.
func (e *Error) Unwrap() error { return e.Err }

// Permanent is an error of saving a state that another try cannot cure.
type Permanent struct{ Err error }

func (e *Permanent) Error() string { return e.Err.Error() }

// Unwrap is the error itself.
func (e *Permanent) Unwrap() error { return e.Err }

// errNoRoom is why makeRoom removes nothing.
var errNoRoom = errors.New("no checkpoint can be spared")

// remedyFull is the remedy for a full disk.
var remedyFull = remedyFor(syscall.ENOSPC)

// remedyFor is the remedy for an error of a folder of checkpoints.
func remedyFor(err error) string {
	return files.Remedy(err, "keep fewer checkpoints, remove folders diverged-*")
}

// remedyUnread is the remedy for a checkpoint that could not be read.
func remedyUnread(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "give this user the right to read it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.EIO):
		return remedyFor(err)
	}
	return "make its files readable"
}
