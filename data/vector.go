package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"unsafe"

	"steadyfit/internal/dtype"
)

// element lists the element types of Array.Values.
type element interface {
	float32 | float64 | int8 | int16 | int32 | int64 |
		uint8 | uint16 | uint32 | uint64 | bool | string
}

// origin is the storage of a column's values: a vector, or a mapped file.
type origin interface {
	len() int
	kind() *dtype.Type
	// copyTo copies elements from ... to-1 to dst[at:]; dst has the same element type.
	copyTo(dst vector, at, from, to int) error
	// gatherTo copies the samples listed in rows, each of width elements, to dst[at:].
	gatherTo(dst vector, at int, rows []int, width int) error
}

// vector is a flat slice of any element type. The type switch then happens once per dataset
// instead of once per batch.
type vector interface {
	origin
	// element returns the address of element i.
	element(i int) unsafe.Pointer
	// values returns the slice of elements from ... to-1. It allocates the slice header that
	// the interface points to, so callers cache the result.
	values(from, to int) any
	// copyValues copies n elements of src to the start. It reports false if src is not a slice
	// of n elements of the same type.
	copyValues(src any, n int) bool
	// extend returns the vector with n more elements of undefined value.
	extend(n int) vector
	// fromFortran converts a vector from column-major to row-major order.
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

func (v vec[T]) gatherTo(dst vector, at int, rows []int, width int) error {
	to := dst.(vec[T])[at : at+len(rows)*width]
	if width == 1 {
		for i, r := range rows {
			to[i] = v[r]
		}
		return nil
	}
	for i, r := range rows {
		copy(to[i*width:(i+1)*width], v[r*width:])
	}
	return nil
}

func (v vec[T]) fromFortran(shape []int) vector {
	// The loop follows the order of the result, and moves the source position by the
	// column-major stride of the dimension that advances.
	stride := make([]int, len(shape))
	step := 1
	for d, n := range shape {
		stride[d] = step
		step *= n
	}
	out := make(vec[T], len(v))
	at := make([]int, len(shape))
	from := 0
	for i := range out {
		out[i] = v[from]
		for d := len(shape) - 1; d >= 0; d-- {
			at[d]++
			from += stride[d]
			if at[d] < shape[d] {
				break
			}
			from -= at[d] * stride[d]
			at[d] = 0
		}
	}
	return out
}

// vectorOf wraps the values of an Array.
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

// arrayVector wraps the values of an Array whose shape matches them.
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

// makeVector makes a vector of an element type that a FieldSpec can have.
func makeVector(kind *dtype.Type, n int) vector {
	v, _ := vectorOf(kind.Make(n)) // every type with a slice type is supported
	return v
}

// kindOf returns the element type with the name in a FieldSpec.
func kindOf(name string) (*dtype.Type, error) {
	if t := dtype.ByName(name); t != nil && t.Slice != nil {
		return t, nil
	}
	return nil, fmt.Errorf("element type %q: %w", name, ErrUnsupported)
}

// appendText appends an element as text that parses to the same value.
func appendText(b []byte, v vector, i int) []byte { return v.kind().AppendText(b, v.element(i)) }

// beginsAt reports whether a slice begins at element at of the vector.
func beginsAt(values any, v vector, at int) bool {
	kind, first, n := dtype.Data(values)
	return kind == v.kind() && n > 0 && at < v.len() && first == v.element(at)
}

// bytesOf returns the memory of elements from ... to-1 of a vector of numbers or bools.
func bytesOf(v vector, from, to int) []byte {
	if from == to {
		return nil
	}
	size := v.kind().Size
	return unsafe.Slice((*byte)(v.element(from)), (to-from)*size)
}

// elements returns the product of a shape.
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

// fileType describes how the elements of a binary file are stored.
type fileType struct {
	kind  *dtype.Type
	size  int // bytes of an element in the file
	order binary.ByteOrder
	utf32 bool // text of four bytes per character
}

// readArray reads an array of that shape from r to its end, and counts it against the limit. r
// has about likely bytes.
func readArray(r io.Reader, l *limit, t fileType, shape []int, fortran bool, likely int64) (Array, error) {
	n, err := elements(shape)
	if err != nil {
		return Array{}, err
	}
	copies, turned := 1, fortran && len(shape) > 1
	if turned {
		copies = 2
	}
	if likely, err = l.expect(n, t.size, copies, likely); err != nil {
		return Array{}, err
	}
	read := readNumbers
	if t.kind.Kind == dtype.String {
		read = readText
	}
	v, err := read(r, l, t, n, likely)
	if err != nil {
		return Array{}, corrupt(err)
	}
	if err := atEnd(r); err != nil {
		return Array{}, err
	}
	if turned {
		v = v.fromFortran(shape)
	}
	return Array{Shape: shape, Values: v.values(0, n)}, nil
}

// readNumbers reads count numbers or bools. A header may state any count, so memory is
// allocated in advance only for the bytes that likely follow, and for more as they are read.
func readNumbers(r io.Reader, _ *limit, t fileType, count int, likely int64) (vector, error) {
	const chunk = 64 << 10 // a multiple of every size
	v := makeVector(t.kind, int(min(int64(count), likely/int64(t.size))))
	for at := 0; at < count; {
		n := min(chunk/t.size, count-at)
		if more := at + n - v.len(); more > 0 {
			v = v.extend(more)
		}
		raw := bytesOf(v, at, at+n)
		got, err := io.ReadFull(r, raw)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, fmt.Errorf("truncated: the header states %d bytes of values, the file has %d: %w", count*t.size, at*t.size+got, ErrFormat)
		}
		if err != nil {
			return nil, err
		}
		if t.kind.Kind == dtype.Bool {
			for i, b := range raw {
				raw[i] = min(b, 1)
			}
		}
		reorder(raw, t.size, t.order)
		at += n
	}
	return v, nil
}

// reorder reverses the bytes of each element, unless this machine has that byte order.
func reorder(raw []byte, size int, order binary.ByteOrder) {
	if size == 1 || native(order) {
		return
	}
	for e := range slices.Chunk(raw, size) {
		slices.Reverse(e)
	}
}

// native reports whether this machine has that byte order.
func native(order binary.ByteOrder) bool {
	probe := []byte{1, 0}
	return order.Uint16(probe) == binary.NativeEndian.Uint16(probe)
}

// writeNumbers writes the elements as little-endian bytes.
func writeNumbers(w io.Writer, v vector) error {
	raw := bytesOf(v, 0, v.len())
	if size := v.kind().Size; size > 1 && !native(binary.LittleEndian) {
		raw = slices.Clone(raw)
		reorder(raw, size, binary.LittleEndian)
	}
	_, err := w.Write(raw)
	return err
}
