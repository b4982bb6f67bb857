package tfbind

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"steadyfit/internal/tflibrary"
)

// codeNames are TensorFlow's names for the codes from 1 on.
var codeNames = strings.Fields("CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS " +
	"PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL " +
	"UNAVAILABLE DATA_LOSS UNAUTHENTICATED")

// codeName returns TensorFlow's name of a TF_Code.
func codeName(code int) string {
	if code > 0 && code <= len(codeNames) {
		return codeNames[code-1]
	}
	return "code " + strconv.Itoa(code)
}

// Error is an error of TensorFlow.
type Error struct {
	// Op is the operation that failed, such as "load SavedModel /models/digits".
	Op string
	// Code is TensorFlow's name of the code, such as "NOT_FOUND".
	Code string
	// Message is TensorFlow's message.
	Message string
}

func (e *Error) Error() string {
	if e.Op == "" {
		return e.Code
	}
	return fmt.Sprintf("%s: %s: %s", e.Op, e.Code, e.Message)
}

// Is reports whether target is an Error with the same code and no other field, such as ErrNotFound
// or &Error{Code: "DATA_LOSS"}.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Message == "" && t.Code == e.Code
}

// The errors of TensorFlow, for errors.Is.
var (
	ErrInvalidArgument   error = &Error{Code: "INVALID_ARGUMENT"}
	ErrNotFound          error = &Error{Code: "NOT_FOUND"}
	ErrResourceExhausted error = &Error{Code: "RESOURCE_EXHAUSTED"}

	errFailedPrecondition error = &Error{Code: "FAILED_PRECONDITION"}
	errCancelled          error = &Error{Code: "CANCELLED"}
)

// The errors of this package.
var (
	// ErrClosed means that the object or its session was closed.
	ErrClosed = errors.New("already closed")
	// ErrType means that an element type is not the expected one.
	ErrType = errors.New("wrong element type")
	// ErrShape means that a shape is invalid or does not fit the number of values.
	ErrShape = errors.New("wrong shape")
	// ErrNoTensorFlow means that no usable TensorFlow library was found.
	ErrNoTensorFlow = tflibrary.ErrNone

	errBusy   = errors.New("in use by another goroutine")
	errNotFed = errors.New("input has no value")
)
