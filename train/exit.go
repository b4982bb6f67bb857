package train

import (
	"context"
	"errors"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/fit/budget"
	"steadyfit/internal/checkpoint"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// Exit codes of a program that trains.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitEnvironment = 3
	exitDiverged    = 4
	exitMemory      = 5
	exitInterrupted = 130
)

// ExitCode returns the exit code of a program for an error of Run, which equals the exit code of
// the command steadyfit: 0 for nil, 2 if an option or an input cannot be used, 3 if there is no
// TensorFlow or GPU, 4 if the training diverged, 5 if memory ran out, 130 if it was interrupted,
// and otherwise 1.
func ExitCode(err error) int {
	// The order of the cases matters: an error about a lack of memory may also wrap the reason why
	// batches were not split.
	as := func(targets ...any) bool {
		for _, t := range targets {
			if errors.As(err, t) {
				return true
			}
		}
		return false
	}
	var hook *fit.HookError
	var child *supervise.Error
	switch {
	case err == nil, errors.Is(err, supervise.ErrRestart):
		return exitOK
	case errors.As(err, &child) && child.OutOfMemory():
		return exitMemory
	case child != nil:
		return child.Code
	case isAny(err, tfbind.ErrNoTensorFlow, session.ErrNoGPU):
		return exitEnvironment
	case errors.Is(err, session.ErrOutOfMemory), as(new(*budget.Error)):
		return exitMemory
	case errors.Is(err, supervise.ErrRetry):
		return exitFailed // the input was good when the training began
	case as(new(*option.Error), new(*InputError), new(*checkpoint.LockedError), new(*data.RowError), new(*savedmodels.NotTrainableError)),
		isAny(err, checkpoint.ErrFuture, savedmodels.ErrNoSignature, savedmodels.ErrUnsafeOps, session.ErrInexactSplit, session.ErrData, session.ErrMismatch, data.ErrFormat, data.ErrUnsupported, data.ErrTooLarge, data.ErrLabel):
		return exitUsage
	case errors.Is(err, fit.ErrDiverged):
		return exitDiverged
	case errors.As(err, &hook) && hook.Phase == "start":
		return exitUsage // an option of the hook cannot be used
	case hook != nil:
		return exitFailed // an interrupted run whose checkpoint failed
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}
