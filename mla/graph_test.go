package mla_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// TestGraphIsForward compares the operator with Layer.Forward, bit by bit, and the
// cache that both leave.
func TestGraphIsForward(t *testing.T) {
	pool := mla.NewPool(2)
	defer pool.Close()
	for name, c := range map[string]struct {
		w      func(*graphWorld)
		a      func(*mla.GraphArgs)
		sparse bool
	}{
		"rule":     {},
		"absorbed": {a: func(a *mla.GraphArgs) { a.FormRule = mla.FormRuleMAX }},
		"expanded": {a: func(a *mla.GraphArgs) { a.FormRule, a.MAXThreshold = mla.FormRuleMAX, 2 }},
		"forms": {a: func(a *mla.GraphArgs) {
			a.Forms = []mla.Form{mla.FormExpanded, mla.FormAbsorbed, mla.FormAuto, mla.FormAuto}
		}},
		"sparse": {sparse: true},
		"sparse, one cache": {sparse: true, a: func(a *mla.GraphArgs) {
			a.ExtraK, a.ExtraScales, a.ExtraDIndices, a.ExtraTopkLengths, a.ExtraIndicesStride, a.AttnSink = nil, nil, nil, nil, 0, nil
		}},
		"bf16": {w: func(w *graphWorld) { w.dtype, w.gamma, w.format = fp8.ElemBF16, fp8.ElemBF16, kvpaged.BF16 }},
		"f16":  {w: func(w *graphWorld) { w.dtype, w.gamma, w.format = fp8.ElemF16, fp8.ElemF16, kvpaged.F16 }},
		"gamma not rounded": {
			w: func(w *graphWorld) { w.dtype, w.gamma, w.format = fp8.ElemBF16, fp8.ElemBF16, kvpaged.BF16 },
			a: func(a *mla.GraphArgs) { a.NormRounding = mla.NormNone },
		},
		"fp8_unit":          {w: func(w *graphWorld) { w.format = kvpaged.FP8Unit }},
		"fp8_tensor":        {w: func(w *graphWorld) { w.format = kvpaged.FP8Tensor }},
		"fp8_token":         {w: func(w *graphWorld) { w.format, w.group = kvpaged.FP8Token, 7 }},
		"fp8_token, sparse": {w: func(w *graphWorld) { w.format, w.group = kvpaged.FP8Token, 20 }, sparse: true},
		"ds_mla_656": {w: func(w *graphWorld) {
			w.latent, w.rope, w.n, w.k, w.format = 512, 64, 8, 128, kvpaged.DSMLA656
		}, sparse: true},
		"per tensor":         {w: func(w *graphWorld) { w.n, w.k = 1<<20, 1<<20 }, a: oneScale},
		"per row":            {w: func(w *graphWorld) { w.n, w.k = 1, 1<<20 }},
		"no rope":            {w: func(w *graphWorld) { w.rope = 0 }},
		"bf16 pairs":         {a: func(a *mla.GraphArgs) { a.Compute = mla.ComputeBF16 }},
		"sparse, bf16 pairs": {sparse: true, a: func(a *mla.GraphArgs) { a.Compute = mla.ComputeBF16 }},
		"half rope":          {a: func(a *mla.GraphArgs) { a.RopeStyle = mla.Half }},
		"page of 3":          {w: func(w *graphWorld) { w.page = 3 }},
		"other codes":        {a: func(a *mla.GraphArgs) { a.Fp8Dtype = fp8.ElemE5M2 }},
		"quantised":          {a: func(a *mla.GraphArgs) { a.ActQuant, a.ActBlockQ = mla.ActDynamic, 4 }},
		"quantised, sparse": {sparse: true, a: func(a *mla.GraphArgs) {
			a.ActQuant, a.ActBlockQ, a.ActBlockLatent = mla.ActDynamic, 8, 5
		}},
		"sink, dense": {a: func(a *mla.GraphArgs) { a.AttnSink = []float32{0.5, -1} }},
		"pool":        {a: func(a *mla.GraphArgs) { a.Pool = pool }},
	} {
		t.Run(name, func(t *testing.T) {
			w := smallGraph()
			if c.w != nil {
				c.w(&w)
			}
			a := w.args(t)
			if c.sparse {
				w.sparse(t, a)
			}
			if c.a != nil {
				c.a(a)
			}
			want, blocks := w.viaForward(t, a)
			sameBits(t, want, runGraph(t, a), "operator")
			require.Equal(t, blocks, a.KvCollection.Blocks.Data, "cache")
			require.False(t, slices.ContainsFunc(want.out, func(x float32) bool { return x != x }), "the answer has NaN")
		})
	}
}

// oneScale gives all weights one scale, as the transpose of per-tensor scales wants it.
func oneScale(a *mla.GraphArgs) {
	a.WKScale, a.WUkScale, a.WUvScale = mla.ScalesF32([]float32{0.3}), mla.ScalesF32([]float32{0.3, 0.3}), mla.ScalesF32([]float32{0.2, 0.7})
}

// TestGraphKeepsWhatItMade: weights are packed once, nothing is allocated while
// nothing changes, and every change is seen.
func TestGraphKeepsWhatItMade(t *testing.T) {
	w := smallGraph()
	ctx := context.Background()
	for _, c := range []struct {
		name string
		make func(*mla.GraphArgs)
	}{
		{"dense", func(a *mla.GraphArgs) {}},
		{"MAX's rule", func(a *mla.GraphArgs) { a.FormRule, a.MAXThreshold = mla.FormRuleMAX, 2 }},
		{"sparse", func(a *mla.GraphArgs) { w.sparse(t, a) }},
		{"callback", func(a *mla.GraphArgs) {
			rows := values(a.KvInputFn.Rows)
			a.KvInputFn = mla.KvInput{Fill: func(t int, row []float32) { copy(row, rows[t*len(row):]) }}
		}},
	} {
		a := w.args(t)
		c.make(a)
		want := runGraph(t, a)
		require.Zero(t, allocsPerRun(3, func() {
			if err := mla.PrefillDecodeGraphFP8(ctx, a); err != nil {
				t.Fatal(err)
			}
		}), c.name)
		sameBits(t, want, runGraph(t, a), c.name)
	}

	a := w.args(t)
	want := runGraph(t, a)
	code := a.WUv[7]
	a.WUv[7] ^= 0x80
	sameBits(t, want, runGraph(t, a), "weights that change in place are not packed again")
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	changed := runGraph(t, a)
	require.False(t, changed.equal(want), "Close drops the packed weights")
	a.WUv[7] = code
	a.WUv = slices.Clone(a.WUv)
	sameBits(t, want, runGraph(t, a), "another slice is packed again")
	gamma := values(a.KvNormGamma)
	gamma[3] = 9
	a.KvNormGamma = mla.RowsF32(gamma)
	require.False(t, runGraph(t, a).equal(want), "so is another gamma")
}

// TestGraphSteps drives one GraphArgs through a prompt and the tokens after it,
// with batches that grow and shrink, as a server does.
func TestGraphSteps(t *testing.T) {
	w := smallGraph()
	w.cached, w.fresh = []int{0, 0, 0, 0}, []int{7, 1, 0, 3}
	a := w.args(t)
	for step, next := range [][]int{{1, 1, 5, 1}, {0, 0, 1, 0}, {1, 2, 3, 1}, {1, 1, 1, 1}} {
		t.Run(fmt.Sprint(step), func(t *testing.T) {
			want, blocks := w.viaForward(t, a)
			sameBits(t, want, runGraph(t, a), "operator")
			require.Equal(t, blocks, a.KvCollection.Blocks.Data, "cache")
		})
		w.step(t, a, next)
	}
}

// step commits the new tokens of a call in the caller's lengths, maps pages for
// the next ones, and makes inputs for them.
func (w *graphWorld) step(t *testing.T, a *mla.GraphArgs, fresh []int) {
	t.Helper()
	free := map[uint32]bool{}
	for p := range uint32(12) {
		free[p] = true
	}
	w.cached = slices.Clone(w.cached)
	for b := range fresh {
		w.cached[b] += w.fresh[b]
	}
	w.fresh = fresh
	next := w.args(t)
	for _, p := range a.KvCollection.LookupTable {
		delete(free, p)
	}
	for b := range fresh {
		for i := range ceil(w.cached[b]+fresh[b], w.page) {
			if at := 4*b + i; a.KvCollection.LookupTable[at] == 12 {
				for p := range uint32(12) {
					if free[p] {
						a.KvCollection.LookupTable[at] = p
						delete(free, p)
						break
					}
				}
			}
		}
	}
	a.KvCollection.CacheLengths = next.KvCollection.CacheLengths
	a.Q, a.KvInputFn, a.Output, a.LSE, a.MaxLogit = next.Q, next.KvInputFn, next.Output, next.LSE, next.MaxLogit
	a.InputRowOffsets, a.MaxSeqLen, a.ScalarArgsBuf = next.InputRowOffsets, next.MaxSeqLen, next.ScalarArgsBuf
	a.BufferRowOffsets, a.CacheOffsets, a.BufferLength = next.BufferRowOffsets, next.CacheOffsets, next.BufferLength
}

// TestGraphBusy calls the operator, and Close, from inside a call.
func TestGraphBusy(t *testing.T) {
	a := smallGraph().args(t)
	rows := a.KvInputFn.Rows
	calls := 0
	a.KvInputFn = mla.KvInput{Fill: func(token int, row []float32) {
		calls++
		require.ErrorIs(t, mla.PrefillDecodeGraphFP8(context.Background(), a), mla.ErrBusy)
		require.ErrorIs(t, a.Close(), mla.ErrBusy)
		rows.Widen(row, token*len(row), len(row))
	}}
	runGraph(t, a)
	require.Equal(t, 6, calls)

	a.KvInputFn.Fill = func(int, []float32) { panic("the caller's") }
	require.PanicsWithValue(t, "the caller's", func() { mla.PrefillDecodeGraphFP8(context.Background(), a) })
	a.KvInputFn = mla.KvInput{Rows: rows}
	runGraph(t, a)
}

// TestGraphLayers runs two layers over the same blocks at the same time, with one
// pool.
func TestGraphLayers(t *testing.T) {
	pool := mla.NewPool(2)
	defer pool.Close()
	w := smallGraph()
	one, two := w.args(t), w.args(t)
	one.LayerIdx, one.Pool = 0, pool
	two.Pool, two.KvCollection = pool, one.KvCollection
	wantOne, _ := w.viaForward(t, one)
	wantTwo, _ := w.viaForward(t, two)
	done := make(chan error)
	for _, a := range []*mla.GraphArgs{one, two} {
		go func() { done <- mla.PrefillDecodeGraphFP8(context.Background(), a) }()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	sameBits(t, wantOne, answer{values(one.Output), one.LSE, one.MaxLogit}, "layer 0")
	sameBits(t, wantTwo, answer{values(two.Output), two.LSE, two.MaxLogit}, "layer 1")
}

func TestGraphNothingToDo(t *testing.T) {
	require.ErrorIs(t, mla.PrefillDecodeGraphFP8(context.Background(), nil), mla.ErrConfig)

	w := smallGraph()
	w.fresh = []int{0, 0, 0, 0}
	a := w.args(t)
	before := slices.Clone(a.KvCollection.Blocks.Data)
	a.Output, a.Ignored = mla.RowsF32([]float32{7}), 5
	require.NoError(t, mla.PrefillDecodeGraphFP8(context.Background(), a))
	require.Equal(t, before, a.KvCollection.Blocks.Data)
	require.EqualValues(t, 7, a.Output.Float32(0))

	a = smallGraph().args(t)
	before = slices.Clone(a.KvCollection.Blocks.Data)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, mla.PrefillDecodeGraphFP8(ctx, a), context.Canceled)
	require.Equal(t, before, a.KvCollection.Blocks.Data)
	require.True(t, math.IsNaN(float64(a.Output.Float32(0))))
	require.NoError(t, mla.PrefillDecodeGraphFP8(nil, a)) //nolint:staticcheck // a nil context is never cancelled
}
