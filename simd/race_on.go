//go:build race && (amd64 || arm64) && !purego

package simd

import (
	"runtime"
	"unsafe"
)

const raceEnabled = true

// raceTell tells the race detector what assembly, which it does not see, reads or writes: rows of n elements.
func raceTell[T any](x []T, rows, stride, n int, write bool) {
	if len(x) == 0 || n <= 0 {
		return
	}
	var zero T
	for i := range rows {
		p, size := noEscape(unsafe.Pointer(&x[i*stride])), n*int(unsafe.Sizeof(zero))
		if write {
			runtime.RaceWriteRange(p, size)
		} else {
			runtime.RaceReadRange(p, size)
		}
	}
}

// noEscape is p, hidden from the compiler, which would move every array that a kernel is given to the heap: tests that
// count allocations hold for a race build too. The detector keeps no address.
func noEscape(p unsafe.Pointer) unsafe.Pointer {
	address := uintptr(p)
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
