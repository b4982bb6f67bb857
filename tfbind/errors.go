package tfbind

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Code is the class of an error in TensorFlow, with the values of TF_Code.
type Code int

// The codes that other packages use.
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

// codeNames are TensorFlow's names for the codes from 1 on.
var codeNames = strings.Fields("CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS " +
	"PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL " +
	"UNAVAILABLE DATA_LOSS UNAUTHENTICATED")

// String returns TensorFlow's name, such as "NOT_FOUND".
func (c Code) String() string {
	if c > 0 && int(c) <= len(codeNames) {
		return codeNames[c-1]
	}
	return "code " + strconv.Itoa(int(c))
}

// Error is an error of TensorFlow.
type Error struct {
	// Op is what failed, such as "load SavedModel /models/digits".
	Op   string
	Code Code
	// Message is TensorFlow's message.
	Message string
}

func (e *Error) Error() string {
	if e.Op == "" {
		return e.Code.String()
	}
	return fmt.Sprintf("%s: %s: %s", e.Op, e.Code, e.Message)
}

// Is reports whether target is the error variable for the code, such as ErrNotFound.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Message == "" && t.Code == e.Code
}

// The errors of TensorFlow, for errors.Is.
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
	// ErrClosed means that the object or its session was closed.
	ErrClosed = errors.New("already closed")
	// ErrBusy means that a Step was used during a run.
	ErrBusy = errors.New("in use by another goroutine")
	// ErrType means that an element type is not the expected one.
	ErrType = errors.New("wrong element type")
	// ErrShape means that a shape is invalid or does not fit the number of values.
	ErrShape = errors.New("wrong shape")
	// ErrNotFed means that a Step was run while an input had no value.
	ErrNotFed = errors.New("input has no value")
	// ErrNoTensorFlow means that no usable TensorFlow library was found; see LoadError.
	ErrNoTensorFlow = errors.New("no usable TensorFlow library")
)
