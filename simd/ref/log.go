package ref

import "math"

const (
	ln2Hi = 0x1.62e42feep-1       // 32 bits of ln 2: times any exponent it is exact
	ln2Lo = 0x1.a39ef35793c76p-33 // the rest
)

// Log is the natural logarithm, computed in float64 within 2 of its units and then rounded to f32.
//
//	x = m * 2^e,  sqrt(1/2) <= m < sqrt(2)
//	f = (m-1) / (m+1),  z = f*f
//	log x = e*ln2Hi + (2f + (2f*(z/3 + z^2/5 + ... + z^11/23) + e*ln2Lo))
//
// every product rounded: the series of 2*atanh(f). Go's own math.Log differs between architectures.
// Log(0) is -Inf, of a negative x NaN, Log(+Inf) +Inf, Log(NaN) NaN.
func Log(x float32) float32 {
	return float32(log64(x))
}

// log64 is Log before its last rounding.
func log64(x float32) float64 {
	switch {
	case x != x || x > math.MaxFloat32:
		return float64(x)
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	// Every f32 is a normal float64, subnormal ones too: the exponent is in the bits.
	bits := math.Float64bits(float64(x))
	e := int(bits>>52) - 1023
	m := math.Float64frombits(bits&(1<<52-1) | 1023<<52)
	if m >= math.Sqrt2 {
		m = float64(m * 0.5)
		e++
	}
	f := (m - 1) / (m + 1)
	z := float64(f * f)
	s := 1.0 / 23
	for _, c := range &atanh {
		s = c + float64(s*z)
	}
	n := float64(e)
	f2 := f + f
	return float64(n*ln2Hi) + (f2 + (float64(f2*float64(s*z)) + float64(n*ln2Lo)))
}

// atanh holds the coefficients of the series below its last.
var atanh = [...]float64{1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3}
