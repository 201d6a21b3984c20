package simd

import (
	"fmt"
	"math/bits"
)

// short reports whether rows of n elements, stride apart, do not fit into have elements from the first of them on: also
// where a number is negative, or a distance too large for an int.
func short(have, rows, stride, n int) bool {
	if rows <= 0 || n <= 0 {
		return rows < 0 || n < 0
	}
	hi, last := bits.Mul64(uint64(rows-1), uint64(stride)) // a negative stride is a huge one
	return hi != 0 || n > have || last > uint64(have-n)
}

// tooShort is a broken promise of the packages above: assembly would go past the end of the slice.
func tooShort(kernel, name string, have, rows, stride, n int) {
	panic(fmt.Sprintf("simd: %s: %s has %d elements, want (%d-1)*%d + %d", kernel, name, have, rows, stride, n))
}

// unfit is a broken promise of the packages above about the numbers of a call.
func unfit(kernel, needs string) { panic(fmt.Sprintf("simd: %s wants %s", kernel, needs)) }
