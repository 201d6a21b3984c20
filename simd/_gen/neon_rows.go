package workshop

import "math"

// sumSquaresNEON is the sum of the squares of a row.
//
//	computes   the sum of x[i]*x[i]
//	registers  x, left; 8 vectors of sums, which are the 32 lanes, and 8 of values
//	reads      x, 32 values at a time, the rest one by one
//	order      32 lanes over whole rounds of 32, folded in halves, then the rest from the front
//	limits     the latency of one fma for each round
func sumSquaresNEON(a *A) {
	a.ResultF(a.squares())
	a.Done()
}

// squares leaves the sum of the squares of x in a scalar, and no other register taken.
func (a *A) squares() Vec {
	x, left := a.Base("x"), a.Len("x")
	sums, values := a.Vecs("sums", 8), a.Vecs("values", 8)
	for _, s := range sums {
		a.Zero(s)
	}
	a.steps(left, squareLanes, func() {
		for i := 0; i < len(values); i += 2 {
			a.FLDPQ(x.At(16*i), values[i], values[i+1])
		}
		a.ADD(Imm(4*squareLanes), x, x)
		for i, v := range values {
			a.VFMLA(v.S4(), v.S4(), sums[i].S4())
		}
	})
	for w := len(sums) / 2; w > 0; w /= 2 {
		for i := range w {
			a.VFADD(sums[i+w].S4(), sums[i].S4(), sums[i].S4())
		}
	}
	sum, v := sums[0], values[0]
	a.VEXT(8, sum.B16(), sum.B16(), v.B16())
	a.VFADD(v.S2(), sum.S2(), sum.S2())
	a.VFADDP(sum.S2(), sum.S2(), sum.S2())
	a.steps(left, 1, func() {
		a.FMOVS(x.Post(4), v)
		a.FMADDS(v, sum, v, sum)
	})
	a.Free(x, left)
	a.FreeVecs(sums[1:]...)
	a.FreeVecs(values...)
	return sum
}

// rmsNormNEON normalises a row.
//
//	computes   dst[i] = (x[i]*r) * gamma[i], r = 1/sqrt(sum of x^2 / len(x) + eps)
//	registers  x, dst, gamma, left; r, 4 vectors of values and 4 of gamma
//	reads      x twice, gamma once, by 16 values, 4 and 1
//	order      free, after the sum
//	limits     two divisions and a root in a row, then loads and stores
func rmsNormNEON(a *A) { normaliseNEON(a, func(vs, scratch []Vec) {}) }

// rmsNormBF16NEON rounds both products to bf16.
//
//	computes   dst[i] = bf16(bf16(x[i]*r) * gamma[i])
//	registers  as rmsNormNEON, and 4 vectors of scratch and 3 constants
//	reads      as rmsNormNEON
//	order      as rmsNormNEON
//	limits     the vector units, which round in 7 steps
func rmsNormBF16NEON(a *A) {
	scratch := a.GP("scratch")
	one, half, upper := a.words(1, scratch), a.words(0x7FFF, scratch), a.words(0xFFFF0000, scratch)
	a.Free(scratch)
	numbers := a.Vecs("numbers", 4)
	// The NaN of a product is quiet, so that it stays one when it is cut.
	normaliseNEON(a, func(vs, rounded []Vec) {
		for i, v := range vs {
			a.VUSHR(16, v.S4(), rounded[i].S4())
			a.VFCMEQ(v.S4(), v.S4(), numbers[i].S4())
		}
		for i, v := range vs {
			a.VAND(one.B16(), rounded[i].B16(), rounded[i].B16())
			a.VADD(half.S4(), rounded[i].S4(), rounded[i].S4())
			a.VADD(v.S4(), rounded[i].S4(), rounded[i].S4())
		}
		for i, v := range vs {
			a.VBIT(numbers[i].B16(), rounded[i].B16(), v.B16())
			a.VAND(upper.B16(), v.B16(), v.B16())
		}
	})
}

// rmsNormF16NEON rounds both products to f16.
//
//	computes   dst[i] = f16(f16(x[i]*r) * gamma[i])
//	registers  as rmsNormNEON
//	reads      as rmsNormNEON
//	order      as rmsNormNEON
//	limits     the vector units
func rmsNormF16NEON(a *A) {
	normaliseNEON(a, func(vs, _ []Vec) {
		for _, v := range vs {
			a.VFCVTN(v.S4(), v.H4())
		}
		for _, v := range vs {
			a.VFCVTL(v.H4(), v.S4())
		}
	})
}

// normaliseNEON is the whole of a norm; round rounds vectors and may use as many for scratch.
func normaliseNEON(a *A, round func(vs, scratch []Vec)) {
	r := a.rootMeanSquare()
	x, dst, gamma, left := a.Base("x"), a.Base("dst"), a.Base("gamma"), a.Len("x")
	values, gammas := a.Vecs("values", 4), a.Vecs("gammas", 4)
	a.pieces(left, func(lanes int) {
		vs, gs := vectorsFor(values, lanes), vectorsFor(gammas, lanes)
		a.loadLanes(x.Post(4*lanes), vs, lanes)
		for _, v := range vs {
			a.VFMUL(r.S(0), v.S4(), v.S4())
		}
		round(vs, gs)
		a.loadLanes(gamma.Post(4*lanes), gs, lanes)
		for i, v := range vs {
			a.VFMUL(gs[i].S4(), v.S4(), v.S4())
		}
		round(vs, gs)
		a.storeLanes(vs, lanes, dst.Post(4*lanes))
	})
	a.Done()
}

// rootMeanSquare leaves 1/sqrt(mean(x^2) + eps) in a scalar.
func (a *A) rootMeanSquare() Vec {
	r, n, count, eps := a.squares(), a.Len("x"), a.Vec("count"), a.ArgF("eps")
	a.SCVTFS(n, count)
	a.FDIVS(count, r, r)
	a.FADDS(eps, r, r)
	a.FSQRTS(r, r)
	one := a.words(math.Float32bits(1), n)
	a.FDIVS(r, one, r)
	a.Free(n, count, eps, one)
	return r
}

// ropeInterleavedNEON turns adjacent pairs, which loads part and stores join.
//
//	computes   dst[2i], dst[2i+1] = (x[2i], x[2i+1]) * (freqs[2i], freqs[2i+1]) as complex numbers
//	registers  x, dst, freqs, left; 2 vectors of x, of freqs and of results, and 2 products
//	reads      x and freqs by 4 pairs, the rest pair by pair; the value after the last pair is left out
//	order      free
//	limits     none
func ropeInterleavedNEON(a *A) {
	x, dst, freqs, left := a.Base("x"), a.Base("dst"), a.Base("freqs"), a.Len("x")
	a.LSR(Imm(1), left, left)
	p := a.newPairs(freqs)
	for _, lanes := range []int{4, 1} {
		a.steps(left, lanes, func() {
			p.load(x, p.x, lanes)
			p.turn(lanes)
			if lanes == 1 {
				a.FMOVSto(p.y[0], dst.At(0))
				a.FMOVSto(p.y[1], dst.At(4))
				a.ADD(Imm(8), dst, dst)
			} else {
				a.VST2(dst.Post(32), view(p.y, S4)...)
			}
		})
	}
	a.Done()
}

// ropeHalfNEON turns pairs whose parts are half a row apart.
//
//	computes   dst[i], dst[i+half] = (x[i], x[i+half]) * (freqs[2i], freqs[2i+1]) as complex numbers, half = len(x)/2
//	registers  as ropeInterleavedNEON, with two addresses of x and of dst
//	reads      as ropeInterleavedNEON
//	order      free
//	limits     none
func ropeHalfNEON(a *A) {
	x, dst, freqs, left := a.Base("x"), a.Base("dst"), a.Base("freqs"), a.Len("x")
	x1, dst1 := a.GP("x+half"), a.GP("dst+half")
	a.LSR(Imm(1), left, left)
	a.ADD(left.Shl(2), x, x1)
	a.ADD(left.Shl(2), dst, dst1)
	p := a.newPairs(freqs)
	for _, lanes := range []int{4, 1} {
		a.steps(left, lanes, func() {
			a.loadLanes(x.Post(4*lanes), p.x[:1], lanes)
			a.loadLanes(x1.Post(4*lanes), p.x[1:], lanes)
			p.turn(lanes)
			a.storeLanes(p.y[:1], lanes, dst.Post(4*lanes))
			a.storeLanes(p.y[1:], lanes, dst1.Post(4*lanes))
		})
	}
	a.Done()
}

// pairs are the registers of a rope: each has a vector of the first parts and one of the second.
type pairs struct {
	*A
	freqs                 GP
	x, turns, y, products []Vec
}

func (a *A) newPairs(freqs GP) *pairs {
	return &pairs{a, freqs, a.Vecs("x", 2), a.Vecs("turns", 2), a.Vecs("y", 2), a.Vecs("products", 2)}
}

// load loads 4 pairs or 1 and moves on.
func (p *pairs) load(from GP, to []Vec, lanes int) {
	if lanes == 1 {
		p.FMOVS(from.Post(4), to[0])
		p.FMOVS(from.Post(4), to[1])
		return
	}
	p.VLD2(from.Post(32), view(to, S4)...)
}

// turn turns x by the next freqs. Products and sums are rounded: there is no fma.
func (p *pairs) turn(lanes int) {
	p.load(p.freqs, p.turns, lanes)
	x0, x1, cos, sin := p.x[0].S4(), p.x[1].S4(), p.turns[0].S4(), p.turns[1].S4()
	re, im, re1, im1 := p.y[0].S4(), p.y[1].S4(), p.products[0].S4(), p.products[1].S4()
	p.VFMUL(cos, x0, re)
	p.VFMUL(sin, x1, re1)
	p.VFMUL(sin, x0, im)
	p.VFMUL(cos, x1, im1)
	p.VFSUB(re1, re, re)
	p.VFADD(im1, im, im)
}

// quantWriter writes QuantDynamic.
type quantWriter struct {
	*A
	x, codes, scales GP
	n, rest          GP // values of a group, and those that are left of them
	bits, inf, word  GP
	values, work     []Vec
	amax, by         Vec // the largest magnitude, and what the values are multiplied by
	e                *coder
}

// quantDynamicNEON quantises a row in groups.
//
//	computes   for each group: scales = min(max|x|, 1200)/448, codes = E4M3(x * (1/scales)), a NaN making the group NaN
//	registers  x, codes, scales, left, group, n and rest of this group, the x of its first pass, 3 of bits; 4 vectors of values and 8 of work, 2 scalars and their 3 constants, 6 constants of a coder
//	reads      x twice, by 16 values, 4 and 1 of a group
//	order      from the front, group by group
//	limits     the vector units; two divisions for each group
func quantDynamicNEON(a *A) {
	q := &quantWriter{A: a, x: a.Base("x"), codes: a.Base("codes"), scales: a.Base("scales"), n: a.GP("n"), rest: a.GP("rest"), bits: a.GP("bits"), inf: a.GP("inf"), word: a.GP("word")}
	left, group := a.Len("x"), a.Arg("group")
	q.values, q.work = a.Vecs("values", 4), a.Vecs("work", 8)
	q.amax, q.by = a.Vec("amax"), a.Vec("by")
	q.e = a.newCoder(layoutE4M3, q.word)
	most, top, one := a.words(math.Float32bits(1200), q.word), q.e.largest, a.words(math.Float32bits(1), q.word)
	a.Const(infBits, q.inf)

	next, done := a.Fresh("group"), a.Fresh("done")
	a.CBZ(left, done)
	a.Label(next)
	a.CMP(left, group)
	a.CSEL("LT", group, left, q.n)
	q.findLargest()
	numbers, end, finite := a.Fresh("numbers"), a.Fresh("end"), a.Fresh("finite")
	a.FMOVSgp(q.amax, q.bits)
	a.CMP(q.inf, q.bits)
	a.BLS(numbers)
	q.nanGroup()
	a.B(end)
	a.Label(numbers)
	a.FMINS(most, q.amax, q.by)
	a.FDIVS(top, q.by, q.by)
	a.FMOVSto(q.by, q.scales.Post(4))
	a.FDIVS(q.by, one, q.by)
	a.FMOVSgp(q.by, q.bits)
	a.CMP(q.inf, q.bits)
	a.BNE(finite)
	a.Zero(q.by)
	a.Label(finite)
	q.encode()
	a.Label(end)
	a.SUBS(q.n, left, left)
	a.BNE(next)
	a.Label(done)
	a.Done()
}

// findLargest leaves the largest magnitude of a group in amax: that of the bits, among which a NaN is the largest.
func (q *quantWriter) findLargest() {
	largest, x := q.work[:4], q.GP("x of the first pass")
	for _, v := range largest {
		q.Zero(v)
	}
	q.Copy(q.x, x)
	q.Copy(q.n, q.rest)
	q.pieces(q.rest, func(lanes int) {
		vs := vectorsFor(q.values, lanes)
		q.loadLanes(x.Post(4*lanes), vs, lanes)
		for _, v := range vs {
			q.VFABS(v.S4(), v.S4())
		}
		for i, v := range vs {
			q.VUMAX(v.S4(), largest[i].S4(), largest[i].S4())
		}
	})
	q.VUMAX(largest[2].S4(), largest[0].S4(), largest[0].S4())
	q.VUMAX(largest[3].S4(), largest[1].S4(), largest[1].S4())
	q.VUMAX(largest[1].S4(), largest[0].S4(), largest[0].S4())
	q.VUMAXV(largest[0].S4(), q.amax)
	q.Free(x)
}

// nanGroup writes a group of NaN.
func (q *quantWriter) nanGroup() {
	q.Const(0x7FC00000, q.word)
	q.MOVWto(q.word, q.scales.Post(4))
	q.Const(0x7F, q.word)
	q.Copy(q.n, q.rest)
	q.steps(q.rest, 1, func() { q.MOVBto(q.word, q.codes.Post(1)) })
	q.ADD(q.n.Shl(2), q.x, q.x)
}

// encode writes the codes of a group. They have the signs of its values.
func (q *quantWriter) encode() {
	q.Copy(q.n, q.rest)
	q.pieces(q.rest, func(lanes int) {
		x := vectorsFor(q.values, lanes)
		v, e := q.work[:len(x)], q.work[4:4+len(x)]
		q.loadLanes(q.x.Post(4*lanes), x, lanes)
		for i := range x {
			q.VFMUL(q.by.S(0), x[i].S4(), v[i].S4())
		}
		q.e.clamp(v, v)
		code, signs := q.e.magnitudes(v, e), q.topBytes(x, x)
		q.VBIT(q.e.sign.B16(), signs.B16(), code.B16())
		q.storeBytes(code, lanes, q.codes)
	})
}
