package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// sparseCase is a case of op sparse_decode or sparse_prefill: attention alone over the rows
// that index lists select. B sequences have S query tokens each, prefill has one sequence.
type sparseCase struct {
	core mla.CoreConfig
	seqs int // B
	each int // S

	dtype checkpoint.DType // of q
	shape checkpoint.Shape // of q
	q     mla.Rows         // [B, S, h, d_qk]
	sink  []float32        // [h] or nil
	indexList
	fold bool

	kv    *mla.Rows      // prefill: [s_kv, 1, d_qk]
	cache kvpaged.Config // decode: its memory still the file's
	extra *extraCache    // decode: or nil

	want answer
}

// readSparseCase reads and checks a case. What it lets pass the library may still refuse.
func readSparseCase(r *reader, op string) (*sparseCase, error) {
	c := &sparseCase{}
	if op == "sparse_decode" {
		c.readDecode(r)
	} else {
		c.readPrefill(r)
	}
	r.known()
	return c, r.err
}

// readDecode reads FlashMLA's sparse decode, over one cache or two.
func (c *sparseCase) readDecode(r *reader) {
	q := r.tensor("q", floatTypes, free("b"), free("s_q"), free("h"), free("d_qk"))
	if r.err != nil {
		return
	}
	r.atMost(q, "sequences", q.Shape[0], maxSeqs)
	r.atMost(q, "query tokens of a sequence", q.Shape[1], maxTokens)
	r.atMost(q, "query tokens", q.Shape[0]*q.Shape[1], maxTokens)
	c.seqs, c.each = q.Shape[0], q.Shape[1]
	b, s, h := dim{"b", c.seqs}, dim{"s_q", c.each}, dim{"h", q.Shape[2]}
	c.readQueries(r, q, h)
	c.fold = r.flag("fold_shared_index")
	c.cache = r.store(firstCache, nil, c.width())
	lists := queries{seqs: c.seqs, tokens: c.seqs * c.each, dims: []dim{b, s}}
	c.indexList = r.list(firstCache, lists)
	c.extra = r.extra(lists, c.width())
	if r.err == nil {
		c.want = r.answer([]dim{b, s, h, {"d_v", c.core.V}}, []dim{b, h, s})
	}
}

// readPrefill reads FlashMLA's sparse prefill, over rows that are not paged.
func (c *sparseCase) readPrefill(r *reader) {
	q := r.tensor("q", floatTypes, free("s_q"), free("h"), free("d_qk"))
	if r.err != nil {
		return
	}
	r.atMost(q, "query tokens", q.Shape[0], maxTokens)
	c.seqs, c.each = 1, q.Shape[0]
	s, h, one := dim{"s_q", c.each}, dim{"h", q.Shape[1]}, dim{"", 1}
	c.readQueries(r, q, h)
	kv := r.rows(r.tensor("kv", floatTypes, free("s_kv"), one, c.width()))
	c.kv = &kv
	c.indexList = r.list(firstCache, queries{tokens: c.each, dims: []dim{s, one}, loose: true})
	if r.err == nil {
		c.want = r.answer([]dim{s, h, {"d_v", c.core.V}}, []dim{s, h})
	}
}

// readQueries reads what the two ops share. q has the heads and the width of a row last.
func (c *sparseCase) readQueries(r *reader, q checkpoint.Tensor, h dim) {
	width := q.Shape[len(q.Shape)-1]
	if h.n < 1 || width < 1 {
		r.failf("tensor %v: wanted at least 1 head and 1 value", q)
	}
	r.atMost(q, "heads", h.n, maxDim)
	r.atMost(q, "values of a head", width, maxDim)
	if r.has("index_kind") {
		r.choice("index_kind", "physical")
	}
	c.core = mla.CoreConfig{Heads: h.n, Width: width, V: r.whole("d_v", 1), Scale: r.scale()}
	if c.core.V > width {
		r.failf("metadata d_v is %d, wanted at most the d_qk of %v", c.core.V, q)
	}
	c.dtype, c.shape, c.q = q.DType, q.Shape, r.rows(q)
	c.sink = r.optionalFloats("attn_sink", h)
}

func (c *sparseCase) width() dim { return dim{"d_qk", c.core.Width} }

// run runs the case and compares. An error means that the library refused it.
func (c *sparseCase) run(ctx context.Context, pool *mla.Pool, o options) (outcome, error) {
	core, err := mla.NewCore(c.core)
	var ws *mla.Workspace
	if err == nil {
		longest := max(c.stride, 1) // of a list
		if c.extra != nil {
			longest = max(longest, c.extra.stride)
		}
		ws, err = mla.NewWorkspace(mla.Limits{Tokens: max(c.seqs*c.each, 1), Seqs: max(c.seqs, 1), Context: longest}, pool, core)
	}
	if err != nil {
		return outcome{}, fmt.Errorf("tensor q %v: %w", c.shape, err)
	}
	defer ws.Close()
	if c.kv != nil {
		return c.want.judge(c.dtype, func(out mla.Rows, lse, maxLogits []float32) error {
			return core.SparsePrefill(ctx, ws, out, c.q, *c.kv, &mla.SparsePrefillArgs{
				Indices: c.indices, Stride: c.stride, Lengths: c.lengths, Sink: c.sink, LSE: lse, MaxLogit: maxLogits,
			})
		})
	}
	cache, err := c.openCache(o.page)
	if err != nil {
		return outcome{}, err
	}
	defer cache.Close()
	args := mla.SparseDecodeArgs{
		Seqs: c.seqs, Tokens: c.each, Cache: cache, Indices: c.indices, Stride: c.stride,
		Lengths: c.lengths, LengthsPer: c.per, FoldShared: c.fold, Sink: c.sink,
	}
	if c.extra != nil {
		if args.Extra, err = c.extra.open(); err != nil {
			return outcome{}, err
		}
		defer args.Extra.Cache.Close()
	}
	return c.want.judge(c.dtype, func(out mla.Rows, lse, maxLogits []float32) error {
		args.LSE, args.MaxLogit = lse, maxLogits
		err := core.SparseDecode(ctx, ws, out, c.q, &args)
		if errors.Is(err, mla.ErrShape) {
			err = fmt.Errorf("tensor indices [%d, %d, %d]%s: %w", c.seqs, c.each, c.stride, c.extra.named(), err)
		}
		return err
	})
}

// openCache makes the first cache. With a page size other than the file's its rows lie in
// another order, and the indices follow them.
func (c *sparseCase) openCache(page int) (*kvpaged.Cache, error) {
	if page == 0 || page == c.cache.PageTokens {
		return openCopy(firstCache, c.cache)
	}
	m := newMoves(c.cache, page)
	if err := repageable(c.cache, page, 1+ceilDiv(len(m.home), page)); err != nil {
		return nil, err
	}
	m.putRest()
	c.indices = m.indices(c.indices)
	cfg, err := m.repage(c.cache)
	if err != nil {
		return nil, err
	}
	return kvpaged.New(cfg)
}
