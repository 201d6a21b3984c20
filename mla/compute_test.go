package mla_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/mla"
)

func TestComputeNames(t *testing.T) {
	for a, name := range map[mla.Compute]string{mla.ComputeF32: "f32", mla.ComputeBF16: "bf16"} {
		require.Equal(t, name, a.String())
		got, err := mla.ParseCompute(name)
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	for _, name := range []string{"", "f16", "BF16", "Compute(2)"} {
		_, err := mla.ParseCompute(name)
		require.ErrorIs(t, err, mla.ErrConfig)
		require.ErrorContains(t, err, "f32, bf16")
	}
	require.Equal(t, "Compute(2)", mla.Compute(2).String())
	_, err := newCore(mla.CoreConfig{Heads: 1, Width: 4, V: 2, Scale: 1, Compute: 2}, mla.Limits{Tokens: 1, Seqs: 1, Context: 1}, nil)
	require.ErrorIs(t, err, mla.ErrConfig)
	require.ErrorContains(t, err, "Compute 2")
}
