package attend

import (
	"context"
	"sort"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// Dense is attention over the caller's keys and values, ready for every head, of a ragged batch.
type Dense struct {
	*Workers
	call Call
	Batch
	rows    int       // queries of a block
	blocks  int       // of so many queries, of one head
	ends    []int     // per sequence: the end of its blocks
	queries []float32 // [worker][panels of rows]
	panels  int       // float32s of a worker's
	segs    []Segment // [worker]
	dense   []compute.Dense
}

// Batch is the arguments of Dense.
type Batch struct {
	Q, K, V       fp8.Rows
	Heads         int
	Offsets, Keys []uint32 // [B+1]
	// Row s of head g begins at s*LdK + g*StrideK, and at s*LdV + g*StrideV.
	LdK, StrideK, LdV, StrideV int
}

// Carve lays out what Dense needs beside the Workers.
func (d *Dense) Carve(c *mem.Carver, w *Workers, rows, k, seqs int) {
	d.Workers = w
	d.panels = compute.Panels(rows) * w.compute.PanelFloats(k)
	d.queries = mem.Carve[float32](c, w.Len()*d.panels)
	if len(d.segs) != w.Len() {
		d.segs, d.dense = make([]Segment, w.Len()), make([]compute.Dense, w.Len())
	}
	if cap(d.ends) < seqs && c.Real() {
		d.ends = make([]int, 0, seqs)
	}
}

// RowsOfDense is the most queries of a block: those of the compute, or all if there are fewer.
func RowsOfDense(kind compute.Compute, tokens int) int {
	return min(kind.Shape().DenseRows, max(compute.Panels(tokens)*simd.Lanes, HeadRows))
}

// Run computes the batch.
func (d *Dense) Run(ctx context.Context, pool *workpool.Pool, c Call, b Batch) error {
	const itemsAWorker = 4
	d.call, d.Batch = c, b
	defer d.forget()
	tokens := int(b.Offsets[len(b.Offsets)-1])
	d.rows = d.shape.DenseRows
	for d.rows > HeadRows && tokens*b.Heads < itemsAWorker*d.Len()*d.rows { // workers would idle
		d.rows /= 2
	}
	d.blocks, d.ends = 0, d.ends[:0]
	for seq := range len(b.Offsets) - 1 {
		d.blocks += (int(b.Offsets[seq+1]-b.Offsets[seq]) + d.rows - 1) / d.rows
		d.ends = append(d.ends, d.blocks)
	}
	return pool.Run(ctx, d.blocks*b.Heads, (*denseStage)(d))
}

func (d *Dense) forget() {
	d.call, d.Batch = Call{}, Batch{}
	clear(d.segs)
	clear(d.dense)
}

// at is block item = head*blocks + block, as a segment of one head.
func (d *Dense) at(item int) denseBlock {
	head, block := item/d.blocks, item%d.blocks
	seq := sort.SearchInts(d.ends, block+1)
	if seq > 0 {
		block -= d.ends[seq-1]
	}
	queries, keys := int(d.Offsets[seq+1]-d.Offsets[seq]), int(d.Keys[seq+1]-d.Keys[seq])
	first := block * d.rows
	rows := min(d.rows, queries-first)
	return denseBlock{
		head: head, seq: seq, tok: int(d.Offsets[seq]) + first, rows: rows, left: queries - first - rows,
		pos: keys - queries + first, keys: keys, key0: int(d.Keys[seq]),
	}
}

// denseBlock is some queries of one head.
type denseBlock struct {
	head, seq int
	tok, rows int // in the call
	left      int // queries of the sequence behind them
	pos, keys int // position of the first query, and the keys of its sequence
	key0      int // the first of these in the call
}

// visible is the places that the block's rows see.
func (d *Dense) visible(b *denseBlock) (lo, hi int) {
	lo, _ = d.call.Mask.Visible(b.pos, b.keys)
	_, hi = d.call.Mask.Visible(b.pos+b.rows-1, b.keys)
	return lo, hi
}

// denseStage attends with one block of queries of one head over all its keys.
type denseStage Dense

func (z *denseStage) Do(worker, item int) error {
	d := (*Dense)(z)
	s, seg, dense := &d.all[worker], &d.segs[worker], &d.dense[worker]
	at := d.at(item)
	*dense = compute.Dense{
		K: d.K, KeyAt: at.key0*d.LdK + at.head*d.StrideK, LdK: d.LdK,
		V: d.V, ValueAt: at.key0*d.LdV + at.head*d.StrideV, LdV: d.LdV,
	}
	*seg = Segment{
		Tokens: at.rows, Heads: 1, Head: at.head, Pos: at.pos, Places: at.keys,
		OutAt: (at.tok*d.Heads + at.head) * d.call.Cols, LSEAt: at.tok*d.Heads + at.head,
	}
	seg.Keys[0].Dense = dense
	b := &s.block
	b.seg, b.row0, b.rows = seg, 0, at.rows
	b.lo, b.hi = d.visible(&at)
	b.queries = d.queries[worker*d.panels:][:d.panels]
	s.Pack(b.queries, d.Q, (at.tok*d.Heads+at.head)*d.call.K, d.Heads*d.call.K, at.rows, d.call.K)
	s.stack.nodes.reset()
	b.tree.start(d.shape.Group, at.rows, d.call.Cols, s.cur, s.stack)
	d.prefetch(s, item, &at)
	d.whole(s, &d.call, b, b.lo, b.hi)
	s.unit.Prefetch.End()
	s.unit.Prefetch, s.unit.Ahead = nil, nil
	s.next.Reset()
	s.ahead = compute.Ahead{}
	b.tree.root()
	s.end(&d.call, b, 0, at.rows, b.tree.home)
	return nil
}

// prefetch makes the unit of s prefetch what follows block item.
func (d *Dense) prefetch(s *worker, item int, at *denseBlock) {
	if at.rows > compute.TileRows {
		s.next.Reset()
		d.following(&s.next, item, at, s.block.hi)
		s.next.Begin(at.rows, s.block.hi-s.block.lo, d.call.Cols)
		s.unit.Prefetch = &s.next
		return
	}
	d.ahead(&s.ahead, at, s.block.hi)
	s.unit.Ahead = &s.ahead
}

// ahead is what a block of one tile of rows prefetches: its own diagonal and output, and the
// queries of the next block of its head.
func (d *Dense) ahead(a *compute.Ahead, at *denseBlock, hi int) {
	k, cols, tile := d.call.K, d.call.Cols, d.shape.Tile
	diagonal := max(hi-at.rows, 0) / tile * tile
	*a = compute.Ahead{
		Diagonal: diagonal, Hi: hi,
		Keys:    compute.LinesOf(d.K, (at.key0+diagonal)*d.LdK+at.head*d.StrideK, d.LdK, k, hi-diagonal),
		Values:  compute.LinesOf(d.V, (at.key0+diagonal)*d.LdV+at.head*d.StrideV, d.LdV, cols, hi-diagonal),
		Queries: compute.LinesOf(d.Q, ((at.tok+at.rows)*d.Heads+at.head)*k, d.Heads*k, k, min(d.rows, at.left)),
	}
	if !nonTemporal(d.call.Out) {
		a.Out = compute.LinesOf(d.call.Out, (at.tok*d.Heads+at.head)*cols, d.Heads*cols, cols, at.rows)
	}
}

// following is what to prefetch during block item, which ends at place hi and has more rows than a
// tile: the queries of the next one, whoever takes it, and the keys and values that it sees behind
// hi. Where the next one is of another head or sequence it sees none of these: then it is the first
// of its own, as many as it has queries.
func (d *Dense) following(p *compute.Prefetch, item int, at *denseBlock, hi int) {
	if item+1 == d.blocks*d.Heads {
		return
	}
	n := d.at(item + 1)
	lo, end := d.visible(&n)
	if at.head == n.head && at.seq == n.seq {
		lo = max(lo, hi)
	} else {
		end = min(end, lo+n.rows)
	}
	k, cols, key := d.call.K, d.call.Cols, n.key0+lo
	p.Rows = [3]compute.Lines{
		compute.LinesOf(d.K, key*d.LdK+n.head*d.StrideK, d.LdK, k, end-lo),
		compute.LinesOf(d.V, key*d.LdV+n.head*d.StrideV, d.LdV, cols, end-lo),
		compute.LinesOf(d.Q, (n.tok*d.Heads+n.head)*k, d.Heads*k, k, n.rows),
	}
}
