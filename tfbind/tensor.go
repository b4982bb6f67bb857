package tfbind

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"
)

// Numeric is the set of Go types that are elements of tensors other than
// strings, one for each DType.
type Numeric interface {
	float32 | float64 | Half | Brain | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | bool
}

// Element is the set of Go types that are elements of tensors.
type Element interface {
	Numeric | string
}

// DTypeOf returns the element type that T stands for.
func DTypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case Half:
		return Float16
	case Brain:
		return BFloat16
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case bool:
		return Bool
	default:
		return String
	}
}

// Tensor is an n-dimensional array in native memory. Its shape and type never
// change. Close frees it.
type Tensor struct {
	h    *handle
	info tensorInfo
}

// stringBytes is the size of a string element in native memory (TF_TString).
const stringBytes = 24

// NewTensor copies a flat row-major slice into a new tensor of that shape; no
// shape means a scalar. The result must be closed. It fails with ErrShape if
// the shape does not hold exactly len(values) elements.
func NewTensor[T Element](values []T, shape ...int64) (*Tensor, error) {
	if err := library(); err != nil {
		return nil, err
	}
	n, err := elements(shape)
	if err != nil {
		return nil, err
	}
	if n != int64(len(values)) {
		return nil, fmt.Errorf("tensor of shape %v: %w: it holds %d elements, got %d values", shape, ErrShape, n, len(values))
	}
	dtype := DTypeOf[T]()
	size := n * int64(dtype.Size())
	if dtype == String {
		size = n * stringBytes
	}
	p, data := capi.newTensor(dtype, shape, size)
	if p == nil {
		return nil, outOfMemory("new tensor", dtype, shape, size)
	}
	if s, ok := any(values).([]string); ok {
		capi.setStrings(p, s)
	} else if n > 0 {
		copy(unsafe.Slice((*T)(data), n), values)
	}
	owned := int64(0)
	if dtype == String {
		owned = n
	}
	return wrapTensor(p, owned), nil
}

// wrapTensor takes ownership of a native tensor. ownedStrings is the number of
// string elements that this package initialised.
func wrapTensor(p ptr, ownedStrings int64) *Tensor {
	info := capi.describeTensor(p)
	h := newHandle(p, tensorKind, info.bytes, func(p ptr) { capi.deleteTensor(p, ownedStrings) })
	t := &Tensor{h: h, info: info}
	watch(t, h)
	return t
}

func outOfMemory(op string, dtype DType, shape []int64, bytes int64) error {
	return &Error{Op: op, Code: ResourceExhausted,
		Message: fmt.Sprintf("no memory for %s %v (%d bytes)", dtype, slices.Clone(shape), bytes)}
}

// maxRank is the most dimensions that TensorFlow takes; it ends the process for
// more (TensorShape in core/framework/tensor_shape.h: MaxDimensions).
const maxRank = 254

// elements returns the number of elements of a shape; 1 for the empty shape.
func elements(shape []int64) (int64, error) {
	if len(shape) > maxRank {
		return 0, fmt.Errorf("%w: %d dimensions, TensorFlow takes at most %d", ErrShape, len(shape), maxRank)
	}
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("%w: %v has a negative size", ErrShape, slices.Clone(shape))
		}
		if d > 0 && n > math.MaxInt64/stringBytes/d {
			return 0, fmt.Errorf("%w: %v has too many elements", ErrShape, slices.Clone(shape))
		}
		n *= d
	}
	return n, nil
}

// Close frees the tensor, or lets it be freed when the runs that use it end.
// Memory that TensorFlow still shares (a variable that was assigned the tensor)
// lives on until TensorFlow drops it. Closing twice does nothing.
func (t *Tensor) Close() error {
	if t != nil {
		t.h.close()
		runtime.KeepAlive(t) // see watch
	}
	return nil
}

// DType returns the element type.
func (t *Tensor) DType() DType { return t.info.dtype }

// Shape returns a copy of the shape; empty for a scalar.
func (t *Tensor) Shape() []int64 { return slices.Clone(t.info.shape) }

// Len returns the number of elements.
func (t *Tensor) Len() int { return int(t.info.elements) }

// Bytes returns the size of the buffer; for strings without what they hold
// outside it.
func (t *Tensor) Bytes() int64 { return t.info.bytes }

func (t *Tensor) expect(d DType) error {
	if t.info.dtype != d {
		return fmt.Errorf("%w: the tensor holds %s, asked for %s", ErrType, t.info.dtype, d)
	}
	return nil
}

// Values copies the elements out, flat and row-major. It fails with ErrType if
// T is not the tensor's element type.
func Values[T Element](t *Tensor) ([]T, error) {
	if err := t.expect(DTypeOf[T]()); err != nil {
		return nil, err
	}
	p, err := t.h.acquire()
	if err != nil {
		return nil, err
	}
	defer t.h.release()
	out := make([]T, t.info.elements)
	if s, ok := any(out).([]string); ok {
		for i := range s {
			s[i] = capi.getString(p, i)
		}
	} else if t.info.data != nil {
		copy(out, unsafe.Slice((*T)(t.info.data), t.info.elements))
	}
	return out, nil
}

// CopyTo copies the elements to dst, which must have room for exactly Len of
// them, without allocating.
func CopyTo[T Numeric](dst []T, t *Tensor) error {
	if err := t.expect(DTypeOf[T]()); err != nil {
		return err
	}
	if int64(len(dst)) != t.info.elements {
		return fmt.Errorf("copy tensor: %w: it holds %d elements, the slice has room for %d", ErrShape, t.info.elements, len(dst))
	}
	if _, err := t.h.acquire(); err != nil {
		return err
	}
	defer t.h.release()
	if t.info.data != nil {
		copy(dst, unsafe.Slice((*T)(t.info.data), t.info.elements))
	}
	return nil
}

// Float returns the value of a tensor with one numeric element.
func (t *Tensor) Float() (float64, error) {
	if t.info.elements != 1 || t.info.dtype == String {
		return 0, fmt.Errorf("scalar: %w: the tensor is %s of shape %v", ErrShape, t.info.dtype, t.info.shape)
	}
	if _, err := t.h.acquire(); err != nil {
		return 0, err
	}
	defer t.h.release()
	switch p := t.info.data; t.info.dtype {
	case Float32:
		return float64(*(*float32)(p)), nil
	case Float64:
		return *(*float64)(p), nil
	case Float16:
		return float64((*(*Half)(p)).Float32()), nil
	case BFloat16:
		return float64((*(*Brain)(p)).Float32()), nil
	case Int8:
		return float64(*(*int8)(p)), nil
	case Int16:
		return float64(*(*int16)(p)), nil
	case Int32:
		return float64(*(*int32)(p)), nil
	case Int64:
		return float64(*(*int64)(p)), nil
	case Uint8:
		return float64(*(*uint8)(p)), nil
	case Uint16:
		return float64(*(*uint16)(p)), nil
	case Uint32:
		return float64(*(*uint32)(p)), nil
	case Uint64:
		return float64(*(*uint64)(p)), nil
	case Bool:
		if *(*bool)(p) {
			return 1, nil
		}
		return 0, nil
	}
	return 0, fmt.Errorf("scalar: %w: %s", ErrType, t.info.dtype)
}
