package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The constants of exp, as ref.Exp has them.
const (
	expLo     = 0xc2d00000
	expHi     = 0x42b20000
	expLog2E  = 0x3fb8aa3b
	expMagic  = 0x4b4000fe
	expNLn2Hi = 0xbf317218
	expNLn2Lo = 0x3102e308
	expC6     = 0x3ab51e84
	expC5     = 0x3c091c2b
	expC4     = 0x3d2aac5f
	expC3     = 0x3e2aaa4a
	expC2     = 0x3efffffe
)

// expConsts is where the constants of exp are: in registers, or in memory for want of them.
type expConsts struct {
	lo, nln2lo, magic, log2e, nln2hi, one, c6, c5, c4, c3, c2, hi operand.Op
}

// expRegisters is the number of registers that all constants of exp take but hi, which x <= 0 does not need.
const expRegisters = 11

// loadExp loads as many constants as there are registers, those first that save most.
func loadExp(g *G, free []reg.VecPhysical) (c expConsts) {
	for i, k := range []struct {
		bits uint32
		to   *operand.Op
	}{
		{expLo, &c.lo}, {expNLn2Lo, &c.nln2lo}, {expMagic, &c.magic}, {expLog2E, &c.log2e}, {expNLn2Hi, &c.nln2hi},
		{oneBits, &c.one}, {expC6, &c.c6}, {expC5, &c.c5}, {expC4, &c.c4}, {expC3, &c.c3}, {expC2, &c.c2}, {expHi, &c.hi},
	} {
		if i < len(free) {
			g.Splat(k.bits, free[i])
			*k.to = free[i]
		} else {
			*k.to = g.full(k.bits)
		}
	}
	return c
}

// expRegs are the registers of one exp: x comes in, y goes out, and all are overwritten. Where VSCALEFPS is at hand, t
// and n may be the same.
type expRegs struct {
	x, t, n, r, y reg.VecPhysical
}

// expRegsAt takes the registers of an exp from first on, and gives the next one that is free.
func expRegsAt(g *G, first int) (expRegs, int) {
	if g.Wide() {
		return expRegs{g.V(first), g.V(first + 1), g.V(first + 1), g.V(first + 2), g.V(first + 3)}, first + 4
	}
	return expRegs{g.V(first), g.V(first + 1), g.V(first + 2), g.V(first + 3), g.V(first + 4)}, first + 5
}

// expDomain is what the caller knows of x. Less is left to do the more it knows, to the same bits.
type expDomain int

const (
	expAny    expDomain = iota
	expLow              // x <= 0 or NaN: the upper clamp is left out
	expNormal           // -87 <= x <= 0: no clamp, and no result is subnormal; takes expMagicNormal
	expLarge            // -41 <= x <= 0: no result is below 2^-60 either; as expNormal
)

// expMagicNormal is 1.5*2^23, MAGIC without the biases: the low 9 bits of t are those of n.
const expMagicNormal = 0x4b400000

// expVec writes exp of several vectors, step by step side by side: y = exp(x). It is ref.Exp.
func expVec(g *G, c expConsts, domain expDomain, es ...expRegs) {
	step := func(write func(e expRegs)) {
		for _, e := range es {
			write(e)
		}
	}
	// VMAXPS and VMINPS return what is written first if one is NaN: x.
	if domain < expNormal {
		step(func(e expRegs) { g.VMAXPS(e.x, g.inRegister(c.lo, e.t), e.x) })
	}
	if domain == expAny {
		step(func(e expRegs) { g.VMINPS(e.x, g.inRegister(c.hi, e.t), e.x) })
	}
	step(func(e expRegs) { g.VMOVUPS(c.magic, e.t) })
	step(func(e expRegs) { g.VFMADD231PS(c.log2e, e.x, e.t) })
	step(func(e expRegs) { g.VSUBPS(c.magic, e.t, e.n) })
	step(func(e expRegs) { g.VFMADD231PS(c.nln2hi, e.n, e.x) }) // r1
	step(func(e expRegs) { g.VMOVUPS(e.x, e.r) })
	step(func(e expRegs) { g.VFMADD231PS(c.nln2lo, e.n, e.r) })
	step(func(e expRegs) { g.VMOVUPS(c.c6, e.y) })
	for _, k := range []operand.Op{c.c5, c.c4, c.c3, c.c2} {
		step(func(e expRegs) { g.VFMADD213PS(k, e.r, e.y) }) // q
	}
	step(func(e expRegs) { g.VMULPS(e.r, e.r, e.r) })           // z
	step(func(e expRegs) { g.VMULPS(e.r, e.y, e.y) })           // v
	step(func(e expRegs) { g.VFMADD231PS(c.nln2lo, e.n, e.y) }) // w
	step(func(e expRegs) { g.VADDPS(e.y, e.x, e.y) })           // s
	step(func(e expRegs) { g.VADDPS(c.one, e.y, e.y) })         // p
	if g.Wide() {
		step(func(e expRegs) { g.VSCALEFPS(e.n, e.y, e.y) })
		return
	}
	if domain >= expNormal { // p's exponent is far from its ends
		step(func(e expRegs) { g.VPSLLD(operand.U8(23), e.t, e.t) })
		step(func(e expRegs) { g.VPADDD(e.t, e.y, e.y) })
		return
	}
	step(func(e expRegs) { g.VPSRLD(operand.U8(1), e.t, e.r) }) // h
	step(func(e expRegs) { g.VPSUBD(e.r, e.t, e.t) })
	step(func(e expRegs) { g.VPSLLD(operand.U8(23), e.r, e.r) })
	step(func(e expRegs) { g.VPSLLD(operand.U8(23), e.t, e.t) })
	step(func(e expRegs) { g.VMULPS(e.r, e.y, e.y) })
	step(func(e expRegs) { g.VMULPS(e.t, e.y, e.y) })
}

// inRegister is the operand itself if it is a register, else scratch, loaded with it.
func (g *G) inRegister(o operand.Op, scratch reg.VecPhysical) operand.Op {
	if _, ok := o.(reg.VecPhysical); ok {
		return o
	}
	g.VMOVUPS(o, scratch)
	return scratch
}

// between is the vector registers from first to one before end, as far as the level has them.
func (g *G) between(first, end int) (vs []reg.VecPhysical) {
	have := 16
	if g.Wide() {
		have = 32
	}
	for i := first; i < min(end, have); i++ {
		vs = append(vs, g.V(i))
	}
	return vs
}
