package savedmodels

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/texts"
)

// The errors of this package, for use with errors.Is.
var (
	// ErrNotSavedModel means that the path has no SavedModel, a damaged one, or one that is too
	// large to read safely.
	ErrNotSavedModel = errors.New("not a usable SavedModel")
	// ErrNoSignature means that the model has no signature with the given name.
	ErrNoSignature = errors.New("no such signature")
	// ErrUnsafeOps means that the model has operations that access files, the network or
	// Python.
	ErrUnsafeOps = errors.New("model has unsafe operations")
	// ErrChanged means that saved_model.pb or the values of frozen variables have changed since
	// Open.
	ErrChanged = errors.New("the model was replaced since it was opened")
)

// errTooLarge means that the model exceeds the limits on file size, memory or work. The limits are
// far above the needs of real models.
var errTooLarge = fmt.Errorf("%w: it is too large to read safely", ErrNotSavedModel)

// NotTrainableError reports why training a model would fail or is not allowed. It matches ErrUnsafeOps
// if an unsafe operation is a reason.
type NotTrainableError struct {
	Dir string
	// Problems has at least one problem. All have the severity "error".
	Problems []Problem
}

func (e *NotTrainableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: model cannot be trained", texts.Printable(e.Dir))
	for i, p := range e.Problems {
		fmt.Fprintf(&b, "\n  %s: %s", p.Code, texts.Printable(p.Message))
		if fixShown(e.Problems, i) {
			fmt.Fprintf(&b, "\n    fix: %s", texts.Printable(p.Fix))
		}
	}
	return b.String()
}

// Is reports whether target is the error of one of the problems.
func (e *NotTrainableError) Is(target error) bool {
	return target == ErrUnsafeOps &&
		slices.ContainsFunc(e.Problems, func(p Problem) bool { return p.Code == codeUnsafeOp })
}

// fixShown reports whether the fix of problem i is printed. A fix is printed once for
// consecutive problems that have the same fix.
func fixShown(problems []Problem, i int) bool {
	fix := problems[i].Fix
	return fix != "" && (i+1 == len(problems) || problems[i+1].Fix != fix)
}
