package tfbind

import "fmt"

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

// Len returns the number of elements of a tensor.
func Len(t *Tensor) int { return int(t.info.elements) }

// Values copies the elements of a tensor of type T.
func Values[T Element](t *Tensor) ([]T, error) {
	if d := dtypeOf[T](); t.info.dtype != d {
		return nil, fmt.Errorf("%w: the tensor holds %s, not %s", ErrType, t.info.dtype, d)
	}
	p, err := t.h.acquire()
	if err != nil {
		return nil, err
	}
	defer t.h.release()
	return valuesOf[T](p, t.info), nil
}
