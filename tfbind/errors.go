package tfbind

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Code classifies an error of the TensorFlow runtime; the values are those of
// TF_Code.
type Code int

// The codes that other packages of this module use.
const (
	Unknown           Code = 2
	InvalidArgument   Code = 3
	NotFound          Code = 5
	PermissionDenied  Code = 7
	ResourceExhausted Code = 8
	Unimplemented     Code = 12

	cancelled          Code = 1
	failedPrecondition Code = 9
	dataLoss           Code = 15
)

// codeNames are TensorFlow's names of the codes, starting at code 1.
var codeNames = strings.Fields("CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS " +
	"PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL " +
	"UNAVAILABLE DATA_LOSS UNAUTHENTICATED")

// String returns TensorFlow's name of the code.
func (c Code) String() string {
	if c > 0 && int(c) <= len(codeNames) {
		return codeNames[c-1]
	}
	return "code " + strconv.Itoa(int(c))
}

// Error is an error that TensorFlow itself reported.
type Error struct {
	// Op is the operation, as in "load SavedModel /models/digits".
	Op string
	// Code is TensorFlow's classification.
	Code Code
	// Message is TensorFlow's text, unchanged.
	Message string
}

func (e *Error) Error() string {
	if e.Op == "" {
		return e.Code.String()
	}
	return fmt.Sprintf("%s: %s: %s", e.Op, e.Code, e.Message)
}

// Is makes errors.Is(err, ErrResourceExhausted) true for every error with that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Message == "" && t.Code == e.Code
}

// TensorFlow's errors, for use with errors.Is.
var (
	ErrInvalidArgument    error = &Error{Code: InvalidArgument}
	ErrNotFound           error = &Error{Code: NotFound}
	ErrResourceExhausted  error = &Error{Code: ResourceExhausted}
	ErrFailedPrecondition error = &Error{Code: failedPrecondition}
	ErrDataLoss           error = &Error{Code: dataLoss}

	errCancelled error = &Error{Code: cancelled}
)

// The errors of this package.
var (
	// ErrClosed means that the object, or the session that it belongs to, was closed.
	ErrClosed = errors.New("already closed")
	// ErrBusy means that a Step was used while it was running.
	ErrBusy = errors.New("in use by another goroutine")
	// ErrType means that the element type is not the expected one.
	ErrType = errors.New("wrong element type")
	// ErrShape means that a shape is invalid or does not match the number of values.
	ErrShape = errors.New("wrong shape")
	// ErrNotFed means that a Step was run before all its inputs had a value.
	ErrNotFed = errors.New("input has no value")
	// ErrNoTensorFlow means that no usable TensorFlow library was found; see *LoadError.
	ErrNoTensorFlow = errors.New("no usable TensorFlow library")
)
