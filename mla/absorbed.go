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
// fit the workspace; a wave runs these stages on the pool:
//
//	query   the latent part of q' of every (token, head) row
//	pack    panels of rows of q', one item each
//	attend  units (row block, partition of keys), each ending in (m, l, o),
//	        folded into the block's (M, L, O) in key order, whoever computed them
//	finish  what is not folded yet, and the division
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
	pq   []uint16  // the same in pairs, see pairPanel
	o    []float32 // [wave row][ldo]: the latent part of q', then O, then the normalised latent output
	ldo  int       // stride of a row of R values
	m, l []float32 // [wave row]

	slots   []slot
	aborted atomic.Bool
	busy    []float64 // of each worker, to plan

	queryCuts, outputCuts int  // pieces into which a head's product is cut
	finishes              int  // items of the finish stage
	late                  bool // all folds are left to the finish stage
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
	unit0      int // its first unit, whose result goes to the running values at once
	unitEnd    int
	finishEnd  int          // the end of its items of the finish stage
	next       atomic.Int64 // the unit to fold next
	folding    atomic.Bool
}

// slot holds one partition's result until it is folded. Unit u uses slot u
// modulo their number, and may begin when the unit that had it is folded.
type slot struct {
	free atomic.Int64 // the unit that may use it
	done atomic.Int64 // 1 + the unit whose result it holds
	result
}

// result is the state of some rows: the maximum and the sum of each, and its
// values, absorbed.ldo apart.
type result struct {
	m, l, o []float32
}

// start empties n rows.
func (r result) start(n, ldo int, a Arithmetic) result {
	r.m, r.l, r.o = r.m[:n], r.l[:n], r.o[:n*ldo]
	fill(r.m, negInf)
	clear(r.l)
	if a != BF16 { // whose tiles begin the values of a row with its first keys
		clear(r.o)
	}
	return r
}

// bypasses reports an output that is written past the caches.
func bypasses(out Rows) bool {
	size := 2
	if out.F32() != nil {
		size = 4
	}
	return size*out.Len() >= bypassBytes
}

// finish divides n rows of r, ldo apart, by their sums and writes them to out from
// element at on, rows of cols values that are ldout apart.
func (r result) finish(out Rows, at, ldout, ldo int, sink, lse, top []float32, n, cols int) {
	bypass := 0
	if bypasses(out) {
		bypass = 1
	}
	if x := out.F32(); x != nil {
		simd.FinishRows(x[at:], ldout, r.o, ldo, r.m, r.l, sink, lse, top, n, cols, bypass)
		return
	}
	if x := out.BF16(); x != nil {
		simd.FinishRowsBF16(x[at:], ldout, r.o, ldo, r.m, r.l, sink, lse, top, n, cols, bypass)
		return
	}
	simd.FinishRows(r.o, ldo, r.o, ldo, r.m, r.l, sink, lse, top, n, cols, 0)
	for i := range n {
		out.Narrow(at+i*ldout, r.o[i*ldo:][:cols])
	}
}

// running is the running values of the wave's rows from row on.
func (a *absorbed) running(row int) result {
	return result{m: a.m[row:], l: a.l[row:], o: a.o[row*a.ldo:]}
}

func (a *absorbed) size(p *Plan) {
	c := p.cfg
	a.ldo = stride(c.Latent)
	perToken := c.Heads * (c.Width() + a.ldo)
	a.waveTokens = min(max(waveFloats/perToken, 1), maxWave, p.lim.Tokens)
	rows := a.waveTokens * c.Heads
	a.segs = make([]segment, 0, a.waveTokens) // sparse: one token each
	a.blocks = make([]block, rows/minBlockRows+a.waveTokens)
	a.tok = make([]int32, a.waveTokens)
	a.seg = make([]int32, a.waveTokens)
	a.busy = make([]float64, len(p.scratch))
	slots := max(2*len(p.scratch), minSlots)
	if len(p.scratch) == 1 {
		slots = 1 // each result is folded at once, and its memory stays in the caches
	}
	a.slots = make([]slot, slots)
}

func (a *absorbed) cut(p *Plan, c *cutter) {
	rows := a.waveTokens * p.cfg.Heads
	panels := rows/simd.Lanes + cap(a.segs)
	if p.cfg.Arithmetic == BF16 {
		a.pq = c.cut16(panels * pairPanel(p.cfg.Width()))
	} else {
		a.q = c.cut(panels * p.cfg.Width() * simd.Lanes)
	}
	a.o = c.cut(rows * a.ldo)
	a.m = c.cut(rows)
	a.l = c.cut(rows)
	for i := range a.slots {
		s := &a.slots[i]
		s.m = c.cut(maxBlockRows)
		s.l = c.cut(maxBlockRows)
		s.o = c.cut(maxBlockRows * a.ldo)
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
		if err := p.runQueries(ctx); err != nil {
			return err
		}
		a.aborted.Store(false)
		if err := p.pool.Run(ctx, a.units, (*attendStage)(p)); err != nil {
			return err
		}
		if err := p.pool.Run(ctx, a.finishes, (*finishStage)(p)); err != nil {
			return err
		}
		if p.call.coreOnly() {
			continue
		}
		if err := p.pool.Run(ctx, p.cfg.Heads*a.outputCuts, (*outputStage)(p)); err != nil {
			return err
		}
	}
}

// runQueries fills the packed panels of the wave.
func (p *Plan) runQueries(ctx context.Context) error {
	a := &p.abs
	if !p.call.coreOnly() {
		if err := p.pool.Run(ctx, p.cfg.Heads*a.queryCuts, (*queryStage)(p)); err != nil {
			return err
		}
	}
	last := &a.segs[len(a.segs)-1]
	return p.pool.Run(ctx, last.panel0+panelsOf(last.n*p.cfg.Heads), (*packStage)(p))
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
	most := min(simd.Blocks().BlockRows, maxBlockRows)
	best, rows := 0.0, most
	for r := most; r >= minBlockRows && len(p.scratch) > 1; r /= 2 {
		a.units = p.cutBlocksOf(r)
		if t := p.makespan(); r == most || t < best {
			best, rows = t, r
		}
	}
	a.units = p.cutBlocksOf(rows)
	// Few enough results to keep: every worker may then fold rows of its own.
	a.late = a.units <= len(a.slots)
	for i := range a.slots {
		a.slots[i].free.Store(int64(i))
		a.slots[i].done.Store(0)
	}
	a.finishes = 0
	for i := range a.blocks {
		b := &a.blocks[i]
		b.next.Store(int64(b.unit0))
		b.folding.Store(false)
		fill(a.m[b.row0:b.row0+b.rows], negInf)
		a.finishes += (b.rows + finishedRows - 1) / finishedRows
		b.finishEnd = a.finishes
	}
}

// makespan estimates how long the workers take for the units as the blocks are
// cut now, in rows times keys: units start in order, each on the worker that is
// free first.
func (p *Plan) makespan() float64 {
	const enough = 32 // units a worker, after which the last one matters little
	a, workers := &p.abs, len(p.scratch)
	var total, worst float64
	busy := a.busy[:workers]
	clear(busy)
	for i := range a.blocks {
		b := &a.blocks[i]
		for u := b.unit0; u < b.unitEnd; u++ {
			keys := partitionKeys
			if !p.call.sparse {
				part := b.lo/partitionKeys + u - b.unit0
				keys = min((part+1)*partitionKeys, b.hi) - max(part*partitionKeys, b.lo)
			}
			cost := float64(keys * (b.rows + tileRows))
			total += cost
			if a.units > enough*workers {
				continue
			}
			first := 0
			for w := range busy {
				if busy[w] < busy[first] {
					first = w
				}
			}
			busy[first] += cost
			worst = max(worst, busy[first])
		}
	}
	return max(worst, total/float64(workers))
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

// queryStage computes the latent part of q' of one head: item = head*cuts + piece of R. No two
// items write into one cache line, since pieces and rows begin at lines.
type queryStage Plan

func (q *queryStage) Do(worker, item int) error {
	p := (*Plan)(q)
	a, c, s := &p.abs, &p.cfg, &p.scratch[worker]
	h, piece := item/a.queryCuts, item%a.queryCuts
	d := c.Nope + c.Rope
	n := a.waveLen()
	panels := panelsOf(c.Latent)
	n0 := piece * panels / a.queryCuts * simd.Lanes
	n1 := min((piece+1)*panels/a.queryCuts*simd.Lanes, c.Latent)
	for i0 := 0; i0 < n; i0 += gatherTokens {
		m := min(gatherTokens, n-i0)
		for i := range m {
			p.call.q.Widen(s.xs[i*c.Nope:], (int(a.tok[i0+i])*c.Heads+h)*d, c.Nope)
		}
		p.layer.w.uk.Activate(&s.queries, s.xs, c.Nope, m)
		p.layer.w.uk.MulPanels(h, a.o[(i0*c.Heads+h)*a.ldo+n0:], c.Heads*a.ldo, &s.queries, m, n0, n1)
	}
	return nil
}

// packStage packs rows of q': item = panel. Nobody else writes into that panel, whose smallest
// unit may hold values of several terms and of several rows.
type packStage Plan

func (q *packStage) Do(worker, panel int) error {
	p := (*Plan)(q)
	a, c, s := &p.abs, &p.cfg, &p.scratch[worker]
	width := c.Width()
	seg := &a.segs[sort.Search(len(a.segs), func(i int) bool { return a.segs[i].panel0 > panel })-1]
	row := (panel - seg.panel0) * simd.Lanes
	n := min(simd.Lanes, seg.n*c.Heads-row)
	x, ldx := p.queryRows(s, seg, row, n)
	if c.Arithmetic == BF16 {
		ld := pairPanel(width)
		simd.PackPairs(a.pq[panel*ld:], ld, x, ldx, n, width)
	} else {
		simd.PackRows(a.q[panel*width*simd.Lanes:], width*simd.Lanes, x, ldx, n, width)
	}
	return nil
}

// queryRows is n rows of q' of a segment, from its row first on, and how far apart they lie. Those
// of a call of attention alone are the caller's, where they are if they are float32. Those of a
// layer are what queryStage wrote, with the rotated part of the caller's q behind it.
func (p *Plan) queryRows(s *scratch, seg *segment, first, n int) ([]float32, int) {
	a, c := &p.abs, &p.cfg
	at := seg.tok0*c.Heads + first // row of the batch
	if p.call.coreOnly() {
		return rowsOf(p.call.q, at*c.Width(), c.Width(), n, c.Width(), s.tile)
	}
	latent := a.o[(seg.wave0*c.Heads+first)*a.ldo:]
	if c.Rope == 0 {
		return latent, a.ldo
	}
	d, ld := c.Nope+c.Rope, stride(c.Width())
	for i := range n {
		x := s.tile[i*ld:][:c.Width()]
		copy(x, latent[i*a.ldo:][:c.Latent])
		rope := x[c.Latent:]
		p.call.q.Widen(rope, (at+i)*d+c.Nope, c.Rope)
		p.rotateAt(s, rope, (at+i)/c.Heads)
	}
	return s.tile, ld
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
	res := sl.result
	if unit == b.unit0 {
		res = a.running(b.row0)
	}
	res = res.start(b.rows, a.ldo, p.cfg.Arithmetic)
	if p.call.sparse {
		p.attendSparse(&p.scratch[worker], b, unit-b.unit0, res)
	} else {
		p.attend(&p.scratch[worker], b, b.lo/partitionKeys+unit-b.unit0, res)
	}
	sl.done.Store(int64(unit) + 1)
	if !a.late {
		a.foldReady(b, p.cfg.Latent)
	}
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

// attend computes the partition part of block b.
func (p *Plan) attend(s *scratch, b *block, part int, res result) {
	a, c := &p.abs, &p.cfg
	seg := &a.segs[b.seg]
	rows := b.rows
	first := b.row0 - seg.wave0*c.Heads // row in the segment
	for j := range rows {
		lo, hi := c.Mask.visible(seg.pos0+(first+j)/c.Heads, seg.keys)
		s.rowLo[j], s.rowHi[j] = int32(lo), int32(hi)
	}
	for t0 := part * partitionKeys; t0 < (part+1)*partitionKeys; t0 += tileKeys {
		k0, k1 := max(t0, b.lo), min(t0+tileKeys, b.hi)
		if k0 >= k1 {
			continue
		}
		t := p.absorbedTile(seg, first, rows, res)
		k0 = t.pairDown(k0)
		t.keys = k1 - k0
		if t.pairs {
			s.readPairs(&t, &p.views[seg.seq], k0)
		} else {
			p.views[seg.seq].Widen(s.tile, t.ldx, k0, t.keys)
			t.x, t.v = s.tile, s.tile
		}
		clampRanges(s.lo[:rows], s.hi[:rows], s.rowLo[:rows], s.rowHi[:rows], k0, t.keys)
		t.next = &ahead{view: &p.views[seg.seq], pos: k1, n: min(tileKeys, b.hi-k1)}
		s.attend(&t, c.Scale)
	}
}

// absorbedTile is a tile without keys for rows of seg from row first on, and their results.
func (p *Plan) absorbedTile(seg *segment, first, rows int, res result) tile {
	a, c := &p.abs, &p.cfg
	t := tile{
		rows: rows, k: c.Width(), cols: c.Latent, ldx: stride(c.Width()), ldv: stride(c.Width()),
		o: res.o, ldo: a.ldo, m: res.m, l: res.l, pairs: c.Arithmetic == BF16,
	}
	panel := seg.panel0 + first/simd.Lanes
	if t.pairs {
		t.pq = a.pq[panel*pairPanel(t.k):]
	} else {
		t.q = a.q[panel*t.k*simd.Lanes:]
	}
	return t
}

// foldReady folds the results of b that are ready, in key order. One worker
// folds at a time; the others leave theirs to it, and it looks again after
// letting go, so that none is left lying.
func (a *absorbed) foldReady(b *block, r int) {
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
			if int(u) != b.unit0 {
				a.fold(b, sl, 0, b.rows, r)
			}
			sl.free.Store(u + int64(len(a.slots)))
			b.next.Store(u + 1)
		}
		b.folding.Store(false)
	}
}

// fold folds rows [from, to) of a block's result in sl, of r values.
func (a *absorbed) fold(b *block, sl *slot, from, to, r int) {
	run := a.running(b.row0 + from)
	simd.FoldRows(run.o, a.ldo, run.m, run.l, sl.o[from*a.ldo:], a.ldo, sl.m[from:], sl.l[from:], to-from, r)
}

// finishStage folds what is left and divides: item = finishedRows rows of a block.
type finishStage Plan

func (q *finishStage) Do(worker, item int) error {
	p := (*Plan)(q)
	a, s := &p.abs, &p.scratch[worker]
	at := sort.Search(len(a.blocks), func(i int) bool { return a.blocks[i].finishEnd > item })
	b, item0 := &a.blocks[at], 0
	if at > 0 {
		item0 = a.blocks[at-1].finishEnd
	}
	from := (item - item0) * finishedRows
	to := min(from+finishedRows, b.rows)
	if a.late {
		for u := b.unit0 + 1; u < b.unitEnd; u++ {
			a.fold(b, &a.slots[u%len(a.slots)], from, to, p.cfg.Latent)
		}
	}
	p.finishRows(s, b, from, to)
	return nil
}

// finishRows divides rows [from, to) of b by their sums and writes lse and max
// logit; and the output, if it is latent.
func (p *Plan) finishRows(s *scratch, b *block, from, to int) {
	a, c := &p.abs, &p.cfg
	seg := &a.segs[b.seg]
	first, n := b.row0-seg.wave0*c.Heads+from, to-from
	at := seg.tok0*c.Heads + first // row of the batch, tokens by heads
	var sink, lse, top []float32
	if p.call.Sink != nil {
		sink = s.sink[:n]
		for j := range sink {
			sink[j] = p.call.Sink[(first+j)%c.Heads]
		}
	}
	if p.call.LSE != nil {
		lse = p.call.LSE[at : at+n]
	}
	if p.call.MaxLogit != nil {
		top = p.call.MaxLogit[at : at+n]
	}
	if p.call.byHead {
		lse, top = s.lse[:n], s.top[:n]
	}
	run := a.running(b.row0 + from)
	if p.call.coreOnly() {
		run.finish(p.call.out, at*c.Latent, c.Latent, a.ldo, sink, lse, top, n, c.Latent)
	} else {
		simd.FinishRows(run.o, a.ldo, run.o, a.ldo, run.m, run.l, sink, lse, top, n, c.Latent, 0)
	}
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
	panels := panelsOf(c.V)
	n0 := piece * panels / a.outputCuts * simd.Lanes
	n1 := min((piece+1)*panels/a.outputCuts*simd.Lanes, c.V)
	for i0 := 0; i0 < n; i0 += gatherTokens {
		m := min(gatherTokens, n-i0)
		x := a.o[(i0*c.Heads+h)*a.ldo:]
		p.layer.w.uv.Activate(&s.latents, x, c.Heads*a.ldo, m)
		p.layer.w.uv.MulPanels(h, s.ys, n1-n0, &s.latents, m, n0, n1)
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
