package mla_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// TestZeroValues: a value that no constructor made, or none at all, is an error of every method that has one, and never
// a panic. No type is forgotten.
func TestZeroValues(t *testing.T) {
	forTests := map[string]struct{}{"Poison": {}}
	types := []kerneltest.Zero{
		{Value: new(mla.Block), Sentinel: mla.ErrClosed},
		{Value: new(mla.Core), Sentinel: mla.ErrClosed},
		{Value: new(mla.Layer), Sentinel: mla.ErrClosed},
		{Value: new(mla.Workspace), Sentinel: mla.ErrClosed, Except: forTests},
	}
	with := kerneltest.TypesWithErrors(t, ".")
	require.True(t, with["GraphArgs"])
	delete(with, "GraphArgs") // TestZeroGraphArgs: nothing makes them but the caller
	delete(with, "SeqError")  // is one, which says what it was given
	for _, z := range types {
		name := reflect.TypeOf(z.Value).Elem().Name()
		require.True(t, with[name], name)
		delete(with, name)
	}
	require.Empty(t, with, "types whose zero values nobody looks at")
	kerneltest.ZeroValues(t, types...)
	kerneltest.ZeroValues(t, kerneltest.Zero{Value: new(mla.Pool)}) // it runs all in the caller
	kerneltest.ZeroValues(t, kerneltest.Zero{Value: new(mla.Scales), Except: map[string]struct{}{"Float32": {}}})
	for _, v := range []any{
		new(mla.Config), new(mla.Weights), new(mla.BlockWeights), new(mla.Mask), new(mla.MaskKind), new(mla.Form),
		new(mla.Compute), new(mla.ScaleDtype), new(mla.Fingerprint),
	} {
		kerneltest.ZeroValues(t, kerneltest.Zero{Value: v})
	}
}

func TestZeroGraphArgs(t *testing.T) {
	require.NoError(t, new(mla.GraphArgs).Close(), "nothing is prepared yet")
	require.ErrorIs(t, mla.PrefillDecodeGraphFP8(context.Background(), new(mla.GraphArgs)), mla.ErrConfig)
	require.ErrorIs(t, mla.PrefillDecodeGraphFP8(context.Background(), nil), mla.ErrConfig)
	require.ErrorIs(t, (*mla.GraphArgs)(nil).Close(), mla.ErrConfig)
}

// TestZeroPool: what is made on a zero pool, or on none, works in the caller.
func TestZeroPool(t *testing.T) {
	m := small().make(t)
	want := m.forward(t, m.plan(t, m.limits(), nil), mla.FormAuto)
	sameBits(t, want, m.forward(t, m.plan(t, m.limits(), new(mla.Pool)), mla.FormAuto), "zero pool")
	require.NoError(t, new(mla.Pool).Close())
	require.Equal(t, 1, new(mla.Pool).Workers())
}

// TestClosedValues: what is closed panics no more than a zero value does.
func TestClosedValues(t *testing.T) {
	m := lightBlock([]int{3}, []int{1}).make(t)
	layer := small().make(t)
	pool := mla.NewPool(2)
	lim := mla.Limits{Tokens: 2, Seqs: 1, Context: 5}
	ws, err := mla.NewWorkspace(lim, pool, m.block, layer.layer_)
	require.NoError(t, err)
	closers := []interface{ Close() error }{ws, m.block, layer.layer_, pool, new(mla.GraphArgs)}
	for _, c := range closers {
		require.NoError(t, c.Close())
	}
	for _, c := range closers {
		kerneltest.Closed(t, c)
	}
}

// TestZeroArguments: caches, sequences and weights that nobody made are errors of the calls that are given them.
func TestZeroArguments(t *testing.T) {
	m := small().make(t)
	p := m.plan(t, m.limits(), nil)
	for name, spoil := range map[string]func(b *mla.Batch){
		"cache":               func(b *mla.Batch) { b.Cache = new(kvpaged.Cache) },
		"sequence":            func(b *mla.Batch) { b.Seqs = []*kvpaged.Seq{new(kvpaged.Seq), b.Seqs[1], b.Seqs[2], b.Seqs[3]} },
		"cache and sequences": func(b *mla.Batch) { b.Cache, b.Seqs, b.Offsets = new(kvpaged.Cache), nil, []uint32{0} },
		"second cache":        func(b *mla.Batch) { b.Sparse = &mla.Sparse{Extra: &mla.Extra{Cache: new(kvpaged.Cache)}} },
		"no second cache":     func(b *mla.Batch) { b.Sparse = &mla.Sparse{Extra: &mla.Extra{}} },
	} {
		a := m.args()
		spoil(&a.b)
		require.ErrorIs(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b), mla.ErrShape, name)
	}
	core, err := newCore(mla.CoreConfig{Heads: 1, Width: 2, V: 1, Scale: 1}, mla.Limits{Tokens: 1, Seqs: 1, Context: 1}, nil)
	require.NoError(t, err)
	defer core.Close()
	none := mla.Rows{}
	require.ErrorIs(t, core.SparseDecode(nil, none, none, &mla.SparseDecodeArgs{Cache: new(kvpaged.Cache)}), mla.ErrShape)
	require.ErrorIs(t, core.Decode(nil, none, none, mla.Batch{}), mla.ErrShape)
	require.NoError(t, core.Prefill(nil, none, none, none, none, nil), "nothing is asked for")
	require.NoError(t, core.SparsePrefill(nil, none, none, none, new(mla.SparsePrefillArgs)), "nothing is asked for")

	_, err = newCore(mla.CoreConfig{}, mla.Limits{}, nil)
	require.ErrorIs(t, err, mla.ErrConfig)
	_, err = mla.New(mla.Config{}, mla.Weights{})
	require.ErrorIs(t, err, mla.ErrConfig)
	_, err = mla.New(small().cfg, mla.Weights{Gamma: rowsOf("f32", m.gammas), UV: make([]fp8.Matrix, 3), UK: make([]fp8.Matrix, 3)})
	require.ErrorIs(t, err, mla.ErrWeights)
	_, err = mla.NewBlock(mla.BlockConfig{}, mla.BlockWeights{})
	require.ErrorIs(t, err, mla.ErrConfig)
	_, err = mla.NewBlock(lightBlock([]int{1}, []int{1}).make(t).block.Config(), mla.BlockWeights{})
	require.ErrorIs(t, err, mla.ErrWeights)
}
