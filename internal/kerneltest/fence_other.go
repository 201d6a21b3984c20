//go:build !(linux || darwin || freebsd)

package kerneltest

import (
	"testing"
	"unsafe"
)

// fence is room for size bytes and 64 more, aligned to 8.
func fence(t testing.TB, size int) (room []byte, free func()) {
	t.Helper()
	words := make([]uint64, (size+7)/8+8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words)), func() {}
}
