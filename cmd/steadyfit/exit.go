package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"syscall"

	"steadyfit/data"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/texts"
	"steadyfit/option"
	"steadyfit/session"
	"steadyfit/train"
)

// Exit codes of errors of this package. train.ExitCode returns those of other errors.
const (
	exitEnvironment = 3
	exitCheck       = 6
)

// coded is an error with an exit code. Without err, nothing is printed.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string {
	if e.err == nil { // the program that watch ran has said why
		return ""
	}
	return e.err.Error()
}
func (e *coded) Unwrap() error { return e.err }

// usagef returns an error of the command line or the configuration.
func usagef(format string, args ...any) error {
	return &train.InputError{Err: fmt.Errorf(format, args...)}
}

// unusable marks an error that the command line caused, such as a file that does not exist.
func unusable(err error) error {
	// EIO means that the disk has failed
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, syscall.EIO) {
		return err
	}
	return &train.InputError{Err: err}
}

// kind matches the text of a kind of error, such as data.ErrFormat, which package data puts at the
// end of a line. Only programs need it, so message removes it.
var kind = regexp.MustCompile(fmt.Sprintf(`(?m)(; .*): (?:%v|%v|%v|%v)( \(|$)`, data.ErrFormat, data.ErrUnsupported,
	data.ErrField, fs.ErrNotExist))

// message returns the text of an error with flags instead of options.
func message(err error) string {
	if errors.Is(err, session.ErrNoGPU) {
		err = fmt.Errorf("%w\nsteadyfit doctor --gpu says what is missing", err)
	}
	return printable(kind.ReplaceAllString(option.Text(err, flagName), "$1$2"))
}

// blanks are kept by printable. Errors of protobuf have a no-break space in some builds.
var blanks = strings.NewReplacer("\t", "    ", "\u00a0", " ")

// printable escapes control characters in lines, since names of files and of outputs may have any.
func printable(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = texts.Printable(blanks.Replace(line))
	}
	return strings.Join(lines, "\n")
}

func exitCode(err error) int {
	var own *coded
	switch {
	case errors.Is(err, matrix.ErrMissing):
		return exitEnvironment
	case errors.As(err, &own):
		return own.code
	}
	return train.ExitCode(err)
}
