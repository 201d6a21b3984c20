package compute

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// Prefetch is memory that is used after the work in hand: the rows of the next tile, or what the
// next block reads and this one writes. It is prefetched in parts, one for each step of the work
// (step, take): all at once the requests would wait for each other, much earlier what they bring
// would be evicted again.
//
// A nil Prefetch is of nothing.
type Prefetch struct {
	// Cache rows: n of a list, of physical rows if pool is set, else of positions; without a list
	// those from pos on.
	view View
	pool *kvpaged.PoolView
	list []int32
	pos  int
	n    int

	Rows [3]Lines

	part, parts int // parts that have been prefetched, of all

	// What of it lies in one piece. Products of values prefetch that on the way, piece bytes a
	// call.
	spans [4][]byte
	piece int
}

// Lines are rows of n bytes, ld apart.
type Lines struct {
	x     []byte
	ld, n int
	rows  int
}

// LinesOf is rows of n values of x from element at on, ld apart.
func LinesOf(x fp8.Rows, at, ld, n, rows int) Lines {
	if rows <= 0 {
		return Lines{}
	}
	if f := x.F32(); f != nil {
		return Lines{mem.Bytes(f[at:]), 4 * ld, 4 * n, rows}
	}
	if h := x.BF16(); h != nil {
		return Lines{mem.Bytes(h[at:]), 2 * ld, 2 * n, rows}
	}
	return Lines{}
}

// Part is one of n parts of the rows.
func (s Lines) Part(i, n int) Lines {
	from, to := i*s.rows/n, (i+1)*s.rows/n
	if from >= to {
		return Lines{}
	}
	return Lines{s.x[from*s.ld:], s.ld, s.n, to - from}
}

// span is the memory of the rows with what lies between them, if that is little.
func (s Lines) span() []byte {
	const most = 2 * 64 // bytes between two rows
	if s.rows == 0 || s.ld > s.n+most {
		return nil
	}
	return s.x[:(s.rows-1)*s.ld+s.n]
}

// Between two parts a worker does about as much as these rows of scores, or columns of values, of
// a tile.
const (
	stepRows = 4 * simd.Lanes
	stepCols = 64
)

// Reset makes p empty.
func (p *Prefetch) Reset() { *p = Prefetch{} }

// following makes p the places [from, to) of k, of a tile at most.
func (p *Prefetch) following(k *Keys, from, to int) {
	p.Reset()
	if from >= to {
		return
	}
	switch {
	case k.View != nil:
		p.view, p.pos, p.n = k.View, from, to-from
	case k.List == nil || k.List.Plain.Len() > 0:
	case k.List.View != nil:
		p.view, p.list, p.n = k.List.View, k.List.Entries[from:to], to-from
	case k.List.Pool != nil:
		p.pool, p.list, p.n = k.List.Pool, k.List.Entries[from:to], to-from
	}
}

// begin cuts p into parts, of which so many calls of value products take the spans.
func (p *Prefetch) begin(parts, values int) {
	if p == nil {
		return
	}
	p.part, p.parts = 0, parts
	if values == 0 {
		return
	}
	total := 0
	for i, s := range p.Rows {
		p.spans[i] = s.span()
		if p.spans[i] != nil {
			p.Rows[i] = Lines{}
		}
		total += len(p.spans[i])
	}
	if p.view != nil && p.list == nil && p.n > 0 && p.view.Mapped(p.pos) {
		if run, n := p.view.Run(p.pos); n >= p.n && len(p.view.Scales(p.pos)) == 0 {
			run = run[:len(run)/n*p.n]
			p.spans[len(p.Rows)], p.n = run, 0
			total += len(run)
		}
	}
	p.piece = roundUp(ceilDiv(total, values), 64)
}

// take gives a piece of the spans to a call.
func (p *Prefetch) take() []byte {
	if p == nil {
		return nil
	}
	for i, span := range p.spans {
		if len(span) > 0 {
			n := min(p.piece, len(span))
			p.spans[i] = span[n:]
			return span[:n]
		}
	}
	return nil
}

// step prefetches the next part.
func (p *Prefetch) step() {
	if p == nil || p.part >= p.parts {
		return
	}
	from, to := p.part*p.n/p.parts, (p.part+1)*p.n/p.parts
	switch {
	case p.pool != nil:
		p.pool.Prefetch(p.list[from:to])
	case p.view != nil && p.list != nil:
		p.view.PrefetchAt(p.list[from:to])
	case p.view != nil:
		p.view.Prefetch(p.pos+from, to-from)
	}
	for _, s := range p.Rows {
		if s := s.Part(p.part, p.parts); s.rows > 0 {
			simd.Prefetch(s.x, s.ld, s.n, s.rows)
		}
	}
	p.part++
}

// rest prefetches all parts that are left.
func (p *Prefetch) rest() {
	for p != nil && p.part < p.parts {
		p.step()
	}
	for span := p.take(); len(span) > 0; span = p.take() {
		simd.Prefetch(span, 0, len(span), 1)
	}
}

// Begin cuts p into the steps of a block of more rows than a tile has, over so many places: at
// least half of its tiles are whole.
func (p *Prefetch) Begin(rows, places, cols int) {
	calls := places / tilePlaces * (rows / TileRows) / 2
	p.begin(calls*(TileRows/stepRows+cols/stepCols), calls*(cols/stepCols))
}

// End prefetches what is left.
func (p *Prefetch) End() { p.rest() }

// Ahead is what a block of rows over dense keys prefetches. The causal diagonal is too little work
// to hide its reads and those after it: they are prefetched during the tiles before it.
type Ahead struct {
	Diagonal int // the place at which the tiles of the diagonal begin
	Hi       int // the end of the block
	// Of the diagonal, and of the block after this one.
	Keys, Values, Queries Lines
	Out                   Lines // where this block is written
}

// tile makes p what to prefetch during the tile that ends at place k1.
func (a *Ahead) tile(p *Prefetch, k1 int) {
	const spread = 5 // tiles
	p.Reset()
	tiles := min(spread, a.Diagonal/tilePlaces)
	if part := (a.Diagonal - k1) / tilePlaces; k1 <= a.Diagonal && part < tiles {
		p.Rows = [3]Lines{a.Keys.Part(part, tiles), a.Values.Part(part, tiles), a.Queries.Part(part, tiles)}
	}
	if k1 != a.Hi {
		return
	}
	if a.Diagonal == 0 {
		p.Rows[2] = a.Queries
	}
	p.Rows[0] = a.Out
}
