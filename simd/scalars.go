package simd

import "github.com/lamina-ml/lamina/simd/ref"

// Lanes is the number of outputs in a panel of packed weights.
const Lanes = ref.Lanes

// Fma is a*b + c with one rounding.
func Fma(a, b, c float32) float32 { return ref.Fma(a, b, c) }

// Exp is e^x, for every x, with the same bits on every machine.
func Exp(x float32) float32 { return ref.Exp(x) }

// Log is the natural logarithm of x, with the same bits on every machine.
func Log(x float32) float32 { return ref.Log(x) }

// Overflow says what becomes of a value beyond the largest code of an 8-bit
// format. Rounding comes first: a value that rounds to the largest code has not
// overflowed. NaN stays NaN under every rule.
type Overflow = ref.Overflow

const (
	// Saturate gives the largest finite code with the sign of the value,
	// infinities included (CUDA's satfinite). Caches and quantised
	// activations use it.
	Saturate = ref.Saturate
	// SaturateKeepInf is Saturate for finite values and keeps an infinity out
	// of the numbers where the format has a single NaN: in the FNUZ formats
	// it gives 0x80, elsewhere the largest code (ONNX's saturate).
	SaturateKeepInf = ref.SaturateKeepInf
	// NoSaturate gives NaN (E4M3: 7F or FF, FNUZ: 80), or Inf in E5M2, which
	// has one (ml_dtypes).
	NoSaturate = ref.NoSaturate
)

// BF16ToF32 is exact: the bits of a bfloat16 are the upper half of a float32.
func BF16ToF32(u uint16) float32 { return ref.BF16ToF32(u) }

// F32ToBF16 rounds to nearest even and overflows to Inf. A NaN keeps its sign
// and the upper bits of its payload and becomes quiet.
func F32ToBF16(x float32) uint16 { return ref.F32ToBF16(x) }

// F16ToF32 is exact for numbers; a NaN keeps its sign and payload and becomes
// quiet.
func F16ToF32(u uint16) float32 { return ref.F16ToF32(u) }

// F32ToF16 rounds to nearest even and overflows to Inf. A NaN keeps its sign and
// the upper bits of its payload and becomes quiet.
func F32ToF16(x float32) uint16 { return ref.F32ToF16(x) }

// E4M3ToF32 is the value of an E4M3FN code. NaN codes give the bits 7FC00000
// here and in the other 8-bit formats.
func E4M3ToF32(c uint8) float32 { return ref.E4M3ToF32(c) }

// E5M2ToF32 is the value of an E5M2 code.
func E5M2ToF32(c uint8) float32 { return ref.E5M2ToF32(c) }

// E4M3FNUZToF32 is the value of an E4M3FNUZ code.
func E4M3FNUZToF32(c uint8) float32 { return ref.E4M3FNUZToF32(c) }

// E5M2FNUZToF32 is the value of an E5M2FNUZ code.
func E5M2FNUZToF32(c uint8) float32 { return ref.E5M2FNUZToF32(c) }

// E8M0ToF32 is 2^(c-127), and NaN for 0xFF. Code 0 is 2^-127, a subnormal.
func E8M0ToF32(c uint8) float32 { return ref.E8M0ToF32(c) }

// E2M1ToF32 is the value of the low four bits of c.
func E2M1ToF32(c uint8) float32 { return ref.E2M1ToF32(c) }

// F32ToE4M3 is the nearest E4M3FN code, ties to even.
func F32ToE4M3(x float32, o Overflow) uint8 { return ref.F32ToE4M3(x, o) }

// F32ToE5M2 is the nearest E5M2 code, ties to even.
func F32ToE5M2(x float32, o Overflow) uint8 { return ref.F32ToE5M2(x, o) }

// F32ToE4M3FNUZ is the nearest E4M3FNUZ code, ties to even.
func F32ToE4M3FNUZ(x float32, o Overflow) uint8 { return ref.F32ToE4M3FNUZ(x, o) }

// F32ToE5M2FNUZ is the nearest E5M2FNUZ code, ties to even.
func F32ToE5M2FNUZ(x float32, o Overflow) uint8 { return ref.F32ToE5M2FNUZ(x, o) }

// F32ToE8M0 is the smallest power of two that is not below x, as a scale must be
// if x divided by it shall not overflow: 0 gives the smallest code, finite values
// above 2^127 the largest, and NaN, Inf and negative values 0xFF.
func F32ToE8M0(x float32) uint8 { return ref.F32ToE8M0(x) }

// F32ToE2M1 is the nearest E2M1 code, ties to even, in the low four bits. Values
// above 6 become 6, and so does NaN, for the format has none; the sign stays,
// that of zero too.
func F32ToE2M1(x float32) uint8 { return ref.F32ToE2M1(x) }
