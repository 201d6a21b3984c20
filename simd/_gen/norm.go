package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// squareLanes is how many sums SumSquares keeps.
const squareLanes = 32

// sumSquares is the sum of the squares of a row. A round takes as long as an fma.
//
//	computes   the sum of x[i]*x[i]
//	registers  SI x, CX what is left; V0 on: 32 lanes of sums, then the values
//	reads      x, 32 values at a time, the rest one by one
//	order      32 lanes over whole rounds of 32, folded in halves, then the rest from the front
//	limits     none
func sumSquares(g *G) {
	squares(g)
	g.Return(X(0))
	g.Done()
}

// squares is sumSquares that leaves the sum in X0.
func squares(g *G) {
	sums := squareLanes / g.Level.Lanes
	rounds, fold, tail, one, done := g.Fresh("rounds"), g.Fresh("fold"), g.Fresh("tail"), g.Fresh("one"), g.Fresh("squared")
	g.Base("x", reg.RSI)
	g.Len("x", reg.RCX)
	for i := range sums {
		g.Zero(g.V(i))
	}
	g.SUBQ(operand.U8(squareLanes), reg.RCX)
	g.JLT(operand.LabelRef(tail))
	g.Label(rounds)
	for i := range sums {
		v := g.V(sums + i)
		g.VMOVUPS(At(reg.RSI, i*g.Bytes()), v)
		g.VFMADD231PS(v, v, g.V(i))
	}
	g.ADDQ(operand.U32(4*squareLanes), reg.RSI)
	g.SUBQ(operand.U8(squareLanes), reg.RCX)
	g.JGE(operand.LabelRef(rounds))
	g.Label(fold)
	for w := sums / 2; w > 0; w /= 2 {
		for i := range w {
			g.VADDPS(g.V(i+w), g.V(i), g.V(i))
		}
	}
	halve(g, 0, 1, func(a, b operand.Op, d reg.VecPhysical) { g.VADDPS(a, b, d) })
	g.Label(tail)
	g.ADDQ(operand.U8(squareLanes), reg.RCX)
	g.JZ(operand.LabelRef(done))
	g.Label(one)
	g.VMOVSS(At(reg.RSI, 0), X(1))
	g.VFMADD231SS(X(1), X(1), X(0))
	g.ADDQ(operand.U8(4), reg.RSI)
	g.DECQ(reg.RCX)
	g.JNZ(operand.LabelRef(one))
	g.Label(done)
}

// rmsNorm normalises a row.
//
//	computes   dst[i] = (x[i]*r) * gamma[i], r = 1/sqrt(sum of x^2 / len(x) + eps)
//	registers  SI x, DI dst, DX gamma, CX what is left, AX where; V0 r, V1 to V4 values, V5 to V8 scratch, V15 the mask
//	           of the tail
//	reads      x twice, gamma once, in vectors, the last one masked
//	order      sumSquares, then from the front: dst may be x
//	limits     none
func rmsNorm(g *G) { normalise(g, func(v, scratch reg.VecPhysical) {}) }

// rmsNormBF16 is rmsNorm that rounds both products to bf16.
//
//	computes   dst[i] = bf16(bf16(x[i]*r) * gamma[i])
//	registers  those of rmsNorm; V12 to V14 constants
//	reads      as rmsNorm
//	order      as rmsNorm
//	limits     none
func rmsNormBF16(g *G) { normalise(g, newRoundBF16(g, g.V(12), g.V(13), g.V(14))) }

// rmsNormF16 is rmsNorm that rounds both products to f16.
//
//	computes   dst[i] = f16(f16(x[i]*r) * gamma[i])
//	registers  those of rmsNorm
//	reads      as rmsNorm
//	order      as rmsNorm
//	limits     none
func rmsNormF16(g *G) {
	normalise(g, func(v, _ reg.VecPhysical) {
		half := g.half(int(v.PhysicalIndex()))
		g.VCVTPS2PH(nearestEven, v, half)
		g.VCVTPH2PS(half, v)
	})
}

// newRoundBF16 fills three vectors with constants and returns the code that rounds a product to bf16, to nearest even. A
// NaN must be quiet, as that of a product is: it would become a number if its payload were rounded.
func newRoundBF16(g *G, one, half, upper reg.VecPhysical) func(v, scratch reg.VecPhysical) {
	g.Splat(1, one)
	g.Splat(0x7FFF, half)
	g.Splat(0xFFFF0000, upper)
	return func(v, scratch reg.VecPhysical) {
		g.VPSRLD(operand.U8(16), v, scratch)
		g.And(one, scratch, scratch)
		g.VPADDD(half, scratch, scratch)
		g.VPADDD(v, scratch, scratch)
		if g.Wide() {
			g.VCMPPS(cmpUnord, v, v, reg.K2)
			g.VMOVUPS(v, reg.K2, scratch)
		} else {
			g.VCMPPS(cmpUnord, v, v, v)
			g.Or(v, scratch, scratch)
		}
		g.And(upper, scratch, v)
	}
}

// normalise is the whole of a norm; round rounds a vector and may use scratch.
func normalise(g *G, round func(v, scratch reg.VecPhysical)) {
	squares(g)
	g.Len("x", reg.RCX)
	g.VXORPS(X(1), X(1), X(1))
	g.VCVTSI2SSQ(reg.RCX, X(1), X(1))
	g.VDIVSS(X(1), X(0), X(0))
	g.VADDSS(g.ArgAt("eps"), X(0), X(0))
	g.VSQRTSS(X(0), X(0), X(0))
	g.VMOVSS(g.Const(oneBits), X(1))
	g.VDIVSS(X(0), X(1), X(0))
	g.VBROADCASTSS(X(0), g.V(0))
	g.Base("x", reg.RSI)
	g.Base("dst", reg.RDI)
	g.Base("gamma", reg.RDX)
	overRow(g, 4, func(of []strip) {
		for i, s := range of {
			v, t := g.V(1+i), g.V(5+i)
			s.load(reg.RSI, v)
			g.VMULPS(g.V(0), v, v)
			round(v, t)
			s.load(reg.RDX, t)
			g.VMULPS(t, v, v)
			round(v, t)
			s.store(v, reg.RDI)
		}
	})
	g.Done()
}
