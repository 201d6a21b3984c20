package fp8

import (
	"strconv"

	"github.com/lamina-ml/lamina/simd"
)

// Overflow says what becomes of a value beyond the largest code. Rounding comes
// first: a value that rounds to the largest code has not overflowed.
type Overflow = simd.Overflow

const (
	// Saturate gives the largest finite code with the sign of the value,
	// infinities included. Caches and quantised activations use it.
	Saturate = simd.Saturate
	// SaturateKeepInf is Saturate, but Inf in a FNUZ format gives its NaN, 80.
	SaturateKeepInf = simd.SaturateKeepInf
	// NoSaturate gives NaN, or Inf in E5M2.
	NoSaturate = simd.NoSaturate
)

// E4M3 is an E4M3FN number: 4 bits of exponent, 3 of mantissa, bias 7. The largest
// value is 448, the smallest normal one 2^-6, the smallest subnormal one 2^-9;
// 7F and FF are NaN.
type E4M3 uint8

// E4M3FromFloat32 is the nearest E4M3, ties to even; o says what becomes of values
// beyond the largest.
func E4M3FromFloat32(x float32, o Overflow) E4M3 { return E4M3(simd.F32ToE4M3(x, o)) }

// Float32 is the value of c, without rounding; every NaN gives the bits 7FC00000.
func (c E4M3) Float32() float32 { return simd.E4M3ToF32(uint8(c)) }

// Bits is the code; E4M3(c.Bits()) == c.
func (c E4M3) Bits() uint8 { return uint8(c) }

// IsNaN reports whether c is a NaN.
func (c E4M3) IsNaN() bool { return c&0x7F == 0x7F }

// IsInf reports whether c is an infinity; the format has none.
func (c E4M3) IsInf(sign int) bool { return false }

// IsFinite reports whether c is neither NaN nor an infinity.
func (c E4M3) IsFinite() bool { return !c.IsNaN() }

// IsNormal reports whether c is neither zero, subnormal, infinite nor NaN.
func (c E4M3) IsNormal() bool { return c.IsFinite() && c&0x78 != 0 }

// Signbit reports whether the sign bit is set.
func (c E4M3) Signbit() bool { return c>>7 != 0 }

// String is the value as a decimal.
func (c E4M3) String() string { return decimal(c.Float32()) }

// E5M2 is an E5M2 number: 5 bits of exponent, 2 of mantissa, bias 15: the upper half
// of a binary16. The largest value is 57344, the smallest normal one 2^-14, the
// smallest subnormal one 2^-16; 7C and FC are infinities, 7D-7F and FD-FF NaN.
type E5M2 uint8

// E5M2FromFloat32 is the nearest E5M2, ties to even; o says what becomes of values
// beyond the largest.
func E5M2FromFloat32(x float32, o Overflow) E5M2 { return E5M2(simd.F32ToE5M2(x, o)) }

// Float32 is the value of c, without rounding; every NaN gives the bits 7FC00000.
func (c E5M2) Float32() float32 { return simd.E5M2ToF32(uint8(c)) }

// Bits is the code; E5M2(c.Bits()) == c.
func (c E5M2) Bits() uint8 { return uint8(c) }

// IsNaN reports whether c is a NaN.
func (c E5M2) IsNaN() bool { return c&0x7F > 0x7C }

// IsInf reports whether c is an infinity: positive if sign > 0, negative if
// sign < 0, either if sign == 0.
func (c E5M2) IsInf(sign int) bool { return c == 0x7C && sign >= 0 || c == 0xFC && sign <= 0 }

// IsFinite reports whether c is neither NaN nor an infinity.
func (c E5M2) IsFinite() bool { return c&0x7C != 0x7C }

// IsNormal reports whether c is neither zero, subnormal, infinite nor NaN.
func (c E5M2) IsNormal() bool { return c.IsFinite() && c&0x7C != 0 }

// Signbit reports whether the sign bit is set.
func (c E5M2) Signbit() bool { return c>>7 != 0 }

// String is the value as a decimal.
func (c E5M2) String() string { return decimal(c.Float32()) }

// E4M3FNUZ is an E4M3FNUZ number: 4 bits of exponent, 3 of mantissa, bias 8. The
// largest value is 240, the smallest normal one 2^-7, the smallest subnormal one
// 2^-10; 80 is NaN, and there is no -0.
type E4M3FNUZ uint8

// E4M3FNUZFromFloat32 is the nearest E4M3FNUZ, ties to even; o says what becomes of values
// beyond the largest.
func E4M3FNUZFromFloat32(x float32, o Overflow) E4M3FNUZ { return E4M3FNUZ(simd.F32ToE4M3FNUZ(x, o)) }

// Float32 is the value of c, without rounding; every NaN gives the bits 7FC00000.
func (c E4M3FNUZ) Float32() float32 { return simd.E4M3FNUZToF32(uint8(c)) }

// Bits is the code; E4M3FNUZ(c.Bits()) == c.
func (c E4M3FNUZ) Bits() uint8 { return uint8(c) }

// IsNaN reports whether c is a NaN.
func (c E4M3FNUZ) IsNaN() bool { return c == 0x80 }

// IsInf reports whether c is an infinity; the format has none.
func (c E4M3FNUZ) IsInf(sign int) bool { return false }

// IsFinite reports whether c is neither NaN nor an infinity.
func (c E4M3FNUZ) IsFinite() bool { return !c.IsNaN() }

// IsNormal reports whether c is neither zero, subnormal, infinite nor NaN.
func (c E4M3FNUZ) IsNormal() bool { return c.IsFinite() && c&0x78 != 0 }

// Signbit reports whether the sign bit is set.
func (c E4M3FNUZ) Signbit() bool { return c>>7 != 0 }

// String is the value as a decimal.
func (c E4M3FNUZ) String() string { return decimal(c.Float32()) }

// E5M2FNUZ is an E5M2FNUZ number: 5 bits of exponent, 2 of mantissa, bias 16. The
// largest value is 57344, the smallest normal one 2^-15, the smallest subnormal
// one 2^-17; 80 is NaN, and there is no -0.
type E5M2FNUZ uint8

// E5M2FNUZFromFloat32 is the nearest E5M2FNUZ, ties to even; o says what becomes of values
// beyond the largest.
func E5M2FNUZFromFloat32(x float32, o Overflow) E5M2FNUZ { return E5M2FNUZ(simd.F32ToE5M2FNUZ(x, o)) }

// Float32 is the value of c, without rounding; every NaN gives the bits 7FC00000.
func (c E5M2FNUZ) Float32() float32 { return simd.E5M2FNUZToF32(uint8(c)) }

// Bits is the code; E5M2FNUZ(c.Bits()) == c.
func (c E5M2FNUZ) Bits() uint8 { return uint8(c) }

// IsNaN reports whether c is a NaN.
func (c E5M2FNUZ) IsNaN() bool { return c == 0x80 }

// IsInf reports whether c is an infinity; the format has none.
func (c E5M2FNUZ) IsInf(sign int) bool { return false }

// IsFinite reports whether c is neither NaN nor an infinity.
func (c E5M2FNUZ) IsFinite() bool { return !c.IsNaN() }

// IsNormal reports whether c is neither zero, subnormal, infinite nor NaN.
func (c E5M2FNUZ) IsNormal() bool { return c.IsFinite() && c&0x7C != 0 }

// Signbit reports whether the sign bit is set.
func (c E5M2FNUZ) Signbit() bool { return c>>7 != 0 }

// String is the value as a decimal.
func (c E5M2FNUZ) String() string { return decimal(c.Float32()) }

// E8M0 is a power of two, 2^(c-127), and NaN for FF: a scale. It has neither
// zero nor sign.
type E8M0 uint8

// E8M0FromFloat32 is the smallest power of two that is not below x: what is
// divided by it does not grow beyond what x divided by x is. 0 gives 2^-127,
// finite values above 2^127 give 2^127; NaN, Inf and negative values give NaN.
func E8M0FromFloat32(x float32) E8M0 { return E8M0(simd.F32ToE8M0(x)) }

// Float32 is the value of c, without rounding; code 0 is a subnormal float32.
func (c E8M0) Float32() float32 { return simd.E8M0ToF32(uint8(c)) }

// Bits is the code; E8M0(c.Bits()) == c.
func (c E8M0) Bits() uint8 { return uint8(c) }

// IsNaN reports whether c is NaN.
func (c E8M0) IsNaN() bool { return c == 0xFF }

// IsInf is false: the format has no infinity.
func (c E8M0) IsInf(sign int) bool { return false }

// IsFinite reports whether c is not NaN.
func (c E8M0) IsFinite() bool { return c != 0xFF }

// IsNormal reports whether c is not NaN: every power of two is normal here.
func (c E8M0) IsNormal() bool { return c != 0xFF }

// Signbit is false: the format has no sign.
func (c E8M0) Signbit() bool { return false }

// String is the value as a decimal.
func (c E8M0) String() string { return decimal(c.Float32()) }

// E2M1x2 is a pair of E2M1 numbers, 1 bit of sign, 2 of exponent, 1 of mantissa,
// bias 1: 0, 0.5, 1, 1.5, 2, 3, 4, 6. The first of the two is in the low half.
type E2M1x2 uint8

// E2M1x2FromFloat32 rounds two values to nearest, ties to even. What is beyond 6
// becomes 6, and so does NaN, for the format has none. The sign stays, that of
// zero too.
func E2M1x2FromFloat32(first, second float32) E2M1x2 {
	return E2M1x2(simd.F32ToE2M1(first) | simd.F32ToE2M1(second)<<4)
}

// Float32 are the two values, without rounding.
func (c E2M1x2) Float32() (first, second float32) {
	return simd.E2M1ToF32(uint8(c)), simd.E2M1ToF32(uint8(c >> 4))
}

// Bits are the two codes; E2M1x2(c.Bits()) == c.
func (c E2M1x2) Bits() uint8 { return uint8(c) }

// IsNaN is false: the format has no NaN.
func (c E2M1x2) IsNaN() bool { return false }

// IsInf is false: the format has no infinity.
func (c E2M1x2) IsInf(sign int) bool { return false }

// Signbit are the two sign bits.
func (c E2M1x2) Signbit() (first, second bool) { return c&0x08 != 0, c&0x80 != 0 }

// String are the two values as decimals, in brackets.
func (c E2M1x2) String() string {
	first, second := c.Float32()
	return "[" + decimal(first) + " " + decimal(second) + "]"
}

func decimal(x float32) string { return strconv.FormatFloat(float64(x), 'g', -1, 32) }
