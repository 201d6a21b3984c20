package ref

import "math"

const (
	// maxE4M3 is the largest value of an E4M3 code.
	maxE4M3 = 448
	// amaxCap is the most that the largest magnitude of a group counts for.
	amaxCap = 1200
	// nanE4M3 is the NaN code that a group with a NaN gets.
	nanE4M3 = 0x7F
)

// QuantDynamic quantises one row of activations to E4M3 codes, with a scale for each group of columns; the last group
// may be short. scales has ceil(len(x)/group) values. For each group X is
//
//	amax := max(|x[...]|)
//	scale := min(amax, 1200) / 448
//	recip := 1 / scale
//	if recip is not finite {             scale is 0, or too small
//		recip = 0
//	}
//	code[i] = E4M3(clamp(x[i]*recip, -448, 448))
//
// with the quotients and the product rounded to f32 and then E4M3 to nearest even. So Inf counts as 1200 and becomes the
// largest code with its sign, as everything beyond 1200 does; a group of zeros and of values too small for a scale
// gives zeros, with the signs of the values, under that small scale. A group that holds a NaN becomes NaN as a whole:
// every code is 7F and the scale is NaN.
func QuantDynamic(codes []byte, scales []float32, x []float32, group int) {
	codes = codes[:len(x)]
	for g := 0; len(x) > 0; g++ {
		n := min(group, len(x))
		scales[g] = quantGroup(codes[:n], x[:n])
		codes, x = codes[n:], x[n:]
	}
}

// quantGroup writes the codes of a group and returns its scale.
func quantGroup(codes []byte, x []float32) float32 {
	var amax float32
	for _, v := range x {
		amax = larger(amax, abs(v))
	}
	if amax != amax {
		for i := range codes {
			codes[i] = nanE4M3
		}
		return nan
	}
	scale := min(amax, amaxCap) / maxE4M3
	recip := 1 / scale
	if recip > math.MaxFloat32 {
		recip = 0
	}
	for i, v := range x {
		codes[i] = F32ToE4M3(float32(v*recip), Saturate) // which clamps
	}
	return scale
}

// abs is |x|.
func abs(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }
