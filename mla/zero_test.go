package mla_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/mla"
)

// TestZeroValues: a value that no constructor made, or none at all, is an error of every method that has one, and never
// a panic. No type is forgotten.
func TestZeroValues(t *testing.T) {
	forTests := map[string]struct{}{"Poison": {}}
	types := []kerneltest.Zero{
		{Value: new(mla.Block), Sentinel: mla.ErrClosed},
		{Value: new(mla.BlockPlan), Sentinel: mla.ErrClosed},
		{Value: new(mla.Core), Sentinel: mla.ErrClosed, Except: forTests},
		{Value: new(mla.Layer), Sentinel: mla.ErrClosed},
		{Value: new(mla.Plan), Sentinel: mla.ErrClosed, Except: forTests},
	}
	with := kerneltest.TypesWithErrors(t, ".")
	require.True(t, with["GraphArgs"])
	delete(with, "GraphArgs") // TestZeroGraphArgs: nothing makes them but the caller
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
		new(mla.Arithmetic), new(mla.ScaleDtype), new(mla.Fingerprint),
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
	blockPlan, err := m.block.Plan(lim, pool)
	require.NoError(t, err)
	plan, err := layer.layer_.Plan(lim, pool)
	require.NoError(t, err)
	core, err := mla.NewCore(mla.CoreConfig{Heads: 1, Width: 2, V: 1, Scale: 1}, lim, pool)
	require.NoError(t, err)
	closers := []interface{ Close() error }{blockPlan, plan, core, m.block, layer.layer_, pool, new(mla.GraphArgs)}
	for _, c := range closers {
		require.NoError(t, c.Close())
	}
	for _, c := range closers {
		kerneltest.Closed(t, c)
	}
}
