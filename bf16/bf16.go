package bf16

import (
	"strconv"

	"github.com/lamina-ml/lamina/simd"
)

// BF16 holds the bits of a bfloat16.
type BF16 uint16

// FromFloat32 rounds x to nearest, ties to even. Values beyond the largest BF16
// become Inf; a NaN becomes quiet and keeps its sign and the upper bits of its
// payload.
func FromFloat32(x float32) BF16 { return BF16(simd.F32ToBF16(x)) }

// FromBits is the BF16 with the given bits.
func FromBits(bits uint16) BF16 { return BF16(bits) }

// NaN is a quiet NaN, 7FC0.
func NaN() BF16 { return 0x7FC0 }

// Inf is positive infinity if sign >= 0, else negative infinity.
func Inf(sign int) BF16 {
	if sign >= 0 {
		return 0x7F80
	}
	return 0xFF80
}

// Float32 is the value of b, without rounding.
func (b BF16) Float32() float32 { return simd.BF16ToF32(uint16(b)) }

// Bits are the bits of b; FromBits(b.Bits()) == b.
func (b BF16) Bits() uint16 { return uint16(b) }

// IsNaN reports whether b is a NaN.
func (b BF16) IsNaN() bool { return b&0x7FFF > 0x7F80 }

// IsInf reports whether b is an infinity: positive if sign > 0, negative if
// sign < 0, either if sign == 0.
func (b BF16) IsInf(sign int) bool {
	return b == 0x7F80 && sign >= 0 || b == 0xFF80 && sign <= 0
}

// IsFinite reports whether b is neither NaN nor an infinity.
func (b BF16) IsFinite() bool { return b&0x7F80 != 0x7F80 }

// IsNormal reports whether b is neither zero, subnormal, infinite nor NaN.
func (b BF16) IsNormal() bool { return b.IsFinite() && b&0x7F80 != 0 }

// Signbit reports whether the sign bit is set: negative numbers, -0, and NaN
// with a sign.
func (b BF16) Signbit() bool { return b>>15 != 0 }

// String is the shortest decimal that reads back as the same float32.
func (b BF16) String() string {
	return strconv.FormatFloat(float64(b.Float32()), 'g', -1, 32)
}
