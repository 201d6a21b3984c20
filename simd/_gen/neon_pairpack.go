package workshop

// interleaveBF16NEON zips two keys.
//
//	computes   dst[(key/2)*ldd+2*c+key%2] = src[key*lds+c], +0 below 2^-52, and whether a value is below and not zero
//	registers  dst, src, two keys, where they go, strides, keys, left, one; 4 constants, two keys, zipped, work
//	reads      src, by 8 columns of two keys, the rest one by one
//	order      pairs of keys, in them columns
//	limits     none
func interleaveBF16NEON(a *A) {
	p := &interleaveWriter{
		A: a, first: a.GP("first"), second: a.GP("second"), to: a.GP("to"), left: a.GP("left"), one: a.GP("one"),
		a: a.Vec("a"), b: a.Vec("b"), zipped: a.Vec("zipped"), mask: a.Vec("mask"),
	}
	dst, ldd, src, lds, keys := a.Base("dst"), a.Arg("ldd"), a.Base("src"), a.Arg("lds"), a.Arg("keys")
	a.LSL(Imm(1), ldd, ldd)
	a.LSL(Imm(1), lds, lds)
	p.flusherNEON = a.newFlusher()
	p.tinyFinderNEON = a.newTinyFinder(p.flusherNEON.magnitude)
	row := func(both bool) {
		a.Copy(src, p.first)
		a.ADD(lds, src, src)
		if both {
			a.Copy(src, p.second)
			a.ADD(lds, src, src)
		}
		a.Copy(dst, p.to)
		a.ADD(ldd, dst, dst)
		a.Reload("cols", p.left)
		p.pair(both)
	}
	a.steps(keys, 2, func() { row(true) })
	done := a.Fresh("done")
	a.CBZ(keys, done)
	row(false)
	a.Label(done)
	p.result(p.one)
}

// interleaveWriter writes interleaveBF16NEON.
type interleaveWriter struct {
	*A
	*flusherNEON
	*tinyFinderNEON
	first, second, to  GP
	left, one          GP
	a, b, zipped, mask Vec
}

// pair lays two keys, or one and zeros.
func (p *interleaveWriter) pair(both bool) {
	a := p.A
	a.Zero(p.b)
	for _, lanes := range []int{8, 1} {
		a.steps(p.left, lanes, func() {
			a.loadHalves(p.first, []Vec{p.a}, lanes, p.one)
			p.look(p.a, p.mask)
			p.flush([]Vec{p.a}, []Vec{p.mask})
			if both {
				a.loadHalves(p.second, []Vec{p.b}, lanes, p.one)
				p.look(p.b, p.mask)
				p.flush([]Vec{p.b}, []Vec{p.mask})
			}
			a.VZIP1(p.b.H8(), p.a.H8(), p.zipped.H8())
			if lanes == 1 {
				a.FMOVSto(p.zipped, p.to.Post(4))
				return
			}
			a.VZIP2(p.b.H8(), p.a.H8(), p.mask.H8())
			a.FSTPQ(p.zipped, p.mask, p.to.Post(32))
		})
	}
}

// packPairsNEON rounds rows and transposes blocks of 4 rows by 4 pairs, 16 rows at a time, as packRowsNEON does words.
//
//	computes   dst[(j/16)*ldd + kk/2*32 + j%16*2 + kk%2] = src[j*lds+kk] rounded to bfloat16, +0 below 2^-60, 0 past n and k
//	registers  those of packRowsNEON; 4 constants more, and 4 vectors of work
//	reads      src, 8 columns at a time of 16 rows, the rest by two and one
//	order      panels; in a panel columns
//	limits     the vector units, which round
func packPairsNEON(a *A) {
	packNEON(a, 1, func() func(p *packWriter, masked bool) {
		r := a.newRounder(leastAct, true)
		t, mask := a.Vecs("rounded", 2), a.Vecs("below", 2)
		return func(p *packWriter, masked bool) { p.pairs(r, t, mask, masked) }
	})
}

// pairs packs all columns of a panel in pairs.
func (p *packWriter) pairs(r *rounderNEON, t, below []Vec, masked bool) {
	mask := func(lanes int, v Vec) {
		if masked {
			p.VAND(p.masks[lanes].B16(), v.B16(), v.B16())
		}
	}
	x, work := p.words[:4], p.words[4:]
	p.steps(p.left, 8, func() {
		for lanes := range 4 {
			for i, row := range p.rows[4*lanes : 4*lanes+4] {
				v := p.out[4:6]
				p.FLDPQ(row.Post(32), v[0], v[1])
				r.act(v, t, below)
				p.VUZP2(v[1].H8(), v[0].H8(), x[i].H8())
			}
			p.turn(x, work, p.out[:4])
			for i, v := range p.out[:4] {
				mask(lanes, v)
				p.FMOVQto(v, p.to.At(4*panelRows*i+16*lanes))
			}
		}
		p.ADD(Imm(4*4*panelRows), p.to, p.to)
	})
	last := func(places int) {
		for i, row := range p.rows {
			for place := range places {
				p.VLD1e(row.Post(4), p.out[4*place+i/4].S(i%4))
			}
		}
		for lanes := range 4 {
			first, second := p.out[lanes], p.out[4+lanes]
			if places == 1 {
				p.Zero(second)
			}
			r.act([]Vec{first, second}, t, below)
			p.VSRI(16, first.S4(), second.S4())
			mask(lanes, second)
		}
		p.VST1(p.to.Post(4*panelRows), view(p.out[4:], S4)...)
	}
	p.steps(p.left, 2, func() { last(2) })
	p.steps(p.left, 1, func() { last(1) })
}

// pairPanelNEON rounds two rows of a panel and joins them.
//
//	computes   dst[kk/2*32 + lane*2 + kk%2] = src[kk*16+lane] rounded to bfloat16, +0 where that is below 2^-52
//	registers  dst, src, k; 4 constants, 4 vectors of each row, 8 of rounded values and 8 of masks
//	reads      src, two rows of a panel at once
//	order      from the front
//	limits     the vector units, which round
func pairPanelNEON(a *A) {
	dst, src, k := a.Base("dst"), a.Base("src"), a.Arg("k")
	r := a.newRounder(leastValue, true)
	rows, t, mask := a.Vecs("rows", 8), a.Vecs("rounded", 8), a.Vecs("masks", 8)
	first, second := rows[:4], rows[4:]
	join := func() {
		for i := range first {
			a.VSRI(16, first[i].S4(), second[i].S4())
		}
		a.VST1(dst.Post(64), view(second, S4)...)
	}
	a.steps(k, 2, func() {
		a.VLD1(src.Post(64), view(first, S4)...)
		a.VLD1(src.Post(64), view(second, S4)...)
		r.value(rows, t, mask)
		join()
	})
	a.steps(k, 1, func() {
		a.VLD1(src.Post(64), view(first, S4)...)
		for _, v := range second {
			a.Zero(v)
		}
		r.value(first, t, mask)
		join()
	})
	a.Done()
}

// pairPanelBF16NEON zips two rows of a panel.
//
//	computes   dst[kk/2*32 + lane*2 + kk%2] = src[kk*16+lane], +0 below 2^-52
//	registers  dst, src, k; 2 constants, 2 vectors of each row, 4 masks, which become pairs
//	reads      src, two rows of a panel at once
//	order      from the front
//	limits     none
func pairPanelBF16NEON(a *A) {
	dst, src, k := a.Base("dst"), a.Base("src"), a.Arg("k")
	f, rows, pairs := a.newFlusher(), a.Vecs("rows", 4), a.Vecs("pairs", 4)
	join := func(n int) {
		f.flush(rows[:2*n], pairs)
		for i := range 2 {
			first, second := rows[i].H8(), rows[2+i].H8()
			a.VZIP1(second, first, pairs[2*i].H8())
			a.VZIP2(second, first, pairs[2*i+1].H8())
		}
		a.VST1(dst.Post(64), view(pairs, H8)...)
	}
	a.steps(k, 2, func() {
		a.VLD1(src.Post(64), view(rows, H8)...)
		join(2)
	})
	a.steps(k, 1, func() {
		a.VLD1(src.Post(32), view(rows[:2], H8)...)
		for _, v := range rows[2:] {
			a.Zero(v)
		}
		join(1)
	})
	a.Done()
}
