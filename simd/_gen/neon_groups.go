package workshop

// eachGroup runs body for every group of left values, which may be none, with the group's scale in all lanes of scale.
// body takes as many values as n has, at least one, and may change n.
func (a *A) eachGroup(left GP, scale Vec, body func(n GP)) {
	next, done := a.Fresh("group"), a.Fresh("done")
	scales, group, n := a.Base("scales"), a.Arg("group"), a.GP("n")
	a.CBZ(left, done)
	a.Label(next)
	a.VLD1R(scales.Post(4), scale.S4())
	a.CMP(group, left)
	a.CSEL("LT", left, group, n)
	a.SUB(n, left, left)
	body(n)
	a.CBNZ(left, next)
	a.Label(done)
	a.Free(scales, group, n)
}

// widenE4M3GroupsNEON is widenE4M3ScaledNEON by groups: scales below 2^120 come with the power of two in one factor,
// exactly. Others would overflow and multiply after it.
//
//	computes   dst[i] = E4M3ToF32(src[i]) * scales[i/group], rounded once
//	registers  as widenE4M3NEON, and scales, group, values of the group and bits of a scale; scale, and it times 2^8
//	reads      as widenE4M3NEON, from the front of each group; scales once
//	order      from the front
//	limits     the vector units, if a group is a multiple of 16
func widenE4M3GroupsNEON(a *A) {
	const exponent = 127 + 120 // of the first scale that is not common
	dst, src, left := a.Base("dst"), a.Base("src"), a.Len("src")
	h, half := a.halfE4M3()
	bits := a.GP("bits")
	scale, scaled, power := a.Vec("scale"), a.Vec("scaled"), a.words(0x43800000, bits) // 2^8
	common := func(codes View, lo, hi Vec) {
		half(codes)
		a.widenScaled(h, scaled, lo, hi)
	}
	any := func(codes View, lo, hi Vec) {
		half(codes)
		a.widenScaled(h, power, lo, hi)
		a.VFMUL(scale.S4(), lo.S4(), lo.S4())
		a.VFMUL(scale.S4(), hi.S4(), hi.S4())
	}
	a.eachGroup(left, scale, func(n GP) {
		large, done := a.Fresh("large"), a.Fresh("widened")
		a.FMOVSgp(scale, bits)
		a.LSL(Imm(33), bits, bits)
		a.LSR(Imm(56), bits, bits)
		a.CMP(Imm(exponent), bits)
		a.BHS(large)
		a.VFMUL(power.S4(), scale.S4(), scaled.S4())
		a.widenValues(1, dst, src, n, common)
		a.B(done)
		a.Label(large)
		a.widenValues(1, dst, src, n, any)
		a.Label(done)
	})
	a.Done()
}

// widenE2M1GroupsNEON looks codes up among the upper bytes of the f16 that have their values: the lower ones are zero.
// Where a group begins within a byte, and past its vectors, it goes value by value.
//
//	computes   dst[i] = E2M1ToF32(src[i/2] >> (i%2*4)) * scales[i/group], rounded once
//	registers  dst, src, left, scales, group, values of the group, one for a byte and how far the next code is shifted in
//	           it; the upper bytes, a mask, scale; codes, f16, then values
//	reads      src, 8 bytes at once, then a byte for each value; scales once
//	order      from the front
//	limits     the vector units, if a group is a multiple of 16
func widenE2M1GroupsNEON(a *A) {
	dst, src, left := a.Base("dst"), a.Base("src"), a.Len("src")
	one, shift := a.GP("one"), a.GP("shift")
	tops, low, scale := a.Vecs("tops", 1), a.Vec("low"), a.Vec("scale")
	codes, second, h, wide := a.Vec("codes"), a.Vec("second"), a.Vec("h"), a.Vecs("wide", 4)
	a.LSL(Imm(1), left, left)
	// 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, the first in the lowest byte.
	a.Table("e2m1", []uint32{0x3E3C3800, 0x46444240, 0xBEBCB880, 0xC6C4C2C0}, one)
	a.VLD1(one.At(0), tops[0].B16())
	a.Const(15, one)
	a.VDUP(one, low.B16())
	a.Const(0, shift)
	a.eachGroup(left, scale, func(n GP) {
		single := a.Fresh("single")
		a.CBNZ(shift, single)
		a.steps(n, 16, func() {
			a.VLD1(src.Post(8), codes.B8())
			a.VUSHR(4, codes.B8(), second.B8())
			a.VAND(low.B8(), codes.B8(), codes.B8())
			a.VZIP1(second.B16(), codes.B16(), codes.B16())
			a.VTBL(codes.B16(), tops, codes.B16())
			for i, half := range []View{codes.B8(), codes.B16()} {
				a.VSHLL(8, half, h.H8())
				a.widenScaled(h, scale, wide[2*i], wide[2*i+1])
			}
			a.VST1(dst.Post(64), wide[0].S4(), wide[1].S4(), wide[2].S4(), wide[3].S4())
		})
		a.Label(single)
		a.steps(n, 1, func() {
			a.MOVBU(src.At(0), one)
			a.LSR(shift, one, one)
			a.AND(Imm(15), one, one)
			a.VDUP(one, codes.B8())
			a.VTBL(codes.B8(), tops, codes.B8())
			a.VSHLL(8, codes.B8(), h.H8())
			a.VFCVTL(h.H4(), wide[0].S4())
			a.VFMUL(scale.S4(), wide[0].S4(), wide[0].S4())
			a.FMOVSto(wide[0], dst.Post(4))
			a.ADD(shift.Shr(2), src, src) // past the byte, if the code was its second
			a.EOR(Imm(4), shift, shift)
		})
	})
	a.Done()
}
