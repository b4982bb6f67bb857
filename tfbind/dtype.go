package tfbind

import "strconv"

// DType is the element type of a tensor. The values are those of TF_DataType
// and of the DataType enum in tensorflow/core/framework/types.proto.
type DType int32

// The element types that steadyfit can create, feed and read.
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

var dtypes = map[DType]struct {
	name string
	size int
}{
	Float32: {"float32", 4}, Float64: {"float64", 8},
	Float16: {"float16", 2}, BFloat16: {"bfloat16", 2},
	Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Uint8: {"uint8", 1}, Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
	Bool: {"bool", 1}, String: {"string", 0},
}

// String returns TensorFlow's Python name of the type, as in "float32".
func (d DType) String() string {
	if t, ok := dtypes[d]; ok {
		return t.name
	}
	return "dtype(" + strconv.Itoa(int(d)) + ")"
}

// Size returns the bytes per element; 0 for String and for unknown types.
func (d DType) Size() int { return dtypes[d].size }

// Supported reports whether steadyfit can feed and read tensors of the type.
func (d DType) Supported() bool { _, ok := dtypes[d]; return ok }
