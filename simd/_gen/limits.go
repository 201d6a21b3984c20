package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// fmaLoop keeps the fma units as busy as they can be: 12 sums hide a latency of 4 on two units.
//
//	computes   x = fma(x, a, b), n times
//	registers  V0 to V11 x, V12 a, V13 b; SI x, CX times left, DX n
//	reads      x, 12 vectors at a time
//	order      12 vectors n times, then the next
//	limits     none
func fmaLoop(g *G) {
	const sums, unroll, values = 12, 16, 192
	done := g.Fresh("done")
	g.Base("x", reg.RSI)
	g.SplatArg("a", g.V(sums))
	g.SplatArg("b", g.V(sums+1))
	g.Arg("n", reg.RDX)
	g.TESTQ(reg.RDX, reg.RDX)
	g.JLE(operand.LabelRef(done))
	all := func(times int) {
		for range times {
			for i := range sums {
				g.VFMADD213PS(g.V(sums+1), g.V(sums), g.V(i))
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

// xorWords reads memory and does little else. It leaves prefetching to the processor: asking for lines ahead gains
// nothing at any distance.
//
//	computes   the exclusive or of all words of x
//	registers  V0 to V7 sums; SI x, CX words left, AX the result
//	reads      x, 8 vectors at a time, the rest by words
//	order      from the front
//	limits     none
func xorWords(g *G) {
	const sums = 8
	g.Base("x", reg.RSI)
	g.Len("x", reg.RCX)
	g.XORL(reg.EAX, reg.EAX)
	for i := range sums {
		g.Zero(g.V(i))
	}
	loop, rest, one, done := g.Fresh("loop"), g.Fresh("rest"), g.Fresh("one"), g.Fresh("done")
	block := sums * g.Bytes()
	g.SUBQ(operand.U32(uint32(block/8)), reg.RCX)
	g.JLT(operand.LabelRef(rest))
	g.Label(loop)
	for i := range sums {
		g.Xor(At(reg.RSI, g.Bytes()*i), g.V(i), g.V(i))
	}
	g.ADDQ(operand.U32(uint32(block)), reg.RSI)
	g.SUBQ(operand.U32(uint32(block/8)), reg.RCX)
	g.JGE(operand.LabelRef(loop))
	g.Label(rest)
	for step := sums / 2; step > 0; step /= 2 {
		for i := range step {
			g.Xor(g.V(i+step), g.V(i), g.V(i))
		}
	}
	if g.Wide() {
		g.VEXTRACTI64X4(operand.U8(1), Z(0), Y(1))
		g.VPXOR(Y(1), Y(0), Y(0))
	}
	g.VEXTRACTI128(operand.U8(1), Y(0), X(1))
	g.VPXOR(X(1), X(0), X(0))
	g.VPSRLDQ(operand.U8(8), X(0), X(1))
	g.VPXOR(X(1), X(0), X(0))
	g.VMOVQ(X(0), reg.RAX)
	g.ADDQ(operand.U32(uint32(block/8)), reg.RCX)
	g.JZ(operand.LabelRef(done))
	g.Label(one)
	g.XORQ(At(reg.RSI, 0), reg.RAX)
	g.ADDQ(operand.U8(8), reg.RSI)
	g.DECQ(reg.RCX)
	g.JNZ(operand.LabelRef(one))
	g.Label(done)
	g.Store(reg.RAX, g.ReturnIndex(0))
	g.Done()
}

// prefetchLines asks for lines in the second cache: what it asks for is read within a tile's time, and the first is
// full of the tile.
//
//	computes   nothing
//	registers  SI row, R8 stride, R9 rows left, DI line, CX the end of the row
//	reads      nothing: a prefetch never faults
//	order      row by row from the front, a line of 64 bytes at a time
//	limits     none
func prefetchLines(g *G) {
	row, line, done := g.Fresh("row"), g.Fresh("line"), g.Fresh("done")
	g.Base("x", reg.RSI)
	g.Arg("ld", reg.R8)
	g.Arg("n", reg.RCX)
	g.Arg("rows", reg.R9)
	g.TESTQ(reg.RCX, reg.RCX)
	g.JLE(operand.LabelRef(done))
	g.ADDQ(reg.RSI, reg.RCX)
	g.Label(row)
	g.SUBQ(operand.U8(1), reg.R9)
	g.JLT(operand.LabelRef(done))
	g.MOVQ(reg.RSI, reg.RDI)
	g.ANDQ(operand.I8(-64), reg.RDI)
	g.Label(line)
	g.PREFETCHT1(At(reg.RDI, 0))
	g.ADDQ(operand.U8(64), reg.RDI)
	g.CMPQ(reg.RDI, reg.RCX)
	g.JCS(operand.LabelRef(line))
	g.ADDQ(reg.R8, reg.RSI)
	g.ADDQ(reg.R8, reg.RCX)
	g.JMP(operand.LabelRef(row))
	g.Label(done)
	g.RET()
}
