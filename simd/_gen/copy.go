package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// copyRows copies rows line by line, past the caches if that is asked for and the lines of dst are whole.
//
//	computes   dst[i*ldd+j] = src[i*lds+j]
//	registers  DI and SI rows, R8 and R9 their strides, R10 rows left, R11 bypass; DX, BX lines, CX values left; AX work
//	reads      src once
//	order      row by row, from the front
//	limits     none
func copyRows(g *G) {
	row, tail, next, done := g.Fresh("row"), g.Fresh("tail"), g.Fresh("next"), g.Fresh("done")
	cached, past := g.Fresh("cached"), g.Fresh("past")
	to, from, left := reg.RDX, reg.RBX, reg.RCX
	g.wholeLines("dst", "ldd")
	g.Base("dst", reg.RDI)
	g.stride("ldd", reg.R8)
	g.Base("src", reg.RSI)
	g.stride("lds", reg.R9)
	g.Arg("bypass", reg.R11)
	g.Arg("rows", reg.R10)
	g.TESTQ(reg.R10, reg.R10)
	g.JLE(operand.LabelRef(done))
	g.Label(row)
	g.MOVQ(reg.RDI, to)
	g.MOVQ(reg.RSI, from)
	g.Arg("cols", left)
	g.SUBQ(operand.U8(16), left)
	g.JLT(operand.LabelRef(tail))
	g.TESTQ(reg.R11, reg.R11)
	g.JZ(operand.LabelRef(cached))
	lines := func(label string, store func(v, m operand.Op)) {
		g.Label(label)
		for at := 0; at < 64; at += g.Bytes() {
			g.VMOVUPS(At(from, at), g.V(at/g.Bytes()))
		}
		for at := 0; at < 64; at += g.Bytes() {
			store(g.V(at/g.Bytes()), At(to, at))
		}
		g.ADDQ(operand.U8(64), from)
		g.ADDQ(operand.U8(64), to)
		g.SUBQ(operand.U8(16), left)
		g.JGE(operand.LabelRef(label))
	}
	lines(past, g.VMOVNTPS)
	g.JMP(operand.LabelRef(tail))
	lines(cached, func(v, m operand.Op) { g.VMOVUPS(v, m) })
	g.Label(tail)
	g.ADDQ(operand.U8(16), left)
	g.JZ(operand.LabelRef(next))
	if g.Wide() {
		g.Tail(left, reg.RAX, reg.K1)
		g.loadTail(At(from, 0), reg.K1, g.V(0))
		g.storeTail(g.V(0), reg.K1, At(to, 0))
	} else {
		one := g.Fresh("one")
		g.Label(one)
		g.MOVL(At(from, 0), reg.EAX)
		g.MOVL(reg.EAX, At(to, 0))
		g.ADDQ(operand.U8(4), from)
		g.ADDQ(operand.U8(4), to)
		g.DECQ(left)
		g.JNZ(operand.LabelRef(one))
	}
	g.Label(next)
	g.ADDQ(reg.R8, reg.RDI)
	g.ADDQ(reg.R9, reg.RSI)
	g.DECQ(reg.R10)
	g.JNZ(operand.LabelRef(row))
	g.Label(done)
	g.SFENCE() // what was stored past the caches is seen before what follows
	g.Done()
}
