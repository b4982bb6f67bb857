package dtype

import "strconv"

// DType is the element type of a tensor, with the values of TF_DataType and of the enum
// DataType in tensorflow/core/framework/types.proto. Its public name is tfbind.DType.
type DType int32

// The element types of tensors that steadyfit can create, feed and read.
const (
	Float32  DType = 1
	Float64  DType = 2
	Int32    DType = 3
	Uint8    DType = 4
	Int16    DType = 5
	Int8     DType = 6
	String   DType = 7
	Int64    DType = 9
	Bool     DType = 10
	BFloat16 DType = 14
	Uint16   DType = 17
	Float16  DType = 19
	Uint32   DType = 22
	Uint64   DType = 23
)

// String returns the name in TensorFlow's Python API, such as "float32".
func (d DType) String() string {
	if t := ByCode(int32(d)); t != nil {
		return t.Name
	}
	return "dtype(" + strconv.Itoa(int(d)) + ")"
}

// MarshalText returns the result of String, which JSON contains.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Size returns the bytes per element; 0 for String and for unknown types.
func (d DType) Size() int {
	if t := ByCode(int32(d)); t != nil && d != String {
		return t.Size
	}
	return 0
}
