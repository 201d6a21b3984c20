package simd_test

import (
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

var gemmTrials = map[string]trial{
	"CopyRows": func(r *rand.Rand, class kerneltest.Class) []any {
		rows, cols := r.IntN(5), oneOf(r, lengths...)
		ldd, lds, bypass := rowsOf(r, cols), rowsOf(r, cols), r.IntN(2)
		if bypass == 1 && r.IntN(2) == 0 {
			cols += -cols & 15 // whole lines
			ldd, lds = cols, cols+16*r.IntN(2)
		}
		return []any{make([]float32, extent(rows, ldd, cols)), ldd, class.Make(r, extent(rows, lds, cols)), lds, rows, cols, bypass}
	},
	"GemmE4M3":     gemmTrial(0x1p120),
	"GemmE4M3Half": gemmTrial(0x1p8),
}

// gemmTrial draws products of every tile and tail, with pieces that end at a step, at 256, at both, and with k, whole
// ones and those that go on from where a piece begins, or from anywhere. by is what activations are lifted by; what is
// then not finite stays, as a body must take anything.
func gemmTrial(by float32) trial {
	return func(r *rand.Rand, class kerneltest.Class) []any {
		m, n := r.IntN(14), r.IntN(70)
		if r.IntN(4) == 0 {
			m = 14 + r.IntN(7)
		}
		k := 4 * (1 + r.IntN(20))
		switch r.IntN(8) {
		case 0:
			n += 70
		case 1:
			m, k = r.IntN(5), 4*(60+r.IntN(100))
		}
		step := 4 * (1 + r.IntN(20))
		if r.IntN(3) == 0 {
			step = oneOf(r, 128, 300, 512, 4*k)
		}
		k0 := 0
		switch r.IntN(4) {
		case 0:
			k0 = 4 * r.IntN(k/4)
		case 1:
			k0 = oneOf(r, 256, step) * r.IntN(3)
		}
		if k0 >= k {
			k0 = 0
		}
		groups := (k + step - 1) / step
		ldy, ldx := n+r.IntN(9), k+r.IntN(9)
		bypass := r.IntN(3) & 1
		if bypass == 1 && r.IntN(2) == 0 {
			n += -n & 15 // whole lines
			ldy = n + 16*r.IntN(2)
		}
		ldc, lds := 16*k+r.IntN(3), 16*groups+r.IntN(3)

		x := class.Make(r, extent(m, ldx, k))
		for i := range x {
			x[i] *= by
		}
		codes := make([]byte, extent(panelCount(n), ldc, k*simd.Lanes))
		for i := range codes {
			for codes[i] = byte(r.Uint32()); codes[i]&0x7F == 0x7F; {
				codes[i] = byte(r.Uint32())
			}
		}
		scale := class.Make(r, extent(panelCount(n), lds, groups*simd.Lanes))
		y := class.Make(r, extent(m, ldy, n)) // which whole products do not read
		return []any{y, ldy, x, ldx, codes, ldc, scale, lds, m, n, k0, k, step, bypass}
	}
}
