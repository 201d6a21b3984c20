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
type tile struct {
	keys, rows int

	x   []float32 // [keys][k], rows ldx apart
	ldx int
	k   int       // terms of a score
	q   []float32 // [rows/Lanes][k][Lanes]

	v    []float32 // [keys][cols], rows ldv apart
	ldv  int
	cols int

	o    []float32 // [rows][cols], rows ldo apart
	ldo  int
	m, l []float32 // [rows]

	// Of a list that several tokens share: the positions of the keys, and where the rows stand: row j is that of a
	// token at pos0 + (row0+j)/heads, which must not see later positions. nil: the ranges say all.
	positions         []int32
	pos0, row0, heads int

	next *ahead // nil: none
}

// ahead is memory that is used after a tile: the rows of the next one, and what the end of a block reads and writes. It
// is asked for bit by bit while the tile is worked on: all at once the requests would wait for each other, much earlier
// what they bring would be gone again.
type ahead struct {
	// Cache rows: n of a list, of physical rows if pool is set, else of positions; without a list those from pos on.
	view *kvpaged.View
	pool *kvpaged.PoolView
	list []int32
	pos  int
	n    int

	rows [2]strip
	part int // parts that have been asked for
}

// strip is rows of n bytes, ld apart.
type strip struct {
	x     []byte
	ld, n int
	rows  int
}

// lines is rows of n values from element at on, ld apart; nothing unless they are float32.
func lines(x Rows, at, ld, n, rows int) strip {
	f := x.F32()
	if f == nil || rows <= 0 {
		return strip{}
	}
	return strip{mem.Bytes(f[at:]), 4 * ld, 4 * n, rows}
}

// ask asks for the next one of parts.
func (a *ahead) ask(parts int) {
	if a == nil || a.part >= parts {
		return
	}
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
		for i := a.part * s.rows / parts; i < (a.part+1)*s.rows/parts; i++ {
			simd.Prefetch(s.x[i*s.ld:][:s.n])
		}
	}
	a.part++
}

// attend does the work of a tile. s.lo and s.hi hold the range of keys that each row sees.
func (s *scratch) attend(t *tile, scale float32) {
	lo, hi, alpha := s.lo[:t.rows], s.hi[:t.rows], s.alpha[:t.rows]
	lds := stride(t.rows)
	if !seesAll(lo, hi, t.keys) {
		s.attendPanels(t, lds, scale)
		return
	}
	t.scores(s.st, lds, 0, t.rows, 0, t.keys)
	t.hideFuture(s.st, lds, scale)
	kind := plain
	if simd.SoftmaxTile(s.st, lds, t.keys, t.rows, lo, hi, scale, t.m, t.l, alpha) {
		kind = masked
	}
	t.values(kind, s.st, lds, alpha, 0, t.rows, 0, t.keys)
}

// attendPanels is attend for rows that see different keys, as on the diagonal of a causal mask: each panel of lanes by
// itself, which does nothing with the keys before and behind those that its rows see. Tiles with positions never come
// here: every row of an index list has the range of all keys.
func (s *scratch) attendPanels(t *tile, lds int, scale float32) {
	for j := 0; j < t.rows; j += simd.Lanes {
		n := min(simd.Lanes, t.rows-j)
		lo, hi, alpha := s.lo[j:j+n], s.hi[j:j+n], s.alpha[j:j+n]
		first, last := union(lo, hi)
		if first == last {
			continue
		}
		t.scores(s.st, lds, j, n, first, last)
		// The keys before first are places that nobody reads.
		if simd.SoftmaxTile(s.st[j:], lds, last, n, lo, hi, scale, t.m[j:], t.l[j:], alpha) {
			t.values(masked, s.st, lds, s.alpha, j, n, first, last)
			continue
		}
		t.ragged(s.st, lds, lo, hi, s.alpha, j)
	}
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

// scores computes the dot products of the keys [first, last) with n rows from row j on, a multiple of simd.Lanes: in
// pieces of pieceK terms, in calls of bounded length.
func (t *tile) scores(s []float32, lds, j, n, first, last int) {
	keys := last - first
	if keys <= 0 {
		return
	}
	step := max(simd.Blocks().CallFMA/(keys*pieceK)/simd.Lanes*simd.Lanes, simd.Lanes)
	ldq := t.k * simd.Lanes
	for end := j + n; j < end; j += step {
		rows := min(step, end-j)
		q, to := t.q[j/simd.Lanes*ldq:], s[first*lds+j:]
		simd.PartSet(to, lds, t.x[first*t.ldx:], t.ldx, q, ldq, keys, rows, min(t.k, pieceK))
		for k0 := pieceK; k0 < t.k; k0 += pieceK {
			simd.PartAdd(to, lds, t.x[first*t.ldx+k0:], t.ldx, q[k0*simd.Lanes:], ldq, keys, rows, min(t.k-k0, pieceK))
		}
	}
}

// hideFuture makes the scores of positions that a row must not see -Inf, which counts as masked.
func (t *tile) hideFuture(s []float32, lds int, scale float32) {
	hidden := negInf
	if scale < 0 {
		hidden = -negInf
	}
	for key, pos := range t.positions {
		for j := range t.rows {
			if int(pos) > t.pos0+(t.row0+j)/t.heads {
				s[key*lds+j] = hidden
			}
		}
	}
}

// places says what the places of a tile of probabilities may be.
type places uint8

const (
	plain  places = iota // none is masked
	masked               // one that is -0 is skipped
)

// values adds the values of the keys [first, last) to n rows from row j on, in calls of bounded length. alpha, if not
// nil, has a factor for each row of the tile.
func (t *tile) values(kind places, p []float32, ldp int, alpha []float32, j, n, first, last int) {
	const wide = 32 // columns of the widest register tile
	keys := last - first
	step := max(simd.Blocks().CallFMA/(n*max(keys, 1))/wide*wide, wide)
	if alpha != nil {
		alpha = alpha[j : j+n]
	}
	p = p[first*ldp+j:]
	for c := 0; c < t.cols; c += step {
		cols := min(step, t.cols-c)
		o, v := t.o[j*t.ldo+c:], t.v[first*t.ldv+c:]
		if kind == masked {
			simd.ValueTileMasked(o, t.ldo, p, ldp, v, t.ldv, alpha, keys, n, cols)
		} else {
			simd.ValueTile(o, t.ldo, p, ldp, v, t.ldv, alpha, keys, n, cols)
		}
		if n == t.rows {
			t.next.ask((t.cols + step - 1) / step)
		}
	}
}

// ragged is values for a panel of rows from row j on that see the keys [lo, hi), none of whose scores is -Inf. Rows go in
// groups that fill a register tile or see the same keys; of a group's keys, those in the middle that all its rows see need
// no mask.
func (t *tile) ragged(p []float32, ldp int, lo, hi []int32, alpha []float32, j int) {
	rowTile := simd.Blocks().RowTile
	for n := 0; len(lo) > 0; lo, hi, j = lo[n:], hi[n:], j+n {
		n = alike(lo, hi)
		if n < rowTile {
			n = min(rowTile, len(lo))
		}
		first, last := union(lo[:n], hi[:n])
		from, to := intersection(lo[:n], hi[:n])
		if from >= to {
			from, to = last, last
		}
		factors := alpha
		for _, part := range [...]struct {
			kind        places
			first, last int
		}{{masked, first, from}, {plain, from, to}, {masked, to, last}} {
			if part.first < part.last {
				t.values(part.kind, p, ldp, factors, j, n, part.first, part.last)
				factors = nil // once
			}
		}
		t.next.ask((t.rows + rowTile - 1) / rowTile)
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
