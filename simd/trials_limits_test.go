package simd_test

import (
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
)

var limitsTrials = map[string]trial{
	"FmaLoop": func(r *rand.Rand, class kerneltest.Class) []any {
		return []any{class.Make(r, 192), class.Value(r), class.Value(r), r.IntN(40)}
	},
	"XorWords": func(r *rand.Rand, _ kerneltest.Class) []any {
		x := make([]uint64, oneOf(r, lengths...))
		for i := range x {
			x[i] = r.Uint64()
		}
		return []any{x}
	},
	"Prefetch": func(r *rand.Rand, _ kerneltest.Class) []any {
		n, ld := oneOf(r, lengths...), oneOf(r, 0, 64, 1000)
		return []any{make([]byte, n), ld, n, oneOf(r, -1, 0, 1, 5)}
	},
}
