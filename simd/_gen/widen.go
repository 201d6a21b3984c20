package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// widening is how values become float32.
type widening struct {
	from    int    // bytes of a value
	group   int    // vectors that a step gives at most
	prepare func() // fills registers from V8 on
	// step makes n vectors, 1 or group, of the values at src, into V(v), V(v+1) and so on. src is memory, or a
	// register with what makes one vector.
	step func(src operand.Op, v, n int)
}

func (w widening) write(g *G) { w.conversion(g).write(g) }

// conversion is the pieces of the loop.
func (w widening) conversion(g *G) conversion {
	lanes := g.Level.Lanes
	return conversion{
		from: w.from, to: 4,
		prepare: w.prepare,
		vectors: func(n int) {
			group := min(n, w.group)
			for v := 0; v < n; v += group {
				w.step(At(reg.RSI, v*lanes*w.from), v, group)
				for i := v; i < v+group; i++ {
					g.VMOVUPS(g.V(i), At(reg.RDI, i*g.Bytes()))
				}
			}
		},
		scalar: func() {
			if w.from == 1 {
				g.MOVBLZX(At(reg.RSI, 0), reg.EAX)
			} else {
				g.MOVWLZX(At(reg.RSI, 0), reg.EAX)
			}
			g.VMOVD(reg.EAX, X(0))
			w.step(X(0), 0, 1)
			g.VMOVSS(X(0), At(reg.RDI, 0))
		},
		masked: func() {
			part := X(0)
			if w.from == 1 {
				g.VMOVDQU8_Z(At(reg.RSI, 0), reg.K1, part)
			} else {
				part = Y(0)
				g.VMOVDQU16_Z(At(reg.RSI, 0), reg.K1, part)
			}
			w.step(part, 0, 1)
			g.VMOVUPS(g.V(0), reg.K1, At(reg.RDI, 0))
		},
	}
}

// widenBF16 moves each value to the upper half of a float32.
//
//	computes   dst[i] = src[i] << 16
//	registers  SI src, DI dst, CX what is left, V0-V3 values
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func widenBF16(g *G) {
	widening{
		from: 2, group: 1,
		prepare: func() {},
		step: func(src operand.Op, v, _ int) {
			g.VPMOVZXWD(src, g.V(v))
			g.VPSLLD(operand.U8(16), g.V(v), g.V(v))
		},
	}.write(g)
}

// widenF16 is the processor's conversion, which keeps the payload of a NaN and makes it quiet, like the definition.
//
//	computes   dst[i] = float32(src[i])
//	registers  SI src, DI dst, CX what is left, V0-V3 values
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func widenF16(g *G) {
	widening{
		from: 2, group: 1,
		prepare: func() {},
		step:    func(src operand.Op, v, _ int) { g.VCVTPH2PS(src, g.V(v)) },
	}.write(g)
}

// The 8-bit formats go by way of f16: moved to the exponent and the mantissa of an f16, a code is its value but for a
// power of two, subnormal codes included. Bytes become such words for two vectors at once. No float32 on the way is
// subnormal: to multiply one takes Intel's processors a hundred cycles.
//
// NaN is replaced among the words, by the f16 that widens to 7FC00000, which no product with a number changes.
const (
	f16NaN  = 0x7E00
	f16Inf  = 0x7C00
	f16Sign = 0x8000
)

// The registers that widenings of bytes share: NaN, the words that it is found by, masks of words, and factors.
const (
	vNaN, vNaNTest, vNoSign, vSign, vMagnitude, vOne = 8, 9, 10, 11, 12, 13
	vPower, vScale                                   = 14, 15
)

// widenCodes is a widening of bytes: toF16 makes f16 of the words in V(v), which hold codes and above them copies of
// their signs, with V(v+1) free; then the values are multiplied by the registers of factors, one after the other.
func widenCodes(g *G, prepare func(), toF16 func(v int), factors ...int) widening {
	step := func(src operand.Op, v, n int) {
		if n == 2 {
			g.VPMOVSXBW(src, g.V(v))
		} else {
			g.VPMOVSXBW(src, g.half(v))
		}
		toF16(v)
		switch {
		case n == 2 && g.Wide():
			g.VEXTRACTI64X4(operand.U8(1), g.V(v), g.half(v+1))
		case n == 2:
			g.VEXTRACTI128(operand.U8(1), g.V(v), g.half(v+1))
		}
		for i := v; i < v+n; i++ {
			g.VCVTPH2PS(g.half(i), g.V(i))
			for _, f := range factors {
				g.VMULPS(g.V(f), g.V(i), g.V(i))
			}
		}
	}
	prepareAll := func() {
		g.splatWords(f16NaN, vNaN)
		prepare()
	}
	return widening{from: 1, group: 2, prepare: prepareAll, step: step}
}

// splatWords fills vector v with a 16-bit constant.
func (g *G) splatWords(bits uint32, v int) { g.Splat(bits<<16|bits, g.V(v)) }

// quietWords puts NaN where the words of test are those of vNaNTest, or above them.
func (g *G) quietWords(v int, test reg.VecPhysical, above bool) {
	mask := g.V(v + 1)
	if above {
		g.VPCMPGTW(g.V(vNaNTest), test, g.maskFor(mask))
	} else {
		g.VPCMPEQW(g.V(vNaNTest), test, g.maskFor(mask))
	}
	g.choose(g.V(vNaN), g.V(v), mask, 16)
}

// e4m3 is a widening of E4M3 codes, which become f16 of value * 2^-8: the bias of f16 is 15, that of E4M3 7.
func e4m3(g *G, prepare func(), factors ...int) widening {
	return widenCodes(g, func() {
		g.splatWords(0xBF80, vMagnitude)
		g.splatWords(0x7FFF, vNoSign)
		g.splatWords(0x7E<<7, vNaNTest)
		prepare()
	}, func(v int) {
		g.VPSLLW(operand.U8(7), g.V(v), g.V(v))
		g.And(g.V(vMagnitude), g.V(v), g.V(v))
		g.And(g.V(vNoSign), g.V(v), g.V(v+1))
		g.quietWords(v, g.V(v+1), true)
	}, factors...)
}

// widenE4M3 is exact.
//
//	computes   dst[i] = value of the E4M3 code src[i]
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V8-V14 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func widenE4M3(g *G) { e4m3(g, func() { g.Splat(power(8), g.V(vPower)) }, vPower).write(g) }

// widenE4M3Scaled is widenE4M3 with a product more. Scales below 2^120, which all are that anyone uses, come with the
// power of two in one factor, exactly.
//
//	computes   dst[i] = value of the E4M3 code src[i], times scale
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V8-V15 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func widenE4M3Scaled(g *G) {
	prepare := func() {
		g.SplatArg("scale", g.V(vScale))
		g.Splat(power(8), g.V(vPower))
	}
	huge := g.Fresh("huge")
	g.MOVL(g.ArgAt("scale"), reg.EAX)
	g.ANDL(operand.U32(0x7FFFFFFF), reg.EAX)
	g.CMPL(reg.EAX, operand.U32(power(120)))
	g.JCC(operand.LabelRef(huge))
	e4m3(g, func() {
		prepare()
		g.VMULPS(g.V(vPower), g.V(vScale), g.V(vScale))
	}, vScale).write(g)
	g.Label(huge)
	e4m3(g, prepare, vPower, vScale).write(g)
}

// widenE5M2 takes codes for what they are, the upper bytes of f16.
//
//	computes   dst[i] = value of the E5M2 code src[i]
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V8-V10 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func widenE5M2(g *G) {
	widenCodes(g, func() {
		g.splatWords(0x7FFF, vNoSign)
		g.splatWords(f16Inf, vNaNTest)
	}, func(v int) {
		g.VPSLLW(operand.U8(8), g.V(v), g.V(v))
		g.And(g.V(vNoSign), g.V(v), g.V(v+1))
		g.quietWords(v, g.V(v+1), true)
	}).write(g)
}

// widenE4M3FNUZ is exact.
//
//	computes   dst[i] = value of the E4M3FNUZ code src[i]
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V8-V14 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func widenE4M3FNUZ(g *G) {
	widenCodes(g, func() {
		g.splatWords(0xBF80, vMagnitude)
		g.splatWords(f16Sign, vNaNTest)
		g.Splat(power(7), g.V(vPower)) // the bias of f16 is 15, that of E4M3FNUZ 8
	}, func(v int) {
		g.VPSLLW(operand.U8(7), g.V(v), g.V(v))
		g.And(g.V(vMagnitude), g.V(v), g.V(v))
		g.quietWords(v, g.V(v), false)
	}, vPower).write(g)
}

// widenE5M2FNUZ cannot use the exponent as it stands, whose largest has no numbers in f16. One less is right because
// the bias is one more than that of f16. Where that would end below the exponents of normal values, code * 2^-17 is an
// f16 subnormal; of the two the larger is the value, as they meet at code 8.
//
//	computes   dst[i] = value of the E5M2FNUZ code src[i]
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4 and V5 work, V8-V13 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func widenE5M2FNUZ(g *G) {
	widenCodes(g, func() {
		g.splatWords(f16Sign, vNaNTest) // NaN is the code of -0
		g.splatWords(0x7F00, vMagnitude)
		g.splatWords(f16Sign, vSign)
		g.splatWords(1<<10, vOne) // of the exponent
	}, func(v int) {
		signed, small := g.V(4), g.V(5)
		g.VPSLLW(operand.U8(8), g.V(v), signed)
		g.And(g.V(vMagnitude), signed, g.V(v))
		g.VPSRLW(operand.U8(1), g.V(v), small)
		g.VPSUBW(g.V(vOne), g.V(v), g.V(v))
		g.VPMAXSW(small, g.V(v), g.V(v))
		g.And(g.V(vSign), signed, small)
		g.Or(small, g.V(v), g.V(v))
		g.quietWords(v, signed, false)
	}).write(g)
}
