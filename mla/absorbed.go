package mla

import (
	"context"
	"runtime"
	"sort"
	"sync/atomic"
	"time"

	"github.com/lamina-ml/lamina/simd"
)

// absorbed is the state of the absorbed form. It takes the tokens in waves that
// fit the workspace; a wave runs three stages on the pool:
//
//	query   q' of every (token, head) row, packed into panels of lanes
//	attend  units (row block, partition of keys), each ending in (m, l, o),
//	        folded into the block's (M, L, O) in key order, whoever computed them
//	output  w_uv[h] . o of every row
type absorbed struct {
	waveTokens int // most tokens of a wave

	segs   []segment
	blocks []block
	tok    []int32 // batch token of each wave token
	seg    []int32 // segment of each wave token
	units  int

	ignored atomic.Int64 // entries of index lists that were garbage

	q    []float32 // panels [.][C][Lanes]; a segment starts a new panel
	o    []float32 // [wave row][R]: O, then the normalised latent output
	m, l []float32 // [wave row]

	slots   []slot
	aborted atomic.Bool

	queryCuts, outputCuts int // pieces into which a head's product is cut
}

// segment is the new tokens of one sequence that are in the wave.
type segment struct {
	seq    int // of the batch
	tok0   int // its first token in the batch
	n      int // tokens
	wave0  int // its first token in the wave
	panel0 int // its first panel in q
	pos0   int // absolute position of its first token
	keys   int // keys of the sequence
}

// block is consecutive (token, head) rows of one segment that share their
// widened tiles.
type block struct {
	seg        int
	row0, rows int // wave rows
	lo, hi     int // keys that any of its rows sees
	unit0      int // its first unit
	unitEnd    int
	next       atomic.Int64 // the unit to fold next
	folding    atomic.Bool
}

// slot holds one partition's result until it is folded. Unit u uses slot u
// modulo their number, and may begin when the unit that had it is folded.
type slot struct {
	free atomic.Int64 // the unit that may use it
	done atomic.Int64 // 1 + the unit whose result it holds
	m, l []float32    // [maxBlockRows]
	o    []float32    // [maxBlockRows][R]
}

// start empties the slot for a partition of rows rows of r values.
func (s *slot) start(rows, r int) (m, l, o []float32) {
	m, l, o = s.m[:rows], s.l[:rows], s.o[:rows*r]
	fill(m, negInf)
	clear(l)
	clear(o)
	return m, l, o
}

func (a *absorbed) size(p *Plan) {
	c := p.cfg
	perToken := c.Heads * (c.Width() + c.Latent)
	a.waveTokens = min(max(waveFloats/perToken, 1), maxWave, p.lim.Tokens)
	rows := a.waveTokens * c.Heads
	a.segs = make([]segment, 0, a.waveTokens) // sparse: one token each
	a.blocks = make([]block, rows/minBlockRows+a.waveTokens)
	a.tok = make([]int32, a.waveTokens)
	a.seg = make([]int32, a.waveTokens)
	a.slots = make([]slot, 2*len(p.scratch))
}

func (a *absorbed) cut(p *Plan, c *cutter) {
	rows := a.waveTokens * p.cfg.Heads
	panels := rows/simd.Lanes + cap(a.segs)
	a.q = c.cut(panels * p.cfg.Width() * simd.Lanes)
	a.o = c.cut(rows * p.cfg.Latent)
	a.m = c.cut(rows)
	a.l = c.cut(rows)
	for i := range a.slots {
		s := &a.slots[i]
		s.m = c.cut(maxBlockRows)
		s.l = c.cut(maxBlockRows)
		s.o = c.cut(maxBlockRows * p.cfg.Latent)
	}
}

// runAbsorbed computes every sequence whose form is absorbed.
func (p *Plan) runAbsorbed(ctx context.Context) error {
	a := &p.abs
	for seq, done := 0, 0; ; {
		seq, done = p.fillWave(seq, done)
		if len(a.segs) == 0 {
			return nil
		}
		p.cutBlocks()
		a.queryCuts = p.cuts(p.cfg.Heads, panelsOf(p.cfg.Latent))
		a.outputCuts = p.cuts(p.cfg.Heads, panelsOf(p.cfg.V))
		if p.call.coreOnly() {
			a.queryCuts, a.outputCuts = 1, 1
		}
		if err := p.pool.Run(ctx, p.cfg.Heads*a.queryCuts, (*queryStage)(p)); err != nil {
			return err
		}
		a.aborted.Store(false)
		if err := p.pool.Run(ctx, a.units, (*attendStage)(p)); err != nil {
			return err
		}
		if err := p.pool.Run(ctx, p.cfg.Heads*a.outputCuts, (*outputStage)(p)); err != nil {
			return err
		}
	}
}

func panelsOf(n int) int { return (n + simd.Lanes - 1) / simd.Lanes }

// cuts is into how many pieces, at most limit, each of n equal works is cut so
// that every worker gets some.
func (p *Plan) cuts(n, limit int) int {
	want := itemsAWorker * len(p.scratch)
	if len(p.scratch) == 1 {
		want = 1
	}
	return min(max((want+n-1)/n, 1), limit)
}

// fillWave collects the next wave of tokens, from the token numbered done of
// sequence seq on, and says where the one after begins.
func (p *Plan) fillWave(seq, done int) (int, int) {
	a := &p.abs
	a.segs = a.segs[:0]
	tokens, panels := 0, 0
	for seq < p.call.nseq {
		tok0 := int(p.call.Offsets[seq]) + done
		n := min(int(p.call.Offsets[seq+1])-tok0, a.waveTokens-tokens)
		if n == 0 || p.forms[seq] != FormAbsorbed {
			seq, done = seq+1, 0 // empty, or ended by the last segment
			continue
		}
		if p.call.sparse && !p.call.fold {
			n = 1 // a list for each token
		}
		first := p.firstPosition(seq)
		a.segs = append(a.segs, segment{
			seq: seq, tok0: tok0, n: n, wave0: tokens, panel0: panels,
			pos0: first + done, keys: first + p.newTokens(seq),
		})
		for i := range n {
			a.tok[tokens+i] = int32(tok0 + i)
			a.seg[tokens+i] = int32(len(a.segs) - 1)
		}
		tokens += n
		panels += panelsOf(n * p.cfg.Heads)
		done += n
		if tokens == a.waveTokens {
			break
		}
	}
	return seq, done
}

// waveLen is the number of tokens in the wave.
func (a *absorbed) waveLen() int {
	last := &a.segs[len(a.segs)-1]
	return last.wave0 + last.n
}

// cutBlocks cuts the segments into row blocks and counts the units. Blocks are
// as large as their tiles are shared, and smaller when workers would idle.
func (p *Plan) cutBlocks() {
	a := &p.abs
	rows := maxBlockRows
	for {
		a.units = p.cutBlocksOf(rows)
		if rows/2 < minBlockRows || len(p.scratch) == 1 || a.units >= itemsAWorker*len(p.scratch) {
			break
		}
		rows /= 2
	}
	for i := range a.slots {
		a.slots[i].free.Store(int64(i))
		a.slots[i].done.Store(0)
	}
	for i := range a.blocks {
		b := &a.blocks[i]
		b.next.Store(int64(b.unit0))
		b.folding.Store(false)
		fill(a.m[b.row0:b.row0+b.rows], negInf)
		if b.unit0 == b.unitEnd {
			p.finishBlock(&p.scratch[0], b) // rows that see nothing
		}
	}
}

func (p *Plan) cutBlocksOf(maxRows int) (units int) {
	a := &p.abs
	a.blocks = a.blocks[:0]
	h := p.cfg.Heads
	for i := range a.segs {
		s := &a.segs[i]
		for r := 0; r < s.n*h; r += maxRows {
			n := min(maxRows, s.n*h-r)
			a.blocks = a.blocks[:len(a.blocks)+1]
			b := &a.blocks[len(a.blocks)-1]
			b.seg, b.row0, b.rows = i, s.wave0*h+r, n
			b.lo, b.hi = p.visibleTo(s, r/h, (r+n-1)/h)
			b.unit0 = units
			switch {
			case p.call.sparse:
				for i := range p.call.lists {
					units += partitions(len(p.call.lists[i].of(s.tok0, s.seq)))
				}
			case b.lo < b.hi:
				units += (b.hi-1)/partitionKeys - b.lo/partitionKeys + 1
			}
			b.unitEnd = units
		}
	}
	return units
}

// visibleTo is the range of keys that the tokens first..last of s see; both
// ends of every mask grow with the position.
func (p *Plan) visibleTo(s *segment, first, last int) (lo, hi int) {
	lo, _ = p.cfg.Mask.visible(s.pos0+first, s.keys)
	_, hi = p.cfg.Mask.visible(s.pos0+last, s.keys)
	return lo, hi
}

// queryStage computes q' for one head: item = head*cuts + piece of R.
type queryStage Plan

func (q *queryStage) Do(worker, item int) error {
	p := (*Plan)(q)
	a, c, s := &p.abs, &p.cfg, &p.scratch[worker]
	h, piece := item/a.queryCuts, item%a.queryCuts
	d := c.Nope + c.Rope
	n := a.waveLen()
	if p.call.coreOnly() {
		for i := range n {
			p.call.q.Widen(s.row, (int(a.tok[i])*c.Heads+h)*c.Width(), c.Width())
			a.scatter(c, i, h, 0, s.row)
		}
		return nil
	}
	panels := panelsOf(c.Latent)
	n0 := piece * panels / a.queryCuts * simd.Lanes
	n1 := min((piece+1)*panels/a.queryCuts*simd.Lanes, c.Latent)
	for i0 := 0; i0 < n; i0 += gatherTokens {
		m := min(gatherTokens, n-i0)
		for i := range m {
			p.call.q.Widen(s.xs[i*c.Nope:], (int(a.tok[i0+i])*c.Heads+h)*d, c.Nope)
		}
		p.activate(&s.act, s.xs, c.Nope, m, c.Nope, c.ActBlockQ)
		p.mul(p.layer.w.uk, h, s.ys, n1-n0, s.xs, c.Nope, &s.act, m, n0, n1)
		for i := range m {
			a.scatter(c, i0+i, h, n0, s.ys[i*(n1-n0):(i+1)*(n1-n0)])
		}
	}
	if piece != 0 || c.Rope == 0 {
		return nil
	}
	rope := s.row[:c.Rope]
	for i := range n {
		t := int(a.tok[i])
		p.call.q.Widen(rope, (t*c.Heads+h)*d+c.Nope, c.Rope)
		p.rotateAt(s, rope, t)
		a.scatter(c, i, h, c.Latent, rope)
	}
	return nil
}

// scatter writes values k0, k0+1, ... of head h's query of wave token i into
// its lane of the packed panels.
func (a *absorbed) scatter(c *Config, i, h, k0 int, x []float32) {
	s := &a.segs[a.seg[i]]
	row := (i-s.wave0)*c.Heads + h
	panel := s.panel0 + row/simd.Lanes
	dst := a.q[(panel*c.Width()+k0)*simd.Lanes+row%simd.Lanes:]
	for k, v := range x {
		dst[k*simd.Lanes] = v
	}
}

// attendStage computes units.
type attendStage Plan

func (q *attendStage) Do(worker, unit int) error {
	p := (*Plan)(q)
	a := &p.abs
	folded := false
	defer func() {
		if !folded { // nobody may wait for this unit any longer
			a.aborted.Store(true)
		}
	}()
	b := &a.blocks[sort.Search(len(a.blocks), func(i int) bool { return a.blocks[i].unitEnd > unit })]
	sl := &a.slots[unit%len(a.slots)]
	if err := a.await(p.call.ctx, sl, unit); err != nil {
		return err
	}
	if p.call.sparse {
		p.attendSparse(&p.scratch[worker], b, unit-b.unit0, sl)
	} else {
		p.attend(&p.scratch[worker], b, b.lo/partitionKeys+unit-b.unit0, sl)
	}
	sl.done.Store(int64(unit) + 1)
	p.foldReady(&p.scratch[worker], b)
	folded = true
	return nil
}

// await waits until sl may hold unit's result: until the unit that had it last,
// which an earlier claim is computing, is folded.
func (a *absorbed) await(ctx context.Context, sl *slot, unit int) error {
	for spin := 0; sl.free.Load() != int64(unit); spin++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		if a.aborted.Load() {
			return errAborted
		}
		if spin < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
	return nil
}

// attend computes the partition part of block b into sl.
func (p *Plan) attend(s *scratch, b *block, part int, sl *slot) {
	a, c := &p.abs, &p.cfg
	seg := &a.segs[b.seg]
	width, rows := c.Width(), b.rows
	lds := roundUp(rows, simd.Lanes)
	first := b.row0 - seg.wave0*c.Heads // row in the segment
	q := a.q[(seg.panel0+first/simd.Lanes)*width*simd.Lanes:]
	m, l, o := sl.start(rows, c.Latent)
	for j := range rows {
		lo, hi := c.Mask.visible(seg.pos0+(first+j)/c.Heads, seg.keys)
		s.rowLo[j], s.rowHi[j] = int32(lo), int32(hi)
	}
	for t0 := part * partitionKeys; t0 < (part+1)*partitionKeys; t0 += tileKeys {
		k0, k1 := max(t0, b.lo), min(t0+tileKeys, b.hi)
		if k0 >= k1 {
			continue
		}
		keys := k1 - k0
		p.views[seg.seq].Widen(s.tile, width, k0, keys)
		scores(s.st, lds, s.tile, width, q, keys, rows, width)
		clampRanges(s.lo[:rows], s.hi[:rows], s.rowLo[:rows], s.rowHi[:rows], k0, keys)
		simd.SoftmaxTile(s.st, lds, keys, rows, s.lo[:rows], s.hi[:rows], c.Scale, m, l, s.alpha[:rows])
		simd.ValueTile(o, c.Latent, s.st, lds, s.tile, width, s.alpha[:rows], keys, rows, c.Latent)
	}
}

// foldReady folds the results of b that are ready, in key order. One worker
// folds at a time; the others leave theirs to it, and it looks again after
// letting go, so that none is left lying.
func (p *Plan) foldReady(s *scratch, b *block) {
	a, r := &p.abs, p.cfg.Latent
	ready := func() (*slot, bool) {
		u := b.next.Load()
		sl := &a.slots[int(u)%len(a.slots)]
		return sl, u < int64(b.unitEnd) && sl.done.Load() == u+1
	}
	for {
		if _, ok := ready(); !ok || !b.folding.CompareAndSwap(false, true) {
			return
		}
		for sl, ok := ready(); ok; sl, ok = ready() {
			u := b.next.Load()
			simd.FoldRows(a.o[b.row0*r:], r, a.m[b.row0:], a.l[b.row0:], sl.o, r, sl.m, sl.l, b.rows, r)
			sl.free.Store(u + int64(len(a.slots)))
			b.next.Store(u + 1)
			if int(u)+1 == b.unitEnd {
				p.finishBlock(s, b)
			}
		}
		b.folding.Store(false)
	}
}

// finishBlock divides the rows of b by their sums and writes lse and max logit.
func (p *Plan) finishBlock(s *scratch, b *block) {
	a, c := &p.abs, &p.cfg
	seg := &a.segs[b.seg]
	first := b.row0 - seg.wave0*c.Heads
	at := seg.tok0*c.Heads + first // row of the batch, tokens by heads
	var sink, lse, top []float32
	if p.call.Sink != nil {
		sink = s.sink[:b.rows]
		for j := range sink {
			sink[j] = p.call.Sink[(first+j)%c.Heads]
		}
	}
	if p.call.LSE != nil {
		lse = p.call.LSE[at : at+b.rows]
	}
	if p.call.MaxLogit != nil {
		top = p.call.MaxLogit[at : at+b.rows]
	}
	if p.call.byHead {
		lse, top = s.lse[:b.rows], s.top[:b.rows]
	}
	o := a.o[b.row0*c.Latent:]
	simd.FinishRows(o, c.Latent, o, c.Latent, a.m[b.row0:], a.l[b.row0:], sink, lse, top, b.rows, c.Latent)
	if p.call.byHead {
		p.writeByHead(p.call.LSE, lse, at)
		p.writeByHead(p.call.MaxLogit, top, at)
	}
}

// writeByHead writes x, which belongs to rows (token, head) from at on, to dst in
// FlashMLA's layout of decode calls, [b, h, s_q].
func (p *Plan) writeByHead(dst, x []float32, at int) {
	if dst == nil {
		return
	}
	h, tokens := p.cfg.Heads, p.newTokens(0) // every sequence has as many
	for j, v := range x {
		tok, head := (at+j)/h, (at+j)%h
		dst[(tok/tokens*h+head)*tokens+tok%tokens] = v
	}
}

// outputStage applies w_uv of one head: item = head*cuts + piece of V.
type outputStage Plan

func (q *outputStage) Do(worker, item int) error {
	p := (*Plan)(q)
	a, c, s := &p.abs, &p.cfg, &p.scratch[worker]
	h, piece := item/a.outputCuts, item%a.outputCuts
	n := a.waveLen()
	if p.call.coreOnly() {
		for i := range n {
			row := int(a.tok[i])*c.Heads + h
			p.call.out.Narrow(row*c.Latent, a.o[(i*c.Heads+h)*c.Latent:(i*c.Heads+h+1)*c.Latent])
		}
		return nil
	}
	panels := panelsOf(c.V)
	n0 := piece * panels / a.outputCuts * simd.Lanes
	n1 := min((piece+1)*panels/a.outputCuts*simd.Lanes, c.V)
	for i0 := 0; i0 < n; i0 += gatherTokens {
		m := min(gatherTokens, n-i0)
		x := a.o[(i0*c.Heads+h)*c.Latent:]
		p.activate(&s.act, x, c.Heads*c.Latent, m, c.Latent, c.ActBlockLatent)
		p.mul(p.layer.w.uv, h, s.ys, n1-n0, x, c.Heads*c.Latent, &s.act, m, n0, n1)
		for i := range m {
			y := s.ys[i*(n1-n0) : (i+1)*(n1-n0)]
			if a.m[(i0+i)*c.Heads+h] == negInf {
				clear(y) // a row that saw nothing is 0, whatever w_uv holds
			}
			p.call.out.Narrow((int(a.tok[i0+i])*c.Heads+h)*c.V+n0, y)
		}
	}
	return nil
}
