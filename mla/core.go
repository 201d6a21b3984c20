package mla

import (
	"context"
	"fmt"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// CoreConfig is the geometry of attention alone, in FlashMLA's terms.
type CoreConfig struct {
	Heads int     // h, query heads
	Width int     // d_qk, values of a key row
	V     int     // d_v, leading values of a row that are its value; up to Width
	Scale float32 // multiplies the scores; finite and not 0
	Mask  Mask    // of Decode and Prefill; calls with index lists have none

	Arithmetic Arithmetic // in the bits of every result; F32 unless set
}

// Core is attention over rows as they lie, without weights, norm and rope: the
// shapes that people who come from FlashMLA know. Like a Plan it owns the
// workspace of one call at a time, and calls allocate nothing. NewCore makes one: a
// zero Core counts as closed.
type Core struct {
	plan   *Plan
	sparse Sparse // of the call that runs
}

// NewCore checks cfg and sizes the workspace: Limits.Tokens bounds b*s_q,
// Limits.Seqs b, Limits.Context the keys of a sequence in a dense call. Errors:
// ErrConfig, and the system's when there is no memory.
func NewCore(cfg CoreConfig, lim Limits, pool *Pool) (*Core, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	if cfg.V < 1 || cfg.V > cfg.Width {
		return nil, fmt.Errorf("%w: V is %d, want 1 to Width = %d", ErrConfig, cfg.V, cfg.Width)
	}
	c, err := Config{Heads: cfg.Heads, Nope: 1, V: 1, Latent: cfg.V, Scale: cfg.Scale, Mask: cfg.Mask, Arithmetic: cfg.Arithmetic}.checked()
	if err != nil {
		return nil, err
	}
	if c.Rope = cfg.Width - cfg.V; cfg.Width > maxSize {
		return nil, fmt.Errorf("%w: Width is %d, want at most %d", ErrConfig, cfg.Width, maxSize)
	}
	p, err := newPlan(c, nil, lim, pool)
	if err != nil {
		return nil, err
	}
	return &Core{plan: p}, nil
}

// Bytes is the memory that the workspace holds.
func (c *Core) Bytes() int64 { return c.owned().Bytes() }

// owned is the plan that NewCore made, which is nil for a core that it did not make. Its methods are ready for that.
func (c *Core) owned() *Plan {
	if c == nil {
		return nil
	}
	return c.plan
}

// Close frees the workspace, as Plan.Close does.
func (c *Core) Close() error { return c.owned().Close() }

// Decode is dense attention over the committed rows of paged sequences:
//
//	q    [T, h, d_qk]  f32, bf16 or f16
//	out  [T, h, d_v]   f32, bf16 or f16
//	b.LSE, b.MaxLogit  [T, h]
//
// The queries of a sequence stand at its last committed positions; without a
// mask there may be more of them, as Plan.Decode says. With b.Sparse it attends
// over index lists instead. Errors as for Plan.Forward.
func (c *Core) Decode(ctx context.Context, out, q Rows, b Batch) error {
	return c.owned().Decode(ctx, out, q, b)
}

// SparseDecodeArgs are the arguments of SparseDecode beside q and out.
type SparseDecodeArgs struct {
	Seqs   int // b
	Tokens int // s_q, query tokens of each sequence; causality only through the lists

	Cache *kvpaged.Cache
	Layer int
	// Indices [b, s_q, Stride] are physical rows, block*PageTokens + offset; see
	// Sparse for what is none.
	Indices    []int32
	Stride     int
	Lengths    []int32 // topk_lengths [b] (or [b*s_q]); nil means Stride
	LengthsPer TopKPer
	FoldShared bool      // the tokens of a sequence have the same list
	Sink       []float32 // attn_sink [h], or nil
	Extra      *Extra    // a second cache, or nil; its Indices are [b, s_q, Stride]

	LSE      []float32 // [b, h, s_q], or nil
	MaxLogit []float32 // [b, h, s_q], or nil
	Ignored  int64     // set by the call, as in Sparse
}

// SparseDecode is FlashMLA's sparse decode:
//
//	q    [b, s_q, h, d_qk]  f32, bf16 or f16
//	out  [b, s_q, h, d_v]   f32, bf16 or f16
//
// Rows that no list selects are not read. Errors: ErrShape, ErrLimit, ErrBusy,
// ErrClosed, those of kvpaged, and ctx.Err.
func (c *Core) SparseDecode(ctx context.Context, out, q Rows, a *SparseDecodeArgs) error {
	if !c.owned().made() {
		return errNoPlan
	}
	if a == nil || a.Cache == nil {
		return fmt.Errorf("%w: SparseDecodeArgs or its Cache is nil", ErrShape)
	}
	return c.run(ctx, out, q, Rows{}, *a, &a.Ignored)
}

// SparsePrefillArgs are the arguments of SparsePrefill beside q, kv and out.
type SparsePrefillArgs struct {
	Indices  []int32 // [s_q, 1, Stride], rows of kv; see Sparse for what is none
	Stride   int
	Lengths  []int32   // topk_lengths [s_q]; nil means Stride
	Sink     []float32 // attn_sink [h], or nil
	LSE      []float32 // [s_q, h], or nil
	MaxLogit []float32 // [s_q, h], or nil
	Ignored  int64     // set by the call, as in Sparse
}

// SparsePrefill is FlashMLA's sparse prefill, over rows that are not paged:
//
//	q    [s_q, h, d_qk]   f32, bf16 or f16
//	kv   [s_kv, 1, d_qk]  f32, bf16 or f16
//	out  [s_q, h, d_v]    f32, bf16 or f16
//
// Rows that no list selects are not read. Errors as for SparseDecode.
func (c *Core) SparsePrefill(ctx context.Context, out, q, kv Rows, a *SparsePrefillArgs) error {
	if !c.owned().made() {
		return errNoPlan
	}
	if a == nil {
		return fmt.Errorf("%w: SparsePrefillArgs is nil", ErrShape)
	}
	tokens := 0
	if row := c.plan.cfg.Heads * c.plan.cfg.Width(); q.Len()%row != 0 {
		return fmt.Errorf("%w: q has %d values, want rows of h*d_qk = %d", ErrShape, q.Len(), row)
	} else {
		tokens = q.Len() / row
	}
	if kv.Len()%c.plan.cfg.Width() != 0 {
		return fmt.Errorf("%w: kv has %d values, want rows of d_qk = %d", ErrShape, kv.Len(), c.plan.cfg.Width())
	}
	d := SparseDecodeArgs{
		Seqs: 1, Tokens: tokens, Indices: a.Indices, Stride: a.Stride, Lengths: a.Lengths, LengthsPer: TopKPerToken,
		Sink: a.Sink, LSE: a.LSE, MaxLogit: a.MaxLogit,
	}
	return c.run(ctx, out, q, kv, d, &a.Ignored)
}

// run checks the sizes of a and computes it, over kv if there is no cache.
func (c *Core) run(ctx context.Context, out, q, kv Rows, a SparseDecodeArgs, ignored *int64) error {
	p := c.plan
	if a.Seqs < 0 || a.Tokens < 0 {
		return fmt.Errorf("%w: %d sequences of %d tokens", ErrShape, a.Seqs, a.Tokens)
	}
	if a.Seqs > p.lim.Seqs {
		return fmt.Errorf("%w: the call has %d sequences, Limits.Seqs is %d", ErrLimit, a.Seqs, p.lim.Seqs)
	}
	if a.Tokens > p.lim.Tokens || a.Seqs*a.Tokens > p.lim.Tokens {
		return fmt.Errorf("%w: the call has %d*%d tokens, Limits.Tokens is %d", ErrLimit, a.Seqs, a.Tokens, p.lim.Tokens)
	}
	*ignored = 0
	return p.run(ctx, call{
		out: out, q: q, kind: coreSparse, nseq: a.Seqs, byHead: a.Cache != nil, dense: kv, core: c, args: a, ignored: ignored,
	})
}

// ready fills the call from a, once the plan is this call's own.
func (c *Core) ready() error {
	p, a := c.plan, &c.plan.call.args
	for i := range a.Seqs + 1 {
		p.offsets[i] = uint32(i * a.Tokens)
	}
	c.sparse = Sparse{
		Indices: a.Indices, Stride: a.Stride, Lengths: a.Lengths, LengthsPer: a.LengthsPer, FoldShared: a.FoldShared, Extra: a.Extra,
	}
	p.call.Batch = Batch{
		Cache: a.Cache, Layer: a.Layer, Offsets: p.offsets[:a.Seqs+1], Sink: a.Sink,
		LSE: a.LSE, MaxLogit: a.MaxLogit, Sparse: &c.sparse,
	}
	p.call.tokens = a.Seqs * a.Tokens
	for t := range p.call.tokens {
		p.tokSeq[t] = int32(t / a.Tokens)
	}
	if a.Cache != nil {
		return p.checkCache("SparseDecodeArgs", a.Cache, a.Layer)
	}
	source := &p.call.lists[0].source
	source.dense, source.plain, source.rows = p.call.dense, true, p.call.dense.Len()/p.cfg.Width()
	return nil
}
