package workshop

// valuePairsNEON is the part of the Value kernels that takes pairs of keys. A word of p or of v is a pair, so that a tile
// has its rows and columns where it has them for float32.
type valuePairsNEON struct {
	dots  bool
	upper Vec // the mask of the second values, unless dots
	minus GP  // the bits of -1

	p, second []Vec // of a pair: p as it is, or its first values and its second ones
	ahead     []Vec // with dots, p of the next pair
}

// valueTilePairsNEON is valueNEON on pairs of keys, by two fma: the second key first.
//
//	computes   o[j][c] = o[j][c]*alpha[j], +0 below 2^-95 and where alpha[j] is -0, then the steps of each pair in order,
//	           its second key first
//	registers  V0 a mask; then p, an element for a row, in first and second values; the sums, row by row; 3 for v
//	reads      as valueNEON
//	order      as valueNEON
//	limits     none
func valueTilePairsNEON(a *A) { valueBodyNEON(a, &valuePairsNEON{}, false) }

// valueTilePairsMaskedNEON is valueMaskedNEON on pairs of keys. In pairs that go one by one each row looks at both of its
// keys.
//
//	computes   valueTilePairsNEON without the terms whose p is -0
//	registers  as valueTilePairsNEON
//	reads      as valueTilePairsNEON, and each p once more for each strip, as an integer
//	order      as valueTilePairsNEON
//	limits     none
func valueTilePairsMaskedNEON(a *A) { valueBodyNEON(a, &valuePairsNEON{}, true) }

// valueTilePairsDotsNEON is valueTilePairsNEON by BFMLALT, which multiplies the second values of pairs, and BFMLALB.
//
//	computes   as valueTilePairsNEON
//	registers  V0 up p of two pairs, an element for a row and key; then the sums, row by row; then v
//	reads      as valueNEON
//	order      as valueNEON
//	limits     none
func valueTilePairsDotsNEON(a *A) { valueBodyNEON(a, &valuePairsNEON{dots: true}, false) }

// valueTilePairsMaskedDotsNEON is valueTilePairsMaskedNEON by BFMLALT and BFMLALB.
//
//	computes   as valueTilePairsMaskedNEON
//	registers  as valueTilePairsDotsNEON
//	reads      as valueTilePairsMaskedNEON
//	order      as valueNEON
//	limits     none
func valueTilePairsMaskedDotsNEON(a *A) { valueBodyNEON(a, &valuePairsNEON{dots: true}, true) }

// valueTilePairsCausalNEON is valueTilePairsMaskedNEON, as valueCausalNEON is valueMaskedNEON.
//
//	computes   as valueTilePairsMaskedNEON
//	registers  as valueTilePairsNEON
//	reads      as valueTilePairsMaskedNEON
//	order      as valueTilePairsNEON
//	limits     none
func valueTilePairsCausalNEON(a *A) { valueBodyNEON(a, &valuePairsNEON{}, true) }

// valueTilePairsCausalDotsNEON is valueTilePairsMaskedDotsNEON.
//
//	computes   as valueTilePairsMaskedNEON
//	registers  as valueTilePairsDotsNEON
//	reads      as valueTilePairsMaskedNEON
//	order      as valueNEON
//	limits     none
func valueTilePairsCausalDotsNEON(a *A) { valueBodyNEON(a, &valuePairsNEON{dots: true}, true) }

// keysName is the parameter that counts keys, or pairs of them.
func (w *valueWriter) keysName() string {
	if w.pairs != nil {
		return "pairs"
	}
	return "keys"
}

// hiddenWords is p of a key that two rows do not see, or of a pair.
func (w *valueWriter) hiddenWords() int64 {
	if w.pairs != nil {
		return hiddenPair<<32 + hiddenPair - 1<<64
	}
	return -1<<63 | hiddenBits
}

// take takes what stays.
func (q *valuePairsNEON) take(w *valueWriter) {
	q.minus = w.GP("minus one")
	if !q.dots {
		q.upper = w.words(0xFFFF0000, q.minus)
	}
	w.Const(minusOneBits, q.minus)
}

// weights takes the vectors of p of a tile, before its sums: elements of 16 bits are in the first half of the registers.
func (q *valuePairsNEON) weights(t valueTileNEON) (free func()) {
	q.p, q.second, q.ahead = t.weights(), nil, nil
	if q.dots {
		q.ahead = t.weights()
	} else {
		q.second = t.weights()
	}
	return func() {
		t.FreeVecs(q.p...)
		t.FreeVecs(q.second...)
		t.FreeVecs(q.ahead...)
	}
}

// open loads the outputs, and scales those of the rows whose alpha is not -1. At -0 they are zero.
func (q *valuePairsNEON) open(t valueTileNEON) {
	plain := t.Fresh("plain")
	t.Copy(t.o, t.op)
	t.eachRow(t.op, t.load)
	t.Reload("alpha", t.word)
	t.CBZ(t.word, plain)
	t.Reload("p", t.bits)
	t.SUB(t.bits, t.p, t.bits)
	t.ADD(t.bits, t.word, t.bits)
	below, alpha, mask := t.words(leastSum-1, t.word), t.Vec("alpha"), t.Vec("mask")
	anew := t.GP("anew")
	t.Const(hiddenBits, anew)
	for r := range t.rows {
		leave, scale := t.Fresh("leave"), t.Fresh("scale")
		t.MOVWU(t.bits.At(4*r), t.word)
		t.CMPW(q.minus, t.word)
		t.BEQ(leave)
		t.CMPW(anew, t.word)
		t.BNE(scale)
		for _, s := range t.row(r) {
			t.Zero(s)
		}
		t.B(leave)
		t.Label(scale)
		t.FMOVSvec(t.word, alpha)
		for _, s := range t.row(r) {
			t.VFMUL(alpha.S(0), s.S4(), s.S4())
			t.VFABS(s.S4(), mask.S4())
			t.VCMGT(below.S4(), mask.S4(), mask.S4())
			t.VAND(mask.B16(), s.B16(), s.B16())
		}
		t.Label(leave)
	}
	t.Label(plain)
	t.Free(anew)
	t.FreeVecs(below, alpha, mask)
}

// group adds some pairs. With dots the vectors of v take turns, and p is loaded a pair ahead.
func (q *valuePairsNEON) group(t valueTileNEON) {
	if !q.dots {
		for range keyGroup {
			q.splitPair(t, func(_ int, add func(rows ...int)) { add(allRows(t)...) })
		}
		return
	}
	p := [2][]Vec{q.p, q.ahead}
	v := t.Vecs("v", min(2*t.vecs, 32-len(t.sums)-2*len(q.p)))
	load := func(pair int) {
		t.loadWeights(t.kp, p[pair%2])
		t.ADD(t.ldp, t.kp, t.kp)
	}
	load(0)
	t.inTurns(keyGroup*t.vecs, len(v), func(i, turn int) {
		t.load(t.kv, i%t.vecs, v[turn])
		if i%t.vecs == t.vecs-1 {
			t.ADD(t.ldv, t.kv, t.kv)
		}
	}, func(i, turn int) {
		pair, w := i/t.vecs, i%t.vecs
		if w == 0 && pair+1 < keyGroup {
			load(pair + 1)
		}
		for r := range t.rows {
			t.VBFMLALT(t.pairWeight(p[pair%2], r, 1), v[turn].H8(), t.row(r)[w].S4())
		}
		for r := range t.rows {
			t.VBFMLALB(t.pairWeight(p[pair%2], r, 0), v[turn].H8(), t.row(r)[w].S4())
		}
	})
	t.FreeVecs(v...)
}

func allRows(t valueTileNEON) (rows []int) {
	for r := range t.rows {
		rows = append(rows, r)
	}
	return rows
}

// pairWeight is a value of the pair of row r.
func (t valueTileNEON) pairWeight(of []Vec, r, place int) View {
	word := t.weight(of, r)
	return View{word.num, elemH, 2*word.index + place}
}

// splitPair adds a pair of keys: it splits p, then each vector of v, while the next one is loaded. For each of the two
// keys, the second one first, do says with add to which rows.
func (q *valuePairsNEON) splitPair(t valueTileNEON, do func(place int, add func(rows ...int))) {
	v := t.Vecs("v", 3)
	t.loadWeights(t.kp, q.p)
	t.load(t.kv, 0, v[0])
	for i, p := range q.p {
		t.VAND(q.upper.B16(), p.B16(), q.second[i].B16())
		t.VSHL(16, p.S4(), p.S4())
	}
	for w := range t.vecs {
		first, next, second := v[w%2], v[1-w%2], v[2]
		if w+1 < t.vecs {
			t.load(t.kv, w+1, next)
		}
		t.VAND(q.upper.B16(), first.B16(), second.B16())
		t.VSHL(16, first.S4(), first.S4())
		for place := 1; place >= 0; place-- {
			p, of := q.p, first
			if place == 1 {
				p, of = q.second, second
			}
			do(place, func(rows ...int) {
				for _, r := range rows {
					t.VFMLA(t.weight(p, r), of.S4(), t.row(r)[w].S4())
				}
			})
		}
	}
	t.ADD(t.ldp, t.kp, t.kp)
	t.ADD(t.ldv, t.kv, t.kv)
	t.FreeVecs(v...)
}

// step adds one pair.
func (q *valuePairsNEON) step(t valueTileNEON) {
	passed, end := t.Fresh("passed"), t.Fresh("added")
	if t.masked {
		t.passHidden(passed)
	}
	if q.dots {
		q.dotStep(t)
	} else {
		q.splitPair(t, func(place int, add func(rows ...int)) {
			if !t.masked {
				add(allRows(t)...)
				return
			}
			for r := range t.rows {
				t.unlessHidden(r, place, func() { add(r) })
			}
		})
	}
	t.B(end)
	t.Label(passed)
	t.ADD(t.ldp, t.kp, t.kp)
	t.ADD(t.ldv, t.kv, t.kv)
	t.Label(end)
}

// dotStep adds one pair, row by row.
func (q *valuePairsNEON) dotStep(t valueTileNEON) {
	v := t.Vecs("v", t.vecs)
	t.loadWeights(t.kp, q.p)
	for w := range v {
		t.load(t.kv, w, v[w])
	}
	for r := range t.rows {
		for place := 1; place >= 0; place-- {
			add := []func(m, n, d View){t.VBFMLALB, t.VBFMLALT}[place]
			t.unlessHidden(r, place, func() {
				for w, s := range t.row(r) {
					add(t.pairWeight(q.p, r, place), v[w].H8(), s.S4())
				}
			})
		}
	}
	t.ADD(t.ldp, t.kp, t.kp)
	t.ADD(t.ldv, t.kv, t.kv)
	t.FreeVecs(v...)
}

// unlessHidden does something unless a key of the pair at kp is hidden from row r.
func (t valueTileNEON) unlessHidden(r, place int, do func()) {
	if !t.masked {
		do()
		return
	}
	skip := t.Fresh("skip")
	t.MOVHU(t.kp.At(4*r+2*place), t.word)
	t.CMP(Imm(0x8000), t.word)
	t.BEQ(skip)
	do()
	t.Label(skip)
}
