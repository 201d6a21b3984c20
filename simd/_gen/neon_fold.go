package workshop

// foldWriter writes the kernels of whole rows. The numbers of four rows are computed side by side, those of the last
// rows one by one in lane 0. Then each row takes its own from lane 0, and those of the four move down a lane.
type foldWriter struct {
	*A
	lanes                GP // that have a row left
	rows                 GP // left after them
	to, from             GP // the row that is written, and the one that is read
	toStride, fromStride GP // in bytes
	dst, src, cols       GP // of a walk over the columns of a row
	scratch              GP
	consts               expConstsNEON
	four                 []Vec // the numbers that the four take
	narrow               bool  // what is written is bf16
}

// newFoldNEON loads what every kernel of rows needs.
func newFoldNEON(a *A, domain expDomain) *foldWriter {
	return &foldWriter{
		A: a, lanes: a.GP("lanes"), rows: a.Arg("n"), dst: a.GP("dst"), src: a.GP("src"), cols: a.GP("cols"),
		scratch: a.GP("scratch"), consts: a.loadExp(domain),
	}
}

// matrix loads the address and the stride of the rows of a slice.
func (f *foldWriter) matrix(slice, stride string) (base, step GP) {
	base, step = f.Base(slice), f.Arg(stride)
	f.LSL(Imm(2), step, step)
	return base, step
}

// eachRow runs numbers for every four rows, and for every one of the last ones, and row for each of them.
func (f *foldWriter) eachRow(numbers func(lanes int), row func(next string)) {
	fours, single, each, next, done := f.Fresh("fours"), f.Fresh("single"), f.Fresh("row"), f.Fresh("next"), f.Fresh("done")
	f.Label(fours)
	f.CMP(Imm(4), f.rows)
	f.BLT(single)
	f.Const(4, f.lanes)
	numbers(4)
	f.B(each)
	f.Label(single)
	f.CMP(Imm(0), f.rows)
	f.BLE(done)
	f.Const(1, f.lanes)
	numbers(1)
	f.Label(each)
	row(next)
	f.Label(next)
	f.ADD(f.toStride, f.to, f.to)
	f.ADD(f.fromStride, f.from, f.from)
	for _, v := range f.four {
		f.VEXT(4, v.B16(), v.B16(), v.B16())
	}
	f.SUB(Imm(1), f.rows, f.rows)
	f.SUBS(Imm(1), f.lanes, f.lanes)
	f.BNE(each)
	f.B(fours)
	f.Label(done)
}

// load and store move the number of each row.
func (f *foldWriter) load(lanes int, m Mem, v Vec) {
	if lanes == 1 {
		f.FMOVS(m, v)
		return
	}
	f.FMOVQ(m, v)
}

func (f *foldWriter) store(lanes int, v Vec, m Mem) {
	if lanes == 1 {
		f.FMOVSto(v, m)
		return
	}
	f.FMOVQto(v, m)
}

// ifFirst goes to label if the mask of the next row is set.
func (f *foldWriter) ifFirst(mask Vec, label string) {
	f.FMOVSgp(mask, f.scratch)
	f.CBNZ(f.scratch, label)
}

// columnAccess is what columns reads.
type columnAccess struct{ from, to bool }

// columns runs op over the columns of a row, 16 at a time, then 4, then one. op finds in x what is at from and in y what
// is at to, as far as that is read, and leaves in y what to write; in x if it has not read to.
func (f *foldWriter) columns(cols string, reads columnAccess, op func(x, y Vec)) {
	f.Copy(f.from, f.src)
	f.Copy(f.to, f.dst)
	f.Reload(cols, f.cols)
	x, y := f.Vecs("x", 4), f.Vecs("y", 4)
	var r rounding
	if f.narrow { // anew for each row: exp and log need the registers
		r = f.newRounding(f.scratch)
		defer r.free()
	}
	for _, n := range []int{16, 4, 1} {
		xs, ys := x[:(n+3)/4], y[:(n+3)/4]
		f.steps(f.cols, n, func() {
			if reads.from {
				f.loadLanes(f.src.Post(4*n), xs, n)
			}
			if reads.to {
				f.loadLanes(f.dst.At(0), ys, n)
			}
			for i := range xs {
				op(xs[i], ys[i])
			}
			switch {
			case f.narrow:
				f.storeHalves(r.halves(xs, ys), n, f.dst)
			case reads.to:
				f.storeLanes(ys, n, f.dst.Post(4*n))
			default:
				f.storeLanes(xs, n, f.dst.Post(4*n))
			}
		})
	}
	f.FreeVecs(x...)
	f.FreeVecs(y...)
}

// copyRow writes the row that is read, fillRow a constant.
func (f *foldWriter) copyRow(cols string) {
	f.columns(cols, columnAccess{from: true}, func(Vec, Vec) {})
}

func (f *foldWriter) fillRow(cols string, bits uint32) {
	f.columns(cols, columnAccess{}, func(x, _ Vec) { f.Splat(bits, f.scratch, x) })
}

// foldRowsNEON is memory's: each column is read twice and written once.
//
//	computes   O = fma(o, exp(m-top), O*exp(M-top)), L alike; M = top; a copy where M is -Inf, nothing where m is
//	registers  the constants of exp, four times exp(M-top) and exp(m-top), masks where m and M are -Inf; then columns
//	reads      every row once, in vectors, the last columns singly; M, L, m, l four at a time, or singly
//	order      rows and columns from the front
//	limits     none
func foldRowsNEON(a *A) {
	f := newFoldNEON(a, expLow)
	f.four = a.Vecs("four", 4)
	f.to, f.toStride = f.matrix("O", "ldO")
	f.from, f.fromStride = f.matrix("o", "ldo")
	of, into, noneNew, noneYet := f.four[0], f.four[1], f.four[2], f.four[3]
	M, L, m, l := a.Base("M"), a.Base("L"), a.Base("m"), a.Base("l")
	f.eachRow(func(lanes int) {
		f.foldNumbers(lanes, M, L, m, l)
	}, func(next string) {
		first := f.Fresh("first")
		f.ifFirst(noneNew, next)
		f.ifFirst(noneYet, first)
		f.columns("cols", columnAccess{from: true, to: true}, func(x, y Vec) {
			f.VFMUL(of.S(0), y.S4(), y.S4())
			f.VFMLA(into.S(0), x.S4(), y.S4())
		})
		f.B(next)
		f.Label(first)
		f.copyRow("cols")
	})
	a.Done()
}

// foldNumbers folds M and L of the next rows.
func (f *foldWriter) foldNumbers(lanes int, M, L, m, l GP) {
	of, into, noneNew, noneYet := f.four[0], f.four[1], f.four[2], f.four[3]
	es, top, negInf, mask := f.expRegs(2), f.Vec("top"), f.words(negInfBits, f.scratch), f.Vec("mask")
	old, add := es[0], es[1]
	f.load(lanes, M.At(0), old.x)
	f.load(lanes, m.Post(4*lanes), add.x)
	f.VFCMEQ(negInf.S4(), add.x.S4(), noneNew.S4())
	f.VFCMEQ(negInf.S4(), old.x.S4(), noneYet.S4())
	f.VMOV(old.x.B16(), top.B16())
	f.larger(top, add.x, negInf, mask)
	f.store(lanes, top, M.Post(4*lanes))
	f.VFSUB(top.S4(), old.x.S4(), old.x.S4())
	f.VFSUB(top.S4(), add.x.S4(), add.x.S4())
	f.exp(f.consts, expLow, es...)
	f.VMOV(old.y.B16(), of.B16())
	f.VMOV(add.y.B16(), into.B16())

	// Where one of them is empty, top is the other.
	sum, was, other := top, negInf, mask
	f.load(lanes, L.At(0), was)
	f.load(lanes, l.Post(4*lanes), other)
	f.VFMUL(of.S4(), was.S4(), sum.S4())
	f.VFMLA(into.S4(), other.S4(), sum.S4())
	f.VBIT(noneYet.B16(), other.B16(), sum.B16())
	f.VBIT(noneNew.B16(), was.B16(), sum.B16())
	f.store(lanes, sum, L.Post(4*lanes))
	f.freeExps(es...)
	f.FreeVecs(top, negInf, mask)
}

// finishRowsNEON divides each row by one number.
//
//	computes   out = O / (L + exp(sink-M)), or 0 where M is -Inf; lse = M + Log(L); maxlogit = M + 0
//	registers  the constants of exp, four denominators, a mask where M is -Inf; then columns, or exp, or log
//	reads      every row once, in vectors, the last columns singly; M, L and sink four at a time, or singly
//	order      rows and columns from the front: out may be O
//	limits     none
func finishRowsNEON(a *A) { finishBodyNEON(newFoldNEON(a, expAny)) }

// finishRowsBF16NEON is finishRowsNEON with a rounding of each quotient, on the way to memory.
//
//	computes   out = finishRowsNEON, rounded to bfloat16, to nearest even
//	registers  those of finishRowsNEON, 4 masks and 3 constants
//	reads      as finishRowsNEON
//	order      rows and columns from the front
//	limits     none
func finishRowsBF16NEON(a *A) {
	f := newFoldNEON(a, expAny)
	f.narrow = true
	finishBodyNEON(f)
}

func finishBodyNEON(f *foldWriter) {
	a := f.A
	f.four = a.Vecs("four", 2)
	f.to, f.toStride = f.matrix("out", "ldout")
	if f.narrow {
		f.LSR(Imm(1), f.toStride, f.toStride)
	}
	f.from, f.fromStride = f.matrix("O", "ldO")
	p := finishNumbers{M: a.Base("M"), L: a.Base("L"), sink: a.Base("sink"), lse: a.Base("lse"), maxlogit: a.Base("maxlogit")}
	dens, empty, den := f.four[0], f.four[1], a.Vec("den")
	f.eachRow(func(lanes int) { f.finishNumbers(lanes, p) }, func(next string) {
		nothing := f.Fresh("empty")
		f.ifFirst(empty, nothing)
		f.VDUPe(dens.S(0), den.S4())
		f.columns("cols", columnAccess{from: true}, func(x, _ Vec) { f.VFDIV(den.S4(), x.S4(), x.S4()) })
		f.B(next)
		f.Label(nothing)
		f.fillRow("cols", 0)
	})
	a.Done()
}

// finishNumbers are where FinishRows has a number for each row.
type finishNumbers struct{ M, L, sink, lse, maxlogit GP }

// finishNumbers finds the denominators of the next rows, and writes lse and maxlogit.
func (f *foldWriter) finishNumbers(lanes int, p finishNumbers) {
	dens, empty := f.four[0], f.four[1]
	M, L, negInf := f.Vec("M"), f.Vec("L"), f.words(negInfBits, f.scratch)
	f.load(lanes, p.M.Post(4*lanes), M)
	f.load(lanes, p.L.Post(4*lanes), L)
	f.VFCMEQ(negInf.S4(), M.S4(), empty.S4())
	f.Free(negInf)
	f.VMOV(L.B16(), dens.B16())
	f.unlessNil(p.sink, func() {
		e := f.expRegs(1)[0]
		f.load(lanes, p.sink.Post(4*lanes), e.x)
		f.VFSUB(M.S4(), e.x.S4(), e.x.S4())
		f.exp(f.consts, expAny, e)
		f.VFADD(e.y.S4(), dens.S4(), dens.S4())
		f.freeExps(e)
	})
	f.unlessNil(p.lse, func() {
		lse, none := f.Vec("lse"), f.words(infBits, f.scratch)
		f.log((lanes+1)/2, L, lse)
		f.VFADD(lse.S4(), M.S4(), lse.S4())
		f.VBIT(empty.B16(), none.B16(), lse.B16())
		f.store(lanes, lse, p.lse.Post(4*lanes))
		f.FreeVecs(lse, none)
	})
	f.unlessNil(p.maxlogit, func() {
		top, known := f.Vec("top"), f.Vec("known")
		f.Zero(top)
		f.VFADD(top.S4(), M.S4(), top.S4()) // -0 becomes +0
		f.VFCMEQ(L.S4(), L.S4(), known.S4())
		f.VORR(empty.B16(), known.B16(), known.B16())
		f.VNOT(known.B16(), known.B16())
		f.VORR(known.B16(), top.B16(), top.B16())
		f.store(lanes, top, p.maxlogit.Post(4*lanes))
		f.FreeVecs(top, known)
	})
	f.FreeVecs(M, L)
}

// unlessNil runs body if a slice is not nil.
func (f *foldWriter) unlessNil(slice GP, body func()) {
	none := f.Fresh("none")
	f.CBZ(slice, none)
	body()
	f.Label(none)
}

// mergeRowsNEON adds one part of a row after the other to the row of out, which stays in L1.
//
//	computes   w = exp(lse - M); out = fma(part, w, out), W = W + w; out = out / W; lse = M + Log(W)
//	registers  the constants of exp, M and W; then columns, or exp, or log
//	reads      the lse of a row twice, the parts that count once, in vectors, the last columns singly
//	order      rows, then parts, then columns from the front
//	limits     none
func mergeRowsNEON(a *A) {
	f := mergeWriter{
		foldWriter: newFoldNEON(a, expLow), part: a.Base("parts"), lse: a.Base("partsLSE"), result: a.Base("lse"),
		lseStride: a.GP("lseStride"), left: a.GP("left"), next: a.GP("next"), value: a.GP("value"), inf: a.GP("inf"),
		live: a.GP("live"), last: a.GP("last"), lastLSE: a.GP("lastLSE"), top: a.Vec("top"), total: a.Vec("total"),
	}
	f.to, f.toStride = a.Base("out"), a.Arg("d")
	f.from, f.fromStride = a.GP("from"), a.GP("fromStride")
	a.LSL(Imm(2), f.toStride, f.toStride)
	a.LSL(Imm(2), f.rows, f.lseStride)
	a.MUL(f.rows, f.toStride, f.fromStride)
	a.Const(infBits, f.inf)
	f.steps(f.rows, 1, func() {
		f.row()
		f.ADD(f.toStride, f.to, f.to)
		f.ADD(f.toStride, f.part, f.part)
		f.ADD(Imm(4), f.result, f.result)
		f.ADD(Imm(4), f.lse, f.lse)
	})
	a.Done()
}

// mergeWriter writes mergeRowsNEON. toStride is a row, fromStride and lseStride go from part to part.
type mergeWriter struct {
	*foldWriter
	part, lse           GP // of the row, in the first part
	result              GP // where the row's lse goes
	lseStride           GP
	left, next, value   GP // of a walk over the parts: the lse of the next, and of this one
	inf                 GP
	live, last, lastLSE GP // how many parts are live, and the row and the lse of the last one
	top, total          Vec
}

// row merges a row.
func (f *mergeWriter) row() {
	nan, several, written := f.Fresh("nan"), f.Fresh("several"), f.Fresh("written")
	x, larger, mask := f.Vec("x"), f.Vec("larger"), f.Vec("mask")
	f.Splat(negInfBits, f.scratch, f.top)
	f.Const(0, f.live)
	f.eachLive(func(string) {
		f.ADD(Imm(1), f.live, f.live)
		f.Copy(f.from, f.last)
		f.Copy(f.value, f.lastLSE)
		f.FMOVSvec(f.value, x)
		f.larger(f.top, x, larger, mask)
	})
	f.VFCMEQ(f.top.S4(), f.top.S4(), mask.S4())
	f.FMOVSgp(mask, f.scratch)
	f.FreeVecs(x, larger, mask)
	f.CBZ(f.scratch, nan)
	f.CMP(Imm(1), f.live)
	f.BGT(several)
	none := f.Fresh("none")
	f.BLT(none)
	f.MOVWto(f.lastLSE, f.result.At(0))
	f.Copy(f.last, f.from)
	f.copyRow("d")
	f.B(written)

	f.Label(none)
	f.MOVWto(f.inf, f.result.At(0))
	f.fillRow("d", 0)
	f.B(written)

	f.Label(nan)
	f.FMOVSto(f.top, f.result.At(0))
	f.fillRow("d", 0x7fc00000)
	f.B(written)

	f.Label(several)
	f.sum()
	f.Label(written)
}

// sum merges the live parts of a row whose lse are numbers.
func (f *mergeWriter) sum() {
	f.Zero(f.total)
	f.fillRow("d", 0)
	e := f.expRegs(1)[0]
	f.eachLive(func(next string) {
		f.FMOVSvec(f.value, e.x)
		f.VFSUB(f.top.S4(), e.x.S4(), e.x.S4())
		f.exp(f.consts, expLow, e)
		f.FMOVSgp(e.y, f.scratch)
		f.CBZ(f.scratch, next)
		f.FADDS(e.y, f.total, f.total)
		f.columns("d", columnAccess{from: true, to: true}, func(x, y Vec) { f.VFMLA(e.y.S(0), x.S4(), y.S4()) })
	})
	f.freeExps(e)

	den, lse := f.Vec("den"), f.Vec("lse")
	f.VDUPe(f.total.S(0), den.S4())
	f.columns("d", columnAccess{to: true}, func(_, y Vec) { f.VFDIV(den.S4(), y.S4(), y.S4()) })
	f.log(1, f.total, lse)
	f.FADDS(lse, f.top, lse)
	f.FMOVSto(lse, f.result.At(0))
	f.FreeVecs(den, lse)
}

// eachLive runs body for the live parts of a row: from is the row of the part, value its lse.
func (f *mergeWriter) eachLive(body func(next string)) {
	f.Copy(f.part, f.from)
	f.Copy(f.lse, f.next)
	f.Reload("p", f.left)
	f.steps(f.left, 1, func() {
		next := f.Fresh("next")
		f.MOVWU(f.next.At(0), f.value)
		f.AND(Imm(0x7fffffff), f.value, f.scratch)
		f.CMP(f.inf, f.scratch)
		f.BEQ(next) // of either sign
		body(next)
		f.Label(next)
		f.ADD(f.fromStride, f.from, f.from)
		f.ADD(f.lseStride, f.next, f.next)
	})
}
