package simd_test

import (
	"math"
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

// TestPartAddKeepsMinusZero shows that no width of the last panel loses the sign of a zero, as a lane that is added to
// twice would: a part that underflows to -0, and -0.
func TestPartAddKeepsMinusZero(t *testing.T) {
	minus0 := float32(math.Copysign(0, -1))
	const m, k = 7, 1
	x, b := make([]float32, m*k), make([]float32, 2*simd.Lanes*k)
	for i := range x {
		x[i] = -math.SmallestNonzeroFloat32
	}
	for i := range b {
		b[i] = math.SmallestNonzeroFloat32
	}
	for n := 1; n <= 2*simd.Lanes; n++ {
		y, want := make([]float32, m*n), make([]float32, m*n)
		for i := range y {
			y[i], want[i] = minus0, minus0
		}
		simd.PartAdd(y, n, x, k, b, simd.Lanes*k, m, n, k)
		kerneltest.Equal(t, want, y, "%d outputs", n)
	}
}
