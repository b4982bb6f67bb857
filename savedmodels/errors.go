package savedmodels

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of error that callers decide on; test with errors.Is.
var (
	// ErrNotSavedModel: the path holds no SavedModel, or a damaged one.
	ErrNotSavedModel = errors.New("not a usable SavedModel")
	// ErrTooLarge: reading the model would need more than MaxFileBytes,
	// MaxMemoryBytes, or more work than any real model takes.
	ErrTooLarge = errors.New("SavedModel too large to read safely")
	// ErrNoSignature: the model has no signature of the name asked for.
	ErrNoSignature = errors.New("no such signature")
	// ErrNotTrainable: training the model would fail, or has been refused.
	ErrNotTrainable = errors.New("model cannot be trained")
	// ErrUnsafeOps: the model has operations that touch files, the network or
	// Python. An error that is ErrUnsafeOps is ErrNotTrainable, too.
	ErrUnsafeOps = errors.New("model has unsafe operations")
	// ErrChanged: the program in the model's folder is another one than was opened.
	ErrChanged = errors.New("the model was replaced since it was opened")
	// ErrUnknownBuiltin: no model of that name ships with the project.
	ErrUnknownBuiltin = errors.New("no such built-in model")
)

// NotTrainableError says why a model is refused. It is ErrNotTrainable, and
// ErrUnsafeOps if unsafe operations are among the reasons.
type NotTrainableError struct {
	Dir string
	// Problems are the reasons, at least one, each of severity Error.
	Problems []Problem
}

// Error gives every reason and every fix, a line each.
func (e *NotTrainableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", printable(e.Dir), ErrNotTrainable)
	for i, p := range e.Problems {
		fmt.Fprintf(&b, "\n  %s: %s", p.Code, printable(p.Message))
		if fixShown(e.Problems, i) {
			fmt.Fprintf(&b, "\n    fix: %s", printable(p.Fix))
		}
	}
	return b.String()
}

// Is reports whether target is one of the kinds of error that e is.
func (e *NotTrainableError) Is(target error) bool {
	if target == ErrNotTrainable {
		return true
	}
	if target == ErrUnsafeOps {
		for _, p := range e.Problems {
			if p.Code == CodeUnsafeOp {
				return true
			}
		}
	}
	return false
}

// fixShown reports whether the fix of problem i is to be printed after it: not
// if the next problem has the same one.
func fixShown(problems []Problem, i int) bool {
	fix := problems[i].Fix
	return fix != "" && (i+1 == len(problems) || problems[i+1].Fix != fix)
}
