package kvpaged_test

import (
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
			pool.Prefetch([]int32{19, -1, 20, 0})
		}))
		v.Release()
		pool.Release()
		require.NoError(t, s.Free())
		require.NoError(t, c.Close())
	}
}
