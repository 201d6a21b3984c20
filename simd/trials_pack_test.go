package simd_test

import (
	"math"
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

var packTrials = map[string]trial{
	"PackRows": func(r *rand.Rand, class kerneltest.Class) []any {
		n, k := r.IntN(40), oneOf(r, lengths...)
		lds, ldd := rowsOf(r, k), rowsOf(r, simd.Lanes*k)
		dst := class.Make(r, extent(panelCount(n), ldd, simd.Lanes*k))
		return []any{dst, ldd, class.Make(r, extent(n, lds, k)), lds, n, k}
	},
	"Lift": func(r *rand.Rand, class kerneltest.Class) []any {
		m, k := r.IntN(8), oneOf(r, lengths...)
		ldx, ldd := rowsOf(r, k), rowsOf(r, k)
		by := float32(math.Ldexp(1, r.IntN(277)-149))
		x := class.Make(r, extent(m, ldx, k))
		if r.IntN(2) == 0 {
			return []any{x, ldx, x, ldx, m, k, by}
		}
		return []any{class.Make(r, extent(m, ldd, k)), ldd, x, ldx, m, k, by}
	},
}

// rowsOf is a stride of rows of k values.
func rowsOf(r *rand.Rand, k int) int { return k + r.IntN(4) }
