package tfbind

import (
	"errors"
	"fmt"
	"strconv"
)

// Code classifies an error of the TensorFlow runtime; the values are those of
// TF_Code.
type Code int

// The codes that TensorFlow returns.
const (
	Cancelled          Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	DataLoss           Code = 15
	Unauthenticated    Code = 16
)

var codeNames = [...]string{
	Cancelled: "CANCELLED", Unknown: "UNKNOWN", InvalidArgument: "INVALID_ARGUMENT",
	DeadlineExceeded: "DEADLINE_EXCEEDED", NotFound: "NOT_FOUND", AlreadyExists: "ALREADY_EXISTS",
	PermissionDenied: "PERMISSION_DENIED", ResourceExhausted: "RESOURCE_EXHAUSTED",
	FailedPrecondition: "FAILED_PRECONDITION", Aborted: "ABORTED", OutOfRange: "OUT_OF_RANGE",
	Unimplemented: "UNIMPLEMENTED", Internal: "INTERNAL", Unavailable: "UNAVAILABLE",
	DataLoss: "DATA_LOSS", Unauthenticated: "UNAUTHENTICATED",
}

// String returns the code's name as TensorFlow spells it.
func (c Code) String() string {
	if c > 0 && int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "code " + strconv.Itoa(int(c))
}

// Error is an error that TensorFlow itself reported.
type Error struct {
	// Op is what was being done, as in "load SavedModel /models/digits".
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

// Is makes errors.Is(err, ErrResourceExhausted) hold for every error of that
// code, whatever its Op and Message.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Op == "" && t.Message == "" && t.Code == e.Code
}

// The errors of TensorFlow that callers decide on, for errors.Is.
var (
	ErrCancelled          error = &Error{Code: Cancelled}
	ErrInvalidArgument    error = &Error{Code: InvalidArgument}
	ErrDeadlineExceeded   error = &Error{Code: DeadlineExceeded}
	ErrNotFound           error = &Error{Code: NotFound}
	ErrResourceExhausted  error = &Error{Code: ResourceExhausted}
	ErrFailedPrecondition error = &Error{Code: FailedPrecondition}
	ErrAborted            error = &Error{Code: Aborted}
	ErrDataLoss           error = &Error{Code: DataLoss}
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
