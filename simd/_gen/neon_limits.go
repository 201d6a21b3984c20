package workshop

// fmaLoopNEON keeps the fma units as busy as they can be: 16 values hide a latency of 4 on four units. An fma of a vector
// adds to its destination, which must be b before, and a copy would take the place of an fma. So b is loaded, two vectors
// at a time, from the memory of the values, which are in registers meanwhile. 8 registers are ahead with b, so that the
// values wander through 24 and are in their places again after 3 rounds.
//
//	computes   x = fma(x, a, b), n times
//	registers  V0 to V23 x and b, a, b; x, left
//	reads      x, 16 vectors at a time, which is b then
//	order      16 vectors n times, then the next
//	limits     the load of a vector for each fma, where a core starts fewer of those
func fmaLoopNEON(a *A) {
	const values, vectors, ahead = 192, 16, 8
	x, left, n := a.Base("x"), a.GP("left"), a.Arg("n")
	ring := a.Vecs("ring", vectors+ahead)
	f, b := a.ArgF("a"), a.ArgF("b")
	a.VDUPe(f.S(0), f.S4())
	a.VDUPe(b.S(0), b.S4())
	round := func(first int) {
		at := func(i int) Vec { return ring[(first+i)%len(ring)] }
		for i := 0; i < vectors; i += 2 {
			to, and := at(vectors+i), at(vectors+i+1)
			a.FLDPQ(x.At(0), to, and)
			a.VFMLA(f.S4(), at(i).S4(), to.S4())
			a.VFMLA(f.S4(), at(i+1).S4(), and.S4())
		}
	}
	done := a.Fresh("done")
	a.CMP(Imm(0), n)
	a.BLE(done)
	for range values / 4 / vectors {
		for i := 0; i < vectors; i += 2 {
			a.FLDPQ(x.At(16*i), ring[i], ring[i+1])
		}
		a.FSTPQ(b, b, x.At(0))
		a.Copy(n, left)
		a.steps(left, len(ring)/ahead, func() {
			for i := range len(ring) / ahead {
				round(vectors * i)
			}
		})
		a.steps(left, 1, func() {
			round(0)
			for i := range vectors { // the last of them are where the others go
				i = (i + ahead) % vectors
				a.VMOV(ring[(vectors+i)%len(ring)].B16(), ring[i].B16())
			}
		})
		for i := 0; i < vectors; i += 2 {
			a.FSTPQ(ring[i], ring[i+1], x.At(16*i))
		}
		a.ADD(Imm(16*vectors), x, x)
	}
	a.Label(done)
	a.Done()
}

// pairLoopNEON keeps the fma units as busy as pair steps can.
//
//	computes   x = fma(a[1], b[1], x), then x = fma(a[0], b[0], x), n times
//	registers  x, left, n; the halves of a, in all lanes, and of b; 24 vectors of x
//	reads      x, 24 vectors at a time
//	order      24 vectors n times, then the next
//	limits     none
func pairLoopNEON(a *A) {
	word := a.GP("word")
	upper := a.words(0xFFFF0000, word)
	var halves [2][2]Vec // of a and b, the second value first
	for i, name := range []string{"a", "b"} {
		pair := a.Arg(name)
		second, first := a.Vec(name), a.Vec(name)
		a.VDUP(pair, first.S4())
		a.VAND(upper.B16(), first.B16(), second.B16())
		a.VSHL(16, first.S4(), first.S4())
		a.Free(pair)
		halves[i] = [2]Vec{second, first}
	}
	pairLoopBody(a, word, func(x []Vec) {
		for place := range 2 {
			for _, v := range x {
				a.VFMLA(halves[1][place].S4(), halves[0][place].S4(), v.S4())
			}
		}
	})
}

// pairLoopDotsNEON is pairLoopNEON by BFMLALT and BFMLALB.
//
//	computes   x = fma(a[1], b[1], x), then x = fma(a[0], b[0], x), n times
//	registers  x, left, n; a and b in all lanes; 24 vectors of x
//	reads      x, 24 vectors at a time
//	order      24 vectors n times, then the next
//	limits     none
func pairLoopDotsNEON(a *A) {
	word := a.GP("word")
	var pairs [2]Vec
	for i, name := range []string{"a", "b"} {
		pair := a.Arg(name)
		pairs[i] = a.Vec(name)
		a.VDUP(pair, pairs[i].S4())
		a.Free(pair)
	}
	pairLoopBody(a, word, func(x []Vec) {
		for _, v := range x {
			a.VBFMLALT(pairs[1].H(1), pairs[0].H8(), v.S4())
		}
		for _, v := range x {
			a.VBFMLALB(pairs[1].H(0), pairs[0].H8(), v.S4())
		}
	})
}

func pairLoopBody(a *A, left GP, step func(x []Vec)) {
	const values, vectors = 192, 24
	x, n := a.Base("x"), a.Arg("n")
	xs := a.Vecs("x", vectors)
	for range values / 4 / vectors {
		for i := 0; i < vectors; i += 2 {
			a.FLDPQ(x.At(16*i), xs[i], xs[i+1])
		}
		a.Copy(n, left)
		a.steps(left, 1, func() { step(xs) })
		for i := 0; i < vectors; i += 2 {
			a.FSTPQ(xs[i], xs[i+1], x.At(16*i))
		}
		a.ADD(Imm(16*vectors), x, x)
	}
	a.Done()
}

// xorWordsNEON reads memory and does little else.
//
//	computes   the exclusive or of all words of x
//	registers  x, left, two words; 8 vectors of sums and 8 of words
//	reads      x, 8 vectors at a time, the rest by words
//	order      from the front
//	limits     none
func xorWordsNEON(a *A) {
	x, left, sum, word := a.Base("x"), a.Len("x"), a.GP("sum"), a.GP("word")
	sums, words := a.Vecs("sums", 8), a.Vecs("words", 8)
	for _, s := range sums {
		a.Zero(s)
	}
	a.steps(left, 2*len(words), func() {
		for i := 0; i < len(words); i += 2 {
			a.FLDPQ(x.At(16*i), words[i], words[i+1])
		}
		a.ADD(Imm(16*len(words)), x, x)
		for i, w := range words {
			a.VEOR(w.B16(), sums[i].B16(), sums[i].B16())
		}
	})
	for step := len(sums) / 2; step > 0; step /= 2 {
		for i := range step {
			a.VEOR(sums[i+step].B16(), sums[i].B16(), sums[i].B16())
		}
	}
	a.VMOVto(sums[0].D(0), sum)
	a.VMOVto(sums[0].D(1), word)
	a.EOR(word, sum, sum)
	a.steps(left, 1, func() {
		a.MOVD(x.Post(8), word)
		a.EOR(word, sum, sum)
	})
	a.Result(sum)
	a.Done()
}

// prefetchNEON asks for lines in all caches: what it asks for is read within a tile's time.
//
//	computes   nothing
//	registers  the row, its length and stride, rows left; the line, the end of the row
//	reads      nothing: a prefetch never faults
//	order      row by row from the front, a line of 64 bytes at a time
//	limits     none
func prefetchNEON(a *A) {
	row, ld, n, rows := a.Base("x"), a.Arg("ld"), a.Arg("n"), a.Arg("rows")
	x, end := a.GP("line"), a.GP("end")
	next, done := a.Fresh("row"), a.Fresh("done")
	a.Label(next)
	a.SUBS(Imm(1), rows, rows)
	a.BLT(done)
	a.Copy(row, x)
	a.Copy(n, end)
	a.askLines(x, end)
	a.ADD(ld, row, row)
	a.B(next)
	a.Label(done)
	a.Done()
}

// askLines asks for n bytes from x on. It overwrites both.
func (a *A) askLines(x, n GP) {
	line, done := a.Fresh("line"), a.Fresh("asked")
	a.CMP(Imm(0), n)
	a.BLE(done)
	a.ADD(x, n, n)
	a.AND(Imm(-64), x, x)
	a.Label(line)
	a.PRFM(x.At(0), "PLDL1KEEP")
	a.ADD(Imm(64), x, x)
	a.CMP(n, x)
	a.BLO(line)
	a.Label(done)
}
