package forms

import (
	"context"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/attend"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
)

// expanded is the state of the expanded form. It takes one sequence at a time, a group of heads at
// a time, and its keys in ranges that end on borders of partitions: only the sums of the rows are
// carried, and where the ranges end is in no bit of the result.
type expanded struct {
	heads      attend.Heads
	groupHeads int // most heads of a group
	places     int // expanded rows that a head holds

	buf   []float32       // [group head] Compute.HeadFloats
	dense []compute.Dense // [group head]

	// the sequence, group and range in hand
	seq        *Seq
	head0      int
	from, to   int // keys to expand
	base       int // key of the buffers' first row
	headPieces int // pieces into which the group is cut for expansion
}

func (e *expanded) carve(c *mem.Carver, w *Workspace, g Geometry) {
	l, kind := g.Layer, compute.Of(g.Compute)
	size := kind.Shape().Partition
	e.places = min((g.Buffer+size-1)/size*size, g.Context)
	perHead := kind.HeadFloats(e.places, l.Nope+l.Rope, l.V)
	e.groupHeads = min(max(expandFloats/(perHead+w.StateFloats(g.Tokens, l.V, g.Context)), 1), l.Heads)
	if n := min(g.Workers, l.Heads); e.groupHeads < n {
		e.groupHeads = n // one head a worker at least
	}
	perHead = (perHead + 15) / 16 * 16
	e.buf = mem.Carve[float32](c, e.groupHeads*perHead)
	e.heads.Carve(c, &w.Workers, e.groupHeads, g.Tokens, l.V, g.Context)
	if !c.Real() {
		return
	}
	if cap(e.dense) < e.groupHeads {
		e.dense = make([]compute.Dense, e.groupHeads)
	}
	e.dense = e.dense[:e.groupHeads]
	for i := range e.dense {
		e.dense[i] = kind.Head(e.buf[i*perHead:], e.places, l.Nope+l.Rope, l.V)
	}
}

// runExpanded computes every sequence whose form is expanded.
func (w *Workspace) runExpanded(ctx context.Context) error {
	e, c := &w.expanded, w.call
	for i := range c.Seqs {
		s := &c.Seqs[i]
		if !s.Expanded || s.Tokens == 0 {
			continue
		}
		e.seq = s
		for e.head0 = 0; e.head0 < c.Heads; e.head0 += e.groupHeads {
			if err := w.runGroup(ctx, min(e.groupHeads, c.Heads-e.head0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runGroup walks the keys of the sequence for one group of heads.
func (w *Workspace) runGroup(ctx context.Context, heads int) error {
	e, c, s := &w.expanded, w.call, w.expanded.seq
	call := attend.Call{K: c.Nope + c.Rope, Cols: c.V, Scale: c.Scale, Mask: c.Mask, Outputs: c.outputs()}
	call.Out, call.LD = c.Out, c.Heads*c.V
	e.heads.Segments = e.heads.Segments[:heads]
	for g := range heads {
		row := s.Token*c.Heads + e.head0 + g
		seg := attend.Segment{
			Tokens: s.Tokens, Heads: 1, Head: e.head0 + g, Pos: s.Pos, Places: s.Keys, OutAt: row * c.V, LSEAt: row,
		}
		seg.Keys[0].Dense = &e.dense[g]
		e.heads.Segments[g] = seg
	}
	e.heads.Start(call)
	shape := compute.Of(c.Compute).Shape()
	lo, _ := c.Mask.Visible(s.Pos, s.Keys)
	_, hi := c.Mask.Visible(s.Pos+s.Tokens-1, s.Keys)
	for e.from = lo; ; e.from = e.to {
		e.base = e.from / shape.Tile * shape.Tile
		e.to = min(e.base+e.places, hi)
		if e.to < hi {
			e.to = e.to / shape.Partition * shape.Partition
		}
		for g := range heads {
			e.dense[g].Base = e.base
		}
		tiles := (e.to-1)/shape.Tile - e.base/shape.Tile + 1
		e.headPieces = w.cuts(tiles, heads)
		if err := w.pool.Run(ctx, tiles*e.headPieces, (*expandStage)(w)); err != nil {
			return err
		}
		last := e.to == hi
		if err := e.heads.Run(ctx, w.pool, e.from, e.to, last, (*headStage)(w)); err != nil || last {
			return err
		}
	}
}

// expandStage expands the keys of one tile for a piece of the group's heads:
// item = tile*headPieces + piece.
type expandStage Workspace

func (q *expandStage) Do(worker, item int) error {
	w := (*Workspace)(q)
	e, c, s, own := &w.expanded, w.call, &w.scratch[worker], w.Worker(worker)
	tile := compute.Of(c.Compute).Shape().Tile
	heads, part := len(e.heads.Segments), item%e.headPieces
	t0 := e.base + item/e.headPieces*tile
	k0, k1 := max(t0, e.from), min(t0+tile, e.to)
	n, at := k1-k0, k0-e.base
	x, ldx := own.Latent(e.seq.View, c.width(), k0, n)
	c.UV.Activate(&s.latentAct, x, ldx, n)
	for g := part * heads / e.headPieces; g < (part+1)*heads/e.headPieces; g++ {
		d := &e.dense[g]
		keys, ldk := own.ExpandKeys(d, at, n)
		c.K.MulPanels(e.head0+g, keys, ldk, &s.latentAct, n, 0, c.Nope)
		own.ExpandedKeys(d, at, n, c.Nope, x[c.Latent:], ldx, c.Rope)
		values, ldv := own.ExpandValues(d, at, n)
		c.UV.MulPanels(e.head0+g, values, ldv, &s.latentAct, n, 0, c.V)
		own.ExpandedValues(d, at, n)
	}
	return nil
}

// headStage packs the queries of a block of one head and attends with them.
type headStage Workspace

func (q *headStage) Do(worker, item int) error {
	w := (*Workspace)(q)
	e, c, s := &w.expanded, w.call, &w.scratch[worker]
	d := c.Nope + c.Rope
	seg, from, n := e.heads.Item(item)
	for i := range n {
		x := s.rows[i*d : (i+1)*d]
		t := from + i
		c.Q.Widen(x, ((e.seq.Token+t)*c.Heads+seg.Head)*d, d)
		w.rotate(s, x[c.Nope:], seg.Pos+t)
	}
	if n > 0 {
		w.Worker(worker).Pack(s.queries, fp8.RowsF32(s.rows), 0, d, n, d)
	}
	e.heads.Do(worker, item, s.queries)
	return nil
}
