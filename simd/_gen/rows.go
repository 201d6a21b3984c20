package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Kernels of one row go through it in strips, a vector each; the last one may be a part of a vector.

// strip is a vector's place in the arrays of a row: AX elements and disp vectors from their beginnings. The lanes of a
// tail are those of rowMask.
type strip struct {
	g    *G
	disp int
	tail bool
}

// rowMask is where the mask of a tail lies.
func rowMask(g *G) reg.Register { return g.byLevel(reg.K1, g.V(15)) }

// at is the strip in an array of float32, codes in an array of bytes.
func (s strip) at(base reg.Register) operand.Mem {
	return AtX(base, reg.RAX, 4, s.disp*s.g.Bytes())
}

func (s strip) codes(base reg.Register) operand.Mem {
	return AtX(base, reg.RAX, 1, s.disp*s.g.Level.Lanes)
}

// load fills a vector, with zeros in the lanes past a tail.
func (s strip) load(base reg.Register, v reg.VecPhysical) {
	if s.tail {
		s.g.loadTail(s.at(base), rowMask(s.g), v)
	} else {
		s.g.VMOVUPS(s.at(base), v)
	}
}

func (s strip) store(v reg.VecPhysical, base reg.Register) {
	if s.tail {
		s.g.storeTail(v, rowMask(s.g), s.at(base))
	} else {
		s.g.VMOVUPS(v, s.at(base))
	}
}

// overRow runs step over the CX elements of a row: in rounds of strips, then strip by strip, then on the tail, of which
// CX has the length. It overwrites AX, BX, CX and the tail's mask.
func overRow(g *G, round int, step func(of []strip)) {
	lanes := g.Level.Lanes
	var strips []strip
	for i := range round {
		strips = append(strips, strip{g: g, disp: i})
	}
	rounds, rest, single, tail, done := g.Fresh("rounds"), g.Fresh("rest"), g.Fresh("single"), g.Fresh("tail"), g.Fresh("done")
	repeat := func(label, end string, of []strip) {
		n := operand.U32(uint32(len(of) * lanes))
		g.SUBQ(n, reg.RCX)
		g.JLT(operand.LabelRef(end))
		g.Label(label)
		step(of)
		g.ADDQ(n, reg.RAX)
		g.SUBQ(n, reg.RCX)
		g.JGE(operand.LabelRef(label))
		g.Label(end)
		g.ADDQ(n, reg.RCX)
	}
	g.XORL(reg.EAX, reg.EAX)
	if round > 1 {
		repeat(rounds, rest, strips)
	}
	repeat(single, tail, strips[:1])
	g.JZ(operand.LabelRef(done))
	g.Tail(reg.RCX, reg.RBX, rowMask(g))
	step([]strip{{g: g, tail: true}})
	g.Label(done)
}

// halve folds the upper half of vector v onto its lower half with op, and so on down to lane 0. It overwrites scratch.
func halve(g *G, v, scratch int, op func(a, b operand.Op, d reg.VecPhysical)) {
	if g.Wide() {
		g.VEXTRACTF64X4(operand.U8(1), Z(v), Y(scratch))
		op(Y(scratch), Y(v), Y(v))
	}
	g.VEXTRACTF128(operand.U8(1), Y(v), X(scratch))
	op(X(scratch), X(v), X(v))
	g.VMOVHLPS(X(v), X(v), X(scratch))
	op(X(scratch), X(v), X(v))
	g.VMOVSHDUP(X(v), X(scratch))
	op(X(scratch), X(v), X(v))
}
