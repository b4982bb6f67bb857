// Package dtype is a table of element types with their names in Go, NumPy and TensorFlow, and functions for
// elements whose type is known only at run time.
package dtype

import (
	"math"
	"reflect"
	"strconv"
	"unsafe"
)

type Kind uint8

// Kinds of element types.
const (
	FloatKind Kind = iota
	IntKind
	UintKind
	BoolKind
	StringKind
)

// Type is an element type. There is one *Type per element type, so pointers can be compared.
type Type struct {
	// Name is the name in Go and TensorFlow, such as "float32".
	Name string
	Kind Kind
	// Size is the number of bytes per element; for strings, the size of the string header.
	Size int
	// Code is the value of TensorFlow's DataType (tensorflow/core/framework/types.proto).
	Code int32
	// NumPy is NumPy's type code without byte order, such as "f4". It is empty for strings, whose
	// code includes a width.
	NumPy string
	// Slice is the type of a Go slice of elements; nil for types that Go lacks.
	Slice reflect.Type

	float  func(unsafe.Pointer) float64
	int    func(unsafe.Pointer) (int64, bool)
	append func([]byte, unsafe.Pointer) []byte
}

type number interface {
	float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

var types = []*Type{
	numeric[float32](1), numeric[float64](2),
	numeric[int8](6), numeric[int16](5), numeric[int32](3), numeric[int64](9),
	numeric[uint8](4), numeric[uint16](17), numeric[uint32](22), numeric[uint64](23),
	{
		Name: "bool", Kind: BoolKind, Size: 1, Code: 10, NumPy: "b1", Slice: reflect.TypeFor[[]bool](),
		float:  func(p unsafe.Pointer) float64 { return float64(bit(p)) },
		int:    func(p unsafe.Pointer) (int64, bool) { return bit(p), true },
		append: func(b []byte, p unsafe.Pointer) []byte { return strconv.AppendBool(b, *(*bool)(p)) },
	},
	{
		Name: "string", Kind: StringKind, Size: int(unsafe.Sizeof("")), Code: 7, Slice: reflect.TypeFor[[]string](),
		append: func(b []byte, p unsafe.Pointer) []byte { return append(b, *(*string)(p)...) },
	},
	{Name: "float16", Kind: FloatKind, Size: 2, Code: 19},
	{Name: "bfloat16", Kind: FloatKind, Size: 2, Code: 14},
}

func bit(p unsafe.Pointer) int64 {
	if *(*bool)(p) {
		return 1
	}
	return 0
}

func numeric[T number](code int32) *Type {
	var zero T
	t := &Type{
		Name: reflect.TypeFor[T]().Name(), Size: int(unsafe.Sizeof(zero)), Code: code, Slice: reflect.TypeFor[[]T](),
		float: func(p unsafe.Pointer) float64 { return float64(*(*T)(p)) },
	}
	t.int = func(p unsafe.Pointer) (int64, bool) {
		v := *(*T)(p)
		n := int64(v)
		// The result of a conversion out of range depends on the machine, but does not convert back to the
		// same value and sign. From 2^53 on, several integers have the same float64.
		return n, T(n) == v && (n < 0) == (v < 0) && (t.Kind != FloatKind || math.Abs(float64(v)) < 1<<53)
	}
	switch one := T(1); {
	case one/2 != 0:
		t.Kind = FloatKind
		t.append = func(b []byte, p unsafe.Pointer) []byte {
			return strconv.AppendFloat(b, float64(*(*T)(p)), 'g', -1, 8*t.Size)
		}
	case zero-one > zero:
		t.Kind = UintKind
		t.append = func(b []byte, p unsafe.Pointer) []byte { return strconv.AppendUint(b, uint64(*(*T)(p)), 10) }
	default:
		t.Kind = IntKind
		t.append = func(b []byte, p unsafe.Pointer) []byte { return strconv.AppendInt(b, int64(*(*T)(p)), 10) }
	}
	t.NumPy = string("fiu"[t.Kind]) + strconv.Itoa(t.Size)
	return t
}

var (
	byName, byNumPy = map[string]*Type{}, map[string]*Type{}
	byCode          [24]*Type
	byKind          [reflect.UnsafePointer + 1]*Type
)

func init() {
	for _, t := range types {
		byName[t.Name], byCode[t.Code] = t, t
		if t.NumPy != "" {
			byNumPy[t.NumPy] = t
		}
		if t.Slice != nil {
			byKind[t.Slice.Elem().Kind()] = t
		}
	}
}

// ByName returns the type with a name, or nil.
func ByName(name string) *Type { return byName[name] }

// ByNumPy returns the type with a NumPy code without byte order, such as "f4", or nil.
func ByNumPy(code string) *Type { return byNumPy[code] }

// ByCode returns the type with a value of TensorFlow's DataType, or nil.
func ByCode(code int32) *Type {
	if code < 0 || int(code) >= len(byCode) {
		return nil
	}
	return byCode[code]
}

// For returns the element type of T, or nil for other types, including named types.
func For[T any]() *Type { return ofSlice(reflect.TypeFor[[]T]()) }

// Of returns the element type of a slice, or nil if values is not a slice of a known type. It does not
// allocate.
func Of(values any) *Type {
	t := reflect.TypeOf(values)
	if t == nil || t.Kind() != reflect.Slice {
		return nil
	}
	return ofSlice(t)
}

func ofSlice(slice reflect.Type) *Type {
	t := byKind[slice.Elem().Kind()]
	if t == nil || t.Slice != slice {
		return nil
	}
	return t
}

// Data returns the element type, the first element and the length of a slice. It does not allocate, and
// does not make values escape as reflect.Value.UnsafePointer does.
func Data(values any) (t *Type, first unsafe.Pointer, n int) {
	if t = Of(values); t == nil {
		return nil, nil, 0
	}
	// An interface holds a pointer to the type and a pointer to the value, here a slice header.
	header := *(*[]byte)((*[2]unsafe.Pointer)(unsafe.Pointer(&values))[1])
	return t, unsafe.Pointer(unsafe.SliceData(header)), len(header)
}

// Make returns a slice of n elements with the type t.Slice.
func (t *Type) Make(n int) any { return reflect.MakeSlice(t.Slice, n, n).Interface() }

// Float returns the number at p. Bools are 0 and 1.
func (t *Type) Float(p unsafe.Pointer) float64 { return t.float(p) }

// Int returns the number at p. Bools are 0 and 1. ok is false for strings, for floats of 2^53 or more, and
// for numbers that int64 cannot represent.
func (t *Type) Int(p unsafe.Pointer) (n int64, ok bool) {
	if t.int == nil {
		return 0, false
	}
	return t.int(p)
}

// AppendText appends the element at p as text that parses to the same value.
func (t *Type) AppendText(b []byte, p unsafe.Pointer) []byte { return t.append(b, p) }
