package mla_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/mla"
)

// TestWorkspaceShared runs layers of different geometry, and cores, in turn in one workspace, which is
// sized for the largest: the bits are those of a workspace of their own, in any order.
func TestWorkspaceShared(t *testing.T) {
	big, little := small(), light([]int{70, 3}, []int{2, 9})
	pair := small()
	pair.cfg.Compute, pair.format = mla.ComputeBF16, big.format
	a, b, c := big.make(t), little.make(t), pair.make(t)
	lim := mla.Limits{Tokens: 20, Seqs: 4, Context: 200}
	pool := mla.NewPool(3)
	defer func() { require.NoError(t, pool.Close()) }()
	shared, err := mla.NewWorkspace(lim, pool, a.layer_, c.layer_) // b fits, though it is not named
	require.NoError(t, err)
	for range 2 {
		for _, form := range bothForms {
			for _, m := range []*made{a, b, c, b} {
				want := m.forward(t, m.plan(t, lim, nil), form)
				shared.Poison()
				got := m.forward(t, &bound{shared, m.layer_, nil}, form)
				sameBits(t, want, got, form.String())
			}
		}
	}
	require.NoError(t, shared.Close())

	tight, err := mla.NewWorkspace(lim, nil, b.layer_)
	require.NoError(t, err)
	err = a.layer_.Forward(context.Background(), tight, mla.Rows{}, mla.Rows{}, mla.Rows{}, a.batch())
	require.ErrorIs(t, err, mla.ErrLimit)
	assert.Regexp(t, `has \d+ bytes.* needs \d+`, err)
	require.NoError(t, tight.Close())
	err = b.layer_.Forward(context.Background(), tight, mla.Rows{}, mla.Rows{}, mla.Rows{}, b.batch())
	require.ErrorIs(t, err, mla.ErrClosed)

	for _, of := range [][]mla.Runner{nil, {nil}, {(*mla.Layer)(nil)}, {new(mla.Block)}, {new(mla.Core)}} {
		_, err = mla.NewWorkspace(lim, nil, of...)
		assert.Error(t, err)
	}
}

// TestLongLists: a list may have as many entries as the workspace's context, and 8,192.
func TestLongLists(t *testing.T) {
	const n = 8193
	core, err := mla.NewCore(mla.CoreConfig{Heads: 1, Width: 3, V: 2, Scale: 1})
	require.NoError(t, err)
	args := &mla.SparsePrefillArgs{Indices: make([]int32, n), Stride: n}
	out, q, kv := mla.RowsF32(make([]float32, 2)), mla.RowsF32(make([]float32, 3)), mla.RowsF32([]float32{1, 2, 3})
	for _, context := range []int{100, n} {
		ws, err := mla.NewWorkspace(mla.Limits{Tokens: 1, Seqs: 1, Context: context}, nil, core)
		require.NoError(t, err)
		err = core.SparsePrefill(nil, ws, out, q, kv, args)
		if context < n {
			require.ErrorIs(t, err, mla.ErrLimit)
			require.ErrorContains(t, err, "Context must be 8193")
		} else {
			require.NoError(t, err)
			require.Equal(t, []float32{1, 2}, out.F32())
		}
		require.NoError(t, ws.Close())
	}
}

// TestWorkspaceBytes is the memory of one workspace for every layer of DeepSeek-V3 on 16 workers.
func TestWorkspaceBytes(t *testing.T) {
	cfg := mla.Config{Heads: 128, Nope: 128, Rope: 64, V: 128, Latent: 512, Scale: 0.135}
	plain := func(rows, cols int) fp8.Matrix {
		m, err := fp8.New(fp8.ElemE4M3, rows, cols, make([]byte, rows*cols), fp8.ScalesF32([]float32{1}), rows, cols)
		require.NoError(t, err)
		return m
	}
	if testing.Short() {
		t.Skip("packs a whole block of weights")
	}
	block, err := mla.NewBlock(mla.BlockConfig{Core: cfg, Hidden: 7168, QLora: 1536}, mla.BlockWeights{
		QA: plain(1536, 7168), QGamma: mla.RowsF32(make([]float32, 1536)), QB: plain(128*192, 1536), KVA: plain(576, 7168),
		O: plain(7168, 128*128), Core: mla.Weights{KVB: plain(128*256, 512), Gamma: mla.RowsF32(make([]float32, 512))},
	})
	require.NoError(t, err)
	layer, err := mla.New(cfg, mla.Weights{KVB: plain(128*256, 512), Gamma: mla.RowsF32(make([]float32, 512))})
	require.NoError(t, err)
	pool := mla.NewPool(16)
	for _, c := range []struct {
		of   mla.Runner
		most int64
	}{{layer, 155 << 20}, {block, 240 << 20}} {
		ws, err := mla.NewWorkspace(mla.Limits{Tokens: 512, Seqs: 64, Context: 32768}, pool, c.of)
		require.NoError(t, err)
		t.Logf("%T: %.1f MiB", c.of, float64(ws.Bytes())/(1<<20))
		assert.LessOrEqual(t, ws.Bytes(), c.most)
		require.NoError(t, ws.Close())
	}
	require.NoError(t, pool.Close())
	require.NoError(t, layer.Close())
	require.NoError(t, block.Close())
}
