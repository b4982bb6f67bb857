// Package half has the two half-precision number types of tensors.
package half

import (
	"math"

	"github.com/x448/float16"
)

// Float16 is an IEEE 754 binary16 number, the element type of tfbind.Float16.
type Float16 uint16

// NewFloat16 rounds to the nearest Float16, ties to even. A value that is too large becomes an
// infinity.
func NewFloat16(f float32) Float16 { return Float16(float16.Fromfloat32(f)) }

// Float32 returns the exact value.
func (h Float16) Float32() float32 { return float16.Float16(h).Float32() }

// BFloat16 is a bfloat16 number, the upper half of a float32. It is the element type of
// tfbind.BFloat16.
type BFloat16 uint16

// NewBFloat16 rounds to the nearest BFloat16, ties to even. NaN stays NaN.
func NewBFloat16(f float32) BFloat16 {
	bits := math.Float32bits(f)
	if f != f {
		return BFloat16(bits>>16 | 0x40) // 0x40 keeps a NaN from becoming an infinity
	}
	return BFloat16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 returns the exact value.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }
