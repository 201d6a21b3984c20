package mla_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/mla"
)

func TestArithmeticNames(t *testing.T) {
	for a, name := range map[mla.Arithmetic]string{mla.F32: "f32", mla.BF16: "bf16"} {
		require.Equal(t, name, a.String())
		got, err := mla.ParseArithmetic(name)
		require.NoError(t, err)
		require.Equal(t, a, got)
		require.Equal(t, name, fp8.Compute(a).String(), "that of the products")
	}
	for _, name := range []string{"", "f16", "BF16", "Arithmetic(2)"} {
		_, err := mla.ParseArithmetic(name)
		require.ErrorIs(t, err, mla.ErrConfig)
		require.ErrorContains(t, err, "f32, bf16")
	}
	require.Equal(t, "Arithmetic(2)", mla.Arithmetic(2).String())
	_, err := mla.NewCore(mla.CoreConfig{Heads: 1, Width: 4, V: 2, Scale: 1, Arithmetic: 2}, mla.Limits{Tokens: 1, Seqs: 1, Context: 1}, nil)
	require.ErrorIs(t, err, mla.ErrConfig)
	require.ErrorContains(t, err, "Arithmetic 2")
}
