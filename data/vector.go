package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"unsafe"

	"steadyfit/internal/dtype"
)

type element interface {
	float32 | float64 | int8 | int16 | int32 | int64 |
		uint8 | uint16 | uint32 | uint64 | bool | string
}

// origin is where the values of a column are stored: in a vector or in a file.
type origin interface {
	len() int
	kind() *dtype.Type
	// copyTo copies the elements in [from, to) to dst[at:].
	copyTo(dst vector, at, from, to int) error
}

// vector is a slice of any element type. The type switch happens once per dataset, in vectorOf.
type vector interface {
	origin
	// element returns a pointer to element i.
	element(i int) unsafe.Pointer
	// values returns the slice of the elements in [from, to). Callers cache it, since the
	// conversion to an interface allocates.
	values(from, to int) any
	// copyValues copies the n elements of src, and returns false if src has another length or
	// element type.
	copyValues(src any, n int) bool
	// extend returns the vector with n more elements of undefined value.
	extend(n int) vector
	// fromFortran converts column-major order to row-major order.
	fromFortran(shape []int) vector
}

type vec[T element] []T

func (v vec[T]) len() int { return len(v) }

func (v vec[T]) kind() *dtype.Type { return dtype.For[T]() }

func (v vec[T]) element(i int) unsafe.Pointer { return unsafe.Pointer(&v[i]) }

func (v vec[T]) values(from, to int) any { return []T(v[from:to:to]) }

func (v vec[T]) extend(n int) vector { return slices.Grow(v, n)[:len(v)+n] }

func (v vec[T]) copyTo(dst vector, at, from, to int) error {
	copy(dst.(vec[T])[at:], v[from:to])
	return nil
}

func (v vec[T]) copyValues(src any, n int) bool {
	s, ok := src.([]T)
	return ok && len(s) == n && copy(v, s) == n
}

func (v vec[T]) fromFortran(shape []int) vector {
	out := make(vec[T], len(v))
	for i := range out {
		from, rest, stride := 0, i, len(v)
		for d := len(shape) - 1; d >= 0; d-- { // the last dimension has the largest stride in v
			stride /= shape[d]
			from += rest % shape[d] * stride
			rest /= shape[d]
		}
		out[i] = v[from]
	}
	return out
}

func vectorOf(values any) (vector, error) {
	switch v := values.(type) {
	case []float32:
		return vec[float32](v), nil
	case []float64:
		return vec[float64](v), nil
	case []int8:
		return vec[int8](v), nil
	case []int16:
		return vec[int16](v), nil
	case []int32:
		return vec[int32](v), nil
	case []int64:
		return vec[int64](v), nil
	case []uint8:
		return vec[uint8](v), nil
	case []uint16:
		return vec[uint16](v), nil
	case []uint32:
		return vec[uint32](v), nil
	case []uint64:
		return vec[uint64](v), nil
	case []bool:
		return vec[bool](v), nil
	case []string:
		return vec[string](v), nil
	}
	return nil, fmt.Errorf("values of type %T: %w", values, ErrUnsupported)
}

// arrayVector returns the values of an Array. A shape that does not match them is an error.
func arrayVector(a Array) (vector, error) {
	v, err := vectorOf(a.Values)
	if err != nil {
		return nil, err
	}
	n, err := elements(a.Shape)
	if err != nil {
		return nil, err
	}
	if n != v.len() {
		return nil, fmt.Errorf("shape %v has %d elements, but there are %d values: %w", a.Shape, n, v.len(), ErrFormat)
	}
	return v, nil
}

func makeVector(kind *dtype.Type, n int) vector {
	v, _ := vectorOf(kind.Make(n)) // vectorOf supports every type that Make supports
	return v
}

func kindOf(name string) (*dtype.Type, error) {
	if t := dtype.ByName(name); t != nil && t.Slice != nil {
		return t, nil
	}
	return nil, fmt.Errorf("element type %q: %w", name, ErrUnsupported)
}

func appendText(b []byte, v vector, i int) []byte { return v.kind().AppendText(b, v.element(i)) }

func bytesOf(v vector, from, to int) []byte {
	if from == to {
		return nil
	}
	size := v.kind().Size
	return unsafe.Slice((*byte)(v.element(from)), (to-from)*size)
}

func elements(shape []int) (int, error) {
	n, empty := 1, slices.Contains(shape, 0)
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("shape %v has a negative size: %w", shape, ErrFormat)
		case !empty && n > maxInt/d:
			return 0, fmt.Errorf("shape %v exceeds the address space of this machine: %w", shape, ErrFormat)
		}
		n *= d
	}
	if empty {
		return 0, nil
	}
	return n, nil
}

const maxInt = int(^uint(0) >> 1)

type fileType struct {
	kind  *dtype.Type
	size  int // bytes per element
	order binary.ByteOrder
	utf32 bool // text with four bytes per character
}

// readArray reads an array up to the end of r, and counts it against
// the limit.
func readArray(r io.Reader, l *limit, t fileType, shape []int, fortran bool) (Array, error) {
	n, err := elements(shape)
	if err != nil {
		return Array{}, err
	}
	first, err := l.expect(n, t.size)
	if err != nil {
		return Array{}, err
	}
	var v vector
	if t.kind.Kind == dtype.StringKind {
		if err = l.take(int64(n) * int64(t.kind.Size)); err == nil { // of the texts in memory
			v, err = readText(r, t, n)
		}
	} else {
		v, err = readNumbers(r, t, n, first)
	}
	if err != nil {
		return Array{}, corrupt(err)
	}
	if err := atEnd(r); err != nil {
		return Array{}, err
	}
	if fortran && len(shape) > 1 {
		v = v.fromFortran(shape)
	}
	return Array{Shape: shape, Values: v.values(0, n)}, nil
}

// readNumbers reads count numbers or bools. Since count may be wrong, memory is allocated in advance
// only for the first ones, and grows as more bytes are read.
func readNumbers(r io.Reader, t fileType, count, first int) (vector, error) {
	const chunk = 64 << 10 // a multiple of all element sizes
	v := makeVector(t.kind, first)
	for at := 0; at < count; {
		n := min(chunk/t.size, count-at)
		if more := at + n - v.len(); more > 0 {
			v = v.extend(more)
		}
		raw := bytesOf(v, at, at+n)
		got, err := io.ReadFull(r, raw)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, fmt.Errorf("truncated: the header states %d bytes of values, the file has %d: %w", count*t.size,
				at*t.size+got, ErrFormat)
		}
		if err != nil {
			return nil, err
		}
		if t.kind.Kind == dtype.BoolKind {
			for i, b := range raw {
				raw[i] = min(b, 1)
			}
		}
		reorder(raw, t.size, t.order)
		at += n
	}
	return v, nil
}

// reorder reverses the bytes of each element if order is not the byte order of this machine, an x86-64.
func reorder(raw []byte, size int, order binary.ByteOrder) {
	if size == 1 || order == binary.LittleEndian {
		return
	}
	for e := range slices.Chunk(raw, size) {
		slices.Reverse(e)
	}
}
