package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// softmaxTilePairs is softmaxTile with probabilities in bf16 and in pairs of keys. The scores stay where they are.
//
//	computes   t = s*scale; top = max(m, t); alpha = exp(m-top), or -0, or -1; p = exp(t-top) in bf16, +0 below 2^-60;
//	           l = fma(l, alpha, sum of p); m = top
//	registers  those of softmaxTile; R15 the p of a pair, R14 their stride; factor may hold a table in the second pass
//	reads      as softmaxTile
//	order      as softmaxTile, keys by two in the second pass
//	limits     none: 64 keys are ref's
func softmaxTilePairs(g *G) {
	w := newSoftmax(g)
	w.pairs = true
	g.Arg("ldp", pairStride)
	g.ADDQ(pairStride, pairStride)
	w.write()
}

// Where the probabilities of pairs go.
var pairStride, pairWalk = reg.R14, reg.R15

// pairedProbabilities is probabilities in pairs of keys.
func (w *softmax) pairedProbabilities(domain expDomain, masked, tail bool) {
	c := w.spend(domain, masked)
	w.Zero(w.sum)
	if domain == expLarge {
		w.VMOVUPS(w.pairTable(), w.factor)
	}
	w.LEAQ(w.of("p"), pairWalk)
	w.MOVQ(w.column, w.key)
	w.MOVQ(w.keys, w.left)
	loop, pair, lone, done := w.Fresh("keys"), w.Fresh("pair"), w.Fresh("lone"), w.Fresh("walked")
	do := func(keys int) {
		if tail && !w.Wide() {
			w.singly(c, domain, masked, keys)
		} else {
			w.together(c, domain, masked, tail, keys)
		}
	}
	side := len(w.exps)
	if tail && !w.Wide() {
		side = 2
	}
	w.SUBQ(operand.U8(side), w.left)
	w.JLT(operand.LabelRef(pair))
	w.Label(loop)
	do(side)
	w.LEAQ(AtX(w.key, w.stride, uint8(side), 0), w.key)
	w.LEAQ(AtX(pairWalk, pairStride, uint8(side/2), 0), pairWalk)
	w.SUBQ(operand.U8(side), w.left)
	w.JGE(operand.LabelRef(loop))
	w.Label(pair)
	w.ADDQ(operand.U8(side), w.left)
	if side > 2 {
		w.CMPQ(w.left, operand.U8(2))
		w.JLT(operand.LabelRef(lone))
		do(2)
		w.LEAQ(AtX(w.key, w.stride, 2, 0), w.key)
		w.ADDQ(pairStride, pairWalk)
		w.SUBQ(operand.U8(2), w.left)
	}
	w.Label(lone)
	w.TESTQ(w.left, w.left)
	w.JZ(operand.LabelRef(done))
	do(1)
	w.Label(done)
	w.finish(masked, tail)
}

// together takes some keys side by side: pairs, or the last one.
func (w *softmax) together(c expConsts, domain expDomain, masked, tail bool, keys int) {
	es := w.exps[:keys]
	for i, e := range es {
		w.load(tail, w.place(i), e.x)
	}
	for _, e := range es {
		w.VSUBPS(w.top, e.x, e.x)
	}
	expVec(w.G, c, domain, es...)
	if domain == expLarge && keys > 1 {
		for i := 0; i < keys; i += 2 {
			w.roundPair(es[i], es[i+1], w.pairPlace(i))
		}
		return
	}
	for _, e := range es {
		w.roundProbability(e)
	}
	for _, e := range es {
		w.VADDPS(e.y, w.sum, w.sum)
	}
	for i, e := range es {
		if masked {
			w.mask(tail, w.place(i), e)
		}
	}
	for i := 0; i < keys; i += 2 {
		first := es[i].y
		w.VPSRLD(operand.U8(16), first, first)
		if i+1 < keys {
			w.Or(es[i+1].y, first, first)
		} else {
			w.Or(w.masked, first, first)
		}
		w.store(tail, first, w.pairPlace(i))
	}
}

// pairPlace is where the pair of key i of the walk goes.
func (w *softmax) pairPlace(i int) operand.Mem {
	if i == 0 {
		return At(pairWalk, 0)
	}
	return AtX(pairWalk, pairStride, uint8(i/2), 0)
}

// unseen makes sign a sign bit where m is -Inf. It overwrites K2.
func (w *softmax) unseen(m, sign reg.VecPhysical) {
	if w.Wide() {
		w.VCMPPS(cmpEq, w.negInf, m, reg.K2)
		w.VMOVUPS_Z(w.full(hiddenBits), reg.K2, sign)
		return
	}
	w.VCMPPS(cmpEq, w.full(negInfBits), m, sign)
	w.And(w.full(hiddenBits), sign, sign)
}

// roundPair rounds the probabilities of two keys, none of which is below 2^-60, stores them and adds them to the sum. It
// needs pairTable in factor.
func (w *softmax) roundPair(first, second expRegs, to operand.Mem) {
	pair := first.x
	w.VCVTNE2PS2BF16(first.y, second.y, pair)
	w.VPERMW(pair, w.factor, pair)
	w.VMOVUPS(pair, to)
	w.VPSLLD(operand.U8(16), pair, first.y)
	w.And(w.full(0xFFFF0000), pair, second.y)
	w.VADDPS(first.y, w.sum, w.sum)
	w.VADDPS(second.y, w.sum, w.sum)
}

// pairTable is the places of the words of both halves of a vector in turn.
func (w *softmax) pairTable() operand.Mem {
	var words []uint32
	for i := range uint32(16) {
		words = append(words, i|(16+i)<<16)
	}
	return w.words("pairtable", words...)
}

// singly is together for a tail with AVX2, which has room for one exp beside its mask.
func (w *softmax) singly(c expConsts, domain expDomain, masked bool, keys int) {
	e, first := w.exps[0], w.exps[1].x
	for i := range keys {
		w.load(true, w.place(i), e.x)
		w.VSUBPS(w.top, e.x, e.x)
		expVec(w.G, c, domain, e)
		w.roundProbability(e)
		w.VADDPS(e.y, w.sum, w.sum)
		if masked {
			w.mask(true, w.place(i), e)
		}
		if i == 0 {
			w.VPSRLD(operand.U8(16), e.y, first)
		} else {
			w.Or(e.y, first, first)
		}
	}
	if keys == 1 {
		w.Or(w.masked, first, first)
	}
	w.store(true, first, At(pairWalk, 0))
}

// roundProbability is roundAct of e.y.
func (w *softmax) roundProbability(e expRegs) {
	if !w.dots() {
		w.roundAct(e.y, [3]reg.VecPhysical{e.x, e.t, e.r})
		return
	}
	w.VPCMPUD(cmpNltInt, w.full(leastAct), e.y, reg.K2) // no sign but that of a NaN
	half := Y(number(e.x))
	w.VCVTNEPS2BF16_Z(e.y, reg.K2, half)
	w.VPMOVZXWD(half, e.y)
	w.VPSLLD(operand.U8(16), e.y, e.y)
}
