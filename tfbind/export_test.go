package tfbind

import "steadyfit/internal/eager"

// TypeOf returns the element type of T.
func TypeOf[T Element]() DType { return dtypeOf[T]() }

// Retained returns how often TensorFlow kept an input's buffer.
func Retained(st *Step) int64 { return st.retained() }

// EagerTensor returns the value of a place as a tensor.
func EagerTensor(f eager.Frame, at int32) (*Tensor, error) { return f.(*eagerFrame).tensor(at) }

func OperationName(op Operation) string { return op.name() }

func OutputName(o Output) string { return o.name() }

// Len returns the number of elements of a tensor.
func Len(t *Tensor) int { return int(t.info.elements) }
