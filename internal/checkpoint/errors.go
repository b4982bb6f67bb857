package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"steadyfit/internal/files"
)

// The public package describes these errors.
var (
	ErrTorn    = errors.New("torn checkpoint")
	ErrForeign = errors.New("not a checkpoint of this program")
	ErrFuture  = fmt.Errorf("%w: a newer version wrote it", ErrForeign)
	ErrLocked  = errors.New("folder of checkpoints is in use")
)

// LockedError reports that another run uses a folder of checkpoints.
type LockedError struct {
	Folder string
	Holder Holder // the zero value if unknown
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is in use by %s; wait until it has ended, or stop it, or give this run another folder for its checkpoints", e.Folder, e.Holder)
}

// Is reports whether target is ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Error reports that a checkpoint could not be written, or an old one not removed.
type Error struct {
	Path   string
	Good   string // empty if there is none
	Final  bool
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

func (e *Error) Unwrap() error { return e.Err }

// Permanent marks an error that another attempt to save the state would repeat.
type Permanent struct{ Err error }

func (e *Permanent) Error() string { return e.Err.Error() }

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
