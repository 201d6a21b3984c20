package workshop

// softmaxPairsNEON is where the probabilities of pairs go.
type softmaxPairsNEON struct {
	p, stride GP // of the group; from pair to pair, in bytes
	consts    GP // of roundProbabilities
}

// softmaxTilePairsNEON is softmaxTileNEON with probabilities in bf16 and in pairs of keys. The scores stay where they are.
//
//	computes   t = s*scale; top = max(m, t); alpha = exp(m-top), or -0, or -1; p = exp(t-top) in bf16, +0 below 2^-60;
//	           l = fma(l, alpha, sum of p); m = top
//	registers  those of softmaxTileNEON; exps that are done make room for the constants of rounding
//	reads      as softmaxTileNEON
//	order      as softmaxTileNEON, keys by two in the second pass
//	limits     none: 64 keys are ref's
func softmaxTilePairsNEON(a *A) { softmaxNEON(a, &softmaxPairsNEON{}) }

func (q *softmaxPairsNEON) open(w *softmaxWriter) {
	q.p, q.stride, q.consts = w.Base("p"), w.Arg("ldp"), w.GP("consts")
	w.LSL(Imm(1), q.stride, q.stride)
	var table []uint32
	for _, c := range []uint32{1, 0x7FFF, leastAct - 1, 0xFFFF0000} {
		table = append(table, c, c, c, c)
	}
	w.Table("roundprobability", table, q.consts)
}

// pairedProbabilities is the second pass by pairs of keys: probabilities, or with masks maskedProbabilities. The last key
// may be alone.
func (w *softmaxWriter) pairedProbabilities(domain expDomain, m *softmaxMasks) {
	side := 4
	var masks []Vec
	if m != nil {
		side = 2
		masks = w.Vecs("masks", side)
	}
	exps := w.expRegs(side)
	w.Zero(w.sum)
	w.Copy(w.column, w.key)
	w.Copy(w.pairs.p, w.place)
	w.Copy(w.keys, w.left)
	for keys := side; keys > 0; keys /= 2 {
		w.steps(w.left, keys, func() { w.pairsOf(exps, keys, domain, m, masks) })
	}
	w.freeExps(exps...)
	w.FreeVecs(masks...)
}

// pairsOf takes some keys side by side. masks are where scores are -Inf, if m says what is written there.
func (w *softmaxWriter) pairsOf(exps []expRegsNEON, keys int, domain expDomain, m *softmaxMasks, masks []Vec) {
	es := exps[:keys]
	for i, e := range es {
		w.loadKey(e.x)
		if m != nil {
			w.VFCMEQ(m.negInf.S4(), e.x.S4(), masks[i].S4())
		}
		w.VFSUB(w.top.S4(), e.x.S4(), e.x.S4())
	}
	w.exp(w.consts, domain, es...)
	w.roundProbabilities(exps, es)
	for _, e := range es {
		w.VFADD(e.y.S4(), w.sum.S4(), w.sum.S4())
	}
	if m != nil {
		for i, e := range es {
			w.VBIT(masks[i].B16(), m.masked.B16(), e.y.B16())
		}
	}
	for i := 0; i < keys; i += 2 {
		second := exps[i].x
		if keys == 1 {
			w.Splat(hiddenBits, w.scratch, second)
		} else {
			second = es[i+1].y
		}
		w.VSRI(16, es[i].y.S4(), second.S4())
		w.store(second, w.place)
		w.ADD(w.pairs.stride, w.place, w.place)
	}
}

// roundProbabilities rounds the results of exps, which are not below zero, to bf16 in the upper halves of words. The
// constants take the place of the first two x and r.
func (w *softmaxWriter) roundProbabilities(exps, es []expRegsNEON) {
	one, half, below, upper := exps[0].x, exps[0].r, exps[1].x, exps[1].r
	w.FLDPQ(w.pairs.consts.At(0), one, half)
	w.FLDPQ(w.pairs.consts.At(32), below, upper)
	step := func(write func(e expRegsNEON)) {
		for _, e := range es {
			write(e)
		}
	}
	step(func(e expRegsNEON) { w.VUSHR(16, e.y.S4(), e.t.S4()) })
	step(func(e expRegsNEON) { w.VCMHI(below.S4(), e.y.S4(), e.n.S4()) }) // of any NaN
	step(func(e expRegsNEON) { w.VAND(one.B16(), e.t.B16(), e.t.B16()) })
	step(func(e expRegsNEON) { w.VADD(e.y.S4(), e.t.S4(), e.t.S4()) })
	step(func(e expRegsNEON) { w.VADD(half.S4(), e.t.S4(), e.t.S4()) })
	step(func(e expRegsNEON) { w.VFCMEQ(e.y.S4(), e.y.S4(), e.z.S4()) })
	step(func(e expRegsNEON) { w.VAND(upper.B16(), e.n.B16(), e.n.B16()) })
	step(func(e expRegsNEON) { w.VBIT(e.z.B16(), e.t.B16(), e.y.B16()) })
	step(func(e expRegsNEON) { w.VAND(e.n.B16(), e.y.B16(), e.y.B16()) })
}
