package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// narrowing is how float32 become narrower values.
type narrowing struct {
	to      int         // bytes of a value
	prepare func()      // fills registers from V8 on
	step    func(v int) // makes a value in each dword of V(v), with V4 to V7 free
}

func (n narrowing) write(g *G) {
	conversion{
		from: 4, to: n.to,
		prepare: n.prepare,
		vectors: func(count int) {
			for v := range count {
				g.VMOVUPS(At(reg.RSI, v*g.Bytes()), g.V(v))
				n.step(v)
			}
			switch {
			case g.Wide():
				for v := range count {
					n.truncate(g, g.V(v), At(reg.RDI, v*n.to*g.Level.Lanes))
				}
			case n.to == 1:
				packBytes(g, count)
			default:
				packWords(g, count)
			}
		},
		scalar: func() {
			g.VMOVSS(At(reg.RSI, 0), X(0))
			n.step(0)
			g.VMOVD(X(0), reg.EAX)
			if n.to == 1 {
				g.MOVB(reg.AL, At(reg.RDI, 0))
			} else {
				g.MOVW(reg.AX, At(reg.RDI, 0))
			}
		},
		masked: func() {
			g.VMOVUPS_Z(At(reg.RSI, 0), reg.K1, g.V(0))
			n.step(0)
			n.truncate(g, g.V(0), reg.K1, At(reg.RDI, 0))
		},
	}.write(g)
}

// truncate stores the lower parts of dwords; ops are a vector, a mask or none, and memory.
func (n narrowing) truncate(g *G, ops ...operand.Op) {
	if n.to == 1 {
		g.VPMOVDB(ops...)
	} else {
		g.VPMOVDW(ops...)
	}
}

// packWords stores the dwords of 1 or 4 vectors from V0 on, each below 2^16, as words. A pack works within the halves
// of its operands, so that quarters come out in the order 0 2 1 3.
func packWords(g *G, count int) {
	if count == 1 {
		g.VEXTRACTI128(operand.U8(1), Y(0), X(1))
		g.VPACKUSDW(X(1), X(0), X(0))
		g.VMOVUPS(X(0), At(reg.RDI, 0))
		return
	}
	for v := 0; v < count; v += 2 {
		g.VPACKUSDW(Y(v+1), Y(v), Y(v))
		g.VPERMQ(operand.U8(0b11_01_10_00), Y(v), Y(v))
		g.VMOVUPS(Y(v), At(reg.RDI, 16*v))
	}
}

// packBytes stores the dwords of 1 or 4 vectors from V0 on, each below 2^8, as bytes. Of four vectors, the packs leave
// the first halves in the lower half of V0 and the second halves in the upper.
func packBytes(g *G, count int) {
	if count == 1 {
		g.VEXTRACTI128(operand.U8(1), Y(0), X(1))
		g.VPACKUSDW(X(1), X(0), X(0))
		g.VPACKUSWB(X(0), X(0), X(0))
		g.VMOVQ(X(0), At(reg.RDI, 0))
		return
	}
	g.VPACKUSDW(Y(1), Y(0), Y(0))
	g.VPACKUSDW(Y(3), Y(2), Y(2))
	g.VPACKUSWB(Y(2), Y(0), Y(0))
	g.VEXTRACTI128(operand.U8(1), Y(0), X(1))
	g.VPUNPCKLDQ(X(1), X(0), X(2))
	g.VPUNPCKHDQ(X(1), X(0), X(3))
	g.VMOVUPS(X(2), At(reg.RDI, 0))
	g.VMOVUPS(X(3), At(reg.RDI, 16))
}

// findNaN leaves in vector mask, or K2, where V(v) is NaN.
func (g *G) findNaN(v int, mask reg.VecPhysical) {
	g.VCMPPS(cmpUnord, g.V(v), g.V(v), g.maskFor(mask))
}

// narrowBF16 adds half of what is cut off, less one where the rest is even. NaN, of which a sum would make anything,
// is cut and made quiet.
//
//	computes   dst[i] = src[i] rounded to bfloat16, to nearest even
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V6 work, V8-V10 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowBF16(g *G) {
	one, half, quiet := g.V(8), g.V(9), g.V(10)
	narrowing{
		to: 2,
		prepare: func() {
			g.Splat(1, one)
			g.Splat(0x7FFF, half)
			g.Splat(0x0040, quiet)
		},
		step: func(v int) {
			cut, odd, mask := g.V(4), g.V(5), g.V(6)
			g.findNaN(v, mask)
			g.VPSRLD(operand.U8(16), g.V(v), cut)
			g.And(one, cut, odd)
			g.Or(quiet, cut, cut)
			g.VPADDD(half, g.V(v), g.V(v))
			g.VPADDD(odd, g.V(v), g.V(v))
			g.VPSRLD(operand.U8(16), g.V(v), g.V(v))
			g.choose(cut, g.V(v), mask, 32)
		},
	}.write(g)
}

// narrowF16 is the processor's conversion, to nearest even whatever mode is set. It keeps the upper bits of a NaN and
// makes it quiet, like the definition.
//
//	computes   dst[i] = src[i] rounded to f16, to nearest even
//	registers  SI src, DI dst, CX what is left, V0 values
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowF16(g *G) {
	convert := func(v int) { g.VCVTPS2PH(nearestEven, g.V(v), g.half(v)) }
	conversion{
		from: 4, to: 2,
		prepare: func() {},
		vectors: func(count int) {
			for v := range count {
				g.VMOVUPS(At(reg.RSI, v*g.Bytes()), g.V(v))
				convert(v)
				g.VMOVUPS(g.half(v), At(reg.RDI, v*g.Bytes()/2))
			}
		},
		scalar: func() {
			g.VMOVSS(At(reg.RSI, 0), X(0))
			convert(0)
			g.VMOVD(X(0), reg.EAX)
			g.MOVW(reg.AX, At(reg.RDI, 0))
		},
		masked: func() {
			g.VMOVUPS_Z(At(reg.RSI, 0), reg.K1, g.V(0))
			convert(0)
			g.VMOVDQU16(g.half(0), reg.K1, At(reg.RDI, 0))
		},
	}.write(g)
}

// layout8 is an 8-bit format, as in simd/ref.
type layout8 struct {
	mant uint32 // bits of mantissa
	bias uint32 // of the exponent
	max  uint32 // the largest finite code
	fnuz bool   // no -0, whose code is NaN
}

// largest is the float32 bits of the largest finite value.
func (l layout8) largest() uint32 { return l.max<<(23-l.mant) + (127-l.bias)<<23 }

// narrow8 rounds by adding a power of two so large that the sum has no digits below those of the format: for a normal
// value 2^(23-mant) times the power of two in it, for a smaller one the same as for the smallest normal value. What the
// sum has above that power is the value in units of its last digit, a number that counts on from code to code; each
// further exponent is 2^mant codes more. Values beyond the largest become the largest before. prepare adds to what this
// does first. begin makes of V(v) what is to be rounded, and leaves in vector nan, or K2, where that is NaN: there V(v)
// counts for its sign only. It may use V4.
func narrow8(g *G, l layout8, prepare func(), begin func(v int, nan reg.VecPhysical)) {
	magnitude, largest, exponent, normal := g.V(8), g.V(9), g.V(10), g.V(11)
	rise, sign, nan := g.V(12), g.V(13), g.V(14)
	narrowing{
		to: 1,
		prepare: func() {
			g.Splat(0x7FFFFFFF, magnitude)
			g.Splat(l.largest(), largest)
			g.Splat(0x7F800000, exponent)
			g.Splat(power(1-int(l.bias)), normal)
			g.Splat((23-l.mant)<<23, rise)
			g.Splat(0x80, sign)
			if l.fnuz {
				g.Splat(0x80, nan)
			} else {
				g.Splat(0x7F, nan)
			}
			prepare()
		},
		step: func(v int) {
			x, code, e, added, mask := g.V(v), g.V(4), g.V(5), g.V(6), g.V(7)
			begin(v, mask)
			g.And(magnitude, x, code)
			g.VPMINUD(largest, code, code)
			g.And(exponent, code, e)
			g.VPMAXUD(normal, e, e)
			g.VPADDD(rise, e, added)
			g.VADDPS(added, code, code)
			g.VPSUBD(added, code, code)
			g.VPSUBD(normal, e, e)
			g.VPSRLD(operand.U8(uint8(23-l.mant)), e, e)
			g.VPADDD(e, code, code)
			if l.fnuz { // the sign goes where the code is not 0, which is where 0 - code has one
				g.Zero(e)
				g.VPSUBD(code, e, e)
				g.And(e, x, x)
			} else {
				g.choose(nan, code, mask, 32)
			}
			g.VPSRLD(operand.U8(24), x, x)
			g.And(sign, x, x)
			g.Or(code, x, x)
			if l.fnuz {
				g.choose(nan, x, mask, 32)
			}
		},
	}.write(g)
}

// narrowPlain is narrow8 of the values as they are.
func narrowPlain(g *G, l layout8) { narrow8(g, l, func() {}, g.findNaN) }

var (
	layoutE4M3     = layout8{mant: 3, bias: 7, max: 0x7E}
	layoutE5M2     = layout8{mant: 2, bias: 15, max: 0x7B}
	layoutE4M3FNUZ = layout8{mant: 3, bias: 8, max: 0x7F, fnuz: true}
	layoutE5M2FNUZ = layout8{mant: 2, bias: 16, max: 0x7F, fnuz: true}
)

// narrowE4M3 is narrow8.
//
//	computes   dst[i] = the E4M3 code nearest to src[i], to even, saturated; NaN 7F or FF
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V7 work, V8-V14 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowE4M3(g *G) { narrowPlain(g, layoutE4M3) }

// narrowE5M2 is narrow8.
//
//	computes   dst[i] = the E5M2 code nearest to src[i], to even, saturated; NaN 7F or FF
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V7 work, V8-V14 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowE5M2(g *G) { narrowPlain(g, layoutE5M2) }

// narrowE4M3FNUZ is narrow8.
//
//	computes   dst[i] = the E4M3FNUZ code nearest to src[i], to even, saturated; NaN 80
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V7 work, V8-V14 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowE4M3FNUZ(g *G) { narrowPlain(g, layoutE4M3FNUZ) }

// narrowE5M2FNUZ is narrow8.
//
//	computes   dst[i] = the E5M2FNUZ code nearest to src[i], to even, saturated; NaN 80
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V7 work, V8-V14 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowE5M2FNUZ(g *G) { narrowPlain(g, layoutE5M2FNUZ) }

// narrowE4M3Scaled divides, as a product with the inverse of the scale would round twice. A quotient that is NaN gives
// way to what was divided, for its sign: that of 0/0 is the processor's.
//
//	computes   dst[i] = the E4M3 code nearest to src[i]/scale, to even, saturated; NaN 7F, with the sign of src[i]
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V7 work, V8-V15 constants
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowE4M3Scaled(g *G) {
	scale := g.V(15)
	narrow8(g, layoutE4M3,
		func() { g.SplatArg("scale", scale) },
		func(v int, nan reg.VecPhysical) {
			divided := g.V(4)
			g.VMOVAPS(g.V(v), divided)
			g.VDIVPS(scale, g.V(v), g.V(v))
			g.findNaN(v, nan)
			g.choose(divided, g.V(v), nan, 32)
		})
}
