package workshop

import "slices"

// The tile of the Part kernels is 6 rows by the 16 lanes of a panel: 24 sums, 6 vectors of x that hold 4 steps each, and
// 2 of b, which is all 32 registers. A step has 24 fma for 5.5 loads; 8 rows by 8 lanes, 28 registers, would have 16 for
// 4. Where cores start loads beside fma (A72: one of each a cycle, A76: two, V1: three and four) the loads hide, and 24
// sums keep four pipes of latency 4 busy. On A53 and A55 a load of 16 bytes holds up fma for two cycles: they spend 69%
// of the cycles in fma, 67% with 8 by 8. TestPartLoops counts.
const (
	tileRows  = 6
	tileVecs  = 4 // vectors of a panel's row
	tileSteps = 4 // steps of k in a vector of x
)

// partWriter writes a Part kernel.
type partWriter struct {
	*A
	end partEnd

	x, y, b       GP // of the tile's first row, and of the panel
	ldx, ldy, ldb GP // in bytes
	rows, lanes   GP // that are left in this panel, and from it on
	left          GP // steps
	xs            []GP
	bp, yp        GP
	column        GP // of the panel, in bytes

	scale, rowScales, ldr GP // of PartScale and PartScaleRows

	pairs *pairParts // of the Pair kernels

	fold    bool // PartFold: each product of x is scaled first
	sp, lds GP   // with scale, as bp and ldb with b
}

// partEnd is what becomes of the sums.
type partEnd struct {
	begin func(p *partWriter) // of the body
	panel func(p *partWriter) // before the rows of a panel
	row   func(p *partWriter) // before a row
	// lanes ends some lanes of a row and moves on: all that part holds, or its first ones, and then part must stay.
	lanes func(p *partWriter, part []Vec, lanes int)
}

// partSetNEON sums products of rows by panels.
//
//	computes   y[i*ldy+j] = part(i,j)
//	registers  V0 up the sums, 4 to a row; then x, 4 steps of a row in each; then b
//	reads      x by 4 values of k, the rest one by one; b by vectors of a whole panel; y not
//	order      panels; in a panel tiles of rows; in a tile k, each sum from zero in the order of k
//	limits     none
func partSetNEON(a *A) { partNEON(a, partEnd{lanes: storePart}) }

func storePart(p *partWriter, part []Vec, lanes int) { p.storeLanes(part, lanes, p.yp.Post(4*lanes)) }

// partAddNEON adds them to y.
//
//	computes   y[i*ldy+j] += part(i,j)
//	registers  as partSetNEON
//	reads      as partSetNEON, and what it writes of y
//	order      as partSetNEON, then one addition
//	limits     none
func partAddNEON(a *A) { partNEON(a, partEnd{lanes: addPart}) }

func addPart(p *partWriter, part []Vec, lanes int) {
	p.changeY(len(part), lanes, func(i int, y View) { p.VFADD(part[i].S4(), y, y) })
}

// partScaleNEON adds them to y times a scale for each output.
//
//	computes   y[i*ldy+j] = fma(part(i,j), scale[j], y[i*ldy+j])
//	registers  as partSetNEON
//	reads      as partSetNEON, and what it writes of y, and scale for each row
//	order      as partSetNEON, then one fma
//	limits     none
func partScaleNEON(a *A) { partNEON(a, scalePartEnd()) }

func scalePartEnd() partEnd {
	return partEnd{begin: takeScale, row: scaleOfPanel, lanes: scalePart}
}

func takeScale(p *partWriter) { p.scale = p.GP("scale") }

func scaleOfPanel(p *partWriter) {
	p.Reload("scale", p.scale)
	p.ADD(p.column, p.scale, p.scale)
}

func scalePart(p *partWriter, part []Vec, lanes int) {
	scale := p.loadScale(len(part), lanes)
	p.changeY(len(part), lanes, func(i int, y View) { p.VFMLA(part[i].S4(), scale[i].S4(), y) })
	p.FreeVecs(scale...)
}

func (p *partWriter) loadScale(vectors, lanes int) []Vec {
	scale := p.Vecs("scale", vectors)
	p.loadLanes(p.scale.Post(4*lanes), scale, lanes)
	return scale
}

// partScaleRowsNEON has a scale for each row as well.
//
//	computes   y[i*ldy+j] = fma(part(i,j), rows[i*ldr]*scale[j], y[i*ldy+j])
//	registers  as partSetNEON
//	reads      as partScaleNEON, and rows for each panel
//	order      as partSetNEON, then the product of the scales, rounded, and one fma
//	limits     none
func partScaleRowsNEON(a *A) { partNEON(a, scaleRowsPartEnd()) }

func scaleRowsPartEnd() partEnd {
	return partEnd{
		begin: func(p *partWriter) {
			takeScale(p)
			p.rowScales, p.ldr = p.GP("rows"), p.Arg("ldr")
			p.LSL(Imm(2), p.ldr, p.ldr)
		},
		panel: func(p *partWriter) { // the row before the first
			p.Reload("rows", p.rowScales)
			p.SUB(p.ldr, p.rowScales, p.rowScales)
		},
		row: func(p *partWriter) {
			scaleOfPanel(p)
			p.ADD(p.ldr, p.rowScales, p.rowScales)
		},
		lanes: scaleRowPart,
	}
}

func scaleRowPart(p *partWriter, part []Vec, lanes int) {
	row, scale := p.Vec("row"), p.loadScale(len(part), lanes)
	p.FMOVS(p.rowScales.At(0), row)
	for _, s := range scale {
		p.VFMUL(row.S(0), s.S4(), s.S4())
	}
	p.changeY(len(part), lanes, func(i int, y View) { p.VFMLA(part[i].S4(), scale[i].S4(), y) })
	p.FreeVecs(scale...)
	p.Free(row)
}

// changeY changes some lanes of a row of y.
func (p *partWriter) changeY(vectors, lanes int, change func(i int, y View)) {
	y := p.Vecs("y", vectors)
	p.loadLanes(p.yp.At(0), y, lanes)
	for i, v := range y {
		change(i, v.S4())
	}
	p.storeLanes(y, lanes, p.yp.Post(4*lanes))
	p.FreeVecs(y...)
}

// partFoldSetNEON scales x for each output.
//
//	computes   y[i*ldy+j] = part(i,j) of x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16], rounded
//	registers  as partSetNEON, but 4 rows at most; then scale, and x scaled, one for each row
//	reads      as partSetNEON; scale as b
//	order      as partSetNEON
//	limits     none
func partFoldSetNEON(a *A) { partNEON(a, partEnd{begin: takeFold, lanes: storePart}) }

// partFoldAddNEON adds them to y.
//
//	computes   y[i*ldy+j] += part(i,j) of partFoldSetNEON
//	registers  as partFoldSetNEON
//	reads      as partFoldSetNEON, and what it writes of y
//	order      as partFoldSetNEON, then one addition
//	limits     none
func partFoldAddNEON(a *A) { partNEON(a, partEnd{begin: takeFold, lanes: addPart}) }

func takeFold(p *partWriter) {
	p.fold = true
	p.scale, p.lds, p.sp = p.Base("scale"), p.Arg("lds"), p.GP("sp")
	p.LSL(Imm(2), p.lds, p.lds)
}

func partNEON(a *A, end partEnd) { partBodyNEON(a, nil, end) }

func partBodyNEON(a *A, pairs *pairParts, end partEnd) {
	p := &partWriter{A: a, pairs: pairs, end: end, x: a.GP("x"), y: a.GP("y"), rows: a.GP("rows"), left: a.GP("left"), bp: a.GP("bp"), yp: a.GP("yp")}
	p.b, p.lanes = a.Base("b"), a.Arg("n")
	p.ldx, p.ldy, p.ldb = a.Arg("ldx"), a.Arg("ldy"), a.Arg("ldb")
	a.LSL(Imm(2), p.ldy, p.ldy)
	if pairs == nil {
		a.LSL(Imm(2), p.ldx, p.ldx)
		a.LSL(Imm(2), p.ldb, p.ldb)
	} else {
		pairs.open(p)
	}
	for range tileRows {
		p.xs = append(p.xs, a.GP("xs"))
	}
	p.column = a.GP("column")
	a.Const(0, p.column)
	if end.begin != nil {
		end.begin(p)
	}

	panel, done := a.Fresh("panel"), a.Fresh("done")
	a.CMP(Imm(0), p.lanes)
	a.BLE(done)
	a.Label(panel)
	a.Reload("x", p.x)
	a.Reload("y", p.y)
	a.ADD(p.column, p.y, p.y)
	a.Reload("m", p.rows)
	if end.panel != nil {
		end.panel(p)
	}
	p.panel()
	a.ADD(p.ldb, p.b, p.b)
	if p.fold {
		a.ADD(p.lds, p.scale, p.scale)
	}
	a.ADD(Imm(4*4*tileVecs), p.column, p.column)
	a.SUBS(Imm(4*tileVecs), p.lanes, p.lanes)
	a.BGT(panel)
	a.Label(done)
	a.Done()
}

// panel does all rows of a panel: 6 at a time, 7 as 4 and 3, 8 as 4 and 4, 5 as 3 and 2. PartFold has no registers for
// 6: it takes 4 at a time, and 6 as 3 and 3.
func (p *partWriter) panel() {
	if p.pairs != nil {
		p.pairPanel()
		return
	}
	next, end := p.Fresh("rows"), p.Fresh("end")
	sizes := []int{1, 2, 3, 4, tileRows}
	if p.fold {
		sizes = sizes[:4]
	}
	tiles := map[int]string{}
	for _, n := range sizes {
		tiles[n] = p.Fresh("tile")
	}
	many, six := tiles[tileRows], tiles[tileRows]
	if p.fold {
		many, six = tiles[4], tiles[3]
	}
	p.Label(next)
	p.CMP(Imm(8), p.rows)
	p.BGT(many)
	p.CMP(Imm(6), p.rows)
	p.BGT(tiles[4])
	p.BEQ(six)
	p.CMP(Imm(4), p.rows)
	p.BGT(tiles[3])
	p.BEQ(tiles[4])
	p.CMP(Imm(2), p.rows)
	p.BGT(tiles[3])
	p.BEQ(tiles[2])
	p.CMP(Imm(0), p.rows)
	p.BLE(end)
	for _, n := range sizes {
		p.Label(tiles[n])
		p.tile(n)
		p.SUBS(Imm(n), p.rows, p.rows)
		p.BGT(next)
		p.B(end)
	}
	p.Label(end)
}

// tile sums n rows of a panel, and moves x and y on to the next tile.
func (p *partWriter) tile(n int) {
	var x []Vec
	if p.pairs != nil { // elements of 16 bits are in the first half of the registers
		x = p.Vecs("x", n)
	}
	sums := p.Vecs("sums", n*tileVecs)
	for _, v := range sums {
		p.Zero(v)
	}
	p.Copy(p.x, p.xs[0])
	for i := 1; i < n; i++ {
		p.ADD(p.ldx, p.xs[i-1], p.xs[i])
	}
	p.ADD(p.ldx, p.xs[n-1], p.x)
	p.Copy(p.b, p.bp)
	if p.fold {
		p.Copy(p.scale, p.sp)
	}
	p.Reload("k", p.left)

	if p.pairs != nil {
		p.pairs.products(p, sums, x)
		p.FreeVecs(x...)
	} else {
		p.allProducts(sums, n)
	}

	part, stored := p.Fresh("part"), p.Fresh("stored")
	p.CMP(Imm(4*tileVecs), p.lanes)
	p.BLT(part)
	p.eachRow(sums, func(sum []Vec) {
		p.end.lanes(p, sum[:2], 8)
		p.end.lanes(p, sum[2:], 8)
	})
	p.B(stored)
	p.Label(part)
	p.eachRow(sums, p.someLanes)
	p.Label(stored)
	p.FreeVecs(sums...)
}

// allProducts adds the products of n rows.
func (p *partWriter) allProducts(sums []Vec, n int) {
	x := p.Vecs("x", n)
	products, done := p.products(n)
	p.steps(p.left, tileSteps, func() {
		for i := range x {
			p.FMOVQ(p.xs[i].Post(16), x[i])
		}
		products(sums, x, tileSteps)
	})
	p.steps(p.left, 1, func() {
		for i := range x {
			p.FMOVS(p.xs[i].Post(4), x[i])
		}
		products(sums, x, 1)
	})
	p.FreeVecs(x...)
	done()
}

// products is what adds the products of some steps for n rows, and what frees its registers.
func (p *partWriter) products(n int) (add func(sums, x []Vec, steps int), free func()) {
	if !p.fold {
		b := p.Vecs("b", min(2*tileVecs, 32-n*tileVecs-n))
		return func(sums, x []Vec, steps int) { p.plainProducts(sums, x, b, steps) }, func() { p.FreeVecs(b...) }
	}
	b, scale, scaled := p.Vecs("b", 2), p.Vecs("scale", 2), p.Vecs("scaled", n)
	return func(sums, x []Vec, steps int) { p.foldProducts(sums, x, b, scale, scaled, steps) },
		func() { p.FreeVecs(slices.Concat(b, scale, scaled)...) }
}

// plainProducts has the vectors of b take turns in their registers: each is loaded again as soon as its last product is
// on its way.
func (p *partWriter) plainProducts(sums, x, b []Vec, steps int) {
	p.inTurns(steps*tileVecs, len(b), func(s, turn int) {
		p.FMOVQ(p.bp.At(16*s), b[turn])
	}, func(s, turn int) {
		for i := range x {
			p.VFMLA(x[i].S(s/tileVecs), b[turn].S4(), sums[i*tileVecs+s%tileVecs].S4())
		}
	})
	p.ADD(Imm(16*steps*tileVecs), p.bp, p.bp)
}

// foldProducts scales x before.
func (p *partWriter) foldProducts(sums, x, b, scale, scaled []Vec, steps int) {
	p.inTurns(steps*tileVecs, len(b), func(s, turn int) {
		p.FMOVQ(p.sp.At(16*s), scale[turn])
		p.FMOVQ(p.bp.At(16*s), b[turn])
	}, func(s, turn int) {
		for i := range x {
			p.VFMUL(x[i].S(s/tileVecs), scale[turn].S4(), scaled[i].S4())
		}
		for i := range x {
			p.VFMLA(scaled[i].S4(), b[turn].S4(), sums[i*tileVecs+s%tileVecs].S4())
		}
	})
	p.ADD(Imm(16*steps*tileVecs), p.bp, p.bp)
	p.ADD(Imm(16*steps*tileVecs), p.sp, p.sp)
}

// inTurns loads and uses vectors, with n of them loaded ahead.
func (a *A) inTurns(vectors, n int, load, use func(s, turn int)) {
	for s := range min(n, vectors) {
		load(s, s)
	}
	for s := range vectors {
		use(s, s%n)
		if s+n < vectors {
			load(s+n, s%n)
		}
	}
}

// eachRow ends the rows of a tile one after the other.
func (p *partWriter) eachRow(sums []Vec, end func(sum []Vec)) {
	for ; len(sums) > 0; sums = sums[tileVecs:] {
		p.Copy(p.y, p.yp)
		if p.end.row != nil {
			p.end.row(p)
		}
		end(sums[:tileVecs])
		p.ADD(p.ldy, p.y, p.y)
	}
}

// someLanes ends a row of less than 16 lanes, by 8, 4, 2 and 1 as their number has bits. What is left moves to the front.
func (p *partWriter) someLanes(sum []Vec) {
	piece := func(bit int, part []Vec, move func()) {
		skip := p.Fresh("skip")
		p.TBZ(bit, p.lanes, skip)
		p.end.lanes(p, part, 1<<bit)
		move()
		p.Label(skip)
	}
	piece(3, sum[:2], func() {
		p.VMOV(sum[2].B16(), sum[0].B16())
		p.VMOV(sum[3].B16(), sum[1].B16())
	})
	piece(2, sum[:1], func() { p.VMOV(sum[1].B16(), sum[0].B16()) })
	piece(1, sum[:1], func() { p.VEXT(8, sum[0].B16(), sum[0].B16(), sum[0].B16()) })
	piece(0, sum[:1], func() {})
}
