package tfbind

import "steadyfit/internal/eager"

var (
	ErrBusy        = errBusy
	ErrInterrupted = errInterrupted
	ErrNotFed      = errNotFed
)

// Element is a Go type for the elements of a tensor.
type Element = element

// TypeOf returns the element type of T.
func TypeOf[T Element]() DType { return dtypeOf[T]() }

func OutputName(o Output) string { return o.name() }

// Replaced returns how often TensorFlow called the functions of replace.c.
func Replaced() (numbers, aborts uint64) { return capi.replaced() }

// Len returns the number of elements of a tensor.
func Len(t *Tensor) int { return int(t.info.elements) }

// EagerTensor returns the value of a place as a tensor that must be closed. It may share the memory
// of the place. An empty place returns ErrNotFed.
func EagerTensor(frame eager.Frame, at int32) (*Tensor, error) {
	f := frame.(*eagerFrame)
	p, err := f.use()
	if err != nil {
		return nil, err
	}
	defer f.done()
	if err := f.check(true, at); err != nil {
		return nil, err
	}
	x, err := capi.getTensor(p, at)
	if err != nil {
		return nil, err
	}
	return wrapTensor(x, 0), nil
}

// Retained returns how often TensorFlow kept an input's buffer, so that the input got a new
// one.
func Retained(st *Step) int64 {
	if _, err := st.use(); err != nil {
		return 0
	}
	defer st.done()
	return *st.memory.retained
}
