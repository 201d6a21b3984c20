package main

import (
	"math"

	"github.com/lamina-ml/lamina/checkpoint"
)

// roundTo is x rounded once, from float64, to nearest even in a type of q. The library
// rounds from float32: by way of it a bound could be rounded twice.
func roundTo(d checkpoint.DType, x float64) float64 {
	switch d {
	case checkpoint.BF16:
		return roundDigits(x, 8, -133, 0x1.FEp127)
	case checkpoint.F16:
		return roundDigits(x, 11, -24, 65504)
	}
	return float64(float32(x))
}

// roundDigits rounds to a binary format of the given significant digits, whose smallest
// positive value is 2^least and whose largest is largest.
func roundDigits(x float64, digits, least int, largest float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, exp := math.Frexp(x)        // 2^(exp-1) <= |x| < 2^exp
	unit := max(exp-digits, least) // one unit of the last place is 2^unit
	n := math.Ldexp(x, -unit)      // exact: at most 2^digits, and rounded next
	y := math.Ldexp(math.RoundToEven(n), unit)
	if math.Abs(y) > largest {
		return math.Copysign(math.Inf(1), x)
	}
	return y
}
