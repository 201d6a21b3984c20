package attend

import (
	"context"

	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/workpool"
)

// Heads is the heads of one sequence over keys that are expanded a range of places at a time: a
// segment for each head. Between the ranges only sums are kept, since they end on borders of
// partitions.
type Heads struct {
	*Workers
	call Call

	Segments []Segment
	rows     int            // most query tokens
	sums     compute.Sums   // [segment][rows]
	nodes    []compute.Sums // the same, of each level of the trees
	blocks   []headBlock    // [segment][block]
	across   int            // blocks of a segment
	from, to int
	last     bool
}

type headBlock struct {
	block
	stack Stack // in the nodes of all
}

// Carve lays out the state of so many heads with so many query tokens each; w are carved already.
func (h *Heads) Carve(c *mem.Carver, w *Workers, heads, tokens, cols, places int) {
	h.Workers, h.rows = w, tokens
	depth := levels(w.shape, places)
	h.sums = compute.CarveSums(c, heads*tokens, cols)
	h.nodes = h.nodes[:0]
	for range depth {
		h.nodes = append(h.nodes, compute.CarveSums(c, heads*tokens, cols))
	}
	if !c.Real() {
		return
	}
	if cap(h.Segments) < heads {
		h.Segments = make([]Segment, heads)
	}
	if n := heads * headBlocks(tokens); len(h.blocks) < n {
		h.blocks = make([]headBlock, n)
	}
	for i := range h.blocks {
		b := &h.blocks[i]
		if b.stack.nodes = b.stack.nodes.sized(depth); len(b.stack.waiting) != depth {
			b.stack.waiting = make([]compute.Sums, depth)
		}
	}
}

func headBlocks(tokens int) int { return (tokens + HeadRows - 1) / HeadRows }

// StateFloats is about the memory of a head's state, to choose how many to take together.
func (w *Workers) StateFloats(tokens, cols, places int) int {
	return tokens * (compute.Stride(cols) + 2) * (1 + levels(w.shape, places))
}

// Start begins with the segments, one for each head, all of the same tokens.
func (h *Heads) Start(c Call) {
	h.call = c
	h.across = headBlocks(h.Segments[0].Tokens)
	for i := range h.Segments {
		s := &h.Segments[i]
		for j := range h.across {
			b := &h.blocks[i*h.across+j]
			b.seg, b.row0 = s, j*HeadRows
			b.rows = min(HeadRows, s.Tokens-b.row0)
			b.lo, _ = c.Mask.Visible(s.Pos+b.row0, s.Places)
			_, b.hi = c.Mask.Visible(s.Pos+b.row0+b.rows-1, s.Places)
			row := i*h.rows + b.row0
			for level, node := range h.nodes {
				b.stack.nodes.all[level] = node.From(row)
			}
			b.stack.nodes.reset()
			b.tree.start(h.shape.Group, b.rows, c.Cols, h.sums.From(row), b.stack)
		}
	}
}

// Run goes on over the places [from, to), whole partitions but for the first and the last of all:
// items packs the queries that Item names, and calls Do. After the last range the rows are divided
// and written.
func (h *Heads) Run(ctx context.Context, pool *workpool.Pool, from, to int, last bool, items workpool.Task) error {
	h.from, h.to, h.last = from, to, last
	return pool.Run(ctx, len(h.Segments)*h.across, items)
}

// Forget lets go of what the segments were given.
func (h *Heads) Forget() {
	h.call = Call{}
	clear(h.Segments)
}

// Item is the segment of an item of Run and its query tokens [from, from+n); n is 0 where the range
// has nothing for them but perhaps their ending.
func (h *Heads) Item(item int) (s *Segment, from, n int) {
	b := &h.blocks[item]
	if max(h.from, b.lo) < min(h.to, b.hi) {
		n = b.rows
	}
	return b.seg, b.row0, n
}

// Do computes an item of Run, whose queries are packed, if Item asks for any.
func (h *Heads) Do(worker, item int, queries []float32) {
	s, b := &h.all[worker], &h.blocks[item]
	b.queries = queries
	s.unit.Prefetch, s.unit.Ahead = nil, nil
	h.whole(s, &h.call, &b.block, max(h.from, b.lo), min(h.to, b.hi))
	if h.last {
		b.tree.root()
		s.end(&h.call, &b.block, 0, b.rows, b.tree.home)
	}
}
