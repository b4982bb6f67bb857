package fit

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"steadyfit/internal/files"
	"steadyfit/option"
)

// Errors that a caller may want to tell apart, with errors.Is.
var (
	// ErrDiverged is what a DivergedError is.
	ErrDiverged = errors.New("training diverged")
	// ErrTorn means that a checkpoint is damaged or incomplete.
	ErrTorn = errors.New("torn checkpoint")
	// ErrForeign means that a folder has a checkpoint's name but holds none
	// that this version can read.
	ErrForeign = errors.New("not a checkpoint of this program")
	// ErrFuture is an ErrForeign that a newer version of this program wrote.
	ErrFuture = fmt.Errorf("%w: it is of a newer version", ErrForeign)
	// ErrLocked is what a LockedError is.
	ErrLocked = errors.New("folder of checkpoints is in use")
)

// DivergedError is a loss that is NaN or infinite, or gradients that are so whatever the
// loss is scaled with, so that nothing is trained. errors.Is(err, ErrDiverged) holds. The state of the session is not usable; checkpoints from before are.
type DivergedError struct {
	// Epoch is the epoch in which it happened, from 1.
	Epoch int
	// Step is the train step that gave the value, counted from 1; for a
	// validation, the number of train steps done.
	Step int64
	// Steps is how many train steps ran in one call, of which Step is the last one and
	// Value the mean: any of them may have given it. 0 and 1 are one.
	Steps int
	// Batch is the batch that gave the value: its number in the pass over the
	// data, from 0.
	Batch int
	// Metric is "loss" or "val_loss", or "loss_scale" for gradients.
	Metric string
	// Value is NaN, +Inf or -Inf; of "loss_scale", the scale that cannot be lowered.
	Value float64
	// Skipped is how many train steps in a row changed nothing because of their gradients.
	// It is 0 unless Metric is "loss_scale". Of a call of several steps all count.
	Skipped int64
}

func (e *DivergedError) Error() string {
	where := fmt.Sprintf("at step %d (epoch %d, batch %d of the pass, from 0)", e.Step, e.Epoch, e.Batch)
	if e.Steps > 1 {
		where = fmt.Sprintf("in steps %d to %d, which ran in one call (epoch %d, batches %d to %d of the pass, from 0)", e.Step-int64(e.Steps)+1, e.Step, e.Epoch, e.Batch-e.Steps+1, e.Batch)
	}
	if strings.HasPrefix(e.Metric, validationPrefix) {
		where = fmt.Sprintf("after step %d (epoch %d, batch %d of the validation data, from 0)", e.Step, e.Epoch, e.Batch)
	}
	if e.Skipped > 0 {
		return fmt.Sprintf("training diverged: the gradients are not finite at loss scale %v, which cannot be lowered: the last %d train steps were skipped, and changed nothing, as %s; lower a fixed loss scale, or look for NaN, infinite or very large values in the data and the weights",
			e.Value, e.Skipped, where)
	}
	return fmt.Sprintf("training diverged: %s is %v %s; lower the learning rate, or look for NaN, infinite or very large values there",
		e.Metric, e.Value, where)
}

// Is reports that this is ErrDiverged.
func (e *DivergedError) Is(target error) bool { return target == ErrDiverged }

// HookError is an error of a hook; it ends the run.
type HookError struct {
	// Hook is the name of the hook.
	Hook string
	// Phase is when it was called: "load", "start", "step", "epoch", "end".
	Phase string
	Err   error
}

func (e *HookError) Error() string {
	return fmt.Sprintf("%s at %s: %v", e.Hook, e.Phase, e.Err)
}

// Unwrap is the hook's own error.
func (e *HookError) Unwrap() error { return e.Err }

// LockedError is a folder of checkpoints that another run uses. errors.Is(err,
// ErrLocked) holds. Nothing was trained, and nothing in the folder was changed.
type LockedError struct {
	Folder string
	// Holder is the run that uses it; its zero value if that has not said.
	Holder Holder
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is in use by %s; wait until it has ended, or stop it, or give this run another folder for its checkpoints", e.Folder, e.Holder)
}

// Is reports that this is ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// CheckpointError is a checkpoint that could not be written, or an old one that
// could not be removed. Checkpoints that were good before are still there, and
// nothing is left of the one that failed. The session is not affected: it has
// the state that should have been saved.
type CheckpointError struct {
	// Path is the folder that could not be written or removed.
	Path string
	// Good is the newest good checkpoint; empty if there is none.
	Good string
	// Final is true if it happened at the end of a training that nothing else is wrong
	// with and that is over (History.Done): the session has its result, which is not
	// on disk unless Good has it. Save it elsewhere.
	Final bool
	// Remedy says what to do.
	Remedy string
	Err    error
}

func (e *CheckpointError) Error() string {
	good := "this run has no checkpoint yet"
	if e.Good != "" {
		good = e.Good + " is good"
	}
	return fmt.Sprintf("checkpoint %s: %v; %s; %s", e.Path, e.Err, good, e.Remedy)
}

// Unwrap is the error of the file system or of the session.
func (e *CheckpointError) Unwrap() error { return e.Err }

// moreRoom is how to make some in a folder of checkpoints.
const moreRoom = "keep fewer checkpoints, remove folders diverged-*"

// remedyFull says what to do about a full disk.
var remedyFull = remedyFor(syscall.ENOSPC)

// remedyFor says what to do about an error of a folder of checkpoints.
func remedyFor(err error) string { return files.Remedy(err, moreRoom) }

// MismatchError is a checkpoint of another run: resuming it would not continue
// that run. Data is compared by its content, not by its name or path, so files
// may move; that of the training data in the order of the first pass.
type MismatchError struct {
	// Checkpoint is the folder of the checkpoint.
	Checkpoint string
	// Differences are sorted by key.
	Differences []Difference
	// Fixed says, by key, why Loop.ResumeAnyway cannot help against some of them.
	Fixed map[string]string
}

// Difference is something that a checkpoint and a run disagree on. A value that
// one of them lacks is empty.
type Difference struct {
	Key        string
	Checkpoint string
	Run        string
}

func (e *MismatchError) Error() string { return e.OptionText(option.GoName) }

// OptionText is part of option.Named.
func (e *MismatchError) OptionText(name option.Name) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot resume from %s: it belongs to another run:", e.Checkpoint)
	for _, d := range e.Differences {
		fmt.Fprintf(&b, "\n  %s: %s in the checkpoint, %s now", d.Key, orAbsent(d.Checkpoint), orAbsent(d.Run))
		if why := identityHints[d.Key]; why != "" && d.Checkpoint != "" && d.Run != "" {
			b.WriteString("; " + why)
		}
		if why := e.Fixed[d.Key]; why != "" {
			b.WriteString("; this cannot be overridden: " + why)
		}
	}
	b.WriteString("\nresume with the same model, data and options, or start a new run with another folder for its checkpoints")
	if len(e.Fixed) == 0 {
		b.WriteString(option.Marked(", or set {Loop.ResumeAnyway} to train on with the differences", name))
	}
	return b.String()
}

func orAbsent(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
