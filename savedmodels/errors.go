package savedmodels

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The kinds of error that callers decide on, for errors.Is.
var (
	// ErrNotSavedModel: the path holds no SavedModel, or a damaged one.
	ErrNotSavedModel = errors.New("not a usable SavedModel")
	// ErrTooLarge: reading the model would exceed the limits on file size, memory or work,
	// which no real model comes near.
	ErrTooLarge = errors.New("SavedModel too large to read safely")
	// ErrNoSignature: the model has no signature of that name.
	ErrNoSignature = errors.New("no such signature")
	// ErrNotTrainable: training the model would fail, or was refused.
	ErrNotTrainable = errors.New("model cannot be trained")
	// ErrUnsafeOps: the model has operations that touch files, the network or Python.
	ErrUnsafeOps = errors.New("model has unsafe operations")
	// ErrChanged: saved_model.pb is not the file that was opened.
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

// Error has one line per reason and per fix.
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

// Is reports whether target is ErrNotTrainable, or ErrUnsafeOps if that is a reason.
func (e *NotTrainableError) Is(target error) bool {
	return target == ErrNotTrainable || target == ErrUnsafeOps &&
		slices.ContainsFunc(e.Problems, func(p Problem) bool { return p.Code == codeUnsafeOp })
}

// fixShown reports whether the fix of problem i is printed after it: equal fixes in a row
// are printed once.
func fixShown(problems []Problem, i int) bool {
	fix := problems[i].Fix
	return fix != "" && (i+1 == len(problems) || problems[i+1].Fix != fix)
}
