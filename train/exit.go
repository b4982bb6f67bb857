package train

import (
	"context"
	"errors"

	"steadyfit/fit"
	"steadyfit/option"
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

// ExitCode returns the exit code of a program for an error of Run, which equals the exit code of the command steadyfit:
// 0 for nil, 2 if an option or an input cannot be used, 3 if there is no TensorFlow or GPU, 4 if the training diverged,
// 5 if memory ran out, 130 if it was interrupted, and otherwise 1.
func ExitCode(err error) int {
	// The order of the cases matters: an error about a lack of memory may also wrap the reason why batches were not split.
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
	case isAny(err, session.ErrOutOfMemory, ErrBudget):
		return exitMemory
	case errors.Is(err, supervise.ErrRetry):
		return exitFailed // the input was good when the training began
	case isA(err, new(*option.Error)), ofInput(err):
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
