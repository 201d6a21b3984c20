package simd_test

import (
	"math"
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

var rowsTrials = map[string]trial{
	"SumSquares":      func(r *rand.Rand, class kerneltest.Class) []any { return []any{class.Make(r, rowLength(r))} },
	"RMSNorm":         normTrial,
	"RMSNormBF16":     normTrial,
	"RMSNormF16":      normTrial,
	"RopeInterleaved": ropeTrial,
	"RopeHalf":        ropeTrial,
	"QuantDynamic":    quantTrial,
}

// rowLength is a length with a tail, or that of a real row.
func rowLength(r *rand.Rand) int {
	if r.IntN(4) == 0 {
		return oneOf(r, 192, 448, 512, 576, 1536)
	}
	return oneOf(r, lengths...)
}

// dstOr is a row to write to, of a length: x, or one of its own.
func dstOr(r *rand.Rand, x []float32) []float32 {
	if r.IntN(2) == 0 {
		return x
	}
	return make([]float32, len(x))
}

func normTrial(r *rand.Rand, class kerneltest.Class) []any {
	x := class.Make(r, rowLength(r))
	eps := []float32{0, 1e-6, 1e-5, class.Value(r)}[r.IntN(4)]
	return []any{dstOr(r, x), x, gammaFor(r, class, len(x)), eps}
}

// gammaFor is a gamma of the class, or a plain one.
func gammaFor(r *rand.Rand, class kerneltest.Class, n int) []float32 {
	if r.IntN(2) == 0 {
		class = normal
	}
	return class.Make(r, n)
}

func ropeTrial(r *rand.Rand, class kerneltest.Class) []any {
	x := class.Make(r, oneOf(r, append([]int{64, 64, 128, 130}, lengths...)...))
	freqs := kerneltest.Classes[r.IntN(2)].Make(r, len(x))
	if r.IntN(4) == 0 {
		freqs = class.Make(r, len(x))
	}
	return []any{dstOr(r, x), x, freqs}
}

func quantTrial(r *rand.Rand, class kerneltest.Class) []any {
	x := class.Make(r, rowLength(r))
	group := oneOf(r, 1, 3, 8, 17, 32, 40, 64, 100, 128, 128, 128, 256, 1<<62)
	if r.IntN(2) == 0 {
		edges(r, x)
	}
	groups := 0
	if len(x) > 0 {
		groups = (len(x)-1)/group + 1
	}
	return []any{make([]byte, len(x)), make([]float32, groups), x, group}
}

// edges makes values half-way between two codes, or next to that, under a scale that is a power of two: every 16th value
// is the largest code's.
func edges(r *rand.Rand, x []float32) {
	scale := float32(math.Ldexp(1, r.IntN(3)-1))
	for i := range x {
		code := byte(r.IntN(0x7E))
		v := (simd.E4M3ToF32(code) + simd.E4M3ToF32(code+1)) / 2
		switch r.IntN(4) {
		case 0:
			v = math.Nextafter32(v, 0)
		case 1:
			v = math.Nextafter32(v, 448)
		}
		if i%16 == 0 {
			v = 448
		}
		x[i] = float32(math.Copysign(float64(v*scale), r.Float64()-0.5))
	}
}
