package kvpaged

import (
	"math"

	"github.com/lamina-ml/lamina/simd"
)

// The scales that writers choose. Readers honour any scale: a value is its code
// times its scale, rounded once.

// amax is the largest magnitude among the finite values of x, 0 if there is none:
// an infinity or a NaN does no harm to its neighbours.
func amax(x []float32) float32 {
	const inf = 0x7F800000
	var m uint32
	for _, v := range x {
		if a := math.Float32bits(v) &^ (1 << 31); a < inf {
			m = max(m, a)
		}
	}
	return math.Float32frombits(m)
}

// powerScale is the scale of a group of E4M3 codes, as E8M0:
//
//	2^ceil(log2(max(amax/448, 1e-4)))
//
// F32ToE8M0 takes the ceiling from the bits.
func powerScale(x []float32) uint8 { return simd.F32ToE8M0(max(amax(x)/448, 1e-4)) }

// encodeGroup stores a group of values as E4M3 codes and returns their scale. The
// code of v is that of v/scale, to nearest even: an infinity is the largest code,
// NaN is NaN.
func encodeGroup(codes []byte, x []float32) uint8 {
	e := powerScale(x)
	simd.NarrowE4M3Scaled(codes, x, simd.E8M0ToF32(e))
	return e
}
