package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"steadyfit/data"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/texts"
	"steadyfit/option"
	"steadyfit/supervise"
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
	return &coded{exitUsage, fmt.Errorf(format, args...)}
}

// unusable marks an error that the command line caused, such as a file that does not exist.
func unusable(err error) error {
	// EIO means that the disk has failed
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, syscall.EIO) {
		return err
	}
	return &coded{exitUsage, err}
}

// kind matches the text of a kind of error, such as data.ErrFormat, which package data puts at the
// end of a line. Only programs need it, so message removes it.
var kind = regexp.MustCompile(fmt.Sprintf(`(?m)(; .*): (?:%v|%v|%v|%v)( \(|$)`, data.ErrFormat, data.ErrUnsupported, data.ErrField, fs.ErrNotExist))

// message returns the text of an error with flags instead of options.
func message(err error) string {
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

// exitCode returns the code of a *coded error, and otherwise that of train.ExitCode. The code of
// train.ExitCode takes precedence if it means success, a problem of the environment or a lack of
// memory, or if err is a *supervise.Error or a supervise.ErrRetry.
func exitCode(err error) int {
	if errors.Is(err, matrix.ErrMissing) {
		return exitEnvironment
	}
	code := train.ExitCode(err)
	var own *coded
	decided := slices.Contains([]int{exitOK, exitEnvironment, exitMemory}, code) ||
		errors.As(err, new(*supervise.Error)) || errors.Is(err, supervise.ErrRetry)
	if decided || !errors.As(err, &own) {
		return code
	}
	return own.code
}
