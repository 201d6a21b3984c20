package workshop

import "fmt"

// eight widens 8 codes to two vectors. The codes are a half of a register of bytes, or a register of 16-bit lanes.
type eight func(codes View, lo, hi Vec)

// widenNEON widens all codes of src, which have size bytes each.
func widenNEON(a *A, size int, to eight) {
	dst, src, left := a.Base("dst"), a.Base("src"), a.Len("src")
	a.widenValues(size, dst, src, left, to)
	a.Done()
}

// widenValues widens left codes of src and moves dst and src past them.
func (a *A) widenValues(size int, dst, src, left GP, to eight) {
	codes, wide := a.Vecs("codes", size), a.Vecs("wide", 4)
	a.steps(left, 16, func() {
		if size == 1 {
			a.VLD1(src.Post(16), codes[0].B16())
			to(codes[0].B8(), wide[0], wide[1])
			to(codes[0].B16(), wide[2], wide[3])
		} else {
			a.VLD1(src.Post(32), codes[0].H8(), codes[1].H8())
			to(codes[0].H8(), wide[0], wide[1])
			to(codes[1].H8(), wide[2], wide[3])
		}
		a.VST1(dst.Post(64), wide[0].S4(), wide[1].S4(), wide[2].S4(), wide[3].S4())
	})
	one := a.GP("one")
	a.steps(left, 1, func() {
		if size == 1 {
			a.MOVBU(src.Post(1), one)
			a.VDUP(one, codes[0].B8())
			to(codes[0].B8(), wide[0], wide[1])
		} else {
			a.MOVHU(src.Post(2), one)
			a.VDUP(one, codes[0].H8())
			to(codes[0].H8(), wide[0], wide[1])
		}
		a.FMOVSto(wide[0], dst.Post(4))
	})
	a.Free(one)
	a.FreeVecs(codes...)
	a.FreeVecs(wide...)
}

// halves fills a new vector with a 16-bit constant, words with a 32-bit one.
func (a *A) halves(c uint16, scratch GP) Vec {
	v := a.Vec(fmt.Sprintf("%#04x", c))
	a.Const(int64(c), scratch)
	a.VDUP(scratch, v.H8())
	return v
}

func (a *A) words(c uint32, scratch GP) Vec {
	v := a.Vec(fmt.Sprintf("%#08x", c))
	a.Splat(c, scratch, v)
	return v
}

// widenBF16NEON moves each value to the upper half of a float32: SHLL by the 16 bits of a narrow lane.
//
//	computes   dst[i] = src[i] << 16
//	registers  dst, src, left and one for a value; codes, then values
//	reads      src, 16 values at once, then one by one
//	order      from the front
//	limits     none
func widenBF16NEON(a *A) {
	widenNEON(a, 2, func(codes View, lo, hi Vec) {
		a.VSHLL(16, codes.lower(), lo.S4())
		a.VSHLL(16, codes, hi.S4())
	})
}

// widenF16NEON has an instruction for it: a NaN keeps its payload and becomes quiet.
//
//	computes   dst[i] = F16ToF32(src[i])
//	registers  as widenBF16NEON
//	reads      as widenBF16NEON
//	order      as widenBF16NEON
//	limits     none
func widenF16NEON(a *A) {
	widenNEON(a, 2, func(codes View, lo, hi Vec) {
		a.VFCVTL(codes.lower(), lo.S4())
		a.VFCVTL(codes, hi.S4())
	})
}

// widenE4M3NEON makes an f16 of a code: its exponent has the place of the lower four bits of the f16's, which makes the
// value 2^8 times too small, or 2^7 for the bias of FNUZ.
//
//	computes   dst[i] = E4M3ToF32(src[i])
//	registers  dst, src, left and one for a value; constants, codes, then values
//	reads      src, 16 codes at once, then one by one
//	order      from the front
//	limits     none
func widenE4M3NEON(a *A) { widenNEON(a, 1, a.eightE4M3()) }

// eightE4M3 widens E4M3 codes.
func (a *A) eightE4M3() eight {
	h, half := a.halfE4M3()
	scratch := a.GP("scratch")
	by := a.words(0x43800000, scratch) // 2^8
	a.Free(scratch)
	return func(codes View, lo, hi Vec) {
		half(codes)
		a.widenScaled(h, by, lo, hi)
	}
}

// halfE4M3 makes f16 of 8 E4M3 codes in h, 2^8 times too small.
func (a *A) halfE4M3() (h Vec, half func(codes View)) {
	scratch, h, nans := a.GP("scratch"), a.Vec("h"), a.Vec("nans")
	code, sign, top, nan := a.halves(0xBF80, scratch), a.halves(0x8000, scratch), a.halves(0x3F80, scratch), a.halves(0x7E00, scratch)
	a.Free(scratch)
	return h, func(codes View) {
		a.VSSHLL(7, codes, h.H8())
		a.VAND(code.B16(), h.B16(), h.B16())
		a.VBIC(sign.B16(), h.B16(), nans.B16())
		a.VCMEQ(top.H8(), nans.H8(), nans.H8())
		a.VBIT(nans.B16(), nan.B16(), h.B16())
	}
}

// widenScaled makes f32 of f16 times a factor.
func (a *A) widenScaled(h, by, lo, hi Vec) {
	a.VFCVTL(h.H4(), lo.S4())
	a.VFCVTL(h.H8(), hi.S4())
	a.VFMUL(by.S4(), lo.S4(), lo.S4())
	a.VFMUL(by.S4(), hi.S4(), hi.S4())
}

// widenE4M3ScaledNEON multiplies by a scale.
//
//	computes   dst[i] = E4M3ToF32(src[i]) * scale, rounded once: the product before it is exact
//	registers  as widenE4M3NEON, and scale
//	reads      as widenE4M3NEON
//	order      as widenE4M3NEON
//	limits     none
func widenE4M3ScaledNEON(a *A) {
	scale, to := a.ArgF("scale"), a.eightE4M3()
	widenNEON(a, 1, func(codes View, lo, hi Vec) {
		to(codes, lo, hi)
		a.VFMUL(scale.S(0), lo.S4(), lo.S4())
		a.VFMUL(scale.S(0), hi.S4(), hi.S4())
	})
}

// widenE4M3FNUZNEON is widenE4M3NEON with the bias and the NaN of FNUZ, which has the place of -0.
//
//	computes   dst[i] = E4M3FNUZToF32(src[i])
//	registers  as widenE4M3NEON
//	reads      as widenE4M3NEON
//	order      as widenE4M3NEON
//	limits     none
func widenE4M3FNUZNEON(a *A) {
	scratch, h, nans := a.GP("scratch"), a.Vec("h"), a.Vec("nans")
	code, minus0, nan := a.halves(0xBF80, scratch), a.halves(0x8000, scratch), a.halves(0x7E00, scratch)
	by := a.words(0x43000000, scratch) // 2^7
	a.Free(scratch)
	widenNEON(a, 1, func(codes View, lo, hi Vec) {
		a.VSSHLL(7, codes, h.H8())
		a.VAND(code.B16(), h.B16(), h.B16())
		a.VCMEQ(minus0.H8(), h.H8(), nans.H8())
		a.VBIT(nans.B16(), nan.B16(), h.B16())
		a.widenScaled(h, by, lo, hi)
	})
}

// widenE5M2NEON makes an f16 of a code, whose upper byte it is.
//
//	computes   dst[i] = E5M2ToF32(src[i])
//	registers  as widenE4M3NEON
//	reads      as widenE4M3NEON
//	order      as widenE4M3NEON
//	limits     none
func widenE5M2NEON(a *A) {
	scratch, h, nans := a.GP("scratch"), a.Vec("h"), a.Vec("nans")
	sign, inf, nan := a.halves(0x8000, scratch), a.halves(0x7C00, scratch), a.halves(0x7E00, scratch)
	a.Free(scratch)
	widenNEON(a, 1, func(codes View, lo, hi Vec) {
		a.VSHLL(8, codes, h.H8())
		a.VBIC(sign.B16(), h.B16(), nans.B16())
		a.VCMGT(inf.H8(), nans.H8(), nans.H8())
		a.VBIT(nans.B16(), nan.B16(), h.B16())
		a.VFCVTL(h.H4(), lo.S4())
		a.VFCVTL(h.H8(), hi.S4())
	})
}

// widenE5M2FNUZNEON makes an f32 of a code: its largest exponent is a number, which f16 has not. The five bits have the
// place of the lower bits of the f32's exponent, which makes the value 2^111 times too small, a subnormal for some.
//
//	computes   dst[i] = E5M2FNUZToF32(src[i])
//	registers  as widenE4M3NEON
//	reads      as widenE4M3NEON
//	order      as widenE4M3NEON
//	limits     none
func widenE5M2FNUZNEON(a *A) {
	scratch, h, nans := a.GP("scratch"), a.Vec("h"), a.Vec("nans")
	code, minus0, nan := a.words(0x8FE00000, scratch), a.words(0x80000000, scratch), a.words(0x7FC00000, scratch)
	by := a.words((127+111)<<23, scratch)
	a.Free(scratch)
	widenNEON(a, 1, func(codes View, lo, hi Vec) {
		a.VSHLL(8, codes, h.H8())
		a.VSHLL(16, h.H4(), lo.S4())
		a.VSHLL(16, h.H8(), hi.S4())
		for _, v := range []Vec{lo, hi} {
			a.VSSHR(3, v.S4(), v.S4())
			a.VAND(code.B16(), v.B16(), v.B16())
			a.VCMEQ(minus0.S4(), v.S4(), nans.S4())
			a.VFMUL(by.S4(), v.S4(), v.S4())
			a.VBIT(nans.B16(), nan.B16(), v.B16())
		}
	})
}
