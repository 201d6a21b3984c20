package mla

import (
	"context"
	"fmt"

	"github.com/lamina-ml/lamina/internal/attend"
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
	// d_qk, h*d_v and d_v. Rows in the type of the compute, float32 or bf16,
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
func (c *Core) Prefill(ctx context.Context, w *Workspace, out, q, k, v Rows, a *PrefillArgs) error {
	if err := c.enter(w); err != nil {
		return err
	}
	defer w.end()
	e := &w.prefill
	defer func() { *e = prefill{} }()
	e.cfg, e.out, e.q, e.k, e.v = &c.cfg, out, q, k, v
	if a != nil {
		e.PrefillArgs = *a
	}
	if err := e.check(w.lim); err != nil {
		return err
	}
	ctx = ctxOr(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	call := attend.Call{
		K: c.cfg.Width(), Cols: c.cfg.Latent, Scale: c.cfg.Scale, Mask: c.engine.Mask,
		Outputs: attend.Outputs{
			Out: out, LD: c.cfg.Heads * c.cfg.Latent, Sink: e.Sink, LSE: e.LSE, MaxLogit: e.MaxLogit, PerToken: c.cfg.Heads,
		},
	}
	return poolError(w.dense.Run(ctx, w.pool, call, attend.Batch{
		Q: q, K: k, V: v, Heads: c.cfg.Heads, Offsets: e.Offsets, Keys: e.Keys,
		LdK: e.LdK, StrideK: e.StrideK, LdV: e.LdV, StrideV: e.StrideV,
	}))
}

// prefill is the arguments of a Core.Prefill.
type prefill struct {
	cfg          *Config
	out, q, k, v Rows
	PrefillArgs
	tokens, keys int
	one          [2][2]uint32 // Offsets and Keys of a call that has none
}

// check tests the call and fills in what it leaves out.
func (e *prefill) check(lim Limits) error {
	c := e.cfg
	width, h := c.Width(), c.Heads
	if e.q.Len()%(h*width) != 0 {
		return fmt.Errorf("%w: q has %d values, want rows of h*d_qk = %d", ErrShape, e.q.Len(), h*width)
	}
	e.tokens = e.q.Len() / (h * width)
	if e.tokens > lim.Tokens {
		return fmt.Errorf("%w: the call has %d queries, Limits.Tokens is %d", ErrLimit, e.tokens, lim.Tokens)
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
	if err := e.checkOffsets(lim); err != nil {
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

// checkOffsets tests the cuts of the batch.
func (e *prefill) checkOffsets(lim Limits) error {
	if (e.Offsets == nil) != (e.Keys == nil) || len(e.Offsets) != len(e.Keys) {
		return fmt.Errorf("%w: Offsets has %d values and Keys %d, want B+1 each, or nil both", ErrShape, len(e.Offsets), len(e.Keys))
	}
	if e.Offsets == nil {
		// As many keys as k has room for; reaches says whether v has it, too.
		e.keys = e.k.Len() / e.LdK
		switch h := e.cfg.Heads; {
		case e.StrideK > e.LdK: // heads outside, rows inside
			e.keys = e.StrideK / e.LdK
		case e.StrideK == e.LdK && h > 1: // likewise, one row or none
			e.keys = min(e.keys, 1)
		}
		if e.keys > lim.Context {
			return fmt.Errorf("%w: the call has %d keys, Limits.Context is %d", ErrLimit, e.keys, lim.Context)
		}
		e.one = [2][2]uint32{{0, uint32(e.tokens)}, {0, uint32(e.keys)}}
		e.Offsets, e.Keys = e.one[0][:], e.one[1][:]
	}
	n := len(e.Offsets) - 1
	if n < 0 || n > lim.Seqs {
		return fmt.Errorf("%w: the call has %d sequences, Limits.Seqs is %d", ErrLimit, n, lim.Seqs)
	}
	if e.Offsets[0] != 0 || e.Keys[0] != 0 || int64(e.Offsets[n]) != int64(e.tokens) {
		return fmt.Errorf("%w: Offsets is %d .. %d and Keys begins at %d, want 0 .. T = %d and 0", ErrShape, e.Offsets[0], e.Offsets[n], e.Keys[0], e.tokens)
	}
	e.keys = int(e.Keys[n])
	for b := range n {
		t, s := int64(e.Offsets[b+1])-int64(e.Offsets[b]), int64(e.Keys[b+1])-int64(e.Keys[b])
		switch {
		case t < 0 || s < 0:
			return fmt.Errorf("%w: Offsets or Keys fall after sequence %d", ErrShape, b)
		case s > int64(lim.Context):
			return fmt.Errorf("%w: sequence %d has %d keys, Limits.Context is %d", ErrLimit, b, s, lim.Context)
		case t > s && e.cfg.Mask.Kind != MaskNull:
			return fmt.Errorf("%w: sequence %d has %d queries and %d keys; queries stand at the last positions, which mask %v looks at",
				ErrShape, b, t, s, e.cfg.Mask)
		}
	}
	return nil
}

// reaches tests that x holds the rows of every head, and that neither the rows of a head nor the heads
// of a row overlap.
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
