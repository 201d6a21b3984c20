//go:build lamina_heap || (!linux && !darwin && !freebsd && !windows)

package mem

import "unsafe"

// maxBytes keeps a mistaken size an error: the heap of js/wasm ends at 4 GiB,
// and a slice that does not fit ends the program.
const maxBytes = 1<<31 - 1

func alloc(n int) (mapping, error) {
	return mapping{bytes: alignedSlice(n)}, nil
}

// alignedSlice returns n zeroed bytes of the heap whose first byte is aligned.
func alignedSlice(n int) []byte {
	b := make([]byte, n+Align-1)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (Align - 1))
	return b[skip : skip+n : skip+n]
}
