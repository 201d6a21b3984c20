package kvpaged_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// TestPrefetch asks for rows that are there, that are not, and for none: a hint never fails and allocates nothing.
func TestPrefetch(t *testing.T) {
	for _, format := range []kvpaged.Format{kvpaged.BF16, kvpaged.V4_584} {
		c, err := kvpaged.New(kvpaged.Config{Layers: 2, PageTokens: 4, Width: 512, Format: format, Pages: 5})
		require.NoError(t, err)
		s, err := c.NewSeq()
		require.NoError(t, err)
		require.NoError(t, s.Reserve(10))
		require.NoError(t, s.Commit(10))
		v, err := s.Lease(1, 0)
		require.NoError(t, err)
		pool, err := c.Lease(1)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(10, func() {
			v.Prefetch(0, 10)
			v.Prefetch(3, 0)
			v.Prefetch(9, 1000)
			v.Prefetch(-3, 5)
			v.PrefetchAt([]int32{9, -1, 10, 0, 1 << 30})
			v.Prefetch(math.MinInt, 1)
			v.Prefetch(math.MinInt, math.MaxInt)
			v.Prefetch(2, math.MaxInt)
			v.Prefetch(math.MaxInt, math.MaxInt)
			pool.Prefetch([]int32{19, -1, 20, 0})
		}))
		v.Release()
		pool.Release()
		require.NoError(t, s.Free())
		require.NoError(t, c.Close())
	}
}

// TestLargePage: pages of more tokens than an int32 counts, whose memory nobody
// touches.
func TestLargePage(t *testing.T) {
	if testing.Short() {
		t.Skip("maps 4 GiB")
	}
	c := newCache(t, kvpaged.Config{Layers: 1, PageTokens: 1 << 32, Width: 1, Format: kvpaged.FP8Unit, Pages: 1})
	s := newSeq(t, c)
	require.NoError(t, s.Reserve(3))
	require.NoError(t, s.WriteRows(0, 0, []float32{1, 2, 3}))
	pool, err := c.Lease(0)
	require.NoError(t, err)
	pool.Prefetch([]int32{2, math.MaxInt32})
	got := make([]float32, 2)
	pool.Gather(got, 1, []int32{2, math.MaxInt32})
	require.Equal(t, []float32{3, 0}, got)
	pool.Release()
}
