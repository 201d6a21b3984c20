package mla

import (
	"context"
	"fmt"

	"github.com/lamina-ml/lamina/internal/forms"
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

	Compute Compute // in the bits of every result; ComputeF32 unless set
}

// Core is attention over rows as they lie, without weights, norm and rope: the
// shapes that people who come from FlashMLA know. It holds no memory: calls run in a
// Workspace and allocate nothing. NewCore makes one: a zero Core counts as closed.
type Core struct {
	cfg    Config // N = V = 0
	engine forms.Layer
}

// NewCore checks cfg. In the Limits of a workspace for it Tokens bounds b*s_q, Seqs b,
// and Context the keys of a sequence in a dense call, and the entries of an index list.
// Errors: ErrConfig.
func NewCore(cfg CoreConfig) (*Core, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	if cfg.V < 1 || cfg.V > cfg.Width {
		return nil, fmt.Errorf("%w: V is %d, want 1 to Width = %d", ErrConfig, cfg.V, cfg.Width)
	}
	c, err := Config{Heads: cfg.Heads, Nope: 1, V: 1, Latent: cfg.V, Scale: cfg.Scale, Mask: cfg.Mask, Compute: cfg.Compute}.checked()
	if err != nil {
		return nil, err
	}
	if cfg.Width > maxSize {
		return nil, fmt.Errorf("%w: Width is %d, want at most %d", ErrConfig, cfg.Width, maxSize)
	}
	c.Nope, c.V, c.Rope = 0, 0, cfg.Width-cfg.V
	return &Core{c, forms.Layer{
		Heads: c.Heads, Rope: c.Rope, Latent: c.Latent,
		Compute: c.Compute, Scale: c.Scale, Mask: c.Mask.engine(),
	}}, nil
}

var errNoCore = fmt.Errorf("%w: the core is nil or a zero value", ErrClosed)

// made reports that NewCore made c.
func (c *Core) made() bool { return c != nil && c.cfg.Heads > 0 }

func (c *Core) frame() (frame, error) {
	if !c.made() {
		return frame{}, errNoCore
	}
	return c.cfg.frame(), nil
}

// enter claims a workspace for one call.
func (c *Core) enter(w *Workspace) error {
	f, err := c.frame()
	if err != nil {
		return err
	}
	return w.enter(f)
}

// Decode is dense attention over the committed rows of paged sequences, without writing to the
// cache:
//
//	q    [T, h, d_qk]  absorbed queries q' = [q_nope . w_uk | roped]; f32, bf16, f16
//	out  [T, h, d_v]   the latent output of every row; f32, bf16 or f16
//	b.LSE, b.MaxLogit  [T, h]
//
// The queries of sequence b stand at its last committed positions: with s of
// them and n committed tokens, at n-s .. n-1, and s is at most n. Under MaskNull
// without index lists positions play no part, and s may be more: over no rows the
// output is 0, LSE +Inf and MaxLogit -Inf. Freqs and Forms play no part. With b.Sparse
// it attends over index lists instead. Errors as for Layer.Forward.
func (c *Core) Decode(ctx context.Context, w *Workspace, out, q Rows, b Batch) error {
	if err := c.enter(w); err != nil {
		return err
	}
	defer w.end()
	b.Freqs, b.Forms = Rows{}, nil
	r := &w.run
	r.cfg, r.kind, r.batch, r.q, r.out = &c.cfg, overSeqs, b, q, out
	return c.attend(ctx, w, nil)
}

// attend checks and computes the call in w.
func (c *Core) attend(ctx context.Context, w *Workspace, ignored *int64) error {
	ctx = ctxOr(ctx)
	if err := w.begin(ctx, &c.engine); err != nil || w.run.tokens == 0 {
		return err
	}
	call := &w.run.call
	if err := w.forms.Run(ctx, w.pool, call); err != nil {
		return poolError(err)
	}
	if sp := w.run.batch.Sparse; sp != nil {
		sp.Ignored = call.Invalid
	}
	if ignored != nil {
		*ignored = call.Invalid
	}
	return nil
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
func (c *Core) SparseDecode(ctx context.Context, w *Workspace, out, q Rows, a *SparseDecodeArgs) error {
	if err := c.enter(w); err != nil {
		return err
	}
	defer w.end()
	if a == nil || a.Cache == nil {
		return fmt.Errorf("%w: SparseDecodeArgs or its Cache is nil", ErrShape)
	}
	w.run.q, w.run.out, w.run.call.ByHead = q, out, true
	return c.overRows(ctx, w, a, &a.Ignored)
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
func (c *Core) SparsePrefill(ctx context.Context, w *Workspace, out, q, kv Rows, a *SparsePrefillArgs) error {
	if err := c.enter(w); err != nil {
		return err
	}
	defer w.end()
	if a == nil {
		return fmt.Errorf("%w: SparsePrefillArgs is nil", ErrShape)
	}
	row, width := c.cfg.Heads*c.cfg.Width(), c.cfg.Width()
	if q.Len()%row != 0 {
		return fmt.Errorf("%w: q has %d values, want rows of h*d_qk = %d", ErrShape, q.Len(), row)
	}
	if kv.Len()%width != 0 {
		return fmt.Errorf("%w: kv has %d values, want rows of d_qk = %d", ErrShape, kv.Len(), width)
	}
	w.run.q, w.run.out, w.run.plain = q, out, kv
	w.args = SparseDecodeArgs{
		Seqs: 1, Tokens: q.Len() / row, Indices: a.Indices, Stride: a.Stride, Lengths: a.Lengths, LengthsPer: TopKPerToken,
		Sink: a.Sink, LSE: a.LSE, MaxLogit: a.MaxLogit,
	}
	defer func() { w.args = SparseDecodeArgs{} }()
	return c.overRows(ctx, w, &w.args, &a.Ignored)
}

// overRows computes a call over index lists alone: of physical rows, or of w.run.plain if there is
// no cache.
func (c *Core) overRows(ctx context.Context, w *Workspace, a *SparseDecodeArgs, ignored *int64) error {
	if a.Seqs < 0 || a.Tokens < 0 {
		return fmt.Errorf("%w: %d sequences of %d tokens", ErrShape, a.Seqs, a.Tokens)
	}
	if a.Seqs > w.lim.Seqs {
		return fmt.Errorf("%w: the call has %d sequences, Limits.Seqs is %d", ErrLimit, a.Seqs, w.lim.Seqs)
	}
	if a.Tokens > w.lim.Tokens || a.Seqs*a.Tokens > w.lim.Tokens {
		return fmt.Errorf("%w: the call has %d*%d tokens, Limits.Tokens is %d", ErrLimit, a.Seqs, a.Tokens, w.lim.Tokens)
	}
	*ignored = 0
	if a.Cache != nil {
		if err := checkCache("SparseDecodeArgs", a.Cache, a.Layer, &c.cfg); err != nil {
			return err
		}
	}
	for i := range a.Seqs + 1 {
		w.offsets[i] = uint32(i * a.Tokens)
	}
	w.sparse = Sparse{
		Indices: a.Indices, Stride: a.Stride, Lengths: a.Lengths, LengthsPer: a.LengthsPer, FoldShared: a.FoldShared, Extra: a.Extra,
	}
	defer func() { w.sparse = Sparse{} }()
	r := &w.run
	r.cfg, r.kind, r.tokens = &c.cfg, overRows, a.Seqs*a.Tokens
	r.batch = Batch{
		Cache: a.Cache, Layer: a.Layer, Offsets: w.offsets[:a.Seqs+1], Sink: a.Sink,
		LSE: a.LSE, MaxLogit: a.MaxLogit, Sparse: &w.sparse,
	}
	return c.attend(ctx, w, ignored)
}
