package workshop

import (
	"fmt"
	"slices"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// G writes one body: avo's context, with what AVX2 and AVX-512 have in common under one name. Bodies name physical
// registers: a tile's accumulators are numbers in a loop. Free are AX, BX, CX, DX, SI, DI, R8 to R15 and all vectors
// and masks; BP and SP are not.
type G struct {
	*build.Context
	Level  *Level
	symbol string
	labels int
	tables map[string]operand.Mem // data of the file, which its bodies share
}

// begin opens the function of a body.
func (g *G) begin(k *Kernel, symbol string) {
	g.symbol, g.labels = symbol, 0
	g.Function(symbol)
	g.Attributes(attr.NOSPLIT)
	g.SignatureExpr(fmt.Sprintf("func(%s)%s", k.params(), k.results()))
}

// Wide reports whether vectors are ZMM.
func (g *G) Wide() bool { return g.Level.Lanes == 16 }

// V is vector register i of the level's width; X, Y and Z are its parts.
func (g *G) V(i int) reg.VecPhysical {
	if g.Wide() {
		return vectors[2][i]
	}
	return vectors[1][i]
}

func X(i int) reg.VecPhysical { return vectors[0][i] }
func Y(i int) reg.VecPhysical { return vectors[1][i] }
func Z(i int) reg.VecPhysical { return vectors[2][i] }

var vectors = func() (v [3][]reg.VecPhysical) {
	for i := range 32 {
		for w, s := range []reg.Spec{reg.S128, reg.S256, reg.S512} {
			v[w] = append(v[w], reg.Vector.Lookup(reg.Index(i), s).(reg.VecPhysical))
		}
	}
	return v
}()

// Bytes is the size of a vector.
func (g *G) Bytes() int { return 4 * g.Level.Lanes }

// Arg loads a scalar parameter.
func (g *G) Arg(name string, r reg.Register) {
	if v, ok := r.(reg.VecPhysical); ok {
		g.VMOVSS(g.ArgAt(name), v)
		return
	}
	g.Load(g.Param(name), r)
}

// ArgAt is a scalar parameter where it lies in the frame, SplatArg fills a vector with one that is a float32, and stride
// loads one that counts float32, as bytes.
func (g *G) ArgAt(name string) operand.Mem { return place(g.Param(name)) }

func (g *G) SplatArg(name string, v reg.VecPhysical) { g.VBROADCASTSS(g.ArgAt(name), v) }

func (g *G) stride(name string, r reg.GPPhysical) {
	g.Arg(name, r)
	g.SHLQ(operand.U8(2), r)
}

// Return stores a float32 result.
func (g *G) Return(v reg.VecPhysical) { g.VMOVSS(v, place(g.ReturnIndex(0))) }

// place is a parameter or a result in memory. avo's Load and Store of a float32 are instructions of SSE, which are slow
// beside vectors: one of them in RMSNorm, for eps, costs 110 ns on Zen 3.
func place(c gotypes.Component) operand.Mem {
	b, err := c.Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

// Base loads the address of a slice, Len its length.
func (g *G) Base(name string, r reg.Register) { g.Load(g.Param(name).Base(), r) }
func (g *G) Len(name string, r reg.Register)  { g.Load(g.Param(name).Len(), r) }

// Fresh is a label that no other has.
func (g *G) Fresh(hint string) string {
	g.labels++
	return fmt.Sprintf("%s_%d", hint, g.labels)
}

// Done ends the function: no upper half of a vector may be left dirty, or SSE code after it is slow.
func (g *G) Done() {
	g.VZEROUPPER()
	g.RET()
}

// table is data in memory, one value after the other. The bodies of a file share what has the same name.
func (g *G) table(name string, values ...operand.Constant) operand.Mem {
	m, ok := g.tables[name]
	if !ok {
		m = g.StaticGlobal(name)
		g.DataAttributes(attr.RODATA | attr.NOPTR)
		at := 0
		for _, v := range values {
			g.AddDatum(at, v)
			at += v.Bytes()
		}
		g.tables[name] = m
	}
	return m
}

// words is table of 4-byte values.
func (g *G) words(name string, values ...uint32) operand.Mem {
	var all []operand.Constant
	for _, v := range values {
		all = append(all, operand.U32(v))
	}
	return g.table(name, all...)
}

// Const is a 4-byte constant in memory, full a vector of it, for instructions that take a whole vector from there.
func (g *G) Const(bits uint32) operand.Mem { return g.words(fmt.Sprintf("c%08x", bits), bits) }

func (g *G) full(bits uint32) operand.Mem {
	return g.words(fmt.Sprintf("v%08x", bits), slices.Repeat([]uint32{bits}, g.Level.Lanes)...)
}

// Splat fills a vector with a 4-byte constant.
func (g *G) Splat(bits uint32, v reg.VecPhysical) { g.VBROADCASTSS(g.Const(bits), v) }

// And, Or and Xor work on bits, in the form that the width knows.
func (g *G) And(a, b operand.Op, d reg.VecPhysical) {
	if evex(a, b, d) {
		g.VPANDD(a, b, d)
	} else {
		g.VPAND(a, b, d)
	}
}

func (g *G) Or(a, b operand.Op, d reg.VecPhysical) {
	if evex(a, b, d) {
		g.VPORD(a, b, d)
	} else {
		g.VPOR(a, b, d)
	}
}

func (g *G) Xor(a, b operand.Op, d reg.VecPhysical) {
	if evex(a, b, d) {
		g.VPXORD(a, b, d)
	} else {
		g.VPXOR(a, b, d)
	}
}

// evex reports operands that only EVEX encodes.
func evex(a, b operand.Op, d reg.VecPhysical) bool {
	return d.Size() == 64 || isHigh(a) || isHigh(b) || isHigh(d)
}

// isHigh reports one of the registers from 16 on.
func isHigh(o operand.Op) bool {
	r, ok := o.(reg.VecPhysical)
	return ok && r.PhysicalIndex() >= 16
}

// Zero clears a vector.
func (g *G) Zero(v reg.VecPhysical) { g.Xor(v, v, v) }

// At is memory at base + disp bytes; AtX is at base + index*scale + disp.
func At(base reg.Register, disp int) operand.Mem { return operand.Mem{Base: base, Disp: disp} }
func AtX(base, index reg.Register, scale uint8, disp int) operand.Mem {
	return operand.Mem{Base: base, Index: index, Scale: scale, Disp: disp}
}

// plus is what lies some bytes behind m.
func plus(m operand.Mem, bytes int) operand.Mem {
	m.Disp += bytes
	return m
}

// oneOfFour is the beginning of row i of four that are a stride apart; stride3 holds three strides.
func oneOfFour(base, stride, stride3 reg.GPPhysical, i int) operand.Mem {
	switch i {
	case 0:
		return At(base, 0)
	case 3:
		return AtX(base, stride3, 1, 0)
	}
	return AtX(base, stride, uint8(i), 0)
}

// The lanes of a tail, the last part of a row, are selected by a mask: AVX-512 has it in a mask register, AVX2 in a
// vector, for VMASKMOVPS. Tail makes either select the lowest n lanes, n in a register, 0 <= n <= lanes. It overwrites
// scratch, and CX if mask is a mask register.
func (g *G) Tail(n, scratch reg.GPPhysical, mask reg.Register) {
	if v, ok := mask.(reg.VecPhysical); ok {
		g.tailVector(n, scratch, v)
		return
	}
	g.MOVQ(n, reg.RCX)
	g.MOVL(operand.U32(1), scratch.As32())
	g.SHLL(reg.CL, scratch.As32())
	g.DECL(scratch.As32())
	g.KMOVW(scratch.As32(), mask)
}

// tailVector is Tail for at most 8 lanes. It reads 8 words of a table of 8 words of ones and 8 of zeros, from n words
// before the middle on.
func (g *G) tailVector(n, scratch reg.GPPhysical, mask reg.VecPhysical) {
	const ones = 0xFFFFFFFF
	table := g.words("tailmask", ones, ones, ones, ones, ones, ones, ones, ones, 0, 0, 0, 0, 0, 0, 0, 0)
	g.LEAQ(table, scratch)
	g.SHLQ(operand.U8(2), n)
	g.SUBQ(n, scratch)
	g.SHRQ(operand.U8(2), n)
	g.VMOVUPS(At(scratch, 32), mask)
}

// wholeLines withdraws bypass where the vectors of a matrix are not lines of memory, which stores past the caches need.
// It overwrites AX and CX.
func (g *G) wholeLines(base, stride string) {
	g.Base(base, reg.RAX)
	g.stride(stride, reg.RCX)
	g.wholeLinesAt(reg.RAX, reg.RCX)
}

// wholeLinesAt is wholeLines for an address and a stride in bytes. It overwrites AX.
func (g *G) wholeLinesAt(base, stride reg.GPPhysical) {
	whole := g.Fresh("whole")
	if base != reg.RAX {
		g.MOVQ(base, reg.RAX)
	}
	g.ORQ(stride, reg.RAX)
	g.TESTQ(operand.U32(63), reg.RAX)
	g.JZ(operand.LabelRef(whole))
	g.MOVQ(operand.U32(0), g.ArgAt("bypass"))
	g.Label(whole)
}

// byLevel is where a mask lies: in k for AVX-512, in v for AVX2.
func (g *G) byLevel(k reg.Register, v reg.VecPhysical) reg.Register {
	if g.Wide() {
		return k
	}
	return v
}

// loadTail fills a vector, with zeros in the lanes that mask does not select; storeTail stores the lanes that it selects.
func (g *G) loadTail(m operand.Mem, mask reg.Register, v reg.VecPhysical) {
	if g.Wide() {
		g.VMOVUPS_Z(m, mask, v)
	} else {
		g.VMASKMOVPS(m, mask, v)
	}
}

func (g *G) storeTail(v reg.VecPhysical, mask reg.Register, m operand.Mem) {
	if g.Wide() {
		g.VMOVUPS(v, mask, m)
	} else {
		g.VMASKMOVPS(v, mask, m)
	}
}

// unrolled runs body, which writes the code of a number of turns, as often as count says, some turns at a time. It
// overwrites count.
func (g *G) unrolled(count reg.GPPhysical, turns int, body func(turns int)) {
	loop, rest, one, done := g.Fresh("turns"), g.Fresh("rest"), g.Fresh("one"), g.Fresh("done")
	g.SUBQ(operand.U8(uint8(turns)), count)
	g.JLT(operand.LabelRef(rest))
	g.Label(loop)
	body(turns)
	g.SUBQ(operand.U8(uint8(turns)), count)
	g.JGE(operand.LabelRef(loop))
	g.Label(rest)
	g.ADDQ(operand.U8(uint8(turns)), count)
	g.JZ(operand.LabelRef(done))
	g.Label(one)
	body(1)
	g.DECQ(count)
	g.JNZ(operand.LabelRef(one))
	g.Label(done)
}
