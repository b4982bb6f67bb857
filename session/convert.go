package session

import (
	"fmt"
	"math"

	"steadyfit/internal/dtype"
	"steadyfit/tfbind"
)

// number is a Go type that can be converted to every numeric element type.
type number interface {
	float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// piece is one of several equal parts of an input. The field at is its index, and the field of is
// the number of parts.
type piece struct{ at, of int }

// whole is the entire input.
var whole = piece{0, 1}

// store converts values to the type of input i and copies them into a piece of it. shape is the
// shape of the whole input. If the shape is unchanged, the other pieces keep their values.
func store(st *tfbind.Step, i int, to tfbind.DType, values any, shape []int64, p piece) error {
	switch v := values.(type) {
	case []float32:
		return storeNumbers(st, i, to, v, shape, p)
	case []float64:
		return storeNumbers(st, i, to, v, shape, p)
	case []int8:
		return storeNumbers(st, i, to, v, shape, p)
	case []int16:
		return storeNumbers(st, i, to, v, shape, p)
	case []int32:
		return storeNumbers(st, i, to, v, shape, p)
	case []int64:
		return storeNumbers(st, i, to, v, shape, p)
	case []uint8:
		return storeNumbers(st, i, to, v, shape, p)
	case []uint16:
		return storeNumbers(st, i, to, v, shape, p)
	case []uint32:
		return storeNumbers(st, i, to, v, shape, p)
	case []uint64:
		return storeNumbers(st, i, to, v, shape, p)
	case []bool:
		return storeBools(st, i, to, v, shape, p)
	case []string:
		if to == tfbind.String && p == whole {
			return st.Set(i, v, shape...)
		}
	}
	return fmt.Errorf("%w: %T cannot be fed to an input of %s", tfbind.ErrType, values, to)
}

func storeNumbers[S number](st *tfbind.Step, i int, to tfbind.DType, src []S, shape []int64, p piece) error {
	switch to {
	case tfbind.Float32:
		return fill(st, i, src, shape, p, func(dst []float32) error { return toFloats(dst, src, to) })
	case tfbind.Float64:
		return fill(st, i, src, shape, p, func(dst []float64) error { return toFloats(dst, src, to) })
	case tfbind.Float16:
		return fill(st, i, src, shape, p, func(dst []dtype.Half) error { return toHalves(dst, src, to, dtype.NewHalf) })
	case tfbind.BFloat16:
		return fill(st, i, src, shape, p, func(dst []dtype.BFloat) error { return toHalves(dst, src, to, dtype.NewBFloat) })
	case tfbind.Int8:
		return fill(st, i, src, shape, p, func(dst []int8) error { return toInts(dst, src) })
	case tfbind.Int16:
		return fill(st, i, src, shape, p, func(dst []int16) error { return toInts(dst, src) })
	case tfbind.Int32:
		return fill(st, i, src, shape, p, func(dst []int32) error { return toInts(dst, src) })
	case tfbind.Int64:
		return fill(st, i, src, shape, p, func(dst []int64) error { return toInts(dst, src) })
	case tfbind.Uint8:
		return fill(st, i, src, shape, p, func(dst []uint8) error { return toInts(dst, src) })
	case tfbind.Uint16:
		return fill(st, i, src, shape, p, func(dst []uint16) error { return toInts(dst, src) })
	case tfbind.Uint32:
		return fill(st, i, src, shape, p, func(dst []uint32) error { return toInts(dst, src) })
	case tfbind.Uint64:
		return fill(st, i, src, shape, p, func(dst []uint64) error { return toInts(dst, src) })
	}
	return fmt.Errorf("%w: numbers cannot be fed to an input of %s", tfbind.ErrType, to)
}

func storeBools(st *tfbind.Step, i int, to tfbind.DType, src []bool, shape []int64, p piece) error {
	if to == tfbind.Bool {
		return fill(st, i, src, shape, p, func([]bool) error { return nil })
	}
	bits := make([]uint8, len(src))
	for j, b := range src {
		if b {
			bits[j] = 1
		}
	}
	return storeNumbers(st, i, to, bits, shape, p)
}

func setScalar(st *tfbind.Step, i int, to tfbind.DType, value float64) error {
	values := [1]float64{value}
	return storeNumbers(st, i, to, values[:], nil, whole)
}

// fill copies values into a piece of input i. It calls convert if their type differs from that of the input.
func fill[D number | dtype.Half | dtype.BFloat | bool, S number | bool](st *tfbind.Step, i int, src []S, shape []int64,
	p piece, convert func(dst []D) error) error {
	return tfbind.SetFunc(st, i, func(dst []D) error {
		n := len(dst) / p.of
		if dst = dst[p.at*n : (p.at+1)*n]; len(dst) != len(src) {
			return fmt.Errorf("%w: the shape holds %d elements, got %d values", tfbind.ErrShape, len(dst), len(src))
		}
		if same, ok := any(src).([]D); ok {
			copy(dst, same)
			return nil
		}
		return convert(dst)
	}, shape...)
}

// errOverflow returns the error for a finite value that would become infinite.
func errOverflow(v any, at int, to tfbind.DType) error {
	return fmt.Errorf("value %v at position %d: %w: too large for %s", v, at, tfbind.ErrType, to)
}

// toHalves converts and rounds values to a half-precision type.
func toHalves[D interface {
	dtype.Half | dtype.BFloat
	Float32() float32
}, S number](dst []D, src []S, to tfbind.DType, round func(float32) D) error {
	for j, v := range src {
		dst[j] = round(float32(v))
		if math.IsInf(float64(dst[j].Float32()), 0) && !math.IsInf(float64(v), 0) {
			return errOverflow(v, j, to)
		}
	}
	return nil
}

// toFloats converts values to a floating-point type. It may round to float32.
func toFloats[D float32 | float64, S number](dst []D, src []S, to tfbind.DType) error {
	for j, v := range src {
		dst[j] = D(v)
		if math.IsInf(float64(dst[j]), 0) && !math.IsInf(float64(v), 0) {
			return errOverflow(v, j, to)
		}
	}
	return nil
}

// toInts converts values to an integer type. It rejects a value that the type cannot represent,
// because rounding could change a label.
func toInts[D int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64, S number](dst []D, src []S) error {
	for j, v := range src {
		d := D(v)
		// The result of an out-of-range conversion depends on the processor, but converting it
		// back never gives the same value with the same sign.
		if S(d) != v || (d < 0) != (v < 0) {
			return fmt.Errorf("value %v at position %d: %w: the input takes integers only", v, j, tfbind.ErrType)
		}
		dst[j] = d
	}
	return nil
}
