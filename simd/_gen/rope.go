package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// ropeInterleaved turns adjacent pairs.
//
//	computes   dst[2i], dst[2i+1] = (x[2i], x[2i+1]) * (freqs[2i], freqs[2i+1]) as complex numbers
//	registers  SI x, DI dst, DX freqs, CX what is left, AX where; V0 ones, V1 and V2 the products
//	reads      x and freqs in vectors, the last one masked; the value after the last pair is left out
//	order      free; products and sums are rounded, the fma that adds has a factor of 1
//	limits     none
func ropeInterleaved(g *G) {
	const swap = 0xB1 // the two of each pair
	g.Base("x", reg.RSI)
	g.Base("dst", reg.RDI)
	g.Base("freqs", reg.RDX)
	g.Len("x", reg.RCX)
	g.ANDQ(operand.I8(-2), reg.RCX)
	g.Splat(oneBits, g.V(0))
	overRow(g, 2, func(of []strip) {
		for i, s := range of {
			x, f, even := g.V(3*i+1), g.V(3*i+2), g.V(3*i+3)
			s.load(reg.RSI, x)
			s.load(reg.RDX, f)
			g.VMOVSLDUP(x, even)
			g.VMOVSHDUP(x, x)
			g.VMULPS(f, even, even) // x0*cos, x0*sin
			g.VPERMILPS(operand.U8(swap), f, f)
			g.VMULPS(f, x, x) // x1*sin, x1*cos
			g.VFMADDSUB213PS(x, g.V(0), even)
			s.store(even, reg.RDI)
		}
	})
	g.Done()
}

// ropeHalf turns pairs whose parts are half a row apart. Its time is that of the shuffles of freqs.
//
//	computes   dst[i], dst[i+half] = (x[i], x[i+half]) * (freqs[2i], freqs[2i+1]) as complex numbers, half = len(x)/2
//	registers  SI x, DI dst, R8 x+half, R9 dst+half, DX freqs, CX pairs left; V0 to V5 values, V6 and V7 where cosines and
//	           sines are
//	reads      x and freqs in vectors, the rest pair by pair
//	order      free
//	limits     none
func ropeHalf(g *G) {
	lanes := g.Level.Lanes
	loop, tail, one, done := g.Fresh("loop"), g.Fresh("tail"), g.Fresh("one"), g.Fresh("done")
	g.Base("x", reg.RSI)
	g.Base("dst", reg.RDI)
	g.Base("freqs", reg.RDX)
	g.Len("x", reg.RCX)
	g.SHRQ(operand.U8(1), reg.RCX)
	g.LEAQ(AtX(reg.RSI, reg.RCX, 4, 0), reg.R8)
	g.LEAQ(AtX(reg.RDI, reg.RCX, 4, 0), reg.R9)
	part := newParts(g, g.V(6), g.V(7))
	g.SUBQ(operand.U8(uint8(lanes)), reg.RCX)
	g.JLT(operand.LabelRef(tail))
	g.Label(loop)
	g.VMOVUPS(At(reg.RDX, 0), g.V(2))
	g.VMOVUPS(At(reg.RDX, g.Bytes()), g.V(3))
	part(g.V(2), g.V(3), g.V(4))
	turnHalf(g, g.V, g.VMOVUPS, g.VMULPS, g.VSUBPS, g.VADDPS)
	advanceHalf(g, g.Bytes())
	g.SUBQ(operand.U8(uint8(lanes)), reg.RCX)
	g.JGE(operand.LabelRef(loop))
	g.Label(tail)
	g.ADDQ(operand.U8(uint8(lanes)), reg.RCX)
	g.JZ(operand.LabelRef(done))
	g.Label(one)
	g.VMOVSS(At(reg.RDX, 0), X(2))
	g.VMOVSS(At(reg.RDX, 4), X(3))
	turnHalf(g, X, g.VMOVSS, g.VMULSS, g.VSUBSS, g.VADDSS)
	advanceHalf(g, 4)
	g.DECQ(reg.RCX)
	g.JNZ(operand.LabelRef(one))
	g.Label(done)
	g.Done()
}

// turnHalf is a step of ropeHalf: the pairs at SI and R8 with the cosines in 2 and the sines in 3 go to DI and R9. It is
// written once for vectors and for single values.
func turnHalf(g *G, v func(int) reg.VecPhysical, move func(...operand.Op), mul, sub, add func(...operand.Op)) {
	x0, x1, cos, sin, re, im := v(0), v(1), v(2), v(3), v(4), v(5)
	move(At(reg.RSI, 0), x0)
	move(At(reg.R8, 0), x1)
	mul(cos, x0, re)
	mul(sin, x0, im)
	mul(sin, x1, sin)
	mul(cos, x1, cos)
	sub(sin, re, re)
	add(cos, im, im)
	move(re, At(reg.RDI, 0))
	move(im, At(reg.R9, 0))
}

// advanceHalf moves ropeHalf's addresses on by so many bytes of x.
func advanceHalf(g *G, bytes int) {
	for _, r := range []reg.Register{reg.RSI, reg.RDI, reg.R8, reg.R9} {
		g.ADDQ(operand.U8(uint8(bytes)), r)
	}
	g.ADDQ(operand.U32(uint32(2*bytes)), reg.RDX)
}

// newParts returns the code that turns two vectors of pairs, lo and hi, into the vector lo of the first of each pair and
// hi of the second. AVX-512 keeps the numbers of these places in two vectors.
func newParts(g *G, first, second reg.VecPhysical) func(lo, hi, scratch reg.VecPhysical) {
	if g.Wide() {
		g.VMOVUPS(g.everySecond(), first)
		g.VPADDD_BCST(g.Const(1), first, second)
		return func(lo, hi, scratch reg.VecPhysical) {
			g.VMOVAPS(lo, scratch)
			g.VPERMT2PS(hi, first, lo)
			g.VPERMT2PS(hi, second, scratch)
			g.VMOVAPS(scratch, hi)
		}
	}
	return func(lo, hi, scratch reg.VecPhysical) {
		g.VSHUFPS(operand.U8(0x88), hi, lo, scratch)
		g.VSHUFPS(operand.U8(0xDD), hi, lo, hi)
		// Each half of a vector was shuffled by itself.
		g.VPERMPD(operand.U8(0xD8), scratch, lo)
		g.VPERMPD(operand.U8(0xD8), hi, hi)
	}
}

// everySecond is a table of 0, 2, ... 30.
func (g *G) everySecond() operand.Mem {
	return g.words("everysecond", 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
}
