package dtype

import "math"

// Half is an IEEE 754 binary16 number, the element type of Float16.
type Half uint16

// NewHalf rounds to the nearest Half, ties to even. A value that is too large becomes an infinity.
func NewHalf(f float32) Half {
	const (
		infinity = 0x7f800000 // of float32
		tooLarge = 0x47800000 // 65536, the first power of two that only an infinity represents
		smallest = 0x38800000 // 2^-14, the smallest normal Half
	)
	bits := math.Float32bits(f)
	sign, size := Half(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case size > infinity:
		return sign | 0x7e00 | Half(size>>13&0x3ff) // a quiet NaN
	case size >= tooLarge:
		return sign | 0x7c00
	case size < smallest:
		// The unit in the last place of 0.5 is that of a subnormal Half, so the addition rounds to it.
		rounded := math.Float32frombits(size) + 0.5
		return sign | Half(math.Float32bits(rounded)-math.Float32bits(0.5))
	}
	// The exponents differ by 112. A carry from the mantissa increases the exponent, up to infinity.
	return sign | Half((size-112<<23+0xfff+size>>13&1)>>13)
}

// Float32 returns the exact value.
func (h Half) Float32() float32 {
	sign, exponent, mantissa := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0: // zero or subnormal
		return math.Float32frombits(sign | math.Float32bits(float32(mantissa)*0x1p-24))
	case 0x1f:
		if mantissa != 0 {
			mantissa |= 0x200 // a quiet NaN
		}
		return math.Float32frombits(sign | 0x7f800000 | mantissa<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | mantissa<<13)
}

// BFloat is a bfloat16 number, the upper half of a float32. It is the element type of BFloat16.
type BFloat uint16

// NewBFloat rounds to the nearest BFloat, ties to even. NaN stays NaN.
func NewBFloat(f float32) BFloat {
	bits := math.Float32bits(f)
	if f != f {
		return BFloat(bits>>16 | 0x40) // 0x40 keeps a NaN from becoming an infinity
	}
	return BFloat((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 returns the exact value.
func (b BFloat) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }
