package fp8_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
)

// TestMulRefusesOverlap: a result written over its own activation would hang on
// the order of the work.
func TestMulRefusesOverlap(t *testing.T) {
	m, err := fp8.PlainF32(4, 4, make([]float32, 16))
	require.NoError(t, err)
	p, err := fp8.Pack([]fp8.Matrix{m}, fp8.PackOptions{})
	require.NoError(t, err)
	x := make([]float32, 7)
	require.ErrorIs(t, p.Mul(nil, nil, x[3:], fp8.RowsF32(x[:4]), fp8.Shape{M: 1}, fp8.Product{}), fp8.ErrShape)
	require.NoError(t, p.Mul(nil, nil, make([]float32, 4), fp8.RowsF32(x[:4]), fp8.Shape{M: 1}, fp8.Product{}))
	require.NoError(t, p.Close())
}
