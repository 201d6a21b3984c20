package attend

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Sizes of work, in no bit of any result.
const (
	BlockRows        = 128      // most rows of a block of a Wave, which share a tile of keys
	minBlockRows     = 32       // what BlockRows shrink to when workers would idle
	tileCost         = 4        // what loading a tile costs, in rows of its products
	HeadRows         = 64       // rows of a block of Heads over expanded keys
	nonTemporalBytes = 16 << 20 // an output of so many bytes is written past the caches
	endingRows       = 16       // rows merged and divided by one item
	minSlots         = 8        // partitions that may wait to be merged
)

// Segment is query rows that share keys: row r is head Head + r%Heads of token r/Heads, which
// stands at position Pos + r/Heads.
type Segment struct {
	Tokens, Heads, Head int
	Pos                 int
	Places              int // of the sequence, for the mask
	Keys                [2]compute.Keys
	Lists               int // index lists in Keys; 0: Keys[0] is all places, under the mask

	Row   int // of the sums: the segment's first
	Panel int // of the packed queries: the segment's first
	OutAt int // element of Outputs.Out that row 0 begins at
	LSEAt int // element of Outputs.LSE and MaxLogit of row 0
}

func (s *Segment) rows() int { return s.Tokens * s.Heads }

// Outputs is what becomes of finished rows.
type Outputs struct {
	// Out receives row r of a segment at OutAt + r*LD. No elements: the row stays in the sums,
	// divided.
	Out fp8.Rows
	LD  int
	// Sink [heads] adds to the denominator; nil: none.
	Sink []float32
	// LSE and MaxLogit, nil if they are not wanted, have head h of token t of a segment at LSEAt +
	// t*PerToken + h*PerHead, h counted from Segment.Head.
	LSE, MaxLogit     []float32
	PerToken, PerHead int
}

// Call is what is the same for all segments of a call.
type Call struct {
	K, Cols int // values of a query, of a value
	Scale   float32
	Mask    Mask
	Outputs
}

// nonTemporal reports an output that is written past the caches.
func nonTemporal(out fp8.Rows) bool {
	size := 2
	if out.F32() != nil {
		size = 4
	}
	return size*out.Len() >= nonTemporalBytes
}

// Geometry sizes Workers.
type Geometry struct {
	compute.Geometry
	Places int // the most places of a sequence
	// WholeRows is the most rows of blocks that one worker computes whole, 0 if there are none, and
	// WholeCols the values of their values.
	WholeRows, WholeCols int
	// Own tells that the sums of such blocks are the worker's, not a state between calls.
	Own bool
}

// Workers are the scratch of all workers.
type Workers struct {
	compute compute.Compute
	shape   compute.Shape
	all     []worker
	places  int // that the stacks have room for
}

// worker is the scratch of one worker.
type worker struct {
	compute.Worker
	unit           compute.Unit
	lo, hi         []int32   // [Rows] absolute places of each row
	sink, lse, top []float32 // [Rows]

	part  compute.Sums // of a partition, [WholeRows]
	cur   compute.Sums // of a block, [WholeRows], if they are the worker's
	stack Stack        // of such a block
	late  Stack        // of endingRows rows
	tree  Tree
	block block
	next  compute.Prefetch
	ahead compute.Ahead
}

// Carve lays out the scratch of n workers.
func (w *Workers) Carve(c *mem.Carver, kind compute.Compute, g Geometry, n int) {
	if w.compute != kind || len(w.all) != n {
		w.compute, w.shape, w.all = kind, kind.Shape(), make([]worker, n)
		for i := range w.all {
			w.all[i].Worker = kind.NewWorker()
		}
	}
	depth := levels(w.shape, g.Places)
	w.places = w.shape.Partition * w.shape.Group << depth
	for i := range w.all {
		s := &w.all[i]
		s.Worker.Carve(c, g.Geometry)
		s.lo, s.hi = mem.Carve[int32](c, g.Rows), mem.Carve[int32](c, g.Rows)
		s.sink, s.lse, s.top = mem.Carve[float32](c, g.Rows), mem.Carve[float32](c, g.Rows), mem.Carve[float32](c, g.Rows)
		s.late = carveStack(c, s.late, depth+1, depth, endingRows, g.Cols)
		if g.WholeRows > 0 {
			s.part = compute.CarveSums(c, g.WholeRows, g.WholeCols)
		}
		if g.Own {
			s.cur = compute.CarveSums(c, g.WholeRows, g.WholeCols)
			s.stack = carveStack(c, s.stack, depth, depth, g.WholeRows, g.WholeCols)
		}
	}
}

// carveStack lays out a stack of so many nodes for a tree of so many levels; old is memory of the
// heap to use again.
func carveStack(c *mem.Carver, old Stack, size, depth, rows, cols int) Stack {
	s := Stack{old.nodes.sized(size), old.waiting}
	if len(s.waiting) != depth {
		s.waiting = make([]compute.Sums, depth)
	}
	for i := range s.nodes.all {
		s.nodes.all[i] = compute.CarveSums(c, rows, cols)
	}
	return s
}

// Worker is the compute's scratch of a worker, for who packs queries and expands keys.
func (w *Workers) Worker(i int) compute.Worker { return w.all[i].Worker }

// Len is the number of workers.
func (w *Workers) Len() int { return len(w.all) }

// Places is the longest index list that there is room for.
func (w *Workers) Places() int { return w.places }

// block is consecutive rows of a segment that share their tiles.
type block struct {
	seg        *Segment
	row0, rows int
	lo, hi     int // places that any of its rows sees
	queries    []float32
	tree       Tree
}

// ranges makes lo and hi of the worker those of the block's rows.
func (s *worker) ranges(c *Call, b *block) {
	for j := range b.rows {
		lo, hi := c.Mask.Visible(b.seg.Pos+(b.row0+j)/b.seg.Heads, b.seg.Places)
		s.lo[j], s.hi[j] = int32(lo), int32(hi)
	}
}

// partition computes partition p of a block's list, or of all its places, into sums, and returns
// how many entries of the list were invalid. Ranges are the worker's already.
func (w *Workers) partition(s *worker, c *Call, b *block, list, p int, sums compute.Sums) int64 {
	u := &s.unit
	u.Rows, u.K, u.Cols, u.Queries, u.Scale, u.Sums = b.rows, c.K, c.Cols, b.queries, c.Scale, sums
	u.Keys, u.Lo, u.Hi, u.Causal = &b.seg.Keys[list], s.lo[:b.rows], s.hi[:b.rows], compute.Causal{}
	u.From, u.To = p*w.shape.Partition, (p+1)*w.shape.Partition
	if l := u.Keys.List; l != nil {
		u.To = min(u.To, len(l.Entries))
		u.End = u.To
		if l.View != nil && b.seg.Tokens > 1 {
			u.Causal = compute.Causal{Pos: b.seg.Pos, Row: b.row0, Heads: b.seg.Heads}
		}
	} else {
		u.From, u.To, u.End = max(u.From, b.lo), min(u.To, b.hi), b.hi
	}
	s.Attend(u)
	u.Keys = nil
	return u.Invalid
}

// whole computes the places [from, to) of a block, partition by partition.
func (w *Workers) whole(s *worker, c *Call, b *block, from, to int) {
	if from >= to {
		return
	}
	s.ranges(c, b)
	size := w.shape.Partition
	for p := from / size; p <= (to-1)/size; p++ {
		if b.tree.enter(p) {
			w.partition(s, c, b, 0, p, b.tree.cur)
			continue
		}
		w.partition(s, c, b, 0, p, s.part)
		b.tree.merge(s.part, false)
	}
}

// end is the one ending: it divides rows [from, to) of a block, whose sums begin at sums, and
// writes them, their log-sum-exps and their largest scores.
func (s *worker) end(c *Call, b *block, from, to int, sums compute.Sums) {
	n, seg := to-from, b.seg
	first := b.row0 + from
	var sink, lse, top []float32
	if c.Sink != nil {
		sink = s.sink[:n]
		for j := range sink {
			sink[j] = c.Sink[seg.Head+(first+j)%seg.Heads]
		}
	}
	inOrder := seg.Heads == 1 && c.PerToken == 1 || c.PerHead == 1 && c.PerToken == seg.Heads
	if c.LSE != nil {
		lse = s.lse[:n]
		if inOrder {
			lse = c.LSE[seg.LSEAt+first:][:n]
		}
	}
	if c.MaxLogit != nil {
		top = s.top[:n]
		if inOrder {
			top = c.MaxLogit[seg.LSEAt+first:][:n]
		}
	}
	c.divide(sums, seg.OutAt+first*c.LD, sink, lse, top, n)
	if inOrder || lse == nil && top == nil {
		return
	}
	for j := range n {
		at := seg.LSEAt + (first+j)/seg.Heads*c.PerToken + (first+j)%seg.Heads*c.PerHead
		if lse != nil {
			c.LSE[at] = lse[j]
		}
		if top != nil {
			c.MaxLogit[at] = top[j]
		}
	}
}

// divide divides n rows by their denominators and writes them to c.Out from element at on.
func (c *Call) divide(s compute.Sums, at int, sink, lse, top []float32, n int) {
	hint := 0
	if nonTemporal(c.Out) {
		hint = 1
	}
	switch {
	case c.Out.Len() == 0:
	case c.Out.F32() != nil:
		simd.FinishRows(c.Out.F32()[at:], c.LD, s.O, s.LD, s.M, s.L, sink, lse, top, n, c.Cols, hint)
		return
	case c.Out.BF16() != nil:
		simd.FinishRowsBF16(c.Out.BF16()[at:], c.LD, s.O, s.LD, s.M, s.L, sink, lse, top, n, c.Cols, hint)
		return
	}
	simd.FinishRows(s.O, s.LD, s.O, s.LD, s.M, s.L, sink, lse, top, n, c.Cols, 0)
	if c.Out.Len() == 0 {
		return
	}
	for i := range n {
		c.Out.Narrow(at+i*c.LD, s.O[i*s.LD:][:c.Cols])
	}
}
