package workshop

import "fmt"

// The tile of the Pair kernels that split pairs is 5 rows by the 16 lanes of a panel: 20 sums, 5 vectors of x that hold
// the two pairs of a row as float32, the mask of the second values, and 3 vectors of b with room for their halves. A pair
// has 40 fma for 10.5 instructions that split and 6.5 loads; 8 rows by 8 lanes would have 32 for 8 and 6, 4 rows 32 for
// 10 and 6. Where the processor takes an element of pairs as it is, the tile is that of the Part kernels.
const (
	splitRows   = 5
	roundedRows = 3
)

// pairParts is how a Pair kernel multiplies.
type pairParts struct {
	rows  int // of a tile, at most
	dots  bool
	fold  bool
	one   GP  // a value of x
	upper Vec // the mask of the second values, unless dots
	round *rounderNEON
}

func splitParts() *pairParts { return &pairParts{rows: splitRows} }
func dotParts() *pairParts   { return &pairParts{rows: tileRows, dots: true} }
func foldParts() *pairParts  { return &pairParts{rows: roundedRows, fold: true} }

// open takes what stays, and makes bytes of the strides.
func (w *pairParts) open(p *partWriter) {
	p.LSL(Imm(1), p.ldb, p.ldb)
	if w.fold {
		p.LSL(Imm(2), p.ldx, p.ldx)
		w.round = p.newRounder(leastAct, false)
	} else {
		p.LSL(Imm(1), p.ldx, p.ldx)
	}
	w.one = p.GP("one")
	if !w.dots {
		w.upper = p.words(0xFFFF0000, w.one)
	}
}

// pairSetNEON sums products of rows by panels, in pairs.
//
//	computes   y[i*ldy+j] = part(i,j)
//	registers  a mask, V1 up x, 2 pairs of a row in each; then the sums, 4 to a row; then b, and its second values
//	reads      x by 2 pairs, the rest one by one; b by vectors of a whole panel; y not
//	order      panels; in a panel tiles of rows; in a tile pairs, each sum from zero in their order, the second value first
//	limits     none
func pairSetNEON(a *A) { partBodyNEON(a, splitParts(), partEnd{lanes: storePart}) }

// pairSetDotsNEON is pairSetNEON by BFMLALT, which multiplies the second values of pairs, and BFMLALB.
//
//	computes   y[i*ldy+j] = part(i,j)
//	registers  V0 up x, 4 pairs of a row in each; then the sums, 4 to a row; then b
//	reads      x by 4 pairs, the rest one by one; b by vectors of a whole panel; y not
//	order      as pairSetNEON
//	limits     none
func pairSetDotsNEON(a *A) { partBodyNEON(a, dotParts(), partEnd{lanes: storePart}) }

// pairAddNEON adds them to y.
//
//	computes   y[i*ldy+j] += part(i,j)
//	registers  as pairSetNEON
//	reads      as pairSetNEON, and what it writes of y
//	order      as pairSetNEON, then one addition
//	limits     none
func pairAddNEON(a *A) { partBodyNEON(a, splitParts(), partEnd{lanes: addPart}) }

// pairAddDotsNEON adds them to y.
//
//	computes   y[i*ldy+j] += part(i,j)
//	registers  as pairSetDotsNEON
//	reads      as pairSetDotsNEON, and what it writes of y
//	order      as pairSetDotsNEON, then one addition
//	limits     none
func pairAddDotsNEON(a *A) { partBodyNEON(a, dotParts(), partEnd{lanes: addPart}) }

// pairScaleNEON adds them to y times a scale for each output.
//
//	computes   y[i*ldy+j] = fma(part(i,j), scale[j], y[i*ldy+j])
//	registers  as pairSetNEON
//	reads      as pairSetNEON, and what it writes of y, and scale for each row
//	order      as pairSetNEON, then one fma
//	limits     none
func pairScaleNEON(a *A) { partBodyNEON(a, splitParts(), scalePartEnd()) }

// pairScaleDotsNEON adds them to y times a scale for each output.
//
//	computes   y[i*ldy+j] = fma(part(i,j), scale[j], y[i*ldy+j])
//	registers  as pairSetDotsNEON
//	reads      as pairSetDotsNEON, and what it writes of y, and scale for each row
//	order      as pairSetDotsNEON, then one fma
//	limits     none
func pairScaleDotsNEON(a *A) { partBodyNEON(a, dotParts(), scalePartEnd()) }

// pairScaleRowsNEON has a scale for each row as well.
//
//	computes   y[i*ldy+j] = fma(part(i,j), rows[i*ldr]*scale[j], y[i*ldy+j])
//	registers  as pairSetNEON
//	reads      as pairSetNEON, and what it writes of y, scale for each row, and rows for each panel
//	order      as pairSetNEON, then the product of the scales, rounded, and one fma
//	limits     none
func pairScaleRowsNEON(a *A) { partBodyNEON(a, splitParts(), scaleRowsPartEnd()) }

// pairScaleRowsDotsNEON has a scale for each row as well.
//
//	computes   y[i*ldy+j] = fma(part(i,j), rows[i*ldr]*scale[j], y[i*ldy+j])
//	registers  as pairSetDotsNEON
//	reads      as pairSetDotsNEON, and what it writes of y, scale for each row, and rows for each panel
//	order      as pairSetDotsNEON, then the product of the scales, rounded, and one fma
//	limits     none
func pairScaleRowsDotsNEON(a *A) { partBodyNEON(a, dotParts(), scaleRowsPartEnd()) }

// pairFoldSetNEON scales x for each output, and rounds the product to bf16.
//
//	computes   y[i*ldy+j] = part(i,j) of x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16], rounded, then to bf16, +0 below 2^-60
//	registers  3 constants and a mask; then as pairSetNEON, but 3 rows at most; then b, its second values, 2 scales, and for
//	           each row x scaled and 2 of work
//	reads      as pairSetNEON; scale by vectors of a whole panel
//	order      as pairSetNEON
//	limits     the vector units, which round: 12 instructions for a multiply-add
func pairFoldSetNEON(a *A) {
	partBodyNEON(a, foldParts(), partEnd{begin: takeFold, lanes: storePart})
}

// pairFoldAddNEON adds them to y.
//
//	computes   y[i*ldy+j] += part(i,j) of pairFoldSetNEON
//	registers  as pairFoldSetNEON
//	reads      as pairFoldSetNEON, and what it writes of y
//	order      as pairFoldSetNEON, then one addition
//	limits     as pairFoldSetNEON
func pairFoldAddNEON(a *A) {
	partBodyNEON(a, foldParts(), partEnd{begin: takeFold, lanes: addPart})
}

// pairPanel does all rows of a panel: as many as a tile has at a time, and the last ones, up to twice as many less one,
// in halves.
func (p *partWriter) pairPanel() {
	next, end := p.Fresh("rows"), p.Fresh("end")
	var tiles []string
	for rows := range p.pairs.rows + 1 {
		tiles = append(tiles, p.Fresh(fmt.Sprintf("rows%d", rows)))
	}
	p.Label(next)
	p.CMP(Imm(2*p.pairs.rows), p.rows)
	p.BGE(tiles[p.pairs.rows])
	for rows := 2*p.pairs.rows - 1; rows > 0; rows-- {
		p.CMP(Imm(rows), p.rows)
		p.BEQ(tiles[evenly(rows, p.pairs.rows)])
	}
	p.B(end)
	for rows := p.pairs.rows; rows > 0; rows-- {
		p.Label(tiles[rows])
		p.tile(rows)
		p.SUB(Imm(rows), p.rows, p.rows)
		p.B(next)
	}
	p.Label(end)
}

// products adds all products of a tile to its sums.
func (w *pairParts) products(p *partWriter, sums, x []Vec) {
	switch {
	case w.dots:
		b := p.Vecs("b", min(2*tileVecs, 32-len(sums)-len(x)))
		w.steps(p, x, 8, func(pairs int, _ bool) { w.dotProducts(p, sums, x, b, pairs) })
		p.FreeVecs(b...)
	case w.fold:
		f := pairFold{
			even: p.Vec("b"), odd: p.Vec("odd"), scales: p.Vecs("scale", 2), scaled: p.Vecs("scaled", len(x)),
			t: p.Vecs("rounded", len(x)), mask: p.Vecs("below", len(x)),
		}
		w.steps(p, x, 4, func(pairs int, last bool) { w.foldProducts(p, f, sums, x, pairs, last) })
		p.FreeVecs(f.even, f.odd)
		for _, vs := range [][]Vec{f.scales, f.scaled, f.t, f.mask} {
			p.FreeVecs(vs...)
		}
	default:
		b := p.Vecs("b", min(8, (32-1-len(sums)-len(x))/2*2))
		w.steps(p, x, 4, func(pairs int, _ bool) { w.splitProducts(p, sums, x, b, pairs) })
		p.FreeVecs(b...)
	}
}

// steps walks along k by some values, by two, and over the last one, which has no second: that is zero then. It loads x,
// and makes float32 of it unless it is that or serves as it is.
func (w *pairParts) steps(p *partWriter, x []Vec, most int, products func(pairs int, last bool)) {
	for _, values := range []int{most, 2, 1} {
		p.steps(p.left, values, func() {
			for i := range x {
				w.load(p, p.xs[i], x[i], values)
			}
			if !w.dots && !w.fold {
				for i := range x {
					p.VSHLL(16, x[i].H4(), x[i].S4())
				}
			}
			products(max(1, values/2), values == 1)
		})
	}
}

func (w *pairParts) load(p *partWriter, from GP, x Vec, values int) {
	size := 2 * values
	if w.fold {
		size *= 2
	}
	switch size {
	case 16:
		p.FMOVQ(from.Post(16), x)
	case 8:
		p.FMOVD(from.Post(8), x)
	case 4:
		p.FMOVS(from.Post(4), x)
	default:
		p.MOVHU(from.Post(2), w.one)
		p.FMOVSvec(w.one, x)
	}
}

// dotProducts has the vectors of b take turns, as plainProducts.
func (w *pairParts) dotProducts(p *partWriter, sums, x, b []Vec, pairs int) {
	p.inTurns(pairs*tileVecs, len(b), func(s, turn int) {
		p.FMOVQ(p.bp.At(16*s), b[turn])
	}, func(s, turn int) {
		pair, v := s/tileVecs, s%tileVecs
		for i := range x {
			p.VBFMLALT(x[i].H(2*pair+1), b[turn].H8(), sums[i*tileVecs+v].S4())
		}
		for i := range x {
			p.VBFMLALB(x[i].H(2*pair), b[turn].H8(), sums[i*tileVecs+v].S4())
		}
	})
	p.ADD(Imm(16*pairs*tileVecs), p.bp, p.bp)
}

// splitProducts has pairs of registers take turns: one for b, which becomes its first values, one for its second ones.
func (w *pairParts) splitProducts(p *partWriter, sums, x, b []Vec, pairs int) {
	p.inTurns(pairs*tileVecs, len(b)/2, func(s, turn int) {
		p.FMOVQ(p.bp.At(16*s), b[2*turn])
	}, func(s, turn int) {
		pair, v := s/tileVecs, s%tileVecs
		first, second := b[2*turn], b[2*turn+1]
		w.split(p, first, second)
		for i := range x {
			p.VFMLA(x[i].S(2*pair+1), second.S4(), sums[i*tileVecs+v].S4())
		}
		for i := range x {
			p.VFMLA(x[i].S(2*pair), first.S4(), sums[i*tileVecs+v].S4())
		}
	})
	p.ADD(Imm(16*pairs*tileVecs), p.bp, p.bp)
}

// split makes the first values of pairs of them, and the second ones elsewhere.
func (w *pairParts) split(p *partWriter, pairs, second Vec) {
	p.VAND(w.upper.B16(), pairs.B16(), second.B16())
	p.VSHL(16, pairs.S4(), pairs.S4())
}

// pairFold is what foldProducts works in.
type pairFold struct {
	even, odd               Vec
	scales, scaled, t, mask []Vec
}

// foldProducts scales and rounds x before. The last value has no second, and scale has no row for it.
func (w *pairParts) foldProducts(p *partWriter, f pairFold, sums, x []Vec, pairs int, last bool) {
	for s := range pairs * tileVecs {
		pair, v := s/tileVecs, s%tileVecs
		p.FMOVQ(p.bp.At(16*s), f.even)
		w.split(p, f.even, f.odd)
		for place := 1; place >= 0; place-- {
			if last && place == 1 {
				continue
			}
			p.FMOVQ(p.sp.At(16*tileVecs*(2*pair+place)+16*v), f.scales[place])
			for i := range x {
				p.VFMUL(x[i].S(2*pair+place), f.scales[place].S4(), f.scaled[i].S4())
			}
			w.round.act(f.scaled, f.t, f.mask)
			for i := range x {
				p.VAND(w.upper.B16(), f.scaled[i].B16(), f.scaled[i].B16())
			}
			b := []Vec{f.even, f.odd}[place]
			for i := range x {
				p.VFMLA(f.scaled[i].S4(), b.S4(), sums[i*tileVecs+v].S4())
			}
		}
	}
	p.ADD(Imm(16*pairs*tileVecs), p.bp, p.bp)
	p.ADD(Imm(16*tileVecs*(2*pairs-b2i(last))), p.sp, p.sp)
}
