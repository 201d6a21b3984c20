package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// narrowActBF16 is narrowBF16 with +0 for what is below 2^-60. Processors that multiply pairs also round to them.
//
//	computes   dst[i] = src[i] rounded to bfloat16, to nearest even, +0 below 2^-60
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V6 work
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowActBF16(g *G) {
	narrowPairs(g, g.roundAct, func(v int) {
		g.large(g.V(v), leastAct, g.V(4))
		g.VCVTNEPS2BF16_Z(g.V(v), reg.K2, g.half(v))
	})
}

// narrowValueBF16 is narrowBF16 with +0 for results below 2^-52.
//
//	computes   dst[i] = src[i] rounded to bfloat16, to nearest even, +0 where that is below 2^-52
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4-V6 work
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front
//	limits     none
func narrowValueBF16(g *G) {
	narrowPairs(g, g.roundValue, func(v int) {
		g.VCVTNEPS2BF16(g.V(v), g.half(v))
		g.flushWords(g.half(v), g.half(4))
	})
}

// narrowPairs writes a narrowing by round, whose results are in the upper halves of words, or by the processor's own.
func narrowPairs(g *G, round func(v reg.VecPhysical, tmp [3]reg.VecPhysical), own func(v int)) {
	if g.dots() {
		narrowHalves(g, own)
		return
	}
	narrowing{
		to:      2,
		prepare: func() {},
		step: func(v int) {
			round(g.V(v), [3]reg.VecPhysical{g.V(4), g.V(5), g.V(6)})
			g.VPSRLD(operand.U8(16), g.V(v), g.V(v))
		},
	}.write(g)
}

// narrowHalves writes a narrowing that leaves the values of V(v) in its lower half.
func narrowHalves(g *G, convert func(v int)) {
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
		masked: func() {
			g.VMOVUPS_Z(At(reg.RSI, 0), reg.K1, g.V(0))
			convert(0)
			g.VMOVDQU16(g.half(0), reg.K1, At(reg.RDI, 0))
		},
	}.write(g)
}

// flushWords makes +0 of the bf16 values of v that are below 2^-52. It overwrites tmp and K2.
func (g *G) flushWords(v, tmp reg.VecPhysical) {
	if g.Wide() {
		g.VPANDD(g.wordsOf(v, 0x7FFF), v, tmp)
		g.VPCMPUW(cmpNltInt, g.wordsOf(v, leastWord), tmp, reg.K2)
		g.VMOVDQU16_Z(v, reg.K2, v)
		return
	}
	g.VPAND(g.wordsOf(v, 0x7FFF), v, tmp)
	g.VPCMPGTW(g.wordsOf(v, leastWord-1), tmp, tmp)
	g.VPAND(tmp, v, v)
}

// wordsOf is as many 16-bit constants in memory as v has places.
func (g *G) wordsOf(v reg.VecPhysical, bits uint32) operand.Mem { return g.full(bits<<16 | bits) }

// leastWord is leastValue in bf16.
const leastWord = leastValue >> 16

// flushBF16 copies values, but for those below 2^-52.
//
//	computes   dst[i] = src[i], +0 below 2^-52
//	registers  SI src, DI dst, CX what is left, V0-V3 values, V4 work
//	reads      src once; AVX2 its last vector again if the length is no multiple of 8
//	order      from the front: dst may be src
//	limits     none
func flushBF16(g *G) {
	move := func(v reg.VecPhysical, at int) {
		g.VMOVUPS(At(reg.RSI, at), v)
		g.flushWords(v, g.V(4))
		g.VMOVUPS(v, At(reg.RDI, at))
	}
	conversion{
		from: 2, to: 2,
		prepare: func() {},
		vectors: func(count int) {
			if count == 1 {
				g.VMOVUPS(At(reg.RSI, 0), g.half(0))
				g.flushWords(g.half(0), g.half(4))
				g.VMOVUPS(g.half(0), At(reg.RDI, 0))
				return
			}
			for v := range count / 2 {
				move(g.V(v), v*g.Bytes())
			}
		},
		scalar: func() {
			g.flushWord(At(reg.RSI, 0), reg.RAX)
			g.MOVW(reg.AX, At(reg.RDI, 0))
		},
		masked: func() {
			g.VMOVDQU16_Z(At(reg.RSI, 0), reg.K1, g.half(0))
			g.flushWords(g.half(0), g.half(4))
			g.VMOVDQU16(g.half(0), reg.K1, At(reg.RDI, 0))
		},
	}.write(g)
}

// flushWord loads a value, +0 below 2^-52. It overwrites R8 and R9.
func (g *G) flushWord(from operand.Mem, to reg.GPPhysical) {
	g.MOVWLZX(from, to.As32())
	g.MOVL(to.As32(), reg.R8L)
	g.ANDL(operand.U32(0x7FFF), reg.R8L)
	g.CMPL(reg.R8L, operand.U32(leastWord))
	g.SBBL(reg.R9L, reg.R9L) // ones if it is below
	g.NOTL(reg.R9L)
	g.ANDL(reg.R9L, to.As32())
}

// tinyBF16 looks for the least magnitude, less one: that of zero is the largest then.
//
//	computes   whether a value is below 2^-52 and not zero
//	registers  SI row, R8 stride, R9 rows left, DI value, CX what is left, V0 values, V1 least, V2 ones, V3 magnitudes;
//	           AX, DX
//	reads      src once, in vectors, the last one of a row masked, with AVX2 value by value
//	order      row by row, from the front
//	limits     none
func tinyBF16(g *G) {
	v, least, ones, mask := g.V(0), g.V(1), g.V(2), g.V(3)
	rows, loop, rest, next, done := g.Fresh("rows"), g.Fresh("loop"), g.Fresh("rest"), g.Fresh("next"), g.Fresh("done")
	g.Base("src", reg.RSI)
	g.Arg("lds", reg.R8)
	g.ADDQ(reg.R8, reg.R8)
	g.Arg("rows", reg.R9)
	g.VMOVUPS(g.full(0xFFFFFFFF), ones)
	g.VMOVUPS(ones, least)
	g.VMOVUPS(g.wordsOf(v, 0x7FFF), mask)
	g.MOVL(operand.U32(0xFFFF), reg.EDX) // the least of single values
	g.TESTQ(reg.R9, reg.R9)
	g.JLE(operand.LabelRef(done))
	lanes := 2 * g.Level.Lanes
	look := func() {
		g.And(mask, v, v)
		g.VPADDW(ones, v, v)
		g.VPMINUW(v, least, least)
	}
	g.Label(rows)
	g.MOVQ(reg.RSI, reg.RDI)
	g.Arg("cols", reg.RCX)
	g.SUBQ(operand.U8(uint8(lanes)), reg.RCX)
	g.JLT(operand.LabelRef(rest))
	g.Label(loop)
	g.VMOVUPS(At(reg.RDI, 0), v)
	look()
	g.ADDQ(operand.U8(uint8(2*lanes)), reg.RDI)
	g.SUBQ(operand.U8(uint8(lanes)), reg.RCX)
	g.JGE(operand.LabelRef(loop))
	g.Label(rest)
	g.ADDQ(operand.U8(uint8(lanes)), reg.RCX)
	g.JLE(operand.LabelRef(next))
	if g.Wide() {
		g.wordTail(reg.RCX, reg.RAX, reg.K1)
		g.VMOVDQU16_Z(At(reg.RDI, 0), reg.K1, v)
		look()
	} else {
		one, larger := g.Fresh("one"), g.Fresh("larger")
		g.Label(one)
		g.MOVWLZX(At(reg.RDI, 0), reg.EAX)
		g.ANDL(operand.U32(0x7FFF), reg.EAX)
		g.DECL(reg.EAX) // of zero the largest
		g.CMPL(reg.EAX, reg.EDX)
		g.JCC(operand.LabelRef(larger))
		g.MOVL(reg.EAX, reg.EDX)
		g.Label(larger)
		g.ADDQ(operand.U8(2), reg.RDI)
		g.DECQ(reg.RCX)
		g.JNZ(operand.LabelRef(one))
	}
	g.Label(next)
	g.ADDQ(reg.R8, reg.RSI)
	g.DECQ(reg.R9)
	g.JNZ(operand.LabelRef(rows))
	g.Label(done)
	g.isTiny(least, v)
	if !g.Wide() {
		g.CMPL(reg.EDX, operand.U32(leastWord-1))
		g.SETCS(reg.CL)
		g.ORL(reg.ECX, reg.EAX)
	}
	g.Store(reg.AL, g.ReturnIndex(0))
	g.Done()
}

// isTiny makes AL 1 if one of the magnitudes less one is that of a value below 2^-52. It overwrites tmp and K1.
func (g *G) isTiny(least, tmp reg.VecPhysical) {
	if g.Wide() {
		g.VPCMPUW(cmpLtInt, g.wordsOf(least, leastWord-1), least, reg.K1)
		g.KORTESTD(reg.K1, reg.K1)
	} else {
		g.VPMINUW(g.wordsOf(least, leastWord-2), least, tmp)
		g.VPCMPEQW(least, tmp, tmp)
		g.VPTEST(tmp, tmp)
	}
	g.SETNE(reg.AL)
}

// wordTail makes mask select the lowest n words, n in CX, 0 < n < 32.
func (g *G) wordTail(n, scratch reg.GPPhysical, mask reg.Register) {
	g.MOVL(operand.U32(1), scratch.As32())
	g.SHLL(reg.CL, scratch.As32())
	g.DECL(scratch.As32())
	g.KMOVD(scratch.As32(), mask)
}

// The registers of interleaveBF16. Strides are in bytes.
var (
	laceFrom, laceTo   = reg.RSI, reg.RDI // the first row of a pair, and where the pair goes
	laceLDS, laceLDD   = reg.R10, reg.R11
	laceKeys, laceCols = reg.R12, reg.RCX
	laceOne, laceTwo   = reg.RBX, reg.RDX // walk the two rows
	laceOut            = reg.R13
	laceTiny           = reg.R14 // the result
)

// interleaveBF16 goes through the pairs of rows. AVX-512 looks, on the way, for values below the bound, and does a pair
// of rows that has some, be it zeros, once more.
//
//	computes   dst[(key/2)*ldd + 2*c + key%2] = src[key*lds + c], +0 below 2^-52, and whether such a value is not zero
//	registers  those above, AX, R8, R9 and R15; V0, V1 rows, V2, V3 pairs, V4-V7 work, V8, V9 the least, V10-V13 constants
//	reads      src in vectors, the last one of a row masked, with AVX2 value by value
//	order      pair by pair, from the front
//	limits     none
func interleaveBF16(g *G) {
	pairs, lone, done := g.Fresh("pairs"), g.Fresh("lone"), g.Fresh("done")
	g.Base("src", laceFrom)
	g.Base("dst", laceTo)
	g.Arg("lds", laceLDS)
	g.ADDQ(laceLDS, laceLDS)
	g.Arg("ldd", laceLDD)
	g.ADDQ(laceLDD, laceLDD)
	g.Arg("keys", laceKeys)
	g.XORL(laceTiny.As32(), laceTiny.As32())
	g.VMOVUPS(g.full(0xFFFFFFFF), g.V(12))
	g.VMOVUPS(g.wordsOf(g.V(0), 0x7FFF), g.V(13))
	if g.Wide() {
		g.VMOVUPS(g.laceTable(0), g.V(10))
		g.VMOVUPS(g.laceTable(16), g.V(11))
	}
	g.SUBQ(operand.U8(2), laceKeys)
	g.JLT(operand.LabelRef(lone))
	g.Label(pairs)
	lacePair(g, false)
	g.LEAQ(AtX(laceFrom, laceLDS, 2, 0), laceFrom)
	g.ADDQ(laceLDD, laceTo)
	g.SUBQ(operand.U8(2), laceKeys)
	g.JGE(operand.LabelRef(pairs))
	g.Label(lone)
	g.ADDQ(operand.U8(2), laceKeys)
	g.JZ(operand.LabelRef(done))
	lacePair(g, true)
	g.Label(done)
	g.MOVL(laceTiny.As32(), reg.EAX)
	g.Store(reg.AL, g.ReturnIndex(0))
	g.Done()
}

// laceTable is the places of 16 words of two vectors in turn, from place first on.
func (g *G) laceTable(first uint32) operand.Mem {
	var words []uint32
	for i := range uint32(16) {
		words = append(words, first+i|(32+first+i)<<16)
	}
	name := "lacelow"
	if first > 0 {
		name = "lacehigh"
	}
	return g.words(name, words...)
}

// lacePair does a pair of rows, or the last one with zeros.
func lacePair(g *G, lone bool) {
	if !g.Wide() {
		laceColumns(g, lone, true)
		return
	}
	fine := g.Fresh("fine")
	laceColumns(g, lone, false)
	g.VPMINUW(g.V(9), g.V(8), g.V(8))
	g.VPCMPUW(cmpLtInt, g.wordsOf(g.V(8), leastWord), g.V(8), reg.K1)
	g.KORTESTD(reg.K1, reg.K1)
	g.JZ(operand.LabelRef(fine))
	laceColumns(g, lone, true)
	g.Label(fine)
}

// laceColumns goes through the columns of a pair of rows. flush says that there may be values below the bound, and sets
// the result; else V8 and V9 get the least magnitudes.
func laceColumns(g *G, lone, flush bool) {
	loop, rest, next := g.Fresh("columns"), g.Fresh("rest"), g.Fresh("next")
	lanes := 2 * g.Level.Lanes
	g.MOVQ(laceFrom, laceOne)
	g.LEAQ(AtX(laceFrom, laceLDS, 1, 0), laceTwo)
	g.MOVQ(laceTo, laceOut)
	g.VMOVUPS(g.V(12), g.V(8))
	g.VMOVUPS(g.V(12), g.V(9))
	g.Arg("cols", laceCols)
	g.SUBQ(operand.U8(uint8(lanes)), laceCols)
	g.JLT(operand.LabelRef(rest))
	g.Label(loop)
	g.VMOVUPS(At(laceOne, 0), g.V(0))
	if !lone {
		g.VMOVUPS(At(laceTwo, 0), g.V(1))
	}
	lace(g, lone, flush)
	g.VMOVUPS(g.V(2), At(laceOut, 0))
	g.VMOVUPS(g.V(3), At(laceOut, g.Bytes()))
	g.ADDQ(operand.U8(uint8(2*lanes)), laceOne)
	g.ADDQ(operand.U8(uint8(2*lanes)), laceTwo)
	g.ADDQ(operand.U32(uint32(4*lanes)), laceOut)
	g.SUBQ(operand.U8(uint8(lanes)), laceCols)
	g.JGE(operand.LabelRef(loop))
	g.Label(rest)
	g.ADDQ(operand.U8(uint8(lanes)), laceCols)
	g.JZ(operand.LabelRef(next))
	if g.Wide() {
		g.wordTail(laceCols, reg.RAX, reg.K1)
		g.VMOVDQU16_Z(At(laceOne, 0), reg.K1, g.V(0))
		if !lone {
			g.VMOVDQU16_Z(At(laceTwo, 0), reg.K1, g.V(1))
		}
		if !flush { // the places past the end are no zeros
			g.VPTERNLOGD(operand.U8(0xFF), g.V(4), g.V(4), g.V(4))
			g.VMOVDQU16(g.V(0), reg.K1, g.V(4))
			g.VPANDD(g.V(13), g.V(4), g.V(4))
			g.VPMINUW(g.V(4), g.V(8), g.V(8))
			if !lone {
				g.VPTERNLOGD(operand.U8(0xFF), g.V(4), g.V(4), g.V(4))
				g.VMOVDQU16(g.V(1), reg.K1, g.V(4))
				g.VPANDD(g.V(13), g.V(4), g.V(4))
				g.VPMINUW(g.V(4), g.V(9), g.V(9))
			}
		}
		laceWords(g, lone, flush)
		g.VMOVDQU32(g.V(2), reg.K1, At(laceOut, 0))
		g.KSHIFTRD(operand.U8(16), reg.K1, reg.K1)
		g.VMOVDQU32(g.V(3), reg.K1, At(laceOut, 64))
	} else {
		laceSingly(g, lone)
	}
	g.Label(next)
	if flush {
		g.VPMINUW(g.V(9), g.V(8), g.V(8))
		g.isTiny(g.V(8), g.V(4))
		g.MOVBLZX(reg.AL, reg.EAX)
		g.ORL(reg.EAX, laceTiny.As32())
	}
}

// lace makes pairs of the rows in V0 and V1, and keeps the least magnitudes.
func lace(g *G, lone, flush bool) {
	if !flush {
		g.VPANDD(g.V(13), g.V(0), g.V(4))
		g.VPMINUW(g.V(4), g.V(8), g.V(8))
		if !lone {
			g.VPANDD(g.V(13), g.V(1), g.V(5))
			g.VPMINUW(g.V(5), g.V(9), g.V(9))
		}
	}
	laceWords(g, lone, flush)
}

// laceWords makes pairs of the rows in V0 and V1.
func laceWords(g *G, lone, flush bool) {
	rows := []reg.VecPhysical{g.V(0), g.V(1)}[:2-b2i(lone)]
	if flush {
		for i, v := range rows {
			least := g.V(8 + i)
			g.And(g.V(13), v, g.V(4))
			g.VPADDW(g.V(12), g.V(4), g.V(5))
			g.VPMINUW(g.V(5), least, least)
			g.flushWords(v, g.V(4))
		}
	}
	if lone {
		g.Zero(g.V(1))
	}
	if g.Wide() {
		g.VMOVDQA64(g.V(10), g.V(2))
		g.VPERMI2W(g.V(1), g.V(0), g.V(2))
		g.VMOVDQA64(g.V(11), g.V(3))
		g.VPERMI2W(g.V(1), g.V(0), g.V(3))
		return
	}
	g.VPUNPCKLWD(g.V(1), g.V(0), g.V(4))
	g.VPUNPCKHWD(g.V(1), g.V(0), g.V(5))
	g.VPERM2I128(operand.U8(0x20), g.V(5), g.V(4), g.V(2))
	g.VPERM2I128(operand.U8(0x31), g.V(5), g.V(4), g.V(3))
}

// laceSingly does the last columns value by value.
func laceSingly(g *G, lone bool) {
	one := g.Fresh("one")
	g.Label(one)
	for i, row := range []reg.GPPhysical{laceOne, laceTwo}[:2-b2i(lone)] {
		g.flushWord(At(row, 0), reg.RAX) // R8: its magnitude
		g.MOVW(reg.AX, At(laceOut, 2*i))
		g.DECL(reg.R8L)
		g.CMPL(reg.R8L, operand.U32(leastWord-1))
		g.SBBL(reg.R8L, reg.R8L)
		g.ANDL(operand.U8(1), reg.R8L)
		g.ORL(reg.R8L, laceTiny.As32())
		g.ADDQ(operand.U8(2), row)
	}
	if lone {
		g.XORL(reg.EAX, reg.EAX)
		g.MOVW(reg.AX, At(laceOut, 2))
	}
	g.ADDQ(operand.U8(4), laceOut)
	g.DECQ(laceCols)
	g.JNZ(operand.LabelRef(one))
}

// pairPanel lays rows of a panel in pairs.
//
//	computes   dst[kk/2*32 + lane*2 + kk%2] = src[kk*16 + lane], rounded to bf16, +0 below 2^-52
//	registers  SI src, DI dst, CX pairs left; V0, V1 rows, V4-V6 work
//	reads      src once
//	order      from the front
//	limits     none
func pairPanel(g *G) {
	pairs, lone, done := g.Fresh("pairs"), g.Fresh("lone"), g.Fresh("done")
	tmp := [3]reg.VecPhysical{g.V(4), g.V(5), g.V(6)}
	do := func(rows int) {
		for at := 0; at < 64; at += g.Bytes() {
			for i := range rows {
				g.VMOVUPS(At(reg.RSI, 64*i+at), g.V(i))
				g.roundValue(g.V(i), tmp)
			}
			g.VPSRLD(operand.U8(16), g.V(0), g.V(0))
			if rows == 2 {
				g.Or(g.V(1), g.V(0), g.V(0))
			}
			g.VMOVUPS(g.V(0), At(reg.RDI, at))
		}
	}
	g.Base("src", reg.RSI)
	g.Base("dst", reg.RDI)
	g.Arg("k", reg.RCX)
	g.SUBQ(operand.U8(2), reg.RCX)
	g.JLT(operand.LabelRef(lone))
	g.Label(pairs)
	do(2)
	g.ADDQ(operand.U32(128), reg.RSI)
	g.ADDQ(operand.U8(64), reg.RDI)
	g.SUBQ(operand.U8(2), reg.RCX)
	g.JGE(operand.LabelRef(pairs))
	g.Label(lone)
	g.ADDQ(operand.U8(2), reg.RCX)
	g.JLE(operand.LabelRef(done))
	do(1)
	g.Label(done)
	g.Done()
}

// pairPanelBF16 lays rows of a panel in pairs as they are.
//
//	computes   dst[kk/2*32 + lane*2 + kk%2] = src[kk*16 + lane], +0 below 2^-52
//	registers  SI src, DI dst, CX pairs left; V0, V1 rows, V2, V3 pairs, V4, V5 work, V10 order
//	reads      src once
//	order      from the front
//	limits     none
func pairPanelBF16(g *G) {
	pairs, lone, done := g.Fresh("pairs"), g.Fresh("lone"), g.Fresh("done")
	do := func(rows int) {
		if g.Wide() { // a row is half a vector
			if rows == 2 {
				g.VMOVUPS(At(reg.RSI, 0), Z(0))
			} else {
				g.VMOVUPS(At(reg.RSI, 0), Y(0))
			}
			g.flushWords(Z(0), Z(4))
			g.VPERMW(Z(0), Z(10), Z(2))
			g.VMOVUPS(Z(2), At(reg.RDI, 0))
			return
		}
		for i := range rows {
			g.VMOVUPS(At(reg.RSI, 32*i), g.V(i))
			g.flushWords(g.V(i), g.V(4))
		}
		laceWords(g, rows == 1, false)
		g.VMOVUPS(g.V(2), At(reg.RDI, 0))
		g.VMOVUPS(g.V(3), At(reg.RDI, 32))
	}
	g.Base("src", reg.RSI)
	g.Base("dst", reg.RDI)
	g.Arg("k", reg.RCX)
	if g.Wide() {
		var order []uint32
		for lane := range uint32(16) {
			order = append(order, lane|(16+lane)<<16)
		}
		g.VMOVUPS(g.words("lacehalves", order...), Z(10))
	}
	g.SUBQ(operand.U8(2), reg.RCX)
	g.JLT(operand.LabelRef(lone))
	g.Label(pairs)
	do(2)
	g.ADDQ(operand.U8(64), reg.RSI)
	g.ADDQ(operand.U8(64), reg.RDI)
	g.SUBQ(operand.U8(2), reg.RCX)
	g.JGE(operand.LabelRef(pairs))
	g.Label(lone)
	g.ADDQ(operand.U8(2), reg.RCX)
	g.JLE(operand.LabelRef(done))
	do(1)
	g.Label(done)
	g.Done()
}
