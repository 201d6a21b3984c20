package workshop

// rounderNEON rounds float32 to bf16, to nearest even, in the upper halves of words. NaN, of which a sum would make
// anything, is cut. What is below a bound becomes +0.
type rounderNEON struct {
	*A
	one, half, below Vec
	quiet            *Vec // nil where every NaN is quiet already
}

// newRounder takes and fills the constants for a bound.
func (a *A) newRounder(least uint32, quiets bool) *rounderNEON {
	scratch := a.GP("scratch")
	r := &rounderNEON{A: a, one: a.words(1, scratch), half: a.words(0x7FFF, scratch), below: a.words(least-1, scratch)}
	if quiets {
		quiet := a.words(0x00400000, scratch)
		r.quiet = &quiet
	}
	a.Free(scratch)
	return r
}

// act rounds activations, which are held to the bound before. The lower halves are left with anything. t and mask are
// scratch, as many as there are values.
func (r *rounderNEON) act(vs, t, mask []Vec) {
	r.round(vs, t)
	for i, v := range vs {
		r.VFABS(v.S4(), mask[i].S4())
	}
	for i := range vs {
		r.VCMGT(r.below.S4(), mask[i].S4(), mask[i].S4())
	}
	for i := range vs {
		r.VAND(mask[i].B16(), t[i].B16(), t[i].B16())
	}
	r.choose(vs, t, mask)
}

// value rounds stored values, which are held to the bound after.
func (r *rounderNEON) value(vs, t, mask []Vec) {
	r.round(vs, t)
	r.choose(vs, t, mask)
	for i, v := range vs {
		r.VFABS(v.S4(), mask[i].S4())
	}
	for i := range vs {
		r.VCMGT(r.below.S4(), mask[i].S4(), mask[i].S4())
	}
	for i, v := range vs {
		r.VAND(mask[i].B16(), v.B16(), v.B16())
	}
}

// round adds half of what is cut off, less one where the rest is even.
func (r *rounderNEON) round(vs, t []Vec) {
	for i, v := range vs {
		r.VUSHR(16, v.S4(), t[i].S4())
	}
	for i := range vs {
		r.VAND(r.one.B16(), t[i].B16(), t[i].B16())
	}
	for i, v := range vs {
		r.VADD(v.S4(), t[i].S4(), t[i].S4())
	}
	for i := range vs {
		r.VADD(r.half.S4(), t[i].S4(), t[i].S4())
	}
}

// choose takes what is rounded for numbers.
func (r *rounderNEON) choose(vs, t, mask []Vec) {
	for i, v := range vs {
		r.VFCMEQ(v.S4(), v.S4(), mask[i].S4())
		if r.quiet != nil {
			r.VORR(r.quiet.B16(), v.B16(), v.B16())
		}
	}
	for i, v := range vs {
		r.VBIT(mask[i].B16(), t[i].B16(), v.B16())
	}
}

// narrowActBF16NEON is narrowBF16NEON with +0 for what is below 2^-60.
//
//	computes   dst[i] = src[i] rounded to bfloat16, to nearest even, +0 below 2^-60
//	registers  dst, src, left; 4 constants, 4 vectors of rounded values, 4 of masks, 4 of values
//	reads      src, by 16 values, 4 and 1
//	order      from the front
//	limits     the vector units, 10.5 steps for 4 values
func narrowActBF16NEON(a *A) { narrowPairsNEON(a, leastAct, (*rounderNEON).act) }

// narrowValueBF16NEON is narrowBF16NEON with +0 for results below 2^-52.
//
//	computes   dst[i] = src[i] rounded to bfloat16, to nearest even, +0 where that is below 2^-52
//	registers  as narrowActBF16NEON
//	reads      as narrowActBF16NEON
//	order      from the front
//	limits     as narrowActBF16NEON
func narrowValueBF16NEON(a *A) { narrowPairsNEON(a, leastValue, (*rounderNEON).value) }

func narrowPairsNEON(a *A, least uint32, round func(r *rounderNEON, vs, t, mask []Vec)) {
	r, t, mask := a.newRounder(least, true), a.Vecs("rounded", 4), a.Vecs("masks", 4)
	narrowNEON(a, 2, func(src []Vec) []Vec {
		round(r, src, t, mask)
		return a.halvesOf(a.VUZP2, src, src)
	})
}

// flusherNEON makes +0 of bf16 values below 2^-52.
type flusherNEON struct {
	*A
	magnitude, below Vec
}

func (a *A) newFlusher() *flusherNEON {
	scratch := a.GP("scratch")
	f := &flusherNEON{A: a, magnitude: a.halves(0x7FFF, scratch), below: a.halves(leastWord-1, scratch)}
	a.Free(scratch)
	return f
}

// flush does so in vectors. masks are left with the magnitudes that are large enough as ones.
func (f *flusherNEON) flush(vs, masks []Vec) {
	for i, v := range vs {
		f.VAND(f.magnitude.B16(), v.B16(), masks[i].B16())
	}
	for i := range vs {
		f.VCMGT(f.below.H8(), masks[i].H8(), masks[i].H8())
	}
	for i, v := range vs {
		f.VAND(masks[i].B16(), v.B16(), v.B16())
	}
}

// loadHalves loads 16, 8 or 1 values of 16 bits and moves on; what else is in the registers becomes zero.
func (a *A) loadHalves(from GP, vs []Vec, lanes int, one GP) {
	switch lanes {
	case 16:
		a.FLDPQ(from.Post(32), vs[0], vs[1])
	case 8:
		a.FMOVQ(from.Post(16), vs[0])
	default:
		a.MOVHU(from.Post(2), one)
		a.FMOVSvec(one, vs[0])
	}
}

// flushBF16NEON copies values, but for those below 2^-52.
//
//	computes   dst[i] = src[i], +0 below 2^-52
//	registers  dst, src, left, one; 2 constants, 2 vectors of values, 2 masks
//	reads      src, by 16 values, 8 and 1
//	order      from the front: dst may be src
//	limits     none
func flushBF16NEON(a *A) {
	dst, src, left, one := a.Base("dst"), a.Base("src"), a.Len("src"), a.GP("one")
	f, vs, masks := a.newFlusher(), a.Vecs("values", 2), a.Vecs("masks", 2)
	for _, lanes := range []int{16, 8, 1} {
		a.steps(left, lanes, func() {
			a.loadHalves(src, vs, lanes, one)
			f.flush(vs[:(lanes+15)/16+lanes/16], masks)
			switch lanes {
			case 16:
				a.FSTPQ(vs[0], vs[1], dst.Post(32))
			case 8:
				a.FMOVQto(vs[0], dst.Post(16))
			default:
				a.VST1e(dst.Post(2), vs[0].H(0))
			}
		})
	}
	a.Done()
}

// tinyFinderNEON looks for the least magnitude, less one: that of zero is the largest then.
type tinyFinderNEON struct {
	*A
	magnitude, ones, least Vec
}

func (a *A) newTinyFinder(magnitude Vec) *tinyFinderNEON {
	f := &tinyFinderNEON{A: a, magnitude: magnitude, ones: a.Vec("ones"), least: a.Vec("least")}
	a.VCMEQ(f.ones.B16(), f.ones.B16(), f.ones.B16())
	a.VMOV(f.ones.B16(), f.least.B16())
	return f
}

// look looks at a vector, by way of work.
func (f *tinyFinderNEON) look(v, work Vec) {
	f.VAND(f.magnitude.B16(), v.B16(), work.B16())
	f.VADD(f.ones.H8(), work.H8(), work.H8())
	f.VUMIN(work.H8(), f.least.H8(), f.least.H8())
}

// result tells whether a value was seen that is below 2^-52 and not zero.
func (f *tinyFinderNEON) result(scratch GP) {
	f.VUMINV(f.least.H8(), f.least)
	f.FMOVSgp(f.least, scratch)
	f.ADD(Imm(1), scratch, scratch) // 2^16 if there is none
	f.LSR(Imm(7), scratch, scratch)
	f.CMP(Imm(leastWord>>7), scratch)
	f.CSET("LO", scratch)
	f.Result(scratch)
	f.Done()
}

// tinyBF16NEON looks for the least magnitude, less one.
//
//	computes   whether a value is below 2^-52 and not zero
//	registers  src, its stride, rows, left, from, one; the least, 2 constants, 2 vectors of values, work
//	reads      src, by 16 values, 8 and 1 of a row
//	order      row by row, from the front
//	limits     none
func tinyBF16NEON(a *A) {
	src, lds, rows, left, from, one := a.Base("src"), a.Arg("lds"), a.Arg("rows"), a.GP("left"), a.GP("from"), a.GP("one")
	a.LSL(Imm(1), lds, lds)
	magnitude := a.halves(0x7FFF, one)
	f, vs, work := a.newTinyFinder(magnitude), a.Vecs("values", 2), a.Vec("work")
	a.steps(rows, 1, func() {
		a.Copy(src, from)
		a.Reload("cols", left)
		for _, lanes := range []int{16, 8, 1} {
			a.steps(left, lanes, func() {
				a.loadHalves(from, vs, lanes, one)
				for _, v := range vs[:(lanes+15)/16+lanes/16] {
					f.look(v, work)
				}
			})
		}
		a.ADD(lds, src, src)
	})
	f.result(one)
}

// pairsOfCodes makes bf16 of E4M3 codes by their bytes. The upper byte is the sign, and 3C more than the upper half of
// the magnitude; the lower one is its lower half. The sixteen least, half of which are subnormal, come from tables. Upper
// bytes are kept twice as large until the sign goes above them.
type pairsOfCodes struct {
	*A
	magnitude, offset    Vec
	lowTable, upperTable Vec
}

func (a *A) newPairsOfCodes(scratch GP) *pairsOfCodes {
	var low, upper [4]uint32
	for code, bits := range [16]uint32{0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60, 0x3C80, 0x3C90, 0x3CA0, 0x3CB0, 0x3CC0, 0x3CD0, 0x3CE0, 0x3CF0} {
		low[code/4] |= bits & 0xFF << (code % 4 * 8)
		upper[code/4] |= bits >> 8 * 2 << (code % 4 * 8)
	}
	d := &pairsOfCodes{A: a, magnitude: a.octetsOf(0x7F, scratch), offset: a.octetsOf(2*0x3C, scratch), lowTable: a.Vec("low"), upperTable: a.Vec("upper")}
	a.Table("pairsofcodes", append(low[:], upper[:]...), scratch)
	a.FLDPQ(scratch.At(0), d.lowTable, d.upperTable)
	return d
}

// bytes leaves the lower bytes of the values of 16 codes in low and the upper ones in codes. m becomes the magnitudes of
// the codes; upper is scratch.
func (d *pairsOfCodes) bytes(codes, m, low, upper Vec) {
	d.VAND(d.magnitude.B16(), codes.B16(), m.B16())
	d.VSHL(4, codes.B16(), low.B16())
	d.VUSHR(3, m.B16(), upper.B16())
	d.VTBX(m.B16(), []Vec{d.lowTable}, low.B16())
	d.VADD(d.offset.B16(), upper.B16(), upper.B16())
	d.VTBX(m.B16(), []Vec{d.upperTable}, upper.B16())
	d.VSRI(1, upper.B16(), codes.B16())
}

// widenE4M3PairsNEON is pairsOfCodes, and NaN for the largest magnitude.
//
//	computes   dst = codes of words in bf16, by pairs
//	registers  dst, codes, left; 5 constants, codes, magnitudes, lower and upper bytes, where NaN are
//	reads      codes, the words of four outputs at once
//	order      from the front
//	limits     whole panels of words
func widenE4M3PairsNEON(a *A) {
	dst, from, left, scratch := a.Base("dst"), a.Base("codes"), a.Len("codes"), a.GP("scratch")
	d, nan := a.newPairsOfCodes(scratch), a.octetsOf(0xC0, scratch)
	codes, m, low, upper, nans := a.Vec("codes"), a.Vec("magnitudes"), a.Vec("low"), a.Vec("upper"), a.Vec("nans")
	a.steps(left, 64, func() {
		for w := range 4 {
			a.FMOVQ(from.At(16*w), codes)
			d.bytes(codes, m, low, upper)
			a.VCMEQ(d.magnitude.B16(), m.B16(), nans.B16())
			a.VBIT(nans.B16(), nan.B16(), low.B16())
			a.VBIT(nans.B16(), m.B16(), codes.B16())
			a.VTRN1(codes.B16(), low.B16(), m.B16())
			a.VTRN2(codes.B16(), low.B16(), low.B16())
			a.VTRN1(low.H8(), m.H8(), upper.H8())
			a.VTRN2(low.H8(), m.H8(), codes.H8())
			a.FMOVQto(upper, dst.At(16*w))
			a.FMOVQto(codes, dst.At(64+16*w))
		}
		a.ADD(Imm(64), from, from)
		a.ADD(Imm(128), dst, dst)
	})
	a.Done()
}
