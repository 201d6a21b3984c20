package workshop

import "math"

// doubles fills a vector with a float64, by way of scratch, doubleBits with the bits of one.
func (a *A) doubles(x float64, scratch GP, v Vec) { a.doubleBits(math.Float64bits(x), scratch, v) }

func (a *A) doubleBits(bits uint64, scratch GP, v Vec) {
	a.Const(int64(bits), scratch)
	a.VDUP(scratch, v.D2())
}

// logRegsNEON are the registers of log for two values.
type logRegsNEON struct{ m, n, f, z, s, t Vec }

// log is y = ref.Log(x) of the lower two values or, in two halves, of all four, in float64 with its roundings.
func (a *A) log(halves int, x, y Vec) {
	k, scratch := a.Vec("k"), a.GP("scratch")
	var hs []logRegsNEON
	for range halves {
		hs = append(hs, logRegsNEON{a.Vec("m"), a.Vec("n"), a.Vec("f"), a.Vec("z"), a.Vec("s"), a.Vec("t")})
	}
	step := func(write func(h logRegsNEON)) {
		for _, h := range hs {
			write(h)
		}
	}
	number := func(c float64) { a.doubles(c, scratch, k) }

	a.VFCVTLd(x.S2(), hs[0].m.D2())
	if halves > 1 {
		a.VFCVTLd(x.S4(), hs[1].m.D2())
	}
	a.doubleBits(0x7FF<<52, scratch, k)
	step(func(h logRegsNEON) { a.VAND(k.B16(), h.m.B16(), h.n.B16()) })
	step(func(h logRegsNEON) { a.VSCVTF(h.n.D2(), h.n.D2()) }) // the exponent times 2^52, exact
	number(0x1p-52)
	step(func(h logRegsNEON) { a.VFMUL(k.D2(), h.n.D2(), h.n.D2()) })
	number(1023)
	step(func(h logRegsNEON) { a.VFSUB(k.D2(), h.n.D2(), h.n.D2()) })
	a.doubleBits(1<<52-1, scratch, k)
	step(func(h logRegsNEON) { a.VAND(k.B16(), h.m.B16(), h.m.B16()) })
	number(1)
	step(func(h logRegsNEON) { a.VORR(k.B16(), h.m.B16(), h.m.B16()) })
	number(math.Sqrt2)
	step(func(h logRegsNEON) { a.VFCMGE(k.D2(), h.m.D2(), h.f.D2()) })
	number(0.5)
	step(func(h logRegsNEON) { a.VFMUL(k.D2(), h.m.D2(), h.t.D2()) })
	step(func(h logRegsNEON) { a.VBIT(h.f.B16(), h.t.B16(), h.m.B16()) })
	number(1)
	step(func(h logRegsNEON) { a.VAND(k.B16(), h.f.B16(), h.t.B16()) })
	step(func(h logRegsNEON) { a.VFADD(h.t.D2(), h.n.D2(), h.n.D2()) })

	step(func(h logRegsNEON) { a.VFSUB(k.D2(), h.m.D2(), h.f.D2()) })
	step(func(h logRegsNEON) { a.VFADD(k.D2(), h.m.D2(), h.t.D2()) })
	step(func(h logRegsNEON) { a.VFDIV(h.t.D2(), h.f.D2(), h.f.D2()) })
	step(func(h logRegsNEON) { a.VFMUL(h.f.D2(), h.f.D2(), h.z.D2()) })
	number(atanh[0])
	step(func(h logRegsNEON) { a.VMOV(k.B16(), h.s.B16()) })
	for _, c := range atanh[1:] {
		number(c)
		step(func(h logRegsNEON) { a.VFMUL(h.z.D2(), h.s.D2(), h.s.D2()) })
		step(func(h logRegsNEON) { a.VFADD(k.D2(), h.s.D2(), h.s.D2()) })
	}
	step(func(h logRegsNEON) { a.VFMUL(h.z.D2(), h.s.D2(), h.s.D2()) })
	step(func(h logRegsNEON) { a.VFADD(h.f.D2(), h.f.D2(), h.f.D2()) })
	step(func(h logRegsNEON) { a.VFMUL(h.f.D2(), h.s.D2(), h.s.D2()) })
	number(ln2Lo)
	step(func(h logRegsNEON) { a.VFMUL(k.D2(), h.n.D2(), h.t.D2()) })
	step(func(h logRegsNEON) { a.VFADD(h.t.D2(), h.s.D2(), h.s.D2()) })
	step(func(h logRegsNEON) { a.VFADD(h.s.D2(), h.f.D2(), h.f.D2()) })
	number(ln2Hi)
	step(func(h logRegsNEON) { a.VFMUL(k.D2(), h.n.D2(), h.n.D2()) })
	step(func(h logRegsNEON) { a.VFADD(h.f.D2(), h.n.D2(), h.n.D2()) })
	a.VFCVTNd(hs[0].n.D2(), y.S2())
	if halves > 1 {
		a.VFCVTNd(hs[1].n.D2(), y.S4())
	}
	for _, h := range hs {
		a.FreeVecs(h.m, h.n, h.f, h.z, h.s, h.t)
	}
	a.logEdges(k, scratch, x, y)
	a.Free(k, scratch)
}

// logEdges puts the logarithms of what has no mantissa into y.
func (a *A) logEdges(k Vec, scratch GP, x, y Vec) {
	mask := a.Vec("mask")
	a.Splat(infBits, scratch, k)
	a.VFCMEQ(k.S4(), x.S4(), mask.S4())
	a.VBIT(mask.B16(), k.B16(), y.B16())
	a.Zero(k)
	a.VFCMGE(k.S4(), x.S4(), mask.S4())
	a.VNOT(mask.B16(), mask.B16())
	a.VORR(mask.B16(), y.B16(), y.B16()) // below zero, and NaN
	a.Splat(negInfBits, scratch, k)
	a.VFCMEQ0(x.S4(), mask.S4())
	a.VBIT(mask.B16(), k.B16(), y.B16())
	a.Free(mask)
}
