package mla

import (
	"context"
	"fmt"
	"sort"

	"github.com/lamina-ml/lamina/simd"
)

// PrefillArgs are the arguments of Core.Prefill beside q, k, v and out.
type PrefillArgs struct {
	// Offsets and Keys [B+1] cut a ragged batch: sequence b has the queries
	// Offsets[b] .. Offsets[b+1] and the keys Keys[b] .. Keys[b+1]. Its queries
	// stand at its last positions. nil, both: one sequence.
	Offsets, Keys []uint32
	// Where the keys and values lie, in elements: row s of head g begins at
	// s*LdK + g*StrideK, and at s*LdV + g*StrideV. 0 means [S, h, d]: h*d_qk and
	// d_qk, h*d_v and d_v. Rows in float32 of a length that is an odd number of
	// 64-byte lines are read fastest.
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
// The mask is that of the CoreConfig. Errors: ErrShape, ErrLimit, ErrBusy,
// ErrClosed, and ctx.Err; a nil ctx is never cancelled.
func (c *Core) Prefill(ctx context.Context, out, q, k, v Rows, a *PrefillArgs) error {
	p := c.plan
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
	blocks       int          // of queryRows queries
	ends         []int        // per sequence: the end of its blocks
	one          [2][2]uint32 // Offsets and Keys of a call that has none
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
		// As many keys as the shorter of k and v has room for.
		e.keys = e.k.Len() / max(e.LdK, 1)
		if e.StrideK > e.LdK { // heads outside, rows inside
			e.keys = e.StrideK / max(e.LdK, 1)
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
	e.keys, e.blocks = int(e.Keys[n]), 0
	for b := range n {
		t, s := int64(e.Offsets[b+1])-int64(e.Offsets[b]), int64(e.Keys[b+1])-int64(e.Keys[b])
		switch {
		case t < 0 || s < 0:
			return fmt.Errorf("%w: Offsets or Keys fall after sequence %d", ErrShape, b)
		case s > int64(p.lim.Context):
			return fmt.Errorf("%w: sequence %d has %d keys, Limits.Context is %d", ErrLimit, b, s, p.lim.Context)
		case t > s:
			return fmt.Errorf("%w: sequence %d has %d queries and %d keys; queries stand at the last positions", ErrShape, b, t, s)
		}
		e.blocks += queryBlocks(int(t))
		e.ends = append(e.ends, e.blocks)
	}
	return nil
}

// reaches tests that x holds the rows of every head, and that they do not run into each other's values.
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

// prefillStage attends with one block of queries of one head over all its keys:
// item = head*blocks + block.
type prefillStage Plan

func (z *prefillStage) Do(worker, item int) error {
	p := (*Plan)(z)
	e, c, s := &p.pre, &p.cfg, &p.scratch[worker]
	head, block := item/e.blocks, item%e.blocks
	seq := sort.SearchInts(e.ends, block+1)
	if seq > 0 {
		block -= e.ends[seq-1]
	}
	queries, keys := int(e.Offsets[seq+1]-e.Offsets[seq]), int(e.Keys[seq+1]-e.Keys[seq])
	first := block * queryRows
	rows := min(queryRows, queries-first)
	tok, key0 := int(e.Offsets[seq])+first, int(e.Keys[seq])
	for j := range rows {
		lo, hi := c.Mask.visible(keys-queries+first+j, keys)
		s.rowLo[j], s.rowHi[j] = int32(lo), int32(hi)
	}
	lo, hi := union(s.rowLo[:rows], s.rowHi[:rows])
	p.packPrefill(s, head, tok, rows)

	run, part := s.total.start(rows, stride(c.Latent)), s.part
	open := -1 // the partition in part
	for t0 := lo / tileKeys * tileKeys; t0 < hi; t0 += tileKeys {
		k0, k1 := max(t0, lo), min(t0+tileKeys, hi)
		if t0/partitionKeys != open {
			if open >= 0 {
				part.foldInto(run, rows, c.Latent)
			}
			open = t0 / partitionKeys
			part = part.start(rows, stride(c.Latent))
		}
		clampRanges(s.lo[:rows], s.hi[:rows], s.rowLo[:rows], s.rowHi[:rows], k0, k1-k0)
		t := tile{
			keys: k1 - k0, rows: rows, k: c.Width(), q: s.q, cols: c.Latent,
			o: part.o, ldo: stride(c.Latent), m: part.m, l: part.l,
		}
		t.x, t.ldx = rowsOf(e.k, (key0+k0)*e.LdK+head*e.StrideK, e.LdK, k1-k0, c.Width(), s.tile)
		t.v, t.ldv = rowsOf(e.v, (key0+k0)*e.LdV+head*e.StrideV, e.LdV, k1-k0, c.Latent, s.values)
		switch {
		case k1 < hi && k1+tileKeys >= hi: // the diagonal, which is too little work to hide its reads
			t.next = &ahead{rows: [2]strip{
				lines(e.k, (key0+k1)*e.LdK+head*e.StrideK, e.LdK, c.Width(), hi-k1),
				lines(e.v, (key0+k1)*e.LdV+head*e.StrideV, e.LdV, c.Latent, hi-k1),
			}}
		case k1 == hi: // the rows that the block writes, and those that the next one begins with
			t.next = &ahead{rows: [2]strip{
				lines(e.out, (tok*c.Heads+head)*c.Latent, c.Heads*c.Latent, c.Latent, rows),
				lines(e.q, ((tok+rows)*c.Heads+head)*c.Width(), c.Heads*c.Width(), c.Width(), min(queryRows, queries-first-rows)),
			}}
		}
		s.attend(&t, c.Scale)
	}
	if open >= 0 {
		part.foldInto(run, rows, c.Latent)
	}
	p.finishPrefill(s, run, head, tok, rows)
	return nil
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
	x, ld := rowsOf(p.pre.q, (tok*c.Heads+head)*c.Width(), c.Heads*c.Width(), rows, c.Width(), s.tile)
	simd.PackRows(s.q, c.Width()*simd.Lanes, x, ld, rows, c.Width())
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
	out, ldout := run.o, stride(c.Latent)
	direct := e.out.F32()
	if direct != nil {
		out, ldout = direct[(tok*c.Heads+head)*c.Latent:], c.Heads*c.Latent
	}
	simd.FinishRows(out, ldout, run.o, stride(c.Latent), run.m, run.l, sink, lse, top, rows, c.Latent)
	for i := range rows {
		row := (tok+i)*c.Heads + head
		if direct == nil {
			e.out.Narrow(row*c.Latent, out[i*ldout:][:c.Latent])
		}
		if e.LSE != nil {
			e.LSE[row] = lse[i]
		}
		if e.MaxLogit != nil {
			e.MaxLogit[row] = top[i]
		}
	}
}
