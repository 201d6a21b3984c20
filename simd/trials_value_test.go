package simd_test

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lamina-ml/lamina/internal/kerneltest"
)

var valueTrials = map[string]trial{
	"ValueTile":       func(r *rand.Rand, class kerneltest.Class) []any { return valueTrial(r, class, false) },
	"ValueTileMasked": func(r *rand.Rand, class kerneltest.Class) []any { return valueTrial(r, class, true) },
	"ValueTileCausal": causalTrial,
}

// causalTrial is valueTrial with a staircase, whose first row sees some keys, none or all.
func causalTrial(r *rand.Rand, class kerneltest.Class) []any {
	args := valueTrial(r, class, false)
	p, ldp, keys, n := args[2].([]float32), args[3].(int), args[7].(int), args[8].(int)
	seen := oneOf(r, 0, 1, 1, r.IntN(keys+1), r.IntN(keys+1), keys, keys+3)
	for key := range keys {
		for j := range n {
			if at := key*ldp + j; key >= seen+j {
				p[at] = float32(math.Copysign(0, -1))
			} else if math.Float32bits(p[at]) == 1<<31 {
				p[at] = 0
			}
		}
	}
	return append(args, seen)
}

// valueTrial draws rows that are cut into every tile, and strips of every width.
func valueTrial(r *rand.Rand, class kerneltest.Class, masked bool) []any {
	const most = 60_000 // fma of a call
	keys, n, cols := 0, 0, 0
	for again := true; again; again = keys*n*cols > most {
		keys = oneOf(r, 0, 1, 2, 3, 4, 5, 8, r.IntN(65), r.IntN(65), 64)
		n = oneOf(r, r.IntN(4), r.IntN(21), r.IntN(21), r.IntN(21), 32, 64, 100, 128)
		cols = oneOf(r, lengths...)
	}
	ldo, ldp, ldv := cols+r.IntN(20), n+r.IntN(20), cols+r.IntN(20)
	p := class.Make(r, extent(keys, ldp, n))
	if r.IntN(2) == 0 { // as probabilities are
		for i := range p {
			p[i] = float32(math.Abs(float64(p[i])))
		}
	}
	if masked {
		hide(r, p, ldp, keys, n)
	}
	o, v := class.Make(r, extent(n, ldo, cols)), class.Make(r, extent(keys, ldv, cols))
	return []any{o, ldo, p, ldp, v, ldv, alphas(r, class, n), keys, n, cols}
}

// alphas are factors of n rows: none, all 1, some 1, or any.
func alphas(r *rand.Rand, class kerneltest.Class, n int) []float32 {
	some := class.Make(r, n)
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		return slices.Repeat([]float32{1}, n)
	case 2:
		for j := range some {
			if r.IntN(8) > 0 {
				some[j] = 1
			}
		}
	}
	return some
}

// hide masks places of a tile of probabilities: below a staircase, whole keys, or any.
func hide(r *rand.Rand, p []float32, ldp, keys, n int) {
	hidden := [...]func(key, j int) bool{
		func(key, j int) bool { return false },
		func(key, j int) bool { return key > j },
		func(key, j int) bool { return key > 4*j || key < j },
		func(key, j int) bool { return key%8 >= 3 },
		func(key, j int) bool { return r.IntN(2) == 0 },
		func(key, j int) bool { return r.IntN(50) == 0 },
		func(key, j int) bool { return r.IntN(50) > 0 },
	}[r.IntN(7)]
	for key := range keys {
		for j := range n {
			if hidden(key, j) {
				p[key*ldp+j] = float32(math.Copysign(0, -1))
			}
		}
	}
}
