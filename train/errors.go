package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/budget"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// ErrBudget means that a memory budget cannot be kept. The message has a sufficient budget.
var ErrBudget = budget.ErrExceeded

// InputError means that the model, the data or a folder of a Config cannot be used.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InputError) Unwrap() error { return e.Err }

// unusable wraps the error of a stage that only reads inputs in an InputError, unless ctx, an option,
// the environment, a lack of memory or a failing disk caused it.
func unusable(err error) error {
	if err == nil || isAny(err, context.Canceled, syscall.EIO, tfbind.ErrNoTensorFlow, session.ErrNoGPU,
		session.ErrOutOfMemory, supervise.ErrRetry) ||
		isA(err, new(*option.Error), new(*InputError)) {
		return err
	}
	return &InputError{err}
}

// ofInput reports whether an error of any stage is about the model, the data or a folder. It returns
// false if a hook cannot reload the model, which was usable at the beginning.
func ofInput(err error) bool {
	var hook *fit.HookError
	if errors.As(err, &hook) && hook.Phase == "start" && errors.As(err, new(syscall.Errno)) {
		return true
	}
	return isA(err, new(*InputError), new(*data.RowError), new(*savedmodels.NotTrainableError)) ||
		errors.Is(err, savedmodels.ErrNotSavedModel) && hook == nil ||
		isAny(err, fit.ErrLocked, savedmodels.ErrNoSignature, savedmodels.ErrUnsafeOps, session.ErrInexactSplit,
			session.ErrData, session.ErrMismatch, data.ErrFormat, data.ErrUnsupported, data.ErrTooLarge, data.ErrLabel)
}

// ofData reports whether an error is about the content of the data.
func ofData(err error) bool {
	return isA(err, new(*InputError), new(*data.RowError)) ||
		isAny(err, data.ErrFormat, data.ErrUnsupported, data.ErrTooLarge)
}

func refuse(name string, value any, format string, args ...any) error {
	return &option.Error{Option: name, Value: value, Reason: fmt.Sprintf(format, args...)}
}

func wrong(name string, value any, err error) error {
	if err == nil {
		return nil
	}
	return &option.Error{Option: name, Value: value, Reason: err.Error(), Err: err}
}

// text is a message with option names in braces.
type text string

func (t text) Error() string { return t.OptionText(option.GoName) }

// OptionText returns the message with option names rendered by name.
func (t text) OptionText(name option.Name) string { return option.Marked(string(t), name) }

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

// isA reports whether an error in the chain of err has the type of a target.
func isA(err error, targets ...any) bool {
	return slices.ContainsFunc(targets, func(t any) bool { return errors.As(err, t) })
}

// unwritten reports whether all errors that err joins are about a checkpoint or the history, so that the session has
// the result of a complete training.
func unwritten(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !unwritten(e) })
	}
	return err == nil || errors.As(err, new(*fit.WriteError))
}

// notBegun reports whether a run failed to read or write files at its beginning. Another
// attempt may succeed, for example when a full disk has space again.
func notBegun(err error) bool {
	var hook *fit.HookError
	return errors.As(err, &hook) && (hook.Phase == "load" || hook.Phase == "start") && errors.As(err, new(syscall.Errno))
}

// restartable marks an error that may not occur in another process. early is true if an earlier
// process could train but this one has not resumed yet.
func (t *training) restartable(err error, early bool) error {
	noMemory := errors.Is(err, session.ErrOutOfMemory)
	if noMemory && (early || t.OnOutOfMemory == Restart) || early && errors.As(err, new(syscall.Errno)) {
		return fmt.Errorf("%w: %w", supervise.ErrRetry, err)
	}
	return err
}

func (t *training) advise(err error, checkpoint string) error {
	if errors.Is(err, session.ErrOutOfMemory) || errors.Is(err, ErrBudget) {
		if usage, unread := memory.Read(); unread == nil {
			err = fmt.Errorf("%w\nresident memory is %v, of which %v is anonymous; the peak was %v\nsteadyfit explain shows "+
				"which operations hold the peak of a step",
				err, usage.RSS, usage.Anon, usage.Peak)
		}
	}
	if rank, _ := t.ranked(); rank > 0 {
		return err // rank 0 has the checkpoint and the advice
	}
	outOfMemory := errors.Is(err, session.ErrOutOfMemory) && t.OnOutOfMemory == ""
	if !outOfMemory && (!errors.Is(err, context.Canceled) || errors.As(err, new(*fit.HookError))) {
		return err
	}
	todo := ""
	if outOfMemory {
		todo = "\na smaller {Loop.Batch} needs less memory, and {Config.OnOutOfMemory microbatch} splits batches when " +
			"memory runs out"
	}
	if checkpoint == "" && t.Checkpoints.Folder != "" {
		return option.Errorf("%w"+todo+"; there is no checkpoint yet", err)
	}
	if checkpoint == "" {
		return option.Errorf("%w"+todo+"; there is no checkpoint ({Config.Checkpoints})", err)
	}
	return option.Errorf("%w"+todo+"; the checkpoint is %s, continue with {Config.Resume}", err, checkpoint)
}
