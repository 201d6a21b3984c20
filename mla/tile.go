package mla

import (
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// tile is the work of a block of query rows on at most tileKeys keys: two products around a softmax.
//
//	s = x . q^T          keys by rows: keys are broadcast, rows are the lanes of the packed panels q
//	s = softmax tile     moves m, l; alpha scales what was summed before
//	o = o*alpha + s^T . v
//
// In the second arithmetic x, q and v are bf16 and lie in pairs, of terms and of keys; such a tile begins at an even
// position.
type tile struct {
	keys, rows int
	k          int // terms of a score
	cols       int // values of a key

	x   []float32 // [keys][k], rows ldx apart
	q   []float32 // [rows/Lanes][k][Lanes]
	v   []float32 // [keys][cols], rows ldv apart
	ldx int
	ldv int

	pairs bool     // the second arithmetic: in place of x, q and v
	px    []uint16 // [keys][k], rows ldx apart
	pq    []uint16 // [rows/Lanes][k/2][Lanes][2], see pairPanel
	pv    []uint16 // [keys/2][cols][2], pairs ldv apart; nil: values lie as rows, in unlaced
	// [keys][cols], rows ldu apart: they are laid in pairs a strip of columns at a time, next to its products
	unlaced []uint16
	ldu     int

	o    []float32 // [rows][cols], rows ldo apart
	ldo  int
	m, l []float32 // [rows]

	// Of a list that several tokens share: the positions of the keys, and where the rows stand: row j is that of a
	// token at pos0 + (row0+j)/heads, which must not see later positions. nil: the ranges say all.
	positions         []int32
	pos0, row0, heads int
	holes             []int32 // keys that no row sees, in the second arithmetic, where they keep others in their pairs

	next *ahead // nil: none
}

// ahead is memory that is used after a tile, or after a block of many rows: the rows of the next one, and what the end of
// a block reads and writes. It is asked for bit by bit while the work before it is done: all at once the requests would
// wait for each other, much earlier what they bring would be gone again.
type ahead struct {
	// Cache rows: n of a list, of physical rows if pool is set, else of positions; without a list those from pos on.
	view *kvpaged.View
	pool *kvpaged.PoolView
	list []int32
	pos  int
	n    int

	rows [3]strip

	part, parts int // parts that have been asked for, of all

	// Of these what lies in one piece, which products of values ask for on the way, piece bytes in a call.
	runs  [4][]byte
	piece int
}

// strip is rows of n bytes, ld apart.
type strip struct {
	x     []byte
	ld, n int
	rows  int
}

// part is one of n parts of the rows.
func (s strip) part(i, n int) strip {
	from, to := i*s.rows/n, (i+1)*s.rows/n
	if from >= to {
		return strip{}
	}
	return strip{s.x[from*s.ld:], s.ld, s.n, to - from}
}

// lines is rows of n values from element at on, ld apart; nothing unless they are read where they lie: float32, or
// bf16 in the second arithmetic.
func lines(x Rows, pairs bool, at, ld, n, rows int) strip {
	if rows <= 0 {
		return strip{}
	}
	if f := x.F32(); f != nil {
		return strip{mem.Bytes(f[at:]), 4 * ld, 4 * n, rows}
	}
	if h := x.BF16(); h != nil && pairs {
		return strip{mem.Bytes(h[at:]), 2 * ld, 2 * n, rows}
	}
	return strip{}
}

// Between parts a call does about as much as these rows of scores, or columns of values, of a tile.
const (
	askRows = 4 * simd.Lanes
	askCols = 64
)

// begin cuts what is asked for into parts, for so many calls that add values in pairs and ask themselves.
func (a *ahead) begin(parts, values int) {
	if a == nil {
		return
	}
	a.part, a.parts = 0, parts
	if values == 0 {
		return
	}
	total := 0
	for i, s := range a.rows {
		a.runs[i] = s.run()
		if a.runs[i] != nil {
			a.rows[i] = strip{}
		}
		total += len(a.runs[i])
	}
	if a.view != nil && a.list == nil && a.n > 0 && a.view.Mapped(a.pos) {
		if run, n := a.view.Run(a.pos); n >= a.n && len(a.view.Scales(a.pos)) == 0 {
			run = run[:len(run)/n*a.n]
			a.runs[len(a.rows)], a.n = run, 0
			total += len(run)
		}
	}
	a.piece = roundUp(ceilDiv(total, values), 64)
}

// run is the memory of the rows with what lies between them, if that is little.
func (s strip) run() []byte {
	const most = 2 * 64 // bytes between two rows
	if s.rows == 0 || s.ld > s.n+most {
		return nil
	}
	return s.x[:(s.rows-1)*s.ld+s.n]
}

// take gives a piece of the runs to a call.
func (a *ahead) take() []byte {
	if a == nil {
		return nil
	}
	for i, run := range a.runs {
		if len(run) > 0 {
			n := min(a.piece, len(run))
			a.runs[i] = run[n:]
			return run[:n]
		}
	}
	return nil
}

// ask asks for the next part.
func (a *ahead) ask() {
	if a == nil || a.part >= a.parts {
		return
	}
	parts := a.parts
	from, to := a.part*a.n/parts, (a.part+1)*a.n/parts
	switch {
	case a.pool != nil:
		a.pool.Prefetch(a.list[from:to])
	case a.view != nil && a.list != nil:
		a.view.PrefetchAt(a.list[from:to])
	case a.view != nil:
		a.view.Prefetch(a.pos+from, to-from)
	}
	for _, s := range a.rows {
		if s := s.part(a.part, parts); s.rows > 0 {
			simd.Prefetch(s.x, s.ld, s.n, s.rows)
		}
	}
	a.part++
}

// rest asks for all parts that are left.
func (a *ahead) rest() {
	for a != nil && a.part < a.parts {
		a.ask()
	}
	for run := a.take(); len(run) > 0; run = a.take() {
		simd.Prefetch(run, 0, len(run), 1)
	}
}

// attend does the work of a tile. s.lo and s.hi hold the range of keys that each row sees.
func (s *scratch) attend(t *tile, scale float32) {
	values := ceilDiv(t.cols, askCols)
	parts := ceilDiv(t.rows, askRows) + values
	if !seesAll(s.lo[:t.rows], s.hi[:t.rows], t.keys) {
		parts, values = 2*ceilDiv(t.rows, simd.Lanes), 0
	}
	if !t.pairs {
		values = 0
	}
	t.next.begin(parts, values)
	s.work(t, scale)
	t.next.rest()
}

// work is attend for a part of a tile. It asks for the next parts of t.next.
func (s *scratch) work(t *tile, scale float32) {
	lds := stride(t.rows)
	if seesAll(s.lo[:t.rows], s.hi[:t.rows], t.keys) {
		s.attendAll(t, lds, 0, t.rows, scale)
		return
	}
	if t.pairs && t.pv == nil {
		s.laceAll(t)
	}
	s.attendPanels(t, lds, scale)
}

// laceAll lays the values of t in pairs, all columns at once.
func (s *scratch) laceAll(t *tile) {
	t.pv, t.ldv = s.pairV, 2*stride(t.cols)
	simd.InterleaveBF16(t.pv, t.ldv, t.unlaced, t.ldu, t.keys, t.cols)
}

// attendAll is attend for n rows from row j on, a multiple of simd.Lanes, that see all keys.
func (s *scratch) attendAll(t *tile, lds, j, n int, scale float32) {
	kind := plain
	for at := j; at < j+n; at += askRows { // scores become probabilities while they are in the first level
		rows := min(askRows, j+n-at)
		t.scores(s.st, lds, at, rows, 0, t.keys)
		t.hide(s.st, lds, at, rows, scale)
		if s.softmax(t, lds, at, rows, t.keys, scale) {
			kind = masked
		}
	}
	s.addValues(t, kind, lds, s.alpha, j, n, 0, t.keys)
}

// softmax makes probabilities of the scores of the keys below keys and n rows from row j on. It tells whether a key in
// the range of its row is masked.
func (s *scratch) softmax(t *tile, lds, j, n, keys int, scale float32) bool {
	lo, hi, alpha := s.lo[j:j+n], s.hi[j:j+n], s.alpha[j:j+n]
	if t.pairs {
		return simd.SoftmaxTilePairs(s.pairP[2*j:], 2*lds, s.st[j:], lds, keys, n, lo, hi, scale, t.m[j:], t.l[j:], alpha)
	}
	return simd.SoftmaxTile(s.st[j:], lds, keys, n, lo, hi, scale, t.m[j:], t.l[j:], alpha)
}

// attendPanels is attend for rows that see different keys, as on the diagonal of a causal mask: panels whose rows see all
// keys together, each other panel of lanes by itself, which does nothing with the keys before and behind those that its
// rows see. Tiles with positions never come here: every row of an index list has the range of all keys.
func (s *scratch) attendPanels(t *tile, lds int, scale float32) {
	all := func(j int) bool {
		n := min(simd.Lanes, t.rows-j)
		return n > 0 && seesAll(s.lo[j:j+n], s.hi[j:j+n], t.keys)
	}
	for j, n := 0, 0; j < t.rows; j += n {
		n = 0
		for all(j + n) {
			n += min(simd.Lanes, t.rows-j-n)
		}
		if n > 0 {
			s.attendAll(t, lds, j, n, scale)
			continue
		}
		n = min(simd.Lanes, t.rows-j)
		lo, hi := s.lo[j:j+n], s.hi[j:j+n]
		first, last := union(lo, hi)
		if first == last {
			continue
		}
		first = t.pairDown(first)
		t.scores(s.st, lds, j, n, first, last)
		// The keys before first are places that nobody reads.
		if s.softmax(t, lds, j, n, last, scale) {
			s.addValues(t, masked, lds, s.alpha, j, n, first, last)
			continue
		}
		if staircase(lo, hi, first) {
			s.addValues(t, causal, lds, s.alpha, j, n, first, last)
			continue
		}
		s.ragged(t, lds, lo, hi, j)
	}
}

// pairDown and pairUp are the borders of pairs next to a key, which is one itself where there are no pairs.
func (t *tile) pairDown(key int) int {
	if t.pairs {
		return key &^ 1
	}
	return key
}

func (t *tile) pairUp(key int) int {
	if t.pairs {
		return (key + 1) &^ 1
	}
	return key
}

// staircase reports that all rows see the keys from first on, and each one more than the row before.
func staircase(lo, hi []int32, first int) bool {
	if int(hi[0]) < first {
		return false
	}
	for j := range lo {
		if int(lo[j]) != first || hi[j] != hi[0]+int32(j) {
			return false
		}
	}
	return true
}

// seesAll reports that every row sees every key.
func seesAll(lo, hi []int32, keys int) bool {
	for j := range lo {
		if lo[j] > 0 || int(hi[j]) < keys {
			return false
		}
	}
	return true
}

// most is the most multiply-adds of a call for t.
func (t *tile) most() int {
	if t.pairs {
		return simd.Blocks().CallPairs
	}
	return simd.Blocks().CallFMA
}

// scoreCall is how many rows and keys of scores of k terms a call may have, which are not more than most multiply-adds
// if that is enough for 4 keys of a panel.
func scoreCall(most, keys, k int) (int, int) {
	const few = 4 // keys that a register tile is glad of
	k = min(k, pieceK)
	keys = min(keys, max(most/(simd.Lanes*k)/few*few, few))
	return max(most/(keys*k)/simd.Lanes*simd.Lanes, simd.Lanes), keys
}

// valueCall is how many of n rows, and how many columns, of values of some keys a call may have, which are not more than
// most multiply-adds if that is enough for a register tile.
func valueCall(most, n, keys int) (rows, cols int) {
	const wide = 32 // columns of the widest register tile
	tile := simd.Blocks().RowTile
	keys = max(keys, 1)
	rows = min(n, max(most/(keys*wide)/tile*tile, tile))
	return rows, max(most/(rows*keys)/wide*wide, wide)
}

// scores computes the dot products of the keys [first, last) with n rows from row j on, a multiple of simd.Lanes: in
// pieces of pieceK terms, in calls of bounded length.
func (t *tile) scores(s []float32, lds, j, n, first, last int) {
	if first >= last {
		return
	}
	step, some := scoreCall(t.most(), last-first, t.k)
	if t.next != nil {
		step = min(step, askRows)
	}
	for end := j + n; j < end; j += step {
		rows := min(step, end-j)
		for key := first; key < last; key += some {
			keys, to := min(some, last-key), s[key*lds+j:]
			if t.pairs {
				t.pairScores(to, lds, j, rows, key, keys)
				continue
			}
			ldq := t.k * simd.Lanes
			q := t.q[j/simd.Lanes*ldq:]
			simd.PartSet(to, lds, t.x[key*t.ldx:], t.ldx, q, ldq, keys, rows, min(t.k, pieceK))
			for k0 := pieceK; k0 < t.k; k0 += pieceK {
				simd.PartAdd(to, lds, t.x[key*t.ldx+k0:], t.ldx, q[k0*simd.Lanes:], ldq, keys, rows, min(t.k-k0, pieceK))
			}
		}
		t.next.ask()
	}
}

// pairScores is one call's part of scores in the second arithmetic: rows of the panels from row j on.
func (t *tile) pairScores(to []float32, lds, j, rows, first, keys int) {
	ldq := pairPanel(t.k)
	q := t.pq[j/simd.Lanes*ldq:]
	simd.PairSet(to, lds, t.px[first*t.ldx:], t.ldx, q, ldq, keys, rows, min(t.k, pieceK))
	for k0 := pieceK; k0 < t.k; k0 += pieceK {
		simd.PairAdd(to, lds, t.px[first*t.ldx+k0:], t.ldx, q[k0*simd.Lanes:], ldq, keys, rows, min(t.k-k0, pieceK))
	}
}

// hide makes the scores of keys that a row must not see, of n rows from row j on, -Inf, which counts as masked: those of
// later positions, and holes.
func (t *tile) hide(s []float32, lds, j, n int, scale float32) {
	hidden := negInf
	if scale < 0 {
		hidden = -negInf
	}
	end := j + n
	for key, pos := range t.positions {
		for j := j; j < end; j++ {
			if int(pos) > t.pos0+(t.row0+j)/t.heads {
				s[key*lds+j] = hidden
			}
		}
	}
	for _, key := range t.holes {
		fill(s[int(key)*lds+j:][:n], hidden)
	}
}

// places says what the places of a tile of probabilities may be.
type places uint8

const (
	plain  places = iota // none is masked
	masked               // one that is -0 is skipped
	causal               // as masked: -0 are those of the keys that only later rows see, as staircase has it
)

// addValues adds the values of the keys [first, last) to n rows from row j on, in calls of bounded length. alpha, if not
// nil, has a factor for each row of the tile. first is a border of pairs, if there are any. On a staircase the last row
// sees the last key.
func (s *scratch) addValues(t *tile, kind places, lds int, alpha []float32, j, n, first, last int) {
	keys := last - first
	some, step := valueCall(t.most(), n, keys)
	if t.next != nil || t.pairs && t.pv == nil {
		step = min(step, askCols)
	}
	for c := 0; c < t.cols; c += step {
		cols := min(step, t.cols-c)
		var pv []uint16
		var ldv int
		if t.pairs {
			pv, ldv = s.pairStrip(t, c, first, cols)
		}
		for r := j; r < j+n; r += some {
			rows, o, seen := min(some, j+n-r), t.o[r*t.ldo+c:], keys-n+1+r-j
			var factors []float32
			if alpha != nil {
				factors = alpha[r : r+rows]
			}
			if t.pairs {
				p, pairs := s.pairP[first*lds+2*r:], (keys+1)/2
				switch kind {
				case plain:
					simd.ValueTilePairs(o, t.ldo, p, 2*lds, pv, ldv, factors, pairs, rows, cols, t.next.take())
				case masked:
					simd.ValueTilePairsMasked(o, t.ldo, p, 2*lds, pv, ldv, factors, pairs, rows, cols)
				case causal:
					simd.ValueTilePairsCausal(o, t.ldo, p, 2*lds, pv, ldv, factors, pairs, rows, cols, seen)
				}
				continue
			}
			p, v := s.st[first*lds+r:], t.v[first*t.ldv+c:]
			switch kind {
			case plain:
				simd.ValueTile(o, t.ldo, p, lds, v, t.ldv, factors, keys, rows, cols)
			case masked:
				simd.ValueTileMasked(o, t.ldo, p, lds, v, t.ldv, factors, keys, rows, cols)
			case causal:
				simd.ValueTileCausal(o, t.ldo, p, lds, v, t.ldv, factors, keys, rows, cols, seen)
			}
		}
		t.next.ask()
	}
}

// pairStrip is the values of cols columns from column c on, in pairs of the keys from first on.
func (s *scratch) pairStrip(t *tile, c, first, cols int) ([]uint16, int) {
	if t.pv != nil {
		return t.pv[first/2*t.ldv+2*c:], t.ldv
	}
	const ld = 2*askCols + 2*simd.Lanes // an odd number of lines
	simd.InterleaveBF16(s.pairV, ld, t.unlaced[first*t.ldu+c:], t.ldu, t.keys-first, cols)
	return s.pairV, ld
}

// ragged is addValues for a panel of rows from row j on that see the keys [lo, hi), none of whose scores is -Inf. Rows go in
// groups that fill a register tile or see the same keys; of a group's keys, those in the middle that all its rows see need
// no mask. Pairs that a border cuts do.
func (s *scratch) ragged(t *tile, lds int, lo, hi []int32, j int) {
	rowTile := simd.Blocks().RowTile
	for n := 0; len(lo) > 0; lo, hi, j = lo[n:], hi[n:], j+n {
		n = alike(lo, hi)
		if n < rowTile {
			n = min(rowTile, len(lo))
		}
		first, last := union(lo[:n], hi[:n])
		from, to := intersection(lo[:n], hi[:n])
		first, from, to = t.pairDown(first), t.pairUp(from), t.pairDown(to)
		if from >= to {
			from, to = last, last
		}
		factors := s.alpha
		for _, part := range [...]struct {
			kind        places
			first, last int
		}{{masked, first, from}, {plain, from, to}, {masked, to, last}} {
			if part.first < part.last {
				s.addValues(t, part.kind, lds, factors, j, n, part.first, part.last)
				factors = nil // once
			}
		}
	}
}

// alike is how many rows see the same keys as the first.
func alike(lo, hi []int32) int {
	n := 1
	for n < len(lo) && lo[n] == lo[0] && hi[n] == hi[0] {
		n++
	}
	return n
}

// intersection is the range of keys that all rows see; it may be empty or reversed.
func intersection(lo, hi []int32) (int, int) {
	first, last := lo[0], hi[0]
	for j := range lo {
		first, last = max(first, lo[j]), min(last, hi[j])
	}
	return int(first), int(last)
}

// stride is the distance between rows of n float32 that spreads columns over a cache: whole lines of 64 bytes, an odd
// number of them.
func stride(n int) int { return (roundUp(n, 16)/16 | 1) * 16 }

// stride16 is stride for values of 16 bits; pairs of n of them are 2*stride(n) apart.
func stride16(n int) int { return 2 * stride((n+1)/2) }

// pairPanel is the values of a panel of k terms in pairs, for simd.Lanes rows: term k of row j at
// k/2*2*Lanes + j%Lanes*2 + k%2.
func pairPanel(k int) int { return (k + 1) / 2 * 2 * simd.Lanes }
