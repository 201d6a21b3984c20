package mla_test

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// graphWorld is a small call of the operator, made from a seed. Four sequences:
// by the rule of arithmetic.md the second is expanded, the third has no new
// tokens, and the others are absorbed.
type graphWorld struct {
	heads, nope, rope, v, latent int
	n, k                         int
	dtype                        fp8.Elem
	gamma                        fp8.Elem
	format                       kvpaged.Format
	group                        int
	page, layers, layer          int
	cached, fresh                []int
	seed                         uint64
}

func smallGraph() graphWorld {
	return graphWorld{
		heads: 2, nope: 8, rope: 4, v: 6, latent: 16, n: 4, k: 8,
		dtype: fp8.ElemF32, gamma: fp8.ElemF32, format: kvpaged.F32, page: 4, layers: 2, layer: 1,
		cached: []int{5, 0, 9, 2}, fresh: []int{3, 2, 0, 1}, seed: 3,
	}
}

// typed wraps values in a type, rounded to it.
func typed(e fp8.Elem, x []float32) mla.Rows {
	u := make([]uint16, len(x))
	r := mla.RowsF32(x)
	switch e {
	case fp8.ElemBF16:
		r = mla.RowsBF16(u)
	case fp8.ElemF16:
		r = mla.RowsF16(u)
	}
	r.Narrow(0, x)
	return r
}

func constant(n int, x float32) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = x
	}
	return s
}

// someCodes are n random E4M3 codes that are finite, of moderate size.
func someCodes(r *rand.Rand, n int) []byte {
	c := make([]byte, n)
	for i := range c {
		c[i] = byte(r.IntN(0x48)) | byte(r.IntN(2)<<7)
	}
	return c
}

// powers are n powers of two, which every type of scales has.
func powers(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Ldexp(1, r.IntN(4)-4))
	}
	return x
}

func ceil(a, b int) int { return (a + b - 1) / b }

// args are the arguments of the world: a dense call with a plan of one chunk.
func (w graphWorld) args(t testing.TB) *mla.GraphArgs {
	t.Helper()
	r := rand.New(rand.NewPCG(w.seed, 11))
	h, n, rank := w.heads, w.nope, w.latent
	a := &mla.GraphArgs{
		Dtype: w.dtype, CollectionT: w.format,
		MScaleGranularity: 1, NScaleGranularity: w.n, KScaleGranularity: w.k, MaskStr: "causal", Target: "cpu",
		InputRowOffsets: []uint32{0}, LayerIdx: w.layer, Scale: 0.25, Epsilon: 1e-6,
		GraphHost: mla.GraphHost{Heads: h},
	}
	for i, x := range w.fresh {
		a.InputRowOffsets = append(a.InputRowOffsets, a.InputRowOffsets[i]+uint32(x))
		a.MaxSeqLen = max(a.MaxSeqLen, x)
	}
	tokens := int(a.InputRowOffsets[len(w.fresh)])
	a.ScalarArgsBuf = []int64{int64(len(w.fresh)), int64(a.MaxSeqLen), 1}
	a.Q = typed(w.dtype, floats(r, tokens*h*(n+w.rope), 1))
	a.KvInputFn.Rows = typed(w.dtype, floats(r, tokens*(rank+w.rope), 1))
	a.Output = typed(w.dtype, constant(tokens*h*w.v, float32(math.NaN())))
	a.KvNormGamma = typed(w.gamma, floats(r, rank, 1))
	a.FreqsCis = mla.RowsF32(floats(r, 16*w.rope, 0.7))
	a.LSE, a.MaxLogit = make([]float32, tokens*h), make([]float32, tokens*h)

	a.WK = someCodes(r, h*n*rank)
	a.WUk = make([]byte, h*rank*n)
	wk := powers(r, ceil(h*n, w.n)*ceil(rank, w.k))
	wuk := make([]float32, h*ceil(rank, w.k)*ceil(n, w.n))
	for i := range h * n {
		for j := range rank { // the transpose of each head, scales too: n divides N
			a.WUk[i/n*rank*n+j*n+i%n] = a.WK[i*rank+j]
			wuk[(i/n*ceil(rank, w.k)+j/w.k)*ceil(n, w.n)+i%n/w.n] = wk[i/w.n*ceil(rank, w.k)+j/w.k]
		}
	}
	a.WUv = someCodes(r, h*w.v*rank)
	a.WKScale, a.WUkScale = mla.ScalesF32(wk), mla.ScalesF32(wuk)
	a.WUvScale = mla.ScalesF32(powers(r, h*ceil(w.v, w.n)*ceil(rank, w.k)))
	w.openCache(t, a, r)

	lengths := make([]int, len(w.cached))
	for b := range lengths {
		lengths[b] = w.cached[b] + w.fresh[b]
	}
	plan, err := mla.PlanChunks(lengths, w.page, 1<<20)
	require.NoError(t, err)
	a.BufferRowOffsets, a.CacheOffsets, a.BufferLength = plan[0].RowOffsets, plan[0].CacheOffsets, plan[0].Length
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// scalesOf are scales for a cache of the format, which keeps them outside.
func scalesOf(f kvpaged.Format, r *rand.Rand, b mla.KvBlocks, width int) []float32 {
	switch {
	case f == kvpaged.FP8Tensor:
		return []float32{0.37}
	case f == kvpaged.FP8Token && r != nil:
		return powers(r, b.NumBlocks*b.Layers*b.PageTokens*ceil(width, b.Group))
	}
	return nil
}

// openCache writes the cached rows into pages in a random order. All the rest of
// the blocks is 0xFF: NaN.
func (w graphWorld) openCache(t testing.TB, a *mla.GraphArgs, r *rand.Rand) {
	t.Helper()
	kv := &a.KvCollection
	const pages = 12
	kv.Blocks = mla.KvBlocks{NumBlocks: pages, Layers: w.layers, PageTokens: w.page, Group: w.group}
	kv.Scales = scalesOf(w.format, r, kv.Blocks, w.latent+w.rope)
	cfg := w.cacheConfig(kv.Blocks, w.format, kv.Scales)
	size, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	kv.Blocks.Data = aligned(bytes.Repeat([]byte{0xFF}, int(size)))
	cfg.Arena = kv.Blocks.Data
	cache, err := kvpaged.New(cfg)
	require.NoError(t, err)
	order := r.Perm(pages)
	const maxPages = 4
	for b, n := range w.cached {
		kv.CacheLengths = append(kv.CacheLengths, uint32(n))
		table := make([]int32, maxPages)
		for i := range table {
			table[i] = pages
			if i*w.page < n+w.fresh[b] {
				table[i], order = int32(order[0]), order[1:]
			}
			kv.LookupTable = append(kv.LookupTable, uint32(table[i]))
		}
		s, err := cache.Adopt(table, 0, n)
		require.NoError(t, err)
		for l := range w.layers {
			require.NoError(t, s.WriteRows(l, 0, floats(r, n*cfg.Width, 1)))
		}
	}
	require.NoError(t, cache.Close())
}

func (w graphWorld) cacheConfig(b mla.KvBlocks, f kvpaged.Format, scales []float32) kvpaged.Config {
	cfg := kvpaged.Config{Layers: b.Layers, PageTokens: b.PageTokens, Width: w.latent + w.rope, Format: f, Pages: b.NumBlocks,
		Group: b.Group, Arena: b.Data, Order: kvpaged.PageMajor, Adopted: true}
	if f == kvpaged.FP8Tensor {
		cfg.Scale = scales[0]
	} else {
		cfg.Scales = scales
	}
	return cfg
}

// sparse makes a call one over index lists, of the rows that a token may see and
// a few that are none, with a second cache.
func (w graphWorld) sparse(t testing.TB, a *mla.GraphArgs) *mla.GraphArgs {
	t.Helper()
	r := rand.New(rand.NewPCG(w.seed, 12))
	tokens := int(a.InputRowOffsets[len(w.fresh)])
	a.SparseMla, a.IndicesStride, a.ExtraIndicesStride = true, 5, 3
	for b, n := range w.fresh {
		for i := range n {
			for range a.IndicesStride {
				pos := r.IntN(w.cached[b] + i + 1)
				page := a.KvCollection.LookupTable[b*4+pos/w.page]
				a.DIndices = append(a.DIndices, int32(int(page)*w.page+pos%w.page))
			}
		}
	}
	a.DIndices[2] = -1
	a.TopkLengths = []int32{5, 4, 3, 5}
	a.AttnSink = floats(r, w.heads, 1)

	x := &mla.ExtraCache{Format: kvpaged.FP8Tensor, Layer: 1, Blocks: mla.KvBlocks{NumBlocks: 3, Layers: 2, PageTokens: 3}}
	x.Blocks.Data = someCodes(r, 3*2*3*(w.latent+w.rope))
	a.ExtraK, a.ExtraScales = x, []float32{0.5}
	for range tokens * a.ExtraIndicesStride {
		a.ExtraDIndices = append(a.ExtraDIndices, int32(r.IntN(9)))
	}
	a.ExtraTopkLengths = []int32{3, 1, 3, 3, 2, 3} // by token
	return a
}

// runGraph calls the operator.
func runGraph(t testing.TB, a *mla.GraphArgs) answer {
	t.Helper()
	require.NoError(t, mla.PrefillDecodeGraphFP8(context.Background(), a))
	return answer{values(a.Output), slices.Clone(a.LSE), slices.Clone(a.MaxLogit)}
}

// viaForward computes the same call through New and Forward, on a copy of
// the blocks, and returns that copy as well.
func (w graphWorld) viaForward(t testing.TB, a *mla.GraphArgs) (answer, []byte) {
	t.Helper()
	cfg := mla.Config{Heads: w.heads, Nope: w.nope, Rope: w.rope, V: w.v, Latent: w.latent, Scale: a.Scale, Epsilon: a.Epsilon,
		Compute: a.Compute, RopeStyle: a.RopeStyle, FormRule: a.FormRule, MAXThreshold: a.MAXThreshold, NormRounding: a.NormRounding,
		ActQuant: a.ActQuant, ActBlockQ: a.ActBlockQ, ActBlockLatent: a.ActBlockLatent}
	var err error
	cfg.Mask, err = mla.ParseMask(a.MaskStr)
	require.NoError(t, err)
	layer, err := mla.New(cfg, w.weights(t, a))
	require.NoError(t, err)
	defer layer.Close()

	blocks := a.KvCollection.Blocks
	blocks.Data = aligned(blocks.Data)
	cache, err := kvpaged.New(w.cacheConfig(blocks, a.CollectionT, slices.Clone(a.KvCollection.Scales)))
	require.NoError(t, err)
	defer cache.Close()
	b := mla.Batch{Cache: cache, Layer: a.LayerIdx, Offsets: a.InputRowOffsets, Freqs: a.FreqsCis, Forms: a.Forms, Sink: a.AttnSink}
	for i, n := range w.fresh {
		var table []int32
		for _, p := range a.KvCollection.LookupTable[4*i : 4*i+4] {
			table = append(table, int32(p))
		}
		s, err := cache.Adopt(table, int(a.KvCollection.CacheLengths[i]), n)
		require.NoError(t, err)
		b.Seqs = append(b.Seqs, s)
	}
	if a.SparseMla {
		b.Sparse = &mla.Sparse{Indices: a.DIndices, Stride: a.IndicesStride, Lengths: a.TopkLengths, LengthsPer: a.TopkPer, FoldShared: a.FoldSharedIndex}
		if x := a.ExtraK; x != nil {
			extra, err := kvpaged.New(w.cacheConfig(x.Blocks, x.Format, a.ExtraScales))
			require.NoError(t, err)
			defer extra.Close()
			b.Sparse.Extra = &mla.Extra{Cache: extra, Layer: x.Layer, Indices: a.ExtraDIndices, Stride: a.ExtraIndicesStride, Lengths: a.ExtraTopkLengths}
		}
	}
	plan, err := bind(layer, mla.Limits{Tokens: 16, Seqs: 4, Context: 16, Buffer: 5}, nil)
	require.NoError(t, err)
	defer plan.Close()
	got := answer{lse: make([]float32, len(a.LSE)), top: make([]float32, len(a.LSE))}
	b.LSE, b.MaxLogit = got.lse, got.top
	out := typed(w.dtype, make([]float32, a.Output.Len()))
	require.NoError(t, plan.Forward(context.Background(), out, a.Q, a.KvInputFn.Rows, b))
	got.out = values(out)
	return got, blocks.Data
}

// aligned is a copy that is aligned to whole words.
func aligned(b []byte) []byte {
	c := mla.BlockBytes(make([]float32, (len(b)+3)/4))[:len(b)]
	copy(c, b)
	return c
}

// weights are those of the arguments, cut by hand.
func (w graphWorld) weights(t testing.TB, a *mla.GraphArgs) mla.Weights {
	t.Helper()
	part := func(all mla.Scales, lo, hi int) fp8.Scales {
		var x []float32
		for i := lo; i < hi; i++ {
			x = append(x, all.Float32(i))
		}
		return fp8.ScalesF32(x)
	}
	var err error
	ws := mla.Weights{Gamma: a.KvNormGamma}
	ws.K, err = fp8.New(a.Fp8Dtype, w.heads*w.nope, w.latent, a.WK, part(a.WKScale, 0, a.WKScale.Len()), w.n, w.k)
	require.NoError(t, err)
	uk, uv := ceil(w.latent, w.k)*ceil(w.nope, w.n), ceil(w.v, w.n)*ceil(w.latent, w.k)
	for h := range w.heads {
		m, err := fp8.New(a.Fp8Dtype, w.latent, w.nope, a.WUk[h*w.latent*w.nope:][:w.latent*w.nope], part(a.WUkScale, h*uk, (h+1)*uk), w.k, w.n)
		require.NoError(t, err)
		ws.UK = append(ws.UK, m)
		m, err = fp8.New(a.Fp8Dtype, w.v, w.latent, a.WUv[h*w.v*w.latent:][:w.v*w.latent], part(a.WUvScale, h*uv, (h+1)*uv), w.n, w.k)
		require.NoError(t, err)
		ws.UV = append(ws.UV, m)
	}
	return ws
}

// equal reports whether two answers have the same bits.
func (a answer) equal(b answer) bool {
	return slices.EqualFunc(a.out, b.out, kerneltest.SameBits) && slices.EqualFunc(a.lse, b.lse, kerneltest.SameBits) &&
		slices.EqualFunc(a.top, b.top, kerneltest.SameBits)
}
