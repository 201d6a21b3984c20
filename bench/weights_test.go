package bench

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// found is weights as a checkpoint may hold them: of several types, with biases and
// factors.
func found(t *testing.T) *Weights {
	r := rng(11)
	quantized := func(rows, cols int) fp8.Matrix {
		m, err := fp8.Quantize(fp8.ElemE4M3, rows, cols, r.normals(rows*cols, float32(1/math.Sqrt(float64(cols)))), 16, 8)
		require.NoError(t, err)
		return m
	}
	halves := make([]uint16, 40*15)
	mla.RowsBF16(halves).Narrow(0, r.normals(len(halves), 0.3))
	qb, err := fp8.PlainBF16(40, 15, halves)
	require.NoError(t, err)
	gamma := make([]uint16, 20)
	mla.RowsBF16(gamma).Narrow(0, r.gamma(20))
	core := mla.Config{Heads: 4, Nope: 6, Rope: 4, V: 7, Latent: 20, Scale: 0.4, LatentScale: 1.3}
	return &Weights{
		Name:   "found/3",
		Config: mla.BlockConfig{Core: core, Hidden: 23, QLora: 15, QScale: 0.9, QBeta: 0.2, QContext: 4},
		Block: mla.BlockWeights{
			QA: quantized(15, 23), QB: qb, KVA: quantized(24, 23), O: quantized(23, 28), QGamma: mla.RowsF32(r.gamma(15)),
			Core:   mla.Weights{KVB: quantized(52, 20), Gamma: mla.RowsBF16(gamma)},
			QABias: mla.RowsF32(r.normals(15, 0.1)), KVABias: mla.RowsF32(r.normals(24, 0.1)), OBias: mla.RowsF32(r.normals(23, 0.1)),
		},
		Freqs: func(positions int) ([]float32, error) { return freqs(positions, 4), nil },
	}
}

// TestWeights runs layers and blocks on weights that were found, with what the models
// know: their rows are checked as those on made weights are.
func TestWeights(t *testing.T) {
	w := found(t)
	o := tiny()
	o.Weights, o.Model, o.Ops, o.Threads = w, w.Model(), []Op{Layer, Block}, []int{1}
	o.Arithmetic = []mla.Compute{mla.ComputeF32, mla.ComputeBF16}
	var c collect
	require.NoError(t, Run(t.Context(), o, &c))
	require.Len(t, c.rows, len(o.Specs()))
	ran := map[string]int{}
	for _, r := range c.rows {
		ran[r.Arithmetic]++
		assert.Equal(t, r.Arithmetic == "bf16", r.MaxErr > 1e-5, "%v: %v", r.Arithmetic, r.MaxErr)
		assert.Equal(t, "found/3", r.Model)
		assert.Equal(t, map[Op]string{Layer: "fp8_e4m3", Block: "bf16+fp8_e4m3"}[r.Op], r.Weights)
	}
	assert.Equal(t, map[string]int{"f32": len(c.rows) / 2, "bf16": len(c.rows) / 2}, ran)
	o.Arithmetic = o.Arithmetic[:1]
	s := Spec{Op: Layer, Model: o.Model, Weights: w, Ctx: 10, Batch: 1, Tokens: 1}
	assert.Equal(t, 10*48.0+52*20, s.Bytes(48))
	s.Op = Block
	assert.Equal(t, 10*48.0+52*20+15*23+2*40*15+24*23+23*28, s.Bytes(48))

	o.Ops = []Op{Decode}
	require.ErrorIs(t, o.Check(), ErrOptions)
	assert.ErrorContains(t, o.Check(), `operation "decode" with weights of a checkpoint, want some of [layer block]`)

	// A wrong bias is a wrong answer, of the cache row or of the output.
	o.Ops, o.KV, o.Ctx, o.Batch, o.Prefill = []Op{Block}, []kvpaged.Format{kvpaged.F32}, []int{9}, []int{1}, []int{5}
	lab := NewLab(1)
	defer func() { require.NoError(t, lab.Close()) }()
	for _, spec := range o.Specs() {
		for _, spoil := range []func(b *blockWeights) []float32{
			func(b *blockWeights) []float32 { return b.qaBias }, func(b *blockWeights) []float32 { return b.kvaBias },
			func(b *blockWeights) []float32 { return b.outBias }, func(b *blockWeights) []float32 { return b.gamma },
			func(b *blockWeights) []float32 { return b.qGamma },
		} {
			work, err := lab.Open(spec)
			require.NoError(t, err)
			require.NoError(t, work.Run(t.Context()))
			checked, err := work.Check()
			require.NoError(t, err)
			require.Equal(t, min(spec.tokens(), blockTokens), checked.Rows)
			x := spoil(lab.blocks[spec.source()])
			x[len(x)-1] += 0.5
			_, err = work.Check()
			require.ErrorIs(t, err, ErrWrong)
			x[len(x)-1] -= 0.5
			require.NoError(t, work.Close())
		}
	}
}

// TestPlainWeights: a block without biases, factors and low rank.
func TestPlainWeights(t *testing.T) {
	w := found(t)
	halves := make([]uint16, 40*23)
	r := rng(3)
	mla.RowsF16(halves).Narrow(0, r.normals(len(halves), 0.2))
	qb, err := fp8.PlainF16(40, 23, halves)
	require.NoError(t, err)
	w.Config = mla.BlockConfig{Core: w.Config.Core, Hidden: 23}
	w.Config.Core.LatentScale = 0
	w.Block = mla.BlockWeights{QB: qb, KVA: w.Block.KVA, O: w.Block.O, Core: w.Block.Core}
	o := tiny()
	o.Weights, o.Model, o.Ops, o.Threads = w, w.Model(), []Op{Layer, Block}, []int{1}
	c := testRun(t, o)
	o.Arithmetic = []mla.Compute{mla.ComputeBF16} // to which f16 is rounded
	require.NoError(t, Run(t.Context(), o, &c))
	require.Len(t, c.rows, 2*len(o.Specs()))
	assert.Equal(t, "f16+fp8_e4m3", c.rows[len(c.rows)-1].Weights)
}

// TestIndexed: a model with an indexer is measured up to its limit, and what is left
// out says why.
func TestIndexed(t *testing.T) {
	w := found(t)
	w.Config.Core.IndexTopK = 64
	o := tiny()
	o.Weights, o.Model, o.Ops, o.Threads = w, w.Model(), []Op{Layer, Block}, []int{1}
	o.KV, o.Batch = o.KV[:1], o.Batch[:1]
	var c collect
	require.NoError(t, Run(t.Context(), o, &c))
	require.Len(t, c.rows, 4)
	require.Len(t, c.left, 2)
	assert.Contains(t, c.left[1].What, "block found/3 ctx=70")
	assert.Contains(t, c.left[1].Reason, "more than 64 keys by an indexer's lists only")
}

// TestNoHidden: a model of which no hidden state is known has no block.
func TestNoHidden(t *testing.T) {
	o := tiny()
	o.Model.Hidden, o.Ops = 0, []Op{Block}
	assert.ErrorContains(t, o.Check(), "hidden states of 0 values")
}

// TestBlockOfModels: a model without a low rank has a block, too.
func TestBlockOfModels(t *testing.T) {
	o := tiny()
	o.Model.QLora, o.Ops, o.Threads = 0, []Op{Block}, []int{1}
	testRun(t, o)
	for _, m := range Models() {
		assert.Positive(t, m.Hidden, m.Name)
	}
}
