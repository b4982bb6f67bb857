package tfbind

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"unsafe"

	"steadyfit/internal/dtype"
)

// numeric is a Go type for the elements of a tensor other than strings.
type numeric interface {
	float32 | float64 | dtype.Half | dtype.BFloat | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | bool
}

// element is a Go type for the elements of a tensor.
type element interface {
	numeric | string
}

// Tensor is an n-dimensional array in native memory. Its shape and type are fixed.
type Tensor struct {
	h    *handle
	info tensorInfo
}

// stringBytes is the size of a string element in native memory (TF_TString).
const stringBytes = 24

// NewTensor copies a flat row-major slice into a new tensor. No shape means a scalar. If the
// shape does not have len(values) elements, the error is ErrShape. The result must be closed.
func NewTensor[T element](values []T, shape ...int64) (*Tensor, error) {
	d, n := dtypeOf[T](), int64(len(values))
	if s, ok := any(values).([]string); ok {
		p, _, err := allocate(d, stringBytes, n, shape)
		if err != nil {
			return nil, err
		}
		capi.setStrings(p, s)
		return wrapTensor(p, n), nil
	}
	p, data, err := allocate(d, d.Size(), n, shape)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		copy(unsafe.Slice((*T)(data), n), values)
	}
	return wrapTensor(p, 0), nil
}

// NewRaw copies elements in their native representation into a new tensor; see Raw. The result
// must be closed.
func NewRaw(d DType, raw []byte, shape ...int64) (*Tensor, error) {
	size := d.Size()
	if size == 0 {
		return nil, fmt.Errorf("tensor of %s: %w: it has no elements of fixed size", d, ErrType)
	}
	if len(raw)%size != 0 {
		return nil, fmt.Errorf("tensor of %s: %w: %d bytes are no whole number of elements", d, ErrShape, len(raw))
	}
	p, data, err := allocate(d, size, int64(len(raw)/size), shape)
	if err != nil {
		return nil, err
	}
	if len(raw) > 0 {
		copy(unsafe.Slice((*byte)(data), len(raw)), raw)
	}
	return wrapTensor(p, 0), nil
}

// allocate makes a native tensor for n values of size bytes each.
func allocate(d DType, size int, n int64, shape []int64) (tensor, data ptr, err error) {
	if err := library(); err != nil {
		return nil, nil, err
	}
	has, err := elements(shape)
	if err != nil {
		return nil, nil, err
	}
	if has != n {
		return nil, nil, fmt.Errorf("tensor of shape %v: %w: it holds %d elements, got %d values", shape, ErrShape, has, n)
	}
	bytes := n * int64(size)
	if tensor, data = capi.newTensor(d, shape, bytes); tensor == nil {
		err = outOfMemory("new tensor", d, shape, bytes)
	}
	return tensor, data, err
}

// wrapTensor takes ownership of a native tensor. ownedStrings is the number of strings in it
// that this package made.
func wrapTensor(p ptr, ownedStrings int64) *Tensor {
	info := capi.describeTensor(p, nil)
	h := newHandle(p, tensorKind, info.bytes, func(p ptr) { capi.deleteTensor(p, ownedStrings) })
	t := &Tensor{h: h, info: info}
	watch(t, h)
	return t
}

func outOfMemory(op string, dt DType, shape []int64, bytes int64) error {
	return &Error{Op: op, Code: "RESOURCE_EXHAUSTED",
		Message: fmt.Sprintf("no memory for %s %v (%d bytes)", dt, slices.Clone(shape), bytes)}
}

// maxRank is the maximum number of dimensions. For more, TensorFlow aborts the process
// (TensorShape::MaxDimensions in core/framework/tensor_shape.h).
const maxRank = 254

// elements returns the number of elements of a shape.
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

// Close frees the tensor after the last run that uses it. TensorFlow may share its memory with
// a variable, and then frees it later. Closing twice does nothing.
func (t *Tensor) Close() error {
	if t != nil {
		t.h.close()
		runtime.KeepAlive(t)
	}
	return nil
}

// DType returns the element type.
func (t *Tensor) DType() DType { return t.info.dtype }

// Shape returns a copy of the shape, which is empty for a scalar.
func (t *Tensor) Shape() []int64 { return slices.Clone(t.info.shape) }

// Bytes returns the size of the buffer, without strings longer than 22 bytes.
func (t *Tensor) Bytes() int64 { return t.info.bytes }

func valuesOf[T element](tensor ptr, info tensorInfo) []T {
	out := make([]T, info.elements)
	if s, ok := any(out).([]string); ok {
		for i := range s {
			s[i] = capi.getString(tensor, i)
		}
	} else {
		info.copyTo(ptr(unsafe.SliceData(out)))
	}
	return out
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
	t.info.copyTo(ptr(unsafe.SliceData(raw)))
	return raw, nil
}

// copyTo copies the elements to memory of their size. The elements must not be strings.
func (info *tensorInfo) copyTo(to ptr) {
	if size := info.elements * int64(info.dtype.Size()); info.data != nil {
		copy(unsafe.Slice((*byte)(to), size), unsafe.Slice((*byte)(info.data), size))
	}
}

// Slice copies the elements to a flat slice of their Go type. Float16 and BFloat16 become
// float32, without rounding. Slice uses the memory of buf if buf has the right type and
// capacity; strings and half-precision values never use it.
func (t *Tensor) Slice(buf any) (any, error) {
	p, err := t.h.acquire()
	if err != nil {
		return nil, err
	}
	defer t.h.release()
	return sliceOf(p, t.info, buf)
}

// sliceOf implements Tensor.Slice. It does not allocate if buf has the right type and length.
func sliceOf(tensor ptr, info tensorInfo, buf any) (any, error) {
	switch info.dtype {
	case String:
		return valuesOf[string](tensor, info), nil
	case Float16:
		return widened[dtype.Half](tensor, info), nil
	case BFloat16:
		return widened[dtype.BFloat](tensor, info), nil
	}
	typ := dtype.ByCode(int32(info.dtype))
	if typ == nil {
		return nil, fmt.Errorf("%w: a tensor of %s cannot be read", ErrType, info.dtype)
	}
	n := int(info.elements)
	switch has, _, length := dtype.Data(buf); {
	case has == typ && length == n:
	case has == typ && reflect.ValueOf(buf).Cap() >= n:
		buf = reflect.ValueOf(buf).Slice(0, n).Interface()
	default:
		buf = typ.Make(n)
	}
	_, first, _ := dtype.Data(buf)
	info.copyTo(first)
	return buf, nil
}

func widened[T interface {
	dtype.Half | dtype.BFloat
	Float32() float32
}](tensor ptr, info tensorInfo) []float32 {
	narrow := valuesOf[T](tensor, info)
	wide := make([]float32, len(narrow))
	for i, v := range narrow {
		wide[i] = v.Float32()
	}
	return wide
}
