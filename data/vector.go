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

// vector is a slice of any element type. Its type is found once per dataset, in vectorOf.
type vector interface {
	origin
	// element returns a pointer to element i.
	element(i int) unsafe.Pointer
	// values returns the slice of the elements in [from, to). Callers cache it, since the
	// conversion to an interface allocates.
	values(from, to int) any
	// copyValues copies the n elements of src, and returns false if src has another length or element type.
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
	for _, of := range []func(any) vector{vectorAs[float32], vectorAs[float64], vectorAs[int8], vectorAs[int16],
		vectorAs[int32], vectorAs[int64], vectorAs[uint8], vectorAs[uint16], vectorAs[uint32], vectorAs[uint64],
		vectorAs[bool], vectorAs[string]} {
		if v := of(values); v != nil {
			return v, nil
		}
	}
	return nil, fmt.Errorf("values of type %T: %w", values, ErrUnsupported)
}

// vectorAs returns the vector of a slice of T; nil for another value.
func vectorAs[T element](values any) vector {
	if v, ok := values.([]T); ok {
		return vec[T](v)
	}
	return nil
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

func textOf(v vector, i int) string { return string(v.kind().AppendText(nil, v.element(i))) }

func bytesOf(v vector, from, to int) []byte {
	if from == to {
		return nil
	}
	size := v.kind().Size
	return unsafe.Slice((*byte)(v.element(from)), (to-from)*size)
}

// bytesIn returns the size of values in memory.
func bytesIn(v vector) (size int64) {
	if texts, ok := v.(vec[string]); ok {
		for _, text := range texts {
			size += int64(len(text))
		}
	}
	return size + int64(v.len())*int64(v.kind().Size)
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

// fits returns an error if count elements have more than size bytes.
func (t fileType) fits(count int, size int64) error {
	if int64(count) > size/int64(t.size) {
		return fmt.Errorf("truncated: the header states %d values of %d bytes, the file has %d bytes: %w", count, t.size,
			size, ErrFormat)
	}
	return nil
}

// readArray reads an array up to the end of r, which has at most size bytes.
func readArray(r io.Reader, size int64, t fileType, shape []int, fortran bool) (Array, error) {
	n, err := elements(shape)
	if err == nil {
		err = t.fits(n, size)
	}
	if err == nil {
		err = checkMemory(int64(n) * int64(t.kind.Size))
	}
	if err != nil {
		return Array{}, err
	}
	var v vector
	if t.kind.Kind == dtype.StringKind {
		v, err = readText(r, t, n)
	} else {
		v, err = readNumbers(r, t, n)
	}
	if err != nil {
		return Array{}, corrupt(err)
	}
	switch _, err := io.ReadFull(r, make([]byte, 1)); err { // which also verifies a checksum
	case io.EOF:
	case nil:
		return Array{}, errMore
	default:
		return Array{}, corrupt(err)
	}
	if fortran && len(shape) > 1 {
		v = v.fromFortran(shape)
	}
	return Array{Shape: shape, Values: v.values(0, n)}, nil
}

// readNumbers reads count numbers or bools.
func readNumbers(r io.Reader, t fileType, count int) (vector, error) {
	v := makeVector(t.kind, count)
	raw := bytesOf(v, 0, count)
	if got, err := io.ReadFull(r, raw); err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("truncated: the header states %d bytes of values, the file has %d: %w", len(raw), got,
			ErrFormat)
	} else if err != nil {
		return nil, err
	}
	if t.kind.Kind == dtype.BoolKind {
		for i, b := range raw {
			raw[i] = min(b, 1)
		}
	}
	if t.size > 1 && t.order != binary.LittleEndian { // the order of this machine, an x86-64
		for e := range slices.Chunk(raw, t.size) {
			slices.Reverse(e)
		}
	}
	return v, nil
}
