package mla

import (
	"context"

	"github.com/lamina-ml/lamina/simd"
)

// expanded is the state of the expanded form. It takes one sequence at a time,
// a group of heads at a time, and its keys in chunks of at most Limits.Buffer:
//
//	expand  K and V of the chunk's keys for every head of the group
//	attend  (head, block of query tokens) over the whole tiles that are ready
//
// Running (M, L, O) and the open partition's (m, l, o) of every (head, token)
// are carried from chunk to chunk, and so are the rows of an unfinished tile:
// where the chunks end is in no bit of the result.
type expanded struct {
	groupHeads int // most heads of a group
	rowsCap    int // expanded rows a head holds: Buffer + an unfinished tile

	ldk, ldv int       // strides of rows of N+P and V values; those of o are ldv as well
	k, v     []float32 // [group head][rowsCap][ldk], [group head][rowsCap][ldv]

	// the same in the second arithmetic: values in pairs of keys
	pk []uint16 // [group head][rowsCap][ldk]
	pv []uint16 // [group head][pairsCap][2*ldv]

	bigM, bigL, m, l []float32 // [group head][Tokens]
	bigO, o          []float32 // [group head][Tokens][ldv]
	part             []int32   // [group head][query block]: the open partition, -1 none

	// the sequence, group and chunk in hand
	seq        int
	seg        segment
	head0      int
	heads      int
	base       int // key of the buffer's first row, a multiple of tileKeys
	from, to   int // keys to expand
	ready      int // keys [base, ready) are whole tiles, or all there are
	last       bool
	headPieces int // pieces into which the group is cut for expansion
}

func (e *expanded) size(p *Plan) {
	c := p.cfg
	e.ldk, e.ldv = stride(c.Nope+c.Rope), stride(c.V)
	e.rowsCap = p.lim.Buffer + tileKeys - 1
	perRow := e.ldk + e.ldv
	if c.Arithmetic == BF16 {
		e.ldk = stride16(c.Nope + c.Rope)
		perRow = (e.ldk + 2*e.ldv) / 2
	}
	perHead := e.rowsCap*perRow + p.lim.Tokens*(2*e.ldv+4)
	e.groupHeads = min(max(expandFloats/perHead, 1), c.Heads)
	if w := min(len(p.scratch), c.Heads); e.groupHeads < w {
		e.groupHeads = w // one head a worker at least
	}
	e.part = make([]int32, e.groupHeads*queryBlocks(p.lim.Tokens))
}

// pairsCap is the pairs of keys that a head holds.
func (e *expanded) pairsCap() int { return (e.rowsCap + 1) / 2 }

func queryBlocks(tokens int) int { return (tokens + queryRows - 1) / queryRows }

func (e *expanded) cut(p *Plan, c *cutter) {
	if e.groupHeads == 0 {
		return // the core alone
	}
	g, t := e.groupHeads, p.lim.Tokens
	if p.cfg.Arithmetic == BF16 {
		e.pk = c.cut16(g * e.rowsCap * e.ldk)
		e.pv = c.cut16(g * e.pairsCap() * 2 * e.ldv)
	} else {
		e.k = c.cut(g * e.rowsCap * e.ldk)
		e.v = c.cut(g * e.rowsCap * e.ldv)
	}
	for _, f := range []*[]float32{&e.bigM, &e.bigL, &e.m, &e.l} {
		*f = c.cut(g * t)
	}
	e.bigO = c.cut(g * t * e.ldv)
	e.o = c.cut(g * t * e.ldv)
}

// runExpanded computes every sequence whose form is expanded.
func (p *Plan) runExpanded(ctx context.Context) error {
	e := &p.exp
	for seq := range p.call.nseq {
		n := p.newTokens(seq)
		if p.forms[seq] != FormExpanded || n == 0 {
			continue
		}
		first := p.firstPosition(seq)
		e.seq = seq
		e.seg = segment{seq: seq, tok0: int(p.call.Offsets[seq]), n: n, pos0: first, keys: first + n}
		for e.head0 = 0; e.head0 < p.cfg.Heads; e.head0 += e.heads {
			e.heads = min(e.groupHeads, p.cfg.Heads-e.head0)
			if err := p.runGroup(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// runGroup walks the keys of the sequence for one group of heads.
func (p *Plan) runGroup(ctx context.Context) error {
	e := &p.exp
	lo, hi := p.visibleTo(&e.seg, 0, e.seg.n-1)
	fill(e.bigM[:e.heads*e.seg.n], negInf)
	for i := range e.part {
		e.part[i] = -1
	}
	e.base = lo / tileKeys * tileKeys
	for e.from = lo; ; e.from = e.to {
		e.to = min(e.from+p.lim.Buffer, hi)
		e.last = e.to == hi
		e.ready = e.to
		if !e.last {
			e.ready = e.to / tileKeys * tileKeys
		}
		e.headPieces = p.cuts(e.tiles(), e.heads)
		if err := p.pool.Run(ctx, e.tiles()*e.headPieces, (*expandStage)(p)); err != nil {
			return err
		}
		if e.ready > e.base || e.last {
			if err := p.pool.Run(ctx, e.heads*queryBlocks(e.seg.n), (*expandedStage)(p)); err != nil {
				return err
			}
		}
		if e.last {
			return nil
		}
		e.carry()
	}
}

// tiles is how many tiles the keys to expand touch.
func (e *expanded) tiles() int { return (e.to-1)/tileKeys - e.from/tileKeys + 1 }

// carry moves the rows of the unfinished tile to the front of the buffer.
func (e *expanded) carry() {
	done, rows := e.ready-e.base, e.to-e.ready
	for h := range e.heads {
		switch {
		case done == 0:
		case e.pk != nil: // done is even
			k, v := e.pk[h*e.rowsCap*e.ldk:], e.pv[h*e.pairsCap()*2*e.ldv:]
			copy(k[:rows*e.ldk], k[done*e.ldk:])
			copy(v[:(rows+1)/2*2*e.ldv], v[done*e.ldv:])
		default:
			k, v := e.k[h*e.rowsCap*e.ldk:], e.v[h*e.rowsCap*e.ldv:]
			copy(k[:rows*e.ldk], k[done*e.ldk:])
			copy(v[:rows*e.ldv], v[done*e.ldv:])
		}
	}
	e.base = e.ready
}

// expandStage expands the keys of one tile for a piece of the group's heads:
// item = tile*headPieces + piece.
type expandStage Plan

func (q *expandStage) Do(worker, item int) error {
	p := (*Plan)(q)
	e, c, s := &p.exp, &p.cfg, &p.scratch[worker]
	width, ld := c.Width(), stride(c.Width())
	piece := item % e.headPieces
	t0 := (e.from/tileKeys + item/e.headPieces) * tileKeys
	k0, k1 := max(t0, e.from), min(t0+tileKeys, e.to)
	rows, at := k1-k0, k0-e.base
	if c.Arithmetic == BF16 {
		p.expandPairs(s, k0, rows, piece)
		return nil
	}
	p.views[e.seq].Widen(s.tile, ld, k0, rows)
	p.layer.w.uv.Activate(&s.latents, s.tile, ld, rows)
	for g := piece * e.heads / e.headPieces; g < (piece+1)*e.heads/e.headPieces; g++ {
		k := e.k[(g*e.rowsCap+at)*e.ldk:]
		v := e.v[(g*e.rowsCap+at)*e.ldv:]
		p.layer.w.k.MulPanels(e.head0+g, k, e.ldk, &s.latents, rows, 0, c.Nope)
		p.layer.w.uv.MulPanels(e.head0+g, v, e.ldv, &s.latents, rows, 0, c.V)
		for i := range rows {
			copy(k[i*e.ldk+c.Nope:][:c.Rope], s.tile[i*ld+c.Latent:width+i*ld])
		}
	}
	return nil
}

// pairsAt is the pairs of values of a group's head from row, which is even, on.
func (e *expanded) pairsAt(head, row int) []uint16 {
	return e.pv[(head*e.pairsCap()+row/2)*2*e.ldv:]
}

// expandPairs is expandStage in the second arithmetic. Keys that begin in the middle of a pair complete it.
func (p *Plan) expandPairs(s *scratch, k0, rows, piece int) {
	e, c := &p.exp, &p.cfg
	ld, ld16, ldval := stride(c.Width()), stride16(c.Width()), stride16(c.V)
	p.views[e.seq].ReadBF16(s.pairX, ld16, s.pairWide, k0, rows)
	for i := range rows {
		simd.WidenBF16(s.tile[i*ld:], s.pairX[i*ld16:][:c.Latent])
	}
	p.layer.w.uv.Activate(&s.latents, s.tile, ld, rows)
	at := k0 - e.base
	for g := piece * e.heads / e.headPieces; g < (piece+1)*e.heads/e.headPieces; g++ {
		k := e.pk[(g*e.rowsCap+at)*e.ldk:]
		p.layer.w.k.MulPanels(e.head0+g, s.xs, c.Nope, &s.latents, rows, 0, c.Nope)
		for i := range rows {
			simd.NarrowValueBF16(k[i*e.ldk:], s.xs[i*c.Nope:][:c.Nope])
			copy(k[i*e.ldk+c.Nope:][:c.Rope], s.pairX[i*ld16+c.Latent:])
		}
		p.layer.w.uv.MulPanels(e.head0+g, s.ys, c.V, &s.latents, rows, 0, c.V)
		for i := range rows {
			simd.NarrowValueBF16(s.pairValue[i*ldval:], s.ys[i*c.V:][:c.V])
		}
		odd := at % 2
		if odd == 1 {
			v := e.pairsAt(g, at-1)
			for i, u := range s.pairValue[:c.V] {
				v[2*i+1] = u
			}
		}
		if rows > odd {
			simd.InterleaveBF16(e.pairsAt(g, at+odd), 2*e.ldv, s.pairValue[odd*ldval:], ldval, rows-odd, c.V)
		}
	}
}

// expandedStage attends with one block of query tokens of one head:
// item = group head*blocks + block.
type expandedStage Plan

func (q *expandedStage) Do(worker, item int) error {
	p := (*Plan)(q)
	e, c, s := &p.exp, &p.cfg, &p.scratch[worker]
	d := c.Nope + c.Rope
	blocks := queryBlocks(e.seg.n)
	g, first := item/blocks, item%blocks*queryRows
	rows := min(queryRows, e.seg.n-first)
	at := g*e.seg.n + first // row of the state
	m, l, o := e.m[at:at+rows], e.l[at:at+rows], e.o[at*e.ldv:(at+rows)*e.ldv]

	for j := range rows {
		lo, hi := c.Mask.visible(e.seg.pos0+first+j, e.seg.keys)
		s.rowLo[j], s.rowHi[j] = int32(lo), int32(hi)
	}
	lo, hi := union(s.rowLo[:rows], s.rowHi[:rows])
	packed := false
	for t0 := max(e.base, lo/tileKeys*tileKeys); t0 < min(e.ready, hi); t0 += tileKeys {
		if !packed {
			p.packQueries(s, e.head0+g, e.seg.tok0+first, rows)
			packed = true
		}
		k0, k1 := max(t0, lo), min(t0+tileKeys, hi, e.ready)
		if part := int32(t0 / partitionKeys); part != e.part[item] {
			e.foldPartition(c, item, at, rows)
			e.part[item] = part
			result{m: m, l: l, o: o}.start(rows, e.ldv, c.Arithmetic)
		}
		t := tile{
			rows: rows, k: d, cols: c.V, ldx: e.ldk, ldv: e.ldv, q: s.q, pq: s.pairQ,
			o: o, ldo: e.ldv, m: m, l: l, pairs: c.Arithmetic == BF16,
		}
		k0 = t.pairDown(k0)
		t.keys = k1 - k0
		if row := k0 - e.base; t.pairs {
			t.px, t.pv, t.ldv = e.pk[(g*e.rowsCap+row)*e.ldk:], e.pairsAt(g, row), 2*e.ldv
		} else {
			t.x, t.v = e.k[(g*e.rowsCap+row)*e.ldk:], e.v[(g*e.rowsCap+row)*e.ldv:]
		}
		clampRanges(s.lo[:rows], s.hi[:rows], s.rowLo[:rows], s.rowHi[:rows], k0, t.keys)
		s.attend(&t, c.Scale)
	}
	if e.last {
		e.foldPartition(c, item, at, rows)
		p.finishQueries(s, e.head0+g, e.seg.tok0+first, at, rows)
	}
	return nil
}

// foldPartition folds the open partition of a query block, if there is one.
func (e *expanded) foldPartition(c *Config, item, at, rows int) {
	if e.part[item] < 0 {
		return
	}
	simd.FoldRows(e.bigO[at*e.ldv:], e.ldv, e.bigM[at:], e.bigL[at:], e.o[at*e.ldv:], e.ldv, e.m[at:], e.l[at:], rows, c.V)
}

// packQueries ropes and packs the queries of rows tokens of one head, from
// batch token tok on, into panels of lanes.
func (p *Plan) packQueries(s *scratch, head, tok, rows int) {
	c := &p.cfg
	d := c.Nope + c.Rope
	for i := range rows {
		x := s.qrow[i*d : (i+1)*d]
		p.call.q.Widen(x, ((tok+i)*c.Heads+head)*d, d)
		if c.Rope > 0 {
			p.rotateAt(s, x[c.Nope:], tok+i)
		}
	}
	s.pack(c, s.qrow, d, rows, d)
}

// pack packs n queries of k values for the tiles of one head.
func (s *scratch) pack(c *Config, x []float32, ldx, n, k int) {
	if c.Arithmetic == BF16 {
		simd.PackPairs(s.pairQ, pairPanel(k), x, ldx, n, k)
	} else {
		simd.PackRows(s.q, k*simd.Lanes, x, ldx, n, k)
	}
}

// finishQueries divides the rows of a query block and writes them out.
func (p *Plan) finishQueries(s *scratch, head, tok, at, rows int) {
	e, c := &p.exp, &p.cfg
	var sink []float32
	if p.call.Sink != nil {
		sink = s.sink[:rows]
		fill(sink, p.call.Sink[head])
	}
	lse, top := s.lse[:rows], s.top[:rows]
	run := result{o: e.bigO[at*e.ldv:], m: e.bigM[at:], l: e.bigL[at:]}
	run.finish(p.call.out, (tok*c.Heads+head)*c.V, c.Heads*c.V, e.ldv, sink, lse, top, rows, c.V)
	for i := range rows {
		row := (tok+i)*c.Heads + head
		if p.call.LSE != nil {
			p.call.LSE[row] = lse[i]
		}
		if p.call.MaxLogit != nil {
			p.call.MaxLogit[row] = top[i]
		}
	}
}
