package workshop

import (
	"math/bits"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The registers of packRows. Strides are in bytes.
var (
	packLDS   = reg.R8
	packLDS3  = reg.R9                                                  // three times the stride
	packRow   = [...]reg.GPPhysical{reg.RSI, reg.R10, reg.R11, reg.R12} // walk rows 0, 4, 8 and 12 of a panel
	packTo    = reg.RDI
	packK     = reg.RCX // steps left
	packLeft  = reg.R13 // rows left
	packFirst = reg.R14 // the panel's first row
	packPanel = reg.R15
	packTmp   = reg.RAX
)

// packRows writes rows as panels. Blocks of 4 steps by as many rows as a vector has lanes are transposed in registers.
//
//	computes   dst[(j/16)*ldd + kk*16 + j%16] = src[j*lds + kk], and zero in the lanes past n
//	registers  those above, BX and DX; V0 to V11
//	reads      src, 4 values of a row at a time, the last k%4 one by one
//	order      panel by panel, in each 4 steps by 16 rows
//	limits     none
func packRows(g *G) {
	done, panels, whole, part, next := g.Fresh("done"), g.Fresh("panels"), g.Fresh("whole"), g.Fresh("part"), g.Fresh("next")
	g.Arg("n", packLeft)
	g.TESTQ(packLeft, packLeft)
	g.JLE(operand.LabelRef(done))
	g.Base("dst", packPanel)
	g.Base("src", packFirst)
	g.stride("lds", packLDS)
	g.LEAQ(AtX(packLDS, packLDS, 2, 0), packLDS3)

	g.Label(panels)
	g.MOVQ(packFirst, packRow[0])
	for i := 1; i < len(packRow); i++ {
		g.LEAQ(AtX(packRow[i-1], packLDS, 4, 0), packRow[i])
	}
	g.MOVQ(packPanel, packTo)
	g.Arg("k", packK)
	g.CMPQ(packLeft, operand.U8(16))
	g.JLT(operand.LabelRef(part))
	g.Label(whole)
	packBlocks(g, false)
	g.JMP(operand.LabelRef(next))
	g.Label(part)
	packBlocks(g, true)
	g.Label(next)
	packRest(g)
	g.LEAQ(AtX(packRow[3], packLDS, 4, 0), packFirst)
	g.stride("k", packTmp)
	g.SUBQ(packTmp, packFirst)
	g.stride("ldd", packTmp)
	g.ADDQ(packTmp, packPanel)
	g.SUBQ(operand.U8(16), packLeft)
	g.JGT(operand.LabelRef(panels))
	g.Label(done)
	g.Done()
}

// packBlocks does all whole blocks of a panel, of which some rows are missing if part is set.
func packBlocks(g *G, part bool) {
	loop, done := g.Fresh("blocks"), g.Fresh("blocksdone")
	g.SUBQ(operand.U8(4), packK)
	g.JLT(operand.LabelRef(done))
	g.Label(loop)
	for first := 0; first < 16; first += g.Level.Lanes {
		for r := range 4 {
			packLoad(g, first+r, g.V(r), part)
		}
		// V0 to V3 hold rows 0 to 3 in their lowest quarters or halves, 4 to 7 in the next, and so on.
		g.VUNPCKLPS(g.V(1), g.V(0), g.V(4))
		g.VUNPCKHPS(g.V(1), g.V(0), g.V(5))
		g.VUNPCKLPS(g.V(3), g.V(2), g.V(6))
		g.VUNPCKHPS(g.V(3), g.V(2), g.V(7))
		g.VUNPCKLPD(g.V(6), g.V(4), g.V(8))
		g.VUNPCKHPD(g.V(6), g.V(4), g.V(9))
		g.VUNPCKLPD(g.V(7), g.V(5), g.V(10))
		g.VUNPCKHPD(g.V(7), g.V(5), g.V(11))
		for step := range 4 {
			g.VMOVUPS(g.V(8+step), At(packTo, 64*step+4*first))
		}
	}
	for _, row := range packRow {
		g.ADDQ(operand.U8(16), row)
	}
	g.ADDQ(operand.U32(256), packTo)
	g.SUBQ(operand.U8(4), packK)
	g.JGE(operand.LabelRef(loop))
	g.Label(done)
	g.ADDQ(operand.U8(4), packK)
}

// packLoad loads 4 values of row r into the lowest 128 bits of v, of row r+4 into the next, and so on.
func packLoad(g *G, r int, v reg.VecPhysical, part bool) {
	at := func(r int) operand.Mem { return oneOfFour(packRow[r/4], packLDS, packLDS3, r%4) }
	done := g.Fresh("loaded")
	if part {
		g.Zero(v)
	}
	for i := range g.Level.Lanes / 4 {
		if part {
			g.CMPQ(packLeft, operand.U8(uint8(r+4*i)))
			g.JLE(operand.LabelRef(done))
		}
		switch place := operand.U8(uint8(i)); {
		case i == 0:
			g.VMOVUPS(at(r), v.AsX())
		case g.Wide():
			g.VINSERTF32X4(place, at(r+4*i), v, v)
		default:
			g.VINSERTF128(place, at(r+4*i), v, v)
		}
	}
	g.Label(done)
}

// packRest does the last k%4 steps, value by value, and leaves the rows where they end.
func packRest(g *G) {
	step, lane, done := g.Fresh("step"), g.Fresh("lane"), g.Fresh("stepsdone")
	zero, store := g.Fresh("zero"), g.Fresh("store")
	g.TESTQ(packK, packK)
	g.JZ(operand.LabelRef(done))
	g.Label(step)
	g.MOVQ(packRow[0], reg.RBX)
	g.XORL(reg.EDX, reg.EDX)
	g.Label(lane)
	g.CMPQ(reg.RDX, packLeft)
	g.JGE(operand.LabelRef(zero))
	g.MOVL(At(reg.RBX, 0), packTmp.As32())
	g.JMP(operand.LabelRef(store))
	g.Label(zero)
	g.XORL(packTmp.As32(), packTmp.As32())
	g.Label(store)
	g.MOVL(packTmp.As32(), At(packTo, 0))
	g.ADDQ(packLDS, reg.RBX)
	g.ADDQ(operand.U8(4), packTo)
	g.INCQ(reg.RDX)
	g.CMPQ(reg.RDX, operand.U8(16))
	g.JLT(operand.LabelRef(lane))
	for _, row := range packRow {
		g.ADDQ(operand.U8(4), row)
	}
	g.DECQ(packK)
	g.JNZ(operand.LabelRef(step))
	g.Label(done)
}

// lift multiplies rows by a power of two.
//
//	computes   dst = x * by, and whether all of it is finite: v - v is a NaN where v is not, else zero
//	registers  V0, V1 values, V2, V3 differences, V4 by, V5 all differences, V6 the mask of the last vector; SI x,
//	           DI dst, R8, R9 the strides, CX vectors left, DX the row's offset in bytes, R10 rows left, AX
//	reads      x, in vectors, the last one masked
//	order      row by row, from the front: dst may be x
//	limits     none
func lift(g *G) {
	rows, next, done := g.Fresh("rows"), g.Fresh("next"), g.Fresh("done")
	by, seen := g.V(4), g.V(5)
	g.Zero(seen)
	g.SplatArg("by", by)
	g.Base("dst", reg.RDI)
	g.Base("x", reg.RSI)
	g.stride("ldd", reg.R9)
	g.stride("ldx", reg.R8)
	g.Arg("m", reg.R10)
	g.TESTQ(reg.R10, reg.R10)
	g.JLE(operand.LabelRef(done))
	liftMask(g)

	g.Label(rows)
	g.Arg("k", reg.RCX)
	g.XORL(reg.EDX, reg.EDX)
	g.SHRQ(operand.U8(uint8(bits.TrailingZeros(uint(g.Level.Lanes)))), reg.RCX)
	g.unrolled(reg.RCX, 4, func(n int) { liftVectors(g, n) })
	g.Arg("k", reg.RCX)
	g.TESTQ(operand.U32(uint32(g.Level.Lanes-1)), reg.RCX)
	g.JZ(operand.LabelRef(next))
	liftLast(g, AtX(reg.RSI, reg.RDX, 1, 0), AtX(reg.RDI, reg.RDX, 1, 0))
	g.Label(next)
	g.ADDQ(reg.R8, reg.RSI)
	g.ADDQ(reg.R9, reg.RDI)
	g.DECQ(reg.R10)
	g.JNZ(operand.LabelRef(rows))

	g.Label(done)
	if g.Wide() {
		g.VPTESTMD(seen, seen, reg.K1)
		g.KORTESTW(reg.K1, reg.K1)
	} else {
		g.VPTEST(seen, seen)
	}
	g.SETEQ(reg.AL)
	g.Store(reg.AL, g.ReturnIndex(0))
	g.Done()
}

// liftMask makes the mask of a row's last k%lanes columns, in V6 or K1.
func liftMask(g *G) {
	g.Arg("k", reg.RDX)
	g.ANDQ(operand.U8(uint8(g.Level.Lanes-1)), reg.RDX)
	g.Tail(reg.RDX, reg.RAX, g.byLevel(reg.K1, g.V(6)))
}

// liftVectors does some whole vectors.
func liftVectors(g *G, n int) {
	by, seen := g.V(4), g.V(5)
	for i := range n {
		value, diff := g.V(i%2), g.V(2+i%2)
		g.VMULPS(AtX(reg.RSI, reg.RDX, 1, g.Bytes()*i), by, value)
		g.VMOVUPS(value, AtX(reg.RDI, reg.RDX, 1, g.Bytes()*i))
		g.VSUBPS(value, value, diff)
		g.Or(diff, seen, seen)
	}
	g.ADDQ(operand.U32(uint32(g.Bytes()*n)), reg.RDX)
}

// liftLast does the last columns of a row.
func liftLast(g *G, from, to operand.Mem) {
	value, diff, by, seen, mask := g.V(0), g.V(2), g.V(4), g.V(5), g.V(6)
	if g.Wide() {
		g.VMULPS_Z(from, by, reg.K1, value)
		g.VMOVUPS(value, reg.K1, to)
	} else {
		g.VMASKMOVPS(from, mask, value)
		g.VMULPS(by, value, value)
		g.VMASKMOVPS(value, mask, to)
	}
	g.VSUBPS(value, value, diff)
	g.Or(diff, seen, seen)
}
