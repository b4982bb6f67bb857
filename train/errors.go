package train

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"steadyfit/fit"
	"steadyfit/fit/checkpoint"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/supervise"
)

// InputError means that a file or a folder of a Config is missing, or is not what it should be.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InputError) Unwrap() error { return e.Err }

// unusable makes an InputError, unless the disk or the caller is at fault.
func unusable(err error) error {
	if err == nil || isAny(err, context.Canceled, syscall.EIO) || errors.As(err, new(*option.Error)) {
		return err
	}
	return &InputError{err}
}

// refuse returns the error of an option. A nil value is left out.
func refuse(name string, value any, format string, args ...any) error {
	return &option.Error{Option: name, Value: value, Reason: fmt.Sprintf(format, args...)}
}

// wrong returns the error of an option for another error.
func wrong(name string, value any, err error) error {
	if err == nil {
		return nil
	}
	return &option.Error{Option: name, Value: value, Reason: err.Error(), Err: err}
}

// text is a text with names of options in braces.
type text string

func (t text) Error() string { return t.OptionText(option.GoName) }

// OptionText returns the text with other names of options.
func (t text) OptionText(name option.Name) string { return option.Marked(string(t), name) }

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

func builtinNames(names []string) string {
	return fmt.Sprintf("%sNAME (%s)", savedmodels.BuiltinPrefix, strings.Join(names, ", "))
}

// every reports whether all errors that an error joins are of a kind.
func every(err error, is func(error) bool) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(e error) bool { return !every(e, is) })
	}
	return err == nil || is(err)
}

// unlogged reports whether an error is of log files: a later process adds the lines.
func unlogged(err error) bool { return errors.As(err, new(*fit.LogError)) }

// final reports whether the session has the result of the training in spite of an error.
func final(err error) bool {
	var unwritten *checkpoint.Error
	var unlogged *fit.LogError
	return errors.As(err, &unwritten) && unwritten.Final || errors.As(err, &unlogged) && unlogged.Final
}

// notBegun reports whether an error is of files at the beginning of a run. A restarted training is
// tried again then, since a full disk may have space a little later.
func notBegun(err error) bool {
	var hook *fit.HookError
	return errors.As(err, &hook) && (hook.Phase == "load" || hook.Phase == "start") && errors.As(err, new(syscall.Errno))
}

// restartable marks an error that another process may not have. early means that the training has
// begun, and that this process has not resumed it yet: disk, network and memory were there then.
func (t *training) restartable(err error, early bool) error {
	noMemory := errors.Is(err, session.ErrOutOfMemory)
	if noMemory && (early || t.OnOutOfMemory == Restart) || early && errors.As(err, new(syscall.Errno)) {
		return fmt.Errorf("%w: %w", supervise.ErrRetry, err)
	}
	return err
}

// advise adds to the error of a loop what to do next.
func (t *training) advise(err error, checkpoint string) error {
	outOfMemory := errors.Is(err, session.ErrOutOfMemory) && t.OnOutOfMemory == Stop
	if !outOfMemory && (!errors.Is(err, context.Canceled) || errors.As(err, new(*fit.HookError))) {
		return err
	}
	todo := ""
	if outOfMemory {
		todo = "\na smaller {Loop.Batch} takes less, and {Config.OnOutOfMemory microbatch} splits batches where that is needed"
	}
	if checkpoint == "" {
		return option.Errorf("%w"+todo+"; there is no checkpoint ({Config.Checkpoints})", err)
	}
	return option.Errorf("%w"+todo+"; the checkpoint is %s, continue with {Config.Resume}", err, checkpoint)
}
