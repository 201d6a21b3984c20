package compute

import (
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// tiled is the loop of the computes whose unit of normalisation is a tile of at most tilePlaces
// places: two products around a softmax,
//
//	s = keys . queries^T     places by rows: rows are the lanes of the packed queries
//	p = exp(s*scale - m)     moves m and l; alpha scales what was summed before
//	o = o*alpha + p^T . values
//
// with the steps of one compute.
type tiled struct {
	steps    steps
	maskUnit int // Shape.MaskUnit: borders of ranges of products are multiples of it
	beta0    bool
	most     int // multiply-adds of one call

	u *Unit
	// of the tile in hand
	places        int
	row, rows     int // of the unit
	positions     []int32
	masked        []int32 // places without a row
	prefetch      *Prefetch
	own           Prefetch
	lo, hi        []int32 // [rows] what each row sees of the tile
	scores, alpha []float32
	lds           int // between places of scores

	entries, maskedPlaces []int32
}

// steps are what a compute does with a tile. Places and rows count from the tile's and the unit's
// first.
type steps interface {
	// forget lets go of the tile, which may lie in a cache or in the caller's memory.
	forget()
	// load makes the places [k0, k1) of the unit's keys the tile, and sets places.
	load(k0, k1 int)
	// interleave readies the values of all columns at once, before rows that see different places,
	// or several parts of a block, use them.
	interleave()
	// scoreCall computes one call's part of the scores: places [first, first+n) of rows from j on.
	scoreCall(s []float32, j, rows, first, n int)
	softmax(j, n, places int) bool
	// valueStrip readies cols columns from c on, of the places from first on.
	valueStrip(c, first, cols int)
	valueCall(kind places, o []float32, c, j, rows, first, n, cols, seen int, alpha []float32)
	// stripwise tells that value calls should be of few columns, whatever the prefetch wants.
	stripwise() bool
	// takes tells that value calls take pieces of the prefetch.
	takes() bool
}

// places says what the places of a range of probabilities may be.
type places uint8

const (
	visible places = iota // all are
	masked                // one that is -0 is not
	// diagonal: as masked, and -0 are the places that only later rows see: row j+1 sees one more
	// than row j.
	diagonal
)

// What is in the bits of these computes, and what suits their kernels.
const (
	partitionPlaces = 512 // places [512p, 512p+512) start from nothing
	groupPartitions = 16
	tilePlaces      = 64  // places whose scores are normalised together
	pieceK          = 256 // terms of a score that are summed from zero at a time
	TileRows        = 128 // rows of a tile of scores
)

// newTiled is the loop with the steps of a compute, whose calls have at most so many multiply-adds.
func newTiled(s steps, shape Shape, most int) tiled {
	return tiled{steps: s, maskUnit: shape.MaskUnit, beta0: shape.Beta0, most: most}
}

// carve lays out what all computes of tiles need.
func (t *tiled) carve(c *mem.Carver, rows int) {
	rows = min(rows, TileRows)
	t.lds = Stride(rows)
	t.scores = mem.Carve[float32](c, tilePlaces*t.lds)
	t.alpha = mem.Carve[float32](c, rows)
	t.lo, t.hi = mem.Carve[int32](c, rows), mem.Carve[int32](c, rows)
	t.entries, t.maskedPlaces = mem.Carve[int32](c, tilePlaces), mem.Carve[int32](c, tilePlaces)
}

// Attend is the one loop over the tiles of a partition.
func (t *tiled) Attend(u *Unit) {
	t.u = u
	u.Invalid = 0
	u.Sums.start(u.Rows, t.beta0)
	for t0 := u.From / tilePlaces * tilePlaces; t0 < u.To; t0 += tilePlaces {
		k0, k1 := max(t0, u.From), min(t0+tilePlaces, u.To)
		k0 -= (k0 - t0) % t.maskUnit
		t.masked, t.positions = nil, nil
		t.steps.load(k0, k1)
		if t.places == 0 {
			continue
		}
		t.choosePrefetch(k1)
		if u.Rows > TileRows {
			t.attendMany(k0)
			continue
		}
		t.row, t.rows = 0, u.Rows
		t.clamp(k0)
		t.beginPrefetch()
		t.attend()
		t.prefetch.rest()
	}
	t.u, t.prefetch, t.positions, t.masked = nil, nil, nil, nil
	t.own.Reset()
	t.steps.forget()
}

// choosePrefetch makes prefetch what is used after the tile that ends at place k1.
func (t *tiled) choosePrefetch(k1 int) {
	u := t.u
	t.prefetch = &t.own
	switch {
	case u.Prefetch != nil: // begun by who made the unit, for all its tiles
		t.prefetch = u.Prefetch
	case u.Ahead != nil:
		u.Ahead.tile(&t.own, k1)
	case u.Keys.Dense != nil: // expanded just now
		t.prefetch = nil
	default:
		t.own.following(u.Keys, k1, min(k1+tilePlaces, u.End))
	}
}

// attendMany is attend for more rows than a tile of scores has: their values are interleaved once
// for all of them.
func (t *tiled) attendMany(k0 int) {
	u := t.u
	t.steps.interleave()
	for j := 0; j < u.Rows; j += TileRows {
		t.row, t.rows = j, min(TileRows, u.Rows-j)
		last := j + t.rows - 1
		if int(u.Lo[j]) >= k0+t.places || int(u.Hi[last]) <= k0 { // ranges grow with the rows
			continue
		}
		t.clamp(k0)
		t.attend()
	}
}

// clamp makes lo and hi what the rows see of the tile, counted from place k0.
func (t *tiled) clamp(k0 int) {
	u := t.u
	if u.Keys.List != nil {
		clear(t.lo[:t.rows])
		fill(t.hi[:t.rows], int32(t.places))
		return
	}
	lo, hi := u.Lo[t.row:][:t.rows], u.Hi[t.row:][:t.rows]
	for j := range lo {
		t.lo[j] = int32(min(max(int(lo[j])-k0, 0), t.places))
		t.hi[j] = int32(min(max(int(hi[j])-k0, 0), t.places))
	}
}

// beginPrefetch cuts the prefetch of one tile into its steps.
func (t *tiled) beginPrefetch() {
	values := ceilDiv(t.u.Cols, stepCols)
	parts := ceilDiv(t.rows, stepRows) + values
	if !seesAll(t.lo[:t.rows], t.hi[:t.rows], t.places) {
		parts, values = 2*ceilDiv(t.rows, simd.Lanes), 0
	}
	if !t.steps.takes() {
		values = 0
	}
	t.prefetch.begin(parts, values)
}

// attend does the work of a tile for the rows [row, row+rows) of the unit.
func (t *tiled) attend() {
	if seesAll(t.lo[:t.rows], t.hi[:t.rows], t.places) {
		t.attendAll(0, t.rows)
		return
	}
	t.steps.interleave()
	t.attendPanels()
}

// attendAll is attend for n rows from j on, a multiple of simd.Lanes, that see all places.
func (t *tiled) attendAll(j, n int) {
	kind := visible
	for at := j; at < j+n; at += stepRows { // scores become probabilities while they are in the first-level cache
		rows := min(stepRows, j+n-at)
		t.score(at, rows, 0, t.places)
		t.hide(at, rows)
		if t.steps.softmax(at, rows, t.places) {
			kind = masked
		}
	}
	t.addValues(kind, t.alpha, j, n, 0, t.places)
}

// attendPanels is attend for rows that see different places, as on the causal diagonal: panels all
// of whose rows see all places together, each other panel by itself, which does nothing with the
// places before and behind those that its rows see. Index lists never come here: every row has the
// range of all places.
func (t *tiled) attendPanels() {
	all := func(j int) bool {
		n := min(simd.Lanes, t.rows-j)
		return n > 0 && seesAll(t.lo[j:j+n], t.hi[j:j+n], t.places)
	}
	for j, n := 0, 0; j < t.rows; j += n {
		n = 0
		for all(j + n) {
			n += min(simd.Lanes, t.rows-j-n)
		}
		if n > 0 {
			t.attendAll(j, n)
			continue
		}
		n = min(simd.Lanes, t.rows-j)
		lo, hi := t.lo[j:j+n], t.hi[j:j+n]
		first, last := union(lo, hi)
		if first == last {
			continue
		}
		first = t.down(first)
		t.score(j, n, first, last)
		// The places before first are not read by anyone.
		if t.steps.softmax(j, n, last) {
			t.addValues(masked, t.alpha, j, n, first, last)
			continue
		}
		if onDiagonal(lo, hi, first) {
			t.addValues(diagonal, t.alpha, j, n, first, last)
			continue
		}
		t.ragged(lo, hi, j)
	}
}

// down and up are the borders next to a place at which products may begin and end.
func (t *tiled) down(place int) int { return place - place%t.maskUnit }
func (t *tiled) up(place int) int   { return roundUp(place, t.maskUnit) }

// onDiagonal reports that all rows see the places from first on, and each one more than the row
// before.
func onDiagonal(lo, hi []int32, first int) bool {
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

// seesAll reports that every row sees every place.
func seesAll(lo, hi []int32, places int) bool {
	for j := range lo {
		if lo[j] > 0 || int(hi[j]) < places {
			return false
		}
	}
	return true
}

// scoreCall is how many rows and places of scores of k terms a call may have, which are not more
// than most multiply-adds if that is enough for 4 places of a panel.
func scoreCall(most, places, k int) (int, int) {
	const few = 4 // places of a register tile
	k = min(k, pieceK)
	places = min(places, max(most/(simd.Lanes*k)/few*few, few))
	return max(most/(places*k)/simd.Lanes*simd.Lanes, simd.Lanes), places
}

// valueCall is how many of n rows, and how many columns, of values of some places a call may have,
// which are not more than most multiply-adds if that is enough for a register tile.
func valueCall(most, n, places int) (rows, cols int) {
	const wide = 32 // columns of the widest register tile
	tile := simd.Blocks().RowTile
	places = max(places, 1)
	rows = min(n, max(most/(places*wide)/tile*tile, tile))
	return rows, max(most/(rows*places)/wide*wide, wide)
}

// score computes the dot products of the places [first, last) with n rows from j on, a multiple of
// simd.Lanes, in calls of bounded length.
func (t *tiled) score(j, n, first, last int) {
	if first >= last {
		return
	}
	step, some := scoreCall(t.most, last-first, t.u.K)
	if t.prefetch != nil {
		step = min(step, stepRows)
	}
	for end := j + n; j < end; j += step {
		rows := min(step, end-j)
		for place := first; place < last; place += some {
			t.steps.scoreCall(t.scores[place*t.lds+j:], j, rows, place, min(some, last-place))
		}
		t.prefetch.step()
	}
}

// hide makes the scores that n rows from j on must not see -Inf, which counts as masked: those of
// later positions, and of places without a row.
func (t *tiled) hide(j, n int) {
	hidden := NegInf
	if t.u.Scale < 0 {
		hidden = -hidden
	}
	c := t.u.Causal
	for place, pos := range t.positions {
		for i := range n {
			if int(pos) > c.Pos+(c.Row+t.row+j+i)/c.Heads {
				t.scores[place*t.lds+j+i] = hidden
			}
		}
	}
	for _, place := range t.masked {
		fill(t.scores[int(place)*t.lds+j:][:n], hidden)
	}
}

// causal is the positions that hide places from some rows of u, nil if none can.
func causal(u *Unit, positions []int32) []int32 {
	if u.Causal.Heads == 0 {
		return nil
	}
	return positions
}

// addValues adds the values of the places [first, last) to n rows from j on, in calls of bounded
// length. alpha, if not nil, has a factor for each row of the tile. first is a multiple of
// maskUnit. On the diagonal the last row sees the last place.
func (t *tiled) addValues(kind places, alpha []float32, j, n, first, last int) {
	u, count := t.u, last-first
	some, step := valueCall(t.most, n, count)
	if t.prefetch != nil || t.steps.stripwise() {
		step = min(step, stepCols)
	}
	for c := 0; c < u.Cols; c += step {
		cols := min(step, u.Cols-c)
		t.steps.valueStrip(c, first, cols)
		for r := j; r < j+n; r += some {
			rows, seen := min(some, j+n-r), count-n+1+r-j
			var factors []float32
			if alpha != nil {
				factors = alpha[r : r+rows]
			}
			o := u.Sums.O[(t.row+r)*u.Sums.LD+c:]
			t.steps.valueCall(kind, o, c, r, rows, first, count, cols, seen, factors)
		}
		t.prefetch.step()
	}
}

// ragged is addValues for a panel of rows from j on that see the places [lo, hi), none of whose
// scores is -Inf. Rows go in groups that fill a register tile or see the same places; of a group's
// places, those in the middle that all its rows see need no mask. Units that a border cuts do.
func (t *tiled) ragged(lo, hi []int32, j int) {
	rowTile := simd.Blocks().RowTile
	for n := 0; len(lo) > 0; lo, hi, j = lo[n:], hi[n:], j+n {
		n = alike(lo, hi)
		if n < rowTile {
			n = min(rowTile, len(lo))
		}
		first, last := union(lo[:n], hi[:n])
		from, to := intersection(lo[:n], hi[:n])
		first, from, to = t.down(first), t.up(from), t.down(to)
		if from >= to {
			from, to = last, last
		}
		factors := t.alpha
		for _, part := range [...]struct {
			kind        places
			first, last int
		}{{masked, first, from}, {visible, from, to}, {masked, to, last}} {
			if part.first < part.last {
				t.addValues(part.kind, factors, j, n, part.first, part.last)
				factors = nil // once
			}
		}
	}
}

// alike is how many rows see the same places as the first.
func alike(lo, hi []int32) int {
	n := 1
	for n < len(lo) && lo[n] == lo[0] && hi[n] == hi[0] {
		n++
	}
	return n
}

// union is the range that covers all the ranges [lo[j], hi[j]) that are not empty; 0, 0 if all are.
func union(lo, hi []int32) (int, int) {
	first, last := int32(0), int32(0)
	for j := range lo {
		if lo[j] >= hi[j] {
			continue
		}
		if first == last {
			first, last = lo[j], hi[j]
			continue
		}
		first, last = min(first, lo[j]), max(last, hi[j])
	}
	return int(first), int(last)
}

// intersection is the range of places that all rows see; it may be empty or reversed.
func intersection(lo, hi []int32) (int, int) {
	first, last := lo[0], hi[0]
	for j := range lo {
		first, last = max(first, lo[j]), min(last, hi[j])
	}
	return int(first), int(last)
}
