package ref

import (
	"math"

	"github.com/x448/float16"
)

// Overflow says what becomes of a value beyond the largest code of an 8-bit
// format. Rounding comes first: a value that rounds to the largest code has not
// overflowed. NaN stays NaN under every rule.
type Overflow uint8

const (
	// Saturate gives the largest finite code with the sign of the value,
	// infinities included (CUDA's satfinite). Caches and quantised
	// activations use it.
	Saturate Overflow = iota
	// SaturateKeepInf is Saturate for finite values and keeps an infinity out
	// of the numbers where the format has a single NaN: in the FNUZ formats
	// it gives 0x80, elsewhere the largest code (ONNX's saturate).
	SaturateKeepInf
	// NoSaturate gives NaN (E4M3: 7F or FF, FNUZ: 80), or Inf in E5M2, which
	// has one (ml_dtypes).
	NoSaturate
)

// BF16ToF32 is exact: the bits of a bfloat16 are the upper half of a float32.
func BF16ToF32(u uint16) float32 { return math.Float32frombits(uint32(u) << 16) }

// F32ToBF16 rounds to nearest even and overflows to Inf. A NaN keeps its sign
// and the upper bits of its payload and becomes quiet.
func F32ToBF16(x float32) uint16 {
	u := math.Float32bits(x)
	if u&0x7FFFFFFF > 0x7F800000 {
		return uint16(u>>16) | 0x0040
	}
	return uint16((u + 0x7FFF + (u>>16)&1) >> 16)
}

// F16ToF32 is exact for numbers; a NaN keeps its sign and payload and becomes
// quiet.
func F16ToF32(u uint16) float32 { return float16.Frombits(u).Float32() }

// F32ToF16 rounds to nearest even and overflows to Inf. A NaN keeps its sign and
// the upper bits of its payload and becomes quiet.
func F32ToF16(x float32) uint16 { return float16.Fromfloat32(x).Bits() }

// layout8 describes an 8-bit format with a sign, an exponent of 7-mant bits and
// mant bits of mantissa.
type layout8 struct {
	mant uint   // bits of mantissa
	bias int    // of the exponent
	max  uint32 // the largest finite code
	inf  uint32 // the code of Inf, 0 if there is none
	fnuz bool   // one NaN, 0x80, and no -0; else NaN is any code above max and inf
}

var (
	layoutE4M3     = layout8{mant: 3, bias: 7, max: 0x7E}
	layoutE5M2     = layout8{mant: 2, bias: 15, max: 0x7B, inf: 0x7C}
	layoutE4M3FNUZ = layout8{mant: 3, bias: 8, max: 0x7F, fnuz: true}
	layoutE5M2FNUZ = layout8{mant: 2, bias: 16, max: 0x7F, fnuz: true}
)

// The values of all codes. NaN codes are the quiet NaN 7FC00000, whatever their
// sign.
var (
	valuesE4M3     = layoutE4M3.values()
	valuesE5M2     = layoutE5M2.values()
	valuesE4M3FNUZ = layoutE4M3FNUZ.values()
	valuesE5M2FNUZ = layoutE5M2FNUZ.values()
)

// E4M3ToF32 is the value of an E4M3FN code: 1 sign, 4 exponent, 3 mantissa bits,
// bias 7, largest 448, no Inf.
func E4M3ToF32(c uint8) float32 { return valuesE4M3[c] }

// E5M2ToF32 is the value of an E5M2 code: 1 sign, 5 exponent, 2 mantissa bits,
// bias 15, largest 57344, with Inf.
func E5M2ToF32(c uint8) float32 { return valuesE5M2[c] }

// E4M3FNUZToF32 is the value of an E4M3FNUZ code: bias 8, largest 240, no Inf, no
// -0, and one NaN, 0x80.
func E4M3FNUZToF32(c uint8) float32 { return valuesE4M3FNUZ[c] }

// E5M2FNUZToF32 is the value of an E5M2FNUZ code: bias 16, largest 57344, no Inf,
// no -0, and one NaN, 0x80.
func E5M2FNUZToF32(c uint8) float32 { return valuesE5M2FNUZ[c] }

// F32ToE4M3 is the nearest E4M3FN code, ties to even.
func F32ToE4M3(x float32, o Overflow) uint8 { return layoutE4M3.encode(x, o) }

// F32ToE5M2 is the nearest E5M2 code, ties to even.
func F32ToE5M2(x float32, o Overflow) uint8 { return layoutE5M2.encode(x, o) }

// F32ToE4M3FNUZ is the nearest E4M3FNUZ code, ties to even.
func F32ToE4M3FNUZ(x float32, o Overflow) uint8 { return layoutE4M3FNUZ.encode(x, o) }

// F32ToE5M2FNUZ is the nearest E5M2FNUZ code, ties to even.
func F32ToE5M2FNUZ(x float32, o Overflow) uint8 { return layoutE5M2FNUZ.encode(x, o) }

// values decodes every code.
func (l layout8) values() (t [256]float32) {
	for c := range t {
		t[c] = l.decode(uint8(c))
	}
	return t
}

func (l layout8) decode(c uint8) float32 {
	mag := uint32(c & 0x7F)
	sign := uint32(c>>7) << 31
	switch {
	case l.fnuz && c == 0x80, !l.fnuz && mag > max(l.max, l.inf):
		return math.Float32frombits(0x7FC00000)
	case l.inf != 0 && mag == l.inf:
		return math.Float32frombits(sign | 0x7F800000)
	}
	// A code is sig * 2^exp with an integer sig, so a product of two exact
	// float32 values is exact too.
	exp, sig := int(mag>>l.mant), mag&(1<<l.mant-1)
	if exp > 0 {
		sig |= 1 << l.mant
		exp--
	}
	x := float32(float32(sig) * float32(math.Ldexp(1, exp+1-l.bias-int(l.mant))))
	return math.Float32frombits(sign | math.Float32bits(x))
}

func (l layout8) encode(x float32, o Overflow) uint8 {
	u := math.Float32bits(x)
	sign, a := u>>24&0x80, u&0x7FFFFFFF
	switch {
	case a > 0x7F800000:
		return l.nan(sign)
	case a == 0x7F800000 && o == SaturateKeepInf && l.fnuz:
		return 0x80
	}
	mag := l.round(a)
	switch {
	case mag == 0 && l.fnuz:
		return 0
	case mag <= l.max:
		return uint8(sign | mag)
	case o != NoSaturate:
		return uint8(sign | l.max)
	case l.inf != 0:
		return uint8(sign | l.inf)
	}
	return l.nan(sign)
}

func (l layout8) nan(sign uint32) uint8 {
	if l.fnuz {
		return 0x80
	}
	return uint8(sign | 0x7F)
}

// round gives the code of the magnitude with float32 bits a, to nearest even, as
// if the exponent had no upper end. Codes count up like the values do, so that a
// carry out of the mantissa is right as it stands.
func (l layout8) round(a uint32) uint32 {
	shift := 23 - l.mant
	exp := int(a>>23) - 127 + l.bias
	if exp > 0 {
		return shiftEven(a-uint32(127-l.bias)<<23, shift)
	}
	shift += uint(1 - exp) // subnormal: the leading one moves into the mantissa
	if shift > 24 {
		return 0 // below half of the smallest code
	}
	return shiftEven(a&0x007FFFFF|0x00800000, shift)
}

// shiftEven is v / 2^n, n > 0, rounded to nearest even.
func shiftEven(v uint32, n uint) uint32 { return (v + 1<<(n-1) - 1 + v>>n&1) >> n }

// E8M0ToF32 is 2^(c-127), and NaN for 0xFF. Code 0 is 2^-127, a subnormal.
func E8M0ToF32(c uint8) float32 {
	u := uint32(c) << 23
	if c-1 >= 0xFE { // 00 and FF end in half a bit more than the others
		u |= 0x00400000
	}
	return math.Float32frombits(u)
}

// F32ToE8M0 is the smallest power of two that is not below x, as a scale must be
// if x divided by it shall not overflow: 0 gives the smallest code, finite values
// above 2^127 the largest, and NaN, Inf and negative values 0xFF.
func F32ToE8M0(x float32) uint8 {
	u := math.Float32bits(x)
	switch {
	case u<<1 == 0: // either zero
		return 0x00
	case u >= 0x7F800000: // NaN, Inf or a sign
		return 0xFF
	case u <= 0x00400000:
		return 0x00
	}
	return uint8(min((u+0x007FFFFF)>>23, 0xFE))
}

var valuesE2M1 = [8]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}

// E2M1ToF32 is the value of the low four bits of c: 1 sign, 2 exponent, 1
// mantissa bit, bias 1; neither Inf nor NaN.
func E2M1ToF32(c uint8) float32 {
	x := valuesE2M1[c&7]
	return math.Float32frombits(math.Float32bits(x) | uint32(c&8)<<28)
}

// F32ToE2M1 is the nearest E2M1 code, ties to even, in the low four bits. Values
// above 6 become 6, and so does NaN, for the format has none; the sign stays,
// that of zero too.
func F32ToE2M1(x float32) uint8 {
	u := math.Float32bits(x)
	l := layout8{mant: 1, bias: 1}
	return uint8(u>>28&8 | min(l.round(u&0x7FFFFFFF), 7))
}

// WidenBF16 is
//
//	for i := range src { dst[i] = BF16ToF32(src[i]) }
//
// All conversions of slices need len(dst) >= len(src) and write len(src) values.
func WidenBF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, u := range src {
		dst[i] = BF16ToF32(u)
	}
}

// WidenF16 is
//
//	for i := range src { dst[i] = F16ToF32(src[i]) }
func WidenF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, u := range src {
		dst[i] = F16ToF32(u)
	}
}

// WidenE4M3 is
//
//	for i := range src { dst[i] = E4M3ToF32(src[i]) }
func WidenE4M3(dst []float32, src []byte) { widen(dst, src, &valuesE4M3) }

// WidenE5M2 is
//
//	for i := range src { dst[i] = E5M2ToF32(src[i]) }
func WidenE5M2(dst []float32, src []byte) { widen(dst, src, &valuesE5M2) }

// WidenE4M3FNUZ is
//
//	for i := range src { dst[i] = E4M3FNUZToF32(src[i]) }
func WidenE4M3FNUZ(dst []float32, src []byte) { widen(dst, src, &valuesE4M3FNUZ) }

// WidenE5M2FNUZ is
//
//	for i := range src { dst[i] = E5M2FNUZToF32(src[i]) }
func WidenE5M2FNUZ(dst []float32, src []byte) { widen(dst, src, &valuesE5M2FNUZ) }

func widen(dst []float32, src []byte, values *[256]float32) {
	dst = dst[:len(src)]
	for i, c := range src {
		dst[i] = values[c]
	}
}

// WidenE4M3Scaled is
//
//	for i := range src { dst[i] = E4M3ToF32(src[i]) * scale }
//
// with the product rounded once.
func WidenE4M3Scaled(dst []float32, src []byte, scale float32) {
	dst = dst[:len(src)]
	for i, c := range src {
		dst[i] = float32(valuesE4M3[c] * scale)
	}
}

// WidenE4M3Groups is
//
//	for i := range src { dst[i] = E4M3ToF32(src[i]) * scales[i/group] }
//
// with the product rounded once. The last group may be short; group is at least 1.
func WidenE4M3Groups(dst []float32, src []byte, scales []float32, group int) {
	dst = dst[:len(src)]
	for g := 0; len(src) > 0; g++ {
		n := min(group, len(src))
		WidenE4M3Scaled(dst[:n], src[:n], scales[g])
		dst, src = dst[n:], src[n:]
	}
}

// WidenE2M1Groups is
//
//	for i := range 2*len(src) { dst[i] = E2M1ToF32(src[i/2] >> (i%2*4)) * scales[i/group] }
//
// with the product rounded once: a byte is two codes, the first in its lower half. The last group may be short; group
// is at least 1.
func WidenE2M1Groups(dst []float32, src []byte, scales []float32, group int) {
	dst = dst[:2*len(src)]
	for first, g := 0, 0; first < len(dst); g++ {
		n := min(group, len(dst)-first)
		for i := first; i < first+n; i++ {
			dst[i] = float32(E2M1ToF32(src[i/2]>>(i%2*4)) * scales[g])
		}
		first += n
	}
}

// NarrowBF16 is
//
//	for i := range src { dst[i] = F32ToBF16(src[i]) }
func NarrowBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F32ToBF16(x)
	}
}

// NarrowF16 is
//
//	for i := range src { dst[i] = F32ToF16(src[i]) }
func NarrowF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F32ToF16(x)
	}
}

// NarrowE4M3 is
//
//	for i := range src { dst[i] = F32ToE4M3(src[i], Saturate) }
func NarrowE4M3(dst []byte, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F32ToE4M3(x, Saturate)
	}
}

// NarrowE5M2 is
//
//	for i := range src { dst[i] = F32ToE5M2(src[i], Saturate) }
func NarrowE5M2(dst []byte, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F32ToE5M2(x, Saturate)
	}
}

// NarrowE4M3FNUZ is
//
//	for i := range src { dst[i] = F32ToE4M3FNUZ(src[i], Saturate) }
func NarrowE4M3FNUZ(dst []byte, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F32ToE4M3FNUZ(x, Saturate)
	}
}

// NarrowE5M2FNUZ is
//
//	for i := range src { dst[i] = F32ToE5M2FNUZ(src[i], Saturate) }
func NarrowE5M2FNUZ(dst []byte, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F32ToE5M2FNUZ(x, Saturate)
	}
}

// NarrowE4M3Scaled is
//
//	for i := range src { dst[i] = F32ToE4M3(src[i]/scale, Saturate) }
//
// with the quotient rounded once to float32. Where it is NaN, the code is 7F with the sign bit of src[i]: processors
// differ in the sign of 0/0 and Inf/Inf.
func NarrowE4M3Scaled(dst []byte, src []float32, scale float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		q := x / scale
		if q != q {
			dst[i] = layoutE4M3.nan(math.Float32bits(x) >> 24 & 0x80)
			continue
		}
		dst[i] = F32ToE4M3(q, Saturate)
	}
}
