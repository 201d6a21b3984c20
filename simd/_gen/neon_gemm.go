package workshop

import "fmt"

// The tile of the products with codes is 8 rows by half a panel, 8 lanes: 16 sums, 8 vectors of x that hold 4 steps each,
// and 8 registers for codes, weights and masks. Decoding costs 2.25 instructions for the 4 weights of a vector, however
// many rows there are, so the tile has as many rows as it can: 78% of its vector instructions are fma, 64% with 4 rows
// by a whole panel. TestGemmLoops counts.
const (
	gemmRows  = 8
	gemmVecs  = 2                // vectors of half a panel
	gemmBytes = 4 * 4 * gemmVecs // of them, in y, scale and, with 4 steps in a word, codes
	gemmSteps = 4                // steps of k in a vector of x and in a word of codes
)

// gemmNEON multiplies by codes that become float32 in registers. A word has the codes of four steps. Each half of it,
// shifted by 4 with its sign and masked, is the upper half of the value times 2^-120 of its upper code; the halves of
// the word shifted by 8 are those of the lower codes.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  V0 and V1 masks; then the sums, 2 to a row, x, 4 steps of a row in each, codes, their halves, weights
//	reads      x by 4 values of k and codes by words of 8 lanes, both for each half of a panel; y once for each piece
//	order      panels, their part of y cleared if k0 is 0; in a panel tiles of rows; in a tile pieces of k; in a piece the
//	           halves
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmNEON(a *A) { gemmBodyNEON(a, &wordDecoderNEON{}, nil) }

// gemmHalfNEON is gemmNEON by way of binary16: half a word, shifted by 1 with its sign and masked, is the binary16 of
// the value times 2^-8 of its upper code.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  V0 the mask; then as gemmNEON
//	reads      as gemmNEON
//	order      as gemmNEON
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmHalfNEON(a *A) { gemmBodyNEON(a, &halfDecoderNEON{}, nil) }

// decoderNEON makes weights of codes.
type decoderNEON interface {
	masks(a *A)                           // takes and fills what it needs all the time
	open(a *A, codes []Vec) (free func()) // begins with the words of four steps
	weight(a *A, step, w int, to Vec) Vec // vector w of a step, in to or elsewhere; the steps come in order
}

// gemmWriter writes a Gemm kernel.
type gemmWriter struct {
	*A
	decoder decoderNEON
	pairs   gemmPairs // in place of decoder, for activations in bf16

	x, y         GP // of the tile's first row
	codes, scale GP // of the panel
	ldx, ldy     GP // in bytes
	rows, lanes  GP // that are left in this panel, and from it on

	k, k1    GP // where the piece begins and ends
	next     GP // the next k with other scales
	scaleNow GP // of the piece
	half     GP // of the panel, in bytes: 0 or gemmBytes
	left     GP // steps
	cp       GP // codes of a step
	xs       []GP
	yp, sp   GP // of the next lanes to finish: registers of xs, which rest then, as scratch is
	scratch  GP
}

func gemmBodyNEON(a *A, d decoderNEON, pairs gemmPairs) {
	g := &gemmWriter{A: a, decoder: d, pairs: pairs, x: a.GP("x"), y: a.GP("y"), rows: a.GP("rows"), k: a.GP("k"), k1: a.GP("k1"),
		next: a.GP("next"), scaleNow: a.GP("scale now"), half: a.GP("half"), left: a.GP("left"), cp: a.GP("cp")}
	for range gemmRows {
		g.xs = append(g.xs, a.GP("xs"))
	}
	g.yp, g.sp, g.scratch = g.xs[0], g.xs[1], g.xs[2]
	if pairs != nil {
		pairs.open(a, g.scratch)
	} else {
		d.masks(a)
	}
	g.codes, g.scale, g.lanes = a.Base("codes"), a.Base("scale"), a.Arg("n")
	g.ldx, g.ldy = a.Arg("ldx"), a.Arg("ldy")
	a.LSL(Imm(g.logX()), g.ldx, g.ldx)
	a.LSL(Imm(2), g.ldy, g.ldy)

	panel, begun, done := a.Fresh("panel"), a.Fresh("begun"), a.Fresh("done")
	a.CMP(Imm(0), g.lanes)
	a.BLE(done)
	a.Label(panel)
	a.Reload("k0", g.k)
	a.CBNZ(g.k, begun)
	g.toFirstRow()
	g.clear()
	a.Label(begun)
	g.toFirstRow()
	g.panel()
	a.Reload("ldc", g.scratch)
	a.ADD(g.scratch, g.codes, g.codes)
	a.Reload("lds", g.scratch)
	a.ADD(g.scratch.Shl(2), g.scale, g.scale)
	a.SUBS(Imm(4*tileVecs), g.lanes, g.lanes)
	a.BGT(panel)
	a.Label(done)
	a.Done()
}

// toFirstRow goes to the first row of the panel.
func (g *gemmWriter) toFirstRow() {
	g.Reload("x", g.x)
	g.Reload("y", g.y)
	g.Reload("n", g.scratch)
	g.SUB(g.lanes, g.scratch, g.scratch)
	g.ADD(g.scratch.Shl(2), g.y, g.y)
	g.Reload("m", g.rows)
}

// clear clears the outputs of the panel, and moves y behind the last row.
func (g *gemmWriter) clear() {
	zero := g.Vecs("zero", tileVecs)
	for _, z := range zero {
		g.Zero(z)
	}
	whole, stored := g.Fresh("whole"), g.Fresh("stored")
	g.steps(g.rows, 1, func() {
		g.Copy(g.y, g.yp)
		g.CMP(Imm(4*tileVecs), g.lanes)
		g.BGE(whole)
		for bit := 3; bit >= 0; bit-- {
			skip := g.Fresh("skip")
			g.TBZ(bit, g.lanes, skip)
			g.storeLanes(zero[:max(1, 1<<bit/4)], 1<<bit, g.yp.Post(4<<bit))
			g.Label(skip)
		}
		g.B(stored)
		g.Label(whole)
		g.storeLanes(zero, 4*tileVecs, g.yp.At(0))
		g.Label(stored)
		g.ADD(g.ldy, g.y, g.y)
	})
	g.FreeVecs(zero...)
}

// panel does all rows of a panel: 8 at a time from 16 on, and those up to 15 in halves.
func (g *gemmWriter) panel() {
	next, end := g.Fresh("rows"), g.Fresh("end")
	var tiles []string
	for rows := range gemmRows + 1 {
		tiles = append(tiles, g.Fresh(fmt.Sprintf("rows%d", rows)))
	}
	g.Label(next)
	g.CMP(Imm(2*gemmRows), g.rows)
	g.BGE(tiles[gemmRows])
	for rows := 2*gemmRows - 1; rows > 0; rows-- {
		g.CMP(Imm(rows), g.rows)
		g.BEQ(tiles[evenly(rows, gemmRows)])
	}
	g.B(end)
	for rows := gemmRows; rows > 0; rows-- {
		g.Label(tiles[rows])
		g.tile(rows)
		g.SUB(Imm(rows), g.rows, g.rows)
		g.B(next)
	}
	g.Label(end)
}

// tile computes n rows of a panel piece by piece of k, and moves x and y on to the next tile.
func (g *gemmWriter) tile(n int) {
	piece, half, other, same := g.Fresh("piece"), g.Fresh("half"), g.Fresh("other"), g.Fresh("same")
	g.Reload("k0", g.k)
	g.Reload("step", g.next)
	g.SDIV(g.next, g.k, g.scratch)
	g.ADD(g.scratch.Shl(6), g.scale, g.scaleNow)
	g.MADD(g.next, g.next, g.scratch, g.next)
	g.Label(piece)
	g.endOfPiece()
	g.Const(0, g.half)
	g.Label(half)
	sums := g.sums(n)
	g.finish(sums)
	g.FreeVecs(sums...)
	g.ADD(Imm(gemmBytes), g.half, g.half)
	g.CMP(g.half.Shr(2), g.lanes)
	g.BLE(other)
	g.CMP(Imm(2*gemmBytes), g.half)
	g.BLT(half)
	g.Label(other)
	g.Copy(g.k1, g.k)
	g.CMP(g.next, g.k)
	g.BNE(same)
	g.ADD(Imm(2*gemmBytes), g.scaleNow, g.scaleNow)
	g.Reload("step", g.scratch)
	g.ADD(g.scratch, g.next, g.next)
	g.Label(same)
	g.Reload("k", g.scratch)
	g.CMP(g.scratch, g.k)
	g.BLT(piece)
	for range n {
		g.ADD(g.ldx, g.x, g.x)
		g.ADD(g.ldy, g.y, g.y)
	}
}

// endOfPiece sets k1 to the next multiple of 256 or of step, or to the end.
func (g *gemmWriter) endOfPiece() {
	g.ORR(Imm(255), g.k, g.k1)
	g.ADD(Imm(1), g.k1, g.k1)
	g.CMP(g.next, g.k1)
	g.CSEL("LT", g.k1, g.next, g.k1)
	g.Reload("k", g.scratch)
	g.CMP(g.scratch, g.k1)
	g.CSEL("LT", g.k1, g.scratch, g.k1)
}

// sums takes and fills the sums of n rows of half a panel over a piece.
func (g *gemmWriter) sums(n int) []Vec {
	if g.pairs != nil {
		return g.pairSums(n)
	}
	sums, x, codes := g.Vecs("sums", n*gemmVecs), g.Vecs("x", n), g.Vecs("codes", gemmVecs)
	g.toPiece(sums)
	loop := g.Fresh("loop")
	g.Label(loop)
	for w := range codes {
		g.FMOVQ(g.cp.At(16*w), codes[w])
	}
	g.ADD(Imm(4*4*tileVecs), g.cp, g.cp)
	for i := range x {
		g.FMOVQ(g.xs[i].Post(16), x[i])
	}
	free := g.decoder.open(g.A, codes)
	g.products(sums, x)
	free()
	g.SUBS(Imm(gemmSteps), g.left, g.left)
	g.BNE(loop)
	g.FreeVecs(x...)
	g.FreeVecs(codes...)
	return sums
}

// logX is how many bytes an activation has, as a power of two.
func (g *gemmWriter) logX() int {
	if g.pairs != nil {
		return 1
	}
	return 2
}

// toPiece clears sums, and goes to where a piece begins in rows and codes.
func (g *gemmWriter) toPiece(sums []Vec) {
	n := len(sums) / gemmVecs
	for _, v := range sums {
		g.Zero(v)
	}
	g.ADD(g.k.Shl(g.logX()), g.x, g.xs[0])
	for i := 1; i < n; i++ {
		g.ADD(g.ldx, g.xs[i-1], g.xs[i])
	}
	g.ADD(g.k.Shl(4), g.codes, g.cp)
	g.ADD(g.half, g.cp, g.cp)
	g.SUB(g.k, g.k1, g.left)
}

// products adds the products of four steps. A vector of weights is decoded while those of the one before are used.
func (g *gemmWriter) products(sums, x []Vec) {
	into := g.Vecs("weights", gemmVecs)
	weights := make([]Vec, gemmVecs)
	g.inTurns(gemmSteps*gemmVecs, gemmVecs, func(i, turn int) {
		weights[turn] = g.decoder.weight(g.A, i/gemmVecs, turn, into[turn])
	}, func(i, turn int) {
		for r := range x {
			g.VFMLA(x[r].S(i/gemmVecs), weights[turn].S4(), sums[r*gemmVecs+turn].S4())
		}
	})
	g.FreeVecs(into...)
}

// finish makes y = fma(part, scale, y) for half a panel.
func (g *gemmWriter) finish(sums []Vec) {
	some, end := g.Fresh("some"), g.Fresh("finished")
	g.ADD(g.half, g.scaleNow, g.sp)
	g.ADD(g.half, g.y, g.yp)
	g.SUB(g.half.Shr(2), g.lanes, g.scratch)
	g.CMP(Imm(4*gemmVecs), g.scratch)
	g.BLT(some)
	g.finishLanes(sums, 4*gemmVecs)
	g.B(end)
	g.Label(some)
	for _, bit := range []int{2, 1, 0} {
		skip := g.Fresh("skip")
		g.TBZ(bit, g.scratch, skip)
		g.finishLanes(sums, 1<<bit)
		for r := 0; r < len(sums); r += gemmVecs { // what is left moves to the front
			if bit == 2 {
				g.VMOV(sums[r+1].B16(), sums[r].B16())
			} else if bit == 1 {
				g.VEXT(8, sums[r].B16(), sums[r].B16(), sums[r].B16())
			}
		}
		g.Label(skip)
	}
	g.Label(end)
}

// finishLanes does so for the first lanes of each row, from yp and sp on, which it moves behind them.
func (g *gemmWriter) finishLanes(sums []Vec, lanes int) {
	vecs := max(1, lanes/4)
	scale, y := g.Vecs("scale", vecs), g.Vecs("y", vecs)
	row := g.xs[3]
	g.loadLanes(g.sp.Post(4*lanes), scale, lanes)
	g.Copy(g.yp, row)
	for r := 0; r < len(sums); r += gemmVecs {
		g.loadLanes(row.At(0), y, lanes)
		for w := range vecs {
			g.VFMLA(sums[r+w].S4(), scale[w].S4(), y[w].S4())
		}
		g.storeLanes(y, lanes, row.At(0))
		g.ADD(g.ldy, row, row)
	}
	g.ADD(Imm(4*lanes), g.yp, g.yp)
	g.FreeVecs(scale...)
	g.FreeVecs(y...)
}

// wordDecoderNEON makes values times 2^-120.
type wordDecoderNEON struct {
	halves, upper Vec   // masks
	even, odd     []Vec // of the steps: step 0 or 1 in the lower half of a word, 2 or 3 in the upper
}

func (d *wordDecoderNEON) masks(a *A) {
	scratch := a.GP("scratch")
	d.halves, d.upper = a.halves(0x87F0, scratch), a.words(0xFFFF0000, scratch)
	a.Free(scratch)
}

func (d *wordDecoderNEON) open(a *A, codes []Vec) (free func()) {
	d.even, d.odd = codes, a.Vecs("odd", len(codes))
	for w := range codes {
		a.VSSHR(4, codes[w].H8(), d.odd[w].H8())
	}
	for _, c := range codes {
		a.VSHL(8, c.H8(), c.H8())
	}
	for _, v := range d.odd {
		a.VAND(d.halves.B16(), v.B16(), v.B16())
	}
	for _, c := range codes {
		a.VSSHR(4, c.H8(), c.H8())
	}
	for _, c := range codes {
		a.VAND(d.halves.B16(), c.B16(), c.B16())
	}
	return func() { a.FreeVecs(d.odd...) }
}

func (d *wordDecoderNEON) weight(a *A, step, w int, to Vec) Vec {
	v := [][]Vec{d.even, d.odd}[step%2][w]
	if step < 2 {
		a.VSHL(16, v.S4(), to.S4())
		return to
	}
	a.VAND(d.upper.B16(), v.B16(), v.B16())
	return v
}

// halfDecoderNEON makes values times 2^-8.
type halfDecoderNEON struct {
	mask  Vec
	pairs [2]Vec // the codes of two steps of each lane
	now   Vec    // the weights of a step in binary16
}

func (d *halfDecoderNEON) masks(a *A) {
	scratch := a.GP("scratch")
	d.mask = a.halves(0xBF80, scratch)
	a.Free(scratch)
}

func (d *halfDecoderNEON) open(a *A, codes []Vec) (free func()) {
	first := a.Vec("first pairs")
	a.VUZP1(codes[1].H8(), codes[0].H8(), first.H8())
	a.VUZP2(codes[1].H8(), codes[0].H8(), codes[1].H8())
	d.pairs, d.now = [2]Vec{first, codes[1]}, codes[0]
	return func() { a.Free(first) }
}

func (d *halfDecoderNEON) weight(a *A, step, w int, to Vec) Vec {
	if w == 1 {
		a.VFCVTL(d.now.H8(), to.S4())
		return to
	}
	from := d.pairs[step/2]
	if step%2 == 0 {
		a.VSHL(8, from.H8(), d.now.H8())
		from = d.now
	}
	a.VSSHR(1, from.H8(), d.now.H8())
	a.VAND(d.mask.B16(), d.now.B16(), d.now.B16())
	a.VFCVTL(d.now.H4(), to.S4())
	return to
}
