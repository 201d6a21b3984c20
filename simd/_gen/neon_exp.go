package workshop

// expConstsNEON is where the constants of exp are. The factors of its fma are elements of one vector, and each step of
// the polynomial begins as a term that is duplicated from another: that costs no more than a copy of a whole vector.
type expConstsNEON struct {
	lo, hi, magic, one Vec // hi for expAny only
	factors            Vec // log2e, -ln 2 in two parts, c6
	terms              Vec // c5 to c2
}

// loadExp loads the constants of exp for a domain; those for expNormal serve expLow as well, but for the magic.
func (a *A) loadExp(domain expDomain) (c expConstsNEON) {
	r := a.GP("exp")
	a.Table("exp", []uint32{expLog2E, expNLn2Hi, expNLn2Lo, expC6, expC5, expC4, expC3, expC2}, r)
	c.factors, c.terms = a.Vec("factors"), a.Vec("terms")
	a.FLDPQ(r.At(0), c.factors, c.terms)
	c.lo, c.magic, c.one = a.words(expLo, r), a.words(expMagic, r), a.words(oneBits, r)
	if domain == expAny {
		c.hi = a.words(expHi, r)
	}
	a.Free(r)
	return c
}

// expRegsNEON are the registers of one exp: x comes in, y goes out, and all are overwritten.
type expRegsNEON struct {
	x, t, n, r, y, z Vec
}

// expRegs takes the registers of n exps, freeExps gives them back.
func (a *A) expRegs(n int) (es []expRegsNEON) {
	for range n {
		es = append(es, expRegsNEON{a.Vec("x"), a.Vec("t"), a.Vec("n"), a.Vec("r"), a.Vec("y"), a.Vec("z")})
	}
	return es
}

func (a *A) freeExps(es ...expRegsNEON) {
	for _, e := range es {
		a.FreeVecs(e.x, e.t, e.n, e.r, e.y, e.z)
	}
}

// exp writes exp of several vectors, step by step side by side: y = exp(x). It is ref.Exp. FMAX and FMIN let a NaN
// through.
func (a *A) exp(c expConstsNEON, domain expDomain, es ...expRegsNEON) {
	step := func(write func(e expRegsNEON)) {
		for _, e := range es {
			write(e)
		}
	}
	log2e, nln2hi, nln2lo, c6 := c.factors.S(0), c.factors.S(1), c.factors.S(2), c.factors.S(3)
	if domain != expNormal {
		step(func(e expRegsNEON) { a.VFMAX(c.lo.S4(), e.x.S4(), e.x.S4()) })
	}
	if domain == expAny {
		step(func(e expRegsNEON) { a.VFMIN(c.hi.S4(), e.x.S4(), e.x.S4()) })
	}
	step(func(e expRegsNEON) { a.VMOV(c.magic.B16(), e.t.B16()) })
	step(func(e expRegsNEON) { a.VFMLA(log2e, e.x.S4(), e.t.S4()) })
	step(func(e expRegsNEON) { a.VFSUB(c.magic.S4(), e.t.S4(), e.n.S4()) })
	step(func(e expRegsNEON) { a.VFMLA(nln2hi, e.n.S4(), e.x.S4()) }) // r1
	step(func(e expRegsNEON) { a.VMOV(e.x.B16(), e.r.B16()) })
	step(func(e expRegsNEON) { a.VFMLA(nln2lo, e.n.S4(), e.r.S4()) })
	step(func(e expRegsNEON) { a.VDUPe(c.terms.S(0), e.y.S4()) })
	step(func(e expRegsNEON) { a.VFMLA(c6, e.r.S4(), e.y.S4()) })
	step(func(e expRegsNEON) { a.VDUPe(c.terms.S(1), e.z.S4()) })
	step(func(e expRegsNEON) { a.VFMLA(e.y.S4(), e.r.S4(), e.z.S4()) })
	step(func(e expRegsNEON) { a.VDUPe(c.terms.S(2), e.y.S4()) })
	step(func(e expRegsNEON) { a.VFMLA(e.z.S4(), e.r.S4(), e.y.S4()) })
	step(func(e expRegsNEON) { a.VDUPe(c.terms.S(3), e.z.S4()) })
	step(func(e expRegsNEON) { a.VFMLA(e.y.S4(), e.r.S4(), e.z.S4()) }) // q
	step(func(e expRegsNEON) { a.VFMUL(e.r.S4(), e.r.S4(), e.r.S4()) }) // z
	step(func(e expRegsNEON) { a.VFMUL(e.r.S4(), e.z.S4(), e.y.S4()) }) // v
	step(func(e expRegsNEON) { a.VFMLA(nln2lo, e.n.S4(), e.y.S4()) })   // w
	step(func(e expRegsNEON) { a.VFADD(e.y.S4(), e.x.S4(), e.y.S4()) }) // s
	step(func(e expRegsNEON) { a.VFADD(c.one.S4(), e.y.S4(), e.y.S4()) })
	if domain == expNormal { // p's exponent is far from its ends
		step(func(e expRegsNEON) { a.VSHL(23, e.t.S4(), e.t.S4()) })
		step(func(e expRegsNEON) { a.VADD(e.t.S4(), e.y.S4(), e.y.S4()) })
		return
	}
	step(func(e expRegsNEON) { a.VUSHR(1, e.t.S4(), e.r.S4()) }) // h
	step(func(e expRegsNEON) { a.VSUB(e.r.S4(), e.t.S4(), e.t.S4()) })
	step(func(e expRegsNEON) { a.VSHL(23, e.r.S4(), e.r.S4()) })
	step(func(e expRegsNEON) { a.VSHL(23, e.t.S4(), e.t.S4()) })
	step(func(e expRegsNEON) { a.VFMUL(e.r.S4(), e.y.S4(), e.y.S4()) })
	step(func(e expRegsNEON) { a.VFMUL(e.t.S4(), e.y.S4(), e.y.S4()) })
}
