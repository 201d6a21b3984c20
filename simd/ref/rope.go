package ref

// RopeInterleaved turns the adjacent pairs of one row of P values by the angles of freqs, a row of P/2 (cos, sin):
//
//	for i := 0; i < P/2; i++ {
//		x0, x1, cos, sin := x[2*i], x[2*i+1], freqs[2*i], freqs[2*i+1]
//		dst[2*i] = x0*cos - x1*sin
//		dst[2*i+1] = x0*sin + x1*cos
//	}
//
// every product and every sum rounded, no fma. dst may be x.
func RopeInterleaved(dst, x, freqs []float32) {
	dst, freqs = dst[:len(x)], freqs[:len(x)]
	for i := 0; i+1 < len(x); i += 2 {
		dst[i], dst[i+1] = turn(x[i], x[i+1], freqs[i], freqs[i+1])
	}
}

// RopeHalf is RopeInterleaved on the pairs (x[i], x[i+P/2]); pair i reads the same place of freqs.
//
//	x0, x1, cos, sin := x[i], x[i+P/2], freqs[2*i], freqs[2*i+1]
//	dst[i] = x0*cos - x1*sin
//	dst[i+P/2] = x0*sin + x1*cos
func RopeHalf(dst, x, freqs []float32) {
	dst, freqs = dst[:len(x)], freqs[:len(x)]
	half := len(x) / 2
	for i := range half {
		dst[i], dst[i+half] = turn(x[i], x[i+half], freqs[2*i], freqs[2*i+1])
	}
}

// turn is the complex product (x0 + i*x1) * (cos + i*sin).
func turn(x0, x1, cos, sin float32) (re, im float32) {
	re = float32(x0*cos) - float32(x1*sin)
	im = float32(x0*sin) + float32(x1*cos)
	return re, im
}
