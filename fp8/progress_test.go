package fp8_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
)

// TestProgress: packing tells of every code once, panel by panel.
func TestProgress(t *testing.T) {
	const n, k, batch = 37, 11, 3
	var all []fp8.Matrix
	for range batch {
		m, err := fp8.PlainF32(n, k, make([]float32, n*k))
		require.NoError(t, err)
		all = append(all, m)
	}
	var seen []int
	p, err := fp8.Pack(all, fp8.PackOptions{Progress: func(codes int) { seen = append(seen, codes) }})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	one := []int{16 * k, 16 * k, 5 * k}
	require.Equal(t, append(append(append([]int{}, one...), one...), one...), seen)
}
