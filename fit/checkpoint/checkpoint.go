// Package checkpoint lists the checkpoints that a training has written to a folder, and defines the
// errors of checkpoints. Package fit writes checkpoints and resumes from them.
//
// A checkpoint is a folder ckpt-<step> with the files of the model (variables.*), the history
// (history.jsonl), the files of hooks, and state.json. state.json has the position of the
// training, and the sizes and checksums of all other files. A checkpoint is written under a
// temporary name, synced file by file, and renamed. Older checkpoints are removed only then, so
// a crash of the process or the machine never leaves fewer good checkpoints than before.
package checkpoint

import "steadyfit/internal/checkpoint"

// ErrLocked means that another run uses the folder. Nothing was trained.
var ErrLocked = checkpoint.ErrLocked

type (
	// Error reports that a checkpoint could not be written, or an old one not removed. It has the
	// Path, the newest Good checkpoint, the Remedy, and the cause Err. No part of the failed
	// checkpoint remains, and the session still has its state. Final is true if the training is
	// complete and has no other error; the result is then on disk only if Good is the checkpoint of
	// the last step.
	Error = checkpoint.Error
	// Info describes a checkpoint on disk: its Path, Step, Epochs, Identity, the time Written, and
	// whether it is the Best. Variables is the prefix for Session.Restore. Err is nil if the
	// checkpoint is intact. Otherwise the checkpoint is damaged, incomplete or of a newer version of
	// this program, or one of its files cannot be read; then only Path and Step are set.
	Info = checkpoint.Info
)

// List returns the checkpoints of a folder, newest first, and verifies their files. A folder
// that does not exist has no checkpoints. List takes no lock, so a run may remove checkpoints
// meanwhile.
func List(dir string) ([]Info, error) { return checkpoint.List(dir) }
