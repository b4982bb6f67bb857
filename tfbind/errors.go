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

// The codes that this module compares with.
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

// codeNames are TensorFlow's names of the codes, from 1.
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

// Is makes errors.Is(err, ErrResourceExhausted) hold for every error of that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Message == "" && t.Code == e.Code
}

// The errors of TensorFlow that callers decide on, for errors.Is.
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
	// ErrClosed: the object, or the session that it belongs to, was closed.
	ErrClosed = errors.New("already closed")
	// ErrBusy: a Step was used while a run of it was under way.
	ErrBusy = errors.New("in use by another goroutine")
	// ErrType: the element type is not the one that was asked for or expected.
	ErrType = errors.New("wrong element type")
	// ErrShape: a shape does not fit the number of values, or is not valid.
	ErrShape = errors.New("wrong shape")
	// ErrNotFed: a Step was run before all its inputs had a value.
	ErrNotFed = errors.New("input has no value")
	// ErrNoTensorFlow: no usable TensorFlow library; see *LoadError.
	ErrNoTensorFlow = errors.New("no usable TensorFlow library")
)
