package workshop

// The tile of the values is 8 rows by 12 columns: 24 sums, 4 vectors of p for two keys and 4 of v, which is all 32
// registers. A key has 24 fma for 5 loads; 6 rows by 16 columns would have them for 6, of which a core that starts no
// fma beside a load (A53, A55) feels each. TestValueLoops counts.
var (
	valueRows   = []int{8, 6, 4, 3, 2, 1}
	valueStrips = []valueTileNEON{{lanes: 4, vecs: 3}, {lanes: 4, vecs: 2}, {lanes: 4, vecs: 1}, {lanes: 2, vecs: 1}, {lanes: 1, vecs: 1}}
)

// valueWriter writes a Value kernel.
type valueWriter struct {
	*A
	masked bool            // skips hidden keys
	pairs  *valuePairsNEON // of the kernels of pairs, whose keys are pairs

	v, p, o       GP // of the strip; of the tile's first row
	ldv, ldp, ldo GP // in bytes
	colsLeft      GP // from the strip on
	rowsLeft      GP // from the tile on
	keysLeft      GP
	kv, kp, op    GP // of a key; of a row
	word, bits    GP // scratch
	hidden        GP // two words of -0
}

// valueTileNEON is a tile of rows by vecs vectors. Only the last ones of a row have less than 4 lanes.
type valueTileNEON struct {
	*valueWriter
	rows, vecs, lanes int
	sums              []Vec // row by row
}

// valueNEON adds a tile of values to its rows.
//
//	computes   o[j][c] = o[j][c]*alpha[j], then fma(p[key][j], v[key][c], o[j][c]) for each key in order
//	registers  V0 up the sums, row by row; then p, an element for a row; then v
//	reads      v once for each tile of rows: a strip of 12 columns stays in L1; o once; p once for each strip
//	order      strips of columns, in them tiles of rows, in them keys
//	limits     none
func valueNEON(a *A) { valueBodyNEON(a, nil, false) }

// valueMaskedNEON skips the keys whose p is -0. Groups of keys without a sign bit in the p of a tile, which are most,
// run as in valueNEON; the others go key by key: a key that is hidden from all rows is passed over, else each row looks.
//
//	computes   valueNEON without the terms whose p is -0
//	registers  as valueNEON
//	reads      as valueNEON, and each p once more for each strip, as an integer
//	order      as valueNEON
//	limits     none
func valueMaskedNEON(a *A) { valueBodyNEON(a, nil, true) }

// valueCausalNEON is valueMaskedNEON: the p of keys that a row does not see are -0, so the kernel's last parameter says
// nothing new.
//
//	computes   ValueTileMasked
//	registers  as valueMaskedNEON
//	reads      as valueMaskedNEON
//	order      as valueMaskedNEON
//	limits     none
func valueCausalNEON(a *A) { valueBodyNEON(a, nil, true) }

func valueBodyNEON(a *A, pairs *valuePairsNEON, masked bool) {
	if pairs != nil && !masked {
		x, end := a.Base("next"), a.Len("next")
		a.askLines(x, end)
		a.Free(x, end)
	}
	w := &valueWriter{A: a, masked: masked, pairs: pairs, p: a.GP("p"), o: a.GP("o"), rowsLeft: a.GP("rows left"), keysLeft: a.GP("keys left"),
		kv: a.GP("kv"), kp: a.GP("kp"), op: a.GP("op"), word: a.GP("word"), bits: a.GP("bits")}
	w.v, w.colsLeft = a.Base("v"), a.Arg("cols")
	w.ldv, w.ldp, w.ldo = a.Arg("ldv"), a.Arg("ldp"), a.Arg("ldo")
	logKey := 2
	if pairs != nil {
		logKey = 1
		pairs.take(w)
	}
	a.LSL(Imm(logKey), w.ldv, w.ldv)
	a.LSL(Imm(logKey), w.ldp, w.ldp)
	a.LSL(Imm(2), w.ldo, w.ldo)
	if masked {
		w.hidden = a.GP("hidden")
		a.Const(w.hiddenWords(), w.hidden)
	}
	for i, t := range valueStrips {
		next, end, columns := a.Fresh("strip"), a.Fresh("strip_end"), t.vecs*t.lanes
		t.valueWriter = w
		a.Label(next)
		a.CMP(Imm(columns), w.colsLeft)
		a.BLT(end)
		t.strip()
		a.ADD(Imm(4*columns), w.v, w.v)
		a.SUB(Imm(columns), w.colsLeft, w.colsLeft)
		if i == 0 { // what is left then is less than twice any of the others
			a.B(next)
		}
		a.Label(end)
	}
	a.Done()
}

// strip takes all rows through the strip at v: 8 at a time, 10 as 6 and 4, 9 as 6 and 3, 7 as 4 and 3, 5 as 3 and 2.
func (t valueTileNEON) strip() {
	t.Reload("o", t.o)
	t.Reload("cols", t.word)
	t.SUB(t.colsLeft, t.word, t.word)
	t.ADD(t.word.Shl(2), t.o, t.o)
	t.Reload("p", t.p)
	t.Reload("n", t.rowsLeft)

	next, end := t.Fresh("rows"), t.Fresh("rows_end")
	tiles := map[int]string{}
	for _, n := range valueRows {
		tiles[n] = t.Fresh("tile")
	}
	t.Label(next)
	for _, c := range []struct{ over, rows int }{{10, 8}, {8, 6}, {7, 8}, {6, 4}, {5, 6}, {4, 3}, {3, 4}, {2, 3}, {1, 2}, {0, 1}} {
		t.CMP(Imm(c.over), t.rowsLeft)
		t.BGT(tiles[c.rows])
	}
	t.B(end)
	for _, n := range valueRows {
		t.Label(tiles[n])
		t.rows = n
		t.tile()
		t.ADD(Imm(4*n), t.p, t.p)
		t.SUB(Imm(n), t.rowsLeft, t.rowsLeft)
		t.B(next)
	}
	t.Label(end)
}

// tile takes the outputs of a tile through all keys, and o on to the next tile.
func (t valueTileNEON) tile() {
	if t.pairs != nil {
		defer t.pairs.weights(t)()
	}
	t.sums = t.Vecs("sums", t.rows*t.vecs)
	if t.pairs != nil {
		t.pairs.open(t)
	} else {
		t.open()
	}
	t.Copy(t.p, t.kp)
	t.Copy(t.v, t.kv)
	t.keys()
	t.eachRow(t.o, t.store)
	t.FreeVecs(t.sums...)
}

// open loads the outputs and scales them, if there is an alpha: where it is 1 to the same bits.
func (t valueTileNEON) open() {
	plain, alpha := t.Fresh("plain"), t.weights()
	t.Copy(t.o, t.op)
	t.eachRow(t.op, t.load)
	t.Reload("alpha", t.word)
	t.CBZ(t.word, plain)
	t.Reload("p", t.bits)
	t.SUB(t.bits, t.p, t.bits)
	t.ADD(t.bits, t.word, t.word)
	t.loadWeights(t.word, alpha)
	for r := range t.rows {
		for _, s := range t.row(r) {
			t.VFMUL(t.weight(alpha, r), s.S4(), s.S4())
		}
	}
	t.Label(plain)
	t.FreeVecs(alpha...)
}

// keys adds all keys, what is left of them by groups first.
func (t valueTileNEON) keys() {
	step, group, end := t.Fresh("step"), t.Fresh("group"), t.Fresh("keys_end")
	groups := t.vecs > 1 // the narrow strips are rare
	t.Reload(t.keysName(), t.keysLeft)
	t.CMP(Imm(0), t.keysLeft)
	t.BLE(end)
	if groups {
		t.TST(Imm(keyGroup-1), t.keysLeft)
		t.BEQ(group)
	}
	t.Label(step)
	t.step()
	t.SUBS(Imm(1), t.keysLeft, t.keysLeft)
	if groups {
		t.BEQ(end)
		t.TST(Imm(keyGroup-1), t.keysLeft)
	}
	t.BNE(step)
	if groups {
		t.Label(group)
		if t.masked {
			t.signs(step)
		}
		t.group()
		t.SUBS(Imm(keyGroup), t.keysLeft, t.keysLeft)
		t.BNE(group)
	}
	t.Label(end)
}

// group adds some keys. The vectors of v take turns in their registers, p is loaded a key ahead.
func (t valueTileNEON) group() {
	if t.pairs != nil {
		t.pairs.group(t)
		return
	}
	p := [2][]Vec{t.weights(), t.weights()}
	v := t.Vecs("v", min(2*t.vecs, 32-len(t.sums)-2*len(p[0])))
	weights := func(key int) {
		t.loadWeights(t.kp, p[key%2])
		t.ADD(t.ldp, t.kp, t.kp)
	}
	weights(0)
	t.inTurns(keyGroup*t.vecs, len(v), func(i, turn int) {
		t.load(t.kv, i%t.vecs, v[turn])
		if i%t.vecs == t.vecs-1 {
			t.ADD(t.ldv, t.kv, t.kv)
		}
	}, func(i, turn int) {
		key, w := i/t.vecs, i%t.vecs
		if w == 0 && key+1 < keyGroup {
			weights(key + 1)
		}
		for r := range t.rows {
			t.VFMLA(t.weight(p[key%2], r), v[turn].S4(), t.row(r)[w].S4())
		}
	})
	t.FreeVecs(p[0]...)
	t.FreeVecs(p[1]...)
	t.FreeVecs(v...)
}

// step adds one key.
func (t valueTileNEON) step() {
	if t.pairs != nil {
		t.pairs.step(t)
		return
	}
	p, v, passed := t.weights(), t.Vecs("v", t.vecs), t.Fresh("passed")
	if t.masked {
		t.passHidden(passed)
	}
	t.loadWeights(t.kp, p)
	for w := range v {
		t.load(t.kv, w, v[w])
	}
	for r := range t.rows {
		skip := t.Fresh("skip")
		if t.masked && t.rows > 1 {
			t.MOVWU(t.kp.At(4*r), t.word)
			t.CMPW(t.hidden, t.word)
			t.BEQ(skip)
		}
		for w, s := range t.row(r) {
			t.VFMLA(t.weight(p, r), v[w].S4(), s.S4())
		}
		t.Label(skip)
	}
	t.Label(passed)
	t.ADD(t.ldp, t.kp, t.kp)
	t.ADD(t.ldv, t.kv, t.kv)
	t.FreeVecs(p...)
	t.FreeVecs(v...)
}

// passHidden goes to passed if the key at kp is hidden from all rows.
func (t valueTileNEON) passHidden(passed string) {
	seen := t.Fresh("seen")
	for r := 0; r < t.rows; r += 2 {
		t.loadPair(t.kp, r, t.word)
		if r+1 == t.rows {
			t.CMPW(t.hidden, t.word)
		} else {
			t.CMP(t.hidden, t.word)
		}
		if r+2 < t.rows {
			t.BNE(seen)
		} else {
			t.BEQ(passed)
		}
	}
	t.Label(seen)
}

// signs goes to step if any p of the group at kp has its sign bit set, as -0 has.
func (t valueTileNEON) signs(step string) {
	key := t.op
	t.Copy(t.kp, key)
	for i := range keyGroup {
		for r := 0; r < t.rows; r += 2 {
			if i == 0 && r == 0 {
				t.loadPair(key, r, t.bits)
				continue
			}
			t.loadPair(key, r, t.word)
			t.ORR(t.word, t.bits, t.bits)
		}
		if i+1 < keyGroup {
			t.ADD(t.ldp, key, key)
		}
	}
	t.TST(t.hidden, t.bits)
	t.BNE(step)
}

// loadPair loads the p of two rows, or of the last one, as integers.
func (t valueTileNEON) loadPair(key GP, r int, to GP) {
	if r+1 == t.rows {
		t.MOVWU(key.At(4*r), to)
	} else {
		t.MOVD(key.At(4*r), to)
	}
}

// pieces is how many rows have their factor in each vector: 4 and 4 of 8, 4 and 2 of 6, 2 and 1 of 3.
func (t valueTileNEON) pieces() (lanes []int) {
	left := t.rows
	for _, n := range []int{4, 4, 2, 1} {
		if n <= left {
			lanes = append(lanes, n)
			left -= n
		}
	}
	return lanes
}

// weights takes the vectors of a factor for each row, loadWeights loads them, weight is the one of row r.
func (t valueTileNEON) weights() []Vec { return t.Vecs("weights", len(t.pieces())) }

func (t valueTileNEON) loadWeights(from GP, to []Vec) {
	at := 0
	for i, lanes := range t.pieces() {
		t.loadFew(from.At(at), to[i], lanes)
		at += 4 * lanes
	}
}

func (t valueTileNEON) weight(of []Vec, r int) View {
	i := 0
	for ; r >= t.pieces()[i]; i++ {
		r -= t.pieces()[i]
	}
	return of[i].S(r)
}

// row is the sums of row r.
func (t valueTileNEON) row(r int) []Vec { return t.sums[r*t.vecs:][:t.vecs] }

// eachRow moves all sums from or to the rows of o that begin at a pointer, and takes that behind them.
func (t valueTileNEON) eachRow(o GP, move func(row GP, w int, v Vec)) {
	for r := range t.rows {
		for w, s := range t.row(r) {
			move(o, w, s)
		}
		t.ADD(t.ldo, o, o)
	}
}

// load and store move vector w of a row.
func (t valueTileNEON) load(row GP, w int, v Vec)  { t.loadFew(row.At(16*w), v, t.lanes) }
func (t valueTileNEON) store(row GP, w int, v Vec) { t.storeFew(v, row.At(16*w), t.lanes) }

// loadFew loads 1, 2 or 4 float32 from any offset, storeFew stores them.
func (a *A) loadFew(m Mem, v Vec, lanes int) {
	map[int]func(Mem, Vec){1: a.FMOVS, 2: a.FMOVD, 4: a.FMOVQ}[lanes](m, v)
}

func (a *A) storeFew(v Vec, m Mem, lanes int) {
	map[int]func(Vec, Mem){1: a.FMOVSto, 2: a.FMOVDto, 4: a.FMOVQto}[lanes](v, m)
}
