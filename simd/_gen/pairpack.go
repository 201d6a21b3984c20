package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// packPairs is packRows with rows that are rounded to bf16 first: blocks of 4 pairs by as many rows as a vector has words
// are transposed.
//
//	computes   dst[(j/16)*ldd + kk/2*32 + j%16*2 + kk%2] = src[j*lds + kk] in bf16, +0 below 2^-60 and in the lanes past n
//	registers  those of packRows; V0 to V15
//	reads      src, 8 values of a row at a time, the last k%8 one by one
//	order      panel by panel, in each 4 pairs by 16 rows
//	limits     none
func packPairs(g *G) {
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
	packPairBlocks(g, false)
	g.JMP(operand.LabelRef(next))
	g.Label(part)
	packPairBlocks(g, true)
	g.Label(next)
	packLastPairs(g)
	g.stride("lds", packTmp)
	g.SHLQ(operand.U8(4), packTmp)
	g.ADDQ(packTmp, packFirst)
	g.Arg("ldd", packTmp)
	g.ADDQ(packTmp, packTmp)
	g.ADDQ(packTmp, packPanel)
	g.SUBQ(operand.U8(16), packLeft)
	g.JGT(operand.LabelRef(panels))
	g.Label(done)
	g.Done()
}

// packPairBlocks does all whole blocks of a panel, of which some rows are missing if part is set.
func packPairBlocks(g *G, part bool) {
	loop, done := g.Fresh("blocks"), g.Fresh("blocksdone")
	g.SUBQ(operand.U8(8), packK)
	g.JLT(operand.LabelRef(done))
	g.Label(loop)
	for first := 0; first < 16; first += g.Level.Lanes {
		for r := range 4 {
			packRounded(g, first+r, r, part)
		}
		// As in packBlocks: V0 to V3 hold rows 0 to 3 in their lowest quarters or halves, and so on.
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
		g.ADDQ(operand.U8(32), row)
	}
	g.ADDQ(operand.U32(256), packTo)
	g.SUBQ(operand.U8(8), packK)
	g.JGE(operand.LabelRef(loop))
	g.Label(done)
	g.ADDQ(operand.U8(8), packK)
}

// packRounded fills the quarters or halves of V(v) with 8 values each, in bf16, of row r, r+4, and so on. It overwrites
// V4 to V7 and V12, V13.
func packRounded(g *G, r, v int, part bool) {
	tmp := [3]reg.VecPhysical{g.V(5), g.V(6), g.V(7)}
	if !g.Wide() {
		for half := range 2 {
			at := g.V(12 + half)
			packEight(g, r+4*half, Y(12+half), part)
			g.roundAct(at, tmp)
			g.VPSRLD(operand.U8(16), at, at)
		}
		// The pack works within halves, so that quarters come out in the order 0 2 1 3.
		g.VPACKUSDW(Y(13), Y(12), Y(v))
		g.VPERMQ(operand.U8(0b11_01_10_00), Y(v), Y(v))
		return
	}
	for half := range 2 {
		at := 12 + half
		packEight(g, r+8*half, Y(at), part)
		packEight(g, r+8*half+4, Y(4), part)
		g.VINSERTF64X4(operand.U8(1), Y(4), Z(at), Z(at))
		if g.dots() {
			g.large(Z(at), leastAct, Z(5))
			g.VCVTNEPS2BF16_Z(Z(at), reg.K2, Y(at))
			continue
		}
		g.roundAct(Z(at), tmp)
		g.VPSRLD(operand.U8(16), Z(at), Z(at))
		g.VPMOVDW(Z(at), Y(at))
	}
	g.VINSERTI64X4(operand.U8(1), Y(13), Z(12), Z(v))
}

// packEight loads 8 values of row r, or zeros.
func packEight(g *G, r int, to reg.VecPhysical, part bool) {
	missing, done := g.Fresh("missing"), g.Fresh("loaded")
	if part {
		g.CMPQ(packLeft, operand.U8(uint8(r)))
		g.JLE(operand.LabelRef(missing))
	}
	g.VMOVUPS(oneOfFour(packRow[r/4], packLDS, packLDS3, r%4), to)
	if part {
		g.JMP(operand.LabelRef(done))
		g.Label(missing)
		g.Zero(to)
		g.Label(done)
	}
}

// packLastPairs does the last k%8 values, pair by pair and lane by lane.
func packLastPairs(g *G) {
	pair, lane, done := g.Fresh("pair"), g.Fresh("lane"), g.Fresh("pairsdone")
	zero, single, store := g.Fresh("zero"), g.Fresh("single"), g.Fresh("store")
	tmp := [3]reg.VecPhysical{g.V(5), g.V(6), g.V(7)}
	g.TESTQ(packK, packK)
	g.JZ(operand.LabelRef(done))
	g.Label(pair)
	g.MOVQ(packRow[0], reg.RBX)
	g.XORL(reg.EDX, reg.EDX)
	g.Label(lane)
	g.CMPQ(reg.RDX, packLeft)
	g.JGE(operand.LabelRef(zero))
	g.CMPQ(packK, operand.U8(1))
	g.JEQ(operand.LabelRef(single))
	g.VMOVQ(At(reg.RBX, 0), X(0))
	g.roundAct(g.V(0), tmp)
	g.VMOVQ(X(0), packTmp) // the second value above, the first below: its upper half is wanted
	g.MOVL(packTmp.As32(), packLow.As32())
	g.SHRL(operand.U8(16), packLow.As32())
	g.SHRQ(operand.U8(32), packTmp)
	g.ORL(packLow.As32(), packTmp.As32())
	g.JMP(operand.LabelRef(store))
	g.Label(single)
	g.VMOVSS(At(reg.RBX, 0), X(0))
	g.roundAct(g.V(0), tmp)
	g.VMOVD(X(0), packTmp.As32())
	g.SHRL(operand.U8(16), packTmp.As32())
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
	g.ADDQ(operand.U8(8), packRow[0])
	g.SUBQ(operand.U8(2), packK)
	g.JGT(operand.LabelRef(pair))
	g.Label(done)
}

// packLow walks row 12 of a panel in whole blocks, and is free after them: the first value of a pair.
var packLow = packRow[3]
