package mla

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
)

// PrefillDecodeGraphFP8 is MAX's operator mla_prefill_decode_graph_fp8 on a CPU:
// the whole layer, from un-normalised latent rows to the output of the heads, for
// a ragged batch over a paged cache. [GraphArgs] has every parameter and argument
// of the operator. It is [Layer.Forward] in MAX's words, and has its bits; beside
// that nothing is asked of the caller but the slices.
//
// The new rows are stored in the cache before attention. Nothing is committed:
// the caller's lengths and tables say what is cached at the next call. With no new
// tokens nothing is touched; after an error or a cancellation the output and the
// slots of the new tokens hold anything, all else is as it was. A nil ctx is never
// cancelled.
//
// Errors: ErrConfig, ErrShape, ErrWeights, ErrUnmapped, ErrLimit (sizes beyond any
// workspace), ErrBusy, ErrClosed of a closed pool, ErrPanic, those of kvpaged (page
// tables, formats), and ctx.Err.
func PrefillDecodeGraphFP8(ctx context.Context, args *GraphArgs) error {
	if args == nil {
		return fmt.Errorf("%w: no GraphArgs", ErrConfig)
	}
	g := &args.state
	if err := g.enter(); err != nil {
		return err
	}
	defer g.busy.Store(false)
	args.Ignored = 0
	var s graphShape
	if err := args.check(&s); err != nil || s.tokens == 0 {
		return err
	}
	if ctx != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err := g.ready(args, &s); err != nil {
		return err
	}
	b := g.batch(args, &s)
	err := g.layer.Forward(ctx, g.ws, args.Output, args.Q, g.newRows(args, &s), b)
	if b.Sparse != nil {
		args.Ignored = b.Sparse.Ignored
	}
	return err
}

// Close drops what earlier calls prepared: packed weights, sequences, workspace.
// The fields stay, and the next call prepares anew. Errors: ErrBusy while a call
// runs, and ErrConfig for nil.
func (a *GraphArgs) Close() error {
	if a == nil {
		return fmt.Errorf("%w: no GraphArgs", ErrConfig)
	}
	g := &a.state
	if err := g.enter(); err != nil {
		return err
	}
	defer g.busy.Store(false)
	err := errors.Join(g.dropLayer(), g.first.drop(), g.second.drop())
	g.seqs, g.row, g.floats, g.halves = nil, nil, nil, nil
	return err
}

// graphState is what GraphArgs keep between calls. It is used by one call at a
// time.
type graphState struct {
	busy atomic.Bool

	layer *Layer
	made  layerKey  // what it was made from
	gamma []float32 // likewise
	ws    *Workspace
	pool  *Pool // of the workspace

	first, second pages
	seqs          []*kvpaged.Seq
	lengths       []uint32 // what they were made from, and the new tokens
	lookup        []uint32
	fresh, want   []int

	row    []float32 // of a callback
	floats []float32 // its rows, in f32
	halves []uint16  // or in bf16 or f16
	forms  []Form
	sparse Sparse
	extra  Extra
}

func (g *graphState) enter() error {
	if !g.busy.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: another call runs on these GraphArgs", ErrBusy)
	}
	return nil
}

// ready makes what the call needs and earlier calls have not left.
func (g *graphState) ready(a *GraphArgs, s *graphShape) error {
	if err := g.readyCache(a, s); err != nil {
		return err
	}
	if err := g.readySeqs(a, s); err != nil {
		return err
	}
	if err := g.readyLayer(a, s); err != nil {
		return err
	}
	return g.readyWorkspace(a, s)
}

// pages is a cache over the caller's memory, with what it was made from.
type pages struct {
	cache *kvpaged.Cache
	made  pagesKey
}

type pagesKey struct {
	format                             kvpaged.Format
	layers, page, width, blocks, group int
	scale                              uint32 // bits, so that NaN equals itself
	data, scales                       span
}

// ready makes the cache, unless it is there.
func (p *pages) ready(name string, b KvBlocks, f kvpaged.Format, width int, scales []float32) error {
	cfg := kvpaged.Config{
		Layers: b.Layers, PageTokens: b.PageTokens, Width: width, Format: f, Pages: b.NumBlocks, Group: b.Group,
		Arena: b.Data, Order: kvpaged.PageMajor, Adopted: true, Scales: scales,
	}
	if f.Scales() == kvpaged.ScaleTensor {
		if len(scales) != 1 {
			return fmt.Errorf("%w: the scales of %s have %d values, want 1 in %v", ErrShape, name, len(scales), f)
		}
		cfg.Scale, cfg.Scales = scales[0], nil
	}
	key := pagesKey{f, b.Layers, b.PageTokens, width, b.NumBlocks, b.Group, math.Float32bits(cfg.Scale), spanOf(b.Data), spanOf(cfg.Scales)}
	if p.cache != nil && p.made == key {
		return nil
	}
	n, err := kvpaged.ArenaBytes(cfg)
	if err != nil {
		return fmt.Errorf("mla: %s: %w", name, err)
	}
	if int64(len(b.Data)) != n {
		return fmt.Errorf("%w: %s.Blocks.Data has %d bytes, want [%d, 1, %d, %d, 1, %d] of %v = %d",
			ErrShape, name, len(b.Data), b.NumBlocks, b.Layers, b.PageTokens, width, f, n)
	}
	if err := p.drop(); err != nil {
		return err
	}
	if p.cache, err = kvpaged.New(cfg); err != nil {
		return fmt.Errorf("mla: %s: %w", name, err)
	}
	p.made = key
	return nil
}

func (p *pages) drop() error {
	if p.cache == nil {
		return nil
	}
	err := p.cache.Close()
	*p = pages{}
	return err
}

func (g *graphState) readyCache(a *GraphArgs, s *graphShape) error {
	kv, width, old := &a.KvCollection, s.cfg.Width(), g.first.cache
	err := g.first.ready("KvCollection", kv.Blocks, a.CollectionT, width, kv.Scales)
	if g.first.cache != old {
		g.seqs = nil // they were closed with it
	}
	if err != nil {
		return err
	}
	if a.LayerIdx < 0 || a.LayerIdx >= kv.Blocks.Layers {
		return fmt.Errorf("%w: LayerIdx is %d, the cache has layers 0 to %d", ErrShape, a.LayerIdx, kv.Blocks.Layers-1)
	}
	x := a.ExtraK
	if x == nil {
		return g.second.drop()
	}
	if err := g.second.ready("ExtraK", x.Blocks, x.Format, width, a.ExtraScales); err != nil {
		return err
	}
	if x.Layer < 0 || x.Layer >= x.Blocks.Layers {
		return fmt.Errorf("%w: ExtraK.Layer is %d, the cache has layers 0 to %d", ErrShape, x.Layer, x.Blocks.Layers-1)
	}
	return nil
}

// readySeqs makes the sequences of the page table, unless the last call had the
// same.
func (g *graphState) readySeqs(a *GraphArgs, s *graphShape) error {
	kv := &a.KvCollection
	g.want = g.want[:0]
	for b := range s.seqs {
		g.want = append(g.want, int(a.InputRowOffsets[b+1])-int(a.InputRowOffsets[b]))
	}
	if g.seqs != nil && slices.Equal(g.want, g.fresh) && slices.Equal(kv.CacheLengths, g.lengths) && slices.Equal(kv.LookupTable, g.lookup) {
		return nil
	}
	for _, q := range g.seqs {
		if err := q.Free(); err != nil {
			return err
		}
	}
	seqs, err := kvpaged.ImportLookup(g.first.cache, kv.LookupTable, kv.CacheLengths, g.want)
	g.seqs = seqs
	if err != nil {
		return fmt.Errorf("mla: KvCollection: %w", err)
	}
	g.fresh = append(g.fresh[:0], g.want...)
	g.lengths = append(g.lengths[:0], kv.CacheLengths...)
	g.lookup = append(g.lookup[:0], kv.LookupTable...)
	return nil
}

// layerKey is what a layer was made from, but for the values of gamma.
type layerKey struct {
	cfg          Config
	elem         fp8.Elem
	n, k         int
	scaleType    ScaleDtype
	gammaType    fp8.Elem
	wk, wuk, wuv span
	sk, suk, suv span
}

func (g *graphState) readyLayer(a *GraphArgs, s *graphShape) error {
	key := layerKey{
		s.cfg, a.Fp8Dtype, a.NScaleGranularity, a.KScaleGranularity, a.Fp8ScaleDtype, a.KvNormGamma.Kind(),
		spanOf(a.WK), spanOf(a.WUk), spanOf(a.WUv), a.WKScale.span(), a.WUkScale.span(), a.WUvScale.span(),
	}
	if g.layer != nil && g.made == key && g.sameGamma(a.KvNormGamma) {
		return nil
	}
	w, err := a.weights(&s.cfg)
	if err != nil {
		return err
	}
	if err := g.dropLayer(); err != nil {
		return err
	}
	if g.layer, err = New(s.cfg, w); err != nil {
		g.layer = nil
		return err
	}
	g.made, g.gamma = key, make([]float32, s.cfg.Latent)
	a.KvNormGamma.Widen(g.gamma, 0, len(g.gamma))
	return nil
}

func (g *graphState) sameGamma(gamma Rows) bool {
	for i, x := range g.gamma {
		if math.Float32bits(gamma.Float32(i)) != math.Float32bits(x) {
			return false
		}
	}
	return true
}

// weights are the matrices of the operator's weights.
func (a *GraphArgs) weights(c *Config) (Weights, error) {
	n, k := a.NScaleGranularity, a.KScaleGranularity
	w := Weights{Gamma: a.KvNormGamma}
	var err error
	if w.K, err = fp8.New(a.Fp8Dtype, c.Heads*c.Nope, c.Latent, a.WK, a.WKScale.part(0, a.WKScale.Len()), n, k); err != nil {
		return w, fmt.Errorf("%w: WK: %w", ErrWeights, err)
	}
	if w.UK, err = perHead(a.Fp8Dtype, c.Heads, c.Latent, c.Nope, a.WUk, a.WUkScale, k, n); err != nil {
		return w, fmt.Errorf("%w: WUk: %w", ErrWeights, err)
	}
	if w.UV, err = perHead(a.Fp8Dtype, c.Heads, c.V, c.Latent, a.WUv, a.WUvScale, n, k); err != nil {
		return w, fmt.Errorf("%w: WUv: %w", ErrWeights, err)
	}
	return w, nil
}

// perHead cuts codes [heads, rows, cols] and their scales into matrices.
func perHead(elem fp8.Elem, heads, rows, cols int, codes []byte, scales Scales, blockRows, blockCols int) ([]fp8.Matrix, error) {
	ms := make([]fp8.Matrix, heads)
	size, each := rows*cols, scales.Len()/heads
	for h := range ms {
		m, err := fp8.New(elem, rows, cols, codes[h*size:(h+1)*size], scales.part(h*each, (h+1)*each), blockRows, blockCols)
		if err != nil {
			return nil, fmt.Errorf("head %d: %w", h, err)
		}
		ms[h] = m
	}
	return ms, nil
}

func (g *graphState) dropLayer() error {
	err := g.dropWorkspace()
	if g.layer != nil && err == nil {
		err = g.layer.Close()
	}
	if err == nil {
		g.layer = nil
	}
	return err
}

// readyWorkspace makes a workspace with room to grow, so that the next steps of a server
// find it large enough.
func (g *graphState) readyWorkspace(a *GraphArgs, s *graphShape) error {
	want := s.buffer
	if want == 0 {
		want = defaultBuffer
	}
	// Lists are merged as keys are.
	longest := s.keys
	if a.SparseMla {
		longest = max(longest, s.stride, a.ExtraIndicesStride)
	}
	lim := Limits{Context: defaultBuffer}
	if g.ws != nil {
		lim = g.ws.Limits()
		// A buffer of less than half of what is allowed is made anew.
		fits := lim.Buffer <= want && 2*lim.Buffer >= min(want, lim.Context)
		if g.pool == a.Pool && fits && s.tokens <= lim.Tokens && s.seqs <= lim.Seqs && longest <= lim.Context {
			return nil
		}
	}
	if s.tokens > maxTokens || s.seqs > maxSeqs || longest > maxContext {
		return fmt.Errorf("%w: %d new tokens in %d sequences, the longest of %d keys or list entries; at most %d, %d and %d go in a call",
			ErrLimit, s.tokens, s.seqs, longest, maxTokens, maxSeqs, maxContext)
	}
	lim = Limits{
		Tokens: max(lim.Tokens, powerOfTwo(s.tokens)), Seqs: max(lim.Seqs, powerOfTwo(s.seqs)),
		Context: max(lim.Context, powerOfTwo(longest)), Buffer: want,
	}
	if err := g.dropWorkspace(); err != nil {
		return err
	}
	var err error
	if g.ws, err = NewWorkspace(lim, a.Pool, g.layer); err != nil {
		g.ws = nil
		return err
	}
	g.pool = a.Pool
	return nil
}

// powerOfTwo is the smallest one that is not below n.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (g *graphState) dropWorkspace() error {
	if g.ws == nil {
		return nil
	}
	err := g.ws.Close()
	g.ws = nil
	return err
}

// batch is the batch of Forward.
func (g *graphState) batch(a *GraphArgs, s *graphShape) Batch {
	b := Batch{
		Cache: g.first.cache, Layer: a.LayerIdx, Seqs: g.seqs, Offsets: a.InputRowOffsets, Freqs: a.FreqsCis,
		Forms: a.Forms, Sink: a.AttnSink, LSE: a.LSE, MaxLogit: a.MaxLogit,
	}
	if a.SparseMla {
		g.sparse = Sparse{
			Indices: a.DIndices, Stride: s.stride, Lengths: a.TopkLengths, LengthsPer: a.TopkPer, FoldShared: a.FoldSharedIndex,
		}
		if x := a.ExtraK; x != nil {
			g.extra = Extra{
				Cache: g.second.cache, Layer: x.Layer, Indices: a.ExtraDIndices, Stride: a.ExtraIndicesStride,
				Lengths: a.ExtraTopkLengths, LengthsPer: a.TopkPer,
			}
			g.sparse.Extra = &g.extra
		}
		b.Sparse = &g.sparse
		return b
	}
	if a.FormRule == FormRuleMAX {
		b.Forms = g.formsOfMAX(a, s)
	}
	return b
}

// formsOfMAX takes MaxSeqLen at its word, which may be more than any sequence has.
func (g *graphState) formsOfMAX(a *GraphArgs, s *graphShape) []Form {
	form := FormExpanded
	if a.MaxSeqLen <= g.layer.Config().MAXThreshold {
		form = FormAbsorbed
	}
	g.forms = g.forms[:0]
	for b := range s.seqs {
		if a.Forms != nil && a.Forms[b] != FormAuto {
			g.forms = append(g.forms, a.Forms[b])
		} else {
			g.forms = append(g.forms, form)
		}
	}
	return g.forms
}

// newRows is the slice of new rows, filled by the callback if there is one.
func (g *graphState) newRows(a *GraphArgs, s *graphShape) Rows {
	fill, width := a.KvInputFn.Fill, s.cfg.Width()
	if fill == nil {
		return a.KvInputFn.Rows
	}
	g.row = slices.Grow(g.row[:0], width)[:width]
	rows := g.rowsOf(a.Dtype, s.tokens*width)
	for t := range s.tokens {
		fill(t, g.row)
		rows.Narrow(t*width, g.row)
	}
	return rows
}

// rowsOf is room for n values of a type, kept for the next call.
func (g *graphState) rowsOf(e fp8.Elem, n int) Rows {
	if e == fp8.ElemF32 {
		g.floats = slices.Grow(g.floats[:0], n)[:n]
		return RowsF32(g.floats)
	}
	g.halves = slices.Grow(g.halves[:0], n)[:n]
	if e == fp8.ElemBF16 {
		return RowsBF16(g.halves)
	}
	return RowsF16(g.halves)
}
