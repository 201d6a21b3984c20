package ref

import "math"

// Fma is a*b + c with one rounding: the f32 fused multiply-add of every instruction set.
//
// float32(math.FMA(...)) of float64 values rounds twice and is wrong. Here the product of two f32 is exact in
// float64 (48 bits), and plus rounds its sum with c once.
func Fma(a, b, c float32) float32 {
	return float32(fma(float64(a), float64(b), float64(c)))
}

// fma is Fma on f32 values held as float64, which saves the hot loops two conversions for each operand: a, b and c
// must be exactly representable as f32, and so is the result.
func fma(a, b, c float64) float64 { return plus(float64(a*b), c) }

// low28 are the bits of a float64 that are zero where it is half-way between two f32: normal, subnormal or overflowing.
const low28 = 1<<28 - 1

// plus is p + c rounded once to f32, for a product p of two f32 and an f32 c.
//
// The float64 sum s is the only rounding before the last one, and two roundings differ from one only where s falls
// half-way between two f32 while the exact sum does not. So s moves by one unit towards the exact sum if it may be
// half-way and is not exact, e being what it lost. Subnormal results are right too: float64 has more than 24+2 bits
// there. Small enough to be inlined, or the loops that keep their sums in registers would spill them.
func plus(p, c float64) float64 {
	s := p + c
	if bits := math.Float64bits(s); bits&low28 == 0 {
		t := s - p
		if e := p - (s - t) + (c - t); e > 0 || e < 0 { // NaN if s is Inf or NaN
			s = math.Float64frombits(bits + 1 - (bits^math.Float64bits(e))>>63<<1)
		}
	}
	return float64(float32(s))
}
