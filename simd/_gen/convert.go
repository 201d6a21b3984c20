package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// conversion is what the loop of a conversion is made of. Its pieces read values at SI and write them at DI; none moves
// the two, and all may use AX and the vectors that prepare leaves free.
type conversion struct {
	from, to int       // bytes of a value of src and of dst
	prepare  func()    // fills the registers that the pieces share
	vectors  func(int) // converts 1 vector or 4
	scalar   func()    // converts one value (AVX2)
	masked   func()    // converts what K1 selects of a vector (AVX-512)
}

// write writes the loop: turns of four vectors, then single ones. What is left, less than a vector, AVX-512 masks. AVX2
// converts the last vector of src instead, which overlaps the one before; a src that has none goes value by value.
func (c conversion) write(g *G) {
	lanes := g.Level.Lanes
	g.Base("dst", reg.RDI)
	g.Base("src", reg.RSI)
	g.Len("src", reg.RCX)
	c.prepare()
	done := g.Fresh("done")
	for _, n := range []int{4, 1} {
		loop, rest := g.Fresh("loop"), g.Fresh("rest")
		g.SUBQ(operand.U32(uint32(n*lanes)), reg.RCX)
		g.JLT(operand.LabelRef(rest))
		g.Label(loop)
		c.vectors(n)
		c.advance(g, n*lanes)
		g.SUBQ(operand.U32(uint32(n*lanes)), reg.RCX)
		g.JGE(operand.LabelRef(loop))
		g.Label(rest)
		g.ADDQ(operand.U32(uint32(n*lanes)), reg.RCX)
		g.JZ(operand.LabelRef(done))
	}
	if g.Wide() {
		g.Tail(reg.RCX, reg.RAX, reg.K1)
		c.masked()
	} else {
		c.last(g)
	}
	g.Label(done)
	g.Done()
}

// last converts the CX values that are left, fewer than a vector.
func (c conversion) last(g *G) {
	one, done := g.Fresh("one"), g.Fresh("last")
	g.Len("src", reg.RAX)
	g.CMPQ(reg.RAX, operand.U32(uint32(g.Level.Lanes)))
	g.JLT(operand.LabelRef(one))
	g.SUBQ(operand.U32(uint32(g.Level.Lanes)), reg.RCX) // below zero: how far back the last vector begins
	g.LEAQ(AtX(reg.RSI, reg.RCX, uint8(c.from), 0), reg.RSI)
	g.LEAQ(AtX(reg.RDI, reg.RCX, uint8(c.to), 0), reg.RDI)
	c.vectors(1)
	g.JMP(operand.LabelRef(done))
	g.Label(one)
	c.scalar()
	c.advance(g, 1)
	g.DECQ(reg.RCX)
	g.JNZ(operand.LabelRef(one))
	g.Label(done)
}

func (c conversion) advance(g *G, values int) {
	g.ADDQ(operand.U32(uint32(c.from*values)), reg.RSI)
	g.ADDQ(operand.U32(uint32(c.to*values)), reg.RDI)
}

// half is the lower half of vector register i.
func (g *G) half(i int) reg.VecPhysical {
	if g.Wide() {
		return Y(i)
	}
	return X(i)
}

// choose puts the values of x into v where the mask says so that a compare has left: K2, or vector mask. The lanes are
// of 16 bits where the compare was.
func (g *G) choose(x, v, mask reg.VecPhysical, bits int) {
	switch {
	case !g.Wide():
		g.VPBLENDVB(mask, x, v, v)
	case bits == 16:
		g.VMOVDQU16(x, reg.K2, v)
	default:
		g.VMOVDQA32(x, reg.K2, v)
	}
}

// maskFor is where a compare leaves its result for choose.
func (g *G) maskFor(v reg.VecPhysical) reg.Register {
	return g.byLevel(reg.K2, v)
}
