package checkpoint

import (
	"errors"
	"fmt"

	"steadyfit/internal/files"
)

var (
	// ErrTorn means that a folder is not an intact checkpoint: a file is missing, damaged, or of another
	// program.
	ErrTorn = errors.New("torn checkpoint")
	// ErrLocked means that another run uses a folder of checkpoints.
	ErrLocked = errors.New("the folder of checkpoints is in use")
)

// Error reports that a checkpoint or the history of a training could not be written. Package fit exports it.
type Error struct {
	// Path is the path of the checkpoint, of the folder of checkpoints, or of the history.
	Path string
	// Good is the newest good checkpoint; empty if there is none, or if Path is the history.
	Good string
	// Err is the cause.
	Err error
}

func (e *Error) Error() string {
	good := ""
	if e.Good != "" {
		good = "; " + e.Good + " is good"
	}
	return fmt.Sprintf("writing %s: %v%s; %s", e.Path, e.Err, good, files.Remedy(e.Err))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
