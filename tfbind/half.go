package tfbind

import (
	"math"

	"github.com/x448/float16"
)

// Half is an IEEE 754 binary16 number, the element type of a Float16 tensor.
type Half uint16

// NewHalf rounds to the nearest Half, ties to even. A value that is too large becomes an
// infinity.
func NewHalf(f float32) Half { return Half(float16.Fromfloat32(f)) }

// Float32 returns the exact value.
func (h Half) Float32() float32 { return float16.Float16(h).Float32() }

// Brain is a bfloat16 number, the upper half of a float32. It is the element type of a BFloat16
// tensor.
type Brain uint16

// NewBrain rounds to the nearest Brain, ties to even. NaN stays NaN.
func NewBrain(f float32) Brain {
	bits := math.Float32bits(f)
	if f != f {
		return Brain(bits>>16 | 0x40) // 0x40 keeps a NaN from becoming an infinity
	}
	return Brain((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 returns the exact value.
func (b Brain) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }
