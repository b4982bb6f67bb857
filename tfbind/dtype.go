package tfbind

import "steadyfit/internal/dtype"

// DType is the element type of a tensor, with the values of TF_DataType.
type DType = dtype.DType

// The element types of tensors that steadyfit can create, feed and read.
const (
	Float32  = dtype.Float32
	Float64  = dtype.Float64
	Int32    = dtype.Int32
	Uint8    = dtype.Uint8
	Int16    = dtype.Int16
	Int8     = dtype.Int8
	String   = dtype.String
	Int64    = dtype.Int64
	Bool     = dtype.Bool
	BFloat16 = dtype.BFloat16
	Uint16   = dtype.Uint16
	Float16  = dtype.Float16
	Uint32   = dtype.Uint32
	Uint64   = dtype.Uint64
)

// dtypeOf returns the element type of T.
func dtypeOf[T element]() DType {
	var zero T
	switch any(zero).(type) {
	case dtype.Half:
		return Float16
	case dtype.BFloat:
		return BFloat16
	}
	return DType(dtype.For[T]().Code)
}
