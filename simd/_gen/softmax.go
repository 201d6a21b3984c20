package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// softmax is where softmaxTile keeps what it needs. A group is a vector of rows.
type softmax struct {
	*G
	column, stride, stride3, keys, rows, at, holes reg.GPPhysical // at: 4*row, into lo, hi, m, l, alpha
	key, left, scratch                             reg.GPPhysical // of a walk over the keys of a group
	exps                                           []expRegs      // of keys side by side
	top, sum                                       reg.VecPhysical
	factor                                         reg.VecPhysical // the scale in the first pass, free in the second
	lanes                                          reg.Register    // the rows of a tail
	consts                                         expConsts
	negInf, masked                                 operand.Op
	pairs                                          bool // see softmaxTilePairs
}

// softmaxTile runs down the keys of a vector of rows twice: for the scores, which it leaves in the tile, and their
// maximum, then for exp and the sum. Groups whose rows see every key, and whose scores are all finite, need no masks.
//
//	computes   t = s*scale; top = max(m, t); alpha = exp(m-top); p = exp(t-top); l = fma(l, alpha, sum of p); m = top
//	registers  SI the group's column, DI its stride, R12 three of them, R8 keys, R9 rows left, R10 4*row, R11 holes;
//	           AX, BX the walk over keys, CX, DX scratch; V0.. the exps, then top, sum, factor and constants
//	reads      s in whole vectors, masked for the rows of a tail; alpha, between the passes, for what was written there
//	order      groups from the front; in each, keys from the front
//	limits     none: 64 keys are ref's
func softmaxTile(g *G) { newSoftmax(g).write() }

// write writes the body.
func (w *softmax) write() {
	g := w.G
	g.Base("s", w.column)
	g.stride("lds", w.stride)
	g.LEAQ(AtX(w.stride, w.stride, 2, 0), w.stride3)
	g.Arg("keys", w.keys)
	g.Arg("n", w.rows)
	g.XORL(w.at.As32(), w.at.As32())
	g.XORL(w.holes.As32(), w.holes.As32())

	group, general, advance := g.Fresh("group"), g.Fresh("general"), g.Fresh("advance")
	tail, done := g.Fresh("tail"), g.Fresh("done")
	g.Label(group)
	g.CMPQ(w.rows, operand.U32(uint32(g.Level.Lanes)))
	g.JLT(operand.LabelRef(tail))
	g.SplatArg("scale", w.factor)
	w.plain(general)
	g.JMP(operand.LabelRef(advance))
	g.Label(general)
	w.general(false)
	g.Label(advance)
	g.ADDQ(operand.U32(uint32(g.Bytes())), w.column)
	g.ADDQ(operand.U32(uint32(g.Bytes())), w.at)
	g.SUBQ(operand.U32(uint32(g.Level.Lanes)), w.rows)
	g.JMP(operand.LabelRef(group))
	g.Label(tail)
	g.TESTQ(w.rows, w.rows)
	g.JZ(operand.LabelRef(done))
	g.SplatArg("scale", w.factor)
	w.general(true)
	g.Label(done)
	g.TESTL(w.holes.As32(), w.holes.As32())
	g.SETNE(w.holes.As8())
	g.Store(w.holes.As8(), g.ReturnIndex(0))
	g.Done()
}

// newSoftmax deals out the registers.
func newSoftmax(g *G) *softmax {
	w := &softmax{
		G: g, column: reg.RSI, stride: reg.RDI, stride3: reg.R12, keys: reg.R8, rows: reg.R9, at: reg.R10, holes: reg.R11,
		key: reg.RAX, left: reg.RBX, scratch: reg.RCX, negInf: g.full(negInfBits), masked: g.full(hiddenBits),
	}
	side, next := 2, 0
	if g.Wide() {
		side = 4
	}
	for range side {
		var e expRegs
		e, next = expRegsAt(g, next)
		w.exps = append(w.exps, e)
	}
	w.top, w.sum, w.factor = g.V(next), g.V(next+1), g.V(next+2)
	w.consts = loadExp(g, g.between(next+3, next+3+expRegisters))
	w.lanes = g.byLevel(reg.K1, w.exps[1].y) // a tail takes its keys singly
	if g.Wide() {
		w.negInf, w.masked = g.V(30), g.V(31)
		g.Splat(negInfBits, g.V(30))
		g.Splat(hiddenBits, g.V(31))
	}
	return w
}

// of is the group's part of one of the slices that hold a value a row.
func (w *softmax) of(name string) operand.Mem {
	w.Base(name, w.scratch)
	return AtX(w.scratch, w.at, 1, 0)
}

// load and store move the values of a group, or those that a tail has.
func (w *softmax) load(tail bool, m operand.Mem, v reg.VecPhysical) {
	if tail {
		w.loadTail(m, w.lanes, v)
	} else {
		w.VMOVUPS(m, v)
	}
}

func (w *softmax) store(tail bool, v reg.VecPhysical, m operand.Mem) {
	if tail {
		w.storeTail(v, w.lanes, m)
	} else {
		w.VMOVUPS(v, m)
	}
}

// place is the group's vector of key i from the walk's.
func (w *softmax) place(i int) operand.Mem { return oneOfFour(w.key, w.stride, w.stride3, i) }

// walk runs over the keys, side of them at a time and the last ones singly.
func (w *softmax) walk(side int, body func(side int)) {
	loop, singly, one, done := w.Fresh("keys"), w.Fresh("singly"), w.Fresh("key"), w.Fresh("walked")
	w.MOVQ(w.column, w.key)
	w.MOVQ(w.keys, w.left)
	if side > 1 {
		w.SUBQ(operand.U8(side), w.left)
		w.JLT(operand.LabelRef(singly))
		w.Label(loop)
		body(side)
		w.LEAQ(AtX(w.key, w.stride, uint8(side), 0), w.key)
		w.SUBQ(operand.U8(side), w.left)
		w.JGE(operand.LabelRef(loop))
		w.Label(singly)
		w.ADDQ(operand.U8(side), w.left)
	} else {
		w.TESTQ(w.left, w.left)
	}
	w.JZ(operand.LabelRef(done))
	w.Label(one)
	body(1)
	w.ADDQ(w.stride, w.key)
	w.DECQ(w.left)
	w.JNZ(operand.LabelRef(one))
	w.Label(done)
}

// plain is a group whose rows see every key. It turns to the general way where they do not, where there is no key and
// where a score is not finite; the tile holds the scores then, and the factor is 1.
func (w *softmax) plain(general string) {
	w.TESTQ(w.keys, w.keys)
	w.JZ(operand.LabelRef(general))
	w.seesAll(general)
	w.VMOVUPS(w.of("m"), w.top)

	lowest := w.sum
	w.VMOVUPS(w.full(infBits), lowest)
	// The sums of the scores are not finite where one of them is not. Four of them, or they would wait for each other.
	const side = 4
	var t, sums [side]reg.VecPhysical
	for i := range side {
		t[i], sums[i] = w.V(2*i), w.V(2*i+1)
		w.Zero(sums[i])
	}
	w.walk(side, func(side int) {
		for i := range side {
			w.VMULPS(w.place(i), w.factor, t[i])
		}
		for i := range side {
			w.VMAXPS(w.top, t[i], w.top) // the first of equal ones; a NaN stays
			w.VMINPS(lowest, t[i], lowest)
			w.VADDPS(t[i], sums[i], sums[i])
			w.VMOVUPS(t[i], w.place(i))
		}
	})
	w.VADDPS(sums[1], sums[0], sums[0])
	w.VADDPS(sums[3], sums[2], sums[2])
	w.VADDPS(sums[2], sums[0], sums[0])
	w.VSUBPS(sums[0], sums[0], sums[0]) // NaN unless it was finite
	w.Splat(oneBits, w.factor)
	w.any(cmpUnord, sums[0], sums[0], general)

	spread, done := w.Fresh("spread"), w.Fresh("plain")
	if w.pairs && w.dots() {
		low := w.Fresh("low")
		w.VSUBPS(w.top, lowest, sums[0])
		w.any(cmpNge, w.full(minus41Bits), sums[0], low)
		w.probabilities(expLarge, false, false)
		w.JMP(operand.LabelRef(done))
		w.Label(low)
	}
	w.VSUBPS(w.top, lowest, sums[0])
	w.any(cmpNge, w.full(minus87Bits), sums[0], spread) // or NaN, which m may be
	w.probabilities(expNormal, false, false)
	w.JMP(operand.LabelRef(done))
	w.Label(spread)
	w.probabilities(expLow, false, false)
	w.Label(done)
}

// any goes to label if a comparison of a with b is true in any lane. It overwrites a.
func (w *softmax) any(compare operand.U8, b operand.Op, a reg.VecPhysical, label string) {
	if w.Wide() {
		w.VCMPPS(compare, b, a, reg.K2)
		w.KORTESTW(reg.K2, reg.K2)
	} else {
		w.VCMPPS(compare, b, a, a)
		w.VTESTPS(a, a)
	}
	w.JNZ(operand.LabelRef(label))
}

// seesAll goes to general unless lo <= 0 and hi >= keys for all rows of the group.
func (w *softmax) seesAll(general string) {
	keys, none, bound := w.V(0), w.V(1), w.V(2)
	w.VMOVD(w.keys.As32(), X(0))
	w.VPBROADCASTD(X(0), keys)
	w.Zero(none)
	w.VMOVUPS(w.of("hi"), bound)
	if w.Wide() {
		w.VPCMPGTD(bound, keys, reg.K2)
		w.VMOVUPS(w.of("lo"), bound)
		w.VPCMPGTD(none, bound, reg.K3)
		w.KORTESTW(reg.K2, reg.K3)
	} else {
		w.VPCMPGTD(bound, keys, keys)
		w.VMOVUPS(w.of("lo"), bound)
		w.VPCMPGTD(none, bound, bound)
		w.Or(keys, bound, bound)
		w.VPTEST(bound, bound)
	}
	w.JNZ(operand.LabelRef(general))
}

// general is any group; a tail has fewer rows than lanes. A score that is not seen becomes -Inf, so the second pass
// needs no ranges.
func (w *softmax) general(tail bool) {
	if tail {
		scratch := w.scratch
		if w.Wide() {
			scratch = reg.RDX // Tail needs CX
		}
		w.Tail(w.rows, scratch, w.lanes)
	}
	if w.Wide() {
		w.scoresK(tail)
	} else {
		w.scoresV(tail)
	}
	w.probabilities(expLow, true, tail)
}

// scoresV is the first pass of general with masks in vectors. alpha gets ones where a key is seen.
func (w *softmax) scoresV(tail bool) {
	t, visible, x, nan, holes := w.V(0), w.V(1), w.V(2), w.V(3), w.V(4)
	lo, hi, key, negInf := w.V(5), w.V(6), w.V(7), w.V(8)
	w.load(tail, w.of("lo"), lo)
	w.load(tail, w.of("hi"), hi) // 0 past the tail: these see nothing
	w.Zero(key)
	w.Zero(nan)
	w.Zero(holes)
	w.VMOVUPS(w.negInf, negInf)
	w.VMOVUPS(negInf, w.top)
	w.walk(1, func(int) {
		w.load(tail, w.place(0), t)
		w.VMULPS(w.factor, t, t)
		w.VPCMPGTD(key, hi, visible)
		w.VPCMPGTD(key, lo, x)
		w.VPANDN(visible, x, visible)
		w.VCMPPS(cmpEq, negInf, t, x)
		w.And(visible, x, x)
		w.Or(x, holes, holes)
		w.VBLENDVPS(visible, t, negInf, t)
		w.store(tail, t, w.place(0))
		w.VMAXPS(w.top, t, w.top) // the first of equal ones; a NaN is lost
		w.VCMPPS(cmpUnord, t, t, x)
		w.Or(x, nan, nan)
		w.VPSUBD(w.full(0xffffffff), key, key)
	})
	w.VMOVMSKPS(holes, w.scratch.As32())
	w.ORL(w.scratch.As32(), w.holes.As32())
	w.VCMPPS(cmpNeq, negInf, w.top, x)
	w.Or(nan, x, x)
	w.store(tail, x, w.of("alpha"))
	w.load(tail, w.of("m"), x)
	w.VMAXPS(x, w.top, w.top)
	w.Or(nan, w.top, w.top)
}

// scoresK is the first pass of general with masks in mask registers. K7 tells where a key is seen.
func (w *softmax) scoresK(tail bool) {
	t, m, lo, hi, key, one := w.V(0), w.V(1), w.V(2), w.V(3), w.V(4), w.V(5)
	visible, nan, holes, x, seen := reg.K2, reg.K3, reg.K4, reg.K5, reg.K7
	w.load(tail, w.of("lo"), lo)
	w.load(tail, w.of("hi"), hi) // 0 past the tail: these see nothing
	w.Splat(1, one)
	w.Zero(key)
	w.KXORW(nan, nan, nan)
	w.KXORW(holes, holes, holes)
	w.VMOVUPS(w.negInf, w.top)
	w.walk(1, func(int) {
		w.load(tail, w.place(0), t)
		w.VMULPS(w.factor, t, t)
		w.VPCMPGTD(key, hi, visible)
		w.VPCMPD(cmpLe, key, lo, visible, visible)
		w.VCMPPS(cmpEq, w.negInf, t, visible, x)
		w.KORW(x, holes, holes)
		w.VBLENDMPS(t, w.negInf, visible, t)
		w.store(tail, t, w.place(0))
		w.VMAXPS(w.top, t, w.top) // the first of equal ones; a NaN is lost
		w.VCMPPS(cmpUnord, t, t, x)
		w.KORW(x, nan, nan)
		w.VPADDD(one, key, key)
	})
	w.KMOVW(holes, w.scratch.As32())
	w.ORL(w.scratch.As32(), w.holes.As32())
	w.VCMPPS(cmpNeq, w.negInf, w.top, seen)
	w.KORW(nan, seen, seen)
	w.load(tail, w.of("m"), m)
	w.VMAXPS(m, w.top, w.top)
	w.VPTERNLOGD(operand.U8(0xff), w.top, w.top, nan, w.top)
}

// probabilities is the second pass: exp of the scores less the maximum. Masked scores are -Inf: they add 0 to the sum,
// or a NaN where it is one already or goes unused, and only their places need care.
func (w *softmax) probabilities(domain expDomain, masked, tail bool) {
	if w.pairs {
		w.pairedProbabilities(domain, masked, tail)
		return
	}
	exps := w.exps
	if tail && !w.Wide() {
		exps = exps[:1]
	}
	c := w.spend(domain, masked)
	w.Zero(w.sum)
	w.walk(len(exps), func(side int) {
		es := exps[:side]
		for i, e := range es {
			w.load(tail, w.place(i), e.x)
		}
		for _, e := range es {
			w.VSUBPS(w.top, e.x, e.x)
		}
		expVec(w.G, c, domain, es...)
		for _, e := range es {
			w.VADDPS(e.y, w.sum, w.sum)
		}
		for i, e := range es {
			if masked {
				w.mask(tail, w.place(i), e)
			}
			w.store(tail, e.y, w.place(i))
		}
	})
	w.finish(masked, tail)
}

// spend gives the one register that AVX2 has free in the second pass to what saves most, and returns the constants.
func (w *softmax) spend(domain expDomain, masked bool) expConsts {
	c := w.consts
	switch {
	case w.Wide():
	case masked:
		w.VMOVUPS(w.negInf, w.factor)
	case domain == expNormal:
		w.Splat(expMagicNormal, w.factor)
		c.magic = w.factor
	default:
		w.Splat(expLog2E, w.factor)
		c.log2e = w.factor
	}
	return c
}

// mask puts -0 into e.y where the score, which is still in its place, is -Inf.
func (w *softmax) mask(tail bool, place operand.Mem, e expRegs) {
	if w.Wide() {
		w.load(tail, place, e.x)
		w.VCMPPS(cmpEq, w.negInf, e.x, reg.K2)
		w.VMOVUPS(w.masked, reg.K2, e.y)
		return
	}
	w.load(tail, place, e.x)
	w.VCMPPS(cmpEq, w.factor, e.x, e.x)
	w.VBLENDVPS(e.x, w.masked, e.y, e.y)
}

// finish moves m and l of the group, where a key is seen.
func (w *softmax) finish(masked, tail bool) {
	e := w.exps[0]
	w.load(tail, w.of("m"), e.x)
	if w.pairs {
		w.unseen(e.x, e.t)
	}
	w.VSUBPS(w.top, e.x, e.x)
	w.store(tail, w.top, w.of("m")) // as it was where nothing is seen
	if w.pairs {
		w.VMOVUPS(e.t, w.top)
	}
	expVec(w.G, w.consts, expLow, e)
	alpha, l, l0, seen := e.y, e.x, e.r, e.t
	w.load(tail, w.of("l"), l0)
	w.VMOVUPS(l0, l)
	w.VFMADD213PS(w.sum, alpha, l)
	if w.pairs {
		w.Or(w.top, alpha, alpha)
	}
	switch {
	case masked && w.Wide():
		none := w.consts.one
		if w.pairs {
			w.Splat(minusOneBits, e.t)
			none = e.t
		}
		w.VBLENDMPS(alpha, none, reg.K7, alpha)
		w.VBLENDMPS(l, l0, reg.K7, l)
	case masked:
		w.load(tail, w.of("alpha"), seen)
		w.VBLENDVPS(seen, l, l0, l)
		if w.pairs {
			w.VMOVUPS(w.full(minusOneBits), l0)
		} else {
			w.VMOVUPS(w.full(oneBits), l0)
		}
		w.VBLENDVPS(seen, alpha, l0, alpha)
	}
	w.store(tail, alpha, w.of("alpha"))
	w.store(tail, l, w.of("l"))
}
