package ref

import "math"

// The constants of Exp. expNLn2Hi + expNLn2Lo is -ln 2; expMagic is 1.5*2^23 + 254.
const (
	expLo     float32 = -0x1.ap+6
	expHi     float32 = 0x1.64p+6
	expLog2E  float32 = 0x1.715476p+0
	expMagic  float32 = 0x1.8001fcp+23
	expNLn2Hi float32 = -0x1.62e43p-1
	expNLn2Lo float32 = 0x1.05c61p-29
	expC6     float32 = 0x1.6a3d08p-10
	expC5     float32 = 0x1.123856p-7
	expC4     float32 = 0x1.5558bep-5
	expC3     float32 = 0x1.555494p-3
	expC2     float32 = 0x1.fffffcp-2
)

// Exp is e^x for every x: one sequence of f32 roundings, so it has the same bits on every instruction set. Its error
// is below 0.9 units of the last place and it is monotone.
//
//	x  = min(max(x, LO), HI)           a NaN comes through, made quiet
//	t  = fma(x, LOG2E, MAGIC)          MAGIC + n, n = x*LOG2E to the nearest integer
//	n  = t - MAGIC                     exact
//	r1 = fma(n, NLN2HI, x)             exact
//	r  = fma(n, NLN2LO, r1)            |r| <= ln2/2
//	q  = C2 + r*(C3 + r*(C4 + r*(C5 + r*C6)))    by fma, from the inside
//	w  = fma(n, NLN2LO, q*(r*r))
//	p  = 1 + (r1 + w)
//	y  = (p * 2^(n/2 down)) * 2^(n/2 up)         rounded once, only if subnormal or overflowing
func Exp(x float32) float32 {
	if x != x {
		return math.Float32frombits(math.Float32bits(x) | 0x00400000)
	}
	if x < expLo {
		x = expLo
	}
	if x > expHi {
		x = expHi
	}
	t := float32(fma(float64(x), float64(expLog2E), float64(expMagic)))
	n := float64(t - expMagic)
	r1 := fma(n, float64(expNLn2Hi), float64(x))
	r := fma(n, float64(expNLn2Lo), r1)
	q := fma(float64(expC6), r, float64(expC5))
	q = fma(q, r, float64(expC4))
	q = fma(q, r, float64(expC3))
	q = fma(q, r, float64(expC2))
	z := float32(float32(r) * float32(r))
	v := float32(float32(q) * z)
	w := float32(fma(n, float64(expNLn2Lo), float64(v)))
	s := float32(r1) + w
	p := 1 + s

	// MAGIC carries two exponent biases: h holds floor((n+254)/2), bits(t)-h the ceiling; the bits above fall out.
	b := math.Float32bits(t)
	h := b >> 1
	s1 := math.Float32frombits(h << 23)
	s2 := math.Float32frombits((b - h) << 23)
	return float32(float32(p*s1) * s2)
}
