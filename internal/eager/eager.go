// Package eager describes TensorFlow's eager execution, which executes operations one by one,
// without a graph. TensorFlow therefore does not rewrite, fuse or reorder them. Eager execution is
// a baseline for measurements. Package tfbind implements the interfaces of this package.
package eager

import (
	"maps"
	"slices"
	"strings"
)

// New makes a context. config is a serialized tensorflow.ConfigProto or nil. The result must be
// closed. If the library does not export TensorFlow's eager API, the error is
// tfbind.ErrNoTensorFlow. Importing tfbind sets New.
var New func(config []byte) (Context, error)

// Context has the variables that its operations create. Several goroutines may use it, and their
// operations run one after another.
type Context interface {
	// Close frees the context and its variables after its last frame is closed. Closing twice
	// does nothing.
	Close() error
	// OpDef returns the definition of an operation as a serialized tensorflow.OpDef.
	OpDef(op string) ([]byte, error)
	// NewFrame makes a frame with the given number of empty places. The result must be closed.
	NewFrame(places int) (Frame, error)
}

// Frame holds values in numbered places, from 0. Operations read and write places, so an
// operation creates no Go object. Reading an empty place is an error.
type Frame interface {
	// Close frees the values. Closing twice does nothing.
	Close() error
	// Put puts a *tfbind.Tensor into a place. The place shares the tensor's memory. The caller
	// still has to close the tensor.
	Put(at int32, tensor any) error
	// Float returns the number in a place, or NaN if the value is not a single number.
	Float(at int32) (float64, error)
	// Share puts the value of a place also into a place of any frame of the same Context.
	Share(place int32, to Frame, at int32) error
	// Move moves the value of a place to another place.
	Move(place int32, to Frame, at int32) error
	// Drop empties places.
	Drop(places ...int32) error
	// Held returns the number of places with a value.
	Held() int
	// Execute executes one operation. After an error, inputs in Places.Last may be gone.
	Execute(op *Op) error
}

// Op is an operation with the places of its inputs and outputs. It has no native memory.
type Op struct {
	Places
	CName []byte // the name with a final zero byte
	Attrs []byte // see sf_frame_execute in tfbind/shim.h
	Sizes []int64
}

// Places has the indexes of the places in a frame that hold an operation's inputs and outputs.
type Places struct {
	// Inputs has one place per input. A list input has one place per element.
	Inputs []int32
	// First is the place of the first output. Further outputs follow it.
	First   int32
	Outputs int
	// Last are places that are not used later. If an input is in Last, it is dropped before the
	// operation, which may then reuse its memory. If an output is in Last, it is dropped after the
	// operation.
	Last []int32
}

// NewOp describes an operation. attrs has a serialized tensorflow.AttrValue for each attribute
// without a default, and for others as needed.
func NewOp(op string, attrs map[string][]byte, at Places) *Op {
	o := &Op{Places: at, CName: append([]byte(op), 0)}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		o.Attrs = append(append(o.Attrs, name...), 0)
		o.Attrs = append(o.Attrs, attrs[name]...)
		o.Sizes = append(o.Sizes, int64(len(attrs[name])))
	}
	return o
}

// Name returns the name of the operation, such as "MatMul".
func (o *Op) Name() string { return strings.TrimSuffix(string(o.CName), "\x00") }
