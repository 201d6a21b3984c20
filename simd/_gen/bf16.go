package workshop

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The instructions of AVX512-BF16, which neither avo nor Go's assembler knows: they are written as their bytes, with
// their text as a comment. Operands are in Go's order, as for the other instructions: the last is written, a mask comes
// before it.

// coded is a vector instruction with an EVEX prefix, of the opcode map 0F38 and with 32-bit elements.
type coded struct {
	name   string
	prefix byte // 2: F3, 3: F2
	opcode byte
	length byte            // 2: 512 bits
	from   operand.Op      // in ModRM.rm
	with   reg.VecPhysical // in EVEX.vvvv, nil if there is none
	to     reg.VecPhysical // in ModRM.reg
	mask   reg.Register    // nil: all lanes
	zero   bool            // lanes that the mask does not select become zero
	spread bool            // from is one value in memory
}

// VDPBF16PS is to[i] = fma(from[2i], with[2i], fma(from[2i+1], with[2i+1], to[i])), where no value is subnormal. Bodies take
// whole vectors from registers only: at a displacement from memory that is written in one byte, the emulator that runs
// them elsewhere, Bochs 3.0, reads another place than processors do.
func (g *G) VDPBF16PS(from operand.Op, with reg.VecPhysical, ops ...reg.Register) {
	g.code(masked(coded{name: "VDPBF16PS", prefix: 2, opcode: 0x52, from: from, with: with}, ops))
}

// VDPBF16PS_BCST is VDPBF16PS with a pair in memory for all lanes.
func (g *G) VDPBF16PS_BCST(from operand.Mem, with reg.VecPhysical, ops ...reg.Register) {
	g.code(masked(coded{name: "VDPBF16PS", prefix: 2, opcode: 0x52, from: from, with: with, spread: true}, ops))
}

// VCVTNEPS2BF16 rounds 16 float32 to bf16, to nearest even. Subnormal values become zero.
func (g *G) VCVTNEPS2BF16(from operand.Op, ops ...reg.Register) {
	g.code(masked(coded{name: "VCVTNEPS2BF16", prefix: 2, opcode: 0x72, from: from}, ops))
}

// VCVTNEPS2BF16_Z is VCVTNEPS2BF16 with zeros where the mask selects none.
func (g *G) VCVTNEPS2BF16_Z(from operand.Op, mask reg.Register, to reg.VecPhysical) {
	g.code(masked(coded{name: "VCVTNEPS2BF16", prefix: 2, opcode: 0x72, from: from, zero: true}, []reg.Register{mask, to}))
}

// VCVTNE2PS2BF16 rounds two vectors as VCVTNEPS2BF16 does: low goes to the lower half, high to the upper.
func (g *G) VCVTNE2PS2BF16(low operand.Op, high, to reg.VecPhysical) {
	g.code(masked(coded{name: "VCVTNE2PS2BF16", prefix: 3, opcode: 0x72, from: low, with: high}, []reg.Register{to}))
}

// masked sets what is written, and the mask if there is one.
func masked(c coded, ops []reg.Register) coded {
	c.length = 2
	c.to = ops[len(ops)-1].(reg.VecPhysical)
	if len(ops) == 2 {
		c.mask = ops[0]
	}
	return c
}

// code writes the instruction.
func (g *G) code(c coded) {
	var words []string
	for b := c.bytes(); len(b) > 0; {
		n, name := 1, "BYTE"
		switch {
		case len(b) >= 4:
			n, name = 4, "LONG"
		case len(b) >= 2:
			n, name = 2, "WORD"
		}
		value := uint32(0)
		for i := n - 1; i >= 0; i-- {
			value = value<<8 | uint32(b[i])
		}
		words = append(words, fmt.Sprintf("%s $0x%0*x", name, 2*n, value))
		b = b[n:]
	}
	g.Instruction(&ir.Instruction{
		Opcode: strings.Join(words, "; ") + " // " + c.text(),
		ISA:    []string{"AVX512F", "AVX512_BF16"},
	})
}

// text is the instruction in Go's order.
func (c coded) text() string {
	name := c.name
	if c.spread {
		name += ".BCST"
	}
	if c.zero {
		name += ".Z"
	}
	ops := []string{c.from.Asm()}
	for _, r := range []reg.Register{c.with, c.mask, c.to} {
		if r != nil {
			ops = append(ops, r.Asm())
		}
	}
	return name + " " + strings.Join(ops, ", ")
}

// bytes encodes the instruction: the prefix of four bytes, the opcode, ModRM and what it calls for.
func (c coded) bytes() []byte {
	to, with := number(c.to), 0
	if c.with != nil {
		with = number(c.with)
	}
	// The bits that extend a register's number are inverted.
	ext := func(n, bit int) byte { return byte(n>>bit&1 ^ 1) }
	p1 := ext(to, 3)<<7 | ext(to, 4)<<4 | 2
	p2 := byte(^with&15)<<3 | 1<<2 | c.prefix
	p3 := c.length<<5 | ext(with, 4)<<3
	if c.mask != nil {
		p3 |= byte(c.mask.(reg.Physical).PhysicalIndex())
	}
	if c.zero {
		p3 |= 1 << 7
	}
	if c.spread {
		p3 |= 1 << 4
	}
	if r, ok := c.from.(reg.VecPhysical); ok {
		n := number(r)
		p1 |= ext(n, 4)<<6 | ext(n, 3)<<5
		return []byte{0x62, p1, p2, p3, c.opcode, 0xC0 | byte(to&7)<<3 | byte(n&7)}
	}
	unit := 16 << c.length
	if c.spread {
		unit = 4
	}
	x, b, tail := addressed(c.from.(operand.Mem), byte(to&7), unit)
	p1 |= ext(x, 3)<<6 | ext(b, 3)<<5
	return append([]byte{0x62, p1, p2, p3, c.opcode}, tail...)
}

// addressed is ModRM, SIB and displacement of memory, whose displacement is counted in units if it fits so, and the numbers
// of the index and the base.
func addressed(m operand.Mem, to byte, unit int) (index, base int, tail []byte) {
	const none = 4 // in the place of an index
	base = number(m.Base)
	index = none
	if m.Index != nil {
		index = number(m.Index)
	}
	mode, disp := byte(2), []byte{byte(m.Disp), byte(m.Disp >> 8), byte(m.Disp >> 16), byte(m.Disp >> 24)}
	switch {
	case m.Disp == 0 && base&7 != 5:
		mode, disp = 0, nil
	case m.Disp%unit == 0 && m.Disp/unit >= -128 && m.Disp/unit < 128:
		mode, disp = 1, []byte{byte(m.Disp / unit)}
	}
	if m.Index == nil && base&7 != 4 {
		tail = []byte{mode<<6 | to<<3 | byte(base&7)}
	} else {
		scale := map[uint8]byte{0: 0, 1: 0, 2: 1, 4: 2, 8: 3}[m.Scale]
		tail = []byte{mode<<6 | to<<3 | 4, scale<<6 | byte(index&7)<<3 | byte(base&7)}
	}
	return index & 15, base, append(tail, disp...)
}

// number is that of a register in an encoding.
func number(r reg.Register) int { return int(r.(reg.Physical).PhysicalIndex()) }
