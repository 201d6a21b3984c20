//go:build lamina_heap

package mem_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/mem"
)

// TestBlocksAreOnTheHeap shows that the tag does what it is for, and that the collector takes back
// what was freed and what was dropped.
func TestBlocksAreOnTheHeap(t *testing.T) {
	const n = 64 << 20
	before := heap()
	freed, err := mem.Alloc(n)
	require.NoError(t, err)
	dropped, err := mem.Alloc(n)
	require.NoError(t, err)
	assert.Greater(t, heap()-before, int64(2*n-n/2))
	runtime.KeepAlive(dropped)
	require.NoError(t, freed.Free())
	assert.Less(t, heap()-before, int64(n/2))
	runtime.KeepAlive(freed)
}

// heap is the bytes that are in use after a collection.
func heap() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}
