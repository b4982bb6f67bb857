package savedmodels

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The errors of this package, for use with errors.Is.
var (
	// ErrNotSavedModel means that the path has no SavedModel, or a damaged one.
	ErrNotSavedModel = errors.New("not a usable SavedModel")
	// ErrTooLarge means that reading the model would exceed the limits on file size, memory or
	// work. Real models stay far below these limits.
	ErrTooLarge = errors.New("SavedModel too large to read safely")
	// ErrNoSignature means that the model has no signature with that name.
	ErrNoSignature = errors.New("no such signature")
	// ErrNotTrainable means that training the model would fail or is not allowed.
	ErrNotTrainable = errors.New("model cannot be trained")
	// ErrUnsafeOps means that the model has operations that touch files, the network or
	// Python.
	ErrUnsafeOps = errors.New("model has unsafe operations")
	// ErrChanged means that saved_model.pb is not the file that was opened.
	ErrChanged = errors.New("the model was replaced since it was opened")
	// ErrUnknownBuiltin means that this module has no model with that name.
	ErrUnknownBuiltin = errors.New("no such built-in model")
)

// NotTrainableError is the reason why a model cannot be trained. It is ErrNotTrainable, and
// also ErrUnsafeOps if unsafe operations are among the reasons.
type NotTrainableError struct {
	Dir string
	// Problems are the reasons, at least one, all with severity Error.
	Problems []Problem
}

// Error returns one line per reason and per fix.
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

// fixShown reports whether the fix of problem i is printed after it. Consecutive equal fixes
// are printed once.
func fixShown(problems []Problem, i int) bool {
	fix := problems[i].Fix
	return fix != "" && (i+1 == len(problems) || problems[i+1].Fix != fix)
}
