package workshop

// panelRows is how many rows a panel of PackRows has.
const panelRows = 16

// packWriter writes PackRows.
type packWriter struct {
	*A
	rows       []GP // where each is read: those that a panel lacks are its last one
	to         GP
	left, n    GP // of k, and rows from this panel on
	words, out []Vec
	masks      []Vec // all ones in the lanes that a panel has
}

// packRowsNEON transposes blocks of 4 rows by 4 columns, 16 rows at a time. A panel that has less reads its last row in
// their place and clears their lanes.
//
//	computes   dst[(j/16)*ldd + kk*16 + j%16] = src[j*lds+kk], 0 past n
//	registers  16 rows; dst, the panel, ldd, the next panel's rows, lds, left, n, scratch; 4 vectors of rows, 4 half-way, 8 packed, 4 masks
//	reads      src, 4 columns at a time of 16 rows, the rest one by one
//	order      panels; in a panel columns
//	limits     16 loads, 32 shuffles and 8 stores of pairs for 4 columns
func packRowsNEON(a *A) {
	packNEON(a, 2, func() func(p *packWriter, masked bool) { return (*packWriter).columns })
}

// packNEON packs panels of places of 1 << log bytes. open takes what the packing of a panel needs, and gives that.
func packNEON(a *A, log int, open func() func(p *packWriter, masked bool)) {
	p := &packWriter{A: a, to: a.GP("to"), left: a.GP("left"), n: a.Arg("n")}
	src, lds := a.Base("src"), a.Arg("lds")
	panel, ldd := a.Base("dst"), a.Arg("ldd")
	a.LSL(Imm(2), lds, lds)
	a.LSL(Imm(log), ldd, ldd)
	for range panelRows {
		p.rows = append(p.rows, a.GP("row"))
	}
	p.words, p.out, p.masks = a.Vecs("words", 8), a.Vecs("out", 8), a.Vecs("masks", 4)

	columns := open()
	next, part, done := a.Fresh("panel"), a.Fresh("part"), a.Fresh("done")
	a.CMP(Imm(0), p.n)
	a.BLE(done)
	a.Label(next)
	a.Copy(src, p.rows[0])
	for i := 1; i < panelRows; i++ {
		a.ADD(lds, p.rows[i-1], p.rows[i])
		a.CMP(Imm(i), p.n)
		a.CSEL("GT", p.rows[i], p.rows[i-1], p.rows[i])
	}
	a.ADD(lds, p.rows[panelRows-1], src)
	a.Copy(panel, p.to)
	a.Reload("k", p.left)
	a.CMP(Imm(panelRows), p.n)
	a.BLT(part)
	columns(p, false)
	a.ADD(ldd, panel, panel)
	a.SUBS(Imm(panelRows), p.n, p.n)
	a.BGT(next)
	a.B(done)
	a.Label(part)
	p.loadMasks()
	columns(p, true)
	a.Label(done)
	a.Done()
}

// loadMasks takes the masks for n rows from a table of 16 words of ones and 16 of zeros.
func (p *packWriter) loadMasks() {
	table := make([]uint32, 2*panelRows)
	for i := range panelRows {
		table[i] = 0xFFFFFFFF
	}
	at := p.GP("masks")
	p.Table("firstlanes", table, at)
	p.ADD(Imm(4*panelRows), at, at)
	p.SUB(p.n.Shl(2), at, at)
	p.VLD1(at.At(0), view(p.masks, S4)...)
	p.Free(at)
}

// columns packs all columns of a panel.
func (p *packWriter) columns(masked bool) {
	mask := func(lanes int, v Vec) {
		if masked {
			p.VAND(p.masks[lanes].B16(), v.B16(), v.B16())
		}
	}
	p.steps(p.left, 4, func() {
		for half := range 2 {
			for i := range 2 {
				lanes := 2*half + i
				out := p.out[4*i : 4*i+4]
				p.transpose(p.rows[4*lanes:4*lanes+4], out)
				for _, v := range out {
					mask(lanes, v)
				}
			}
			for kk := range 4 {
				p.FSTPQ(p.out[kk], p.out[4+kk], p.to.At(4*panelRows*kk+32*half))
			}
		}
		p.ADD(Imm(4*4*panelRows), p.to, p.to)
	})
	p.steps(p.left, 1, func() {
		for i, row := range p.rows {
			p.VLD1e(row.Post(4), p.out[i/4].S(i%4))
		}
		for lanes, v := range p.out[:4] {
			mask(lanes, v)
		}
		p.VST1(p.to.Post(4*panelRows), view(p.out[:4], S4)...)
	})
}

// transpose loads 4 columns of 4 rows and makes a vector of each column.
func (p *packWriter) transpose(rows []GP, out []Vec) {
	x, t := p.words[:4], p.words[4:]
	for i, row := range rows {
		p.FMOVQ(row.Post(16), x[i])
	}
	p.turn(x, t, out)
}

// turn makes columns of 4 rows, by way of t.
func (p *packWriter) turn(x, t, out []Vec) {
	p.VTRN1(x[1].S4(), x[0].S4(), t[0].S4())
	p.VTRN2(x[1].S4(), x[0].S4(), t[1].S4())
	p.VTRN1(x[3].S4(), x[2].S4(), t[2].S4())
	p.VTRN2(x[3].S4(), x[2].S4(), t[3].S4())
	p.VTRN1(t[2].D2(), t[0].D2(), out[0].D2())
	p.VTRN1(t[3].D2(), t[1].D2(), out[1].D2())
	p.VTRN2(t[2].D2(), t[0].D2(), out[2].D2())
	p.VTRN2(t[3].D2(), t[1].D2(), out[3].D2())
}

// liftNEON multiplies rows. A sum of the results times zero tells whether one of them is not finite: it is NaN then.
//
//	computes   dst[i*ldd+kk] = x[i*ldx+kk] * by; the result is whether all are finite
//	registers  x, dst, their strides and rows, rows left, left; by, zero, 4 vectors of values and 4 of sums
//	reads      x, by 16 values, 4 and 1 of a row
//	order      row by row
//	limits     none
func liftNEON(a *A) {
	x, dst, ldx, ldd := a.Base("x"), a.Base("dst"), a.Arg("ldx"), a.Arg("ldd")
	rows, left, xp, to := a.Arg("m"), a.GP("left"), a.GP("xp"), a.GP("to")
	by, zero, values, sums := a.ArgF("by"), a.Vec("zero"), a.Vecs("values", 4), a.Vecs("sums", 4)
	a.LSL(Imm(2), ldx, ldx)
	a.LSL(Imm(2), ldd, ldd)
	a.Zero(zero)
	for _, s := range sums {
		a.Zero(s)
	}
	a.steps(rows, 1, func() {
		a.Copy(x, xp)
		a.Copy(dst, to)
		a.Reload("k", left)
		a.pieces(left, func(lanes int) {
			vs := vectorsFor(values, lanes)
			a.loadLanes(xp.Post(4*lanes), vs, lanes)
			for _, v := range vs {
				a.VFMUL(by.S(0), v.S4(), v.S4())
			}
			for i, v := range vs {
				a.VFMLA(zero.S4(), v.S4(), sums[i].S4())
			}
			a.storeLanes(vs, lanes, to.Post(4*lanes))
		})
		a.ADD(ldx, x, x)
		a.ADD(ldd, dst, dst)
	})
	for i := len(sums) / 2; i > 0; i /= 2 {
		for j := range i {
			a.VFADD(sums[i+j].S4(), sums[j].S4(), sums[j].S4())
		}
	}
	a.VFCMEQ0(sums[0].S4(), sums[0].S4())
	a.VUMINV(sums[0].S4(), zero)
	a.FMOVSgp(zero, left)
	a.AND(Imm(1), left, left)
	a.Result(left)
	a.Done()
}
