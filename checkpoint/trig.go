package checkpoint

import (
	"math"
	"math/big"
)

// Sines, cosines, logarithms and powers for tables and scales, ours because Go's have other
// bits on other architectures. Every product of floats is converted, so that no compiler
// fuses it with a sum; where fused is meant, it is math.FMA.

// Of pi/2, 159 bits in three parts.
const (
	halfPi1 = 0x1.921fb54442d18p+0
	halfPi2 = 0x1.1a62633145c07p-54
	halfPi3 = -0x1.f1976b7ed8fbcp-110
)

// sincos is the sine and cosine of x, 0 <= x < 2^31, each within 1 ulp but for rounding.
func sincos(x float64) (sin, cos float64) {
	n := math.RoundToEven(float64(x * (2 / math.Pi)))
	r, tail := x, 0.0
	if n != 0 {
		r, tail = reduce(x, n)
	}
	s, c := sinKernel(r, tail), cosKernel(r, tail)
	switch int64(n) & 3 {
	case 0:
		return s, c
	case 1:
		return c, -s
	case 2:
		return -s, -c
	}
	return -c, s
}

// reduce is x - n*pi/2 in two parts, for the whole number n >= 1 that makes it smallest.
func reduce(x, n float64) (r, tail float64) {
	p1 := float64(n * halfPi1)
	e1 := math.FMA(n, halfPi1, -p1)
	p2 := float64(n * halfPi2)
	e2 := math.FMA(n, halfPi2, -p2)
	t := x - p1 // exact: they are within a factor of two
	t, d1 := minus(t, e1)
	t, d2 := minus(t, p2)
	tail = d1 + d2 - e2 - float64(n*halfPi3)
	r = t + tail
	return r, tail - (r - t)
}

// minus is a-b, rounded, and what rounding lost.
func minus(a, b float64) (d, lost float64) {
	d = a - b
	bb := d - a
	return d, (a - (d - bb)) - (b + bb)
}

// sinKernel is the sine of x+y, |x| <= pi/4 and y tiny beside it: the polynomial that Sun
// Microsystems published with fdlibm, as all libraries have it.
func sinKernel(x, y float64) float64 {
	const (
		s1 = -1.66666666666666324348e-01
		s2 = 8.33333333332248946124e-03
		s3 = -1.98412698298579493134e-04
		s4 = 2.75573137070700676789e-06
		s5 = -2.50507602534068634195e-08
		s6 = 1.58969099521155010221e-10
	)
	z := float64(x * x)
	v := float64(z * x)
	r := s5 + float64(z*s6)
	r = s4 + float64(z*r)
	r = s3 + float64(z*r)
	r = s2 + float64(z*r)
	inner := float64(0.5*y) - float64(v*r)
	return x - ((float64(z*inner) - y) - float64(v*s1))
}

// cosKernel is the cosine of x+y likewise.
func cosKernel(x, y float64) float64 {
	const (
		c1 = 4.16666666666666019037e-02
		c2 = -1.38888888888741095749e-03
		c3 = 2.48015872894767294178e-05
		c4 = -2.75573143513906633035e-07
		c5 = 2.08757232129817482790e-09
		c6 = -1.13596475577881948265e-11
	)
	z := float64(x * x)
	r := c5 + float64(z*c6)
	r = c4 + float64(z*r)
	r = c3 + float64(z*r)
	r = c2 + float64(z*r)
	r = c1 + float64(z*r)
	half := float64(0.5 * z)
	w := 1 - half
	tail := float64(float64(z*z)*r) - float64(x*y)
	return w + (((1 - w) - half) + tail)
}

// bigBits is the precision of logarithms and powers: there are few of them, so they are
// computed in whole numbers and rounded once.
const bigBits = 128

func bigFloat(x float64) *big.Float { return new(big.Float).SetPrec(bigBits).SetFloat64(x) }

func bigNew() *big.Float { return new(big.Float).SetPrec(bigBits) }

// log is the natural logarithm of x; NaN unless x is finite and above 0.
func log(x float64) float64 {
	if !(x > 0 && x <= math.MaxFloat64) {
		return math.NaN()
	}
	y, _ := bigLog(x).Float64()
	return y
}

// powers are the powers of one number, whose logarithm is computed once.
type powers struct{ log, log2 *big.Float }

// powersOf is for x finite and above 0.
func powersOf(x float64) powers { return powers{bigLog(x), bigLog2()} }

// of is x^(num/den), for den not 0.
func (p powers) of(num, den int64) float64 {
	e := bigNew().Mul(p.log, bigNew().SetInt64(num))
	y, _ := bigExp(e.Quo(e, bigNew().SetInt64(den)), p.log2).Float64()
	return y
}

// bigLog is log(m*2^e) = e*log(2) + 2*artanh((m-1)/(m+1)), with m near 1.
func bigLog(x float64) *big.Float {
	m, e := math.Frexp(x)
	if m < 0.75 {
		m, e = float64(2*m), e-1
	}
	y := bigNew().Mul(bigLog2(), bigNew().SetInt64(int64(e)))
	return y.Add(y, artanhTwice(bigNew().Quo(bigFloat(m-1), bigNew().Add(bigFloat(m), bigFloat(1)))))
}

// bigLog2 is log(2).
func bigLog2() *big.Float {
	y, _, err := big.ParseFloat("0.69314718055994530941723212145817656807550013436025525412068", 10, bigBits, big.ToNearestEven)
	if err != nil {
		panic("checkpoint: " + err.Error()) // it is a number
	}
	return y
}

// artanhTwice is 2*artanh(z) = 2*(z + z^3/3 + z^5/5 + ...).
func artanhTwice(z *big.Float) *big.Float {
	sum := bigNew()
	if z.Sign() == 0 {
		return sum
	}
	square := bigNew().Mul(z, z)
	term := z
	for k := int64(1); term.MantExp(nil) > -bigBits; k += 2 {
		sum.Add(sum, bigNew().Quo(term, bigNew().SetInt64(k)))
		term = bigNew().Mul(term, square)
	}
	return sum.Add(sum, sum)
}

// bigExp is exp(x) = 2^n * exp(x - n*log(2)); beyond what float64 holds it is 0 or infinite.
func bigExp(x, log2 *big.Float) *big.Float {
	f, _ := x.Float64()
	if f > 800 {
		return bigNew().SetInf(false)
	}
	if f < -800 {
		return bigNew()
	}
	n := math.RoundToEven(float64(f * (1 / math.Ln2)))
	r := bigNew().Mul(log2, bigFloat(n))
	r.Sub(x, r)
	sum, term := bigFloat(1), bigFloat(1)
	for k := int64(1); r.Sign() != 0 && term.MantExp(nil) > -bigBits; k++ {
		term = bigNew().Mul(term, r)
		term.Quo(term, bigNew().SetInt64(k))
		sum.Add(sum, term)
	}
	return sum.SetMantExp(sum, int(n))
}
