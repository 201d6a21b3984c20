package workshop

import (
	"math"
	"math/bits"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The registers of conversions whose values have scales in groups, besides SI and DI.
var (
	groupLeft   = reg.RDX // values not yet converted
	groupSize   = reg.R8
	groupScales = reg.R9
	groupValues = reg.R11 // of this group, or turns of them
	groupTurns  = reg.R12 // turns of a group
)

// wholeGroups runs turn, which converts some values, a power of two, as often as groups of groupSize take, for groups
// that are whole and turns of them. Before that, begin gets the scale of each group in every lane of vScale; from where
// it jumps to its label, and from where groups are not whole, everything is left to eachGroup.
func (g *G) wholeGroups(values int, begin func(leave string), turn func()) {
	loop, turns, leave, done := g.Fresh("loop"), g.Fresh("turns"), g.Fresh("leave"), g.Fresh("whole")
	g.Base("scales", groupScales)
	g.Arg("group", groupSize)
	g.TESTQ(operand.U32(uint32(values-1)), groupSize)
	g.JNZ(operand.LabelRef(done))
	g.MOVQ(groupSize, groupTurns)
	g.SHRQ(operand.U8(uint8(bits.TrailingZeros(uint(values)))), groupTurns)
	g.SUBQ(groupSize, groupLeft)
	g.JLT(operand.LabelRef(leave))
	g.Label(loop)
	g.VBROADCASTSS(At(groupScales, 0), g.V(vScale))
	begin(leave)
	g.ADDQ(operand.U8(4), groupScales)
	g.MOVQ(groupTurns, groupValues)
	g.Label(turns)
	turn()
	g.DECQ(groupValues)
	g.JNZ(operand.LabelRef(turns))
	g.SUBQ(groupSize, groupLeft)
	g.JGE(operand.LabelRef(loop))
	g.Label(leave)
	g.ADDQ(groupSize, groupLeft)
	g.Label(done)
}

// eachGroup runs body for the groups that wholeGroups has left, with the scale in every lane of vScale. body converts
// as many values as groupValues has, at least one.
func (g *G) eachGroup(body func()) {
	next, whole, done := g.Fresh("group"), g.Fresh("enough"), g.Fresh("done")
	g.TESTQ(groupLeft, groupLeft)
	g.JZ(operand.LabelRef(done))
	g.Label(next)
	g.VBROADCASTSS(At(groupScales, 0), g.V(vScale))
	g.ADDQ(operand.U8(4), groupScales)
	g.MOVQ(groupSize, groupValues)
	g.CMPQ(groupSize, groupLeft)
	g.JLE(operand.LabelRef(whole))
	g.MOVQ(groupLeft, groupValues)
	g.Label(whole)
	g.SUBQ(groupValues, groupLeft)
	body()
	g.TESTQ(groupLeft, groupLeft)
	g.JNZ(operand.LabelRef(next))
	g.Label(done)
}

// takeValues runs body for every n values of the group, and jumps to none if there are no more then.
func (g *G) takeValues(n int, none string, body func()) {
	loop, fewer := g.Fresh("loop"), g.Fresh("fewer")
	g.SUBQ(operand.U8(uint8(n)), groupValues)
	g.JLT(operand.LabelRef(fewer))
	g.Label(loop)
	body()
	g.SUBQ(operand.U8(uint8(n)), groupValues)
	g.JGE(operand.LabelRef(loop))
	g.Label(fewer)
	g.ADDQ(operand.U8(uint8(n)), groupValues)
	g.JZ(operand.LabelRef(none))
}

// widenE4M3Groups is widenE4M3Scaled by groups: scales below 2^120 come with the power of two in one factor, exactly.
// From the first other one on, and past whole groups, it goes vector by vector and multiplies twice.
//
//	computes   dst[i] = value of the E4M3 code src[i], times scales[i/group]
//	registers  SI src, DI dst, those above, CX and AX work; V0-V3 values, V8-V14 constants, V15 the scale
//	reads      src and scales once
//	order      from the front
//	limits     the vector units, if a group is a multiple of 32
func widenE4M3Groups(g *G) {
	const values = 32 // of a turn
	vectors := values / g.Level.Lanes
	prepare := func() { g.Splat(power(8), g.V(vPower)) }
	common, any := e4m3(g, prepare, vScale).conversion(g), e4m3(g, prepare, vPower, vScale).conversion(g)
	g.Base("dst", reg.RDI)
	g.Base("src", reg.RSI)
	g.Len("src", groupLeft)
	common.prepare()
	g.wholeGroups(values, func(leave string) {
		g.MOVL(At(groupScales, 0), reg.EAX)
		g.ANDL(operand.U32(0x7FFFFFFF), reg.EAX)
		g.CMPL(reg.EAX, operand.U32(power(120)))
		g.JCC(operand.LabelRef(leave))
		g.VMULPS(g.V(vPower), g.V(vScale), g.V(vScale))
	}, func() {
		common.vectors(vectors)
		common.advance(g, values)
	})
	g.eachGroup(func() { any.group(g) })
	g.Done()
}

// group converts the values of a group: vectors, and what is left, masked with AVX-512, one by one with AVX2.
func (c conversion) group(g *G) {
	none := g.Fresh("none")
	g.takeValues(g.Level.Lanes, none, func() {
		c.vectors(1)
		c.advance(g, g.Level.Lanes)
	})
	if g.Wide() {
		g.Tail(groupValues, reg.RAX, reg.K1)
		c.masked()
		g.LEAQ(AtX(reg.RSI, groupValues, uint8(c.from), 0), reg.RSI)
		g.LEAQ(AtX(reg.RDI, groupValues, uint8(c.to), 0), reg.RDI)
	} else {
		g.takeValues(1, none, func() {
			c.scalar()
			c.advance(g, 1)
		})
	}
	g.Label(none)
}

// The registers of widenE2M1Groups: the values of all codes, or with AVX2 of those without sign, and what they are
// times the scale; how far each lane shifts; and, with AVX2, signs.
const vE2M1, vE2M1Scaled, vNibbles, vE2M1Sign = 8, 9, 10, 11

// widenE2M1Groups multiplies the values that there are by the scale of the group, and looks the values of codes up
// among them. Eight codes are a word, which every lane shifts to its own. Where a group begins within a byte, and past
// its vectors, it goes value by value.
//
//	computes   dst[i] = value of the E2M1 code src[i/2] >> (i%2*4), times scales[i/group]
//	registers  SI src, DI dst, those above, R10 how far the next code is shifted in its byte, AX, BX and CX work; V0-V3
//	           work, V8-V11 above, V15 the scale, K1 the upper eight lanes
//	reads      src once, in words and bytes; scales once
//	order      from the front
//	limits     the vector units, if a group is a multiple of 16
func widenE2M1Groups(g *G) {
	const values = 16 // of a turn
	shift := reg.R10
	g.Base("dst", reg.RDI)
	g.Base("src", reg.RSI)
	g.Len("src", groupLeft)
	g.ADDQ(groupLeft, groupLeft)
	g.XORL(shift.As32(), shift.As32())
	g.LEAQ(g.e2m1Values(), reg.RBX)
	g.VMOVUPS(At(reg.RBX, 0), g.V(vE2M1))
	g.VMOVUPS(g.nibbleShifts(), g.V(vNibbles))
	if g.Wide() {
		g.MOVL(operand.U32(0xFF00), reg.EAX)
		g.KMOVW(reg.EAX, reg.K1)
	} else {
		g.Splat(1<<31, g.V(vE2M1Sign))
	}
	g.wholeGroups(values, func(string) { g.scaleE2M1() }, func() { g.widenNibbles(values / g.Level.Lanes) })
	g.eachGroup(func() {
		single, none := g.Fresh("single"), g.Fresh("none")
		g.TESTL(shift.As32(), shift.As32())
		g.JNZ(operand.LabelRef(single))
		g.scaleE2M1()
		g.takeValues(g.Level.Lanes, none, func() { g.widenNibbles(1) })
		g.Label(single)
		g.takeValues(1, none, func() { g.widenNibble(reg.RBX, shift) })
		g.Label(none)
	})
	g.Done()
}

// scaleE2M1 makes the values of the codes of a group.
func (g *G) scaleE2M1() { g.VMULPS(g.V(vScale), g.V(vE2M1), g.V(vE2M1Scaled)) }

// e2m1Values is a table of the values of the sixteen E2M1 codes.
func (g *G) e2m1Values() operand.Mem {
	var words []uint32
	for _, sign := range []float32{1, -1} {
		for _, x := range []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6} {
			words = append(words, math.Float32bits(sign*x))
		}
	}
	return g.words("e2m1", words...)
}

// nibbleShifts is a table of how far a word is shifted to bring each of its nibbles to the bottom, twice over.
func (g *G) nibbleShifts() operand.Mem {
	var words []uint32
	for lane := range uint32(16) {
		words = append(words, 4*(lane%8))
	}
	return g.words("nibbles", words...)
}

// widenNibbles widens some vectors of codes. A lookup takes the lower bits of a lane as they are, whatever is above
// them: four of AVX-512, among sixteen values; three of AVX2, which leaves the sign.
func (g *G) widenNibbles(vectors int) {
	bytes := g.Level.Lanes / 2 // of codes
	for v := range vectors {
		codes, x := g.V(v), g.V(v+2)
		g.VPBROADCASTD(At(reg.RSI, v*bytes), codes)
		if g.Wide() {
			g.VPBROADCASTD(At(reg.RSI, v*bytes+4), reg.K1, codes)
		}
		g.VPSRLVD(g.V(vNibbles), codes, codes)
		g.VPERMPS(g.V(vE2M1Scaled), codes, x)
		if !g.Wide() {
			g.VPSLLD(operand.U8(28), codes, codes)
			g.And(g.V(vE2M1Sign), codes, codes)
			g.Xor(codes, x, x)
		}
		g.VMOVUPS(x, At(reg.RDI, v*g.Bytes()))
	}
	g.ADDQ(operand.U8(uint8(vectors*bytes)), reg.RSI)
	g.ADDQ(operand.U8(uint8(vectors*g.Bytes())), reg.RDI)
}

// widenNibble widens the code at SI that is shifted by 0 or 4.
func (g *G) widenNibble(table, shift reg.GPPhysical) {
	g.MOVBLZX(At(reg.RSI, 0), reg.EAX)
	g.MOVQ(shift, reg.RCX)
	g.SHRL(reg.CL, reg.EAX)
	g.ANDL(operand.U8(15), reg.EAX)
	g.VMOVSS(AtX(table, reg.RAX, 4, 0), X(0))
	g.VMULSS(X(vScale), X(0), X(0))
	g.VMOVSS(X(0), At(reg.RDI, 0))
	g.SHRL(operand.U8(2), reg.ECX)
	g.ADDQ(reg.RCX, reg.RSI) // past the byte, if the code was its second
	g.ADDQ(operand.U8(4), reg.RDI)
	g.XORL(operand.U8(4), shift.As32())
}
