package workshop

import (
	"slices"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The Pair kernels are the Part kernels on bf16 values in pairs. Where the processor multiplies pairs, a pair of x and
// the pairs of a vector of b take one instruction; elsewhere both are split into float32, the second of each pair first.

// pairSet is partSet with pairs.
//
//	computes   y = part, by fma from zero, the second of a pair first
//	registers  those of partSet
//	reads      x in place, a pair at a time, and the last of an odd k by itself; b in whole vectors
//	order      columns in groups of panels, rows in tiles, k from 0 by two
//	limits     k is at most 256
func pairSet(g *G) {
	p := partKernel{G: g, pairs: true, finish: (*partTile).set}
	p.write()
}

// pairAdd is pairSet on top of what y holds.
//
//	computes   y = y + part
//	registers  those of pairSet
//	reads      y, and what pairSet reads
//	order      that of pairSet
//	limits     k is at most 256
func pairAdd(g *G) {
	p := partKernel{G: g, pairs: true, finish: (*partTile).add}
	p.write()
}

// pairScale is pairAdd with a scale for each column.
//
//	computes   y = fma(part, scale, y)
//	registers  those of pairSet; CX holds the scales of a tile
//	reads      y, scale, and what pairSet reads
//	order      that of pairSet
//	limits     k is at most 256
func pairScale(g *G) {
	p := partKernel{G: g, pairs: true, finish: (*partTile).scale}
	p.write()
}

// pairScaleRows is pairScale with a scale for each row as well.
//
//	computes   y = fma(part, rows*scale, y), the product of scales rounded
//	registers  those of pairScale; R11 and R12 hold the scales of rows and their stride
//	reads      y, rows, scale, and what pairSet reads
//	order      that of pairSet
//	limits     k is at most 256
func pairScaleRows(g *G) {
	p := partKernel{G: g, pairs: true, finish: (*partTile).scaleRows}
	p.write()
}

// pairFoldSet is pairSet with a scale for each weight, by which the activation is multiplied before it is rounded.
//
//	computes   y = part, with x*scale, rounded to float32 and then to bf16, in place of x
//	registers  those of pairSet; R10 holds a panel of scales, R13 walks it
//	reads      x, a value at a time; scale in whole vectors, and b
//	order      that of pairSet
//	limits     k is at most 256
func pairFoldSet(g *G) {
	p := partKernel{G: g, pairs: true, fold: true, finish: (*partTile).set}
	p.write()
}

// pairFoldAdd is pairFoldSet on top of what y holds.
//
//	computes   y = y + part
//	registers  those of pairFoldSet
//	reads      y, and what pairFoldSet reads
//	order      that of pairSet
//	limits     k is at most 256
func pairFoldAdd(g *G) {
	p := partKernel{G: g, pairs: true, fold: true, finish: (*partTile).add}
	p.write()
}

// dots tells whether the level multiplies pairs.
func (g *G) dots() bool { return slices.Contains(g.Level.ISA, "AVX512_BF16") }

// splitFamilies leaves room for both halves of b and of an x.
func (p *partKernel) splitFamilies() []partFamily {
	switch {
	case p.fold && p.Wide():
		return []partFamily{{vectors: 1, rows: 4}}
	case p.fold:
		return []partFamily{{vectors: 2, rows: 2}, {vectors: 1, rows: 2}}
	case p.Wide():
		return []partFamily{{vectors: 4, rows: 3, narrow: true}, {vectors: 2, rows: 8}, {vectors: 1, rows: 8}}
	}
	return []partFamily{{vectors: 2, rows: 4}, {vectors: 1, rows: 8}}
}

// upper is the mask of the second value of a pair, where pairs are split.
func (t *partTile) upper() reg.VecPhysical { return t.V(2*t.Level.Lanes - 1) }

// pairConstants fills the registers that a tile needs.
func (t *partTile) pairConstants() {
	if !t.dots() {
		t.Splat(0xFFFF0000, t.upper())
	}
}

// pairLoop runs through k, whose last one may be alone.
func (t *partTile) pairLoop() {
	even := t.Fresh("even")
	t.SHRQ(operand.U8(1), partK)
	t.unrolled(partK, 4, t.steps)
	t.Arg("k", partK)
	t.TESTQ(operand.U32(1), partK)
	t.JZ(operand.LabelRef(even))
	switch {
	case t.fold:
		t.foldPair(0, true)
	case t.dots():
		t.lastPair()
	default:
		t.splitPair(0, true)
	}
	t.Label(even)
}

// lastPair is a step with the first value of x alone, whose second counts as zero, as that of b is.
func (t *partTile) lastPair() {
	for r := range t.rows {
		x, b := t.free(0), t.free(1)
		t.loneX(r, x)
		for v := range t.vectors {
			t.VMOVUPS(t.b(v, 0), b)
			t.VDPBF16PS(b, x, t.sum(r, v))
		}
	}
}

// loneX fills a vector with the last value of row r, in the lower half of each word.
func (t *partTile) loneX(r int, x reg.VecPhysical) {
	t.MOVWLZX(t.x(r, 0), partTmp.As32())
	t.VMOVD(partTmp.As32(), x.AsX())
	t.VPBROADCASTD(x.AsX(), x)
}

// splitPair is a step by two fma, of which a lone value, the last, takes the second.
func (t *partTile) splitPair(step int, lone bool) {
	first := func(v int) reg.VecPhysical { return t.free(2 * v) }
	second := func(v int) reg.VecPhysical { return t.free(2*v + 1) }
	for v := range t.vectors {
		t.VMOVUPS(t.b(v, step), first(v))
		t.And(t.upper(), first(v), second(v))
		t.VPSLLD(operand.U8(16), first(v), first(v))
	}
	for r := range t.rows {
		x0, x1 := t.free(2*t.vectors), t.free(2*t.vectors+1)
		if lone {
			t.loneX(r, x0)
		} else {
			t.VPBROADCASTD(t.x(r, step), x0)
			t.And(t.upper(), x0, x1)
			for v := range t.vectors {
				t.VFMADD231PS(second(v), x1, t.sum(r, v))
			}
		}
		t.VPSLLD(operand.U8(16), x0, x0)
		for v := range t.vectors {
			t.VFMADD231PS(first(v), x0, t.sum(r, v))
		}
	}
}

// foldPair is a step with x times the scales, rounded to bf16. It has no more than 4 sums.
func (t *partTile) foldPair(step int, lone bool) {
	b, x, tmp := t.free(0), [2]reg.VecPhysical{t.free(1), t.free(2)}, [3]reg.VecPhysical{t.free(3), t.free(4), t.free(5)}
	for v := range t.vectors {
		for r := range t.rows {
			act := func(place int) reg.VecPhysical {
				m := t.x(r, 0)
				m.Disp += 8*step + 4*place
				t.VBROADCASTSS(m, x[place])
				t.VMULPS(At(partWalk, 128*step+64*place+t.Bytes()*v), x[place], x[place])
				t.roundAct(x[place], tmp)
				return x[place]
			}
			if !lone {
				t.VMOVUPS(t.b(v, step), b)
				t.And(t.wordMask(), b, b)
				t.VFMADD231PS(act(1), b, t.sum(r, v))
			}
			t.VMOVUPS(t.b(v, step), b)
			t.VPSLLD(operand.U8(16), b, b)
			t.VFMADD231PS(act(0), b, t.sum(r, v))
		}
	}
}

// wordMask is upper in memory.
func (g *G) wordMask() operand.Mem { return g.full(0xFFFF0000) }

// roundAct rounds a vector of activations to bf16, which stays in the upper half of each word: to nearest even, +0 for
// less than 2^-60, and a NaN is cut and made quiet. It overwrites K2 and K3, or tmp.
func (g *G) roundAct(v reg.VecPhysical, tmp [3]reg.VecPhysical) {
	g.large(v, leastAct, tmp[0])
	g.roundUpper(v, tmp[1], tmp[2])
	g.keep(v, tmp[0])
}

// roundValue is roundAct for values, with +0 for results below 2^-52.
func (g *G) roundValue(v reg.VecPhysical, tmp [3]reg.VecPhysical) {
	g.roundUpper(v, tmp[1], tmp[2])
	g.large(v, leastValue, tmp[0])
	g.keep(v, tmp[0])
}

// large leaves in K2, or mask, where v is not below a bound.
func (g *G) large(v reg.VecPhysical, bound uint32, mask reg.VecPhysical) {
	g.And(g.full(0x7FFFFFFF), v, mask)
	if g.Wide() {
		g.VPCMPUD(cmpNltInt, g.full(bound), mask, reg.K2)
	} else {
		g.VPCMPGTD(g.full(bound-1), mask, mask)
	}
}

// keep makes v +0 but where large says so.
func (g *G) keep(v, mask reg.VecPhysical) {
	if g.Wide() {
		g.VMOVDQA32_Z(v, reg.K2, v)
	} else {
		g.And(mask, v, v)
	}
}

// roundUpper rounds to the upper half of each word.
func (g *G) roundUpper(v, nan, sum reg.VecPhysical) {
	g.findNaNs(v, nan)
	g.VPSRLD(operand.U8(16), v, sum)
	g.And(g.full(1), sum, sum)
	g.VPADDD(v, sum, sum)
	g.VPADDD(g.full(0x7FFF), sum, sum)
	g.Or(g.full(0x00400000), v, v)
	if g.Wide() {
		g.VMOVDQA32(v, reg.K3, sum)
	} else {
		g.VBLENDVPS(nan, v, sum, sum)
	}
	g.And(g.wordMask(), sum, v)
}

// findNaNs leaves in mask, or K3, where v is NaN.
func (g *G) findNaNs(v, mask reg.VecPhysical) {
	if g.Wide() {
		g.VCMPPS(cmpUnord, v, v, reg.K3)
	} else {
		g.VCMPPS(cmpUnord, v, v, mask)
	}
}

// The bounds of the second arithmetic, as bits of float32: see simd/ref.
const (
	leastAct   = 67 << 23
	leastValue = 75 << 23
	leastSum   = 32 << 23
)
