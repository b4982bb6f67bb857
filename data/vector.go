package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// element lists the types that Array.Values may be a slice of.
type element interface {
	float32 | float64 | int8 | int16 | int32 | int64 |
		uint8 | uint16 | uint32 | uint64 | bool | string
}

// origin is where the values of a column lie: a vector, or a mapped file.
type origin interface {
	len() int
	typeName() string
	// elementSize is the size of one element in bytes, without the text that a
	// string points to.
	elementSize() int
	// same is a new vector of the same type.
	same(n int) vector
	// copyTo copies the elements from ... to-1 to dst, which is of the same type,
	// from its element at on.
	copyTo(dst vector, at, from, to int) error
	// gatherTo copies the samples listed in rows, each of width elements, to dst
	// from its element at on.
	gatherTo(dst vector, at int, rows []int, width int) error
}

// vector is a typed flat slice behind one interface, so that the type is
// switched on once, when a dataset is made, and not once per batch.
type vector interface {
	origin
	// values is the elements from ... to-1 as Array.Values has them. It allocates the slice
	// header that the interface points to, so callers keep the result.
	values(from, to int) any
	// copyValues copies a slice of n elements of the same type to the front. It
	// reports whether src is one.
	copyValues(src any, n int) bool
	// begins reports whether values begin where the element at of the vector is.
	begins(values any, at int) bool
	// fromFortran is the vector, in column-major order, in row-major order.
	fromFortran(shape []int) vector
	// write writes the elements as little-endian bytes.
	write(w io.Writer) error
	// appendText appends an element as text that parses to the same value.
	appendText(dst []byte, i int) []byte
}

type vec[T element] []T

func (v vec[T]) len() int { return len(v) }

func (v vec[T]) values(from, to int) any { return []T(v[from:to:to]) }

func (v vec[T]) typeName() string {
	var zero T
	return fmt.Sprintf("%T", zero)
}

func (v vec[T]) elementSize() int {
	var zero T
	if n := binary.Size(zero); n > 0 {
		return n
	}
	return stringHeader
}

// stringHeader is the size of a string in bytes, without its text.
const stringHeader = 16

func (v vec[T]) same(n int) vector { return make(vec[T], n) }

func (v vec[T]) copyTo(dst vector, at, from, to int) error {
	copy(dst.(vec[T])[at:], v[from:to])
	return nil
}

func (v vec[T]) copyValues(src any, n int) bool {
	s, ok := src.([]T)
	return ok && len(s) == n && copy(v, s) == n
}

func (v vec[T]) begins(values any, at int) bool {
	s, ok := values.([]T)
	return ok && len(s) > 0 && at < len(v) && &s[0] == &v[at]
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
	// Walk the result in its own order, moving the source position by the
	// column-major stride of whichever dimension advances.
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

func (v vec[T]) write(w io.Writer) error {
	const chunk = 8 << 10
	var raw []byte
	for part := range slices.Chunk(v, chunk) {
		var err error
		if raw, err = binary.Append(raw[:0], binary.LittleEndian, []T(part)); err != nil {
			return err
		}
		if _, err := w.Write(raw); err != nil {
			return err
		}
	}
	return nil
}

func (v vec[T]) appendText(dst []byte, i int) []byte {
	switch x := any(v[i]).(type) {
	case float32:
		return strconv.AppendFloat(dst, float64(x), 'g', -1, 32)
	case float64:
		return strconv.AppendFloat(dst, x, 'g', -1, 64)
	case int8:
		return strconv.AppendInt(dst, int64(x), 10)
	case int16:
		return strconv.AppendInt(dst, int64(x), 10)
	case int32:
		return strconv.AppendInt(dst, int64(x), 10)
	case int64:
		return strconv.AppendInt(dst, x, 10)
	case uint8:
		return strconv.AppendUint(dst, uint64(x), 10)
	case uint16:
		return strconv.AppendUint(dst, uint64(x), 10)
	case uint32:
		return strconv.AppendUint(dst, uint64(x), 10)
	case uint64:
		return strconv.AppendUint(dst, x, 10)
	case bool:
		return strconv.AppendBool(dst, x)
	case string:
		return append(dst, x...)
	}
	return dst
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

// arrayVector wraps the values of an Array whose shape fits them.
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

// emptyOf is an empty vector of a FieldSpec's type; same makes longer ones.
func emptyOf(typeName string) (vector, error) {
	switch typeName {
	case "float32":
		return vec[float32]{}, nil
	case "float64":
		return vec[float64]{}, nil
	case "int8":
		return vec[int8]{}, nil
	case "int16":
		return vec[int16]{}, nil
	case "int32":
		return vec[int32]{}, nil
	case "int64":
		return vec[int64]{}, nil
	case "uint8":
		return vec[uint8]{}, nil
	case "uint16":
		return vec[uint16]{}, nil
	case "uint32":
		return vec[uint32]{}, nil
	case "uint64":
		return vec[uint64]{}, nil
	case "bool":
		return vec[bool]{}, nil
	case "string":
		return vec[string]{}, nil
	}
	return nil, fmt.Errorf("element type %q: %w", typeName, ErrUnsupported)
}

// elements is the product of a shape.
func elements(shape []int) (int, error) {
	n := 1
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative size: %w", shape, ErrFormat)
		}
		if d == 0 {
			return 0, nil
		}
	}
	for _, d := range shape {
		if n > maxInt/d {
			return 0, fmt.Errorf("shape %v has more elements than this machine can address: %w", shape, ErrFormat)
		}
		n *= d
	}
	return n, nil
}

const maxInt = int(^uint(0) >> 1)

// stored is how an element lies in a binary file.
type stored struct {
	size int
	read func(r io.Reader, count, size int, order binary.ByteOrder, likely int64) (vector, error)
	// mapped is count elements of a mapped file, from byte offset on; nil if what
	// may lie there is no value of the type.
	mapped func(m *mapping, offset, count int) origin
}

// storedTypes has the element types of binary files by NumPy's code for them.
var storedTypes = map[string]stored{
	"f4": {4, readVector[float32], mapVector[float32]},
	"f8": {8, readVector[float64], mapVector[float64]},
	"i1": {1, readVector[int8], mapVector[int8]},
	"i2": {2, readVector[int16], mapVector[int16]},
	"i4": {4, readVector[int32], mapVector[int32]},
	"i8": {8, readVector[int64], mapVector[int64]},
	"u1": {1, readVector[uint8], mapVector[uint8]},
	"u2": {2, readVector[uint16], mapVector[uint16]},
	"u4": {4, readVector[uint32], mapVector[uint32]},
	"u8": {8, readVector[uint64], mapVector[uint64]},
	"b1": {1, readVector[bool], nil},
}

// readVector reads count elements of size bytes each. A header may claim any
// count, so memory is taken up front for at most the bytes that likely follow, and
// beyond that only as they come in.
func readVector[T element](r io.Reader, count, size int, order binary.ByteOrder, likely int64) (vector, error) {
	const chunk = 64 << 10 // a multiple of every size
	raw := make([]byte, min(chunk, count*size))
	out := make([]T, 0, min(int64(count), likely/int64(size)))
	for len(out) < count {
		n := min(len(raw)/size, count-len(out))
		got, err := io.ReadFull(r, raw[:n*size])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, fmt.Errorf("truncated: the header promises %d bytes of values, the file has %d: %w", count*size, len(out)*size+got, ErrFormat)
		}
		if err != nil {
			return nil, err
		}
		at := len(out)
		out = slices.Grow(out, n)[:at+n]
		if _, err := binary.Decode(raw[:n*size], order, out[at:]); err != nil {
			return nil, err
		}
	}
	return vec[T](out), nil
}
