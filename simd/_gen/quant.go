package workshop

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quantDynamic quantises a row in groups.
//
//	computes   for each group: scales = min(max|x|, 1200)/448, codes = E4M3(x * (1/scales)), a NaN making the group NaN
//	registers  SI x, DI codes, R8 scales, R9 what is left, R10 group, R11 this group, CX and AX within it, BX scratch; V0
//	           to V6 values, V8 to V14 constants, V15 the mask of a tail
//	reads      x twice, in vectors, the last one of a group masked
//	order      from the front, group by group
//	limits     none
func quantDynamic(g *G) {
	group, whole, numbers, next, done := g.Fresh("group"), g.Fresh("whole"), g.Fresh("numbers"), g.Fresh("next"), g.Fresh("done")
	g.Base("codes", reg.RDI)
	g.Base("scales", reg.R8)
	g.Base("x", reg.RSI)
	g.Len("x", reg.R9)
	g.Arg("group", reg.R10)
	e := newEncoder(g)
	g.TESTQ(reg.R9, reg.R9)
	g.JZ(operand.LabelRef(done))
	g.Label(group)
	g.MOVQ(reg.R10, reg.R11)
	g.CMPQ(reg.R9, reg.R11)
	g.JGE(operand.LabelRef(whole))
	g.MOVQ(reg.R9, reg.R11)
	g.Label(whole)
	groupLargest(g, e.abs)
	g.VMOVD(X(0), reg.EBX)
	g.CMPL(reg.EBX, operand.U32(infBits))
	g.JBE(operand.LabelRef(numbers))
	nanGroup(g)
	g.JMP(operand.LabelRef(next))
	g.Label(numbers)
	groupScale(g)
	g.MOVQ(reg.R11, reg.RCX)
	overRow(g, 4, e.encode)
	g.Label(next)
	g.LEAQ(AtX(reg.RSI, reg.R11, 4, 0), reg.RSI)
	g.ADDQ(reg.R11, reg.RDI)
	g.ADDQ(operand.U8(4), reg.R8)
	g.SUBQ(reg.R11, reg.R9)
	g.JNZ(operand.LabelRef(group))
	g.Label(done)
	g.Done()
}

// groupLargest leaves the largest magnitude of a group in X0: that of the bits, among which a NaN is the largest.
func groupLargest(g *G, abs reg.VecPhysical) {
	for i := range 4 {
		g.Zero(g.V(i))
	}
	g.MOVQ(reg.R11, reg.RCX)
	overRow(g, 4, func(of []strip) {
		for i, s := range of {
			s.load(reg.RSI, g.V(4+i))
			g.And(abs, g.V(4+i), g.V(4+i))
			g.VPMAXUD(g.V(4+i), g.V(i), g.V(i))
		}
	})
	g.VPMAXUD(g.V(2), g.V(0), g.V(0))
	g.VPMAXUD(g.V(3), g.V(1), g.V(1))
	g.VPMAXUD(g.V(1), g.V(0), g.V(0))
	halve(g, 0, 1, func(a, b operand.Op, d reg.VecPhysical) { g.VPMAXUD(a, b, d) })
}

// nanGroup writes a group of NaN.
func nanGroup(g *G) {
	loop := g.Fresh("nan")
	g.MOVL(operand.U32(0x7FC00000), At(reg.R8, 0))
	g.MOVQ(reg.R11, reg.RCX)
	g.Label(loop)
	g.MOVB(operand.U8(0x7F), AtX(reg.RDI, reg.RCX, 1, -1))
	g.DECQ(reg.RCX)
	g.JNZ(operand.LabelRef(loop))
}

// groupScale writes the scale of a group, whose largest magnitude is in X0, and leaves what its values are multiplied by
// in V0.
func groupScale(g *G) {
	finite := g.Fresh("finite")
	g.VMOVSS(g.Const(math.Float32bits(1200)), X(1))
	g.VMINSS(X(1), X(0), X(0))
	g.VMOVSS(g.Const(math.Float32bits(448)), X(1))
	g.VDIVSS(X(1), X(0), X(0))
	g.VMOVSS(X(0), At(reg.R8, 0))
	g.VMOVSS(g.Const(oneBits), X(1))
	g.VDIVSS(X(0), X(1), X(0))
	g.VMOVD(X(0), reg.EBX)
	g.CMPL(reg.EBX, operand.U32(infBits))
	g.JNE(operand.LabelRef(finite))
	g.VXORPS(X(0), X(0), X(0))
	g.Label(finite)
	g.VBROADCASTSS(X(0), g.V(0))
}

// e4m3Magic are the bits that lead from a power of two to the float32 whose last place is an eighth of it; its upper bits
// count e4m3Offset codes more than there are below the power.
const (
	e4m3Magic  = 20 << 23
	e4m3Offset = (127 - 6 + 20) << 3
)

// encoder encodes groups as E4M3. Its constants stay in vectors.
type encoder struct {
	g                                            *G
	abs, most, least, exponent, magic, off, sign reg.VecPhysical
}

func newEncoder(g *G) *encoder {
	e := &encoder{g: g, abs: g.V(14), most: g.V(13), least: g.V(12), exponent: g.V(11), magic: g.V(10), off: g.V(9), sign: g.V(8)}
	g.Splat(0x7FFFFFFF, e.abs)
	g.Splat(math.Float32bits(448), e.most)
	g.Splat(math.Float32bits(0x1p-6), e.least)
	g.Splat(infBits, e.exponent)
	g.Splat(e4m3Magic, e.magic)
	g.Splat(e4m3Offset, e.off)
	g.Splat(0x80808080, e.sign)
	return e
}

// encodeE4M3Quant turns v into the magnitudes of its E4M3 codes, to nearest even, saturated. v holds no NaN.
//
// The last place of a code is an eighth of the power of two that is not above the value, or of 2^-6. The sum with a
// float32 that has this last place does the rounding: its lowest bits count the places, and its exponent the codes
// below the power.
func (e *encoder) encodeE4M3Quant(v, m reg.VecPhysical) {
	g := e.g
	g.And(e.abs, v, v)
	g.VMINPS(e.most, v, v)
	g.And(e.exponent, v, m)
	g.VPMAXUD(e.least, m, m)
	g.VPADDD(e.magic, m, m)
	g.VADDPS(m, v, v)
	g.VPSUBD(m, v, v)
	g.VPSRLD(operand.U8(20), m, m)
	g.VPADDD(m, v, v)
	g.VPSUBD(e.off, v, v)
}

// encode writes the codes of strips, whose factor is in V0. A code has the sign of x.
func (e *encoder) encode(of []strip) {
	g := e.g
	for i, s := range of {
		s.load(reg.RSI, g.V(1+i))
		g.VMULPS(g.V(0), g.V(1+i), g.V(1+i))
		e.encodeE4M3Quant(g.V(1+i), g.V(5))
	}
	switch {
	case g.Wide():
		e.store512(of)
	case len(of) == 1:
		e.store8(of[0])
	default:
		e.store32(of)
	}
}

func (e *encoder) store512(of []strip) {
	g := e.g
	for i, s := range of {
		v, x := g.V(1+i), g.V(5)
		s.load(reg.RSI, x)
		g.VPSRLD(operand.U8(24), x, x)
		const orAnd = 0xF8 // v | x & sign
		g.VPTERNLOGD(operand.U8(orAnd), e.sign, x, v)
		if s.tail {
			g.VPMOVDB(v, rowMask(g), s.codes(reg.RDI))
		} else {
			g.VPMOVDB(v, s.codes(reg.RDI))
		}
	}
}

// store32 narrows four vectors to bytes, the values as well for their signs: saturation keeps these.
func (e *encoder) store32(of []strip) {
	g := e.g
	v, x, y := g.V, Y(5), Y(6)
	g.VPACKUSDW(v(2), v(1), v(1))
	g.VPACKUSDW(v(4), v(3), v(3))
	g.VPACKUSWB(v(3), v(1), v(1))
	of[0].load(reg.RSI, x)
	of[2].load(reg.RSI, y)
	g.VPACKSSDW(of[1].at(reg.RSI), x, x)
	g.VPACKSSDW(of[3].at(reg.RSI), y, y)
	g.VPACKSSWB(y, x, x)
	e.withSign(x, v(1))
	g.VMOVDQU(g.inLanes(), y)
	g.VPERMD(v(1), y, v(1))
	g.VMOVDQU(v(1), of[0].codes(reg.RDI))
}

// store8 is store32 for one vector, of which a tail writes CX codes.
func (e *encoder) store8(s strip) {
	g := e.g
	v, x, y := X(1), X(5), X(6)
	s.load(reg.RSI, Y(5))
	g.VEXTRACTI128(operand.U8(1), Y(1), y)
	g.VPACKUSDW(y, v, v)
	g.VPACKUSWB(v, v, v)
	g.VEXTRACTI128(operand.U8(1), Y(5), y)
	g.VPACKSSDW(y, x, x)
	g.VPACKSSWB(x, x, x)
	e.withSign(Y(5), Y(1))
	if !s.tail {
		g.VMOVQ(v, s.codes(reg.RDI))
		return
	}
	one := g.Fresh("code")
	g.VMOVQ(v, reg.RBX)
	g.Label(one)
	g.MOVB(reg.BL, s.codes(reg.RDI))
	g.SHRQ(operand.U8(8), reg.RBX)
	g.INCQ(reg.RAX)
	g.DECQ(reg.RCX)
	g.JNZ(operand.LabelRef(one))
}

// withSign gives magnitudes the signs of other bytes.
func (e *encoder) withSign(signs, v reg.VecPhysical) {
	e.g.And(e.sign, signs, signs)
	e.g.Or(signs, v, v)
}

// inLanes is the order of the double words that undoes the packing of four vectors by halves.
func (g *G) inLanes() operand.Mem {
	return g.words("inlanes", 0, 4, 1, 5, 2, 6, 3, 7)
}
