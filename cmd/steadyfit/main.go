// Command steadyfit fine-tunes TensorFlow SavedModels with memory that stays
// flat. Each of its commands is one file here that parses flags, calls a
// package, and prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/fit/budget"
	"steadyfit/internal/flags"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
	"steadyfit/train"
	"steadyfit/tune"
)

// The exit codes, which scripts rely on.
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

// The training loop stays on the process's first thread. glibc gives that one
// thread a heap that grows and shrinks in place; every other has one that it maps
// and unmaps, and TensorFlow allocates in each step. Measured on 2 cores, 9
// interleaved runs: a step of 80 us took 1.07 times as long as in a C loop
// without this, and 1.00 to 1.04 times with it.
func init() { runtime.LockOSThread() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal must be able to end a run that does not come to its end.
	context.AfterFunc(ctx, stop)
	if child, err := tune.Child(ctx); child {
		os.Exit(exitCode(err)) // its parent was told why
	}
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !supervise.Reported(err) {
		fmt.Fprintf(stderr, "steadyfit: %s\n", option.Text(err, flags.Name))
	}
	return exitCode(err)
}

// usageError is a command line or configuration that cannot work.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// environmentError says that the machine lacks something.
type environmentError struct{ err error }

func (e *environmentError) Error() string { return e.err.Error() }
func (e *environmentError) Unwrap() error { return e.err }

// checkError says that something was looked at and found wanting.
type checkError struct{ err error }

func (e *checkError) Error() string { return e.err.Error() }
func (e *checkError) Unwrap() error { return e.err }

func exitCode(err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
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
	case err == nil, is(supervise.ErrRestart):
		return exitOK
	case errors.As(err, &child) && child.OutOfMemory():
		return exitMemory
	case errors.As(err, &child):
		return child.Code
	case is(tfbind.ErrNoTensorFlow, session.ErrNoGPU) || as(new(*environmentError)):
		return exitEnvironment
	// Before the others: what could not be done about a lack of memory is in the error, too.
	case is(session.ErrOutOfMemory) || as(new(*budget.Error)):
		return exitMemory
	case is(supervise.ErrRetry):
		return exitFailed // it worked when the training began
	case as(new(*usageError), new(*option.Error), new(*train.InputError), new(*fit.MismatchError), new(*fit.LockedError), new(*data.RowError), new(*savedmodels.NotTrainableError)) ||
		is(fit.ErrFuture, savedmodels.ErrNoSignature, savedmodels.ErrUnsafeOps, session.ErrNoSignature, session.ErrInexactSplit, session.ErrData):
		return exitUsage
	case as(new(*checkError)):
		return exitCheck
	case is(fit.ErrDiverged):
		return exitDiverged
	case as(&hook):
		if hook.Phase == "start" {
			return exitUsage // what it was told to use cannot be used
		}
		return exitFailed // an interrupted run whose checkpoint failed is not a good one
	case is(context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}

// unusable marks an error about something that the command line named, such as
// a file that is not there or not what it should be.
func unusable(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, syscall.EIO) {
		return err // the disk's fault, not the user's
	}
	return &usageError{err}
}
