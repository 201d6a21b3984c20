//go:build !lamina_heap

package mem

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// maxBytes is past what the system maps; it says no earlier.
const maxBytes = 1<<62 - 1

func alloc(n int) (mapping, error) {
	addr, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return mapping{}, err
	}
	return mapping{bytesAt(addr, n), virtualFree}, nil
}

func virtualFree(b []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(&b[0])), 0, windows.MEM_RELEASE)
}
