package simd_test

import (
	"math"
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
)

var softmaxTrials = map[string]trial{
	"SoftmaxTile": softmaxTrial,
}

var (
	inf    = float32(math.Inf(1))
	negInf = float32(math.Inf(-1))
	nan    = float32(math.NaN())
)

// softmaxTrial draws tiles that rows see in whole, in part and not at all, with scores of -Inf in some.
func softmaxTrial(r *rand.Rand, class kerneltest.Class) []any {
	keys, n := oneOf(r, 0, 1, 2, 3, 4, 5, 7, 8, 11, 16, 31, 62, 63, 64), oneOf(r, 0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 37, 48)
	lds := n + oneOf(r, 0, 0, 1, 5, 16)
	s := class.Make(r, extent(keys, lds, n))
	if edges := r.IntN(2) == 0; edges && n > 0 {
		for key := range keys {
			sprinkle(r, s[key*lds:][:n])
		}
	}
	lo, hi := ranges(r, keys, n)
	m, l := class.Make(r, n), class.Make(r, n)
	if r.IntN(3) == 0 { // a first tile
		for j := range m {
			m[j], l[j] = negInf, 0
		}
	}
	sprinkle(r, m)
	sprinkle(r, l)
	if r.IntN(2) == 0 {
		for j := range l {
			l[j] = float32(math.Abs(float64(l[j])))
		}
	}
	scale := [...]float32{1, 0.0721687824, -0.5, 3, 0, class.Value(r)}[r.IntN(6)]
	return []any{s, lds, keys, n, lo, hi, scale, m, l, class.Make(r, n)}
}

// sprinkle leaves most slices alone, and puts some or many edge values into others.
func sprinkle(r *rand.Rand, x []float32) {
	odds := oneOf(r, 0, 0, 0, 0, 0, 32, 4, 1)
	edges := [...]float32{negInf, negInf, negInf, negInf, inf, nan, 0, float32(math.Copysign(0, -1))}
	among := oneOf(r, 1, 4, len(edges))
	for i := range x {
		if odds > 0 && r.IntN(odds) == 0 {
			x[i] = edges[r.IntN(among)]
		}
	}
}

// ranges are the keys that n rows see of a tile.
func ranges(r *rand.Rand, keys, n int) (lo, hi []int32) {
	lo, hi = make([]int32, n), make([]int32, n)
	kind := r.IntN(6)
	for j := range n {
		switch k := int32(keys); kind {
		case 0, 1: // all
			hi[j] = k
		case 2: // all, and more
			lo[j], hi[j] = -r.Int32N(100), k+r.Int32N(100)
		case 3: // causal
			hi[j] = int32(j) - 3
		case 4: // anything, reversed too
			lo[j], hi[j] = r.Int32N(2*k+2)-k/2, r.Int32N(2*k+2)-k/2
		case 5: // the ends of the type
			lo[j] = [...]int32{math.MinInt32, 0, 1, math.MaxInt32}[r.IntN(4)]
			hi[j] = [...]int32{math.MinInt32, k - 1, k, math.MaxInt32}[r.IntN(4)]
		}
	}
	return lo, hi
}
