package workshop

// softmaxWriter writes softmaxTileNEON. A group is a vector of rows, or a row of a tail alone, in lane 0: the other lanes
// are zeros then, which see no key.
type softmaxWriter struct {
	*A
	lanes                       int // rows of a group
	column, lo, hi, m, l, alpha GP  // of the group
	stride, keys, rows          GP  // rows that are left
	scale, holes                GP
	key, place, left, scratch   GP // of a walk over the keys of a group: what is read next, and written
	top, sum, factor            Vec
	consts                      expConstsNEON
	pairs                       *softmaxPairsNEON // of SoftmaxTilePairs
}

// softmaxTileNEON runs down the keys of four rows twice: for the scores, which it leaves in the tile, and their maximum,
// then for exp and the sum. Groups whose rows see every key, and whose scores are all finite, need no masks.
//
//	computes   t = s*scale; top = max(m, t); alpha = exp(m-top); p = exp(t-top); l = fma(l, alpha, sum of p); m = top
//	registers  the constants of exp, top, sum, factor; then scores, maxima and minima, or four exps
//	reads      s in whole vectors, that of a tail by elements
//	order      groups from the front; in each, keys from the front
//	limits     none: 64 keys are ref's
func softmaxTileNEON(a *A) { softmaxNEON(a, nil) }

func softmaxNEON(a *A, pairs *softmaxPairsNEON) {
	w := &softmaxWriter{
		A: a, pairs: pairs, column: a.Base("s"), lo: a.Base("lo"), hi: a.Base("hi"), m: a.Base("m"), l: a.Base("l"), alpha: a.Base("alpha"),
		stride: a.Arg("lds"), keys: a.Arg("keys"), rows: a.Arg("n"), scale: a.Arg("scale"), holes: a.GP("holes"),
		key: a.GP("key"), place: a.GP("place"), left: a.GP("left"), scratch: a.GP("scratch"),
		consts: a.loadExp(expLow), top: a.Vec("top"), sum: a.Vec("sum"), factor: a.Vec("factor"),
	}
	a.LSL(Imm(2), w.stride, w.stride)
	if pairs != nil {
		pairs.open(w)
	}
	a.Const(0, w.holes)
	w.groups(4, func() {
		general, done := a.Fresh("general"), a.Fresh("group")
		w.plain(general)
		a.B(done)
		a.Label(general)
		w.general()
		a.Label(done)
	})
	w.groups(1, w.general)
	a.CMP(Imm(0), w.holes)
	a.CSET("NE", w.holes)
	a.Result(w.holes)
	a.Done()
}

// groups runs body for the groups of so many rows.
func (w *softmaxWriter) groups(lanes int, body func()) {
	w.lanes = lanes
	w.steps(w.rows, lanes, func() {
		w.FMOVSvec(w.scale, w.factor)
		body()
		for _, r := range []GP{w.column, w.lo, w.hi, w.m, w.l, w.alpha} {
			w.ADD(Imm(4*lanes), r, r)
		}
		if w.pairs != nil {
			w.ADD(Imm(4*lanes), w.pairs.p, w.pairs.p)
		}
	})
}

// load and store move the values of a group.
func (w *softmaxWriter) load(r GP, v Vec) {
	if w.lanes == 1 {
		w.FMOVS(r.At(0), v)
		return
	}
	w.FMOVQ(r.At(0), v)
}

func (w *softmaxWriter) store(v Vec, r GP) {
	if w.lanes == 1 {
		w.FMOVSto(v, r.At(0))
		return
	}
	w.FMOVQto(v, r.At(0))
}

// loadKey and storeKey move those of a key, and go to the next.
func (w *softmaxWriter) loadKey(v Vec) {
	if w.lanes == 1 {
		w.FMOVS(w.key.At(0), v)
		w.ADD(w.stride, w.key, w.key)
		return
	}
	w.VLD1(w.key.PostBy(w.stride), v.S4())
}

func (w *softmaxWriter) storeKey(v Vec) {
	if w.lanes == 1 {
		w.FMOVSto(v, w.place.At(0))
		w.ADD(w.stride, w.place, w.place)
		return
	}
	w.VST1(w.place.PostBy(w.stride), v.S4())
}

// walk runs over the keys, side of them at a time and the last ones singly.
func (w *softmaxWriter) walk(side int, body func(side int)) {
	w.Copy(w.column, w.key)
	w.Copy(w.column, w.place)
	w.Copy(w.keys, w.left)
	if side > 1 {
		w.steps(w.left, side, func() { body(side) })
	}
	w.steps(w.left, 1, func() { body(1) })
}

// plain is a group whose rows see every key. It turns to the general way where they do not, where there is no key, where
// a score is not finite, and where the maximum is zero, whose sign FMAX may change; the tile holds the scores then, and
// the factor is 1.
func (w *softmaxWriter) plain(general string) {
	w.CBZ(w.keys, general)
	w.seesAll(general)
	spread := w.limits()
	w.VMOV(w.consts.one.B16(), w.factor.B16())
	bound, ok := w.Vec("bound"), w.Vec("ok")
	w.Splat(negInfBits, w.scratch, bound)
	w.VFCMGT(bound.S4(), spread.S4(), ok.S4())
	w.VFCMEQ0(w.top.S4(), bound.S4())
	w.VBIC(bound.B16(), ok.B16(), ok.B16())
	w.unlessAll(ok, w.scratch, general)

	wide, done := w.Fresh("wide"), w.Fresh("plain")
	w.Splat(minus87Bits, w.scratch, bound)
	w.VFCMGE(bound.S4(), spread.S4(), ok.S4())
	w.unlessAll(ok, w.scratch, wide)
	w.FreeVecs(spread, bound, ok)
	w.Splat(expMagicNormal, w.scratch, w.consts.magic)
	w.probabilities(expNormal)
	w.Splat(expMagic, w.scratch, w.consts.magic)
	w.B(done)
	w.Label(wide)
	w.probabilities(expLow)
	w.Label(done)
	w.finish(nil)
}

// unlessAll goes to label unless all lanes of a mask are set. It overwrites the mask.
func (a *A) unlessAll(mask Vec, scratch GP, label string) {
	a.VUMINV(mask.S4(), mask)
	a.FMOVSgp(mask, scratch)
	a.CBZ(scratch, label)
}

// seesAll goes to general unless lo <= 0 and hi >= keys for all rows of the group.
func (w *softmaxWriter) seesAll(general string) {
	keys, none, lo, hi := w.Vec("keys"), w.Vec("none"), w.Vec("lo"), w.Vec("hi")
	w.VDUP(w.keys, keys.S4())
	w.Zero(none)
	w.load(w.lo, lo)
	w.load(w.hi, hi)
	w.VCMGE(lo.S4(), none.S4(), lo.S4())
	w.VCMGE(keys.S4(), hi.S4(), hi.S4())
	w.VAND(lo.B16(), hi.B16(), hi.B16())
	w.unlessAll(hi, w.scratch, general)
	w.FreeVecs(keys, none, lo, hi)
}

// limits is the first pass of plain. It gives the least score less the greatest, which is finite only if all are: FMAX
// and FMIN keep a NaN. There are four of each, or they would wait for each other.
func (w *softmaxWriter) limits() (spread Vec) {
	const side = 4
	t, tops, lows := w.Vecs("t", side), append([]Vec{w.top}, w.Vecs("tops", side-1)...), w.Vecs("lows", side)
	w.load(w.m, w.top)
	w.Splat(infBits, w.scratch, lows[0])
	for i := 1; i < side; i++ {
		w.VMOV(w.top.B16(), tops[i].B16())
		w.VMOV(lows[0].B16(), lows[i].B16())
	}
	w.walk(side, func(side int) {
		for i := range side {
			w.loadKey(t[i])
		}
		for i := range side {
			w.VFMUL(w.factor.S(0), t[i].S4(), t[i].S4())
		}
		for i := range side {
			w.VFMAX(t[i].S4(), tops[i].S4(), tops[i].S4())
			w.VFMIN(t[i].S4(), lows[i].S4(), lows[i].S4())
			w.storeKey(t[i])
		}
	})
	for i := 1; i < side; i++ {
		w.VFMAX(tops[i].S4(), w.top.S4(), w.top.S4())
		w.VFMIN(lows[i].S4(), lows[0].S4(), lows[0].S4())
	}
	w.VFSUB(w.top.S4(), lows[0].S4(), lows[0].S4())
	w.FreeVecs(t...)
	w.FreeVecs(tops[1:]...)
	w.FreeVecs(lows[1:]...)
	return lows[0]
}

// general is any group. A score that is not seen becomes -Inf, so the second pass needs no ranges.
func (w *softmaxWriter) general() {
	masks := softmaxMasks{negInf: w.words(negInfBits, w.scratch), masked: w.words(hiddenBits, w.scratch)}
	masks.seen = w.scores(masks.negInf)
	w.maskedProbabilities(masks)
	w.finish(&masks.seen)
	w.FreeVecs(masks.negInf, masks.masked, masks.seen)
}

// softmaxMasks are what the second pass of general needs: two constants, and where a key is seen.
type softmaxMasks struct{ negInf, masked, seen Vec }

// scores is the first pass of general, and tells where a key is seen.
func (w *softmaxWriter) scores(negInf Vec) (seen Vec) {
	t, visible, x, holes := w.Vec("t"), w.Vec("visible"), w.Vec("x"), w.Vec("holes")
	lo, hi, key, one := w.Vec("lo"), w.Vec("hi"), w.Vec("key"), w.words(1, w.scratch)
	w.load(w.lo, lo)
	w.load(w.hi, hi)
	w.Zero(key)
	w.Zero(holes)
	w.VMOV(negInf.B16(), w.top.B16())
	w.walk(1, func(int) {
		w.loadKey(t)
		w.VFMUL(w.factor.S(0), t.S4(), t.S4())
		w.VCMGT(key.S4(), hi.S4(), visible.S4())
		w.VCMGE(lo.S4(), key.S4(), x.S4())
		w.VAND(x.B16(), visible.B16(), visible.B16())
		w.VFCMEQ(negInf.S4(), t.S4(), x.S4())
		w.VAND(visible.B16(), x.B16(), x.B16())
		w.VORR(x.B16(), holes.B16(), holes.B16())
		w.VBIF(visible.B16(), negInf.B16(), t.B16())
		w.storeKey(t)
		w.larger(w.top, t, x, visible)
		w.VADD(one.S4(), key.S4(), key.S4())
	})
	w.VUMAXV(holes.S4(), holes)
	w.FMOVSgp(holes, w.scratch)
	w.ORR(w.scratch, w.holes, w.holes)
	seen = holes
	w.VFCMEQ(negInf.S4(), w.top.S4(), seen.S4())
	w.VNOT(seen.B16(), seen.B16())
	w.load(w.m, t)
	w.larger(t, w.top, x, visible)
	w.VMOV(t.B16(), w.top.B16())
	w.FreeVecs(t, visible, x, lo, hi, key, one)
	return seen
}

// larger is m = ref's larger(m, n): a NaN wins, and m stays where both are equal, whatever sign a zero has. x and equal
// are scratch.
func (a *A) larger(m, n, x, equal Vec) {
	a.VFMAX(m.S4(), n.S4(), x.S4())
	a.VFCMEQ(m.S4(), n.S4(), equal.S4())
	a.VBIF(equal.B16(), x.B16(), m.B16())
}

// probabilities is the second pass of plain: exp of the scores less the maximum, and their sum.
func (w *softmaxWriter) probabilities(domain expDomain) {
	if w.pairs != nil {
		w.pairedProbabilities(domain, nil)
		return
	}
	exps := w.expRegs(4)
	w.Zero(w.sum)
	w.walk(len(exps), func(side int) {
		for _, e := range exps[:side] {
			w.loadKey(e.x)
			w.VFSUB(w.top.S4(), e.x.S4(), e.x.S4())
		}
		w.exp(w.consts, domain, exps[:side]...)
		for _, e := range exps[:side] {
			w.VFADD(e.y.S4(), w.sum.S4(), w.sum.S4())
			w.storeKey(e.y)
		}
	})
	w.freeExps(exps...)
}

// maskedProbabilities is probabilities with scores of -Inf. They add 0 to the sum, or a NaN where it is one already or
// goes unused, and only their places need care.
func (w *softmaxWriter) maskedProbabilities(m softmaxMasks) {
	if w.pairs != nil {
		w.pairedProbabilities(expLow, &m)
		return
	}
	exps, masks := w.expRegs(2), w.Vecs("masks", 2)
	w.Zero(w.sum)
	w.walk(len(exps), func(side int) {
		for i, e := range exps[:side] {
			w.loadKey(e.x)
			w.VFCMEQ(m.negInf.S4(), e.x.S4(), masks[i].S4())
			w.VFSUB(w.top.S4(), e.x.S4(), e.x.S4())
		}
		w.exp(w.consts, expLow, exps[:side]...)
		for i, e := range exps[:side] {
			w.VFADD(e.y.S4(), w.sum.S4(), w.sum.S4())
			w.VBIT(masks[i].B16(), m.masked.B16(), e.y.B16())
			w.storeKey(e.y)
		}
	})
	w.freeExps(exps...)
	w.FreeVecs(masks...)
}

// finish moves m and l of the group, where a key is seen; nil is everywhere.
func (w *softmaxWriter) finish(seen *Vec) {
	e, l := w.expRegs(1)[0], w.Vec("l")
	w.load(w.m, e.x)
	if w.pairs != nil { // l, until it is needed: a sign where nothing was seen before
		w.Splat(negInfBits, w.scratch, l)
		w.VFCMEQ(l.S4(), e.x.S4(), l.S4())
		w.VSHL(31, l.S4(), l.S4())
	}
	w.VFSUB(w.top.S4(), e.x.S4(), e.x.S4())
	w.store(w.top, w.m) // as it was where nothing is seen
	if w.pairs != nil {
		w.VMOV(l.B16(), w.top.B16())
	}
	w.exp(w.consts, expLow, e)
	alpha := e.y
	w.load(w.l, l)
	w.VFMLA(alpha.S4(), l.S4(), w.sum.S4())
	if w.pairs != nil {
		w.VORR(w.top.B16(), alpha.B16(), alpha.B16())
	}
	if seen != nil {
		w.VBIF(seen.B16(), l.B16(), w.sum.B16())
		unseen := w.consts.one
		if w.pairs != nil {
			w.Splat(minusOneBits, w.scratch, e.x)
			unseen = e.x
		}
		w.VBIF(seen.B16(), unseen.B16(), alpha.B16())
	}
	w.store(w.sum, w.l)
	w.store(alpha, w.alpha)
	w.freeExps(e)
	w.Free(l)
}
