//go:build !lamina_heap

package kvpaged_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/kvpaged"
)

// TestDroppedCacheGivesItsMemoryBack drops a cache and its sequence unclosed.
func TestDroppedCacheGivesItsMemoryBack(t *testing.T) {
	drop := func() uintptr {
		c, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 1024, Width: 1024, Format: kvpaged.F32, Pages: 16})
		require.NoError(t, err)
		s, err := c.NewSeq()
		require.NoError(t, err)
		require.NoError(t, s.Reserve(8*1024))
		require.NoError(t, s.Commit(8*1024))
		v, err := s.Lease(0, 0)
		require.NoError(t, err)
		return uintptr(unsafe.Pointer(&v.Row(7 * 1024)[0]))
	}
	addr := drop()
	kerneltest.Unmapped(t, addr)
}
