package mla_test

import (
	"context"
	"fmt"
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
	return vectorOf(t, "testdata/attention.safetensors", name)
}

func vectorOf(t *testing.T, file, name string) ([]float32, []int) {
	t.Helper()
	f, err := checkpoint.Open(file)
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
			p, err := bind(l, mla.Limits{Tokens: len(lse), Seqs: len(lse), Context: rShape[0]}, pool)
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

// TestPairVectors meets the groups of the second arithmetic, bit for bit: dense calls, each query row as a sequence that
// ends with the last key it sees, lists of the same rows, and ready keys and values; in float32 and
// in bf16, which is one rounding earlier.
func TestPairVectors(t *testing.T) {
	for _, group := range []string{"bf16", "bf16_tiny"} {
		get := func(name string) ([]float32, []int) {
			return vectorOf(t, "../simd/ref/testdata/arithmetic.safetensors", group+"."+name)
		}
		q, qShape := get("q")
		rows, rShape := get("cache")
		scale, _ := get("scale")
		visible, _ := get("visible")
		out, oShape := get("output")
		n, keys, width, r := qShape[0], rShape[0], rShape[1], oShape[1]
		lse := make([]float32, n)
		if group == "bf16" {
			lse, _ = get("lse")
		}
		for _, format := range []kvpaged.Format{kvpaged.F32, kvpaged.BF16} {
			for _, workers := range []int{1, 3} {
				pool := mla.NewPool(workers)
				core, err := newCore(mla.CoreConfig{Heads: 1, Width: width, V: r, Scale: scale[0], Compute: mla.ComputeBF16},
					mla.Limits{Tokens: n, Seqs: n, Context: keys}, pool)
				require.NoError(t, err)
				cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 64, Width: width, Format: format, Pages: 2000})
				require.NoError(t, err)
				b := mla.Batch{Cache: cache, Offsets: []uint32{0}, LSE: make([]float32, n)}
				sparse := mla.SparseDecodeArgs{Seqs: n, Tokens: 1, Cache: cache, Stride: keys, LSE: make([]float32, n)}
				prefill := mla.PrefillArgs{Offsets: []uint32{0}, Keys: []uint32{0}, LSE: make([]float32, n)}
				var k, v []float32
				for i := range n {
					m := int(visible[i])
					s, err := cache.NewSeq()
					require.NoError(t, err)
					require.NoError(t, s.Reserve(m))
					require.NoError(t, s.WriteRows(0, 0, rows[:m*width]))
					require.NoError(t, s.Commit(m))
					b.Seqs, b.Offsets = append(b.Seqs, s), append(b.Offsets, uint32(i+1))
					list := make([]int32, keys)
					for j := range list {
						list[j] = -1
						if j < m {
							list[j] = s.Pages()[j/64]*64 + int32(j%64)
						}
					}
					sparse.Indices = append(sparse.Indices, list...)
					k = append(k, rows[:m*width]...)
					for j := range m {
						v = append(v, rows[j*width:][:r]...)
					}
					prefill.Offsets, prefill.Keys = append(prefill.Offsets, uint32(i+1)), append(prefill.Keys, uint32(len(v)/r))
				}
				kind := map[kvpaged.Format]string{kvpaged.F32: "f32", kvpaged.BF16: "bf16"}[format]
				got := make([]float32, len(out))
				to, from := mla.RowsF32(got), mla.RowsF32(q)
				for name, call := range map[string]func() ([]float32, error){
					"dense": func() ([]float32, error) { return b.LSE, core.Decode(context.Background(), to, from, b) },
					"lists": func() ([]float32, error) {
						return sparse.LSE, core.SparseDecode(context.Background(), to, from, &sparse)
					},
					"prefill": func() ([]float32, error) {
						return prefill.LSE, core.Prefill(nil, to, from, rowsOf(kind, k), rowsOf(kind, v), &prefill)
					},
				} {
					clear(got)
					gotLSE, err := call()
					require.NoError(t, err)
					if group != "bf16" { // has none
						gotLSE = lse
					}
					sameBits(t, answer{out: out, lse: lse}, answer{out: got, lse: gotLSE}, fmt.Sprintf("%s, %s, %v, %d workers", group, name, format, workers))
				}
				require.NoError(t, core.Close())
				require.NoError(t, cache.Close())
				require.NoError(t, pool.Close())
			}
		}
	}
}
