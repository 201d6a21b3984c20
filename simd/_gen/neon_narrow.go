package workshop

// narrowNEON narrows all of src: pack makes values of size bytes of some vectors, in the first of those that it returns.
func narrowNEON(a *A, size int, pack func(src []Vec) []Vec) {
	dst, src, left := a.Base("dst"), a.Base("src"), a.Len("src")
	values := a.Vecs("src", 4)
	a.pieces(left, func(lanes int) {
		vs := vectorsFor(values, lanes)
		a.loadLanes(src.Post(4*lanes), vs, lanes)
		packed := pack(vs)
		if size == 1 {
			a.storeBytes(packed[0], lanes, dst)
		} else {
			a.storeHalves(packed, lanes, dst)
		}
	})
	a.Done()
}

// storeBytes stores the lowest 16, 4 or 1 bytes of a vector and moves on.
func (a *A) storeBytes(v Vec, lanes int, dst GP) {
	switch lanes {
	case 16:
		a.FMOVQto(v, dst.Post(16))
	case 4:
		a.FMOVSto(v, dst.Post(4))
	default:
		a.VST1e(dst.Post(1), v.B(0))
	}
}

// storeHalves stores the lowest 16, 4 or 1 halves of one or two vectors and moves on.
func (a *A) storeHalves(vs []Vec, lanes int, dst GP) {
	switch lanes {
	case 16:
		a.FSTPQ(vs[0], vs[1], dst.Post(32))
	case 4:
		a.FMOVDto(vs[0], dst.Post(8))
	default:
		a.VST1e(dst.Post(2), vs[0].H(0))
	}
}

// narrowBF16NEON adds half of what is cut off, less one where the rest is even. NaN, of which a sum would make anything,
// is cut and made quiet.
//
//	computes   dst[i] = src[i] rounded to bfloat16, to nearest even
//	registers  dst, src, left; 4 vectors of values, 4 of rounded ones, 4 of masks, 3 constants
//	reads      src, by 16 values, 4 and 1
//	order      from the front
//	limits     the vector units, 7.5 steps for 4 values
func narrowBF16NEON(a *A) {
	scratch := a.GP("scratch")
	r := a.newRounding(scratch)
	a.Free(scratch)
	rounded := a.Vecs("rounded", 4)
	narrowNEON(a, 2, func(src []Vec) []Vec { return r.halves(src, rounded) })
}

// rounding rounds float32 to bf16: its constants, and masks of what is a number.
type rounding struct {
	*A
	one, half, quiet Vec
	numbers          []Vec
}

func (a *A) newRounding(scratch GP) rounding {
	return rounding{
		A: a, one: a.words(1, scratch), half: a.words(0x7FFF, scratch), quiet: a.words(0x00400000, scratch),
		numbers: a.Vecs("numbers", 4),
	}
}

func (r rounding) free() { r.FreeVecs(append(r.numbers, r.one, r.half, r.quiet)...) }

// halves rounds the values of src, 4 vectors or one, and joins them in the first half as many of them. It overwrites
// rounded.
func (r rounding) halves(src, rounded []Vec) []Vec {
	for i, v := range src {
		r.VUSHR(16, v.S4(), rounded[i].S4())
		r.VFCMEQ(v.S4(), v.S4(), r.numbers[i].S4())
	}
	for i, v := range src {
		r.VAND(r.one.B16(), rounded[i].B16(), rounded[i].B16())
		r.VADD(r.half.S4(), rounded[i].S4(), rounded[i].S4())
		r.VADD(v.S4(), rounded[i].S4(), rounded[i].S4())
		r.VORR(r.quiet.B16(), v.B16(), v.B16())
	}
	for i, v := range src {
		r.VBIT(r.numbers[i].B16(), rounded[i].B16(), v.B16())
	}
	return r.halvesOf(r.VUZP2, src, src)
}

// narrowF16NEON is the processor's conversion, to nearest even. It keeps the upper bits of a NaN and makes it quiet, like
// the definition.
//
//	computes   dst[i] = src[i] rounded to f16, to nearest even
//	registers  dst, src, left; 4 vectors of values
//	reads      src, by 16 values, 4 and 1
//	order      from the front
//	limits     none
func narrowF16NEON(a *A) {
	narrowNEON(a, 2, func(src []Vec) []Vec {
		a.VFCVTN(src[0].S4(), src[0].H4())
		if len(src) > 1 {
			a.VFCVTN(src[1].S4(), src[0].H8())
			a.VFCVTN(src[2].S4(), src[1].H4())
			a.VFCVTN(src[3].S4(), src[1].H8())
		}
		return src
	})
}

// halvesOf joins the lower halves of the words of vs, by VUZP1, or the upper ones, by VUZP2, in the first of to.
func (a *A) halvesOf(unzip func(m, n, d View), vs, to []Vec) []Vec {
	if len(vs) == 1 {
		unzip(vs[0].H8(), vs[0].H8(), to[0].H8())
		return to
	}
	unzip(vs[1].H8(), vs[0].H8(), to[0].H8())
	unzip(vs[3].H8(), vs[2].H8(), to[1].H8())
	return to
}

// lowBytes and topBytes join these bytes of the words of vs in the first of work, which may be vs.
func (a *A) lowBytes(vs, work []Vec) Vec { return a.bytesOf(a.VUZP1, vs, work) }
func (a *A) topBytes(vs, work []Vec) Vec { return a.bytesOf(a.VUZP2, vs, work) }

func (a *A) bytesOf(unzip func(m, n, d View), vs, work []Vec) Vec {
	to := a.halvesOf(unzip, vs, work)
	unzip(to[min(1, len(vs)-1)].B16(), to[0].B16(), to[0].B16())
	return to[0]
}

// octetsOf fills a new vector with a byte.
func (a *A) octetsOf(c uint8, scratch GP) Vec {
	v := a.Vec("byte")
	a.Const(int64(c), scratch)
	a.VDUP(scratch, v.B16())
	return v
}

// coder makes codes of an 8-bit format. Its constants stay in vectors.
type coder struct {
	*A
	layout8
	largest, exponent, normal, rise Vec // words
	offset, sign                    Vec // bytes
}

func (a *A) newCoder(l layout8, scratch GP) *coder {
	return &coder{
		A: a, layout8: l,
		largest:  a.words(l.largest(), scratch),
		exponent: a.words(infBits, scratch),
		normal:   a.words(power(1-int(l.bias)), scratch),
		rise:     a.words((23-l.mant)<<23, scratch),
		offset:   a.octetsOf(uint8((127+23-l.mant-(l.bias-1))<<l.mant), scratch),
		sign:     a.octetsOf(0x80, scratch),
	}
}

// clamp leaves the magnitudes of x in v, no larger than the largest. A NaN stays one, and quiet.
func (c *coder) clamp(x, v []Vec) {
	for i := range x {
		c.VFABS(x[i].S4(), v[i].S4())
	}
	for i := range v {
		c.VFMIN(c.largest.S4(), v[i].S4(), v[i].S4())
	}
}

// magnitudes makes codes without a sign of what clamp leaves, in the bytes of a vector. NaN becomes anything.
//
// A sum with a power of two so large that it has no digits below those of the format does the rounding: for a normal
// value 2^(23-mant) times the power of two in it, for a smaller one the same as for the smallest normal value. The lowest
// bits of the sum count the value's last digits, and each exponent is 2^mant codes more. All of this is done modulo 256,
// in which the exponent of the sum does not count: its bits are above 2^23.
func (c *coder) magnitudes(v, e []Vec) Vec {
	for i := range v {
		c.VAND(c.exponent.B16(), v[i].B16(), e[i].B16())
	}
	for i := range v {
		c.VUMAX(c.normal.S4(), e[i].S4(), e[i].S4())
	}
	for i := range v {
		c.VADD(c.rise.S4(), e[i].S4(), e[i].S4())
	}
	for i := range v {
		c.VFADD(e[i].S4(), v[i].S4(), v[i].S4())
	}
	for i := range v {
		c.VUSRA(int(23-c.mant), e[i].S4(), v[i].S4())
	}
	code := c.lowBytes(v, v)
	c.VSUB(c.offset.B16(), code.B16(), code.B16())
	return code
}

// narrow8NEON narrows to codes. quotient, nil for none, makes the values that are narrowed, in a vector each; a NaN keeps
// the sign of what they are made of.
func narrow8NEON(a *A, l layout8, quotient func(x, q View)) {
	scratch := a.GP("scratch")
	c := a.newCoder(l, scratch)
	high, nans := a.octetsOf(0x7F, scratch), a.Vec("nans")
	a.Free(scratch)
	work := a.Vecs("work", 8)
	var quotients []Vec
	if quotient != nil {
		quotients = a.Vecs("quotients", 4)
	}
	narrowNEON(a, 1, func(src []Vec) []Vec {
		x := src
		if quotient != nil {
			x = quotients[:len(src)]
			for i := range src {
				quotient(src[i].S4(), x[i].S4())
			}
		}
		v, e := work[:len(src)], work[4:4+len(src)]
		c.clamp(x, v)
		// The upper byte of a quiet NaN is 7F, no number that is left has so much.
		a.VCMEQ(high.B16(), a.topBytes(v, e).B16(), nans.B16())
		code, signs := c.magnitudes(v, e), a.topBytes(x, x)
		if quotient != nil {
			a.VBIT(nans.B16(), a.topBytes(src, src).B16(), signs.B16())
		}
		if l.fnuz {
			c.joinFNUZ(code, signs, nans)
		} else {
			a.VORR(nans.B16(), code.B16(), code.B16())
			a.VBIT(c.sign.B16(), signs.B16(), code.B16())
		}
		return []Vec{code}
	})
}

// joinFNUZ gives codes their signs, but none to zero, whose code with a sign is NaN. signs is left changed.
func (c *coder) joinFNUZ(code, signs, nans Vec) {
	zeros := c.Vec("zeros")
	c.VCMEQ0(code.B16(), zeros.B16())
	c.VAND(c.sign.B16(), signs.B16(), signs.B16())
	c.VBIC(zeros.B16(), signs.B16(), signs.B16())
	c.VORR(signs.B16(), code.B16(), code.B16())
	c.VBIT(nans.B16(), c.sign.B16(), code.B16())
	c.Free(zeros)
}

// narrowE4M3NEON is narrow8NEON.
//
//	computes   dst[i] = the E4M3 code nearest to src[i], to even, saturated; NaN 7F or FF
//	registers  dst, src, left; 4 vectors of values, 8 of work, 1 mask, 7 constants
//	reads      src, by 16 values, 4 and 1
//	order      from the front
//	limits     the vector units, about 10 steps for 4 values
func narrowE4M3NEON(a *A) { narrow8NEON(a, layoutE4M3, nil) }

// narrowE5M2NEON is narrow8NEON.
//
//	computes   dst[i] = the E5M2 code nearest to src[i], to even, saturated; NaN 7F or FF
//	registers  as narrowE4M3NEON
//	reads      as narrowE4M3NEON
//	order      as narrowE4M3NEON
//	limits     as narrowE4M3NEON
func narrowE5M2NEON(a *A) { narrow8NEON(a, layoutE5M2, nil) }

// narrowE4M3FNUZNEON is narrow8NEON.
//
//	computes   dst[i] = the E4M3FNUZ code nearest to src[i], to even, saturated; NaN 80
//	registers  as narrowE4M3NEON, and a mask more
//	reads      as narrowE4M3NEON
//	order      as narrowE4M3NEON
//	limits     as narrowE4M3NEON
func narrowE4M3FNUZNEON(a *A) { narrow8NEON(a, layoutE4M3FNUZ, nil) }

// narrowE5M2FNUZNEON is narrow8NEON.
//
//	computes   dst[i] = the E5M2FNUZ code nearest to src[i], to even, saturated; NaN 80
//	registers  as narrowE4M3FNUZNEON
//	reads      as narrowE4M3NEON
//	order      as narrowE4M3NEON
//	limits     as narrowE4M3NEON
func narrowE5M2FNUZNEON(a *A) { narrow8NEON(a, layoutE5M2FNUZ, nil) }

// narrowE4M3ScaledNEON divides, as a product with the inverse of the scale would round twice.
//
//	computes   dst[i] = the E4M3 code nearest to src[i]/scale, to even, saturated; NaN 7F with the sign of src[i]
//	registers  as narrowE4M3NEON, and 4 vectors of quotients and the scale
//	reads      as narrowE4M3NEON
//	order      as narrowE4M3NEON
//	limits     the divisions
func narrowE4M3ScaledNEON(a *A) {
	scale := a.ArgF("scale")
	a.VDUPe(scale.S(0), scale.S4())
	narrow8NEON(a, layoutE4M3, func(x, q View) { a.VFDIV(scale.S4(), x, q) })
}
