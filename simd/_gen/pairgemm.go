package workshop

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemmE4M3Pairs is gemmE4M3 with bf16 activations, by two fma: the second value of a pair first. Weights are multiplied
// by the 2^120 that their reading leaves out.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  those of gemmE4M3
//	reads      as gemmE4M3, activations in pairs
//	order      as gemmE4M3, k by two, the second first
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmE4M3Pairs(g *G) {
	m := newGemm(g, wordDecoder{})
	m.pairs = true
	if g.Wide() {
		m.activation = Z(29)
	}
	m.write()
}

// gemmE4M3PairsVBMI multiplies pairs, which it makes of the words of a panel by tables of all codes.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  those of gemmE4M3; sums from V0 on, V16 and V17 weights, V18 to V21 work, V24 to V31 tables
//	reads      words of codes once for two pairs of k
//	order      as gemmE4M3, k by two, the second first
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmE4M3PairsVBMI(g *G) { newPairGemm(g, true).write() }

// gemmE4M3PairsOwn is gemmE4M3PairsVBMI with tables of half codes.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  those of gemmE4M3PairsVBMI
//	reads      as gemmE4M3PairsVBMI
//	order      as gemmE4M3PairsVBMI
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmE4M3PairsOwn(g *G) { newPairGemm(g, false).write() }

func newPairGemm(g *G, vbmi bool) *gemm {
	return &gemm{G: g, pairs: true, weights: []reg.VecPhysical{Z(16), Z(17)}, own: &pairDecoder{G: g, vbmi: vbmi}}
}

// order is that of the four k of a word of codes. A body that has a decoder of its own takes pairs.
func (g *gemm) order() []int {
	switch {
	case g.own != nil:
		return nil
	case g.pairs:
		return []int{1, 0, 3, 2}
	}
	return []int{0, 1, 2, 3}
}

// unscale makes n weights of pairs what they are.
func (g *gemm) unscale(n int) {
	if g.pairs {
		for _, w := range g.weights[:n] {
			g.VMULPS(g.full(math.Float32bits(0x1p120)), w, w)
		}
	}
}

// multiplySplit is multiply with an activation in bf16.
func (g *gemm) multiplySplit(t gemmShape, i, c, n, kk int) {
	g.VPBROADCASTD(g.row(i, kk/2), g.activation)
	if kk%2 == 1 {
		g.And(g.wordMask(), g.activation, g.activation)
	} else {
		g.VPSLLD(operand.U8(16), g.activation, g.activation)
	}
	for h, w := range g.weights[:n] {
		g.VFMADD231PS(w, g.activation, g.sum(t, i, c+h))
	}
}

// pairBlock adds the products of four k, two pairs.
func (g *gemm) pairBlock(t gemmShape) {
	for c := range t.panels {
		g.own.decode(g.codes(c, 0), g.weights[0], g.weights[1], false)
		for pair, w := range g.weights {
			for i := range t.rows {
				g.VDPBF16PS_BCST(g.row(i, pair), w, g.sum(t, i, c))
			}
		}
	}
}

// pairDecoder makes pairs of bf16 of words of codes: a byte of a value is looked up for each code.
type pairDecoder struct {
	*G
	vbmi bool
}

// The registers of a pairDecoder: codes, both bytes of their values, work, then tables and constants.
var (
	decodeCode, decodeUpper, decodeLower, decodeWork = Z(18), Z(19), Z(20), Z(21)
	decodeTables                                     = [...]reg.VecPhysical{Z(24), Z(25), Z(26), Z(27)}
	decodeOrder, decodeSign                          = Z(28), Z(29)
	decodeNibble, decodeExponent                     = Z(30), Z(31) // without VBMI
)

// valueE4M3 is the bf16 of a code without sign.
func valueE4M3(code int) uint32 {
	switch e, m := code>>3, float64(code&7); {
	case code == 0x7F:
		return 0x7FC0
	case e == 0:
		return math.Float32bits(float32(math.Ldexp(m, -9))) >> 16
	default:
		return math.Float32bits(float32(math.Ldexp(8+m, e-10))) >> 16
	}
}

// prepare fills the registers of tables and constants.
func (d *pairDecoder) prepare() {
	bytes := func(name string, at func(i int) uint32) operand.Mem {
		var words []uint32
		for i := 0; i < 64; i += 4 {
			words = append(words, at(i)|at(i+1)<<8|at(i+2)<<16|at(i+3)<<24)
		}
		return d.words(name, words...)
	}
	// Of the four codes of a word, the first two go to the lower half of 16 bytes.
	d.VMOVUPS(bytes("e4m3order", func(i int) uint32 { return uint32(i%16/2%4*4 + i%16/8*2 + i%2) }), decodeOrder)
	d.VMOVUPS(d.full(0x80808080), decodeSign)
	if d.vbmi {
		d.VMOVUPS(bytes("e4m3upper0", func(i int) uint32 { return valueE4M3(i) >> 8 }), decodeTables[0])
		d.VMOVUPS(bytes("e4m3upper64", func(i int) uint32 { return valueE4M3(64+i) >> 8 }), decodeTables[1])
		d.VMOVUPS(bytes("e4m3lower0", func(i int) uint32 { return valueE4M3(i) & 0xFF }), decodeTables[2])
		d.VMOVUPS(bytes("e4m3lower64", func(i int) uint32 { return valueE4M3(64+i) & 0xFF }), decodeTables[3])
		return
	}
	d.VMOVUPS(bytes("e4m3upper", func(i int) uint32 { return 60 + uint32(i%8) }), decodeTables[0])
	d.VMOVUPS(bytes("e4m3smallupper", func(i int) uint32 { return valueE4M3(i%8) >> 8 }), decodeTables[1])
	d.VMOVUPS(bytes("e4m3smalllower", func(i int) uint32 { return valueE4M3(i%8) & 0xFF }), decodeTables[2])
	d.VMOVUPS(d.full(0x0F0F0F0F), decodeNibble)
	d.VMOVUPS(d.full(0x78787878), decodeExponent)
}

// decode makes the pairs of the first two k of the words at from, and those of the others. nans says that there may be
// NaN codes. It overwrites K2.
func (d *pairDecoder) decode(from operand.Mem, first, second reg.VecPhysical, nans bool) {
	code, upper, lower := decodeCode, decodeUpper, decodeLower
	d.VMOVUPS(from, code)
	d.VPSHUFB(decodeOrder, code, code)
	if d.vbmi {
		d.VMOVDQA64(code, upper)
		d.VPERMI2B(decodeTables[1], decodeTables[0], upper)
		d.VMOVDQA64(code, lower)
		d.VPERMI2B(decodeTables[3], decodeTables[2], lower)
	} else {
		d.halfCodes()
	}
	d.VPTERNLOGD(operand.U8(0xF8), decodeSign, code, upper) // the sign of the code
	if nans {
		d.VPANDD(d.full(0x7F7F7F7F), code, code)
		d.VPCMPEQB(d.full(0x7F7F7F7F), code, reg.K2)
		d.VMOVDQU8(d.full(0x7F7F7F7F), reg.K2, upper)
		d.VMOVDQU8(d.full(0xC0C0C0C0), reg.K2, lower)
	}
	d.VPUNPCKLBW(upper, lower, first)
	d.VPUNPCKHBW(upper, lower, second)
}

// halfCodes looks up the upper byte by the upper half of a code, whose lower half is the lower byte, shifted. Where the
// exponent is zero both are looked up by the lower half.
func (d *pairDecoder) halfCodes() {
	code, upper, lower, half := decodeCode, decodeUpper, decodeLower, decodeWork
	d.VPSRLW(operand.U8(4), code, upper)
	d.VPANDD(decodeNibble, upper, upper)
	d.VPSHUFB(upper, decodeTables[0], upper)
	d.VPANDD(decodeNibble, code, half)
	d.VPSLLW(operand.U8(4), half, lower)
	d.VPTESTNMB(decodeExponent, code, reg.K2)
	d.VPSHUFB(half, decodeTables[1], reg.K2, upper)
	d.VPSHUFB(half, decodeTables[2], reg.K2, lower)
}

// widenE4M3Pairs makes float32 of each of the four codes of a word, as gemmE4M3 does, and pairs of them.
//
//	computes   dst[kk/2*32 + lane*2 + kk%2] = the bf16 of codes[kk/4*64 + lane*4 + kk%4]
//	registers  SI codes, DI dst, CX bytes left; V0, V1 values, V2, V3 work
//	reads      codes in words, once for each of their codes
//	order      from the front
//	limits     len(codes) is a multiple of 64
func widenE4M3Pairs(g *G) {
	widenWords(g, func() {
		for pair := range 2 {
			for at := 0; at < 64; at += g.Bytes() {
				for place := range 2 {
					v, nan := g.V(place), g.V(2)
					g.VMOVUPS(At(reg.RSI, at), v)
					if up := 8 * (3 - 2*pair - place); up > 0 {
						g.VPSLLD(operand.U8(uint8(up)), v, v)
					}
					g.VPSRAD(operand.U8(4), v, v)
					g.And(g.full(wordDecoder{}.mask()), v, v)
					g.VMULPS(g.full(math.Float32bits(0x1p120)), v, v)
					g.And(g.full(0x7FFFFFFF), v, nan)
					if g.Wide() {
						g.VPCMPEQD(g.full(math.Float32bits(480)), nan, reg.K2)
						g.VMOVDQU32(g.full(0x7FC00000), reg.K2, v)
					} else {
						g.VPCMPEQD(g.full(math.Float32bits(480)), nan, nan)
						g.VBLENDVPS(nan, g.full(0x7FC00000), v, v)
					}
				}
				g.VPSRLD(operand.U8(16), g.V(0), g.V(0))
				g.Or(g.V(1), g.V(0), g.V(0))
				g.VMOVUPS(g.V(0), At(reg.RDI, 64*pair+at))
			}
		}
	})
}

// widenE4M3PairsVBMI is widenE4M3Pairs by tables of all codes.
//
//	computes   dst[kk/2*32 + lane*2 + kk%2] = the bf16 of codes[kk/4*64 + lane*4 + kk%4]
//	registers  SI codes, DI dst, CX bytes left; V16, V17 pairs, V18 to V21 work, V24 to V31 tables
//	reads      codes once
//	order      from the front
//	limits     len(codes) is a multiple of 64
func widenE4M3PairsVBMI(g *G) { widenOwn(g, true) }

// widenE4M3PairsOwn is widenE4M3PairsVBMI with tables of half codes.
//
//	computes   dst[kk/2*32 + lane*2 + kk%2] = the bf16 of codes[kk/4*64 + lane*4 + kk%4]
//	registers  those of widenE4M3PairsVBMI
//	reads      codes once
//	order      from the front
//	limits     len(codes) is a multiple of 64
func widenE4M3PairsOwn(g *G) { widenOwn(g, false) }

func widenOwn(g *G, vbmi bool) {
	d := &pairDecoder{g, vbmi}
	d.prepare()
	widenWords(g, func() {
		d.decode(At(reg.RSI, 0), Z(16), Z(17), true)
		g.VMOVUPS(Z(16), At(reg.RDI, 0))
		g.VMOVUPS(Z(17), At(reg.RDI, 64))
	})
}

// widenWords goes through the words of four k at a time.
func widenWords(g *G, words func()) {
	loop, done := g.Fresh("loop"), g.Fresh("done")
	g.Base("dst", reg.RDI)
	g.Base("codes", reg.RSI)
	g.Len("codes", reg.RCX)
	g.TESTQ(reg.RCX, reg.RCX)
	g.JZ(operand.LabelRef(done))
	g.Label(loop)
	words()
	g.ADDQ(operand.U8(64), reg.RSI)
	g.ADDQ(operand.U32(128), reg.RDI)
	g.SUBQ(operand.U8(64), reg.RCX)
	g.JNZ(operand.LabelRef(loop))
	g.Label(done)
	g.Done()
}

// pairLoop is fmaLoop with pairs.
//
//	computes   x = fma(a1, b1, x), then x = fma(a0, b0, x), n times
//	registers  V0 to V11 x, V12 and V14 a, V13 and V15 b; SI x, CX times left, DX n
//	reads      x, 12 vectors at a time
//	order      12 vectors n times, then the next
//	limits     none
func pairLoop(g *G) {
	const sums, unroll, values = 12, 8, 192
	done := g.Fresh("done")
	g.Base("x", reg.RSI)
	a, b := [2]reg.VecPhysical{g.V(12), g.V(14)}, [2]reg.VecPhysical{g.V(13), g.V(15)}
	splat := func(name string, v [2]reg.VecPhysical) {
		g.SplatArg(name, v[0])
		if !g.dots() {
			g.And(g.wordMask(), v[0], v[1])
			g.VPSLLD(operand.U8(16), v[0], v[0])
		}
	}
	splat("a", a)
	splat("b", b)
	g.Arg("n", reg.RDX)
	g.TESTQ(reg.RDX, reg.RDX)
	g.JLE(operand.LabelRef(done))
	all := func(times int) {
		for range times {
			if g.dots() {
				for i := range sums {
					g.VDPBF16PS(a[0], b[0], g.V(i))
				}
				continue
			}
			for place := 1; place >= 0; place-- {
				for i := range sums {
					g.VFMADD231PS(a[place], b[place], g.V(i))
				}
			}
		}
	}
	for first := 0; first < values; first += sums * g.Level.Lanes {
		at := func(i int) operand.Mem { return At(reg.RSI, 4*first+g.Bytes()*i) }
		for i := range sums {
			g.VMOVUPS(at(i), g.V(i))
		}
		g.MOVQ(reg.RDX, reg.RCX)
		g.unrolled(reg.RCX, unroll, all)
		for i := range sums {
			g.VMOVUPS(g.V(i), at(i))
		}
	}
	g.Label(done)
	g.Done()
}
