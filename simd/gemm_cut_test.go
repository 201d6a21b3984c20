package simd_test

import (
	"math"
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

// gemms are the terms from k0 to end of products of m rows of k activations by n outputs, by each of the Gemm kernels.
func gemms(x []float32, codes []byte, scale []float32, m, n, k, step int) map[string]func(y []float32, k0, end int) {
	ldc, lds := simd.Lanes*k, simd.Lanes*((k+step-1)/step)
	lifted := func(by float32) []float32 {
		to := make([]float32, len(x))
		simd.Lift(to, k, x, k, m, k, by)
		return to
	}
	words, halves, pairs := lifted(0x1p120), lifted(0x1p8), make([]uint16, len(x))
	simd.NarrowActBF16(pairs, x)
	return map[string]func(y []float32, k0, end int){
		"GemmE4M3": func(y []float32, k0, end int) {
			simd.GemmE4M3(y, n, words, k, codes, ldc, scale, lds, m, n, k0, end, step, 0)
		},
		"GemmE4M3Half": func(y []float32, k0, end int) {
			simd.GemmE4M3Half(y, n, halves, k, codes, ldc, scale, lds, m, n, k0, end, step, 0)
		},
		"GemmE4M3Pairs": func(y []float32, k0, end int) {
			simd.GemmE4M3Pairs(y, n, pairs, k, codes, ldc, scale, lds, m, n, k0, end, step)
		},
	}
}

// TestGemmCuts: products that are cut where pieces begin have the bits of whole ones.
func TestGemmCuts(t *testing.T) {
	r := kerneltest.Rand(7)
	const k = 1100
	ns, ms := []int{5, 16, 33, 64, 70}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if testing.Short() {
		ns, ms = []int{5, 33, 64}, []int{1, 3, 4, 8}
	}
	for _, n := range ns {
		for _, step := range []int{128, 300, k} {
			var cuts []int
			for cut := 4; cut < k; cut += 4 {
				if cut%256 == 0 || cut%step == 0 {
					cuts = append(cuts, cut)
				}
			}
			for _, m := range ms {
				x, scale := normal.Make(r, m*k), normal.Make(r, panelCount(n)*simd.Lanes*((k+step-1)/step))
				codes := make([]byte, panelCount(n)*simd.Lanes*k)
				for i := range codes {
					codes[i] = byte(r.IntN(0x7F) | r.IntN(2)<<7)
				}
				for name, gemm := range gemms(x, codes, scale, m, n, k, step) {
					want, y := make([]float32, m*n), make([]float32, m*n)
					gemm(want, 0, k)
					from := 0
					for i, cut := range append(cuts, k) {
						if cut == k || (i+m)%3 > 0 {
							gemm(y, from, cut)
							from = cut
						}
					}
					kerneltest.Equal(t, want, y, "%s, %d by %d, step %d", name, m, n, step)
				}
			}
		}
	}
}

// TestGemmZeros: a sum begins with +0, whatever y holds, and goes on from -0. The parts are 0, their scales negative.
func TestGemmZeros(t *testing.T) {
	const k, step = 8, 4
	minus0 := float32(math.Copysign(0, -1))
	fill := func(x []float32, v float32) []float32 {
		for i := range x {
			x[i] = v
		}
		return x
	}
	for m := 1; m <= 9; m++ {
		for n := 1; n <= 4*simd.Lanes+1; n++ {
			scale := fill(make([]float32, panelCount(n)*simd.Lanes*k/step), -1)
			for name, gemm := range gemms(fill(make([]float32, m*k), 1), make([]byte, panelCount(n)*simd.Lanes*k), scale, m, n, k, step) {
				y := fill(make([]float32, m*n), minus0)
				gemm(y, step, k)
				kerneltest.Equal(t, fill(make([]float32, m*n), minus0), y, "%s, %d by %d, from %d on", name, m, n, step)
				gemm(y, 0, k)
				kerneltest.Equal(t, make([]float32, m*n), y, "%s, %d by %d", name, m, n)
			}
		}
	}
}
