package tfbind

import (
	"fmt"
	"unsafe"
)

// NewRaw copies elements in their native representation into a new tensor; see Raw. The result
// must be closed.
func NewRaw(d DType, raw []byte, shape ...int64) (*Tensor, error) {
	if err := library(); err != nil {
		return nil, err
	}
	n, err := elements(shape)
	if err != nil {
		return nil, err
	}
	if d.Size() == 0 {
		return nil, fmt.Errorf("tensor of %s: %w: it has no elements of fixed size", d, ErrType)
	}
	size := n * int64(d.Size())
	if size != int64(len(raw)) {
		return nil, fmt.Errorf("tensor of %s and shape %v: %w: it takes %d bytes, got %d", d, shape, ErrShape, size, len(raw))
	}
	p, data := capi.newTensor(d, shape, size)
	if p == nil {
		return nil, outOfMemory("new tensor", d, shape, size)
	}
	if n > 0 {
		copy(unsafe.Slice((*byte)(data), size), raw)
	}
	return wrapTensor(p, 0), nil
}

// Raw copies the elements in their native representation, which is little-endian on all
// processors that TensorFlow runs on. Strings are ErrType.
func (t *Tensor) Raw() ([]byte, error) {
	if t.info.dtype.Size() == 0 {
		return nil, fmt.Errorf("%w: a tensor of %s has no elements of fixed size", ErrType, t.info.dtype)
	}
	if _, err := t.h.acquire(); err != nil {
		return nil, err
	}
	defer t.h.release()
	raw := make([]byte, t.info.elements*int64(t.info.dtype.Size()))
	if t.info.data != nil {
		copy(raw, unsafe.Slice((*byte)(t.info.data), len(raw)))
	}
	return raw, nil
}
