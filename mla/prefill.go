package mla

import (
	"context"
	"fmt"
	"sort"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// PrefillArgs are the arguments of Core.Prefill beside q, k, v and out.
type PrefillArgs struct {
	// Offsets and Keys [B+1] cut a ragged batch: sequence b has the queries
	// Offsets[b] .. Offsets[b+1] and the keys Keys[b] .. Keys[b+1]. Its queries
	// stand at its last positions, so that it has at least as many keys; under
	// MaskNull positions play no part, and it may have fewer, or none. nil, both:
	// one sequence, with all the keys of k.
	Offsets, Keys []uint32
	// Where the keys and values lie, in elements: row s of head g begins at
	// s*LdK + g*StrideK, and at s*LdV + g*StrideV. 0 means [S, h, d]: h*d_qk and
	// d_qk, h*d_v and d_v. Rows in the type of the arithmetic, float32 or bf16,
	// of a length that is an odd number of 64-byte lines are read fastest.
	LdK, StrideK, LdV, StrideV int

	Sink     []float32 // [h], or nil
	LSE      []float32 // [T, h], or nil
	MaxLogit []float32 // [T, h], or nil
}

// Prefill is attention over keys and values that lie ready for every head, as
// the expanded form computes them (FlashMLA's dense prefill):
//
//	q    [T, h, d_qk]  f32, bf16 or f16
//	k    [S, h, d_qk]  f32, bf16 or f16
//	v    [S, h, d_v]   f32, bf16 or f16
//	out  [T, h, d_v]   f32, bf16 or f16; must not overlap an input
//
// The mask is that of the CoreConfig. Over no keys, which only MaskNull allows, a
// row is 0, its LSE +Inf and its MaxLogit -Inf, as Merge takes them: keys may come
// in pieces of any size. Errors: ErrShape, ErrLimit, ErrBusy, ErrClosed, and
// ctx.Err; a nil ctx is never cancelled.
func (c *Core) Prefill(ctx context.Context, out, q, k, v Rows, a *PrefillArgs) error {
	p := c.owned()
	if a == nil {
		a = &PrefillArgs{}
	}
	if ctx == nil {
		ctx = context.Background()
	}
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	e := &p.pre
	e.out, e.q, e.k, e.v, e.PrefillArgs = out, q, k, v, *a
	defer e.forget()
	if err := e.check(p); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return poolError(p.pool.Run(ctx, e.blocks*p.cfg.Heads, (*prefillStage)(p)))
}

// prefill is the state of Core.Prefill: the call that runs.
type prefill struct {
	out, q, k, v Rows
	PrefillArgs
	tokens, keys int
	rows         int          // queries of a block
	blocks       int          // of so many queries
	ends         []int        // per sequence: the end of its blocks
	one          [2][2]uint32 // Offsets and Keys of a call that has none
}

// prefillRows is the most queries of a block.
func (c *Config) prefillRows() int {
	if c.Arithmetic == BF16 {
		return pairQueryRows
	}
	return queryRows
}

func (e *prefill) forget() {
	*e = prefill{ends: e.ends[:0]}
}

// check tests the call and fills in what it leaves out.
func (e *prefill) check(p *Plan) error {
	c := &p.cfg
	width, h := c.Width(), c.Heads
	if e.q.Len()%(h*width) != 0 {
		return fmt.Errorf("%w: q has %d values, want rows of h*d_qk = %d", ErrShape, e.q.Len(), h*width)
	}
	e.tokens = e.q.Len() / (h * width)
	if e.tokens > p.lim.Tokens {
		return fmt.Errorf("%w: the call has %d queries, Limits.Tokens is %d", ErrLimit, e.tokens, p.lim.Tokens)
	}
	for _, d := range []struct {
		to   *int
		or   int
		name string
	}{{&e.LdK, h * width, "LdK"}, {&e.StrideK, width, "StrideK"}, {&e.LdV, h * c.Latent, "LdV"}, {&e.StrideV, c.Latent, "StrideV"}} {
		if *d.to == 0 {
			*d.to = d.or
		}
		if *d.to < 0 || *d.to > maxContext {
			return fmt.Errorf("%w: %s is %d, want 0 to %d", ErrShape, d.name, *d.to, maxContext)
		}
	}
	if err := e.checkOffsets(p); err != nil {
		return err
	}
	if err := e.reaches("k", e.k, e.LdK, e.StrideK, h, width); err != nil {
		return err
	}
	if err := e.reaches("v", e.v, e.LdV, e.StrideV, h, c.Latent); err != nil {
		return err
	}
	for _, s := range []struct {
		name, shape string
		got, want   int
		optional    bool
	}{
		{"out", "T*h*d_v", e.out.Len(), e.tokens * h * c.Latent, false},
		{"LSE", "T*h", len(e.LSE), e.tokens * h, e.LSE == nil},
		{"MaxLogit", "T*h", len(e.MaxLogit), e.tokens * h, e.MaxLogit == nil},
		{"Sink", "h", len(e.Sink), h, e.Sink == nil},
	} {
		if !s.optional && s.got != s.want {
			return fmt.Errorf("%w: %s has %d values, want %s = %d", ErrShape, s.name, s.got, s.shape, s.want)
		}
	}
	return e.checkOverlaps()
}

// checkOffsets tests the cuts of the batch, and cuts it into blocks.
func (e *prefill) checkOffsets(p *Plan) error {
	if (e.Offsets == nil) != (e.Keys == nil) || len(e.Offsets) != len(e.Keys) {
		return fmt.Errorf("%w: Offsets has %d values and Keys %d, want B+1 each, or nil both", ErrShape, len(e.Offsets), len(e.Keys))
	}
	if e.Offsets == nil {
		// As many keys as k has room for; reaches says whether v has it, too.
		e.keys = e.k.Len() / e.LdK
		switch h := p.cfg.Heads; {
		case e.StrideK > e.LdK: // heads outside, rows inside
			e.keys = e.StrideK / e.LdK
		case e.StrideK == e.LdK && h > 1: // likewise, one row or none
			e.keys = min(e.keys, 1)
		}
		if e.keys > p.lim.Context {
			return fmt.Errorf("%w: the call has %d keys, Limits.Context is %d", ErrLimit, e.keys, p.lim.Context)
		}
		e.one = [2][2]uint32{{0, uint32(e.tokens)}, {0, uint32(e.keys)}}
		e.Offsets, e.Keys = e.one[0][:], e.one[1][:]
	}
	n := len(e.Offsets) - 1
	if n < 0 || n > p.lim.Seqs {
		return fmt.Errorf("%w: the call has %d sequences, Limits.Seqs is %d", ErrLimit, n, p.lim.Seqs)
	}
	if e.Offsets[0] != 0 || e.Keys[0] != 0 || int64(e.Offsets[n]) != int64(e.tokens) {
		return fmt.Errorf("%w: Offsets is %d .. %d and Keys begins at %d, want 0 .. T = %d and 0", ErrShape, e.Offsets[0], e.Offsets[n], e.Keys[0], e.tokens)
	}
	e.keys, e.blocks, e.rows = int(e.Keys[n]), 0, p.cfg.prefillRows()
	for e.rows > queryRows && e.tokens*p.cfg.Heads < itemsAWorker*len(p.scratch)*e.rows { // workers would idle
		e.rows /= 2
	}
	for b := range n {
		t, s := int64(e.Offsets[b+1])-int64(e.Offsets[b]), int64(e.Keys[b+1])-int64(e.Keys[b])
		switch {
		case t < 0 || s < 0:
			return fmt.Errorf("%w: Offsets or Keys fall after sequence %d", ErrShape, b)
		case s > int64(p.lim.Context):
			return fmt.Errorf("%w: sequence %d has %d keys, Limits.Context is %d", ErrLimit, b, s, p.lim.Context)
		case t > s && p.cfg.Mask.Kind != MaskNull:
			return fmt.Errorf("%w: sequence %d has %d queries and %d keys; queries stand at the last positions, which mask %v looks at",
				ErrShape, b, t, s, p.cfg.Mask)
		}
		e.blocks += (int(t) + e.rows - 1) / e.rows
		e.ends = append(e.ends, e.blocks)
	}
	return nil
}

// reaches tests that x holds the rows of every head, and that neither the rows of a head nor the heads of a row overlap.
func (e *prefill) reaches(name string, x Rows, ld, head, heads, n int) error {
	if e.keys == 0 {
		return nil
	}
	if ld < n && e.keys > 1 || head < n && heads > 1 {
		return fmt.Errorf("%w: rows of %s are %d and heads %d apart, want at least %d", ErrShape, name, ld, head, n)
	}
	if want := (e.keys-1)*ld + (heads-1)*head + n; x.Len() < want {
		return fmt.Errorf("%w: %s has %d values, want (S-1)*%d + (h-1)*%d + %d = %d", ErrShape, name, x.Len(), ld, head, n, want)
	}
	return nil
}

func (e *prefill) checkOverlaps() error {
	outs := [...]struct {
		name string
		rows Rows
	}{{"out", e.out}, {"LSE", RowsF32(e.LSE)}, {"MaxLogit", RowsF32(e.MaxLogit)}}
	for i, o := range outs {
		for _, in := range [...]Rows{e.q, e.k, e.v, RowsF32(e.Sink)} {
			if o.rows.Overlaps(in) {
				return fmt.Errorf("%w: %s overlaps an input", ErrShape, o.name)
			}
		}
		for _, other := range outs[:i] {
			if o.rows.Overlaps(other.rows) {
				return fmt.Errorf("%w: %s overlaps %s", ErrShape, o.name, other.name)
			}
		}
	}
	return nil
}

// queryBlock is some queries of one head.
type queryBlock struct {
	head, seq int
	tok, rows int // in the call
	left      int // queries of the sequence behind them
	pos, keys int // position of the first query, below 0 where MaskNull lets keys be fewer, and the keys of its sequence
	key0      int // the first of these in the call
}

// block is block item: head*blocks + block.
func (e *prefill) block(item int) queryBlock {
	head, block := item/e.blocks, item%e.blocks
	seq := sort.SearchInts(e.ends, block+1)
	if seq > 0 {
		block -= e.ends[seq-1]
	}
	queries, keys := int(e.Offsets[seq+1]-e.Offsets[seq]), int(e.Keys[seq+1]-e.Keys[seq])
	first := block * e.rows
	rows := min(e.rows, queries-first)
	return queryBlock{
		head: head, seq: seq, tok: int(e.Offsets[seq]) + first, rows: rows, left: queries - first - rows,
		pos: keys - queries + first, keys: keys, key0: int(e.Keys[seq]),
	}
}

// prefillStage attends with one block of queries of one head over all its keys.
type prefillStage Plan

func (z *prefillStage) Do(worker, item int) error {
	p := (*Plan)(z)
	e, c, s := &p.pre, &p.cfg, &p.scratch[worker]
	b := e.block(item)
	head, tok, rows, key0 := b.head, b.tok, b.rows, b.key0
	for j := range rows {
		lo, hi := c.Mask.visible(b.pos+j, b.keys)
		s.rowLo[j], s.rowHi[j] = int32(lo), int32(hi)
	}
	lo, hi := union(s.rowLo[:rows], s.rowHi[:rows])
	p.packPrefill(s, head, tok, rows)

	run, part := s.total, s.part
	open := -1 // the partition in part
	// Whether run takes folds. The small blocks of the first arithmetic are quicker with one into empty rows than if they
	// take their first partition as it is: measured.
	folded := c.Arithmetic != BF16
	if folded {
		run = run.start(rows, stride(c.Latent), c.Arithmetic)
	}
	var next ahead
	if rows > pairTileRows {
		next = e.aheadOfMany(p, item, hi)
		calls := (hi - lo) / tileKeys * (rows / pairTileRows) / 2 // at least so many parts of tiles are whole
		next.begin(calls*(pairTileRows/askRows+c.Latent/askCols), calls*(c.Latent/askCols))
		defer next.rest()
	}
	for t0 := lo / tileKeys * tileKeys; t0 < hi; t0 += tileKeys {
		k0, k1 := max(t0, lo), min(t0+tileKeys, hi)
		if t0/partitionKeys != open {
			switch {
			case open < 0:
			case folded:
				part.foldInto(run, rows, c.Latent)
			default:
				run, part, folded = part, run, true
			}
			open = t0 / partitionKeys
			part = part.start(rows, stride(c.Latent), c.Arithmetic)
		}
		t := tile{
			rows: rows, k: c.Width(), cols: c.Latent, q: s.q, pq: s.pairQ,
			o: part.o, ldo: stride(c.Latent), m: part.m, l: part.l, pairs: c.Arithmetic == BF16,
		}
		k0 = t.pairDown(k0)
		t.keys = k1 - k0
		atK, atV := (key0+k0)*e.LdK+head*e.StrideK, (key0+k0)*e.LdV+head*e.StrideV
		if t.pairs {
			e.readPairs(s, &t, atK, atV)
		} else {
			t.x, t.ldx = rowsOf(e.k, atK, e.LdK, t.keys, c.Width(), s.tile)
			t.v, t.ldv = rowsOf(e.v, atV, e.LdV, t.keys, c.Latent, s.values)
		}
		if rows > pairTileRows {
			t.next = &next
			s.attendParts(&t, k0, c.Scale)
			continue
		}
		next = e.ahead(p, k1, hi, head, tok, key0, rows, b.left)
		t.next = &next
		clampRanges(s.lo[:rows], s.hi[:rows], s.rowLo[:rows], s.rowHi[:rows], k0, t.keys)
		s.attend(&t, c.Scale)
	}
	switch {
	case open < 0:
		run = run.start(rows, stride(c.Latent), c.Arithmetic)
	case folded:
		part.foldInto(run, rows, c.Latent)
	default:
		run = part
	}
	p.finishPrefill(s, run, head, tok, rows)
	return nil
}

// attendParts is attend, in the second arithmetic, for more rows than a tile of scores has: their keys, from k0 on, are
// looked through and their values laid in pairs once for all of them.
func (s *scratch) attendParts(t *tile, k0 int, scale float32) {
	s.laceAll(t)
	for j := 0; j < t.rows; j += pairTileRows {
		n := min(pairTileRows, t.rows-j)
		// Ranges move on with the rows, in every mask.
		if int(s.rowLo[j]) >= k0+t.keys || int(s.rowHi[j+n-1]) <= k0 {
			continue
		}
		if int(s.rowLo[j+n-1]) <= k0 && int(s.rowHi[j]) >= k0+t.keys {
			clear(s.lo[:n])
			fill(s.hi[:n], int32(t.keys))
		} else {
			clampRanges(s.lo[:n], s.hi[:n], s.rowLo[j:j+n], s.rowHi[j:j+n], k0, t.keys)
		}
		part := *t
		part.rows, part.pq = n, t.pq[j/simd.Lanes*pairPanel(t.k):]
		part.o, part.m, part.l = t.o[j*t.ldo:], t.m[j:], t.l[j:]
		s.work(&part, scale)
	}
}

// readPairs makes the keys and values of t those from elements atK and atV on.
func (e *prefill) readPairs(s *scratch, t *tile, atK, atV int) {
	if h := e.k.BF16(); h != nil {
		t.px, t.ldx = h[atK:], e.LdK
		s.pairsInPlace(t)
	} else {
		t.px, t.ldx = s.pairX, stride16(t.k)
		for i := range t.keys {
			s.narrow(s.pairX[i*t.ldx:], e.k, atK+i*e.LdK, t.k)
		}
	}
	if h := e.v.BF16(); h != nil {
		t.unlaced, t.ldu = h[atV:], e.LdV
		return
	}
	t.unlaced, t.ldu = s.pairValue, stride16(t.cols)
	for i := range t.keys {
		s.narrow(s.pairValue[i*t.ldu:], e.v, atV+i*e.LdV, t.cols)
	}
}

// ahead is what to ask for during the tile that ends at key k1, of a block of rows that left queries follow. The diagonal
// is too little work to hide its reads and those after it: the tiles before it ask for them.
func (e *prefill) ahead(p *Plan, k1, hi, head, tok, key0, rows, left int) ahead {
	const spread = 5 // tiles
	c, pairs := &p.cfg, p.cfg.Arithmetic == BF16
	diagonal := max(hi-rows, 0) / tileKeys * tileKeys
	var a ahead
	k := lines(e.k, pairs, (key0+diagonal)*e.LdK+head*e.StrideK, e.LdK, c.Width(), hi-diagonal)
	v := lines(e.v, pairs, (key0+diagonal)*e.LdV+head*e.StrideV, e.LdV, c.Latent, hi-diagonal)
	q := lines(e.q, pairs, ((tok+rows)*c.Heads+head)*c.Width(), c.Heads*c.Width(), c.Width(), min(e.rows, left))
	tiles := min(spread, diagonal/tileKeys)
	if part := (diagonal - k1) / tileKeys; k1 <= diagonal && part < tiles {
		a.rows = [3]strip{k.part(part, tiles), v.part(part, tiles), q.part(part, tiles)}
	}
	if k1 == hi && diagonal == 0 {
		a.rows[2] = q
	}
	if k1 == hi && !bypasses(e.out) {
		a.rows[0] = lines(e.out, true, (tok*c.Heads+head)*c.Latent, c.Heads*c.Latent, c.Latent, rows)
	}
	return a
}

// aheadOfMany is what to ask for during block item, which ends at key hi and has more rows than a tile of scores: the
// queries of the next one, whoever takes it, and the keys and values that it sees behind hi. Where the next one is of
// another head or sequence it sees none of these: then it is the first of its own, as many as it has queries.
func (e *prefill) aheadOfMany(p *Plan, item, hi int) ahead {
	c := &p.cfg
	if item+1 == e.blocks*c.Heads {
		return ahead{}
	}
	b, n := e.block(item), e.block(item+1)
	lo, _ := c.Mask.visible(n.pos, n.keys)
	_, end := c.Mask.visible(n.pos+n.rows-1, n.keys)
	if b.head == n.head && b.seq == n.seq {
		lo = max(lo, hi)
	} else {
		end = min(end, lo+n.rows)
	}
	key := n.key0 + lo
	var a ahead
	a.rows[0] = lines(e.k, true, key*e.LdK+n.head*e.StrideK, e.LdK, c.Width(), end-lo)
	a.rows[1] = lines(e.v, true, key*e.LdV+n.head*e.StrideV, e.LdV, c.Latent, end-lo)
	a.rows[2] = lines(e.q, true, (n.tok*c.Heads+n.head)*c.Width(), c.Heads*c.Width(), c.Width(), n.rows)
	return a
}

// foldInto folds n rows of a partition of r values into the running ones.
func (r result) foldInto(run result, n, values int) {
	simd.FoldRows(run.o, stride(values), run.m, run.l, r.o, stride(values), r.m, r.l, n, values)
}

// rowsOf is n rows of width values from element at on, ld apart, as float32: where they lie, or widened into buf.
func rowsOf(x Rows, at, ld, n, width int, buf []float32) ([]float32, int) {
	if f := x.F32(); f != nil {
		return f[at:], ld
	}
	to := stride(width)
	for i := range n {
		x.Widen(buf[i*to:], at+i*ld, width)
	}
	return buf, to
}

// packPrefill packs the queries of rows tokens of one head, from token tok on.
func (p *Plan) packPrefill(s *scratch, head, tok, rows int) {
	c := &p.cfg
	at, ld, k := (tok*c.Heads+head)*c.Width(), c.Heads*c.Width(), c.Width()
	if h := p.pre.q.BF16(); h != nil && c.Arithmetic == BF16 && s.packWords(h[at:][:(rows-1)*ld+k], ld, rows, k) {
		return
	}
	x, ld := rowsOf(p.pre.q, at, ld, rows, k, s.qrow)
	s.pack(c, x, ld, rows, k)
}

// packWords packs n rows of queries in bf16 by whole pairs, which are words. It does not if some would change on the way,
// but for the sign of a zero, which sums from +0 do not show, or lie where no words may.
func (s *scratch) packWords(x []uint16, ldx, n, k int) bool {
	if k%2 != 0 || ldx%2 != 0 || !mem.Aligned[float32](mem.Bytes(x)) {
		return false
	}
	// Panel by panel: rows of a head are often a multiple of 16 KB apart, and few of them stay in a cache together.
	panels, words := mem.Cast[float32](mem.Bytes(s.pairQ)), mem.Cast[float32](mem.Bytes(x))
	for j := 0; j < n; j += simd.Lanes {
		rows := min(simd.Lanes, n-j)
		if simd.TinyBF16(x[j*ldx:], ldx, rows, k) {
			return false
		}
		simd.PackRows(panels[j/simd.Lanes*pairPanel(k)/2:], pairPanel(k)/2, words[j*ldx/2:], ldx/2, rows, k/2)
	}
	return true
}

// finishPrefill divides the rows of a block and writes them out.
func (p *Plan) finishPrefill(s *scratch, run result, head, tok, rows int) {
	e, c := &p.pre, &p.cfg
	var sink []float32
	if e.Sink != nil {
		sink = s.sink[:rows]
		fill(sink, e.Sink[head])
	}
	lse, top := s.lse[:rows], s.top[:rows]
	run.finish(e.out, (tok*c.Heads+head)*c.Latent, c.Heads*c.Latent, stride(c.Latent), sink, lse, top, rows, c.Latent)
	for i := range rows {
		row := (tok+i)*c.Heads + head
		if e.LSE != nil {
			e.LSE[row] = lse[i]
		}
		if e.MaxLogit != nil {
			e.MaxLogit[row] = top[i]
		}
	}
}
