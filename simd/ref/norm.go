package ref

import "math"

// SumSquares is the sum of the squares of x in 32 lanes:
//
//	whole := len(x) / 32 * 32
//	for i := 0; i < whole; i++ {
//		lane[i%32] = fma(x[i], x[i], lane[i%32]) // from zero
//	}
//	for _, w := range []int{16, 8, 4, 2, 1} {
//		for i := 0; i < w; i++ {
//			lane[i] += lane[i+w]
//		}
//	}
//	sum := lane[0]
//	for _, v := range x[whole:] {
//		sum = fma(v, v, sum)
//	}
func SumSquares(x []float32) float32 {
	var lane [32]float64
	for len(x) >= 32 {
		for i := range lane {
			v := float64(x[i])
			lane[i] = fma(v, v, lane[i])
		}
		x = x[32:]
	}
	for w := 16; w > 0; w /= 2 {
		for i := range w {
			lane[i] = float64(float32(lane[i]) + float32(lane[i+w]))
		}
	}
	sum := lane[0]
	for _, v := range x {
		sum = fma(float64(v), float64(v), sum)
	}
	return float32(sum)
}

// rootMeanSquare is 1/sqrt(mean(x^2) + eps), one rounding for each operation.
func rootMeanSquare(x []float32, eps float32) float32 {
	mean := SumSquares(x) / float32(len(x))
	root := float32(math.Sqrt(float64(mean + eps)))
	return 1 / root
}

// RMSNorm is
//
//	r := 1 / sqrt(SumSquares(x)/len(x) + eps)
//	dst[i] = (x[i] * r) * gamma[i]
//
// with one f32 rounding for each operation; never x*(r*gamma). dst and gamma have the length of x; dst may be x.
func RMSNorm(dst, x, gamma []float32, eps float32) {
	r := rootMeanSquare(x, eps)
	dst, gamma = dst[:len(x)], gamma[:len(x)]
	for i, v := range x {
		dst[i] = float32(float32(v*r) * gamma[i])
	}
}

// RMSNormBF16 is RMSNorm for a gamma held in bf16: the normalised value is rounded to bf16 before the product with
// gamma, and the product again.
//
//	dst[i] = bf16(bf16(x[i]*r) * gamma[i])
//
// dst holds the bf16 values as f32.
func RMSNormBF16(dst, x, gamma []float32, eps float32) {
	r := rootMeanSquare(x, eps)
	dst, gamma = dst[:len(x)], gamma[:len(x)]
	for i, v := range x {
		y := BF16ToF32(F32ToBF16(float32(v * r)))
		dst[i] = BF16ToF32(F32ToBF16(float32(y * gamma[i])))
	}
}

// RMSNormF16 is RMSNormBF16 for a gamma held in f16.
//
//	dst[i] = f16(f16(x[i]*r) * gamma[i])
func RMSNormF16(dst, x, gamma []float32, eps float32) {
	r := rootMeanSquare(x, eps)
	dst, gamma = dst[:len(x)], gamma[:len(x)]
	for i, v := range x {
		y := F16ToF32(F32ToF16(float32(v * r)))
		dst[i] = F16ToF32(F32ToF16(float32(y * gamma[i])))
	}
}
