//go:build !linux && !darwin && !freebsd && !windows

package mem

import (
	"errors"
	"os"
	"unsafe"
)

// maxBytes keeps a mistaken size an error: the heap of js/wasm ends at 4 GiB,
// and a slice that does not fit ends the program.
const maxBytes = 1<<31 - 1

func alloc(n int) (mapping, error) {
	return mapping{bytes: alignedSlice(n)}, nil
}

func mapFile(*os.File, int) (mapping, error) { return mapping{}, errors.ErrUnsupported }

// alignedSlice returns n zeroed bytes of the heap whose first byte is aligned.
func alignedSlice(n int) []byte {
	b := make([]byte, n+Align-1)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (Align - 1))
	return b[skip : skip+n : skip+n]
}
