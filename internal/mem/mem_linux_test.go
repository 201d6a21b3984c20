//go:build !lamina_heap

package mem_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/mem"
)

func middle(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[len(b)/2])) }

func TestFreeUnmaps(t *testing.T) {
	b, err := mem.Alloc(64 << 20)
	require.NoError(t, err)
	addr := middle(b.Bytes())
	require.True(t, kerneltest.Mapped(t, addr))
	require.NoError(t, b.Free())
	require.False(t, kerneltest.Mapped(t, addr))
}

func TestDroppedBlockIsUnmapped(t *testing.T) {
	drop := func() uintptr {
		b, err := mem.Alloc(64 << 20)
		require.NoError(t, err)
		return middle(b.Bytes())
	}
	addr := drop()
	kerneltest.Unmapped(t, addr)
}
