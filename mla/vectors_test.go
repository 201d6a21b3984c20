package mla_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// vector reads a tensor of testdata/attention.safetensors, bits of the
// arithmetic from a model written from its text in another language.
func vector(t *testing.T, name string) ([]float32, []int) {
	t.Helper()
	f, err := checkpoint.Open("testdata/attention.safetensors")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	x, ok := f.Tensor(name)
	require.True(t, ok, name)
	var out []float32
	if x.DType == checkpoint.I32 {
		ints, err := x.I32s()
		require.NoError(t, err)
		for _, i := range ints {
			out = append(out, float32(i))
		}
	} else {
		vals, err := x.F32s()
		require.NoError(t, err)
		out = append(out, vals...)
	}
	return out, x.Shape
}

// TestAttentionVectors runs the groups long, short and nope through Decode, each
// query row as a sequence that ends with the last key it sees: equal bits, on
// one worker and on three.
func TestAttentionVectors(t *testing.T) {
	for _, group := range []string{"long", "short", "nope"} {
		q, qShape := vector(t, group+".q")
		rows, rShape := vector(t, group+".cache")
		scale, _ := vector(t, group+".scale")
		visible, _ := vector(t, group+".visible")
		out, oShape := vector(t, group+".output")
		lse, _ := vector(t, group+".lse")
		width, r := rShape[1], oShape[1]

		w, err := fp8.PlainF32(2, r, make([]float32, 2*r))
		require.NoError(t, err)
		l, err := mla.New(mla.Config{Heads: 1, Nope: 1, Rope: width - r, V: 1, Latent: r, Scale: scale[0]},
			mla.Weights{KVB: w, Gamma: mla.RowsF32(make([]float32, r))})
		require.NoError(t, err)
		cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 7, Width: width, Format: kvpaged.F32, Pages: 2000})
		require.NoError(t, err)
		b := mla.Batch{Cache: cache, Offsets: []uint32{0}, LSE: make([]float32, len(lse))}
		for i := range qShape[0] {
			n := int(visible[i])
			s, err := cache.NewSeq()
			require.NoError(t, err)
			require.NoError(t, s.Reserve(n))
			require.NoError(t, s.WriteRows(0, 0, rows[:n*width]))
			require.NoError(t, s.Commit(n))
			b.Seqs, b.Offsets = append(b.Seqs, s), append(b.Offsets, uint32(i+1))
		}
		for _, workers := range []int{1, 3} {
			pool := mla.NewPool(workers)
			p, err := l.Plan(mla.Limits{Tokens: len(lse), Seqs: len(lse), Context: rShape[0]}, pool)
			require.NoError(t, err)
			got := make([]float32, len(out))
			require.NoError(t, p.Decode(context.Background(), mla.RowsF32(got), mla.RowsF32(q), b))
			sameBits(t, answer{out: out, lse: lse}, answer{out: got, lse: b.LSE}, group)
			require.NoError(t, p.Close())
			require.NoError(t, pool.Close())
		}
		require.NoError(t, cache.Close())
		require.NoError(t, l.Close())
	}
}

func TestMergeVectors(t *testing.T) {
	parts, shape := vector(t, "merge.parts")
	partsLSE, _ := vector(t, "merge.parts_lse")
	out, _ := vector(t, "merge.output")
	lse, _ := vector(t, "merge.lse")
	got := answer{out: make([]float32, len(out)), lse: make([]float32, len(lse))}
	require.NoError(t, mla.Merge(got.out, got.lse, parts, partsLSE, shape[0], shape[1], shape[2]))
	sameBits(t, answer{out: out, lse: lse}, got, "merge")
}
