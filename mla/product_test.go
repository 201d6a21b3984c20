package mla_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// headMatrices are UK, turned, and UV of each head, and K, of which each head has a part.
func headMatrices(t *testing.T, m *made) (uk, k, uv []fp8.Matrix) {
	t.Helper()
	c := m.cfg
	for h := range c.Heads {
		at := h * (c.Nope + c.V)
		key, err := m.kvb.Slice(at, at+c.Nope)
		require.NoError(t, err)
		value, err := m.kvb.Slice(at+c.Nope, at+c.Nope+c.V)
		require.NoError(t, err)
		uk, k, uv = append(uk, key.Transpose()), append(k, key), append(uv, value)
	}
	return uk, k, uv
}

// productOf multiplies rows of each head, [rows][H][k], by its matrix, in an arithmetic, with
// quantised activations if group is not 0.
func productOf(t *testing.T, a mla.Compute, ms []fp8.Matrix, step, group int, x []float32, rows int) []float32 {
	t.Helper()
	w, err := fp8.Pack(ms, fp8.PackOptions{Step: step})
	require.NoError(t, err)
	defer w.Close()
	heads := len(ms)
	y := make([]float32, rows*heads*w.N())
	s := fp8.Shape{M: rows, LdX: heads * w.K(), StrideX: w.K(), LdY: heads * w.N(), StrideY: w.N()}
	err = w.Mul(context.Background(), nil, y, fp8.RowsF32(x), s, fp8.Product{Compute: fp8.Compute(a), Group: group})
	require.NoError(t, err)
	return y
}

// TestLayerIsItsParts holds a layer without rotation, in both computes and forms, to products of
// package fp8 and attention alone in the same arithmetic, bit for bit.
func TestLayerIsItsParts(t *testing.T) {
	type kind struct {
		name   string
		weight weightKind
		step   int // of UK
		group  int // of quantised activations
	}
	kinds := []kind{
		{"steps of 8", weightKind{fp8.ElemE4M3, 24, 40}, 8, 0},
		{"blocks of 16", weightKind{fp8.ElemE4M3, 16, 20}, 16, 0},
		{"E5M2", weightKind{fp8.ElemE5M2, 16, 16}, 16, 0},
		{"per tensor", weightKind{fp8.ElemE4M3, 0, 0}, 16, 0},
		{"bf16", weightKind{elem: fp8.ElemBF16}, 0, 0},
		{"f16", weightKind{elem: fp8.ElemF16}, 0, 0},
		{"f32", weightKind{elem: fp8.ElemF32}, 0, 0},
		{"quantised activations", weightKind{fp8.ElemE4M3, 16, 20}, 16, 16},
	}
	for _, kind := range kinds {
		for _, a := range []mla.Compute{mla.ComputeF32, mla.ComputeBF16} {
			w := small()
			w.cfg = mla.Config{Heads: 3, Nope: 48, V: 32, Latent: 80, Scale: 0.17, Compute: a}
			w.weight, w.format, w.cached, w.fresh, w.seed = kind.weight, kvpaged.BF16, []int{70}, []int{5}, 77
			if kind.group > 0 {
				w.cfg.ActQuant, w.cfg.ActBlockQ, w.cfg.ActBlockLatent = mla.ActDynamic, kind.group, kind.group
			}
			m := w.make(t)
			c, keys := m.cfg, 75
			lim := mla.Limits{Tokens: keys, Seqs: 1, Context: keys}
			uk, k, uv := headMatrices(t, m)

			t.Run(kind.name+"/"+a.String()+"/absorbed", func(t *testing.T) {
				got := m.forward(t, m.plan(t, m.limits(), nil), mla.FormAbsorbed)
				core, err := newCore(mla.CoreConfig{Heads: c.Heads, Width: c.Latent, V: c.Latent, Scale: c.Scale, Compute: a}, lim, nil)
				require.NoError(t, err)
				defer core.Close()
				rows := m.stored(t, 0)
				cache, seq := cacheOf(t, rows, c.Latent)
				defer cache.Close()
				q := productOf(t, a, uk, kind.step, kind.group, m.q, m.tokens)
				latent := make([]float32, m.tokens*c.Heads*c.Latent)
				require.NoError(t, core.Decode(context.Background(), mla.RowsF32(latent), mla.RowsF32(q),
					mla.Batch{Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: m.offsets}))
				kerneltest.Equal(t, productOf(t, a, uv, 0, kind.group, latent, m.tokens), got.out, "output")
			})

			t.Run(kind.name+"/"+a.String()+"/expanded", func(t *testing.T) {
				got := m.forward(t, m.plan(t, m.limits(), nil), mla.FormExpanded)
				core, err := newCore(mla.CoreConfig{Heads: c.Heads, Width: c.Nope, V: c.V, Scale: c.Scale, Compute: a}, lim, nil)
				require.NoError(t, err)
				defer core.Close()
				// The latent rows once for each head.
				rows := m.stored(t, 0)
				var each []float32
				for j := range keys {
					for range c.Heads {
						each = append(each, rows[j*c.Latent:][:c.Latent]...)
					}
				}
				key := productOf(t, a, k, 0, kind.group, each, keys)
				value := productOf(t, a, uv, 0, kind.group, each, keys)
				out := make([]float32, m.tokens*c.Heads*c.V)
				require.NoError(t, core.Prefill(context.Background(), mla.RowsF32(out), mla.RowsF32(m.q), mla.RowsF32(key), mla.RowsF32(value),
					&mla.PrefillArgs{Offsets: m.offsets, Keys: []uint32{0, uint32(keys)}, LdK: c.Heads * c.Nope, StrideK: c.Nope, LdV: c.Heads * c.V, StrideV: c.V}))
				kerneltest.Equal(t, out, got.out, "output")
			})
		}
	}
}

// cacheOf is one sequence of bf16 rows.
func cacheOf(t *testing.T, rows []float32, width int) (*kvpaged.Cache, *kvpaged.Seq) {
	t.Helper()
	n := len(rows) / width
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 16, Width: width, Format: kvpaged.BF16, Pages: (n + 15) / 16})
	require.NoError(t, err)
	s, err := cache.NewSeq()
	require.NoError(t, err)
	require.NoError(t, s.Reserve(n))
	require.NoError(t, s.WriteRows(0, 0, rows))
	require.NoError(t, s.Commit(n))
	return cache, s
}
