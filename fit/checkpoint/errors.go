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
	// ErrForeign means that a folder has the name of a checkpoint, but contains none that this
	// version can read.
	ErrForeign = errors.New("not a checkpoint of this program")
	// ErrFuture is an ErrForeign for a checkpoint that a newer version of this program wrote.
	ErrFuture = fmt.Errorf("%w: a newer version wrote it", ErrForeign)
	// ErrLocked is the error that a LockedError matches with errors.Is.
	ErrLocked = errors.New("folder of checkpoints is in use")
)

// LockedError reports a folder of checkpoints that another run uses. errors.Is(err, ErrLocked)
// holds. Nothing was trained, and nothing in the folder was changed.
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
// removed. Earlier good checkpoints still exist, and nothing of the failed one remains. The
// session still has the state that should have been saved.
type Error struct {
	// Path is the folder that could not be written or removed.
	Path string
	// Good is the newest good checkpoint; empty if there is none.
	Good string
	// Final is true at the end of a training that is complete (fit.History.Done) and has no
	// other error. The result of the session is then on disk only if Good is the checkpoint of
	// its last step.
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

// Permanent is an error of saving a state that would occur again in another attempt.
type Permanent struct{ Err error }

func (e *Permanent) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *Permanent) Unwrap() error { return e.Err }

// errNoRoom is the error of makeRoom if it must not remove any checkpoint.
var errNoRoom = errors.New("no checkpoint can be spared")

// remedyFull is the remedy for a full disk.
var remedyFull = remedyFor(syscall.ENOSPC)

// remedyFor returns the remedy for an error of a folder of checkpoints.
func remedyFor(err error) string {
	return files.Remedy(err, "keep fewer checkpoints, remove folders diverged-*")
}

// remedyUnread returns the remedy for a checkpoint that could not be read.
func remedyUnread(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "give this user the right to read it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.EIO):
		return remedyFor(err)
	}
	return "make its files readable"
}
