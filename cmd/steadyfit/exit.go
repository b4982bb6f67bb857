package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"syscall"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/fit/budget"
	"steadyfit/fit/checkpoint"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
	"steadyfit/train"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitEnvironment = 3
	exitDiverged    = 4
	exitMemory      = 5
	exitCheck       = 6
	exitInterrupted = 130
)

// coded is an error with an exit code.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

// usagef returns an error of the command line or the configuration.
func usagef(format string, args ...any) error {
	return &coded{exitUsage, fmt.Errorf(format, args...)}
}

// unusable marks an error that the command line caused, such as a file that does not exist.
func unusable(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, syscall.EIO) { // EIO means that the disk has failed
		return err
	}
	return &coded{exitUsage, err}
}

// kind matches the kind of an error of package data after the remedy at the end of a line. It
// is for programs, not for readers.
var kind = regexp.MustCompile(fmt.Sprintf(`(?m)(; .*): (?:%v|%v|%v|%v)( \(|$)`, data.ErrFormat, data.ErrUnsupported, data.ErrField, fs.ErrNotExist))

// message returns the text of an error with flags instead of options.
func message(err error) string { return kind.ReplaceAllString(option.Text(err, flagName), "$1$2") }

// exitCode returns the exit code for an error. The order of the cases matters: an error about a
// lack of memory may also wrap the reason why batches were not split.
func exitCode(err error) int {
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
	}
	as := func(targets ...any) bool {
		return slices.ContainsFunc(targets, func(t any) bool { return errors.As(err, t) })
	}
	var hook *fit.HookError
	var child *supervise.Error
	var own *coded
	switch errors.As(err, &own); {
	case err == nil, is(supervise.ErrRestart):
		return exitOK
	case errors.As(err, &child) && child.OutOfMemory():
		return exitMemory
	case errors.As(err, &child):
		return child.Code
	case is(tfbind.ErrNoTensorFlow, session.ErrNoGPU) || own != nil && own.code == exitEnvironment:
		return exitEnvironment
	case is(session.ErrOutOfMemory) || as(new(*budget.Error)):
		return exitMemory
	case is(supervise.ErrRetry):
		return exitFailed // the input was good when the training began
	case own != nil:
		return own.code
	case as(new(*option.Error), new(*train.InputError), new(*fit.MismatchError), new(*checkpoint.LockedError), new(*data.RowError), new(*savedmodels.NotTrainableError)) ||
		is(checkpoint.ErrFuture, savedmodels.ErrNoSignature, savedmodels.ErrUnsafeOps, session.ErrNoSignature, session.ErrInexactSplit, session.ErrData, session.ErrBase, session.ErrAdapter):
		return exitUsage
	case is(fit.ErrDiverged):
		return exitDiverged
	case as(&hook):
		if hook.Phase == "start" {
			return exitUsage // an option of the hook cannot be used
		}
		return exitFailed // an interrupted run whose checkpoint failed
	case is(context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}
