package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// What the kernels of whole rows have in common. The numbers of four rows are computed side by side in XMM registers,
// then each row takes its own from lane 0, and they move down one lane.
//
//	DI, SI      the row that is written, and the one that is read
//	R9, R8      their strides in bytes
//	R10, R11    rows left, and 4 times the first row of the four
//	R12         rows left of the four
//	R13, R15    a bit for each of the four
//	AX, BX      the offset in a row, and columns left; CX, DX scratch
//	V0 to V9    columns; V10, V11 the factors of a row; V12 a mask; X13, X14 the factors of the four
type fold struct {
	*G
	to, from, toStride, fromStride, rows, at, four, bitsA, bitsB reg.GPPhysical
	factorA, factorB, foursA, foursB                             reg.VecPhysical
	mask                                                         reg.Register
	consts                                                       expConsts
	past                                                         bool // stores go past the caches
	narrow                                                       bool // what is written is bf16
}

func newFold(g *G) *fold {
	return &fold{
		G: g, to: reg.RDI, from: reg.RSI, toStride: reg.R9, fromStride: reg.R8, rows: reg.R10, at: reg.R11, four: reg.R12,
		bitsA: reg.R13, bitsB: reg.R15, factorA: g.V(10), factorB: g.V(11), mask: g.byLevel(reg.K1, g.V(12)), foursA: X(13), foursB: X(14),
		consts: loadExp(g, nil),
	}
}

// expAt is an exp of four, in five registers from first on.
func (f *fold) expAt(first int) expRegs {
	return expRegs{X(first), X(first + 1), X(first + 2), X(first + 3), X(first + 4)}
}

// matrix loads the address and the stride of the rows of a slice.
func (f *fold) matrix(slice, stride string, base, step reg.GPPhysical) {
	f.Base(slice, base)
	f.stride(stride, step)
}

// eachFour runs numbers for every four rows, or as many as there are, and then row for each of them.
func (f *fold) eachFour(numbers func(), row func(next string)) {
	fours, few, each, next, done := f.Fresh("fours"), f.Fresh("few"), f.Fresh("row"), f.Fresh("next"), f.Fresh("done")
	f.Arg("n", f.rows)
	f.XORL(f.at.As32(), f.at.As32())
	f.Label(fours)
	f.TESTQ(f.rows, f.rows)
	f.JZ(operand.LabelRef(done))
	f.MOVQ(f.rows, f.four)
	f.CMPQ(f.four, operand.U8(4))
	f.JLE(operand.LabelRef(few))
	f.MOVL(operand.U32(4), f.four.As32())
	f.Label(few)
	f.SUBQ(f.four, f.rows)
	f.Tail(f.four, reg.RCX, X(12))
	numbers()
	f.ADDQ(operand.U8(16), f.at)
	f.Label(each)
	row(next)
	f.Label(next)
	f.ADDQ(f.toStride, f.to)
	f.ADDQ(f.fromStride, f.from)
	f.VPERMILPS(operand.U8(0x39), f.foursA, f.foursA)
	f.VPERMILPS(operand.U8(0x39), f.foursB, f.foursB)
	f.SHRL(operand.U8(1), f.bitsA.As32())
	f.SHRL(operand.U8(1), f.bitsB.As32())
	f.DECQ(f.four)
	f.JNZ(operand.LabelRef(each))
	f.JMP(operand.LabelRef(fours))
	f.Label(done)
}

// load4 and store4 move the values of the four rows; X12 has a mask of them.
func (f *fold) load4(name string, v reg.VecPhysical) {
	f.Base(name, reg.RCX)
	f.VMASKMOVPS(AtX(reg.RCX, f.at, 1, 0), X(12), v)
}

func (f *fold) store4(v reg.VecPhysical, name string) {
	f.Base(name, reg.RCX)
	f.VMASKMOVPS(v, X(12), AtX(reg.RCX, f.at, 1, 0))
}

// unlessNil runs body if a slice is not nil.
func (f *fold) unlessNil(name string, body func()) {
	none := f.Fresh("none")
	f.Base(name, reg.RCX)
	f.TESTQ(reg.RCX, reg.RCX)
	f.JZ(operand.LabelRef(none))
	body()
	f.Label(none)
}

// columns runs op over the columns of a row, four vectors at a time, then one, then what is left. op takes what is at
// both places, x in the row that is read and y in the one that is written, and tells what to write.
func (f *fold) columns(cols string, reads, writes bool, op func(x, y reg.VecPhysical) reg.VecPhysical) {
	lanes := f.Level.Lanes
	f.XORL(reg.EAX, reg.EAX)
	f.Arg(cols, reg.RBX)
	run := func(vectors int) {
		x, y := [4]reg.VecPhysical{}, [4]reg.VecPhysical{}
		for i := range vectors {
			x[i], y[i] = f.V(2*i), f.V(2*i+1)
			if reads {
				f.VMOVUPS(f.read(i), x[i])
			}
			if writes {
				f.VMOVUPS(f.written(i), y[i])
			}
		}
		if f.narrow {
			for i := range vectors {
				x[i] = op(x[i], y[i])
				f.round(x[i])
			}
			f.storeWords(x[:vectors])
			return
		}
		for i := range vectors {
			f.store(op(x[i], y[i]), f.written(i))
		}
	}
	for _, vectors := range []int{4, 1} {
		loop, short := f.Fresh("columns"), f.Fresh("short")
		f.SUBQ(operand.U32(uint32(vectors*lanes)), reg.RBX)
		f.JLT(operand.LabelRef(short))
		f.Label(loop)
		run(vectors)
		f.ADDQ(operand.U32(uint32(vectors*f.Bytes()/f.ratio())), reg.RAX)
		f.SUBQ(operand.U32(uint32(vectors*lanes)), reg.RBX)
		f.JGE(operand.LabelRef(loop))
		f.Label(short)
		f.ADDQ(operand.U32(uint32(vectors*lanes)), reg.RBX)
	}
	end := f.Fresh("end")
	f.JZ(operand.LabelRef(end))
	x, y := f.V(0), f.V(1)
	f.Tail(reg.RBX, reg.RDX, f.mask)
	if reads {
		f.loadTail(f.read(0), f.mask, x)
	}
	if writes {
		f.loadTail(f.written(0), f.mask, y)
	}
	x = op(x, y)
	if f.narrow {
		f.round(x)
		f.storeTailWords(x)
	} else {
		f.storeTail(x, f.mask, f.written(0))
	}
	f.Label(end)
}

// ratio is the bytes that are read for one that is written; AX counts these.
func (f *fold) ratio() int {
	if f.narrow {
		return 2
	}
	return 1
}

// read and written are the places of vector i from AX on.
func (f *fold) read(i int) operand.Mem {
	return AtX(f.from, reg.RAX, uint8(f.ratio()), i*f.Bytes())
}

func (f *fold) written(i int) operand.Mem {
	return AtX(f.to, reg.RAX, 1, i*f.Bytes()/f.ratio())
}

// store writes a vector, past the caches if that is due.
func (f *fold) store(v reg.Register, to operand.Mem) {
	if f.past {
		f.VMOVNTPS(v, to)
	} else {
		f.VMOVUPS(v, to)
	}
}

// round makes bf16 values of those of v, in the lower half of each dword: see narrowBF16. It overwrites V8, V9, V11 and
// K2.
func (f *fold) round(v reg.VecPhysical) {
	cut, odd, nan := f.V(8), f.V(9), f.V(11)
	f.VCMPPS(cmpUnord, v, v, f.maskFor(nan))
	f.VPSRLD(operand.U8(16), v, cut)
	f.And(f.full(1), cut, odd)
	f.Or(f.full(0x0040), cut, cut)
	f.VPADDD(f.full(0x7FFF), v, v)
	f.VPADDD(odd, v, v)
	f.VPSRLD(operand.U8(16), v, v)
	f.choose(cut, v, nan, 32)
}

// storeWords writes the lower halves of the dwords of one vector, or of four.
func (f *fold) storeWords(vs []reg.VecPhysical) {
	switch {
	case len(vs) == 1 && f.Wide():
		f.VPMOVDW(vs[0], vs[0].AsY())
		f.store(vs[0].AsY(), f.written(0))
	case len(vs) == 1:
		f.store(f.packTail(vs[0]), f.written(0))
	default:
		for i := 0; i < len(vs); i += 2 {
			first, second := vs[i], vs[i+1]
			if f.Wide() {
				low, high := first.AsY(), second.AsY()
				f.VPMOVDW(first, low)
				f.VPMOVDW(second, high)
				f.VINSERTI64X4(operand.U8(1), high, first, first)
			} else {
				f.VPACKUSDW(second, first, first)
				f.VPERMQ(operand.U8(0b11_01_10_00), first, first)
			}
			f.store(first, f.written(i))
		}
	}
}

// packTail packs the words of v, a vector of AVX2, into the half that it returns. It overwrites V8.
func (f *fold) packTail(v reg.VecPhysical) reg.Register {
	half := v.AsX()
	f.VEXTRACTI128(operand.U8(1), v, X(8))
	f.VPACKUSDW(X(8), half, half)
	return half
}

// storeTailWords is storeWords for the columns left, BX of them.
func (f *fold) storeTailWords(v reg.VecPhysical) {
	if f.Wide() {
		f.VPMOVDW(v, f.mask, f.written(0))
		return
	}
	word, words := f.Fresh("word"), f.packTail(v)
	f.Label(word)
	f.VMOVD(words, reg.ECX)
	f.MOVW(reg.CX, f.written(0))
	f.VPSRLDQ(operand.U8(2), words, words)
	f.ADDQ(operand.U8(2), reg.RAX)
	f.DECQ(reg.RBX)
	f.JNZ(operand.LabelRef(word))
}

// The rows that the kernels write.

func (f *fold) copyRow(cols string) {
	f.columns(cols, true, false, func(x, _ reg.VecPhysical) reg.VecPhysical { return x })
}

// fillRow fills a row with the lanes of factorA.
func (f *fold) fillRow(cols string) {
	f.columns(cols, false, false, func(_, _ reg.VecPhysical) reg.VecPhysical { return f.factorA })
}

// foldRows is memory's: each column is read twice and written once.
//
//	computes   O = fma(o, exp(m-top), O*exp(M-top)), L alike; M = top; a copy where M is -Inf, nothing where m is
//	registers  fold's: X13 exp(M-top), X14 exp(m-top), R13 a bit where m is -Inf, R15 where M is
//	reads      every row once, in vectors and a masked tail; M, L, m, l four at a time
//	order      rows and columns from the front
//	limits     none
func foldRows(g *G) {
	f := newFold(g)
	f.matrix("O", "ldO", f.to, f.toStride)
	f.matrix("o", "ldo", f.from, f.fromStride)
	f.eachFour(f.foldNumbers, func(next string) {
		first := f.Fresh("first")
		f.TESTL(operand.U32(1), f.bitsA.As32())
		f.JNZ(operand.LabelRef(next))
		f.TESTL(operand.U32(1), f.bitsB.As32())
		f.JNZ(operand.LabelRef(first))
		f.VBROADCASTSS(f.foursA, f.factorA)
		f.VBROADCASTSS(f.foursB, f.factorB)
		f.columns("cols", true, true, func(x, y reg.VecPhysical) reg.VecPhysical {
			f.VMULPS(f.factorA, y, y)
			f.VFMADD231PS(f.factorB, x, y)
			return y
		})
		f.JMP(operand.LabelRef(next))
		f.Label(first)
		f.copyRow("cols")
	})
	g.Done()
}

// foldNumbers folds M and L of four rows.
func (f *fold) foldNumbers() {
	a, b := f.expAt(0), f.expAt(5)
	top, mask := X(10), X(11)
	f.load4("M", a.x)
	f.load4("m", b.x)
	f.VCMPPS(cmpEq, f.full(negInfBits), b.x, mask)
	f.VMOVMSKPS(mask, f.bitsA.As32())
	f.VCMPPS(cmpEq, f.full(negInfBits), a.x, mask)
	f.VMOVMSKPS(mask, f.bitsB.As32())
	f.VMAXPS(a.x, b.x, top) // M of equal ones; a NaN of m is lost
	f.VCMPPS(cmpUnord, b.x, b.x, mask)
	f.VPOR(mask, top, top)
	f.VSUBPS(top, a.x, a.x)
	f.VSUBPS(top, b.x, b.x)
	expVec(f.G, f.consts, expLow, a, b)
	f.VMOVAPS(a.y, f.foursA)
	f.VMOVAPS(b.y, f.foursB)

	// Where one of them is empty, top is the other.
	L, l, sum, M := X(0), X(1), X(2), X(3)
	f.load4("M", M)
	f.store4(top, "M")
	f.load4("L", L)
	f.load4("l", l)
	f.VMULPS(f.foursA, L, sum)
	f.VFMADD231PS(f.foursB, l, sum)
	f.VCMPPS(cmpEq, f.full(negInfBits), M, mask)
	f.VBLENDVPS(mask, l, sum, sum)
	f.load4("m", M)
	f.VCMPPS(cmpEq, f.full(negInfBits), M, mask)
	f.VBLENDVPS(mask, L, sum, sum)
	f.store4(sum, "L")
}

// finishRows divides each row by one number.
//
//	computes   out = O / (L + exp(sink-M)), or 0 where M is -Inf; lse = M + Log(L); maxlogit = M + 0
//	registers  fold's: X13 the denominators, R13 a bit where M is -Inf
//	reads      every row once, in vectors and a masked tail; M, L and sink four at a time
//	order      rows and columns from the front: out may be O
//	limits     none
func finishRows(g *G) { finishBody(newFold(g)) }

// finishRowsBF16 is finishRows with a rounding of each quotient, on the way to memory.
//
//	computes   out = finishRows, rounded to bfloat16, to nearest even
//	registers  those of finishRows; V8, V9, V11 and K2 round
//	reads      as finishRows
//	order      rows and columns from the front
//	limits     none
func finishRowsBF16(g *G) {
	f := newFold(g)
	f.narrow = true
	finishBody(f)
}

func finishBody(f *fold) {
	f.matrix("out", "ldout", f.to, f.toStride)
	if f.narrow {
		f.SARQ(operand.U8(1), f.toStride)
	}
	f.matrix("O", "ldO", f.from, f.fromStride)
	f.wholeLinesAt(f.to, f.toStride)
	f.eachFour(f.finishNumbers, func(next string) {
		empty := f.Fresh("empty")
		f.TESTL(operand.U32(1), f.bitsA.As32())
		f.JNZ(operand.LabelRef(empty))
		f.VBROADCASTSS(f.foursA, f.factorA)
		divide := func() {
			f.columns("cols", true, false, func(x, _ reg.VecPhysical) reg.VecPhysical {
				f.VDIVPS(f.factorA, x, x)
				return x
			})
			f.JMP(operand.LabelRef(next))
		}
		cached := f.Fresh("cached")
		f.CMPQ(f.ArgAt("bypass"), operand.U8(0))
		f.JEQ(operand.LabelRef(cached))
		f.past = true
		divide()
		f.past = false
		f.Label(cached)
		divide()
		f.Label(empty)
		f.Zero(f.factorA)
		f.fillRow("cols")
	})
	f.SFENCE() // what was stored past the caches is seen before what follows
	f.Done()
}

// finishNumbers finds the denominators of four rows, and writes lse and maxlogit.
func (f *fold) finishNumbers() {
	M, empty, L, den := X(8), X(9), X(10), f.foursA
	f.load4("M", M)
	f.load4("L", L)
	f.VCMPPS(cmpEq, f.full(negInfBits), M, empty)
	f.VMOVMSKPS(empty, f.bitsA.As32())
	f.VMOVAPS(L, den)
	f.unlessNil("sink", func() {
		e := f.expAt(0)
		f.load4("sink", e.x)
		f.VSUBPS(M, e.x, e.x)
		expVec(f.G, f.consts, expAny, e)
		f.VADDPS(e.y, den, den)
	})
	f.unlessNil("lse", func() {
		lse := X(6)
		log4(f.G, L, lse)
		f.VADDPS(lse, M, lse)
		f.VBLENDVPS(empty, f.full(infBits), lse, lse)
		f.store4(lse, "lse")
	})
	f.unlessNil("maxlogit", func() {
		nan, top := X(0), X(1)
		f.Zero(top)
		f.VADDPS(top, M, top) // -0 becomes +0
		f.VCMPPS(cmpUnord, L, L, nan)
		f.VPANDN(nan, empty, nan)
		f.VPOR(nan, top, top)
		f.store4(top, "maxlogit")
	})
}

// mergeRows adds one part of a row after the other to the row of out, which stays in L1.
//
//	computes   w = exp(lse - M); out = fma(part, w, out), W = W + w; out = out / W; lse = M + Log(W)
//	registers  fold's, but R8 the row in the first part, R9 the stride of parts, R11 the row's lse in the first part, R12
//	           the stride of those, R13 where the row's lse goes, R15 parts left, R14 walks over lse; X13 M, X14 W
//	reads      the lse of a row twice, the parts that count once, in vectors and a masked tail
//	order      rows, then parts, then columns from the front
//	limits     none
func mergeRows(g *G) {
	f := merge{newFold(g), reg.R8, reg.R9, reg.R11, reg.R12, reg.R13, reg.R15, reg.R14, X(13), X(14)}
	row, done := f.Fresh("row"), f.Fresh("done")
	f.Base("out", f.to)
	f.Base("lse", f.result)
	f.Base("parts", f.part)
	f.Base("partsLSE", f.lse)
	f.Arg("n", f.rows)
	f.MOVQ(f.rows, f.lseStride)
	f.SHLQ(operand.U8(2), f.lseStride)
	f.Arg("d", f.partStride)
	f.IMULQ(f.lseStride, f.partStride)
	f.Label(row)
	f.SUBQ(operand.U8(1), f.rows)
	f.JLT(operand.LabelRef(done))
	f.row()
	f.ADDQ(operand.U8(4), f.result)
	f.ADDQ(operand.U8(4), f.lse)
	f.stride("d", reg.RCX)
	f.ADDQ(reg.RCX, f.to)
	f.ADDQ(reg.RCX, f.part)
	f.JMP(operand.LabelRef(row))
	f.Label(done)
	g.Done()
}

// merge is where mergeRows keeps what it needs.
type merge struct {
	*fold
	part, partStride, lse, lseStride, result, left, value reg.GPPhysical
	top, total                                            reg.VecPhysical
}

// row merges a row.
func (f *merge) row() {
	nan, several, single, written := f.Fresh("nan"), f.Fresh("several"), f.Fresh("single"), f.Fresh("written")
	live, last, lastLSE := reg.RDX, reg.RAX, reg.RBX
	f.VMOVSS(f.Const(negInfBits), f.top)
	f.XORL(live.As32(), live.As32())
	f.eachLive(func(string) {
		f.INCQ(live)
		f.MOVQ(f.from, last)
		f.MOVL(reg.ECX, lastLSE.As32())
		x, unord := X(0), X(1)
		f.VMOVD(reg.ECX, x)
		f.VCMPPS(cmpUnord, x, x, unord)
		f.VMAXSS(f.top, x, f.top) // of a NaN and a number the top so far
		f.VPOR(unord, f.top, f.top)
	})
	f.CMPQ(live, operand.U8(1))
	f.JEQ(operand.LabelRef(single))
	f.JGT(operand.LabelRef(several))

	f.MOVL(operand.U32(infBits), reg.ECX)
	f.MOVL(reg.ECX, At(f.result, 0))
	f.Zero(f.factorA)
	f.fillRow("d")
	f.JMP(operand.LabelRef(written))

	f.Label(nan)
	f.VMOVSS(f.top, At(f.result, 0))
	f.VBROADCASTSS(f.top, f.factorA)
	f.fillRow("d")
	f.JMP(operand.LabelRef(written))

	f.Label(single)
	f.VUCOMISS(f.top, f.top)
	f.JPS(operand.LabelRef(nan))
	f.MOVL(lastLSE.As32(), At(f.result, 0))
	f.MOVQ(last, f.from)
	f.copyRow("d")
	f.JMP(operand.LabelRef(written))

	f.Label(several)
	f.VUCOMISS(f.top, f.top)
	f.JPS(operand.LabelRef(nan))
	f.sum()
	f.Label(written)
}

// sum merges the live parts of a row whose lse are numbers.
func (f *merge) sum() {
	f.Zero(f.total)
	f.Zero(f.factorA)
	f.fillRow("d")
	f.eachLive(func(next string) {
		e, zero := f.expAt(0), X(5)
		f.VMOVD(reg.ECX, e.x)
		f.VSUBPS(f.top, e.x, e.x)
		expVec(f.G, f.consts, expLow, e)
		f.Zero(zero)
		f.VUCOMISS(zero, e.y)
		f.JEQ(operand.LabelRef(next))
		f.VADDSS(e.y, f.total, f.total)
		f.VBROADCASTSS(e.y, f.factorA)
		f.columns("d", true, true, func(x, y reg.VecPhysical) reg.VecPhysical {
			f.VFMADD231PS(f.factorA, x, y)
			return y
		})
	})
	f.VBROADCASTSS(f.total, f.factorA)
	f.columns("d", false, true, func(_, y reg.VecPhysical) reg.VecPhysical {
		f.VDIVPS(f.factorA, y, y)
		return y
	})
	lse := X(6)
	log4(f.G, f.total, lse)
	f.VADDSS(lse, f.top, lse)
	f.VMOVSS(lse, At(f.result, 0))
}

// eachLive runs body for the live parts of a row: from is the row of the part, ECX its lse.
func (f *merge) eachLive(body func(next string)) {
	each, next, end := f.Fresh("part"), f.Fresh("next"), f.Fresh("end")
	f.MOVQ(f.part, f.from)
	f.MOVQ(f.lse, f.value)
	f.Arg("p", f.left)
	f.TESTQ(f.left, f.left)
	f.JZ(operand.LabelRef(end))
	f.Label(each)
	f.MOVL(At(f.value, 0), reg.ECX)
	f.BTRL(operand.U8(31), reg.ECX)
	f.CMPL(reg.ECX, operand.U32(infBits))
	f.JEQ(operand.LabelRef(next)) // of either sign
	f.MOVL(At(f.value, 0), reg.ECX)
	body(next)
	f.Label(next)
	f.ADDQ(f.partStride, f.from)
	f.ADDQ(f.lseStride, f.value)
	f.DECQ(f.left)
	f.JNZ(operand.LabelRef(each))
	f.Label(end)
}
